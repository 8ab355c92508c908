#!/bin/bash
# Prints the address by which the node of this task reaches rank 0, whose host is named $MASTER_ADDR.
#
# Without a name service, it is the address that srun gives: srun was called on the first node, which has rank 0.

found=$(getent ahosts "$MASTER_ADDR" 2>/dev/null) problem=
if [ -z "$found" ]; then
  [ -n "${SLURM_LAUNCH_NODE_IPADDR-}" ] || ! command -v getent >/dev/null || problem="/etc/hosts and DNS have no entry"
  MASTER_ADDR=${SLURM_LAUNCH_NODE_IPADDR:-$MASTER_ADDR}
elif [ "$SLURM_NODEID" != 0 ] && [ "${found%% *}" != "$MASTER_ADDR" ] && ! grep -Eqv "^(127[.]|::1 )" <<<"$found"; then
  problem="it means this node, ${found%% *}; in /etc/hosts, line $(grep -nwF "$MASTER_ADDR" /etc/hosts || echo none)"
fi
[ -z "$problem" ] || {
  echo "hpc-kit: the name $MASTER_ADDR of the host of rank 0 does not lead there from $SLURMD_NODENAME
  found  $problem
  do     write into /etc/hosts on $SLURMD_NODENAME:  ADDRESS $MASTER_ADDR   (on the network of the nodes)" >&2 && exit 1
}
echo "$MASTER_ADDR"
