#!/bin/bash
#SBATCH -J r3 -o %x-%j.out --gres=gpu:1
set -x
python -u train.py --cfg cfg/r3.yaml 2>&1 | tee train.log
echo 'all done'
