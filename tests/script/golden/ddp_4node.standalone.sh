#!/bin/bash
# ddp_4node: DistributedDataParallel, 8 ranks on 4 nodes
# made by   hpc-kit 0.1.0 from jobs/ddp_4node.toml, jobs/ddp_1node.toml, env/hosts.toml, templates/launch.sh.j2
# again     hpc-kit render --shell --hosts a,b ddp_4node --cluster hosts --set cluster.python=.venv/bin/python --set \
#           resources.chdir=/project --standalone
# run       bash ddp_4node.sh    (hpc-kit launch shows the output, too)

set -euo pipefail

# The files of this run. Hosts that do not share this folder keep the logs of their ranks.
launch=$(date +%Y%m%d%H%M%S)
run=$PWD/runs/ddp_4node/$launch
install -d -m 700 "$run"
echo "logs    $run/rank-*.log"

hosts=(a b)

# Each host runs one torchrun agent, which starts the ranks of the host.
cat >"$run/agent.sh" <<'END_OF_AGENT'
set -euo pipefail
node=$1 master=$2 port=$3
export HPC_KIT_RUN=$5
cd /project

export PYTHONUNBUFFERED=1
export OMP_NUM_THREADS=1

# Around each worker: writes its log, and records which rank fails first.
# shellcheck disable=SC2016  # expanded in the worker, not here
worker='
HPC_KIT_RANK=$RANK
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
rank=${HPC_KIT_RANK:-$rank}
exec >>"$HPC_KIT_RUN/rank-$rank.log" 2>&1
# A signal for this shell reaches the program as well: the shell has to outlive it.
trap : HUP INT QUIT ABRT ALRM TERM USR1 USR2 XCPU TSTP TTIN TTOU
"$@" && exit
code=$?
# The launcher would kill ranks that still save. With [restart], the batch script looks for this file.
if [ "$code" = "${HPC_KIT_STOP_CODE-}" ]; then : >"$HPC_KIT_RUN/stopped" && exit; fi
set -o noclobber
{ echo "$rank $(uname -n) $code $(date +%s)" >"$HPC_KIT_RUN/first-failure"; } 2>/dev/null
exit "$code"
'
exec .venv/bin/python -m torch.distributed.run --nnodes=2 --node-rank="$node" \
  --nproc-per-node=2 \
  --master-addr="$master" --master-port="$port" \
  --no-python bash -c "$worker" worker \
  .venv/bin/python jobs/train/ddp.py --steps 60
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
# A free port of the first host, below those that Linux gives to programs that ask for none.
read -r port < <(ask "${hosts[0]}" bash -s $$ <<'END_OF_PORT'
echo; echo -n "answer "
port=$((10000 + (${1:-SLURM_JOB_ID * 31 + ${SLURM_RESTART_COUNT:-0} }) % 20000))
# A port that somebody listens on is skipped.
while (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((10000 + (port - 10000 + 1621) % 20000)); done
echo "$port"
END_OF_PORT
)
launch=$port
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
