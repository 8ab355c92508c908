#!/bin/bash
#SBATCH --job-name=head
#SBATCH -N 2 --ntasks-per-node=1 -o %x.out
head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
if [ "$(hostname)" == "$head_node" ]; then echo "the batch script runs on the head node"; fi
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)
[ -n "$head_node_ip" ] && echo "it has an address"
export head_node
srun bash -c 'if [[ $(hostname -s) == "$head_node" ]]; then echo "ray start --head"; else echo "ray start --address"; fi'
srun hostname | sort -u | wc -l
