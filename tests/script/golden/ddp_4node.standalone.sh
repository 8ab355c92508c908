#!/bin/bash
# ddp_4node: DistributedDataParallel, 8 ranks on 4 nodes
# made by   hpc-kit 0.1.0 from jobs/ddp_4node.toml, jobs/ddp_1node.toml, env/hosts.toml, templates/launch.sh.j2
# again     hpc-kit render --shell --hosts a,b ddp_4node --cluster hosts --set cluster.python=.venv/bin/python --set resources.chdir=/project --standalone
# run       bash ddp_4node.sh    (hpc-kit launch shows what each rank says, too)

set -euo pipefail

# The files of this run. Hosts that do not share this folder keep their own ranks' logs.
launch=$(date +%Y%m%d%H%M%S)
run=$PWD/runs/ddp_4node/$launch
mkdir -p "$run"
echo "logs    $run/rank-*.log"

hosts=(a b)

# What each host runs: one torchrun agent, which starts the host's ranks.
cat >"$run/agent.sh" <<'END_OF_AGENT'
set -euo pipefail
node=$1 master=$2 port=$3
export HPC_KIT_RUN=$5
cd /project

export PYTHONUNBUFFERED=1
export TORCH_CPP_LOG_LEVEL=ERROR
export OMP_NUM_THREADS=1

# Each worker runs in this shell, which notes who fails first.
# shellcheck disable=SC2016  # expanded in the worker, not here
worker='
unset LOGLEVEL
exec >>"$HPC_KIT_RUN/rank-$RANK.log" 2>&1
# Who signals this shell signals the program as well: the shell waits for its end.
trap : HUP INT QUIT ABRT ALRM TERM USR1 USR2 XCPU TSTP TTIN TTOU
"$@" && exit
code=$?
set -o noclobber
{ echo "$RANK $(uname -n) $code $(date +%s)" >"$HPC_KIT_RUN/first-failure"; } 2>/dev/null
exit "$code"'

# LOGLEVEL: the agent that holds the store leaves first, which the others report as an error.
export LOGLEVEL=CRITICAL
exec .venv/bin/python -m torch.distributed.run --nnodes=2 --node-rank="$node" --nproc-per-node=2 \
  --master-addr="$master" --master-port="$port" --no-python bash -c "$worker" worker \
  .venv/bin/python jobs/train/ddp.py --steps 60
END_OF_AGENT

all=$(IFS=,; echo "${hosts[*]}")
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true' EXIT
trap 'exit 130' INT
trap 'exit 143' HUP TERM

quiet=(-o BatchMode=yes -o ConnectTimeout=15 -o LogLevel=ERROR)
# What a host prints behind a mark of ours; its profile may greet whoever comes.
# shellcheck disable=SC2029  # it is for there as it stands
ask() { ssh "${quiet[@]}" "$@" | sed -n 's/^answer //p'; }
# The address by which a host is reached, and its name: ssh says CLIENT PORT SERVER PORT.
# shellcheck disable=SC2016  # expanded there
where='echo; echo "answer $SSH_CONNECTION $(uname -n)"'
read -r _ _ master _ name < <(ask "${hosts[0]}" "$where")
case $master in 127.* | ::1)
  # From the first host itself it is no address for the others, unless all of them are on this machine.
  read -r _ _ last _ < <(ask "${hosts[-1]}" "$where")
  case $last in 127.* | ::1) ;; *) master=$name ;; esac ;;
esac
# A port below those that Linux hands out; one on which somebody listens on the first host is passed by.
read -r port < <(ask "${hosts[0]}" bash -s $$ <<'END_OF_PORT'
port=$((10000 + $1 % 20000))
while (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((10000 + (port - 10000 + 1621) % 20000)); done
echo; echo "answer $port"
END_OF_PORT
)
launch=$port
for node in "${!hosts[@]}"; do
  host=${hosts[node]} file=$run/agent-$node.sh
  # Values go through stdin into a file of mode 0600: what stands on a command line is read by everybody.
  # shellcheck disable=SC2029  # expanded here, and quoted for there
  ssh "${quiet[@]}" "$host" "umask 077; $(printf 'mkdir -p %q && cat >%q' "$run" "$file")" <"$run/agent.sh"
  # -tt: the host's programs have a terminal, which goes with the connection, and takes them along.
  ssh -tt "${quiet[@]}" "$host" "$(printf '%q ' bash "$file" "$node" "$master" "$launch" "$all" "$run")" \
    </dev/null > >(while IFS= read -r line; do echo "$host | ${line%$'\r'}"; done) 2>&1 &
  pids+=($!)
done

# The first host that fails ends all. Of one that has ended well before, bash complains.
status=0
for _ in "${pids[@]}"; do
  wait -n "${pids[@]}" 2>/dev/null || { status=$? && break; }
done
# The rank that failed first counts, where the hosts share this folder.
if [ "$status" -ne 0 ] && [ -s "$run/first-failure" ]; then
  read -r _ _ status _ <"$run/first-failure"
fi
exit "$status"
