#!/bin/bash
# Runs torchrun in a task of a Slurm step:  bash agent.sh TORCHRUN [ARGUMENT...]
#
# Passes signals on to torchrun, but for USR1 and USR2, which would end it: they go to the programs of its workers.
# HPC_KIT_SIGNALS=all (see signals.sh): Slurm signals all processes, so this shell passes nothing on.
# shellcheck disable=SC2013,SC2046,SC2064,SC2317  # the files contain numbers; each trap contains its signal

pass_on() { [ "${HPC_KIT_SIGNALS-}" = all ] || kill -s "$@" 2>/dev/null; }
# The program of a worker is a child of the worker, which leads a process group.
to_programs() {
  for worker in $(cat /proc/"$!"/task/*/children); do
    [ "${HPC_KIT_SIGNALS-}" = all ] || ! kill -0 -- "-$worker" || kill -s "$1" $(cat /proc/"$worker"/task/*/children)
  done 2>/dev/null
}
# CONT is left out: Slurm sends it just before other signals, and bash loses one of two that end a wait together.
for signal in HUP INT QUIT ABRT ALRM TERM URG XCPU; do trap "pass_on $signal \$!" "$signal"; done
for signal in USR1 USR2; do trap "to_programs $signal" "$signal"; done
for signal in TSTP TTIN TTOU; do trap "pass_on $signal \$!; kill -s STOP \$\$; pass_on CONT \$!" "$signal"; done
# In the background: while bash waits for a program in the foreground, it runs no traps.
(trap - INT QUIT; trap "" USR1 USR2; exec "$@") <&0 &
# Each signal ends one wait.
while kill -0 "$!" 2>/dev/null; do wait "$!"; done
wait "$!"
