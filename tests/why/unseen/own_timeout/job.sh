#!/bin/bash
#SBATCH -t 24:00:00
#SBATCH --signal=B:TERM@300
# quick smoke test: stop after 20 min (remove for the real run!)
timeout 20m python ppo.py
rc=$?
echo "payload rc=$rc"
exit $rc
