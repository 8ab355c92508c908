#!/bin/bash

#SBATCH --job-name=multinode-example
#SBATCH --nodes=4
#SBATCH --ntasks=4
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=4

nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
nodes_array=($nodes)
head_node=${nodes_array[0]}
head_node_name=$(srun --nodes=1 --ntasks=1 -w "$head_node" printenv SLURMD_NODENAME)

echo Head node: $head_node_name of ${#nodes[@]}
export LOGLEVEL=INFO

srun ./torchrun \
--nnodes 4 \
--nproc_per_node 1 \
--rdzv_id $SLURM_JOB_ID \
--rdzv_backend c10d \
--rdzv_endpoint $head_node_name:29500 \
train.py 50 10
