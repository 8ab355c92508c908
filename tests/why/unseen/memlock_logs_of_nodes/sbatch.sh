#!/bin/bash
#SBATCH -N2 --ntasks-per-node=2 --gpus-per-task=1 -p gpu -t 1-0 --output=out.%j.txt
srun -o out.%j.n%n.txt bash -c '[ $SLURM_LOCALID = 0 ] && echo "$(hostname): ulimit -l = $(ulimit -l)"; exec python dist_train.py'
