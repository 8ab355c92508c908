#!/bin/bash
#SBATCH -o logs/%x.%j.log
#SBATCH -t 8:00:00
source env/bin/activate
python train.py 2>&1 | tee run.log
echo "training finished, exit code $?"
