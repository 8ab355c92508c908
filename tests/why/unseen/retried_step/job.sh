#!/bin/bash
#SBATCH --mem=20G
srun python preprocess.py -w 8 || { echo "preprocess failed (rc=$?), retrying with 2 workers"; srun python preprocess.py -w 2; }
srun python train.py --vocab data/vocab.json
