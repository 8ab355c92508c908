#!/usr/bin/env bash


# A comment, an indented directive that is none, one that is switched off, odd white space and quotes.
   #SBATCH --job-name=indented
##SBATCH --job-name=off
# SBATCH --job-name=spaced
#SBATCH	--job-name="two words"    # trailing words
#SBATCH -N2 -n 3

    
#SBATCH -o '%x-%j.log'
#SBATCH --comment=it\'s
#SBATCH --mail-user=me@example.org --mail-type=END,FAIL

echo "$SLURM_JOB_NAME: $SLURM_NNODES nodes, $SLURM_NTASKS tasks, $SLURM_TASKS_PER_NODE"

#SBATCH --job-name=late
scontrol show job "$SLURM_JOB_ID" | sed -n 's/ *Comment=//p'
