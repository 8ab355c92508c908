#!/bin/sh
#SBATCH --array=1-3%2
#SBATCH -J sweep
#SBATCH -o %x_%A_%a.log

set -e
params=$(sed -n "${SLURM_ARRAY_TASK_ID}p" params.txt)
echo "task $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_MIN-$SLURM_ARRAY_TASK_MAX: $params"
