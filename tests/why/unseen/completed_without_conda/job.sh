#!/bin/bash
#SBATCH -J ft
#SBATCH --gres=gpu:4
#SBATCH -t 24:00:00


export HF_HOME=/project/hf

conda activate ft


torchrun --standalone --nproc_per_node=4 ft.py
echo "Finished at $(date)"
