#!/bin/bash
# Runs one task of a Slurm step:  bash task.sh [--ranks=N | --log] PROGRAM [ARGUMENT...]
#
# Passes signals on to the program. If the program fails before any other rank has failed, writes
# "rank host exit_code unix_time" to $HPC_KIT_RUN/first-failure. Exits with the code of the program.
#
#   --ranks=N  the program starts N ranks itself; the first of them stands for all in first-failure
#   --log      write the output to $HPC_KIT_RUN/rank-N.log: srun numbers the files of heterogeneous steps wrongly
#
# HPC_KIT_SIGNALS=all (see signals.sh): Slurm signals the program too, so this shell passes nothing on.
# shellcheck disable=SC2064,SC2317  # each trap contains its signal

ranks=1
if [[ ${1-} = --ranks=* ]]; then ranks=${1#*=} && shift; fi
if [ "${1-}" = --log ]; then exec >>"$HPC_KIT_RUN/rank-$SLURM_PROCID.log" 2>&1 && shift; fi
pass_on() { [ "${HPC_KIT_SIGNALS-}" = all ] || kill -s "$@" 2>/dev/null; }
# CONT is left out: Slurm sends it just before other signals, and bash loses one of two that end a wait together.
for signal in HUP INT QUIT ABRT ALRM TERM USR1 USR2 URG XCPU; do trap "pass_on $signal \$!" "$signal"; done
for signal in TSTP TTIN TTOU; do trap "pass_on $signal \$!; kill -s STOP \$\$; pass_on CONT \$!" "$signal"; done
# In the background: while bash waits for a program in the foreground, it runs no traps.
(trap - INT QUIT; exec "$@") <&0 &
# Each signal ends one wait.
while kill -0 "$!" 2>/dev/null; do wait "$!"; done
wait "$!" && exit
code=$?
# The launcher would kill ranks that still save. With [restart], the batch script looks for this file.
if [ "$code" = "${HPC_KIT_STOP_CODE-}" ]; then : >"$HPC_KIT_RUN/stopped" && exit; fi
set -o noclobber
{ echo "$((SLURM_PROCID * ranks)) $SLURMD_NODENAME $code $(date +%s)" >"$HPC_KIT_RUN/first-failure"; } 2>/dev/null
exit "$code"
