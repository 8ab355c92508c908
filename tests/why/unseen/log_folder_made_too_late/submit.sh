#!/bin/bash
#SBATCH --job-name=whisper-l
#SBATCH --partition=a100
#SBATCH --gres=gpu:1
#SBATCH --output=logs/2025-03/%x-%j.out
mkdir -p logs/2025-03
module load cuda
srun python train_whisper.py
