#!/bin/bash
#SBATCH --gres=gpu:1 -c 16 -o sweep-%j.out
for s in 0 1 2 3; do
  python train.py --seed $s > seeds/seed$s.log 2>&1 &
  echo "[sweep] started seed $s pid $!"
done
wait
echo "[sweep] all runs finished"
