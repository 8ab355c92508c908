"""Each rule finds its fault at the right place, and ignores lines that only look like it."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from hpc_kit.check.batch_script import BatchScript, Site
from hpc_kit.check.rule_docs import example_of, explain, explained_codes
from hpc_kit.check.rules import RULES, Finding, Rule, check
from hpc_kit.errors import SpecError
from hpc_kit.slurm.versions import SlurmVersion, parse_version
from hpc_kit.spec.cluster import Cluster, Node, Partition
from tests import golden

HEAD = "#!/bin/bash\n"
CLUSTER = Cluster(
    node=Node(cpus=128, gpus=8, mem="512G"),
    partition={
        "short": Partition(nodes=4, max_time=60, cpus=16),
        "long": Partition(nodes=100),
        **{name: Partition() for name in ("a100", "batch", "cpu", "gpu")},
    },
    max_array_size=501,
)
FOUR = HEAD + "#SBATCH --nodes=4 --ntasks-per-node=2\n"
HET = HEAD + "#SBATCH --nodes=1\n#SBATCH hetjob\n#SBATCH --nodes=2 --ntasks-per-node=4 -c6\n"
GPUS = HEAD + "#SBATCH --nodes=1 --ntasks-per-node=1 --gpus-per-node=4\n"
GPUS2 = HEAD + "#SBATCH --nodes=2 --ntasks-per-node=4 --gpus-per-node=4\n"
ONE_A_NODE = HEAD + "#SBATCH --nodes=4 --ntasks-per-node=1\n"


def find_faults(text: str, *, folders: set[str] | None = None) -> list[Finding]:
    is_folder = None if folders is None else folders.__contains__
    return check(BatchScript(text, site=Site(is_folder, SlurmVersion(22, 5, 8), CLUSTER)))


def find_code(text: str, code: str, *, folders: set[str] | None = None) -> list[Finding]:
    return [finding for finding in find_faults(text, folders=folders) if finding.code == code]


class Bad(NamedTuple):
    """A script with a fault: its line, severity, and words of the message."""

    code: str
    text: str
    line: int
    severity: str
    words: str


E, W = "error", "warning"

BAD = [
    Bad("KIT107", FOUR + "srun bash -c '\n  # don't\n  python t.py\n'\n", 4, E, "this ' ends the code"),
    Bad(
        "KIT310",
        HEAD
        + "f() {\n  local n=$1\n  echo $((10000 + n % 60000))\n}\n"
        + "export MASTER_PORT=$(f $SLURM_JOB_ID)\nsrun python t.py\n",
        4,
        E,
        "may be 69999",
    ),
    Bad("KIT216", FOUR + "srun python t.py --tensor-model-parallel-size ${TP:-3}\n", 3, W, "does not divide the 8"),
    Bad(
        "KIT415",
        HEAD
        + "A=(--ckpt-file c/latest.pt)\nif [[ -f c/last.pt ]]; then A+=(--resume c/last.pt); fi\n"
        + 'python t.py "${A[@]}"\n',
        3,
        W,
        "saves latest.pt, but the script looks for last.pt",
    ),
    Bad("KIT118", HEAD + "#SBATCH -o log_%A_%a.txt\nsrun python t.py\n", 2, W, "the job has no --array"),
    Bad("KIT133", HEAD + "#SBATCH -c 8\napptainer exec --nv i.sif python train.py\n", 3, W, "asks for none"),
    Bad("KIT254", HEAD + "#SBATCH -a 1-3\npython t.py --fold 1 > fold$SLURM_ARRAY_TASK_ID.log\n", 3, W, "--fold is 1"),
    Bad(
        "KIT304",
        FOUR + "port=17000\nsrun bash -c 'export MASTER_PORT=$port; python t.py'\n",
        3,
        E,
        "in the tasks, $port expands to nothing",
    ),
    Bad(
        "KIT306",
        FOUR
        + "pick() { python3 -c \"import socket; s = socket.socket(); s.bind(('', 0))\"; }\nexport -f pick\n"
        + "srun bash -c 'export MASTER_PORT=$(pick); python t.py'\n",
        5,
        E,
        "each task draws its own value",
    ),
    Bad(
        "KIT313",
        FOUR
        + 'mapfile -t HOSTS < <(scontrol show hostnames "$SLURM_JOB_NODELIST")\nL=$((${#HOSTS[@]} - 1))\n'
        + "export MASTER_ADDR=${HOSTS[$L]}\nsrun python t.py\n",
        5,
        E,
        "not the first host",
    ),
    Bad(
        "KIT129", HEAD + "rc=0\nsrun python t.py || rc=$?\nrsync -a o b\nexit $ret\n", 5, W, "the status of the command"
    ),
    Bad(
        "KIT223",
        GPUS + "run() { srun -n1 python t.py --seed $1 & }\nrun 1\nrun 2\nwait\n",
        3,
        W,
        "each of these steps has all resources",
    ),
    Bad(
        "KIT429",
        HEAD + 'submit() { sbatch "$@"; }\na=$(submit a.sh)\nb=$(submit --dependency=afterok:$a b.sh)\n',
        4,
        E,
        "not a job id",
    ),
    Bad(
        "KIT251",
        HEAD + '#SBATCH -a 0-3\nline() { sed -n "${1}p" list; }\nx=$(line "$SLURM_ARRAY_TASK_ID")\npython t.py $x\n',
        3,
        E,
        "index 0 selects no line",
    ),
    Bad(
        "KIT501",
        HEAD + "f() { export WANDB_API_KEY=$1; }\nf 3f9c1d2e4b5a69788796a5b4c3d2e1f001122334\n",
        3,
        E,
        "a secret",
    ),
    Bad(
        "KIT207",
        ONE_A_NODE
        + "cat > a.yaml <<E\nnum_machines: 2\nnum_processes: 8\nE\n"
        + "srun bash -c 'accelerate launch --config_file a.yaml --machine_rank $SLURM_NODEID t.py'\n",
        7,
        E,
        "accepts 2 nodes, but it is started on 4",
    ),
    Bad(
        "KIT207",
        HEAD + "#SBATCH -N2\nsrun torchrun --nnodes=2 --node-rank=${NODE_RANK:-0} --master-addr=$H t.py\n",
        3,
        W,
        "--node-rank=0 on each of the 2 nodes",
    ),
    Bad("KIT217", HEAD + "#SBATCH -c 4\nsrun python t.py --num-workers ${W:-16}\n", 3, W, "16 data loader workers"),
    Bad(
        "KIT312",
        HEAD + "# AWS nodes\nexport NCCL_SOCKET_IFNAME=eth0\nexport CUDA_LAUNCH_BLOCKING=1\nsrun python t.py\n",
        4,
        W,
        "waits for each kernel",
    ),
    Bad(
        "KIT216",
        FOUR + "srun python t.py --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --num-layers 30\n",
        3,
        E,
        "4 pipeline stages cannot share 30 layers evenly",
    ),
    Bad(
        "KIT216",
        FOUR
        + "B=${B:-100}\nsrun python t.py --tensor-model-parallel-size 2 --micro-batch-size 8 --global-batch-size $B\n",
        3,
        W,
        "does not divide the global batch 100",
    ),
    Bad(
        "KIT230",
        HEAD
        + 'cat > d.json <<E\n{"train_micro_batch_size_per_gpu": 4}\nE\n'
        + "python t.py --deepspeed d.json --per_device_train_batch_size 8\n",
        5,
        E,
        "is 8, but train_micro_batch_size_per_gpu is 4",
    ),
    Bad(
        "KIT314", GPUS2 + "srun --gpu-bind=map_gpu:0,1,2,2 python t.py\n", 3, E, "2 of the 4 tasks of a node get GPU 2"
    ),
    Bad(
        "KIT314",
        HEAD
        + "#SBATCH -n4 --gpus-per-task=1\ncat > a.py <<'E'\nimport os, torch\n"
        + "r, i = int(os.environ['SLURM_PROCID']), int(os.environ['SLURM_LOCALID'])\ntorch.cuda.set_device(i)\nE\n"
        + "srun python a.py\n",
        6,
        E,
        "each task sees one GPU",
    ),
    Bad("KIT129", HEAD + "MEMORY=4G\nsbatch --mem=$MEM next.sh\n", 3, W, "nothing sets $MEM; there is $MEMORY"),
    Bad(
        "KIT125",
        HEAD + "source v/bin/activate\nmodule load python/3.11\npython t.py\n",
        3,
        W,
        "comes before the environment of line 2",
    ),
    Bad(
        "KIT419",
        HEAD + "srun python t.py | tee log &\npid=$!\ntrap 'kill -USR1 $pid; wait $pid' USR1\nwait $pid\n",
        3,
        W,
        "$! is the process of tee",
    ),
    Bad("KIT403", HEAD + "srun python t.py | tee log &\npid=$!\nwait $pid\n", 2, E, "returns the status of tee"),
    Bad("KIT402", HEAD + "srun python t.py &\nwait\necho done\nexit $?\n", 3, E, "always returns 0"),
    Bad(
        "KIT414",
        HEAD + "#SBATCH -t 60 --signal=USR1@60\n# a checkpoint is written\n# in 4 min\nsrun python t.py\n",
        2,
        W,
        "takes 240 s",
    ),
    Bad(
        "KIT505",
        HEAD + "S=/nvme/$SLURM_JOB_ID\nmkdir -p $S\napptainer exec -c -B /c:/c i.sif python t.py --d $S/x\n",
        2,
        W,
        "does not see /nvme",
    ),
    Bad(
        "KIT312",
        HEAD + "export CUDA_LAUNCH_BLOCKING=1  # for the crash of last week\nsrun python t.py\n",
        2,
        W,
        "waits for each kernel",
    ),
    Bad(
        "KIT216",
        FOUR + "A='--tensor-model-parallel-size 2 --micro-batch-size 3'\nsrun python t.py $A --global-batch-size 64\n",
        4,
        E,
        "64",
    ),
    Bad("KIT222", FOUR + "[ -f v.txt ] || srun python make_vocab.py v.txt\n", 3, W, "all write v.txt"),
    Bad("KIT228", HEAD + "M=$(date +%m)\npython t.py --month $((M - 1))\n", 3, E, "M has leading zeros"),
    Bad("KIT228", HEAD + "for i in $(seq -w 1 12); do\n  python t.py ${A[$i]}\ndone\n", 3, E, "i has leading zeros"),
    Bad(
        "KIT251",
        HEAD + "#SBATCH -a 0-5\nA=(1 2 3)\nB=(4 5)\ni=$SLURM_ARRAY_TASK_ID\npython t.py ${A[i%3]} ${B[i/9]}\n",
        2,
        W,
        "only 3 of",
    ),
    Bad(
        "KIT253", HEAD + "#SBATCH -a 0-5\necho s=$SLURM_ARRAY_TASK_ID > c/a.ini\npython t.py c/a.ini\n", 3, W, "c/a.ini"
    ),
    Bad(
        "KIT253", HEAD + "#SBATCH -a 0-1\nL=(1 2)\npython t.py base_lr ${L[SLURM_ARRAY_TASK_ID]} out_dir o\n", 4, W, "o"
    ),
    Bad("KIT202", HET + "srun python t.py\npython plot.py\n", 5, E, "component 1 is idle"),
    Bad(
        "KIT305",
        FOUR + 'H=$(scontrol show hostnames "$SLURM_NODELIST")\nA=("$H")\nsrun -w ${A[0]} python t.py\n',
        4,
        E,
        "${A[0]}",
    ),
    Bad(
        "KIT314",
        FOUR + "#SBATCH -m cyclic\nsrun bash -c 'LOCAL_RANK=$((SLURM_PROCID % 2)) python t.py'\n",
        4,
        E,
        "cyclic",
    ),
    Bad("KIT402", HEAD + "python a.py &\npython b.py &\nif wait; then python c.py; fi\n", 4, E, "never sees a failure"),
    Bad("KIT402", HEAD + "python a.py &\nwait\nif [ $? = 0 ]; then python b.py; fi\n", 3, E, "never sees a failure"),
    Bad(
        "KIT402",
        HEAD + "set -e\npython t.py\nrclone copy out r:out &\necho done\n",
        4,
        E,
        "nothing waits for this rclone",
    ),
    Bad(
        "KIT403",
        HEAD + "python t.py | tee log\nrc=$?\n[ $rc = 0 ] && python eval.py\nexit $rc\n",
        2,
        E,
        "status of tee",
    ),
    Bad("KIT134", HEAD + "OUT=/p\ncat >c.yaml <<'E'\ndir: ${OUT}\nE\npython t.py c.yaml\n", 3, W, "$OUT stays"),
    Bad("KIT505", HEAD + "A='--data /data/x'\nsrun --container-image=i.sqsh python t.py $(echo $A)\n", 2, W, "/data/x"),
    Bad(
        "KIT301",
        FOUR + "cat >e.sh <<'E'\nMASTER_ADDR=$(hostname)\nE\nsrun bash -c '. e.sh; python t.py'\n",
        4,
        E,
        "$(hostname)",
    ),
    Bad("KIT137", HEAD + "N=$1\n[ $N > 0 ] && R=--resume\npython t.py $R\n", 3, E, "writes the file 0"),
    Bad("KIT137", HEAD + "i=0\nwhile [ $i < 10 ]; do\n python t.py $i; i=$((i+1))\ndone\n", 3, E, "reads the file 10"),
    Bad("KIT137", HEAD + 'if test "$#" > $MIN; then python t.py; fi\n', 2, E, "writes the file $MIN"),
    Bad("KIT508", HEAD + "code-server --auth none --bind-addr 0.0.0.0:8080\n", 2, W, "run commands as you"),
    Bad("KIT508", HEAD + "srun -n1 python -m jupyter lab --ip='*' --ServerApp.token=''\n", 2, W, "listens on *"),
    Bad("KIT425", FOUR + "srun bash -c 'RANK=$SLURM_PROCID python t.py && sbatch b.sh'\n", 3, E, "8 tasks submits"),
    Bad("KIT501", HEAD + "set -x\nexport WANDB_API_KEY=$(<~/.key)\npython t.py\n", 3, W, "set -x prints"),
    Bad("KIT501", "#!/bin/bash -x\npython t.py --hub $HF_TOKEN\n", 2, W, "set -x prints the value of HF_TOKEN"),
    Bad(
        "KIT253", HEAD + "#SBATCH -a 0-1\nL=(1 2)\npython t.py --lr ${L[SLURM_ARRAY_TASK_ID]} --results o\n", 4, W, "o"
    ),
    Bad("KIT416", HEAD + "#SBATCH --requeue\nrm -rf /p/e\npython t.py --exp_dir /p/e\n", 3, W, "/p/e"),
    Bad(
        "KIT416",
        HEAD + "D=/l/$USER\ntrap 'rm -rf $D' EXIT\ncp -r /data/x $D/\npython t.py --data $D/x --save-dir $D/ckpt\n",
        3,
        W,
        "the result of the training",
    ),
    Bad(
        "KIT223",
        GPUS + "srun -n1 -c8 --gpus=4 nvidia-smi -l 5 &\nsrun -n1 -c8 --gpus=4 python t.py\n",
        4,
        E,
        "never starts",
    ),
    Bad(
        "KIT413", HEAD + "#SBATCH --requeue\n#SBATCH --open-mode=truncate\npython t.py --resume\n", 3, W, "overwritten"
    ),
    Bad(
        "KIT136",
        HEAD + "#SBATCH -n 1\ncd runs/$SLURM_JOB_ID\npython t.py\n",
        3,
        W,
        "nothing has created runs/$SLURM_JOB_ID",
    ),
    Bad(
        "KIT136",
        HEAD + "#SBATCH -n 1\nsrun -o ~/r/$SLURM_JOB_ID/%t.log python t.py\n",
        3,
        W,
        "nothing has created ~/r/",
    ),
    Bad("KIT136", HEAD + "python t.py > logs/a\nmkdir -p logs\n", 2, W, "nothing has created logs yet"),
    Bad("KIT429", HEAD + "sbatch -d afterok:$(sbatch a.sh) b.sh\n", 2, E, "not a job id"),
    Bad("KIT429", HEAD + "a=`sbatch a.sh`\nb=$(sbatch --dependency=afterany:$a b.sh)\n", 3, E, "not a job id"),
    Bad(
        "KIT403", HEAD + "set -e\nsrun python a.py | tee l\npython b.py\n", 3, W, "line 4 runs after a failed training"
    ),
    Bad("KIT123", GPUS + "#SBATCH --mem-per-gpu=960G\npython t.py\n", 3, W, "3.75 TiB on a node"),
    Bad("KIT123", HEAD + "#SBATCH --mem=64000G\npython t.py\n", 2, W, "is 62.5 TiB"),
    Bad(
        "KIT208", HEAD + "#SBATCH -N 2 -n 4 --gpus-per-node=4\nsrun python t.py\n", 3, W, "2 tasks per node, but 4 GPUs"
    ),
    Bad(
        "KIT209",
        HEAD + "#SBATCH -n 1\nset -u\necho $SLURM_ARRAY_TASK_ID\npython t.py\n",
        4,
        W,
        "the job has no --array",
    ),
    Bad("KIT428", HEAD + "O=/tmp/o\nf() { python t.py --output-dir $O; }\nf\n", 2, W, "/tmp/o is on the disk"),
    Bad(
        "KIT204",
        ONE_A_NODE + 'f() { srun torchrun --nnodes=4 --node-rank="$1" t.py; }\nf $SLURM_NODEID\n',
        4,
        E,
        "gets 0",
    ),
    Bad("KIT401", HEAD + "a() { python t.py; }\nb() { a; echo x; }\nb\n", 2, E, "the status of 'echo' in line 3"),
    Bad(
        "KIT227", HEAD + '#SBATCH -n 1\npython t.py "$(sed -n "${PBS_ARRAY_INDEX}p" list)"\n', 3, W, "$PBS_ARRAY_INDEX"
    ),
    Bad(
        "KIT202", ONE_A_NODE + "log() { echo x; }\ngo() { torchrun --nnodes=4 t.py; }\nlog\ngo\n", 4, E, "started once"
    ),
    Bad("KIT416", HEAD + '#SBATCH --requeue\nf() { rm -rf "$1"; }\nO=/a/b\nf $O\npython t.py --out $O\n', 3, W, "/a/b"),
    Bad("KIT125", HEAD + "f() { ml purge; }\nml cuda\nf\npython t.py\n", 2, W, "takes back ml cuda of line 3"),
    Bad("KIT125", HEAD + "source v/bin/activate\ndeactivate\npython t.py\n", 3, W, "takes back source"),
    Bad("KIT125", HEAD + "module load cuda | tee log\npython t.py\n", 2, W, "runs in a subshell"),
    Bad("KIT125", HEAD + "python t.py\nmodule load cuda\n", 3, W, "line 2 runs before this"),
    Bad(
        "KIT210",
        ONE_A_NODE + "srun composer -n 8 --world_size 4 --node_rank 0 t.py\n",
        3,
        E,
        "8 processes on each of 4",
    ),
    Bad("KIT207", ONE_A_NODE + "srun composer -n 8 t.py\n", 3, E, "composer expects one node"),
    Bad("KIT305", FOUR + "N=$SLURM_NODELIST\nexport MASTER_ADDR=${N%%,*}\nsrun python t.py\n", 4, E, "gpu[01-04]"),
    Bad("KIT305", FOUR + 'IFS=, read -ra H <<< "$SLURM_NODELIST"\nsrun python t.py\n', 3, E, "gpu[01-04]"),
    Bad(
        "KIT305",
        ONE_A_NODE + "srun torchrun --nnodes=4 --rdzv-backend=c10d --rdzv-endpoint=${SLURM_NODELIST%%,*}:1 t.py\n",
        3,
        E,
        "gpu[01-04]",
    ),
    Bad("KIT502", HEAD + "sbatch --export=ALL,L=2,4 a.sbatch\n", 2, W, "'4' is taken for a variable"),
    Bad("KIT205", HEAD + "# Slurm 23.02\n#SBATCH -n 2 -c 4\nsrun python t.py\n", 4, W, "each task gets one CPU"),
    Bad("KIT216", GPUS + "python t.py --tensor-parallel-size 8\n", 3, W, "parallel degree 8, but the job has 4 GPUs"),
    Bad("KIT216", GPUS + "lm_eval --model_args a=b,tensor_parallel_size=8\n", 3, W, "the job has 4 GPUs"),
    Bad("KIT506", GPUS + "apptainer exec a.sif nnUNetv2_train 1\n", 3, W, "without --nv"),
    Bad(
        "KIT253",
        HEAD + '#SBATCH -a 0-1\nL=(1 2)\npython t.py --lr ${L[SLURM_ARRAY_TASK_ID]} --out-dir "$HOME/x"\n',
        4,
        W,
        "$HOME/x",
    ),
    Bad("KIT228", HEAD + "#SBATCH --gpus-per-node=a100:4\nN=$((SLURM_GPUS_PER_NODE * 2))\n", 3, E, "but a100:4"),
    Bad(
        "KIT306",
        FOUR + "export MASTER_ADDR=n1\nsrun bash -c 'MASTER_PORT=$((1024 + SLURM_PROCID)) python t.py'\n",
        4,
        E,
        "depends on the rank",
    ),
    Bad("KIT101", "#!bin/bash\npython t.py\n", 1, E, "does not begin with /"),
    Bad("KIT101", "#!/usr/bin/env bash -e\npython t.py\n", 1, E, "the name of one program"),
    Bad("KIT103", HEAD + "#SBATCH --gres=gpus:1\npython t.py\n", 2, W, "Slurm's name for GPUs is gpu"),
    Bad("KIT209", HEAD + "#SBATCH -n 1\nset -u\npython t.py $SLURM_RESTART_COUNT\n", 4, E, "at the first start"),
    Bad("KIT209", HEAD + "#SBATCH -n 1\npython t.py $SLURM_ARRAY_TASK_ID\n", 3, W, "the job has no --array"),
    Bad("KIT411", HEAD + "trap 'echo x' KILL\npython t.py\n", 2, E, "no trap runs at SIGKILL"),
    Bad("KIT401", HEAD + "python t.py\nscancel $SLURM_JOB_ID\n", 3, W, "ends as CANCELLED"),
    Bad(
        "KIT221",
        HEAD + "#SBATCH -n 8\nfor i in 1 2; do\n  srun -n 1 --exact python t.py $i\ndone\n",
        4,
        W,
        "one after another",
    ),
    Bad("KIT402", HEAD + "nohup python t.py &\ndisown\nexit 0\n", 2, E, "without a wait"),
    Bad("KIT222", GPUS2 + "srun wget https://host/data.tar\nsrun python t.py\n", 3, W, "wget"),
    Bad("KIT506", GPUS + "docker run --rm image python t.py\n", 3, W, "docker run without --gpus"),
    Bad("KIT133", HEAD + "#SBATCH -p batch -n 1 --mem=9G\npython t.py --device cuda:0\n", 3, W, "needs a GPU"),
    Bad("KIT134", HEAD + "cat > x.yaml <<'E'\na: $SLURM_JOB_ID\nE\npython t.py\n", 2, W, "$SLURM_JOB_ID stays"),
    Bad("KIT428", HEAD + "cd $TMPDIR\npython t.py --output_dir results\n", 3, W, "results is on the disk"),
    Bad("KIT428", HEAD + "O=/dev/shm/o\npython t.py output_dir=$O\nrm -rf $O\n", 3, W, "/dev/shm/o is on the disk"),
    Bad("KIT217", GPUS2 + "export OMP_NUM_THREADS=$SLURM_CPUS_ON_NODE\nsrun python t.py\n", 3, W, "each of 4 tasks"),
    Bad("KIT315", GPUS2 + "export DIST_BACKEND=gloo\nsrun python t.py\n", 3, W, "gloo"),
    Bad("KIT228", FOUR + "export WORLD_SIZE=$SLURM_TASKS_PER_NODE\nsrun python t.py\n", 3, E, "a list such as"),
    Bad("KIT228", FOUR + 'srun torchrun --nproc-per-node="$SLURM_TASKS_PER_NODE" t.py\n', 3, E, "4(x4)"),
    Bad(
        "KIT417", GPUS + "if [ $N -lt 5 ]; then sbatch --export=ALL,N=$((N+1)) a.sh; fi\npython t.py\n", 3, W, "at once"
    ),
    Bad("KIT426", GPUS + "sbatch --wait a.sbatch\npython t.py\n", 3, W, "idle until"),
    Bad("KIT501", HEAD + "python t.py --hf_token $(cat token)\n", 2, W, "ps"),
    Bad(
        "KIT314",
        GPUS2 + "srun bash -c 'export CUDA_VISIBLE_DEVICES=$SLURM_LOCALID; LOCAL_RANK=$SLURM_LOCALID python t.py'\n",
        3,
        W,
        "one GPU",
    ),
    Bad("KIT315", GPUS2 + "srun python t.py --backend gloo\n", 3, W, "gloo"),
    Bad("KIT115", HEAD + "#SBATCH --gres=gpu:1g.10gb:2\ntorchrun --nproc-per-node=2 t.py\n", 3, W, "NCCL"),
    Bad(
        "KIT217",
        HEAD + "#SBATCH --exclusive --ntasks-per-node=8 -c 16\nexport OMP_NUM_THREADS=128\nsrun python t.py\n",
        3,
        W,
        "128 threads",
    ),
    Bad(
        "KIT216",
        ONE_A_NODE
        + "srun torchrun --nnodes=4 --nproc-per-node=8 t.py --parallelism.tensor_parallel_degree 4"
        + " --parallelism.data_parallel_shard_degree 16\n",
        3,
        W,
        "data 16",
    ),
    Bad(
        "KIT402",
        HEAD + "for s in 1 2; do\n  srun python t.py $s &\n  p=$!\ndone\nwait $p\n",
        6,
        E,
        "last process of the loop",
    ),
    Bad("KIT503", HEAD + "cd $W\nrm -rf *\n", 3, W, "if the cd in line 2 fails"),
    Bad("KIT132", HEAD + "#SBATCH -p short -N 8\n", 2, E, "partition short never starts this job: 8 nodes"),
    Bad("KIT132", HEAD + "#SBATCH -p short -t 2:00:00\n", 2, E, "the partition allows 01:00:00"),
    Bad("KIT132", HEAD + "#SBATCH -p short -n 1 -c 32\n", 2, E, "32 CPUs per node, but a node has 16"),
    Bad("KIT132", HEAD + "#SBATCH --array=1-501%10\n", 2, E, "index 501, but MaxArraySize is 501"),
    Bad("KIT122", HEAD + "#SBATCH --time=0\n", 2, W, "asks for no limit"),
    Bad("KIT109", HEAD + "module purge\nmodule load cuda/12.1\nconda activate x\n", 4, W, "needs a set-up"),
    Bad("KIT113", HEAD + "#SBATCH -o logs/%j/out\n", 2, E, "no folder has this name before the job runs"),
    Bad("KIT121", "#!/bin/sh\nif [[ -f x ]]; then\n  ls\nfi\n", 2, W, "[[ is syntax of bash"),
    Bad("KIT208", GPUS + "deepspeed --include localhost:0,1 t.py\n", 3, W, "2 processes per node, but 4 GPUs"),
    Bad("KIT213", GPUS2 + "mpirun -np 4 --map-by ppr:4:node python t.py\n", 3, W, "the rest is idle"),
    Bad("KIT213", GPUS2 + "mpirun -np 8 -H $(hostname):8 python t.py\n", 3, W, "all processes on this node"),
    Bad(
        "KIT215",
        GPUS + "echo n1 slots=8 > h\ndeepspeed --hostfile h t.py\n",
        3,
        E,
        "8 slots per node, but a node has 4",
    ),
    Bad("KIT215", FOUR + "deepspeed --hostfile h --num_nodes 2 t.py\n", 3, W, "2 of the 4 nodes"),
    Bad(
        "KIT217",
        GPUS + "#SBATCH -c 32\nexport OMP_NUM_THREADS=16\ntorchrun --nproc-per-node=4 t.py\n",
        4,
        W,
        "4 processes",
    ),
    Bad("KIT220", HEAD + "#SBATCH -N1\nsrun -N3 python t.py\n", 3, E, "3 nodes, but the job has 1"),
    Bad("KIT220", HEAD + "#SBATCH --ntasks-per-node=2\nsrun -N3 python t.py\n", 3, W, "3 nodes, but the job has 1"),
    Bad("KIT220", GPUS2 + "srun --ntasks=8 --gpus-per-task=2 python t.py\n", 3, E, "16 GPUs, but the job has 8"),
    Bad(
        "KIT217",
        GPUS + "#SBATCH -c 8\nexport OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\ntorchrun --nproc-per-node=4 t.py\n",
        4,
        W,
        "4 processes with 8 threads",
    ),
    Bad("KIT217", HEAD + "#SBATCH -n 6\nexport OMP_NUM_THREADS=6\nsrun python t.py\n", 3, W, "each task has one CPU"),
    Bad("KIT225", GPUS + "ray start --head --num-gpus=2\npython t.py\n", 3, W, "2 of the 4 GPUs of the node"),
    Bad(
        "KIT225",
        FOUR + "ray start --head\nsrun -N 2 -n 2 ray start --address=h:1 --block &\npython t.py\n",
        4,
        W,
        "Ray runs on 3 of the 4 nodes",
    ),
    Bad("KIT226", GPUS2 + "horovodrun -np 4 -H a:2,b:2 python t.py\n", 3, W, "4 processes, but the job has 8 GPUs"),
    Bad(
        "KIT251",
        HEAD
        + "#SBATCH -a 0-7\nA=(1 2 3)\nB=(4 5 6)\nI=$SLURM_ARRAY_TASK_ID\npython t.py ${A[$((I / 3))]} ${B[I % 3]}\n",
        2,
        W,
        "1 combination of A and B never runs",
    ),
    Bad(
        "KIT251",
        HEAD + "#SBATCH -a 0-2\ncase $SLURM_ARRAY_TASK_ID in\n0|1) X=1 ;;\nesac\npython t.py $X\n",
        3,
        W,
        "no branch of this case is for element 2",
    ),
    Bad("KIT307", HEAD + "IP=$(hostname -I)\nsrun torchrun --rdzv-endpoint=$IP:29500 t.py\n", 2, E, "all addresses"),
    Bad("KIT311", GPUS + "export CUDA_VISIBLE_DEVICES=0\nsrun python t.py\n", 3, W, "sees 1 of the 4 GPUs"),
    Bad(
        "KIT311",
        GPUS + "for i in {0..5}; do CUDA_VISIBLE_DEVICES=$i python t.py & done\nwait\n",
        3,
        E,
        "there is no GPU 5",
    ),
    Bad(
        "KIT314", FOUR + "srun bash -c 'LOCAL_RANK=$SLURM_PROCID python t.py'\n", 3, E, "counts the tasks of all nodes"
    ),
    Bad("KIT401", HEAD + "R=$(srun python t.py)\necho $R\n", 2, E, "a failure in $(...) is lost"),
    Bad(
        "KIT401",
        HEAD + "set -e\nexport R=$(srun python t.py)\npython u.py $R\n",
        3,
        W,
        "export has a status of its own",
    ),
    Bad(
        "KIT415",
        HEAD + "#SBATCH --requeue\nsrun python t.py --ckpt-dir /tmp/c --resume auto\n",
        3,
        W,
        "local to a node",
    ),
    Bad(
        "KIT416",
        HEAD + "D=/s/x\nclean() { rm -rf $D; }\ntrap clean EXIT\nsrun python t.py --save-dir $D\n",
        3,
        W,
        "the result of the training",
    ),
    Bad(
        "KIT417",
        HEAD + "sbatch --dependency=afterany:$SLURM_JOB_ID $0\nsrun python t.py\n",
        2,
        W,
        "nothing ends the chain",
    ),
    Bad(
        "KIT501", HEAD + "export AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYzzz1zzzKEY\n", 2, E, "is a secret"
    ),
    Bad("KIT502", HEAD + 'srun --export="A=$X,B=1" python t.py\n', 2, W, "the tasks have no PATH"),
    Bad("KIT503", HEAD + "rm -rf $OLD_DIR/*\n", 2, W, "if $OLD_DIR is empty"),
    Bad(
        "KIT505",
        HEAD + "apptainer exec -B $PWD:/code i.sif python /code/t.py --data /scratch/me\n",
        2,
        W,
        "does not see /scratch/me",
    ),
    Bad("KIT505", HEAD + "enroot start -m /a:/b img python t.py --data /data/x\n", 2, W, "does not see /data/x"),
    Bad("KIT506", GPUS + "apptainer exec --bind $PWD:/w i.sif python t.py\n", 3, W, "without --nv"),
    Bad("KIT132", HEAD + "#SBATCH --ntasks-per-node=8 -c 32\n", 2, E, "256 CPUs per node, but a node has 128"),
    Bad("KIT132", HEAD + "#SBATCH -N2 --gpus-per-node=16\n", 2, E, "16 GPUs per node, but a node has 8"),
    Bad("KIT132", HEAD + "#SBATCH --mem-per-cpu=20G -c 64\n", 2, E, "MiB of memory per node"),
    Bad("KIT122", HEAD + "#SBATCH --time=24\n", 2, W, "--time=24 is 24 minutes"),
    Bad("KIT122", HEAD + "#SBATCH -t 48:00\n", 2, W, "--time=48:00 is 48 minutes"),
    Bad("KIT123", HEAD + "#SBATCH --mem=16\nsrun python t.py\n", 2, W, "--mem=16 is 16 MiB"),
    Bad("KIT124", HEAD + "set -euo pipefail\nconda activate x\n", 3, W, "under set -u"),
    Bad("KIT217", HEAD + "#SBATCH -c 4\nexport OMP_NUM_THREADS=16\nsrun python t.py\n", 3, W, "16 threads, but"),
    Bad("KIT312", HEAD + "export CUDA_LAUNCH_BLOCKING=1\nsrun python t.py\n", 2, W, "waits for each kernel"),
    Bad("KIT413", HEAD + "#SBATCH --requeue -o log\nsrun python t.py\n", 2, W, "the log is overwritten"),
    Bad("KIT414", HEAD + "#SBATCH -t 5 --signal=USR1@600\nsrun python t.py\n", 2, E, "600 s before the limit"),
    Bad("KIT503", HEAD + "srun pkill -u $USER python\n", 2, W, "ends processes of other jobs"),
    Bad("KIT503", HEAD + "rm -rf /dev/shm/*\n", 2, W, "removes files of other jobs"),
    Bad("KIT121", "#!/bin/sh\nif [[ $x = 1 ]]; then ls; fi\n", 2, W, "[[ is syntax of bash"),
    Bad("KIT121", "#!/bin/sh\nsource env.sh\n", 2, W, "source is syntax of bash"),
    Bad(
        "KIT207", HEAD + "#SBATCH -N2-4\nsrun torchrun --nnodes=2 --rdzv-endpoint=$H t.py\n", 3, E, "gets 2 to 4 nodes"
    ),
    Bad("KIT214", FOUR + "srun mpirun -n 8 ./solve\n", 3, E, "srun starts mpirun 8 times"),
    Bad("KIT214", FOUR + "srun bash -c 'srun python t.py'\n", 3, E, "srun starts srun 8 times"),
    Bad("KIT214", FOUR + "srun horovodrun -np 8 python t.py\n", 3, E, "srun starts horovodrun 8 times"),
    Bad("KIT215", ONE_A_NODE + "srun deepspeed --num_gpus 4 t.py\n", 3, E, "4 nodes: each trains a separate model"),
    Bad("KIT215", ONE_A_NODE + "srun deepspeed --hostfile h t.py\n", 3, E, "4 nodes: each starts all nodes"),
    Bad("KIT216", FOUR + "srun python t.py --tensor-parallel-size 3\n", 3, W, "tensor 3 = 3 does not divide the 8"),
    Bad(
        "KIT207",
        ONE_A_NODE + "srun bash -c 'cd x && A=1 && torchrun --nnodes=4 --node_rank=0 t.py'\n",
        3,
        E,
        "--node-rank=0 on each",
    ),
    Bad("KIT502", HEAD + "#SBATCH --export=NONE\nexport A=1\nsrun bash -c 'python t.py'\n", 4, E, "no variable of"),
    Bad(
        "KIT216",
        FOUR + "srun python t.py --tensor-model-parallel-size 2 --pipeline-model-parallel-size 3\n",
        3,
        E,
        "tensor 2 x pipeline 3 = 6 does not divide the 8 ranks",
    ),
    Bad(
        "KIT216",
        ONE_A_NODE + "srun torchrun --nnodes=4 --nproc-per-node=4 t.py --parallelism.tensor_parallel_degree=8\n",
        3,
        W,
        "spans nodes of 4 ranks",
    ),
    Bad("KIT307", FOUR + "export MASTER_ADDR=$(hostname -I)\nsrun python t.py\n", 3, E, "all addresses"),
    Bad(
        "KIT308",
        HEAD + "#SBATCH -a 0-3\nexport MASTER_PORT=$((10000 + SLURM_ARRAY_JOB_ID % 20000))\nsrun python t.py\n",
        3,
        W,
        "all elements of the array use this port",
    ),
    Bad("KIT309", FOUR + "export NCCL_SOCKET_IFNAME=lo\nsrun python t.py\n", 3, E, "reaches no other node"),
    Bad("KIT404", HEAD + "if ! srun python t.py; then\n  echo failed\nfi\n", 2, E, "the if uses the exit status"),
    Bad("KIT404", HEAD + "trap 'rm -rf x; exit 0' EXIT\nsrun python t.py\n", 2, E, "ends every job with 0"),
    Bad("KIT502", HEAD + "#SBATCH --export=NONE\nmodule load cuda\nsrun python t.py\n", 4, E, "no variable of this"),
    Bad("KIT502", HEAD + "srun --export=LR=1 python t.py\n", 2, W, "the tasks have no PATH"),
    Bad("KIT502", HEAD + "#SBATCH --export=ALL,GPUS=0,1\nsrun python t.py\n", 2, E, "'1' is no variable"),
    Bad("KIT101", "#SBATCH -N1\n", 1, E, "no interpreter"),
    Bad("KIT101", "\n#!/bin/bash\n", 1, E, "no interpreter"),
    Bad("KIT101", "", 1, E, "empty"),
    Bad("KIT101", "\ufeff#!/bin/bash\n", 1, E, "no interpreter"),
    Bad("KIT102", "#!/bin/bash\r\nls\r\n", 1, E, "DOS line breaks"),
    Bad("KIT102", HEAD + "ls\n\0\n", 3, E, "NUL"),
    Bad("KIT103", HEAD + "#SBATCH --ndoes=4\n", 2, E, "does not take"),
    Bad("KIT103", HEAD + "#SBATCH --walltime=2:00:00\n", 2, E, "does not take"),
    Bad("KIT103", HEAD + "#SBATCH --gpu_cmode=shared\n", 2, W, "does not take"),
    Bad("KIT103", HEAD + "#SBATCH --time=2h30\n", 2, E, "duration"),
    Bad("KIT103", HEAD + "#SBATCH nodes=4\n", 2, E, "no option"),
    Bad("KIT103", HEAD + "#SBATCH --nodes = 4\n", 2, E, "no option"),
    Bad("KIT103", HEAD + "#SBATCH --mem='4G\n", 2, E, "never closed"),
    Bad("KIT103", HEAD + "#SBACTH --nodes=4\n", 2, W, "as a comment"),
    Bad("KIT103", HEAD + "#sbatch -N 4\n", 2, W, "as a comment"),
    Bad("KIT103", HEAD + "# SBATCH --nodes=4\n#SBATCH -t 5\n", 2, W, "no other line gives --nodes"),
    Bad("KIT104", HEAD + "set -e\n#SBATCH --nodes=4\n", 3, E, "silently ignores"),
    Bad("KIT104", HEAD + "  #SBATCH --nodes=4\n", 2, E, "does not begin the line"),
    Bad("KIT104", "#!/usr/bin/env python3\nimport os\n#SBATCH --nodes=4\n", 3, E, "silently ignores"),
    Bad("KIT104", HEAD + "!#SBATCH --signal=USR1@90\nls\n", 2, E, "the shell runs !#SBATCH"),
    Bad("KIT104", HEAD + "srun python t.py\nSBATCH -N 2\n", 3, E, "the shell runs SBATCH"),
    Bad("KIT105", HEAD + "#SBATCH --job-name=a#b\n", 2, E, "Slurm reads --job-name=a"),
    Bad("KIT105", HEAD + "#SBATCH --time=60# one hour\n", 2, W, "Slurm reads --time=60"),
    Bad("KIT106", HEAD + "#SBATCH --output=$HOME/%j.log\n", 2, E, "expands no variables"),
    Bad("KIT106", HEAD + '#SBATCH -o "${SCRATCH}/%j.log"\n', 2, E, "expands no variables"),
    Bad("KIT106", HEAD + "#SBATCH --chdir=~/project\n", 2, E, "expands no variables"),
    Bad("KIT106", HEAD + "#SBATCH --job-name=$USER\n", 2, W, "expands no variables"),
    Bad(
        "KIT107",
        HEAD + "srun torchrun --nnodes 2 \\\n --nproc-per-node 4\n --rdzv-id 1 t.py\n",
        4,
        E,
        "--rdzv-id starts",
    ),
    Bad("KIT107", HEAD + "srun bash -c 'torchrun --nnodes 2\n  --rdzv-id 1 t.py'\n", 3, E, "--rdzv-id starts"),
    Bad("KIT107", HEAD + "srun python t.py \\ \n  data\n", 2, E, "a space follows the backslash"),
    Bad("KIT107", HEAD + "srun python \\\n# -u \\\nt.py\n", 3, E, "this comment ends the command"),
    Bad("KIT108", HEAD + "setenv MASTER_ADDR n1\n", 2, E, "setenv is a command of csh, but this is bash"),
    Bad("KIT108", HEAD + "source set.sh\nsetenv MASTER_ADDR n1\n", 3, W, "setenv is a command of csh"),
    Bad("KIT108", "#!/bin/tcsh\nexport X=1\n", 2, E, "export is a command of bash"),
    Bad("KIT108", "#!/bin/csh\nsetenv X $(hostname)\n", 2, E, "$(...) is syntax of bash"),
    Bad("KIT111", HEAD + "#SBATCH --mem=4G\n#SBATCH --mem-per-cpu=1G\n", 3, E, "exclude each other"),
    Bad("KIT111", HEAD + "#SBATCH --gpus-per-node=2 --gres=gpu:a100:4\n", 2, W, "exclude each other"),
    Bad(
        "KIT209", HEAD + "#SBATCH -N2\nexport WORLD_SIZE=$SLURM_NTASKS\n", 3, W, "$SLURM_NTASKS is not set in the batch"
    ),
    Bad("KIT209", HEAD + "#SBATCH -N2\nW=$((SLURM_NPROCS * 2))\n", 3, W, "$SLURM_NPROCS is not set in the batch"),
    Bad("KIT111", HEAD + "#SBATCH --requeue --no-requeue\n", 2, E, "exclude each other"),
    Bad("KIT111", HEAD + "#SBATCH --ntasks-per-gpu=1 --ntasks-per-node=2\n", 2, E, "exclude each other"),
    Bad("KIT111", HEAD + "#SBATCH --cpus-per-gpu=1 -c 2\n", 2, W, "exclude each other"),
    Bad("KIT112", HEAD + "#SBATCH --time=5\n#SBATCH -t 7\n", 3, W, "given twice"),
    Bad("KIT113", HEAD + "#SBATCH --output=logs/%j.log\n", 2, E, "does not exist: logs"),
    Bad("KIT113", HEAD + "#SBATCH -J a -D there -e logs/%x/%j.err\n", 2, E, "does not exist: there/logs/a"),
    Bad("KIT113", HEAD + "#SBATCH --output=logs/%j/out.log\n", 2, E, "before the job runs"),
    Bad("KIT114", HEAD + "#SBATCH --tres-per-task=gres/gpu:1\n", 2, E, "came with Slurm 23.11, but this is 22.05.8"),
    Bad("KIT115", HEAD + "#SBATCH --gpus-per-task=1g.10gb:1\n", 2, W, "the same MIG device"),
    Bad("KIT201", HEAD + "#SBATCH -N2\n#SBATCH --ntasks=16 --ntasks-per-node=4\n", 3, E, "2 nodes x 4 tasks = 8"),
    Bad("KIT201", HEAD + "#SBATCH -N2 -n2 --ntasks-per-node=4\n", 2, E, "2 nodes x 4 tasks = 8"),
    Bad("KIT201", HEAD + "#SBATCH -N2 -n7 --ntasks-per-node=4\n", 2, W, "2 nodes x 4 tasks = 8"),
    Bad("KIT201", HEAD + "#SBATCH -N1 -n2 --ntasks-per-node=6\n", 2, W, "1 nodes x 6 tasks = 6"),
    Bad("KIT201", HEAD + "#SBATCH -N1 -n6 --ntasks-per-node=2\n", 2, E, "1 nodes x 2 tasks = 2"),
    Bad("KIT202", FOUR + "python train.py\n", 3, E, "the job asks for 8 tasks"),
    Bad("KIT202", ONE_A_NODE + "cd x && torchrun --nnodes=4 train.py\n", 3, E, "the job asks for 4 nodes"),
    Bad("KIT202", HEAD + "#SBATCH -n 4 --gres=gpu:4\npython -m pkg.train\n", 3, W, "4 tasks"),
    Bad("KIT202", HEAD + "#SBATCH -n 8\npython train.py --jobs 8\n", 3, W, "8 tasks"),
    Bad(
        "KIT203",
        FOUR + "srun torchrun --nproc-per-node=8 t.py\n",
        3,
        E,
        "8 processes, and srun starts it 2 times per node: 16",
    ),
    Bad(
        "KIT203",
        HEAD + "#SBATCH -N2 -n 16\nsrun python -m torch.distributed.run --nproc_per_node 8 t.py\n",
        3,
        E,
        "8 times",
    ),
    Bad(
        "KIT203",
        FOUR + "srun bash -c 'accelerate launch --num_processes 16 --num_machines 4 t.py'\n",
        3,
        E,
        "4 processes",
    ),
    Bad("KIT203", FOUR + "srun accelerate launch t.py\n", 3, E, "processes of its own"),
    Bad("KIT203", FOUR + "srun torchrun --nproc-per-node=gpu t.py\n", 3, E, "processes of its own"),
    Bad(
        "KIT203",
        HEAD + "#SBATCH -N2\nsrun --ntasks-per-node=4 torchrun --nproc-per-node=4 t.py\n",
        3,
        E,
        "4 times per node",
    ),
    Bad(
        "KIT204",
        ONE_A_NODE + "srun torchrun --node-rank=$SLURM_NODEID --nproc-per-node=8 t.py\n",
        3,
        E,
        "$SLURM_NODEID",
    ),
    Bad("KIT204", ONE_A_NODE + 'srun bash -c "torchrun --node-rank $SLURM_PROCID t.py"\n', 3, E, "every task gets 0"),
    Bad(
        "KIT204",
        FOUR + "srun python t.py --rank=${SLURM_PROCID} --gpu $((SLURM_LOCALID % 2))\n",
        3,
        E,
        "every task gets 0",
    ),
    Bad("KIT204", ONE_A_NODE + 'L="torchrun --node_rank $SLURM_NODEID"\nsrun $L t.py\n', 3, E, "every node gets 0"),
    Bad("KIT204", FOUR + "export RANK=$SLURM_PROCID\nsrun python t.py\n", 3, E, "$SLURM_PROCID"),
    Bad("KIT204", FOUR + "RANK=$SLURM_PROCID srun python t.py\n", 3, E, "$SLURM_PROCID"),
    Bad("KIT204", FOUR + "srun --export=ALL,RANK=$SLURM_PROCID python t.py\n", 3, E, "$SLURM_PROCID"),
    Bad("KIT204", HEAD + "srun torchrun --node-rank=$SLURM_NODEID t.py\n", 2, W, "$SLURM_NODEID"),
    Bad(
        "KIT204",
        ONE_A_NODE + "export C=\"torchrun --node_rank $SLURM_NODEID\"\nsrun bash -c '$C t.py'\n",
        3,
        E,
        "every node gets 0",
    ),
    Bad(
        "KIT204",
        FOUR + "for h in $H; do ssh $h torchrun --node-rank=$SLURM_NODEID t.py & done\n",
        3,
        E,
        "every node gets 0",
    ),
    Bad("KIT204", "#!/bin/tcsh\n#SBATCH -N2 -n8\nsrun python t.py --rank $SLURM_PROCID\n", 3, E, "every task gets 0"),
    Bad(
        "KIT203",
        FOUR + "mpirun -np 8 torchrun --nproc-per-node=2 t.py\n",
        3,
        E,
        "2 processes, and mpirun starts it 2 times per node: 4",
    ),
    Bad("KIT203", FOUR + "ibrun torchrun --nproc-per-node=2 t.py\n", 3, E, "ibrun starts it 2 times per node"),
    Bad(
        "KIT204",
        ONE_A_NODE + "cat >r.sh <<E\ntorchrun --node_rank=$SLURM_NODEID t.py\nE\nsrun bash r.sh\n",
        4,
        E,
        "every node gets 0",
    ),
    Bad(
        "KIT203",
        FOUR + "cat > r.sh <<'E'\ntorchrun --nproc-per-node=2 t.py\nE\nchmod +x r.sh\nsrun ./r.sh\n",
        4,
        E,
        "2 times per node",
    ),
    Bad("KIT203", FOUR + "srun bash <<'E'\n  torchrun --nproc-per-node=2 t.py\nE\n", 4, E, "2 times per node"),
    Bad(
        "KIT203",
        FOUR + "read -r -d '' C <<'E'\ntorchrun --nproc-per-node=2 t.py\nE\nsrun bash -c \"$C\"\n",
        4,
        E,
        "2 times per node",
    ),
    Bad(
        "KIT301",
        ONE_A_NODE + "cat >r.sh <<'E'\nexport MASTER_ADDR=$(hostname)\npython t.py\nE\nsrun sh r.sh\n",
        4,
        E,
        "a different machine",
    ),
    Bad("KIT205", HEAD + "#SBATCH -c 8\nsrun python t.py\n", 3, W, "--cpus-per-task=8 does not reach"),
    Bad("KIT206", HEAD + "srun --ntask-per-node=2 python t.py\n", 2, E, "does not take"),
    Bad("KIT206", HEAD + "srun --frobnicate=2 python t.py\n", 2, W, "does not take"),
    Bad("KIT202", HET + "srun python t.py\n", 5, E, "only in the first component of the job, which has 2"),
    Bad(
        "KIT203", HET + "srun --het-group=1 torchrun --nproc-per-node=2 t.py\n", 5, E, "srun starts it 4 times per node"
    ),
    Bad("KIT205", HET + "srun ./a : --het-group=1 python t.py\n", 5, W, "--cpus-per-task=6 does not reach"),
    Bad("KIT301", HET + "MASTER_ADDR=localhost srun --het-group=0,1 python t.py\n", 5, E, "each of the 3 nodes"),
    Bad("KIT111", HET + "#SBATCH --mem=1G --mem-per-cpu=1G\n", 5, E, "exclude each other"),
    Bad("KIT201", HET + "#SBATCH --ntasks=4\n", 5, E, "2 nodes x 4 tasks = 8"),
    Bad(
        "KIT207",
        ONE_A_NODE + "srun torchrun --nproc-per-node=2 t.py\n",
        3,
        E,
        "expects one node, but it is started on 4",
    ),
    Bad(
        "KIT207",
        ONE_A_NODE + "srun torchrun --nnodes=8 --master-addr=$H t.py\n",
        3,
        E,
        "waits for 8 nodes, but it is started on 4",
    ),
    Bad("KIT207", ONE_A_NODE + "srun torchrun --nnodes=1:2 --rdzv-endpoint=$H t.py\n", 3, E, "accepts 2 nodes"),
    Bad(
        "KIT207",
        HEAD + "#SBATCH -N1\ntorchrun --nnodes=2 --master-addr=$H t.py\n",
        3,
        E,
        "waits for 2 nodes, but it is started on 1",
    ),
    Bad(
        "KIT207",
        ONE_A_NODE + "srun accelerate launch --num_machines 2 --num_processes 8 t.py\n",
        3,
        E,
        "accepts 2 nodes",
    ),
    Bad(
        "KIT207",
        FOUR + "for h in $H; do\nssh $h torchrun --nnodes=4 --node-rank=$i t.py\ndone\n",
        4,
        E,
        "the loop starts",
    ),
    Bad(
        "KIT208",
        HEAD + "#SBATCH -N2 --gres=gpu:4\nsrun torchrun --nnodes=2 --nproc-per-node=8 t.py\n",
        3,
        E,
        "8 processes per node, but 4 GPUs",
    ),
    Bad(
        "KIT208",
        HEAD + "#SBATCH -N2 --gpus=4\nsrun accelerate launch --num_machines 2 --num_processes 8 t.py\n",
        3,
        E,
        "4 processes per node, but 2 GPUs",
    ),
    Bad(
        "KIT208",
        HEAD + "#SBATCH --gpus-per-node=a100:4\ntorchrun t.py\n",
        3,
        W,
        "1 process per node, but 4 GPUs: the remaining GPUs are idle",
    ),
    Bad(
        "KIT208",
        HEAD + "#SBATCH -N2 --ntasks-per-node=8 --gres=gpu:4,nvme:1\nsrun python t.py\n",
        3,
        W,
        "8 processes per node, but 4 GPUs",
    ),
    Bad(
        "KIT209",
        HEAD + "#SBATCH -N2 --gres=gpu:4\nsrun torchrun --nproc-per-node=$SLURM_GPUS_PER_NODE t.py\n",
        3,
        W,
        "does not give --gpus-per-node",
    ),
    Bad(
        "KIT209",
        HEAD + "#SBATCH -N2\nexport W=$((SLURM_NNODES * SLURM_NTASKS_PER_NODE))\n",
        3,
        W,
        "does not give --ntasks-per-node",
    ),
    Bad(
        "KIT209",
        FOUR + "ssh $h 'cd $SLURM_SUBMIT_DIR; torchrun t.py'\n",
        3,
        E,
        "$SLURM_SUBMIT_DIR is not set in a session of ssh",
    ),
    Bad(
        "KIT301",
        ONE_A_NODE + "srun bash -c 'export MASTER_ADDR=$(hostname -s); python t.py'\n",
        3,
        E,
        "a different machine on each",
    ),
    Bad(
        "KIT301",
        ONE_A_NODE + "srun bash -c 'torchrun --nnodes=4 --rdzv-endpoint=$HOSTNAME:0 t.py'\n",
        3,
        E,
        "$HOSTNAME is a different",
    ),
    Bad(
        "KIT301",
        ONE_A_NODE + "srun torchrun --nnodes=4 --rdzv-backend=c10d --master-addr=n1 t.py\n",
        3,
        E,
        "uses localhost",
    ),
    Bad("KIT213", HEAD + "#SBATCH -N2 -n2 --exclusive\nmpirun -n 8 python t.py\n", 3, W, "but the job has 2"),
    Bad("KIT301", ONE_A_NODE + "export MASTER_ADDR=n1\nsrun torchrun --nnodes=4 t.py\n", 4, E, "uses 127.0.0.1"),
    Bad(
        "KIT301",
        "#!/bin/tcsh\n#SBATCH -N2\nset a = localhost\nsetenv MASTER_ADDR $a\nsrun python t.py\n",
        3,
        E,
        "localhost is a different",
    ),
    Bad("KIT301", FOUR + "export MASTER_ADDR=localhost\nsrun python t.py\n", 3, E, "localhost is a different machine"),
    Bad(
        "KIT301", ONE_A_NODE + "srun torchrun --master_addr 127.0.0.1 t.py\n", 3, E, "127.0.0.1 is a different machine"
    ),
    Bad("KIT301", ONE_A_NODE + "srun torchrun --rdzv-endpoint=localhost:29400 t.py\n", 3, E, "localhost"),
    Bad("KIT301", FOUR + "srun python t.py --dist-url tcp://localhost:29500\n", 3, E, "localhost"),
    Bad("KIT302", HEAD + "#SBATCH --gpus-per-node=6 --array=1-4%10\nexport MASTER_PORT=4567\n", 3, W, "4567 is fixed"),
    Bad("KIT302", HEAD + "export MASTER_PORT=29500\n", 2, W, "port 29500 is fixed"),
    Bad("KIT302", HEAD + "srun python t.py --init_method=tcp://$HOST:3456 --size 4\n", 2, W, "port 3456 is fixed"),
    Bad("KIT302", HEAD + "srun python t.py --dist-url 'tcp://[fd00::1]:3456'\n", 2, W, "port 3456 is fixed"),
    Bad(
        "KIT302",
        HEAD + "#SBATCH --gpus-per-node=4 --array=1-4\nexport MASTER_PORT=29500\n",
        3,
        W,
        "port 29500 is fixed",
    ),
    Bad("KIT302", HEAD + "MASTER_PORT=${MASTER_PORT:-12345}\n", 2, W, "port 12345 is fixed"),
    Bad("KIT302", HEAD + "srun accelerate launch --main_process_port 29500 t.py\n", 2, W, "29500"),
    Bad("KIT302", HEAD + "srun torchrun --rdzv_endpoint $HOST:29500 t.py\n", 2, W, "29500"),
    Bad("KIT303", HEAD + "export MASTER_PORT=34567\n", 2, W, "34567 is ephemeral"),
    Bad("KIT303", HEAD + "#SBATCH --exclusive\nsrun torchrun --master-port=60000 t.py\n", 3, W, "60000"),
    Bad("KIT311", HEAD + "export CUDA_VISIBLE_DEVICES=0,1\n", 2, W, "Slurm sets CUDA_VISIBLE_DEVICES"),
    Bad(
        "KIT311",
        FOUR + "srun bash -c 'CUDA_VISIBLE_DEVICES=0 python t.py'\n",
        3,
        W,
        "Slurm sets CUDA_VISIBLE_DEVICES",
    ),
    Bad(
        "KIT311",
        HEAD + "#SBATCH --gpus-per-task=1\nsrun bash -c 'export CUDA_VISIBLE_DEVICES=$SLURM_LOCALID; x'\n",
        3,
        E,
        "Slurm sets",
    ),
    Bad(
        "KIT207", ONE_A_NODE + "srun torchrun --nnodes=4 --master-addr=$H t.py\n", 3, E, "no --node-rank: each of the 4"
    ),
    Bad("KIT304", FOUR + "MASTER_ADDR=$(hostname)\necho $MASTER_ADDR\nsrun python t.py\n", 3, W, "no program sees it"),
    Bad(
        "KIT304",
        FOUR + "MASTER_ADDR=n1\nsrun bash -c 'python t.py $MASTER_ADDR'\n",
        3,
        E,
        "in the tasks, $MASTER_ADDR expands to nothing",
    ),
    Bad(
        "KIT304",
        FOUR + "source e.sh\nMASTER_ADDR=n1\nsrun sh -c 'echo $MASTER_ADDR; ./t'\n",
        4,
        W,
        "expands to nothing",
    ),
    Bad("KIT304", FOUR + "MASTER_ADDR=n1\nsrun sh -c 'echo -e $MASTER_ADDR; ./t'\n", 3, E, "expands to nothing"),
    Bad("KIT107", HEAD + "srun python t.py \\\n# --a 1 \\\n# --b 2 \\\n  data\n", 3, E, "this comment ends"),
    Bad(
        "KIT301",
        FOUR + "if [ $X ]; then MASTER_ADDR=localhost; else MASTER_ADDR=127.0.0.1; fi\nsrun python t.py\n",
        3,
        E,
        "localhost is a different machine",
    ),
    Bad(
        "KIT301",
        FOUR + "if [ $X ]; then MASTER_ADDR=n1; fi\nexport MASTER_ADDR=localhost\nsrun python t.py\n",
        4,
        E,
        "localhost is a different machine",
    ),
    Bad("KIT202", ONE_A_NODE + "apptainer exec img nvidia-smi\npython t.py\n", 4, E, "the job asks for 4 nodes"),
    Bad("KIT202", ONE_A_NODE + "N=${1:-1}\nsrun -N $N -n $N python t.py\n", 4, W, "on 1 of the 4 nodes"),
    Bad("KIT207", ONE_A_NODE + "N=${N:-1}\nsrun torchrun --nnodes=$N t.py\n", 4, W, "expects one node"),
    Bad("KIT207", ONE_A_NODE + "export PET_RDZV_ID=3\nsrun torchrun t.py\n", 4, E, "expects one node"),
    Bad("KIT207", HEAD + "#SBATCH -N2\nsrun torchrun --nnodes=2 --node_rank=0 t.py\n", 3, E, "--node-rank=0 on each"),
    Bad(
        "KIT207",
        HEAD + "#SBATCH -N2\nR=0\nsrun accelerate launch --num_machines 2 --machine_rank $R t.py\n",
        4,
        E,
        "=0 on",
    ),
    Bad(
        "KIT208",
        HEAD + "#SBATCH --gpus-per-node=4\nN=${1:-4}\ntorchrun --nproc-per-node=$((2 * N)) t.py\n",
        4,
        W,
        "8 processes per node, but 4 GPUs",
    ),
    Bad(
        "KIT207",
        HEAD + "#SBATCH -N2 --array=0-1\nsrun torchrun --nnodes=4 --rdzv-endpoint=$H t.py\n",
        3,
        E,
        "waits for 4 nodes",
    ),
    Bad("KIT103", HEAD + "# SBATCH --ntasks=4\n#SBATCH --gres=gpu:4 -N2\n", 2, W, "no other line gives --ntasks"),
    Bad(
        "KIT208",
        HEAD + "#SBATCH --gpus-per-node=4\naccelerate launch --num_processes 8 t.py\n",
        3,
        E,
        "8 processes per node, but 4 GPUs",
    ),
    Bad(
        "KIT209",
        HEAD + "#SBATCH -N2\nsrun -c 8 python t.py --workers $SLURM_CPUS_PER_TASK\n",
        3,
        W,
        "does not give --cpus-per-task",
    ),
    Bad(
        "KIT209",
        HEAD + "#SBATCH -N2\nsrun bash -c 'python t.py --workers $SLURM_CPUS_PER_TASK'\n",
        3,
        W,
        "does not give --cpus-per-task",
    ),
    Bad("KIT210", ONE_A_NODE + "export WORLD_SIZE=6\nsrun python t.py\n", 3, E, "WORLD_SIZE=6, but srun starts 4"),
    Bad("KIT210", FOUR + "export WORLD_SIZE=${WORLD_SIZE:-1}\nsrun python t.py\n", 3, W, "WORLD_SIZE=1, but srun"),
    Bad("KIT202", ONE_A_NODE + "srun -n 1 python t.py\n", 3, E, "on 1 of the 4 nodes"),
    Bad(
        "KIT207",
        ONE_A_NODE + "srun torchrun --standalone --nproc-per-node=4 t.py\n",
        3,
        W,
        "each node trains a separate model",
    ),
    Bad("KIT207", ONE_A_NODE + "srun accelerate launch --num_machines 4 t.py\n", 3, E, "no --machine_rank"),
    Bad(
        "KIT210", FOUR + "export WORLD_SIZE=$SLURM_NNODES\nsrun python t.py\n", 3, E, "WORLD_SIZE=4, but srun starts 8"
    ),
    Bad("KIT117", HEAD + "#SBATCH -N2 -w n[1-4]\n", 2, E, "names 4 hosts, but --nodes=2"),
    Bad(
        "KIT211",
        HEAD + "#SBATCH -N2 --gpus=4\nip=$(srun --nodes=1 --ntasks=1 hostname -i)\n",
        3,
        E,
        "--gpus=4 of the job",
    ),
    Bad("KIT211", HEAD + "#SBATCH -N2 -G4\nsrun -N1 -n1 python t.py &\nwait\n", 3, E, "--gpus=4 of the job"),
    Bad("KIT401", HEAD + "srun python t.py\necho done\n", 2, E, "'echo' in line 3"),
    Bad("KIT401", HEAD + "srun python t.py\nrc=$?\ncp -r out /archive\nexit 0\n", 2, E, "'exit' in line 5"),
    Bad("KIT401", HEAD + "torchrun t.py > log\ndate >> log\nX=1\n", 2, E, "'X=' in line 4"),
    Bad("KIT401", HEAD + "srun python t.py || true\n", 2, W, "'|| true'"),
    Bad("KIT401", HEAD + "set -e\nsrun python t.py && echo fine\ndate\n", 3, E, "'date' in line 4"),
    Bad("KIT401", HEAD + "for i in 1 2; do srun python t.py; done\ndate\n", 2, W, "'date' in line 3"),
    Bad(
        "KIT119",
        HEAD + "#SBATCH --gres=gpu:2\n#SBATCH -N1 --gpus=4\nsrun python t.py\n",
        3,
        E,
        "--gres=gpu:2 is 2 nodes",
    ),
    Bad("KIT502", HEAD + "#SBATCH --export=ALL,GPUS=a,b\nsrun python t.py\n", 2, E, "'b' is no variable"),
    Bad("KIT402", HEAD + "srun python a.py &\nsrun python b.py &\nwait\n", 4, E, "wait without a process id"),
    Bad(
        "KIT401",
        HEAD + "srun python t.py &\npid=$!\nwait $pid\necho done\n",
        2,
        E,
        "'echo' in line 5, not the status of wait",
    ),
    Bad("KIT402", FOUR + "for h in $H; do ssh $h python t.py & done\nwait\n", 4, E, "wait without a process id"),
    Bad("KIT402", HEAD + "srun python a.py &\nsleep 5\nconda deactivate\n", 2, E, "without a wait"),
    Bad("KIT402", HEAD + "srun python a.py &\necho started\n", 2, E, "without a wait"),
    Bad("KIT403", HEAD + "srun python t.py | tee log\n", 2, E, "the status of tee"),
    Bad(
        "KIT136",
        HEAD + "#SBATCH -n 1\nR=$WORK/a/$SLURM_JOB_ID\npython t.py | tee $R/log\n",
        4,
        W,
        "nothing has created $WORK/a/",
    ),
    Bad(
        "KIT136", HEAD + "#SBATCH -n 1\ncp a.yaml runs/$SLURM_JOB_ID/\npython t.py\n", 3, W, "nothing has created runs/"
    ),
    Bad("KIT429", HEAD + 'f() { sbatch "$@"; }\na=$(f a.sh)\nsbatch -d afterok:$a b.sh\n', 4, E, "not a job id"),
    Bad("KIT401", HEAD + "python t.py\nscancel $SLURM_JOBID\necho end\n", 3, W, "ends as CANCELLED"),
    Bad("KIT208", GPUS + "#SBATCH -n 1\nsrun python t.py --launcher slurm\n", 4, W, "1 task per node, but 4 GPUs"),
    Bad("KIT403", HEAD + "set -e\npython train.py | grep -v x\npython b.py\n", 3, W, "line 4 runs after"),
    Bad("KIT403", HEAD + "set -e\nsrun python t.py 2>&1 | tee log\n", 3, E, "the status of tee"),
    Bad("KIT403", HEAD + "{ module load x; srun python t.py; } |& tee log\n", 2, E, "the status of tee"),
    Bad("KIT411", HEAD + "#SBATCH --signal=B:USR1@120\nsrun python t.py\n", 2, E, "has no trap"),
    Bad("KIT411", HEAD + "#SBATCH --signal=B:USR1@120\ntrap x TERM\nsrun python t.py\n", 2, E, "has no trap"),
    Bad("KIT411", HEAD + "#SBATCH --signal=B:USR1@120\nsource common.sh\nsrun python t.py\n", 2, W, "has no trap"),
    Bad(
        "KIT411",
        HEAD + "#SBATCH --signal=B:USR1@120\ntrap x SIGUSR1\nsrun python t.py\n",
        4,
        W,
        "only after this line has ended",
    ),
    Bad(
        "KIT412",
        HEAD + "#SBATCH --signal=USR1@120\ntrap x USR1\nsrun python t.py & pid=$!; wait $pid\n",
        3,
        W,
        "never runs",
    ),
    Bad("KIT501", HEAD + "export WANDB_API_KEY=0123456789abcdef\n", 2, E, "WANDB_API_KEY is a secret"),
    Bad("KIT501", HEAD + "DB_PASSWORD=hunter2 srun python t.py\n", 2, E, "DB_PASSWORD is a secret"),
    Bad("KIT501", HEAD + "srun --export=ALL,HF_TOKEN=abcd1234 python t.py\n", 2, E, "HF_TOKEN is a secret"),
    Bad("KIT501", HEAD + "export DBPASSWORD=hunter2\n", 2, E, "DBPASSWORD is a secret"),
    Bad("KIT501", HEAD + "export GITHUB_PAT=ab12cd34ef56ab78\n", 2, E, "GITHUB_PAT is a secret"),
    Bad("KIT501", HEAD + f"huggingface-cli login --token hf_{'a1' * 17}\n", 2, E, "is a secret"),
    Bad("KIT109", HEAD + "conda activate pt\nsrun python t.py\n", 2, W, "needs a set-up"),
    Bad("KIT109", HEAD + "conda init bash\nconda activate pt\n", 3, W, "conda activate"),
    Bad("KIT109", HEAD + "module load conda\nconda shell.bash activate pt\n", 3, W, "prints shell code"),
    Bad("KIT109", HEAD + "mamba activate pt\n", 2, W, "mamba activate"),
    Bad("KIT109", HEAD + "conda shell.bash hook\nconda activate pt\n", 2, W, "prints shell code"),
    Bad("KIT109", HEAD + "conda shell.bash hook | grep -q .\nconda activate pt\n", 3, W, "needs a set-up"),
    Bad("KIT109", HEAD + "bash <<'X'\nconda activate pt\nX\n", 3, W, "needs a set-up"),
    Bad("KIT110", "#!/bin/sh \u2013l\nls\n", 1, E, "is not -"),
    Bad("KIT110", HEAD + "srun \u2013n 8 python t.py\n", 2, E, "is not -"),
    Bad("KIT110", HEAD + "srun python t.py \\\n  \u2014\u2014epochs 3\n", 3, E, "is not -"),
    Bad("KIT110", HEAD + "export A=1\nsrun bash -c \u201cpython t.py\u201d\n", 3, E, 'is not "'),
    Bad("KIT103", HEAD + "#SBATCH -\u2014mem=16G\n", 2, E, "does not take"),
    Bad("KIT103", HEAD + "#SBATCH \u2013-nodes=2\n", 2, E, "is no option"),
    Bad("KIT202", ONE_A_NODE + "export DLTS_HOSTFILE=hosts\npython deepy.py\n", 4, W, "4 nodes"),
    Bad("KIT209", HEAD + "#SBATCH -N1\nmpirun -np $SLURM_NTASKS ./a.out\n", 3, W, "$SLURM_NTASKS is not set"),
    Bad("KIT102", "#!/bin/bash\r#SBATCH -N2\rls\r", 1, E, "old Macs"),
    Bad("KIT110", HEAD + "cp \u2013r a b\n", 2, E, "is not -"),
    Bad("KIT110", HEAD + "grep \u201cx\u201d y\n", 2, W, 'is not "'),
    Bad("KIT110", HEAD + "notify \u201cdone\u201d\n", 2, W, 'is not "'),
    Bad("KIT110", HEAD + 'run() { srun "$@"; }\nrun \u2013n 2 python t.py\n', 3, W, "is not -"),
    Bad("KIT120", HEAD + "MASTER_ADDR = $(hostname)\nsrun python t.py\n", 2, E, "MASTER_ADDR is not set"),
    Bad("KIT120", HEAD + "lr = 0.1\nsrun python t.py --lr $lr\n", 2, E, "lr is not set"),
    Bad("KIT120", HEAD + "export WORLD_SIZE =8\n", 2, E, "WORLD_SIZE is not set"),
    Bad("KIT212", FOUR + "cd $SLURM_TMPDIR\ncp -r ~/ws/ ./\ncd ws\nsrun python t.py\n", 4, W, "$SLURM_TMPDIR"),
    Bad("KIT212", FOUR + "cd /tmp\ngit clone $R code\ncd code\nsrun python t.py\n", 4, W, "/tmp is local to the first"),
    Bad(
        "KIT302", HEAD + "export MASTER_PORT=29500\nsrun torchrun --rdzv-endpoint=$H:$MASTER_PORT t.py\n", 2, W, "29500"
    ),
    Bad("KIT119", FOUR + "#SBATCH --gpus=8 --gpus-per-task=4\n", 3, E, "is 2 tasks, but the job has 8"),
    Bad("KIT119", HEAD + "#SBATCH -N2 -G 8 --gpus-per-node=a100:2\n", 2, E, "is 4 nodes, but the job has 2"),
    Bad("KIT119", HEAD + "#SBATCH --gpus=6 --gpus-per-task=4\n", 2, E, "not a multiple"),
    Bad("KIT119", HEAD + "#SBATCH -N4 --gpus=2\n", 2, E, "fewer than one on each of 4 nodes"),
    Bad("KIT118", HEAD + "#SBATCH --array=0-7\n#SBATCH --output=%x.log\n", 3, W, "write to %x.log"),
    Bad("KIT118", HEAD + "#SBATCH -a 1,3 -o a.log -e err.%A\n", 2, W, "write to a.log"),
    Bad(
        "KIT201", HEAD + "#SBATCH --nodes=2\n#SBATCH --ntasks=1\n", 3, E, "2 nodes, but --ntasks=1: the job gets only 1"
    ),
    Bad("KIT204", FOUR + "export JAX_PROCESS_INDEX=$SLURM_PROCID\nsrun python t.py\n", 3, E, "$SLURM_PROCID"),
    Bad("KIT204", FOUR + "export CUDA_VISIBLE_DEVICES=$SLURM_LOCALID\nsrun python t.py\n", 3, E, "$SLURM_LOCALID"),
    Bad("KIT206", HEAD + "srun --environment=x.toml --nodse=2 python t.py --module=a\n", 2, E, "srun does not take"),
    Bad("KIT206", HEAD + 'srun --ntask=2 --mem="$M" python t.py $ARGS\n', 2, E, "srun does not take"),
    Bad(
        "KIT207",
        HEAD + "#SBATCH -N2\nfor h in $H; do\nsrun -N1 -n1 -w $h torchrun --nnodes=8 --node-rank=$i t.py &\ndone\n",
        4,
        E,
        "waits for 8 nodes, but the job has 2",
    ),
    Bad("KIT209", FOUR + "export MASTER_ADDR=$SLURM_LAUNCH_NODE_IPADDR\n", 3, W, "srun sets it for its tasks"),
    Bad(
        "KIT212",
        ONE_A_NODE + "tar -xf d.tar -C $SLURM_TMPDIR\nsrun python t.py --data ${SLURM_TMPDIR}/d\n",
        3,
        W,
        "$SLURM_TMPDIR is local to the first node",
    ),
    Bad("KIT212", FOUR + "python -m venv /tmp/env\nsource /tmp/env/bin/activate\nsrun python t.py\n", 3, W, "/tmp/env"),
    Bad("KIT212", FOUR + "cp -r data /dev/shm/d\nexport DATA=/dev/shm/d\nsrun python t.py\n", 3, W, "/dev/shm/d"),
    Bad("KIT212", FOUR + "pushd /tmp\ntar -xf a.tar\nsrun python t.py\n", 4, W, "/tmp is local to the first"),
    Bad("KIT212", FOUR + "srun mkdir -p /tmp/d\ncp a /tmp/d\nsrun bash -c 'python t.py /tmp/d'\n", 4, W, "/tmp/d is"),
    Bad("KIT212", FOUR + "D=/tmp/d\nexport D\ntar -xf d.tar -C $D\nsrun python t.py\n", 5, W, "/tmp/d is"),
    Bad("KIT212", FOUR + "run() { srun python t.py /tmp/d; }\ntar -xf d.tar -C /tmp/d\nrun\n", 4, W, "/tmp/d is"),
    Bad("KIT212", FOUR + "cp a /tmp/d\nfor n in $N; do ssh $n python t.py /tmp/d & done; wait\n", 3, W, "/tmp/d is"),
    Bad("KIT212", FOUR + "cd /tmp\ncd a\nunzip d.zip\nsrun python t.py\n", 5, W, "/tmp is local to the first"),
    Bad("KIT213", HEAD + "#SBATCH -N2 -c2\nmpirun -n 8 python t.py\n", 3, W, "starts 8 processes, but the job has 2"),
    Bad("KIT301", ONE_A_NODE + "srun torchrun --nnodes=4 --rdzv-endpoint=localhost:$P t.py\n", 3, E, "localhost is"),
    Bad("KIT302", HEAD + "export JAX_COORDINATOR_ADDRESS=$H:10001\n", 2, W, "port 10001 is fixed"),
    Bad("KIT303", HEAD + "u=tcp://\nu+=${L:0:9}\nu+=:40000\nsrun python t.py --dist_url $u\n", 4, W, "port 40000"),
    Bad("KIT305", FOUR + "export MASTER_ADDR=$(echo $SLURM_JOB_NODELIST | cut -d, -f1)\n", 3, E, "no host name"),
    Bad("KIT305", FOUR + "MASTER_ADDR=${SLURM_NODELIST%%,*}\n", 3, E, "no host name"),
    Bad("KIT305", FOUR + 'head_node="$SLURM_NODELIST"\n', 3, E, "no host name"),
    Bad("KIT305", FOUR + "master_node=${SLURM_NODELIST:0:9}${SLURM_NODELIST:10:4}\n", 3, W, "by columns"),
    Bad("KIT305", FOUR + "MASTER_ADDR=$(echo $SLURM_NODELIST | cut -d, -f1 | tr -d '[')\n", 3, W, "no host name"),
    Bad("KIT305", FOUR + "SLURM_NODELIST=$SLURM_JOB_NODELIST\nHEAD=${SLURM_NODELIST%%,*}\n", 4, E, "no host name"),
    Bad("KIT306", FOUR + "srun bash -c 'MASTER_PORT=$((10000+RANDOM)) python t.py'\n", 3, E, "so that all differ"),
    Bad(
        "KIT306",
        ONE_A_NODE + "srun bash -c 'torchrun --nnodes=4 --rdzv-id=$RANDOM t.py'\n",
        3,
        E,
        "each task draws",
    ),
    Bad("KIT306", FOUR + 'srun bash -c "MASTER_PORT=\\$RANDOM python t.py"\n', 3, E, "each task draws"),
    Bad("KIT306", FOUR + "srun bash -c 'P=$RANDOM; MASTER_PORT=$P python t.py'\n", 3, E, "each task draws"),
    Bad(
        "KIT306",
        FOUR + "srun bash <<'X'\nexport MASTER_PORT=$(shuf -i 1-9 -n1)\npython t.py\nX\n",
        4,
        E,
        "each task draws",
    ),
    Bad("KIT401", HEAD + "uv run t.py\necho done\n", 2, E, "the status of 'echo'"),
    Bad("KIT402", HEAD + "python t.py 1 &\npython t.py 2\n", 2, W, "the job ends when t.py in line 3 has ended"),
    Bad("KIT402", HEAD + "python t.py 1 & P=$!\npython t.py 2\nkill -0 $P && echo on\n", 2, W, "the job ends when"),
    Bad("KIT118", HEAD + "#SBATCH --array=0-4:4 --output=%x.log\n", 2, W, "write to %x.log"),
    Bad("KIT412", HEAD + "#SBATCH --signal=USR1@90\npython t.py\n", 2, W, "no program gets it"),
    Bad("KIT412", HEAD + "#SBATCH --signal=USR1@90\nmodule load a\ntorchrun t.py\n", 2, W, "no program gets it"),
]

GOOD = [
    ("KIT138", HEAD + "n=0\nls | while read f; do n=$((n + 1)); python t.py $n; done\nn=5\necho $n\n"),
    ("KIT129", HEAD + "srun python t.py | tee log\nexit ${PIPESTATUS[0]}\n"),
    ("KIT129", HEAD + 'MODE=full\npython t.py "$MODEL_MODE"\n'),
    ("KIT223", GPUS + "run() { srun -n1 python t.py --seed $1 & }\nrun 1\nwait\nrun 2\nwait\n"),
    ("KIT401", HEAD + "for f in a b; do python t.py $f || echo $f >> failed; done\n"),
    ("KIT415", HEAD + "[ -f c/latest.pt ] && R=--resume\npython t.py --ckpt-file c/latest.pt $R\n"),
    ("KIT118", HEAD + "# sbatch --array=0-3 t.sbatch\n#SBATCH -o log_%A_%a.txt\nsrun python t.py\n"),
    ("KIT133", HEAD + "#SBATCH -c 8\napptainer exec --nv i.sif python convert.py\n"),
    ("KIT251", HEAD + "#SBATCH -a 1-2\nL=(- a b)\npython t.py --model ${L[SLURM_ARRAY_TASK_ID]}\n"),
    (
        "KIT413",
        HEAD + "#SBATCH --requeue --open-mode=append\nn=${SLURM_RESTART_COUNT:-0}\nsrun python t.py --resume > log$n\n",
    ),
    (
        "KIT506",
        GPUS + "apptainer exec -B $PWD:/w i.sif python convert.py\napptainer exec --nv -B $PWD:/w i.sif python t.py\n",
    ),
    (
        "KIT316",
        ONE_A_NODE
        + "# Ethernet alone here\nexport NCCL_IB_DISABLE=1\nexport NCCL_SOCKET_IFNAME=eth0\nsrun python t.py\n",
    ),
    (
        "KIT302",
        HEAD
        + "#SBATCH -N1 -c64\n#SBATCH hetjob\n#SBATCH -N2 --ntasks-per-node=1 --gpus-per-node=4\n"
        + "srun --het-group=1 torchrun --nnodes=2 --rdzv-endpoint=$H:17000 t.py\n",
    ),
    ("KIT129", HEAD + "export MEMORY=4G\nsbatch --mem=$MEM next.sh\n"),
    ("KIT125", HEAD + "module load python/3.11\nsource v/bin/activate\npython t.py\n"),
    ("KIT414", HEAD + "#SBATCH -t 60 --signal=USR1@60\n# a checkpoint every 20 min\nsrun python t.py\n"),
    (
        "KIT314",
        HEAD
        + "#SBATCH -n4 --gpus-per-task=1\ncat > a.py <<'E'\nimport os, torch\ni = int(os.environ['SLURM_LOCALID'])\n"
        + "torch.cuda.set_device(i % torch.cuda.device_count())\nE\nsrun python a.py\n",
    ),
    ("KIT253", HEAD + "#SBATCH -a 0-1\nL=(1 2)\npython t.py --lr ${L[SLURM_ARRAY_TASK_ID]} --logdir runs\n"),
    ("KIT402", HEAD + "set -e\ntrap wait EXIT\npython t.py\nrclone copy out r:out &\necho done\n"),
    ("KIT416", HEAD + "#SBATCH --requeue\nrm -rf /p/logs\npython t.py --log-dir /p/logs --resume\n"),
    ("KIT107", HEAD + "srun bash -c '\n  # do not\n  python t.py\n'\necho 'unfinished\n"),
    ("KIT207", FOUR.replace("2\n", "1\n") + "srun bash -c 'torchrun --standalone t.py --seed $SLURM_NODEID'\n"),
    ("KIT216", FOUR + "srun python t.py --tensor-model-parallel-size 2 --micro-batch-size 4 --global-batch-size 64\n"),
    ("KIT222", FOUR + "[ -f model.pt ] || srun python train.py --out model.pt\n"),
    ("KIT222", FOUR + "[ -d shards ] || srun python make_shards.py --rank $SLURM_PROCID --out shards\n"),
    ("KIT228", HEAD + "M=$(date +%m)\npython t.py --month $((10#$M - 1)) --name $M\n"),
    ("KIT251", HEAD + "#SBATCH -a 0-5\nA=(1 2 3)\nB=(4 5)\ni=$SLURM_ARRAY_TASK_ID\npython t.py ${A[i%3]} ${B[i/3]}\n"),
    (
        "KIT251",
        HEAD + "#SBATCH -a 0-5\nA=(1 2 3)\nB=(4 5 6)\ni=$SLURM_ARRAY_TASK_ID\npython t.py ${A[i%3]} ${B[i%3]}\n",
    ),
    (
        "KIT253",
        HEAD + "#SBATCH -a 0-1\nF=c/$SLURM_ARRAY_TASK_ID.ini\necho s=$SLURM_ARRAY_TASK_ID > $F\npython t.py $F\n",
    ),
    ("KIT305", FOUR + 'H=$(scontrol show hostnames "$SLURM_NODELIST")\nA=($H)\nsrun -w ${A[0]} python t.py\n'),
    ("KIT402", HEAD + "python a.py & P=$!\nwait $P || exit\nrsync -a out/ p/ &\nwait\n"),
    ("KIT402", HEAD + "python a.py & P=$!\nwait $P; rc=$?\nkill %1\nwait || true\nexit $rc\n"),
    ("KIT403", HEAD + "python t.py | tee log\nrc=${PIPESTATUS[0]}\n[ $rc = 0 ] && python eval.py\nexit $rc\n"),
    ("KIT134", HEAD + "cat >c.yaml <<'E'\nOUT: /p\ndir: ${OUT}/x\nE\nOUT=/p python t.py c.yaml\n"),
    ("KIT137", HEAD + '[ "$1" -gt 0 ] >/dev/null && R=--resume\n[ "a > 1" = "$2" ] || exit 1\npython t.py $R\n'),
    ("KIT508", HEAD + "jupyter lab --ip=0.0.0.0 --ServerApp.token= --ServerApp.password=$HASH\n"),
    ("KIT508", HEAD + "jupyter lab --ip=127.0.0.1 --ServerApp.token=\n"),
    ("KIT425", FOUR + "srun bash -c 'python t.py && [ $SLURM_PROCID = 0 ] && sbatch b.sh'\n"),
    ("KIT425", FOUR + "srun bash -c 'if [ $SLURM_PROCID = 0 ]; then\n python t.py\n sbatch b.sh\nfi'\n"),
    ("KIT501", HEAD + "export HF_TOKEN=$(<~/.hf)\nset -x\npython t.py --keys $N_TOKENS\n"),
    ("KIT501", HEAD + "set -x\nset +x\nexport HF_TOKEN=$(<~/.hf)\npython t.py\n"),
    ("KIT312", HEAD + "case $1 in debug) export CUDA_LAUNCH_BLOCKING=1 ;; esac\npython t.py\n"),
    ("KIT217", HEAD + "#SBATCH -N1 -n 6\nexport OMP_NUM_THREADS=6\npython t.py\n"),
    ("KIT217", HEAD + "#SBATCH -N1 -n 8 --gpus=2\nOMP_NUM_THREADS=4 torchrun --nproc-per-node=2 t.py\n"),
    ("KIT217", GPUS2 + "export OMP_NUM_THREADS=7\nsrun --cpu-bind=mask_cpu:fe,fe00 python t.py\n"),
    ("KIT416", HEAD + "D=/l/$USER\ntrap 'rm -rf $D' EXIT\npython t.py --save-dir $D/ckpt\ncp -r $D/ckpt /p/\n"),
    ("KIT223", GPUS + "#SBATCH -c 16\nsrun -c8 --gpus=0 nvidia-smi -l 5 &\nsrun -c8 --gpus=4 python t.py\n"),
    ("KIT223", FOUR + "for i in 1 2; do\n srun -n8 -c1 python t.py &\n follow $!\ndone\n"),
    ("KIT136", HEAD + "#SBATCH -n 1\ncd /scratch/$USER/$SLURM_JOB_ID\npython t.py\n"),
    ("KIT136", HEAD + "#SBATCH -n 1\nf() { mkdir -p $1; }\nf runs/$SLURM_JOB_ID\ncd runs/$SLURM_JOB_ID\npython t.py\n"),
    ("KIT136", HEAD + "python t.py > logs/a\ncd b\nmkdir -p logs\npython u.py > logs/b\n"),
    ("KIT136", HEAD + "#SBATCH -n 1\npython prepare.py\ncd runs/$SLURM_JOB_ID\npython t.py\n"),
    ("KIT429", HEAD + 'O="--parsable -A p"\na=$(sbatch $O a.sh)\nsbatch -d afterok:$a b.sh\n'),
    ("KIT429", HEAD + "a=$(sbatch a.sh)\nsbatch -d afterok:${a##* } b.sh\n"),
    ("KIT429", HEAD + "a=$(sbatch a.sh | cut -d' ' -f4)\nsbatch -d afterok:$a b.sh\n"),
    ("KIT403", HEAD + "set -e\nsrun hostname | tee l\npython b.py | tee l\npython c.py\n"),
    ("KIT123", GPUS + "#SBATCH --mem-per-gpu=240G\npython t.py\n"),
    ("KIT123", HEAD + "#SBATCH -p bigmem --mem=18T\npython t.py\n"),
    ("KIT208", HEAD + "#SBATCH -N 2 --ntasks-per-node=2 --gpus-per-node=4\nsrun python t.py\n"),
    ("KIT209", HEAD + "#SBATCH -n 1\necho $SLURM_ARRAY_TASK_ID\npython t.py\n"),
    ("KIT209", HEAD + "set -u\nif ((${SLURM_RESTART_COUNT:-0})); then echo $SLURM_RESTART_COUNT; fi\npython t.py\n"),
    ("KIT209", HEAD + "#SBATCH -n 1\nT=$SLURM_ARRAY_TASK_ID\nT=${T:-1}\npython t.py $T\n"),
    ("KIT209", HEAD + "#SBATCH -n 1\nlog() { echo $1; }\nlog $SLURM_ARRAY_TASK_ID\npython t.py\n"),
    ("KIT122", HEAD + "#SBATCH --time=8:00\npython train.py --max-steps 20\n"),
    ("KIT253", HEAD + "#SBATCH -a 0-1\nL=(a b)\npython train.py --config ${L[SLURM_ARRAY_TASK_ID]} --output-dir o\n"),
    ("KIT122", HEAD + "#SBATCH --time=8:00\npython export_onnx.py\n"),
    ("KIT253", HEAD + "#SBATCH -a 0-1\nL=(a b)\npython t.py --video ${L[SLURM_ARRAY_TASK_ID]} --out-dir o\n"),
    ("KIT413", GPUS + "#SBATCH --requeue\n[ -s $1 ] && exit\npython t.py --out $1\n"),
    ("KIT416", GPUS + "#SBATCH --requeue\nfind /a/b -name '*.pt.tmp' -delete\npython t.py --ckpt-dir /a/b\n"),
    ("KIT416", HEAD + 'python t.py --out /a/o\nfor f in /a/o/*.pt; do cp "$f" /p/; done\nrm -rf /a/o\n'),
    ("KIT416", HEAD + 'python t.py --out /a/o\nB=$(ls -t /a/o | head -n 1)\ncp "$B" /p/\nrm -rf /a/o\n'),
    ("KIT416", HEAD + 'python t.py --out /a/o\ncp "$(ls -t /a/o/*.pt | head -n 1)" /p/\nrm -rf /a/o\n'),
    ("KIT416", HEAD + "python t.py --out /a/o/r\ncp -r /a/o /p/\nrm -rf /a/o/r\n"),
    ("KIT416", HEAD + "python t.py --out /a/o\ncp -r /a/o/r /a/o-final\nrm -rf /a/o\n"),
    ("KIT428", HEAD + 'O=/tmp/o\npython t.py --out $O\nfor f in "$O"/*.pt; do cp "$f" ~/; done\n'),
    ("KIT428", HEAD + 'O=/tmp/o\npython t.py --out $O\nB=$(ls -t $O/*.pt | head -n 1)\ncp "$B" ~/\n'),
    ("KIT428", HEAD + "f() { cp -r $1 ~; }\ntrap 'f $TMPDIR/o' EXIT\npython t.py --out $TMPDIR/o\n"),
    ("KIT225", FOUR + 'f() { srun -n 1 ray start "${@:2}" --block & }\nf h --head\nf i --address=h:1\nwait\n'),
    ("KIT304", GPUS + 'H=h\nsrun -n 1 python t.py --addr "$(head -n 1 "$H")"\n'),
    ("KIT125", HEAD + "module load cuda\n(module purge; ffmpeg -i a b)\npython t.py\n"),
    ("KIT402", HEAD + "go() { python t.py; }\ngo & p=$!\nwait $p\n"),
    ("KIT221", GPUS + "f() { srun --exact -n 1 python t.py; }\nfor i in 1 2; do f & done\nwait\n"),
    ("KIT205", HEAD + "# since Slurm 22.05, srun needs -c\n#SBATCH -n 2 -c 4\nsrun -c 4 python t.py\n"),
    ("KIT406", HEAD + "set -e\ni=1\n((i++))\npython t.py\n"),
    ("KIT135", HEAD + "PATH=/usr/bin:/bin\npython t.py\n"),
    ("KIT209", HEAD + "#SBATCH -n 1\n# submit with --array=0-3\npython t.py $SLURM_ARRAY_TASK_ID\n"),
    ("KIT207", ONE_A_NODE + "srun composer -n 8 --world_size 32 --node_rank $R t.py\n"),
    ("KIT428", HEAD + "trap 'rm -rf $TMPDIR/o' EXIT\npython t.py --out $TMPDIR/o\ncp -r $TMPDIR/o .\n"),
    ("KIT115", HEAD + "#SBATCH -J 1g.10gb --gpus=2\ntorchrun --nproc-per-node=2 t.py\n"),
    ("KIT506", GPUS + "podman run --device nvidia.com/gpu=all image python t.py\n"),
    ("KIT222", GPUS2 + "srun --ntasks-per-node=1 -n 2 tar xf d.tar -C /tmp\nsrun python t.py\n"),
    ("KIT133", HEAD + "#SBATCH -C gpu -N 2 --ntasks-per-node=1\nsrun python t.py --device cuda\n"),
    ("KIT217", GPUS2 + "export OMP_NUM_THREADS=$((SLURM_CPUS_ON_NODE / 4))\nsrun python t.py\n"),
    ("KIT428", HEAD + "cd $TMPDIR\npython t.py --output_dir results\ncp -r results ~/results\n"),
    ("KIT133", HEAD + "#SBATCH -p gpu --exclusive -n 1\npython t.py\n"),
    ("KIT133", HEAD + "#SBATCH -p gpu -n 1\npython t.py --device cpu\n"),
    ("KIT134", HEAD + "A=1\ncat > x.yaml <<'E'\na: ${A}\nb: $B\nE\npython t.py\n"),
    ("KIT134", HEAD + "A=1\ncat > x.sh <<'E'\necho $A\nE\n"),
    ("KIT228", FOUR + "N=$((${SLURM_TASKS_PER_NODE%%(*} * SLURM_NNODES))\nsrun python t.py\n"),
    ("KIT228", HEAD + "#SBATCH -N 1\nN=$((SLURM_TASKS_PER_NODE * 2))\n"),
    ("KIT302", HEAD + "#SBATCH -N 3 --gpus-per-node=6 --array=1-4%1\nexport MASTER_PORT=4567\nsrun python t.py\n"),
    ("KIT302", HEAD + "#SBATCH -N 32\nexport MASTER_PORT=3442\nsrun -n 256 python t.py\n"),
    ("KIT220", HEAD + "#SBATCH -N 32\nsrun -n 256 -c 7 python t.py\n"),
    (
        "KIT208",
        GPUS2 + "export NP=8\nsrun -n 2 bash -c 'accelerate launch --num_machines $N --num_processes $NP t.py'\n",
    ),
    ("KIT415", HEAD + "#SBATCH --requeue --signal=USR1@90\nsrun python t.py --trainer.devices 4\n"),
    ("KIT417", HEAD + 'again() { sbatch --export=ALL,N=$((N+1)) "$0"; }\ntrap again USR1\npython t.py &\nwait\n'),
    ("KIT417", HEAD + 'if [ -z "$SLURM_JOB_ID" ]; then sbatch "$0"; exit; fi\npython t.py\n'),
    ("KIT426", GPUS + 'python t.py &\nwhile squeue -h -j "$A" | grep -q .; do sleep 9; done\nsbatch b.sbatch\nwait\n'),
    ("KIT427", HEAD + "trap 'rm x' EXIT\nexec > log 2>&1\npython t.py\n"),
    ("KIT427", HEAD + "trap 'rm x' EXIT\ntrap - EXIT\nexec python t.py\n"),
    ("KIT428", HEAD + 'save() { cp -r "$TMPDIR/o" .; }\ntrap save EXIT\npython t.py --out "$TMPDIR/o"\n'),
    ("KIT428", HEAD + 'cp base.pt "$TMPDIR"\npython t.py --checkpoint "$TMPDIR/base.pt" --root /tmp/data --out out\n'),
    ("KIT501", HEAD + "python t.py --max-tokens $N --tokenizer $T\n"),
    ("KIT506", GPUS + "srun singularity exec /scratch/pytorch_rocm.sif python t.py\n"),
    ("KIT253", HEAD + "#SBATCH -a 0-3\npython t.py --save-dir ckpt --name run$SLURM_ARRAY_TASK_ID\n"),
    (
        "KIT402",
        HEAD
        + "p=()\nfor s in 1 2; do\n  srun python t.py &\n  p+=($!)\ndone\nfor x in ${p[@]}; do wait $x || exit; done\n",
    ),
    ("KIT402", HEAD + "(srun python t.py || touch failed) &\nwait\n[ ! -e failed ]\n"),
    ("KIT401", HEAD + "for i in 1 2; do srun python t.py && exit 0; done\nexit 1\n"),
    ("KIT401", HEAD + "for i in 1 2; do\n  srun python t.py &\n  wait -n\ndone\nwait\n"),
    ("KIT503", HEAD + "cd $W || exit\nrm -rf *\n"),
    ("KIT122", HEAD + "#SBATCH --time=0-12\n"),
    ("KIT109", HEAD + "module load anaconda\nconda activate x\n"),
    ("KIT132", HEAD + "#SBATCH -p long -N 50 -t 2-0\n#SBATCH --array=0-500:5%300\n"),
    ("KIT208", GPUS + "deepspeed --include localhost:0,1,2,3 t.py\n"),
    ("KIT225", GPUS + "ray start --head --num-gpus=0\npython t.py\n"),
    ("KIT226", HEAD + "#SBATCH -N2 --ntasks-per-node=1 --gpus-per-node=4\nhorovodrun -np 8 -H $H python t.py\n"),
    (
        "KIT251",
        HEAD + "#SBATCH -a 0-5\nA=(1 2)\nB=(4 5 6)\nI=$SLURM_ARRAY_TASK_ID\npython t.py ${A[I % 2]} ${B[I % 3]}\n",
    ),
    ("KIT251", HEAD + "#SBATCH -a 0-2\ncase $SLURM_ARRAY_TASK_ID in\n0) X=1 ;;\n[12]) X=2 ;;\nesac\npython t.py $X\n"),
    (
        "KIT302",
        HEAD + "#SBATCH --gpus-per-node=8\n#SBATCH hetjob\n#SBATCH --gpus-per-node=4\nexport MASTER_PORT=29500\n",
    ),
    ("KIT307", HEAD + "IP=$(hostname -I)\nIP=${IP%% *}\nsrun torchrun --rdzv-endpoint=$IP:29500 t.py\n"),
    ("KIT311", GPUS + "export CUDA_VISIBLE_DEVICES=0,1,2,3\nsrun python t.py\n"),
    ("KIT311", GPUS + "for i in 0 1 2 3; do CUDA_VISIBLE_DEVICES=$i python t.py & done\nwait\n"),
    ("KIT311", GPUS2 + "srun bash -c 'CUDA_VISIBLE_DEVICES=$SLURM_LOCALID python t.py'\n"),
    ("KIT312", HEAD + "#SBATCH -t 0:30:00\nexport TORCH_DISTRIBUTED_DEBUG=DETAIL\nsrun python t.py\n"),
    ("KIT312", HEAD + "# the hang of Monday\nexport CUDA_LAUNCH_BLOCKING=1\nsrun python t.py\n"),
    ("KIT313", FOUR + "read -ra ADDR <<<$X\nhead_node_ip=${ADDR[1]}\nsrun python t.py\n"),
    ("KIT401", HEAD + "R=$(srun python t.py) || exit\necho $R\n"),
    ("KIT401", HEAD + "IP=$(srun -N1 -n1 -w $H python ip.py)\nsrun python t.py $IP\n"),
    ("KIT401", HEAD + "N=$(srun --ntasks=1 hostname | wc -l)\nsrun python t.py $N\n"),
    ("KIT415", HEAD + "#SBATCH --requeue\nsrun python t.py --ckpt-dir /tmp/c --resume auto\nrsync -a /tmp/c /s/\n"),
    (
        "KIT416",
        HEAD + "D=/s/x\nclean() { cp -r $D /home/ && rm -rf $D; }\ntrap clean EXIT\nsrun python t.py --save-dir $D\n",
    ),
    ("KIT417", HEAD + "sbatch --dependency=afternotok:$SLURM_JOB_ID $0\nsrun python t.py\n"),
    ("KIT501", HEAD + "export DB_PASSWORD=/run/secrets/db_password\n"),
    ("KIT503", HEAD + "set -u\nrm -rf $OLD_DIR/*\n"),
    ("KIT505", HEAD + "apptainer exec -B /scratch i.sif python t.py --data /scratch/me\n"),
    ("KIT505", HEAD + "apptainer exec -B $DATA i.sif python t.py --data /scratch/me\n"),
    ("KIT505", HEAD + "export APPTAINER_BIND=/scratch\napptainer exec i.sif python t.py --data /scratch/me\n"),
    ("KIT506", GPUS + "singularity exec -B /scratch $SIF python t.py\n"),
    ("KIT122", HEAD + "#SBATCH --time=24:00:00\n"),
    ("KIT122", HEAD + "#SBATCH --time=30\n"),
    ("KIT123", HEAD + "#SBATCH --mem=0\n"),
    ("KIT123", HEAD + "#SBATCH --mem=16000\nsrun python t.py\n"),
    ("KIT123", HEAD + "#SBATCH --mem=100\nhostname\n"),
    ("KIT124", HEAD + "set -eu\nset +u\nconda activate x\nset -u\n"),
    ("KIT124", HEAD + "set -e\nconda activate x\n"),
    ("KIT217", HEAD + "#SBATCH -c 4\nexport OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\nsrun python t.py\n"),
    ("KIT217", HEAD + "export OMP_NUM_THREADS=16\nsrun python t.py\n"),
    ("KIT312", HEAD + "export NCCL_DEBUG=WARN CUDA_LAUNCH_BLOCKING=${DEBUG:-0}\nsrun python t.py\n"),
    ("KIT413", HEAD + "#SBATCH --requeue --open-mode=append\nsrun python t.py\n"),
    ("KIT413", HEAD + "#SBATCH --no-requeue\nsrun python t.py\n"),
    ("KIT414", HEAD + "#SBATCH -t 60 --signal=USR1@600\nsrun python t.py\n"),
    ("KIT503", HEAD + "#SBATCH --exclusive\npkill python\nrm -rf /tmp/*\n"),
    ("KIT503", HEAD + "pkill -P $$\nrm -rf /tmp/$SLURM_JOB_ID\n"),
    ("KIT121", "#!/bin/sh\nif [ $x = 1 ]; then . ./env.sh; fi\ncat <<E\nsource x\nE\n"),
    ("KIT121", HEAD + "source env.sh\n"),
    ("KIT207", HEAD + "#SBATCH -N2-4\nsrun torchrun --nnodes=$SLURM_NNODES --rdzv-endpoint=$H t.py\n"),
    ("KIT207", HEAD + "#SBATCH -N2-4\nsrun torchrun --nnodes=1:4 --rdzv-endpoint=$H t.py\n"),
    (
        "KIT207",
        HEAD
        + "#SBATCH -N2 --ntasks-per-node=1\n"
        + """srun bash -c 'if [ "$SLURM_NODEID" = 0 ]; then torchrun --nnodes=2 --node_rank=0 --master_addr=$0 t.py; """
        + """else torchrun --nnodes=2 --node_rank=1 --master_addr=$0 t.py; fi' "$H"\n""",
    ),
    (
        "KIT207",
        HEAD
        + "#SBATCH -N2 --ntasks-per-node=1\n"
        + "srun bash -c '[ $SLURM_NODEID = 0 ] && torchrun --nnodes=2 --node_rank=0 --master_addr=$0 t.py' $H\n",
    ),
    ("KIT214", FOUR + "srun -N1 -n1 mpirun -n 8 ./solve\n"),
    ("KIT214", FOUR + "mpirun -n 8 ./solve\n"),
    ("KIT214", FOUR + "srun python t.py --launcher mpirun\n"),
    ("KIT214", FOUR + "srun bash -c 'mpirun --version; python t.py'\n"),
    ("KIT214", FOUR + "srun horovodrun --check-build\n"),
    ("KIT215", ONE_A_NODE + "deepspeed --hostfile h t.py\n"),
    ("KIT215", ONE_A_NODE + "srun deepspeed --no_ssh --node_rank=$R t.py\n"),
    ("KIT215", HEAD + "#SBATCH -N1\nsrun -n1 deepspeed t.py\n"),
    ("KIT216", FOUR + "srun python t.py --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2\n"),
    ("KIT216", FOUR + "srun python t.py --tensor-model-parallel-size $TP\n"),
    ("KIT216", HEAD + "srun python t.py --tensor-model-parallel-size 3\n"),
    ("KIT216", HEAD + "#SBATCH -N1 -n1 --gpus-per-node=4\nsrun python infer.py --tensor-parallel-size 4\n"),
    ("KIT216", ONE_A_NODE + "#SBATCH --gpus-per-node=8\nsrun python infer.py --tensor-parallel-size 8\n"),
    ("KIT216", FOUR + "ray start --head\nsrun -N1 -n1 python infer.py --tensor-parallel-size 8\n"),
    ("KIT307", FOUR + "export MASTER_ADDR=$(hostname -I | awk '{print $1}')\nsrun python t.py\n"),
    ("KIT307", FOUR + "ADDRESSES=$(hostname -I)\nsrun python t.py\n"),
    ("KIT308", HEAD + "#SBATCH -a 0-3\nexport MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))\nsrun python t.py\n"),
    (
        "KIT308",
        HEAD + "#SBATCH -a 0-3\nexport MASTER_PORT=$((10000 + SLURM_ARRAY_JOB_ID % 999 + SLURM_ARRAY_TASK_ID))\n",
    ),
    ("KIT309", HEAD + "#SBATCH -N1 -n4\nexport NCCL_SOCKET_IFNAME=lo\nsrun python t.py\n"),
    ("KIT309", FOUR + "export NCCL_SOCKET_IFNAME=^lo,docker0\nsrun python t.py\n"),
    ("KIT404", HEAD + "if ! srun python t.py; then\n  echo failed\n  exit 1\nfi\n"),
    ("KIT404", HEAD + "if srun python t.py; then\n  echo fine\nelse\n  status=$?\nfi\nexit $status\n"),
    ("KIT404", HEAD + "until srun python t.py; do sleep 60; done\n"),
    ("KIT404", HEAD + "python t.py\nif python -m plots; then\n  echo plotted\nfi\n"),
    ("KIT404", HEAD + "srun python t.py || exit 1\nif srun -n1 -N1 python eval.py; then echo evaluated; fi\n"),
    ("KIT404", HEAD + "if srun python t.py; then touch trained; else touch not_trained; fi\n"),
    ("KIT404", HEAD + "trap 's=$?; rm -rf x; exit $s' EXIT\nsrun python t.py\n"),
    ("KIT502", HEAD + "#SBATCH --export=NONE\nmodule load cuda\nsrun --export=ALL python t.py\n"),
    ("KIT502", HEAD + "#SBATCH --export=NONE\nexport SLURM_EXPORT_ENV=ALL\nmodule load cuda\nsrun python t.py\n"),
    ("KIT502", HEAD + "#SBATCH --export=NONE\nmodule load cuda\nunset SLURM_EXPORT_ENV\nsrun python t.py\n"),
    ("KIT502", HEAD + "#SBATCH --export=NONE\nsrun ./solve\n"),
    ("KIT502", HEAD + "#SBATCH --export=NONE\nsrun bash -c 'module load x; source env.sh; python t.py'\n"),
    ("KIT502", HEAD + "#SBATCH --export=NONE\nexport A=1\nsrun bash -lc 'python t.py'\n"),
    ("KIT502", HEAD + "#SBATCH --export=NONE --get-user-env=L\nexport A=1\nsrun python t.py\n"),
    ("KIT502", HEAD + "#SBATCH --export=NONE\nexport A=1\nsrun bash -c 'source env.sh; python t.py'\n"),
    ("KIT502", HEAD + "#SBATCH --export=NONE\nsrun python t.py\nexport DONE=1\n"),
    ("KIT502", HEAD + "srun --export=ALL,LR=1 python t.py\n"),
    ("KIT502", HEAD + "#SBATCH --export=ALL,GPUS=4,NAME\nsrun python t.py\n"),
    ("KIT101", "#!/bin/sh\n"),
    ("KIT102", HEAD + "printf 'a\\r\\n'\n"),
    (
        "KIT103",
        HEAD + "#SBATCH -N 2-4 --time=1-12:30 --mem=4GB\n# SBATCH --ndoes=4\n##SBATCH --foo\n#SBATCH\n#SBATCH # x\n",
    ),
    ("KIT103", HEAD + "#SBATCH --container-image=x/y:1 --container-mounts=/a:/b\n"),
    ("KIT103", HEAD + "#PBS -l nodes=1\n# batch -size is 3\n#BATCH_SIZE --is 5\n# SBATCHES: -3\n"),
    ("KIT103", HEAD + "#SBATCH --nodes=4 --ntasks-per-n=2 --parti=x\n"),
    (
        "KIT104",
        HEAD + "\n# text\n#SBATCH -N1\ncat <<E >x.sbatch\n#SBATCH -N4\nE\necho '\n#SBATCH -N4'\n#SBATCHES are many\n",
    ),
    ("KIT103", HEAD + "# SBATCH -N 4\n#SBATCH --nodes=2\n# SBATCH --exclusive\n# SBATCH is\n##SBATCH --ntasks=4\n"),
    ("KIT104", HEAD + "ls\n## SBATCH -N4\n  ##SBATCH -N4\n"),
    ("KIT103", HEAD + "#SBATCH --image=x/y:1 --module=gpu,nccl --environment=/x.toml --uenv=p/v1 --view=default\n"),
    ("KIT104", HEAD + "echo SBATCH -N4\n./SBATCH -N4\n"),
    ("KIT105", HEAD + "#SBATCH --time=60 # one#hour\n#SBATCH --job-name='a#b' --comment=\"c#d\" -p a\\#b\n#SBATCH#x\n"),
    ("KIT106", HEAD + "#SBATCH --output=logs/%u/%x-%j.log --comment='5 $ a~b'\nexport X=$HOME\n"),
    ("KIT111", HEAD + "#SBATCH --mem=4G --gpus-per-node=4 --gres=nvme:1 -c 2\n"),
    ("KIT111", HEAD + "#SBATCH --mem=4G\n#SBATCH hetjob\n#SBATCH --mem-per-cpu=1G\n"),
    ("KIT107", HEAD + "srun python t.py \\\n  --lr 1 \\\n\nls -- -x\ncat <<E\n--a\nE\n# a \\\n# b \\\nls\n"),
    ("KIT107", HEAD + "srun python t.py --a \\\n# --b\n"),
    ("KIT107", HEAD + "A=(\n --x 1\n # --y \n --z\n)\nsrun python t.py ${A[@]}\n"),
    ("KIT108", HEAD + "setenv() { export $1=$2; }\nsetenv A B\necho setenv\n"),
    ("KIT108", "#!/bin/tcsh\nsetenv A `hostname`\nset b = 1\nif ($?A) setenv C '$(x)'\n"),
    ("KIT111", HEAD + "#SBATCH --gpus-per-node=4 --gres=gpu:a100:4\n"),
    ("KIT209", HEAD + "#SBATCH -N2\nW=${SLURM_NTASKS:-2}\nsrun bash -c 'export W=$SLURM_NTASKS; python t.py'\n"),
    ("KIT209", HEAD + "#SBATCH -N2 -n4\nexport W=$SLURM_NTASKS\n"),
    ("KIT209", HEAD + "W=$SLURM_NTASKS\n"),
    (
        "KIT112",
        HEAD
        + "#SBATCH --time=5 -t 5 -vv --mail-type=END\n#SBATCH --mail-type=FAIL\n#SBATCH hetjob\n#SBATCH --time=7\n",
    ),
    ("KIT113", HEAD + "#SBATCH -o logs/%x-%j.log -e %j.err\n"),
    ("KIT113", HEAD + "#SBATCH -o %u/%x.log\n"),
    ("KIT113", HEAD + "#SBATCH --output=/elsewhere/x/%j.log\n"),
    ("KIT113", HEAD + "#SBATCH --output=/home/me/x/%j.log\n"),
    ("KIT113", HEAD + "#SBATCH -o new/%j.log\nif [ -z $SLURM_JOB_ID ]; then mkdir -p new; sbatch $0; exit; fi\n"),
    ("KIT114", HEAD + "#SBATCH --prefer=a100 --requeue\n"),
    ("KIT115", HEAD + "#SBATCH --gpus-per-task=a100:1 --gres=gpu:1g.10gb:2\n"),
    ("KIT201", FOUR + "#SBATCH --ntasks=8\n"),
    ("KIT201", HEAD + "#SBATCH -N 2-4 --ntasks=8 --ntasks-per-node=8\n"),
    ("KIT202", FOUR + "srun python train.py\n"),
    ("KIT202", FOUR + "python prepare.py\nsrun python train.py\n"),
    ("KIT202", FOUR + "for h in $(scontrol show hostnames); do ssh $h torchrun t.py & done; wait\ntorchrun t.py\n"),
    ("KIT202", FOUR + "python prepare.py\n./run_on_all_nodes.sh\n"),
    ("KIT202", HEAD + "#SBATCH --ntasks-per-node=4 --gres=gpu:4\ntorchrun --nproc-per-node=4 t.py\n"),
    ("KIT202", FOUR + "deepspeed --hostfile hosts t.py\n"),
    ("KIT202", FOUR + "pip install x\npython -c 'import torch'\n"),
    ("KIT202", HEAD + "#SBATCH -n1 -c 8\npython train.py\n"),
    ("KIT203", ONE_A_NODE + "srun torchrun --nproc-per-node=8 t.py\n"),
    ("KIT203", FOUR + "srun --ntasks=4 torchrun --nproc-per-node=2 t.py\n"),
    ("KIT203", FOUR + "srun -N4 -n$SLURM_NNODES torchrun --nproc-per-node=2 t.py\n"),
    ("KIT203", FOUR + "srun torchrun --nnodes=8 --nproc-per-node=2 t.py\n"),
    ("KIT203", FOUR + "srun torchrun --nproc-per-node=1 t.py\n"),
    ("KIT203", FOUR + "torchrun --nproc-per-node=2 t.py\n"),
    ("KIT203", FOUR + "srun $ARGS torchrun --nproc-per-node=2 t.py\n"),
    ("KIT204", FOUR + "srun bash -c 'torchrun --node-rank=$SLURM_NODEID t.py --rank $SLURM_PROCID'\n"),
    ("KIT204", FOUR + 'srun bash -c "RANK=\\$SLURM_PROCID python t.py"\n'),
    ("KIT204", FOUR + 'L="torchrun --node_rank \\$SLURM_PROCID t.py"\nsrun bash -c "$L"\n'),
    ("KIT204", FOUR + "srun bash -c 'echo '\"$X\"' $SLURM_PROCID'\n"),
    ("KIT204", FOUR + "echo $SLURM_PROCID; if [ $SLURM_NODEID = 0 ]; then ls; fi\nsrun python t.py\n"),
    ("KIT204", HEAD + "#SBATCH -N1 -n1\nsrun torchrun --node-rank=$SLURM_NODEID t.py\n"),
    ("KIT204", FOUR + "srun -N1 -n1 python t.py --rank $SLURM_PROCID\n"),
    ("KIT204", FOUR + "HEAD=$(srun -n1 bash -c 'echo $SLURM_PROCID')\nsrun python t.py --head $HEAD\n"),
    ("KIT204", FOUR + "export SEED=$((SLURM_JOB_ID + 1))\nsrun python t.py\n"),
    ("KIT204", FOUR + "cat >run.sh <<'E'\nexport RANK=$SLURM_PROCID\nE\nsrun bash run.sh\n"),
    ("KIT203", FOUR + "mpirun -np 4 --map-by ppr:1:node torchrun --nproc-per-node=2 t.py\n"),
    ("KIT204", ONE_A_NODE + "srun torchrun --node-rank $SLURM_NODEID --rdzv-backend c10d --rdzv-endpoint $H t.py\n"),
    ("KIT204", ONE_A_NODE + "srun torchrun --node-rank $SLURM_NODEID --node_rank 0 t.py\n"),
    (
        "KIT204",
        ONE_A_NODE
        + "export L=\"torchrun --node_rank $SLURM_PROCID\"\nsrun bash -c '$L --node_rank $SLURM_PROCID t.py'\n",
    ),
    ("KIT204", ONE_A_NODE + "export RANK=$SLURM_PROCID NODE_RANK=$SLURM_NODEID\nsrun torchrun --nnodes=4 t.py\n"),
    ("KIT204", FOUR + "i=0; for h in $H; do ssh $h torchrun --node-rank=$i t.py & i=$((i+1)); done; wait\n"),
    ("KIT204", ONE_A_NODE + "cat >r.sh <<E\ntorchrun --node_rank=\\$SLURM_NODEID t.py\nE\nsrun bash r.sh\n"),
    ("KIT204", ONE_A_NODE + "cat >r.sh <<'E'\ntorchrun --node_rank=$SLURM_NODEID t.py\nE\nsrun ./r.sh\n"),
    ("KIT301", ONE_A_NODE + "cat >r.sh <<E\nexport MASTER_ADDR=$(hostname)\npython t.py\nE\nsrun sh r.sh\n"),
    ("KIT205", HEAD + "#SBATCH -c 8\nsrun -c8 python t.py\nsrun --cpus-per-task=$SLURM_CPUS_PER_TASK python t.py\n"),
    ("KIT205", HEAD + "#SBATCH -c 8\nexport SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\nsrun python t.py\n"),
    ("KIT205", HEAD + "#SBATCH -c 8\nsrun $OPTIONS python t.py\nsrun nvidia-smi\n"),
    ("KIT205", HEAD + "#SBATCH -c 1\nsrun python t.py\n"),
    ("KIT206", HEAD + "srun -N4 --gpus-per-task=1 --container-image x --mpi=pmix -lu python t.py --ntask-per-node=2\n"),
    ("KIT206", HEAD + "srun --$X=2 python t.py\n"),
    ("KIT202", HET + "srun --het-group=0-1 python t.py\n"),
    ("KIT202", HET + "srun ./ps : --het-group=1 python t.py\n"),
    ("KIT205", HET + "srun ./a\nsrun -c6 --het-group=1 python t.py\n"),
    ("KIT207", ONE_A_NODE + "srun torchrun --nnodes=$SLURM_NNODES --nproc-per-node=2 t.py\n"),
    (
        "KIT207",
        ONE_A_NODE + 'srun torchrun --nnodes=2:8 t.py\nsrun torchrun $ARGS t.py\nsrun torchrun "${A[@]}" t.py\n',
    ),
    ("KIT207", FOUR + "srun torchrun --nnodes=8 --nproc-per-node=2 t.py\n"),
    (
        "KIT207",
        ONE_A_NODE + "for h in $H; do srun -N1 -n1 -w $h torchrun --nnodes=4 --node-rank=$i t.py & done; wait\n",
    ),
    ("KIT207", ONE_A_NODE + "for lr in 1 2; do srun torchrun --nnodes=4 t.py --lr $lr; done\n"),
    ("KIT207", HEAD + "#SBATCH -N1\ntorchrun --nnodes=2 --node-rank=$1 --master-addr=$2 t.py\n"),
    ("KIT207", HEAD + "#SBATCH -N1\ntorchrun --nproc-per-node=2 t.py\n"),
    ("KIT207", HEAD + "torchrun --nnodes=2 t.py\n"),
    ("KIT208", HEAD + "#SBATCH -N2 --gres=gpu:4\nsrun torchrun --nproc-per-node=$SLURM_GPUS_ON_NODE t.py\n"),
    (
        "KIT208",
        HEAD + "#SBATCH -N2 --gpus-per-node=4\nsrun accelerate launch --num_machines 2 --num_processes 8 t.py\n",
    ),
    ("KIT208", HEAD + "#SBATCH --gres=gpu:4\ntorchrun --nproc-per-node=2 a.py &\ntorchrun --nproc-per-node=2 b.py\n"),
    ("KIT208", HEAD + "#SBATCH --gres=gpu:4\npython spawn.py\n"),
    ("KIT208", HEAD + "torchrun --nproc-per-node=8 t.py\n"),
    ("KIT209", HEAD + "#SBATCH -N2 --ntasks-per-node=2\necho $SLURM_NTASKS_PER_NODE ${SLURM_GPUS_PER_NODE:-1}\n"),
    (
        "KIT209",
        HEAD + "#SBATCH -N2 --gres=gpu:4\nexport SLURM_GPUS_PER_NODE=4\necho $SLURM_GPUS_PER_NODE # $SLURM_GPUS_X\n",
    ),
    ("KIT209", HEAD + 'if [ -z "$SLURM_NTASKS_PER_NODE" ]; then SLURM_CPUS_PER_TASK=1; fi\n'),
    ("KIT209", FOUR + "ssh $h \"cd $SLURM_SUBMIT_DIR; torchrun t.py\"\nssh $h 'echo $HOME'\n"),
    ("KIT301", ONE_A_NODE + 'export MASTER_ADDR=$(hostname)\nsrun bash -c "python t.py --m $MASTER_ADDR"\n'),
    ("KIT301", ONE_A_NODE + 'srun bash -c "torchrun --nnodes=4 --rdzv-endpoint=$HOSTNAME:0 t.py"\n'),
    ("KIT301", ONE_A_NODE + "srun torchrun --nnodes=4 --master-addr=$H t.py\n"),
    ("KIT301", ONE_A_NODE + "export PET_MASTER_ADDR=n1\nsrun torchrun --nnodes=4 t.py\n"),
    ("KIT301", HEAD + "#SBATCH -N1\nexport MASTER_ADDR=localhost\nsrun python t.py\n"),
    ("KIT301", FOUR + "export MASTER_ADDR=$(scontrol show hostnames | head -n1)\nsrun python t.py\n"),
    ("KIT301", FOUR + "export MASTER_ADDR=localhost\nsrun -N1 -n2 python t.py\n"),
    ("KIT301", ONE_A_NODE + "srun torchrun --standalone --master_addr 127.0.0.1 t.py\n"),
    (
        "KIT302",
        HEAD + "export MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))\nsrun torchrun --rdzv-endpoint=$H:0 t.py\n",
    ),
    ("KIT207", ONE_A_NODE + "srun accelerate launch --num_machines 4 --rdzv_backend c10d t.py\n"),
    ("KIT302", HEAD + "#SBATCH --exclusive\nexport MASTER_PORT=29500\n"),
    ("KIT302", HEAD + "#SBATCH --gpus-per-node=4\nexport MASTER_PORT=29500\n"),
    ("KIT302", HEAD + "srun python t.py --dist-url tcp://$HOST:$((10000 + SLURM_JOB_ID % 20000)) http://h:80/x\n"),
    (
        "KIT302",
        HEAD + "PORT=8080\nsrun python t.py --port 29500\nsrun torchrun --standalone --master-port=29500 t.py\n",
    ),
    ("KIT303", HEAD + "export MASTER_PORT=29500\nX=40000\n"),
    ("KIT311", HEAD + "export CUDA_VISIBLE_DEVICES=\nunset CUDA_VISIBLE_DEVICES\necho $CUDA_VISIBLE_DEVICES\n"),
    (
        "KIT311",
        HEAD + 'export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0}"\nexport CUDA_DEVICE_ORDER=PCI_BUS_ID\n',
    ),
    ("KIT302", HEAD + "MASTER_PORT=$X\n"),
    ("KIT207", ONE_A_NODE + "srun torchrun --nnodes=4 --master-addr=$H --rdzv-backend=c10d t.py\n"),
    ("KIT207", ONE_A_NODE + "srun torchrun --nnodes=4 --master-addr=$H --node_rank=$R t.py\n"),
    (
        "KIT207",
        HEAD + "#SBATCH -N2\nsrun torchrun --nnodes=2 --node-rank=0 --rdzv-backend=c10d --rdzv-endpoint=$H t.py\n",
    ),
    (
        "KIT207",
        HEAD
        + "#SBATCH -N2 --ntasks-per-node=1\nsrun -N1 -n1 torchrun --nnodes=2 --node-rank=0 --master-addr=$A t.py &\n"
        "srun -N1 -n1 torchrun --nnodes=2 --node-rank=1 --master-addr=$A t.py & wait $!\n",
    ),
    ("KIT304", FOUR + "MASTER_ADDR=n1\nexport OTHER MASTER_ADDR\nNCCL_DEBUG=INFO srun python t.py\n"),
    ("KIT304", FOUR + "MASTER_ADDR=n1\nsrun python t.py --addr $MASTER_ADDR\n"),
    ("KIT304", FOUR + 'MASTER_ADDR=n1\nsrun bash -c "python t.py $MASTER_ADDR"\n'),
    ("KIT304", FOUR + "WORLD_SIZE=8\nsrun torchrun t.py\n"),
    ("KIT304", FOUR + "set -a\nMASTER_ADDR=n1\nsrun python t.py\n"),
    ("KIT304", FOUR + "MASTER_ADDR=n1\nmpirun -x MASTER_ADDR python t.py\n"),
    (
        "KIT304",
        FOUR + "MASTER_ADDR=n1 MASTER_PORT=1\nexport MASTER_ADDR \\\n  MASTER_PORT\nsrun sh -c '$MASTER_PORT'\n",
    ),
    (
        "KIT304",
        FOUR + "MASTER_ADDR=n1\nsrun apptainer exec --env A=1,MASTER_ADDR=$MASTER_ADDR i sh -c '$MASTER_ADDR'\n",
    ),
    ("KIT304", FOUR + "MASTER_ADDR=n1\nsrun docker run -e MASTER_ADDR=\"$MASTER_ADDR\" i sh -c '$MASTER_ADDR'\n"),
    ("KIT304", FOUR + "MASTER_ADDR=n1\nfor v in MASTER_ADDR; do export $v; done\nsrun sh -c '$MASTER_ADDR'\n"),
    ("KIT304", FOUR + "MASTER_ADDR=n1\nexport A=1 \"${vars[@]}\"\nsrun sh -c '$MASTER_ADDR'\n"),
    ("KIT107", HEAD + "srun python t.py --a 1 \\\n# --b 2 \\\n# --c 3\necho done\n"),
    ("KIT107", HEAD + "srun python t.py --a 1 \\\n# --b 2 \\\n# --c 3 \\\n\n"),
    ("KIT107", HEAD + "srun python t.py --a 1 \\\n# --b 2 \\"),
    (
        "KIT301",
        FOUR
        + "if [ $X ]; then export MASTER_ADDR=$(scontrol x); else export MASTER_ADDR=localhost; fi\nsrun python t.py\n",
    ),
    (
        "KIT301",
        FOUR + "srun sh -c 'if [ $SLURM_NODEID -eq 0 ]; then MASTER_ADDR=$(hostname); else MASTER_ADDR=$A; fi; ./t'\n",
    ),
    ("KIT301", FOUR + "case $X in a) MASTER_ADDR=$H;; *) MASTER_ADDR=localhost;; esac\nsrun python t.py\n"),
    ("KIT202", ONE_A_NODE + "srun apptainer exec img ray start --block &\nsrun -N1 -n1 python t.py\n"),
    ("KIT202", ONE_A_NODE + "srun apptainer exec img ./server &\nsrun -N1 -n1 apptainer exec img python t.py\n"),
    ("KIT202", ONE_A_NODE + "srun docker run img serve &\nsrun -N1 -n1 python t.py\n"),
    ("KIT207", ONE_A_NODE + "export PET_NNODES=4 PET_RDZV_ENDPOINT=$H\nsrun torchrun t.py\n"),
    ("KIT207", HEAD + "#SBATCH -N1 --array=0-1\ntorchrun --nnodes=2 --rdzv-endpoint=$H:1 t.py\n"),
    ("KIT208", HEAD + "#SBATCH -N2 --gpus-per-node=4\nexport PET_NPROC_PER_NODE=4\nsrun torchrun t.py\n"),
    (
        "KIT103",
        HEAD + "# SBATCH --gpus-per-node=4 --ntasks=4\n#SBATCH --gres=gpu:4 --ntasks-per-node=2 -w a\n# SBATCH -N1\n",
    ),
    ("KIT208", HEAD + "#SBATCH -N2 --gpus-per-node=4\nsrun accelerate launch --num_processes 8 t.py\n"),
    ("KIT208", HEAD + "#SBATCH --gpus-per-node=4\naccelerate launch --config_file f.yaml --num_processes 8 t.py\n"),
    ("KIT209", FOUR + "ssh $h \"source env.$ID; \"'torchrun --nnodes=$SLURM_NNODES t.py'\n"),
    ("KIT209", HEAD + "#SBATCH -N2\nsrun -c 8 bash -c '\n  python t.py $SLURM_CPUS_PER_TASK'\n"),
    ("KIT209", HEAD + "#SBATCH -N2\nsrun -c 8 bash <<'E'\npython t.py $SLURM_CPUS_PER_TASK\nE\n"),
    ("KIT209", HEAD + "#SBATCH -N2 --gpus=4 --ntasks-per-gpu=1\nexport W=$SLURM_NTASKS\n"),
    ("KIT210", ONE_A_NODE + "export WORLD_SIZE=8\nsrun ./runner.sh\n"),
    ("KIT202", ONE_A_NODE + "srun -N1 -n1 python server.py &\nsrun -N3 -n3 python t.py\n"),
    ("KIT202", ONE_A_NODE + "for h in $H; do srun -N1 -n1 -w $h python t.py & done; wait\n"),
    ("KIT207", ONE_A_NODE + "srun accelerate launch --num_machines 4 --config_file c.yaml t.py\n"),
    ("KIT210", FOUR + "export WORLD_SIZE=$((SLURM_NNODES * SLURM_NTASKS_PER_NODE))\nsrun python t.py\n"),
    ("KIT210", FOUR + "export WORLD_SIZE=1\nsrun torchrun t.py\n"),
    ("KIT210", HEAD + "#SBATCH -N2 --gpus-per-node=4\nexport WORLD_SIZE=8\nsrun python spawn.py\n"),
    ("KIT117", HEAD + "#SBATCH -N4 -w n[1-2]\n#SBATCH --exclude=n[5-9]\n"),
    ("KIT211", HEAD + "#SBATCH -N2 --gpus-per-node=4\nip=$(srun --nodes=1 --ntasks=1 hostname -i)\n"),
    ("KIT211", HEAD + "#SBATCH -N2 --gpus=4\nip=$(srun --gpus=0 --nodes=1 -n 1 hostname -i)\nsrun python t.py\n"),
    ("KIT211", HEAD + "#SBATCH -N2 --gpus=4\nsrun --gpus=2 -N1 -n1 python t.py\n"),
    ("KIT401", HEAD + "srun python t.py & p=$!\nwait $p || report_it\necho done\n"),
    ("KIT211", HEAD + "#SBATCH -N2 --gpus=4\nunset SLURM_GPUS\nsrun -N1 -n1 python t.py\n"),
    ("KIT401", HEAD + "echo start\nsrun python t.py\n"),
    ("KIT401", HEAD + "set -euo pipefail\nsrun python t.py\necho done\n"),
    ("KIT401", "#!/bin/bash -e\nsrun python t.py | tee log\necho done\n"),
    ("KIT401", HEAD + "srun python t.py\nstatus=$?\necho done\nexit $status\n"),
    ("KIT401", HEAD + 'status=0\nsrun python t.py || status=$?\ndate\nexit "$status"\n'),
    ("KIT401", HEAD + "srun python t.py || exit 1\ndate\n"),
    ("KIT401", HEAD + "srun python t.py && echo done\n"),
    ("KIT401", HEAD + "if srun python t.py; then echo good; else exit 3; fi\n"),
    ("KIT401", HEAD + "srun python t.py\nif [ $? -ne 0 ]; then exit 1; fi\necho done\n"),
    ("KIT401", HEAD + "srun python t.py\nexit\n"),
    ("KIT401", HEAD + "srun python a.py\nsrun python b.py\n"),
    ("KIT401", HEAD + "srun hostname\nsleep 5\necho done\n"),
    ("KIT401", HEAD + "run() { srun python t.py; }\nrun\n"),
    ("KIT401", HEAD + 'if [ -n "$X" ]; then srun python t.py; else echo no; fi\n'),
    ("KIT401", HEAD + "trap 'rm -rf /tmp/x' EXIT\nsrun python t.py\n"),
    ("KIT401", HEAD + "srun bash -c 'python t.py; echo done'\n"),
    ("KIT401", HEAD + "srun python t.py &\nwait $!\nstatus=$?\necho done\nexit $status\n"),
    ("KIT401", HEAD + "set -e\nsrun python t.py &\nwait $!\necho done\n"),
    ("KIT401", HEAD + "srun python t.py & p=$!\nwait $p || exit 1\necho done\n"),
    ("KIT402", HEAD + "srun python a.py &\nsleep infinity\n"),
    ("KIT402", HEAD + "srun python a.py & pid=$!\nwait $pid\n"),
    ("KIT402", HEAD + "srun python a.py &\nwait -n\nexit $?\n"),
    ("KIT402", HEAD + "set -e\npython monitor.py &\nsrun python t.py\nkill $!\nwait\n"),
    ("KIT402", HEAD + "srun python a.py &\nwhile sleep 60; do sync; done\n"),
    ("KIT403", HEAD + "set -o pipefail\nsrun python t.py | tee log\n"),
    ("KIT403", HEAD + "srun python t.py | tee log\nexit ${PIPESTATUS[0]}\n"),
    ("KIT403", HEAD + "cat input | srun python t.py\n"),
    (
        "KIT411",
        HEAD + "#SBATCH --signal=B:USR1@120\ntrap 'kill -TERM $pid' USR1\nsrun python t.py & pid=$!\nwait $pid\n",
    ),
    (
        "KIT411",
        HEAD + "#SBATCH --signal=B:10@120\nfor s in TERM USR1; do trap x $s; done\nsrun python t.py & wait $!\n",
    ),
    ("KIT411", HEAD + "#SBATCH --signal=USR1@120\nsrun python t.py\n"),
    (
        "KIT412",
        HEAD
        + "#SBATCH --signal=USR1@120\ntrap x TERM EXIT\ntrap - USR1\nsrun bash -c 'trap : USR1; exec python t.py'\n",
    ),
    (
        "KIT501",
        HEAD
        + "export WANDB_API_KEY=$(cat ~/.key)\nexport HF_TOKEN=$HF_TOKEN\nexport API_KEY=<your key>\nexport TOKEN=\n",
    ),
    (
        "KIT501",
        HEAD + "export MAX_TOKENS=123456789012345678\nPAD_TOKEN='[PAD]'\nSORT_KEY=date\nexport KEY=/home/me/1/key\n",
    ),
    (
        "KIT501",
        HEAD + "PAD_TOKEN=token_endoftext_50256\nSORT_KEY=column_name_2024_abc\nexport N_PASS=first MUNGE_AUTH=munge\n",
    ),
    ("KIT501", HEAD + "export TOKENIZERS_PARALLELISM=false\nPASSWORD_FILE=$HOME/.pw\nHF_TOKEN=your_token_here1\n"),
    ("KIT109", HEAD + 'eval "$(conda shell.bash hook)"\nconda activate pt\n'),
    ("KIT109", HEAD + "source ~/conda/etc/profile.d/conda.sh\nconda activate pt\n"),
    ("KIT109", "#!/bin/bash -l\nconda activate pt\n"),
    ("KIT109", "#!/usr/bin/env -S bash --login\nconda activate pt\n"),
    ("KIT109", HEAD + "module load anaconda\nconda activate pt\n"),
    ("KIT109", HEAD + "source activate pt\nconda env list\nconda run -n pt python t.py\n"),
    ("KIT109", HEAD + "builtin source ~/conda/etc/profile.d/conda.sh\nconda activate pt\n"),
    ("KIT109", HEAD + "command . ~/conda/etc/profile.d/conda.sh\nconda activate pt\n"),
    ("KIT109", HEAD + 'conda() { micromamba "$@"; }\nconda activate pt\n'),
    ("KIT109", HEAD + "bash -l <<'X'\nconda activate pt\nX\nbash -lc 'conda activate pt'\n"),
    ("KIT109", HEAD + "#SBATCH --export=ALL,BASH_ENV=/opt/conda.sh\nconda activate pt\n"),
    ("KIT109", HEAD + "conda shell.bash hook > hook.sh\n. ./hook.sh\nconda activate pt\n"),
    ("KIT109", HEAD + "conda shell.posix activate pt > act.sh && . ./act.sh\n"),
    ("KIT110", HEAD + "# \u2013n and \u201cquotes\u201d\necho \u2013 begin\nsrun python t.py --title '\u2013a'\n"),
    ("KIT110", HEAD + "cp a$X\u2013b /data/it\u2019s\nls \u2013\n"),
    ("KIT110", HEAD + 'say() { echo "$(date) $@" >&2; }\nsay \u201cdone\u201d \u2014 ok\n'),
    ("KIT110", HEAD + "python t.py 1\u20132 a\u2014b\n"),
    ("KIT120", HEAD + "A=1\nexport B=2 C\nIFS= read -r X\n[ a = b ]\ntest $A == 1\nlet x = 3\n"),
    ("KIT120", HEAD + "echo = x\nprintf =%s x\nfiglet = x\ntest = x\nwhich =python\n"),
    ("KIT120", HEAD + 'SAY() { echo "$@"; }\nSAY = x\n'),
    ("KIT120", "#!/bin/tcsh\nset a = 3\n"),
    ("KIT212", FOUR + "cd $SLURM_TMPDIR\ncp -r ~/ws/ ./\ncd $SLURM_SUBMIT_DIR\nsrun python t.py\n"),
    ("KIT212", FOUR + "cd $SLURM_TMPDIR\ncp log $HOME\nsrun python t.py\n"),
    ("KIT119", FOUR + "#SBATCH --gpus=8 --gpus-per-task=1\n"),
    ("KIT119", HEAD + "#SBATCH -N2 -G 8 --gpus-per-node=4\n"),
    ("KIT119", HEAD + "#SBATCH --gpus=8 --gpus-per-task=2\n"),
    ("KIT119", HEAD + "#SBATCH -N1-4 --gpus=2 --gpus-per-node=a:1,b:1\n"),
    ("KIT118", HEAD + "#SBATCH --array=0-7 --output=%A_%a.log --error=%j.err\n"),
    ("KIT118", HEAD + "#SBATCH --array=0-7 --output=%x.log --open-mode=append\n"),
    ("KIT118", HEAD + "#SBATCH --array=0-4:5%2 --output=%x.log\n"),
    ("KIT118", HEAD + "#SBATCH --array=3 --output=%x.log\n"),
    ("KIT118", HEAD + "#SBATCH --array=0-3 --output=/dev/null --error=%4a.err\n"),
    ("KIT201", HEAD + "#SBATCH -N 1-4 -n 2\n"),
    ("KIT201", HEAD + "#SBATCH -N 4 -n 4\n"),
    ("KIT204", FOUR + "export SEED_INDEX=$SLURM_PROCID\nsrun bash -c 'JAX_PROCESS_INDEX=$SLURM_PROCID ./t'\n"),
    ("KIT205", HEAD + "#SBATCH -c 8\nsrun uv sync\n"),
    ("KIT206", HEAD + "srun -ul --environment=./edf.toml bash -c 'python t.py'\nsrun --uenv pt --view v python t.py\n"),
    ("KIT206", HEAD + "srun $OPTIONS --ntask=2 python t.py\n"),
    (
        "KIT207",
        HEAD + "#SBATCH -N2\nfor h in $H; do\nsrun -N1 -n1 -w $h torchrun --nnodes=2 --node-rank=$i t.py &\ndone\n",
    ),
    (
        "KIT207",
        HEAD + "#SBATCH -N2\nfor h in $H; do for g in 0 1; do srun -w $h torchrun --nnodes=4 t.py & done; done\n",
    ),
    ("KIT209", HEAD + "#SBATCH -c \n#SBATCH --cpus-per-task= -N1\nexport N=$SLURM_CPUS_PER_TASK\n"),
    ("KIT209", FOUR + "echo $SLURM_LAUNCH_NODE_IPADDR\nsrun bash -c 'A=$SLURM_LAUNCH_NODE_IPADDR ./t'\n"),
    (
        "KIT210",
        HEAD + "#SBATCH -N2 --gres=gpu:2\nfor i in 0 1 2 3; do srun -N1 -n1 env WORLD_SIZE=4 python t.py & done\n",
    ),
    ("KIT212", HEAD + "#SBATCH -N1\ntar -xf d.tar -C $SLURM_TMPDIR\nsrun python t.py $SLURM_TMPDIR/d\n"),
    ("KIT212", FOUR + "srun --ntasks-per-node=1 tar -xf d.tar -C /tmp/d\nsrun python t.py /tmp/d\n"),
    ("KIT212", FOUR + "cp $0 /tmp/job.sh\ncp -r code $SCRATCH/d\nsrun python $SCRATCH/d/t.py\n"),
    ("KIT212", FOUR + "cp d.tar $TMPDIR/\nsbcast d.tar $TMPDIR/d.tar\nsrun python t.py $TMPDIR\n"),
    (
        "KIT212",
        FOUR + "cp c.zip /tmp/$USER/\nsrun --ntasks-per-node=1 cp c.zip /tmp/$USER\nsrun python t.py /tmp/$USER\n",
    ),
    ("KIT212", FOUR + "cp -r a /tmp/a\nfor n in $N; do scp -r /tmp/a $n:/tmp/a; done\nsrun python t.py /tmp/a\n"),
    ("KIT212", FOUR + "cp a.tar /tmp/a.tar\nclush -w $N -c /tmp/a.tar\nsrun python t.py /tmp/a.tar\n"),
    ("KIT212", FOUR + "cp c.json $TMPDIR/c.json\njq .x $TMPDIR/c.json\nsrun python t.py\n"),
    ("KIT212", FOUR + "rsync -a $HOME/x/ /tmp/x/\npython prep.py /tmp/x --out $SCRATCH/y\nsrun python t.py\n"),
    ("KIT212", FOUR + "srun python t.py --out /tmp/out\ncp -r out /tmp/out\nmv /tmp/out $HOME/\n"),
    ("KIT212", FOUR + "( cd /tmp && tar -xf $HOME/a.tar && cp -r a $SCRATCH )\nsrun python t.py\n"),
    ("KIT212", FOUR + "cd $SLURM_TMPDIR\ntar -xf a.tar\npushd $SCRATCH\nsrun python t.py\n"),
    ("KIT212", FOUR + "pushd /tmp\ntar -xf a.tar\npopd\nsrun python t.py\n"),
    (
        "KIT212",
        FOUR + "if [ $1 = w ]; then\ncd /tmp\ntar -xf d.tar\nexec python t.py\nfi\nsrun bash $0 w\n",
    ),
    ("KIT213", FOUR + "mpirun -n 8 python t.py\nmpirun -n 4 python t.py\nmpirun python t.py\n"),
    ("KIT213", FOUR + "mpirun --oversubscribe -n 16 python t.py\nmpirun -hostfile h -n 16 python t.py\n"),
    ("KIT213", FOUR + "export OMPI_MCA_rmaps_base_oversubscribe=1\nmpirun -n 16 python t.py\n"),
    ("KIT213", FOUR + "export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe\nmpirun -n 16 python t.py\n"),
    ("KIT213", FOUR + "ssh host mpirun -n 16 python t.py\n"),
    ("KIT213", HEAD + "#SBATCH --nodes=2 --exclusive\nmpirun -n 8 python t.py\n"),
    ("KIT213", HEAD + "mpirun -n 16 python t.py\n"),
    ("KIT302", HEAD + "export MASTER_PORT=29500\nsrun torchrun --rdzv-endpoint=$H:$((10000 + SLURM_JOB_ID)) t.py\n"),
    ("KIT302", HEAD + "MASTER_PORT=29500\necho $MASTER_PORT\n# srun --port $MASTER_PORT\nmpirun python t.py\n"),
    ("KIT305", FOUR + "MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)\nN=$SLURM_NODELIST\n"),
    ("KIT305", FOUR + "MASTER_ADDR=$(echo $SLURM_NODELIST | sed 's/[[,].*//' | cut -d, -f1)\n"),
    ("KIT305", HEAD + "#SBATCH -N1\nMASTER_ADDR=$SLURM_NODELIST\n"),
    ("KIT305", FOUR + "NODES=$(scontrol show hostnames | tr '\\n' ,)\nMASTER_ADDR=${NODES%%,*}\n"),
    ("KIT305", FOUR + "SLURM_NODELIST=$(nodeset -S, -e $SLURM_NODELIST)\nMASTER_ADDR=${SLURM_NODELIST%%,*}\n"),
    ("KIT305", FOUR + "MASTER_NODE=$SLURM_JOB_NODELIST\nMASTER_ADDR=$(scontrol show hostnames $MASTER_NODE|head -1)\n"),
    ("KIT306", FOUR + "export MASTER_PORT=$((10000+RANDOM))\nsrun torchrun --nnodes=4 --rdzv-id=$RANDOM t.py\n"),
    ("KIT306", HEAD + "#SBATCH -N1\nsrun bash -c 'MASTER_PORT=$RANDOM python t.py'\n"),
    ("KIT306", FOUR + 'srun bash -c "export MASTER_PORT=$((RANDOM+10000)); python t.py"\n'),
    ("KIT306", FOUR + 'P=$RANDOM\nsrun bash -c "torchrun --rdzv-id=$RANDOM --rdzv-endpoint=$(hostname):$P t.py"\n'),
    ("KIT306", FOUR + "srun bash <<X\nexport MASTER_PORT=$(shuf -i 1-9 -n1)\npython t.py\nX\n"),
    ("KIT306", FOUR + "export P=$RANDOM\nsrun bash -c 'MASTER_PORT=$P python t.py'\n"),
    ("KIT306", FOUR + "srun bash -c 'RANDOM=$SLURM_JOB_ID; MASTER_PORT=$((RANDOM+9999)) python t.py'\n"),
    ("KIT306", FOUR + "srun bash -c 'MASTER_PORT=$(shuf -n1 -i 1-9 --random-source=seed) python t.py'\n"),
    ("KIT306", FOUR + "srun bash -c 'if [ $SLURM_PROCID = 0 ]; then MASTER_PORT=$RANDOM; fi; . ./port; python t.py'\n"),
    ("KIT306", FOUR + "srun bash -c '((SLURM_PROCID)) || MASTER_PORT=$RANDOM; . ./port; python t.py'\n"),
    ("KIT402", HEAD + "python t.py 1 &\npython t.py 2\nwait\n"),
    ("KIT402", HEAD + "python t.py 1 & P=$!\npython t.py 2\nwhile kill -0 $P; do sleep 1; done\n"),
    ("KIT402", HEAD + "python t.py 1 & P=$!\npython t.py 2\ntail --pid=$P -f /dev/null\n"),
    ("KIT402", HEAD + "python server.py &\npython t.py\n"),
    ("KIT412", HEAD + "#SBATCH --signal=USR1@90\nsource env.sh\npython t.py\n"),
    ("KIT412", HEAD + "#SBATCH --signal=USR1@90\nbash run.sh\npython t.py\n"),
    ("KIT412", HEAD + "#SBATCH --signal=USR1@90\nL=srun\n$L python t.py\n"),
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: f"{bad.code}-{bad.line}-{bad.words}")
def test_a_rule_finds_its_fault(bad: Bad) -> None:
    findings = find_code(bad.text, bad.code, folders={"/", "there"})
    assert findings, "nothing found"
    assert (findings[0].line, findings[0].severity) == (bad.line, bad.severity)
    assert bad.words in findings[0].what
    assert findings[0].remedy


