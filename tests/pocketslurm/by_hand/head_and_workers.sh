#!/bin/bash
#SBATCH -N 3 --ntasks-per-node=1 --cpus-per-task=4
#SBATCH --job-name head-and-workers

set -euo pipefail
nodes_list=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
mapfile -t nodes <<< "$nodes_list"
head=${nodes[0]}
srun --nodes=1 --ntasks=1 -w "$head" bash -c 'echo "head on $SLURMD_NODENAME"; touch head-is-up; while [ ! -e stop ]; do sleep 0.05; done' &
while [ ! -e head-is-up ]; do sleep 0.05; done
for ((i = 1; i < SLURM_JOB_NUM_NODES; i++)); do
    srun --nodes=1 --ntasks=1 -w "${nodes[$i]}" bash -c 'echo "worker on $SLURMD_NODENAME with $SLURM_CPUS_PER_TASK cpus"' &
done
sleep 0.2
srun --overlap --nodes=1 --ntasks=1 -w "$head" bash -c 'echo "driver on $SLURMD_NODENAME"'
touch stop
wait
