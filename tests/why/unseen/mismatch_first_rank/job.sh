#!/bin/bash
#SBATCH -N1 --ntasks=4
export TORCH_DISTRIBUTED_DEBUG=DETAIL
srun python t.py