@pytest.mark.parametrize(("code", "text"), GOOD)
def test_a_rule_ignores_lookalikes(code: str, text: str) -> None:
    assert find_code(text, code, folders={"/", "logs"}) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_the_examples_of_a_rule_have_its_fault_and_no_fault(rule: Rule) -> None:
    bad, good = example_of(rule.code)
    found = [finding.code for finding in find_faults(bad, folders={"/"})]
    assert rule.code in found
    assert find_faults(good, folders={"/"}) == []


def test_tasks_beyond_the_gpus_may_be_meant_as_cpus() -> None:
    (beyond,) = find_code(HEAD + "#SBATCH -n 12 --gres=gpu:1\npython t.py\n", "KIT202")
    (one_each,) = find_code(HEAD + "#SBATCH -n 3 --gres=gpu:3\npython t.py\n", "KIT202")
    assert "--cpus-per-task" in beyond.remedy
    assert "--cpus-per-task" not in one_each.remedy


@pytest.mark.parametrize(("array", "count"), [("1990-2020", 0), ("0-2020", 1)])
def test_large_indexes_alone_show_a_site_with_a_larger_limit(array: str, count: int) -> None:
    text = f"{HEAD}#SBATCH --array={array}\npython t.py $SLURM_ARRAY_TASK_ID\n"
    assert [finding.code for finding in check(BatchScript(text))] == ["KIT132"] * count


