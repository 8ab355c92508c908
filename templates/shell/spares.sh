#!/bin/bash
# Runs the step again without nodes that failed. The batch script sources this file after restart.sh, and calls:
#
#   use_spares NUMBER   with the exit code in $status: prepares another step without the nodes that failed. Fails if the
#                       job has ended, or has fewer than NUMBER spare nodes for them.
#
# The options of srun for the next step are in $exclude.

restart_lost=()

# Prints the nodes of the job that Slurm has marked, or whose slurmd cannot be reached.
list_lost_nodes() {
  local node port
  port=$(scontrol show config | sed -nE 's/^SlurmdPort *= *([0-9]+).*/\1/p') || true
  {
    sinfo --noheader --Node --nodes="$SLURM_JOB_NODELIST" --states=down,drain,fail,no_respond --format=%N || true
    for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
      timeout 3 bash -c ": <>/dev/tcp/$node/${port:-6818}" 2>/dev/null || echo "$node" &
    done
    wait
  } | sort -u
}

use_spares() {
  local host='' reason='' lost
  if [ "$status" = 0 ] || [ -n "$restart_stop" ]; then return 1; fi
  [ ! -s "$HPC_KIT_RUN/first-failure" ] || read -r _ host status _ reason <"$HPC_KIT_RUN/first-failure"
  mapfile -t lost < <(list_lost_nodes)
  # Ranks that waited for another rank in vain record that one, with their reason.
  [[ " $HPC_KIT_EXIT_CODES " != *" $status "* && -z $reason ]] || lost+=(${host:+"$host"})
  [ "${#lost[@]}" -gt 0 ] || return 1
  mapfile -t lost < <(printf '%s\n' "${lost[@]}" ${restart_lost[@]+"${restart_lost[@]}"} | sort -u)
  # From here on nodes are lost: with too few spare nodes, the job is requeued.
  restart_stop="the loss of ${lost[*]}"
  if [ "${#lost[@]}" -gt "$1" ] || [ -n "$(find_hopeless)" ] || [ "$(job_state)" != RUNNING ]; then return 1; fi
  end_event spare "$restart_stop"
  restart_stop='' restart_lost=("${lost[@]}")
  local list
  list=$(IFS=, && echo "${lost[*]}")
  record_event node nodes "$list"
  # shellcheck disable=SC2034  # for srun
  exclude=("--exclude=$list")
  rm -f "$HPC_KIT_RUN/first-failure"
  start_attempt
}
