#!/bin/bash
# Prints the CPUs of one task:  bash cpus_per_task.sh [DIVISOR...]
#
# For jobs whose CPUs come with the GPUs: only Slurm knows the number, and lists it by node, as 32(x2),16. The node that
# has the fewest CPUs counts. They are divided by each DIVISOR (tasks of a node, ranks of a task); at least 1 remains.

read -r cpus < <(tr , "\n" <<<"${SLURM_JOB_CPUS_PER_NODE:-1}" | cut -d"(" -f1 | sort -n)
for divisor in "$@"; do cpus=$((cpus > divisor ? cpus / divisor : 1)); done
echo "$cpus"