def test_codes_of_rules_are_unique() -> None:
    codes = [topic.code for topic in explained_codes()]
    assert len(set(codes)) == len(codes)
    assert sorted(codes) == codes[: len(RULES)] + sorted(codes[len(RULES) :])


@pytest.mark.parametrize("topic", explained_codes(), ids=lambda topic: topic.code)
def test_every_rule_explains_the_fault_the_reason_the_fix_and_the_source(topic: object) -> None:
    text = next(each.text for each in explained_codes() if each is topic)
    title, empty, *rest = text.split("\n")
    assert title.endswith(".")
    assert len(title) < 100
    assert empty == ""
    assert re.search(r"^Fix: ", "\n".join(rest), re.MULTILINE)
    assert re.search(r"^Documented: ", "\n".join(rest), re.MULTILINE)


def test_explain_prints_the_rule_and_names_near_codes() -> None:
    assert explain("kit203").startswith("KIT203 (error): torchrun, accelerate or deepspeed is started once per task")
    assert "shellcheck.net/wiki/SC2086" in explain("SC2086")
    with pytest.raises(SpecError, match="no rule KIT20") as caught:
        explain("KIT20")
    assert caught.value.remedy is not None
    assert "KIT2" in caught.value.remedy


@pytest.mark.parametrize("case", [case for case in golden.CASES if case != "special_characters"])
def test_rendered_scripts_have_no_faults(case: str) -> None:
    assert find_faults(golden.script(case)) == []


