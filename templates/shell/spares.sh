#!/bin/bash
# Runs the step again without nodes that failed. The batch script sources this file after restart.sh, and calls:
#
#   choose_nodes NUMBER   before each step: leaves NUMBER spare nodes out. Options of srun are in $step_nodes.
#   use_spares NUMBER     after each step, with the exit code in $status. Fails if no other step follows, because the
#                         job has ended, or has too few spare nodes.

restart_lost=() restart_used=() restart_monitor=''

choose_nodes() {
  local all node
  mapfile -t all < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  restart_used=()
  for node in "${all[@]}"; do
    [ "${#restart_used[@]}" -lt $((${#all[@]} - $1)) ] || break
    [[ " ${restart_lost[*]-} " = *" $node "* ]] || restart_used+=("$node")
  done
  # --overlap: the step before may hold the CPUs of all nodes until the lost node answers, which it never does.
  # shellcheck disable=SC2034  # for srun
  step_nodes=(--overlap "--nodelist=$(join_names "${restart_used[@]}")")
  watch_nodes &
  restart_monitor=$!
}

join_names() { local IFS=, && echo "$*"; }

# Ends the step when Slurm has marked one of its nodes. With --no-kill, srun waits for the remaining ranks, which may
# wait for the lost ones, and returns 0 without them.
watch_nodes() {
  trap - TERM "$HPC_KIT_STOP_SIGNAL"
  while sleep 3; do
    [ -n "$(list_marked_nodes down,fail)" ] || continue
    # To the steps alone, and not to the batch script.
    scancel --signal=KILL "$SLURM_JOB_ID"
  done
}

list_marked_nodes() {
  sinfo --noheader --Node --nodes="$(join_names "${restart_used[@]}")" --states="$1" --format=%N | sort -u || true
}

reaches_slurmd() { timeout 3 bash -c ": <>/dev/tcp/$1/$2" 2>/dev/null; }

# Prints the nodes of the step that Slurm has marked, or whose slurmd cannot be reached.
list_lost_nodes() {
  local node port
  port=$(scontrol show config | sed -nE 's/^SlurmdPort *= *([0-9]+).*/\1/p') || true
  {
    list_marked_nodes down,drain,fail,no_respond
    # If not even this node answers, the reason is another one, such as a firewall, or names that do not resolve.
    ! reaches_slurmd "$SLURMD_NODENAME" "${port:-6818}" || for node in "${restart_used[@]}"; do
      reaches_slurmd "$node" "${port:-6818}" || echo "$node" &
    done
    wait
  } | sort -u
}

use_spares() {
  local host='' loss='' lost
  kill "$restart_monitor" 2>/dev/null || true
  [ -z "$restart_stop" ] || return 1
  [ "$status" = 0 ] || [ ! -s "$HPC_KIT_RUN/first-failure" ] ||
    read -r _ host status _ <"$HPC_KIT_RUN/first-failure"
  [ "$host" != '?' ] || host='' # only the rank is known
  mapfile -t lost < <(if [ "$status" = 0 ]; then list_marked_nodes down,fail; else list_lost_nodes; fi)
  if [ "${#lost[@]}" = 0 ] && [ "$status" != 0 ]; then
    [[ " $HPC_KIT_EXIT_CODES " = *" $status "* ]] || loss=$(describe_loss)
    [[ " $HPC_KIT_EXIT_CODES " != *" $status "* && -z $loss ]] || lost=(${host:+"$host"})
  fi
  [ "${#lost[@]}" -gt 0 ] || return 1
  # From here on nodes are lost: with too few spare nodes, the job is requeued.
  restart_stop=${loss:-the loss of ${lost[*]}}
  restart_lost+=("${lost[@]}")
  [ "${#restart_lost[@]}" -le "$1" ] && [ -z "$(find_hopeless "$restart_stop")" ] || return 1
  [ "$(job_state)" = RUNNING ] || return 1
  end_event spare "$restart_stop"
  record_event node nodes "$(join_names "${lost[@]}")"
  restart_stop=''
  rm -f "$HPC_KIT_RUN/first-failure"
  start_attempt
}
