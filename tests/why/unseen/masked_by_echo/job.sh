#!/bin/bash
srun python train.py
echo uploading results
echo done
