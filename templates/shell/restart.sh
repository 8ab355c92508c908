#!/bin/bash
# Runs the job again after a stop or a failure. The batch script sources this file, after history.sh, and calls:
#
#   trap restart_stop=S S         at its first line, for the stop signal and TERM
#   trap stop_attempt SIGNAL      passes the stop signal on to the program
#   start_attempt                 counts the attempt
#   PROGRAM & watch_step "$!"     waits for the program; returns its exit status
#   end_attempt                   with the exit code in $status: requeues the job, or returns
#
# It reads HPC_KIT_STOP_SIGNAL, HPC_KIT_RESTART_LEAD (seconds), HPC_KIT_MAX_ATTEMPTS, HPC_KIT_EXIT_CODES and
# HPC_KIT_PROGRESS (a file or folder, or nothing). Files of the program in $HPC_KIT_RUN: `stopped`, because it left its
# loop after the signal; `saved`, its last saved step.

# The exit code of a program that the stop signal ends.
HPC_KIT_STOP_CODE=$((128 + $(kill -l "$HPC_KIT_STOP_SIGNAL"))) && export HPC_KIT_STOP_CODE
restart_stop=${restart_stop-} restart_step='' restart_limit='' restart_reminder='' restart_killed='' restart_count=0
case ${HPC_KIT_PROGRESS:-$HPC_KIT_RUN/saved} in
  /*) restart_watched=${HPC_KIT_PROGRESS:-$HPC_KIT_RUN/saved} ;;
  *) restart_watched=$PWD/$HPC_KIT_PROGRESS ;;
esac

# Lists name, size and time of the files that show progress. Hidden files are drafts and locks.
list_saved() {
  # In other locales, grep prints nothing after a name that is not valid there.
  local -x LC_ALL=C
  [ ! -e "$restart_watched" ] ||
    find -L "$restart_watched" -type f -printf '%P\t%s\t%T@\n' 2>/dev/null | grep -Ev '(^|/)[.]' | sort || true
}

# Saved checkpoints exist, so that a later attempt can go on from them.
# shellcheck disable=SC2317  # a job without resume_args does not call it
can_resume() {
  [ "$HPC_KIT_ATTEMPT" -gt 1 ] && { [ -z "$HPC_KIT_PROGRESS" ] || [ -n "$(list_saved)" ]; }
}

# Prints the state of the job; nothing if Slurm does not answer.
job_state() { squeue --noheader --jobs="$HPC_KIT_JOB" --format=%T 2>/dev/null | head -n1 || true; }

# Prints the events since the last attempt that made progress and since the last `hpc-kit resubmit`, or all.
recent_events() {
  awk '/"event": "resubmitted"/ { text = "" } { text = text $0 "\n" }
    /"progress": "made"/ { text = "" } END { printf "%s", text }' "$HPC_KIT_HISTORY"
}

# The last event of an end matches, and its attempt made no progress:  ended_before PATTERN
ended_before() { recent_events | grep '"event": "end"' | tail -n 1 | grep -Eq "$1"; }

count_attempts() { { [ ! -e "$HPC_KIT_HISTORY" ] || "$@"; } | grep -c '"event": "start"' || true; }

# In the first attempt of a job: begins its history, with that of the run from which `hpc-kit resubmit` goes on.
begin_history() {
  local old
  old=${HPC_KIT_RUN%/*}/${SLURM_HPC_KIT_CONTINUES-}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
  # A new job may have the number of an old one, for example after Slurm was installed again.
  rm -f "$HPC_KIT_HISTORY"
  [ -n "${SLURM_HPC_KIT_CONTINUES-}" ] || return 0
  [ ! -s "$old/history" ] || cp "$old/history" "$HPC_KIT_HISTORY" || true
  HPC_KIT_ATTEMPT=$(count_attempts cat "$HPC_KIT_HISTORY")
  record_event resubmitted previous "$SLURM_HPC_KIT_CONTINUES"
}

start_attempt() {
  # Not after a requeue, not with a spare node, and not in a job that continues the run of another one.
  [ "${SLURM_RESTART_COUNT:-0}$restart_count" != 00 ] || [ "${HPC_KIT_RUN##*/}" != "$HPC_KIT_JOB" ] || begin_history
  # Jobs that this job submits are no continuation.
  unset SLURM_HPC_KIT_CONTINUES
  HPC_KIT_ATTEMPT=$(count_attempts cat "$HPC_KIT_HISTORY")
  export HPC_KIT_ATTEMPT=$((HPC_KIT_ATTEMPT + 1))
  rm -f "$HPC_KIT_RUN/stopped" "$HPC_KIT_RUN/summary.json"
  restart_saved=$(list_saved | cksum) restart_start=$SECONDS
  record_event start nodes "$SLURM_JOB_NODELIST" requeues "${SLURM_RESTART_COUNT:-0}"
  # Slurm may have requeued the job after the last attempt.
  restart_count=$(count_attempts recent_events)
  if [ "$restart_count" -gt "$HPC_KIT_MAX_ATTEMPTS" ]; then
    status=1
    give_up "max_attempts = $HPC_KIT_MAX_ATTEMPTS without known progress"
    exit "$status"
  fi
  trap 'end_early "$?"' EXIT
}

