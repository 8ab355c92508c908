#!/bin/bash
# Prints which processes of a task Slurm signals: "tasks" for its first process alone, which is the default, or "all".

case $(scontrol show config 2>/dev/null) in
  *proctrack/linuxproc* | *proctrack/pgid* | *"SignalChildrenProcesses = yes"*) echo all ;;
  *) echo tasks ;;
esac
