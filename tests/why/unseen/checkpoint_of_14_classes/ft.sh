#!/bin/bash
#SBATCH --gres=gpu:1 -t 1-0
srun python finetune.py --classes 5 --resume runs/base/ckpt_040.pt
rsync -av runs /archive/u/ext/
echo "Job finished: $(date)"
