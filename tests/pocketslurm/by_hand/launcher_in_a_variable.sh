#!/bin/bash

#SBATCH --job-name=multinode
#SBATCH -D .
#SBATCH --output=O-%x.%j
#SBATCH --error=E-%x.%j
#SBATCH --nodes=4                   # number of nodes
#SBATCH --ntasks-per-node=1         # one launcher a node
#SBATCH --gres=gpu:4                # GPUs of a node
#SBATCH --cpus-per-task=160         # cores of a launcher
#SBATCH --time=01:59:00             # longest run (HH:MM:SS)

# The form of accelerate's examples for several nodes: surroundings from a file, a command line put together of
# exported pieces with backslashes and newlines in them, one launcher a node.
source activateEnvironment.sh
export GPUS_PER_NODE=4

head_node_ip=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
export PROJECT_DIR="${PROJECT_DIR:-/nowhere}"

export LAUNCHER="./torchrun launch \
    --num_processes $((SLURM_NNODES * GPUS_PER_NODE)) \
    --num_machines $SLURM_NNODES \
    --rdzv_backend c10d \
    --main_process_ip $head_node_ip \
    --main_process_port 29500 \
    "
export SCRIPT="${PROJECT_DIR}/train.py"
export SCRIPT_ARGS=" \
    --mixed_precision fp16 \
    --output_dir ${PROJECT_DIR}/output \
    "

export CMD="$LAUNCHER $SCRIPT $SCRIPT_ARGS"
srun $CMD
