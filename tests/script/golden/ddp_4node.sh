#!/bin/bash
# ddp_4node: DistributedDataParallel, 8 ranks on 4 nodes
# made by   hpc-kit 0.1.0 from jobs/ddp_4node.toml, jobs/ddp_1node.toml, env/hosts.toml, templates/launch.sh.j2
# again     hpc-kit render --shell ddp_4node --cluster hosts --set cluster.python=.venv/bin/python --set \
#           resources.chdir=/project
# run       bash ddp_4node.shHOST HOST HOST HOST    (hpc-kit launch shows the output, too)

set -euo pipefail

# The files of this run. Hosts that do not share this folder keep the logs of their ranks.
launch=$(date +%Y%m%d%H%M%S)
run=$PWD/runs/ddp_4node/$launch
install -d -m 700 "$run"
echo "logs    $run/rank-*.log"

hosts=("$@")
if [ $# -ne 4 ]; then
  echo "this job is for 4 hosts: bash $0 HOST HOST HOST HOST" >&2
  exit 2
fi

# Each host runs one torchrun agent, which starts the ranks of the host.
# The ranks recognize each other by the secret.
(umask 077 && echo "export HPC_KIT_SECRET=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')" >"$run/agent.sh")
cat >>"$run/agent.sh" <<'END_OF_AGENT'
set -euo pipefail
export HPC_KIT_SSH_NODE=$1 HPC_KIT_SSH_MASTER=$2 HPC_KIT_SSH_LAUNCH=$3 HPC_KIT_SSH_HOSTS=$4 HPC_KIT_RUN=$5
cd /project

export PYTHONUNBUFFERED=1
export TORCH_CPP_LOG_LEVEL=ERROR
export OMP_NUM_THREADS=1

exec .venv/bin/python -P -m hpc_kit.runtime.torchrun --nnodes=4 \
  --nproc-per-node=2 \
  jobs/train/ddp.py --steps 60
END_OF_AGENT

all=$(IFS=,; echo "${hosts[*]}")
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true' EXIT
trap 'exit 130' INT
trap 'exit 143' HUP TERM

quiet=(-o BatchMode=yes -o ConnectTimeout=15 -o LogLevel=ERROR)
# Prints the lines of a host that start with "answer"; its profile may print other lines.
# shellcheck disable=SC2029  # the host expands the command
ask() { ssh "${quiet[@]}" "$@" | sed -n 's/^answer //p'; }
# The address of the first host, as ssh reaches it (SSH_CONNECTION: CLIENT PORT SERVER PORT), and its name.
# shellcheck disable=SC2016  # expanded on the host
where='echo; echo "answer $SSH_CONNECTION $(uname -n)"'
read -r _ _ master _ name < <(ask "${hosts[0]}" "$where")
case $master in 127.* | ::1)
  # This script runs on the first host: other hosts need its name, unless all of them are this machine.
  read -r _ _ last _ < <(ask "${hosts[-1]}" "$where")
  case $last in 127.* | ::1) ;; *) master=$name ;; esac ;;
esac
for node in "${!hosts[@]}"; do
  host=${hosts[node]} file=$run/agent-$node.sh
  # stdin and a file of mode 0600: every user of the host can read a command line.
  # shellcheck disable=SC2029  # expanded here, and quoted for the host
  ssh "${quiet[@]}" "$host" "umask 077; $(printf 'mkdir -p %q && cat >%q' "$run" "$file")" <"$run/agent.sh"
  # -tt: the programs of the host get a terminal. When the connection ends, it closes, and they end.
  ssh -tt "${quiet[@]}" "$host" \
    "$(printf '%q ' bash "$file" "$node" "$master" "$launch" "$all" "$run")" \
    </dev/null > >(while IFS= read -r line; do echo "$host | ${line%$'\r'}"; done) 2>&1 &
  pids+=($!)
done

# The first host that fails ends all. bash complains about a host that ended before.
status=0
for _ in "${pids[@]}"; do
  wait -n "${pids[@]}" 2>/dev/null || { status=$? && break; }
done
# If the hosts share this folder, the exit code of the rank that failed first counts.
if [ "$status" -ne 0 ] && [ -s "$run/first-failure" ]; then
  read -r _ _ status _ <"$run/first-failure"
fi
exit "$status"
