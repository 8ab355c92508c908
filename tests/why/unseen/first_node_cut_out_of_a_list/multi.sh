#!/bin/bash
#SBATCH -N2 --ntasks-per-node=1 --gpus-per-node=4 -p short -o out-%j.txt
echo SLURM_JOB_NODELIST=$SLURM_JOB_NODELIST
export MASTER_ADDR=$(echo $SLURM_JOB_NODELIST | cut -d'-' -f1)
export MASTER_PORT=29400
echo MASTER_ADDR=$MASTER_ADDR MASTER_PORT=$MASTER_PORT
srun -l torchrun --nnodes 2 --nproc_per_node 4 --rdzv_id 1 --rdzv_backend c10d --rdzv_endpoint $MASTER_ADDR:$MASTER_PORT main.py
