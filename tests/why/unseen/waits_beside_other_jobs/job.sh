#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
#SBATCH --time=2-00:00:00
set -eo pipefail
module load cuda/12.4
source ~/.bashrc; conda activate pt
srun torchrun --nproc_per_node=4 train.py