def test_a_finding_quotes_its_evidence() -> None:
    text = (
        HEAD + "#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=8\n\nset -e\nsrun torchrun --nproc-per-node=8 train.py\n"
    )
    (finding,) = find_faults(text)
    assert finding._asdict() == {
        "code": "KIT203",
        "severity": "error",
        "line": 6,
        "column": 6,
        "what": "torchrun starts 8 processes, and srun starts it 8 times per node: 64 per node",
        "remedy": "use --ntasks-per-node=1, or srun python train.py without torchrun",
        "found": None,
        "evidence": ((3, "#SBATCH --ntasks-per-node=8"), (6, "srun torchrun --nproc-per-node=8 train.py")),
        "edits": (),
    }


def test_a_secret_is_never_repeated() -> None:
    text = HEAD + "export WANDB_API_KEY=0123456789abcdef && srun python t.py\n"
    (finding,) = find_code(text, "KIT501")
    assert "0123456789abcdef" not in repr(finding)
    assert finding.evidence[0].text == "export WANDB_API_KEY=*** && srun python t.py"


def test_findings_come_in_the_order_of_the_script() -> None:
    text = FOUR + "#SBATCH --ndoes=1\nexport MASTER_PORT=29500\nexport MASTER_ADDR=localhost\nsrun python t.py\necho\n"
    assert [(finding.line, finding.code) for finding in find_faults(text)] == [
        (3, "KIT103"),
        (4, "KIT302"),
        (5, "KIT301"),
        (6, "KIT401"),
    ]


