#!/bin/bash
# Writes the history of the attempts of a job: $HPC_KIT_RUN/history, a line of JSON for each event. The batch script
# sources this file before restart.sh and preflight.sh.

HPC_KIT_HISTORY=$HPC_KIT_RUN/history
HPC_KIT_JOB=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
HPC_KIT_JOB=${HPC_KIT_JOB:-$SLURM_JOB_ID}

# Appends an event of attempt $HPC_KIT_ATTEMPT:  record_event EVENT [KEY VALUE]...
record_event() {
  local line value
  line="\"event\": \"$1\", \"attempt\": $HPC_KIT_ATTEMPT, \"job_id\": \"$HPC_KIT_JOB\", \"time\": $(date +%s)"
  shift
  while [ $# -gt 0 ]; do
    value=${2//[\"\\]/}
    if [[ $2 =~ ^(0|[1-9][0-9]*)$ ]]; then line+=", \"$1\": $2"; else line+=", \"$1\": \"${value//[[:cntrl:]]/ }\""; fi
    shift 2
  done
  echo "{$line}" >>"$HPC_KIT_HISTORY" || true
}
