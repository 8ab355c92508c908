#!/bin/bash
#SBATCH -J pnx-ft
#SBATCH -p gpu -G 1 -c 8 --mem=64G -t 1-0
#SBATCH --mail-type=END,FAIL
set -ex
module load python/3.11 cuda/12.1
date
python -u finetune.py --model pointnext-l --ema 2>&1 | tee run_08.log
echo 'training finished'
cp run_08.log ~/results/
