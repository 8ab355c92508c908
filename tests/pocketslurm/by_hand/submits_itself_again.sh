#!/bin/bash
#SBATCH --job-name=again
#SBATCH --open-mode=append
#SBATCH --output=again.log

round=${ROUND:-1}
echo "round $round"
script=$(scontrol show job "$SLURM_JOB_ID" | awk -F= '/ Command=/ {print $2}')
if [ "$round" -lt 3 ]; then
    ROUND=$((round + 1)) sbatch --dependency=afterany:"$SLURM_JOB_ID" "$script" > /dev/null
fi
