#!/bin/bash
# Runs one node of a Ray cluster, which is one task of the step:  bash ray_node.sh RAY START [OPTION...]
#
# The first task runs the head of the cluster; the others join it at $RAY_ADDRESS.

# Nodes of Ray may share a machine: each has a folder of its own.
own=/tmp/ray-$SLURM_JOB_ID-$SLURM_NODEID
if [ "$SLURM_NODEID" = 0 ]; then
  set -- "$@" --head --port="${RAY_ADDRESS##*:}" --include-dashboard=false --disable-usage-stats
else
  set -- "$@" --address="$RAY_ADDRESS"
fi
# KILL ends the node with all of its processes at once; after TERM it would wait for other nodes, which end too.
trap "stopped=1; kill -KILL \$node" TERM
stopped=0
while true; do
  "$@" --temp-dir="$own" &
  node=$! code=0
  wait "$node" || code=$?
  # Ray gives a node half a minute to start, and less before the head runs: a young job tries again.
  if [ "$stopped" = 1 ] || [ "$code" = 0 ] || [ "$SECONDS" -gt 120 ]; then break; fi
done
# The processes of the node may still write into the folder.
for _ in {1..20}; do
  rm -rf "$own" 2>/dev/null
  sleep 0.2
  [ -e "$own" ] || break
done
exit "$code"
