#!/bin/bash
#SBATCH --gres=gpu:2 -c 8 -o train-%j.out
srun --overlap -n1 nvidia-smi dmon -o T -f dmon.log &
echo Monitoring step started
srun -n1 --overlap torchrun --standalone --nproc_per_node=2 train.py; rc=$?
echo stopping gpu monitor
scancel $SLURM_JOB_ID.0
exit $rc
