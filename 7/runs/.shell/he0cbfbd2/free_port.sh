#!/bin/bash
# Prints a free port of this host:  bash free_port.sh [NUMBER]
#
# Linux gives ports from 32768 to programs that ask for none; this one is below 30000. It is derived from NUMBER, by
# default from the job and its restarts, so that jobs that follow one another use different ports.

port=$((10000 + (${1:-SLURM_JOB_ID * 31 + ${SLURM_RESTART_COUNT:-0} }) % 20000))
# A port that somebody listens on is skipped.
while (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((10000 + (port - 10000 + 1621) % 20000)); done
echo "$port"
