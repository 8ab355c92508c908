#!/bin/bash
# Prints the address by which the node of this task reaches rank 0, whose host is named $MASTER_ADDR.

found=$(getent ahosts "$MASTER_ADDR" 2>/dev/null)
if [ -z "$found" ]; then
  # There is no name service: srun was called on the first node, where rank 0 runs.
  MASTER_ADDR=${SLURM_LAUNCH_NODE_IPADDR:-$MASTER_ADDR}
elif [ "$SLURM_NODEID" != 0 ] && [ "${found%% *}" != "$MASTER_ADDR" ] && ! grep -Eqv "^(127[.]|::1 )" <<<"$found"; then
  line=$(grep -nwF -e "$MASTER_ADDR" /etc/hosts || echo none)
  echo "hpc-kit: the name $MASTER_ADDR of the host of rank 0 means $SLURMD_NODENAME itself there
  found  $MASTER_ADDR resolves to ${found%% *}; in /etc/hosts, line $line
  do     replace that line on $SLURMD_NODENAME:  ADDRESS $MASTER_ADDR   (its address on the network of the nodes)" >&2
  exit 1
fi
echo "$MASTER_ADDR"
