#!/bin/bash -l
#SBATCH --job-name=megatron
#SBATCH --account=proj_0042
#SBATCH --qos=long
#SBATCH --partition=h100,a100
#SBATCH --constraint="[rack1|rack2]"
#SBATCH --clusters=large
#SBATCH --licenses=scratch:1
#SBATCH --reservation=course
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=h100:16
#SBATCH --cpus-per-task=1024
#SBATCH --mem=16000G
#SBATCH --exclude=gpu[001-004]
#SBATCH --switches=1
#SBATCH --segment=2
#SBATCH --mail-type=BEGIN,END,TIME_LIMIT_80
#SBATCH --output=%x.out
set -euo pipefail
module purge 2> /dev/null || true
export GPUS_PER_NODE=$SLURM_GPUS_ON_NODE
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
[ "$MASTER_ADDR" = "$SLURMD_NODENAME" ] && echo "$SLURM_JOB_PARTITION $SLURM_CPUS_PER_TASK $SLURM_MEM_PER_NODE $CUDA_VISIBLE_DEVICES"
srun --mpi=pmix -C rack1 bash -c 'echo "--node_rank=$SLURM_PROCID --nproc_per_node=$GPUS_PER_NODE"'
