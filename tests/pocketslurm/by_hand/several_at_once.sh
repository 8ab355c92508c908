#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks=4
#SBATCH --cpus-per-task=2

for i in 1 2 3 4; do
    srun --exact -N1 -n1 -c2 bash -c "echo run $i with \$SLURM_NTASKS task, step \$([ \$SLURM_STEP_ID -lt 4 ] && echo known)" &
done
wait
srun -n4 bash -c 'exit $((SLURM_PROCID == 2 ? 7 : 0))'
echo "status $?"
