#!/bin/bash
#SBATCH -N 2 --ntasks-per-node=4 --gpus-per-node=4
python3 -m venv /local/$SLURM_JOB_ID/venv
source /local/$SLURM_JOB_ID/venv/bin/activate
pip install -r req.txt
srun -l /local/$SLURM_JOB_ID/venv/bin/python main.py
