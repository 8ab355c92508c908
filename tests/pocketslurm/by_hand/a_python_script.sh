#!/usr/bin/env python3
#SBATCH -J by-python
#SBATCH -N 2
#SBATCH --output=%x.%j.%N.log
"""The batch script itself is a Python program."""
import os
import subprocess

hosts = subprocess.check_output(["scontrol", "show", "hostnames"], text=True).split()
print("hosts", hosts, os.environ["SLURM_JOB_NODELIST"], flush=True)
subprocess.check_call(["srun", "--ntasks=2", "printenv", "SLURM_NODEID"])
