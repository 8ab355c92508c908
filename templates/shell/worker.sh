#!/bin/bash
# Runs one rank that mpirun has started, or another launcher that says its number:  bash worker.sh PROGRAM [ARGUMENT...]
#
# Writes the output to $HPC_KIT_RUN/rank-N.log, where N is $HPC_KIT_RANK, or the rank that mpirun gives. If the program
# fails before any other rank has failed, writes "rank host exit_code unix_time" to $HPC_KIT_RUN/first-failure.

rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
rank=${HPC_KIT_RANK:-$rank}
exec >>"$HPC_KIT_RUN/rank-$rank.log" 2>&1
# A signal for this shell reaches the program as well: the shell has to outlive it.
trap : HUP INT QUIT ABRT ALRM TERM USR1 USR2 XCPU TSTP TTIN TTOU
"$@" && exit
code=$?
# The launcher would kill ranks that still save. With [restart], the batch script looks for this file.
if [ "$code" = "${HPC_KIT_STOP_CODE-}" ]; then : >"$HPC_KIT_RUN/stopped" && exit; fi
set -o noclobber
{ echo "$rank $(uname -n) $code $(date +%s)" >"$HPC_KIT_RUN/first-failure"; } 2>/dev/null
exit "$code"
