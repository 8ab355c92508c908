#!/bin/bash
# Prints how many tasks of the step run on the node of this task.

# Slurm lists the tasks of the nodes in order: 3(x2),1.
node=$SLURM_NODEID
for part in ${SLURM_STEP_TASKS_PER_NODE//,/ }; do
  [[ $part =~ ^([0-9]+)(\(x([0-9]+)\))?$ ]]
  node=$((node - ${BASH_REMATCH[3]:-1}))
  if [ "$node" -lt 0 ]; then break; fi
done
echo "${BASH_REMATCH[1]}"
