#!/bin/bash
# Runs the job without slow and broken nodes. The batch script sources this file, after restart.sh, and calls:
#
#   start_preflight   before the measurement: removes the files of an earlier one
#   exclude_nodes SPARES REQUEUES EXIT_CODE
#                     after the measurement, which ended with EXIT_CODE: replaces the excluded nodes by SPARES spare
#                     nodes, or requeues the job without these nodes, at most REQUEUES times, or ends it
#
# Events are lines of JSON in $HPC_KIT_RUN/history, as those of restart.sh.

preflight_job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
preflight_job=${preflight_job:-$SLURM_JOB_ID}

# Appends an event to the history:  record_preflight EVENT JSON
record_preflight() {
  local line
  line="\"event\": \"$1\", \"attempt\": $HPC_KIT_ATTEMPT, \"job_id\": \"$preflight_job\", \"time\": $(date +%s)"
  echo "{$line, $2}" >>"$HPC_KIT_RUN/history" || true
}

start_preflight() {
  rm -rf "$HPC_KIT_RUN/preflight"
  install -d -m 700 "$HPC_KIT_RUN/preflight"
  # With [restart], restart.sh has counted this attempt.
  if [ -z "${HPC_KIT_STOP_SIGNAL-}" ]; then
    [ "${SLURM_RESTART_COUNT:-0}" != 0 ] || rm -f "$HPC_KIT_RUN/history"
    HPC_KIT_ATTEMPT=$(($(count_events '"event": "start"') + 1))
    record_preflight start "\"nodes\": \"$SLURM_JOB_NODELIST\""
  fi
}

count_events() { { [ ! -e "$HPC_KIT_RUN/history" ] || cat "$HPC_KIT_RUN/history"; } | grep -c "$1" || true; }

exclude_nodes() {
  local nodes reasons
  if [ ! -e "$HPC_KIT_RUN/preflight/excluded" ]; then
    echo "hpc-kit: the preflight gave no verdict, and the job goes on
  found  the measurement ended with exit code $3
  do     read $HPC_KIT_RUN/preflight/rank-*.log" >&2
    return
  fi
  mapfile -t nodes < <(cut -d' ' -f1 "$HPC_KIT_RUN/preflight/excluded")
  [ "${#nodes[@]}" -gt 0 ] || return 0
  reasons=$(cut -d' ' -f2- "$HPC_KIT_RUN/preflight/excluded" | tr -d '\\"' | paste -sd'|' | sed 's/|/; /g')
  if [ "${#nodes[@]}" -le "$1" ]; then
    echo "hpc-kit: spare nodes replace ${nodes[*]}" >&2
    record_preflight node "\"nodes\": \"$(IFS=, && echo "${nodes[*]}")\", \"reason\": \"preflight: $reasons\""
    # spares.sh leaves them out of each step.
    restart_lost+=("${nodes[@]}")
  elif [ "$(count_events '"decision": "requeue".*"reason": "preflight:')" -ge "$2" ]; then
    end_without "$reasons" "the job was requeued $2 times because of its nodes" "${nodes[@]}"
  else
    requeue_without "$reasons" "${nodes[@]}"
  fi
}

# Requeues the job:  requeue_without REASONS NODE...
requeue_without() {
  local reasons=$1 answer before all others
  shift
  # The job may exclude nodes already.
  before=$(squeue --noheader --jobs="$preflight_job" --format=%x | tr -d '[:space:]') || true
  [[ $before != *null* ]] || before=''
  all=$(IFS=, && echo "${before:+$before,}$*")
  others=$(sinfo --noheader --Node --partition="$SLURM_JOB_PARTITION" --format=%N | sort -u |
    grep -cvxFf <(scontrol show hostnames "$all")) || true
  if [ "$others" -lt "$SLURM_JOB_NUM_NODES" ]; then
    answer="partition $SLURM_JOB_PARTITION has $others other nodes; the job needs $SLURM_JOB_NUM_NODES"
    end_without "$reasons" "$answer" "$@"
  fi
  record_preflight end "\"decision\": \"requeue\", \"exit_code\": 0, \"reason\": \"preflight: $reasons\""
  echo "hpc-kit: the job is requeued without $*" >&2
  # Slurm sends TERM to this script and its commands, and changes the list of a pending job only.
  trap '' TERM
  answer=$(scontrol requeue "$preflight_job" 2>&1) || end_without "$reasons" "scontrol requeue: $answer" "$@"
  scontrol update JobId="$preflight_job" ExcNodeList="$all" || true
  exit 1
}

# Ends the job:  end_without REASONS CAUSE NODE...
end_without() {
  local reasons=$1 cause=$2 nodes
  shift 2
  nodes=$(IFS=, && echo "$*")
  record_preflight end "\"decision\": \"failed\", \"exit_code\": 1, \"reason\": \"preflight: $reasons\""
  echo "hpc-kit: the job cannot go on without $nodes
  found  $reasons
         $cause
  do     submit the job again with --exclude=$nodes, or set [preflight] enabled = false" >&2
  echo "1 $(date +%s)" >"$HPC_KIT_RUN/end" || true
  exit 1
}
