#!/bin/bash
# Runs the job without slow and broken nodes. The batch script sources this file, after history.sh and restart.sh, and
# calls:
#
#   start_preflight   before the measurement: removes the files of an earlier one
#   exclude_nodes SPARES REQUEUES EXIT_CODE
#                     after the measurement, which ended with EXIT_CODE: replaces the excluded nodes by SPARES spare
#                     nodes, or requeues the job without these nodes, at most REQUEUES times, or ends it

start_preflight() {
  rm -rf "$HPC_KIT_RUN/preflight"
  install -d -m 700 "$HPC_KIT_RUN/preflight"
  # With [restart], restart.sh has counted this attempt.
  if [ -z "${HPC_KIT_STOP_SIGNAL-}" ]; then
    [ "${SLURM_RESTART_COUNT:-0}" != 0 ] || rm -f "$HPC_KIT_HISTORY"
    # shellcheck disable=SC2034  # for record_event
    HPC_KIT_ATTEMPT=$(($(count_events '"event": "start"') + 1))
    record_event start nodes "$SLURM_JOB_NODELIST"
  fi
}

# Counts the events since the last `hpc-kit resubmit`:  count_events PATTERN
count_events() {
  { [ ! -e "$HPC_KIT_HISTORY" ] || cat "$HPC_KIT_HISTORY"; } |
    awk -v pattern="$1" '/"event": "resubmitted"/ { n = 0 } $0 ~ pattern { n++ } END { print n + 0 }'
}

# Prints a field of squeue about this job:  ask_job FORMAT. Fails if Slurm does not answer.
ask_job() {
  local answer
  answer=$(squeue --noheader --jobs="$HPC_KIT_JOB" --format="$1" 2>/dev/null) || return 1
  echo "${answer%%[[:space:]]*}"
}

# Fails if Slurm is ending the job.
is_running() {
  local state
  state=$(ask_job %T) || true
  [ "${state:-RUNNING}" = RUNNING ]
}

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
  # A job that is being stopped is not requeued. Nodes that the signal has reached have no report.
  if [ -n "${restart_stop-}" ] || ! is_running; then return 0; fi
  reasons=$(cut -d' ' -f2- "$HPC_KIT_RUN/preflight/excluded" | paste -sd'|' | sed 's/|/; /g')
  if [ "${#nodes[@]}" -le "$1" ]; then
    echo "hpc-kit: spare nodes replace ${nodes[*]}" >&2
    record_event node nodes "$(IFS=, && echo "${nodes[*]}")" reason "preflight: $reasons"
    # spares.sh leaves them out of each step.
    restart_lost+=("${nodes[@]}")
  elif [ "$(count_events '"decision": "requeue".*"reason": "preflight:')" -ge "$2" ]; then
    end_without "$reasons" "the job was requeued $2 times because of its nodes" "${nodes[@]}"
  elif [ -n "${SLURM_JOB_RESERVATION-}" ]; then
    end_without "$reasons" "a job in reservation $SLURM_JOB_RESERVATION is not requeued" "${nodes[@]}"
  else
    requeue_without "$reasons" "${nodes[@]}"
  fi
}

# Requeues the job, or returns if Slurm does not answer:  requeue_without REASONS NODE...
requeue_without() {
  local reasons=$1 answer all others
  shift
  if ! all=$(list_exclusions "$@") || ! others=$(count_others "$all"); then
    echo "hpc-kit: the job goes on with $*: squeue or sinfo gave no answer, so that it is not requeued" >&2
    return 0
  fi
  if [ "$others" -lt "$SLURM_JOB_NUM_NODES" ]; then
    answer="partition $SLURM_JOB_PARTITION has $others other usable nodes like those of the job"
    end_without "$reasons" "$answer, which needs $SLURM_JOB_NUM_NODES" "$@"
  fi
  record_event end decision requeue exit_code 0 reason "preflight: $reasons"
  echo "hpc-kit: the job is requeued without $*" >&2
  # This is the end of the attempt, also for restart.sh. Slurm sends TERM to this script and to its commands.
  trap - EXIT
  trap '' "${HPC_KIT_STOP_SIGNAL:-TERM}"
  trap 'preflight_killed=1' TERM
  if ! answer=$(trap '' TERM && ask_controller requeue "$HPC_KIT_JOB") && is_running; then
    end_without "$reasons" "$answer" "$@"
  fi
  # Slurm changes the list of a pending job only.
  answer=$(trap '' TERM && ask_controller update JobId="$HPC_KIT_JOB" ExcNodeList="$all") ||
    echo "hpc-kit: the job may get the nodes $* again: $answer" >&2
  # If this script ended before Slurm kills it, the job might count as finished.
  if [ -z "${preflight_killed-}" ]; then
    sleep 60 &
    wait "$!" || true
  fi
  exit 1
}

# Prints these nodes and those that the job excludes already:  list_exclusions NODE...
list_exclusions() {
  local before IFS=,
  before=$(ask_job %x) || return 1
  [[ $before != *null* ]] || before=''
  echo "${before:+$before,}$*"
}

# Counts the usable nodes that are like one of the job's nodes, and thus fit its requests:  count_others EXCLUDED
count_others() {
  local features all
  features=$(ask_job %f) || return 1
  all=$(sinfo --noheader --Node --partition="$SLURM_JOB_PARTITION" --format='%N %t %c %m %G %f') || return 1
  [ -n "$all" ] || return 1
  awk -v features="$features" '
    FILENAME == ARGV[1] { own[$1]; next }
    FILENAME == ARGV[2] { excluded[$1]; next }
    { kind[$1] = $3 " " $4 " " $5 (features ~ /^$|null/ ? "" : " " $6) }
    $1 in own { wanted[kind[$1]] }
    # No node that is down, drained, reserved or in maintenance, or does not answer.
    $2 ~ /^(idle|mix|alloc|comp|plnd)[^*$]?$/ && !($1 in excluded) { usable[$1] }
    END { for (node in usable) count += (kind[node] in wanted); print count + 0 }
  ' <(scontrol show hostnames "$SLURM_JOB_NODELIST") <(scontrol show hostnames "$1") - <<<"$all"
}

# Runs scontrol, again while the controller does not answer, and prints why it failed:  ask_controller WORD...
ask_controller() {
  local answer
  for _ in 1 2 3 4 5 6; do
    ! answer=$(scontrol "$@" 2>&1) || return 0
    case $answer in *"nable to contact"* | *"try again"*) sleep 5 ;; *) break ;; esac
  done
  echo "scontrol $1: $answer"
  return 1
}

# Ends the job:  end_without REASONS CAUSE NODE...
end_without() {
  local reasons=$1 cause=$2 nodes
  shift 2
  nodes=$(IFS=, && echo "$*")
  # restart.sh must not record another end.
  trap - EXIT
  record_event end decision failed exit_code 1 reason "preflight: $reasons"
  echo "hpc-kit: the job cannot go on without $nodes
  found  $reasons
         $cause
  do     submit the job again with --exclude=$nodes, or set [preflight] enabled = false" >&2
  echo "1 $(date +%s)" >"$HPC_KIT_RUN/end" || true
  exit 1
}
