#!/bin/bash -l

#SBATCH --job-name=multicpu
#SBATCH --nodes=2                       # number of Nodes
#SBATCH --ntasks-per-node=1             # number of MP tasks
#SBATCH --exclusive
#SBATCH --output=O-%x.%j
#SBATCH --error=E-%x.%j

source activateEnvironment.sh

head_node_ip=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
export MASTER_PORT="${MASTER_PORT:-29555 }"
echo "head_node_ip=${head_node_ip}"
echo "MASTER_PORT=${MASTER_PORT}"
INSTANCES_PER_NODE="${INSTANCES_PER_NODE:-1}"

if [[ $SLURM_NNODES == 1 ]] && [[ $INSTANCES_PER_NODE == 1 ]]; then
  LAUNCHER=""
else
  HOSTFILE_PATH=hostfile
  scontrol show hostname $SLURM_JOB_NODELIST | sed 's/$/ slots=1/' > ${HOSTFILE_PATH}
  export LAUNCHER="cat ${HOSTFILE_PATH}; ./torchrun launch \
    --num_processes $((SLURM_NNODES * ${INSTANCES_PER_NODE})) \
    --main_process_port $MASTER_PORT \
    --mpirun_hostfile $HOSTFILE_PATH"
fi
export CMD="$LAUNCHER train.py --cpu"
eval $CMD