@pytest.mark.parametrize(
    ("line", "version", "expected"),
    [
        (
            "#SBATCH --tres-per-task=gres/gpu:1",
            "22.05.8",
            ["--tres-per-task came with Slurm 23.11, but this is 22.05.8"],
        ),
        ("#SBATCH --tres-per-task=gres/gpu:1", "23.11", []),
        ("#SBATCH --tres-per-task=gres/gpu:1", None, []),
        ("#SBATCH --requeue=expedite", "24.05", ["--requeue=expedite came with Slurm 25.11, but this is 24.05"]),
        ("#SBATCH --requeue", "22.05", []),
        (
            "#SBATCH --gpus-per-task=1g.10gb:1",
            None,
            ["before 23.11.4, all tasks of a node get the same MIG device: 1g.10gb:1"],
        ),
        ("#SBATCH --gpus-per-task=1g.10gb:1", "23.11.4", []),
        ("#SBATCH --gpus-per-task=a100:1", "22.05", []),
    ],
)
def test_options_missing_from_a_release_are_found(line: str, version: str | None, expected: list[str]) -> None:
    text = f"#!/bin/bash\n{line}\ntrue\n"
    found = check(BatchScript(text, site=Site(version=parse_version(version) if version else None)))
    assert [each.what for each in found if each.code in {"KIT114", "KIT115"}] == expected


@pytest.mark.parametrize(("version", "count"), [("22.05", 1), ("23.02.7", 1), ("23.11", 0), ("21.08", 0), (None, 0)])
def test_lost_cpus_depend_on_the_release(version: str | None, count: int) -> None:
    text = f"{HEAD}#SBATCH --cpus-per-task=4 --ntasks=2\nsrun python train.py\n"
    found = check(BatchScript(text, site=Site(version=parse_version(version) if version else None)))
    assert sum(each.code == "KIT205" for each in found) == count


@pytest.mark.parametrize("line", ["#SBATCH -\u2014mem=16G", "#SBATCH \u2013-nodes=2"])
def test_a_long_dash_is_named(line: str) -> None:
    (finding,) = find_code(HEAD + line + "\n", "KIT103")
    assert "long dash" in finding.remedy


def test_a_carriage_return_at_the_end_of_one_line_does_not_stop_the_check() -> None:
    script = BatchScript("#!/bin/bash\n#SBATCH -N2\r")
    assert script.options == {"nodes": "2"}
