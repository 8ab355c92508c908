#!/bin/bash
#SBATCH -J looks-around -n2 -t 10
#SBATCH -e %x.err -o %x.out
squeue --me -h -o "%j %T %D" | grep looks
squeue -h -j $SLURM_JOB_ID -O "NumNodes:4,TimeLimit:8" | sed 's/ *$//'
sinfo -h -o "%P %a %D" | head -1
sacct -n -X -j "$SLURM_JOB_ID" --format=JobName%14,State | xargs
scontrol show node n1 | grep -o 'CPUTot=[0-9]*'
scontrol show partition local | grep -o 'State=[A-Z]*'
module load cuda/12.1
echo "after the missing module"
srun --mpi=none -n "$SLURM_NTASKS" true && echo fine