# A line of the script failed before the program started, for example because a signal ended a command; or a script
# that is sourced for the environment ended with `exit 0`, which is no success.
# shellcheck disable=SC2317  # called by the trap
end_early() {
  status=$1
  [ "$status" != 0 ] || { echo "hpc-kit: no rank was started: setup has ended the script" >&2 && status=1; }
  end_attempt
  exit "$status"
}

# shellcheck disable=SC2317  # called by the trap
stop_attempt() {
  restart_stop=$HPC_KIT_STOP_SIGNAL
  # The program gets this time to save. What is left of the lead is for the requeue.
  local rest=$((HPC_KIT_RESTART_LEAD > 60 ? 15 : (HPC_KIT_RESTART_LEAD + 2) / 4))
  [ -n "$restart_limit" ] || restart_limit=$((SECONDS + HPC_KIT_RESTART_LEAD - rest))
  restart_reminder=$((SECONDS + HPC_KIT_RESTART_LEAD / 2))
  [ -n "$restart_step" ] || return 0
  # A signal that reaches srun before the tasks run would be lost.
  [ $((SECONDS - restart_began)) -ge 2 ] || sleep 2
  kill -s "$HPC_KIT_STOP_SIGNAL" "$restart_step" 2>/dev/null || true
}

watch_step() {
  restart_step=$1 restart_began=$SECONDS
  # The signal came before the program started.
  [ -z "$restart_stop" ] || kill "$1"
  # Each signal ends one wait.
  while kill -0 "$1" 2>/dev/null; do
    if [ -z "$restart_limit" ]; then
      wait "$1" || true
    elif [ "$SECONDS" -ge "$restart_limit" ]; then
      restart_stop="$HPC_KIT_STOP_SIGNAL, and the program went on until the time limit"
      return 137
    else
      # The program may have lost the first signal while it started.
      if [ "$SECONDS" -ge "$restart_reminder" ]; then
        kill -s "$HPC_KIT_STOP_SIGNAL" "$1" || true
        restart_reminder=$restart_limit
      fi
      sleep 0.2
    fi
  done
  wait "$1"
}

end_attempt() {
  trap - EXIT
  trap '' "$HPC_KIT_STOP_SIGNAL" TERM
  local reason='' failure=$HPC_KIT_RUN/first-failure
  if [ "$status" = 0 ] && [ -s "$HPC_KIT_RUN/summary.json" ] && [ ! -e "$HPC_KIT_RUN/stopped" ]; then
    # The training reached its last step, even if a signal came meanwhile.
    reason=''
  elif [ -n "$restart_stop" ]; then
    reason="stopped by $restart_stop"
  elif [ "$status" = "$HPC_KIT_STOP_CODE" ] ||
    { [ -e "$HPC_KIT_RUN/stopped" ] && { [ "$status" = 0 ] || [ ! -s "$failure" ]; }; }; then
    # `stopped` after a recorded failure and an exit code other than 0 comes from a rank that the launcher ended.
    reason="stopped by $HPC_KIT_STOP_SIGNAL"
  elif [[ " $HPC_KIT_EXIT_CODES " = *" $status "* ]]; then
    reason="exit code $status"
  elif [ "$status" != 0 ]; then
    reason=$(describe_loss)
  fi
  # A signal soon after the start left no time to save, so that this attempt proves nothing.
  if [[ $reason = "stopped by"* && $((SECONDS - restart_start)) -lt $HPC_KIT_RESTART_LEAD ]] && made_no_progress; then
    restart_saved=unknown
  fi
  local state
  state=$(job_state)
  # srun returns 0 if it lost a node and the ranks of the remaining nodes ended with 0.
  if [ -z "$reason" ] && { [ "$status" != 0 ] || [ "${state:-RUNNING}" = RUNNING ]; }; then
    end_event "$([ "$status" = 0 ] && echo finished || echo failed)" && return
  fi
  # Slurm ends the job itself: it was cancelled, preempted or requeued. Only Slurm knows whether it starts again.
  [ -z "$state" ] || [ "$state" = RUNNING ] || { end_event ended "$reason" state "$state" && exit "$status"; }
  [ "$status" != 0 ] || status=$HPC_KIT_STOP_CODE
  local hopeless
  hopeless=$(find_hopeless "${reason#stopped by }")
  if [ -n "$hopeless" ]; then give_up "$hopeless"; else start_again "$reason"; fi
}

