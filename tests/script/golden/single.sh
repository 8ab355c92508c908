#!/bin/bash
# single: one rank on one node
# made by   hpc-kit 0.1.0 from jobs/single.toml, jobs/ddp_1node.toml, env/hosts.toml, templates/launch.sh.j2
# again     hpc-kit render --shell single --cluster hosts --set cluster.python=.venv/bin/python --set \
#           resources.chdir=/project
# run       bash single.sh    (hpc-kit launch shows the output, too)

set -euo pipefail

# The files of this run. Hosts that do not share this folder keep the logs of their ranks.
launch=$(date +%Y%m%d%H%M%S)
run=$PWD/runs/single/$launch
install -d -m 700 "$run"
echo "logs    $run/rank-*.log"

export HPC_KIT_RUN=$run
cd /project

export PYTHONUNBUFFERED=1
export TORCH_CPP_LOG_LEVEL=ERROR
export OMP_NUM_THREADS=1

exec .venv/bin/python -P -m hpc_kit.runtime.torchrun --nnodes=1 \
  --nproc-per-node=1 \
  jobs/train/ddp.py --steps 60
