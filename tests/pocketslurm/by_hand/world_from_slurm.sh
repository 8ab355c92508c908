#!/bin/bash
#SBATCH --partition=local
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --export=ALL,EPOCHS=3

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$(expr 10000 + $(echo -n $SLURM_JOBID | tail -c 4))
export WORLD_SIZE=$(($SLURM_NNODES * $SLURM_NTASKS_PER_NODE))
echo "MASTER_ADDR:MASTER_PORT=$MASTER_ADDR:$((MASTER_PORT - SLURM_JOB_ID))"
srun --label bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID; echo "$RANK/$WORLD_SIZE $LOCAL_RANK at $MASTER_ADDR, $EPOCHS epochs"'
srun --export=ALL,EPOCHS=4 -n1 bash -c 'echo "$EPOCHS epochs"'