# Prints how a rank was lost; nothing if no rank was. Ranks that waited for another one in vain have recorded it, with
# their reason. A rank that was killed together with the shell around it cannot record its exit code.
# 124: the watchdog has ended the ranks. Ranks in different collectives are an error of the program.
describe_loss() {
  [ ! -s "$HPC_KIT_RUN/first-failure" ] || awk 'NF > 4 && !($3 == 124 && /: the ranks differ in collective/) {
    print $3 == 124 ? "a hang" : "the loss of rank " $1 }' "$HPC_KIT_RUN/first-failure"
}

# Prints why the job must not be tried again; nothing if it may:  find_hopeless REASON
find_hopeless() {
  if knows_progress && ! made_no_progress; then
    return
  elif [ "$restart_count" -ge "$HPC_KIT_MAX_ATTEMPTS" ]; then
    echo "max_attempts = $HPC_KIT_MAX_ATTEMPTS without known progress"
  elif knows_progress && ended_before '"progress": "none"'; then
    echo "two attempts without a new checkpoint in $restart_watched"
  elif ! watches_progress && [[ $1 = "a hang" || $1 = "the loss of rank "* ]] &&
    ended_before "\"decision\": \"(requeue|spare)\".*\"reason\": \"(stopped by )?$1\""; then
    echo "two attempts ended with $1, and saved no checkpoint that is known: set [restart] progress"
  fi
}

# No saved file has changed since this attempt began.
made_no_progress() { knows_progress && [ "$(list_saved | cksum)" = "$restart_saved" ]; }
knows_progress() { [ "$restart_saved" != unknown ] && watches_progress; }
watches_progress() { [ -n "$HPC_KIT_PROGRESS" ] || [ -e "$restart_watched" ]; }

# Records the end of the attempt:  end_event DECISION [REASON] [KEY VALUE]...
end_event() {
  local decision=$1 reason=${2-} progress='' saved step=''
  shift $(($# > 1 ? 2 : 1))
  ! knows_progress || { made_no_progress && progress=none; } || progress=made
  [ ! -s "$HPC_KIT_RUN/saved" ] || read -r step _ <"$HPC_KIT_RUN/saved" || true
  saved=$(list_saved | cut -f3 | sort -n | tail -n 1)
  record_event end decision "$decision" exit_code "$status" ${reason:+reason "$reason"} \
    ${progress:+progress "$progress"} ${saved:+saved "${saved%%.*}"} ${step:+step "$step"} "$@"
}

give_up() {
  [ "$status" != 0 ] || status=1
  end_event gave_up "$1"
  echo "hpc-kit: the job is not started again
  found  attempt $HPC_KIT_ATTEMPT ended with exit code $status; $1
  do     read the logs in $HPC_KIT_RUN; then submit the job again, or set [restart] progress or max_attempts" >&2
}

start_again() {
  # Slurm kills this script when it requeues the job: the history comes first.
  end_event requeue "$1"
  trap 'restart_killed=1' TERM
  local answer
  for _ in 1 2 3 4 5 6; do
    # One more signal to all processes must not end scontrol.
    ! answer=$(trap '' TERM; exec scontrol requeue "$HPC_KIT_JOB" 2>&1) || await_kill
    # Another process may have requeued the job, such as the training itself.
    case $(job_state) in '' | RUNNING) ;; *) await_kill ;; esac
    case $answer in *"nable to contact"* | *"try again"*) sleep 5 ;; *) break ;; esac
  done
  echo "hpc-kit: scontrol requeue $HPC_KIT_JOB: $answer; submitting the job again" >&2
  submit_again || { give_up "neither scontrol requeue nor sbatch worked: $answer" && return; }
}

# Waits for Slurm, which kills this script. If the script ended first, the job might count as finished.
await_kill() {
  sleep 60 &
  [ -n "$restart_killed" ] || wait "$!" || true
  exit "$status"
}

# Submits this script again, with the log and the run folder of this job.
submit_again() {
  local log id excluded
  # Not /proc/self: stdout of readlink is a pipe.
  log=$(readlink "/proc/$$/fd/1")
  # The script does not contain the nodes that the user excludes from all jobs.
  excluded=$(squeue --noheader --jobs="$HPC_KIT_JOB" --format=%x 2>/dev/null | tr -d '[:space:]') || true
  [[ $excluded != *null* ]] || excluded=''
  id=$(sbatch --parsable --output="${log//%/%%}" ${SLURM_ARRAY_TASK_ID:+--array="$SLURM_ARRAY_TASK_ID"} \
    ${excluded:+--exclude="$excluded"} "$0" "${HPC_KIT_RUN##*/}") || return
  id=${id%%;*}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
  # The commands of hpc-kit find the run by the new id, too.
  ln -s "${HPC_KIT_RUN##*/}" "${HPC_KIT_RUN%/*}/$id" || true
  record_event submitted next "$id"
}
