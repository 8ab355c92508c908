"""Each rule finds its fault at the right place, and ignores lines that only look like it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from hpc_kit.check.batch_script import BatchScript, Site
from hpc_kit.check.rule_docs import example_of, explain, explained_codes
from hpc_kit.check.rules import RULES, Finding, Rule, applicable_rules, check
from hpc_kit.check.text_edits import apply_edits
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
TWO = HEAD + "#SBATCH -N2 --ntasks-per-node=1\n"
CHAIN = HEAD + "#SBATCH --signal=B:USR1@300 -J tr -t 1:00:00\n"
ONE_A_NODE = HEAD + "#SBATCH --nodes=4 --ntasks-per-node=1\n"
BATCHES = '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1}'
DEEPSPEED = f"cat > d.json <<E\n{BATCHES}\nE\n"


def find_faults(text: str, *, paths: set[str] | None = None) -> list[Finding]:
    exists = None if paths is None else paths.__contains__
    return check(BatchScript(text, site=Site(exists, SlurmVersion(22, 5, 8), CLUSTER)))


def find_code(text: str, code: str, *, paths: set[str] | None = None) -> list[Finding]:
    return [finding for finding in find_faults(text, paths=paths) if finding.code == code]


class Bad(NamedTuple):
    """A script with a fault: its line, severity, and words of the message."""

    code: str
    text: str
    line: int
    severity: str
    words: str


E, W = "error", "warning"

BAD = [
    Bad("KIT406", HEAD + "set -e\nread -r -d '' A <<E\n--lr 1\nE\npython t.py $A\n", 3, E, "read -d '' returns 1"),
    Bad("KIT119", HEAD + "#SBATCH -N2 --gpus-per-task=8\nsrun -n2 python t.py\n", 2, W, "needs a number of tasks"),
    Bad(
        "KIT223",
        HEAD + "#SBATCH -N2 --ntasks-per-node=1 -c8\nsrun -N1 -n1 -c8 -w $H ray start --head --block &\n"
        "srun -N1 -n1 -c2 -w $H python t.py\n",
        4,
        E,
        "never starts",
    ),
    Bad(
        "KIT415",
        HEAD + "# sbatch -d afterany:$id a.sbatch\nO=r/$SLURM_JOB_ID\n"
        "python t.py --output_dir $O --resume $O/last.pt\n",
        3,
        W,
        "another id",
    ),
    Bad("KIT503", HEAD + "#SBATCH -a 1-8\ntrap 'rm -rf /tmp/$USER/c' EXIT\npython t.py\n", 3, W, "first element"),
    Bad("KIT231", GPUS + "python t.py --train-samples 9 --lr-decay-iters 7\n", 3, W, "contradicts"),
    Bad("KIT134", HEAD + "a=$(awk 'NR == $SLURM_ARRAY_TASK_ID' f)\npython t.py $a\n", 2, E, "in single quotes"),
    Bad("KIT402", HEAD + "abaqus job=b input=b.inp cpus=4\ncp b.odb out/\n", 2, E, "in the background"),
    Bad(
        "KIT251",
        HEAD + "#SBATCH -a 0-7\nS=$SLURM_ARRAY_TASK_MAX\n"
        "for ((i = SLURM_ARRAY_TASK_ID; i < 99; i += S)); do python t.py $i; done\n",
        3,
        E,
        "elements 0 and 7",
    ),
    Bad("KIT417", HEAD + "#SBATCH -J day\nplink2 --out x\nsbatch day.sbatch\n", 4, W, "starts again"),
    Bad("KIT417", HEAD + "trap 'sbatch \"$SELF\"' EXIT\ncd d || exit 1\npython t.py\n", 2, W, "at every end"),
    Bad("KIT417", HEAD + 'again() { sync; sbatch "$0"; }\ntrap again EXIT\npython t.py\n', 3, W, "at every end"),
    Bad("KIT501", HEAD + "set -a; . ~/.config/ml-keys\nenv | sort\n", 3, W, "prints the value"),
    Bad("KIT123", HEAD + "#SBATCH -c32 --mem-per-cpu=120G\npython t.py\n", 2, W, "3.75 TiB on a node"),
    Bad(
        "KIT123",
        HEAD + "#SBATCH --mem=96G\n#   a.ffcv  90G\n# 16 GB b.ffcv\ncp d/a.ffcv d/b.ffcv /dev/shm/x\n./t\n",
        5,
        W,
        "106 GiB",
    ),
    Bad(
        "KIT207",
        ONE_A_NODE + "srun bash -c 'accelerate launch --config_file a.yaml --num_machines 4 --num_processes 16 "
        "--machine_rank $SLURM_LOCALID --rdzv_backend static --main_process_ip h t.py'\n",
        3,
        E,
        "they need different ranks",
    ),
    Bad("KIT139", HEAD + "A=(1e-3, 3e-4, 1)\npython t.py --lr ${A[$SLURM_ARRAY_TASK_ID]}\n", 2, E, "contains 1e-3,"),
    Bad("KIT139", HEAD + 'S=(1, 2)\nfor s in "${S[@]}"; do python t.py --seed $s; done\n', 2, E, "contains 1,"),
    Bad("KIT134", HEAD + "F=$PWD/run.yaml\ncat > $F <<'E'\nnodes: $SLURM_NNODES\nE\n", 3, W, "$SLURM_NNODES stays"),
    Bad("KIT134", HEAD + "H=n1\ncat > hostfile <<'E'\n$H slots=8\nE\n", 3, W, "$H stays"),
    Bad("KIT119", GPUS.replace("node=1", "node=4") + "#SBATCH --gpus-per-task=2\n", 3, E, "4 tasks x 2 GPUs = 8"),
    Bad("KIT208", GPUS + "python t.py --device cuda:0\n", 3, W, "to use one of the 4 GPUs"),
    Bad("KIT503", HEAD + "C=/gpfs/lab/shared/cache\nrm -rf $C\n", 3, W, "other jobs may read"),
    Bad("KIT503", HEAD + "export HF_HOME=/scratch/hf/hub\nrm -rf /scratch/hf\n", 3, W, "other jobs may read"),
    Bad("KIT429", HEAD + "a=$(sbatch --parsable x)\nsbatch -d afterok:${a}[7] y\n", 3, E, "refuses this dependency"),
    Bad("KIT429", HEAD + 'a=$(sbatch --parsable --dependency="afterok:$b.batch" x)\n', 2, E, "refuses this dependency"),
    Bad(
        "KIT253",
        HEAD + "#SBATCH --array=0-3\nL=(1 2 3 4)\nLR=${L[$SLURM_ARRAY_TASK_ID]}\n"
        "python t.py --lr $LR --run-name x-$LR --checkpoint-dir /s/ckpt --save-steps 5\n",
        5,
        W,
        "save their results in /s/ckpt",
    ),
    Bad(
        "KIT415",
        HEAD + "#SBATCH --array=1-6%1\npython t.py --output_dir out --overwrite_output_dir\n",
        3,
        W,
        "each job of the chain",
    ),
    Bad(
        "KIT505",
        HEAD + "apptainer exec --nv -B /p/data:/data:ro,/p/ckpt:/ckpt:ro i.sif python t.py --save-dir /ckpt/a\n",
        2,
        E,
        "/ckpt is mounted read-only",
    ),
    Bad(
        "KIT505",
        HEAD + "docker run --gpus all --mount type=bind,src=/p,dst=/out,readonly i python t.py --output-dir /out\n",
        2,
        E,
        "/out is mounted read-only",
    ),
    Bad(
        "KIT210",
        ONE_A_NODE + "G=1024 W=$SLURM_NTASKS\nA=$((GLOBAL_BATCH / (8 * W)))\n"
        "srun torchrun --nnodes=4 --nproc-per-node=8 --rdzv-endpoint=h:1 t.py --gradient_accumulation_steps $A\n",
        5,
        E,
        "starts 8 ranks in each task",
    ),
    Bad("KIT421", HEAD + "while true; do nvidia-smi; sleep 60; done\npython t.py\n", 2, E, "the loop runs"),
    Bad(
        "KIT424",
        HEAD + "while read -r c; do timeout 1h srun -n1 python t.py $c; done < list\n",
        2,
        E,
        "ends after the first",
    ),
    Bad(
        "KIT405",
        HEAD + "srun python t.py\necho finished\nif [ $? -ne 0 ]; then exit 1; fi\n",
        4,
        E,
        "is the status of 'echo' in line 3, not of the command in line 2",
    ),
    Bad("KIT406", HEAD + "set -e\nn=0\nfor i in 1 2; do ((n++)); done\n", 4, E, "ends the script"),
    Bad(
        "KIT430",
        HEAD + 'while getopts "ab" o; do case $o in a) ;; b) B=$OPTARG ;; esac; done\npython t.py $B\n',
        2,
        E,
        "gives -b no value",
    ),
    Bad("KIT133", HEAD + "#SBATCH -p a100\npython t.py\n", 2, W, "asks for no GPU"),
    Bad(
        "KIT223",
        HEAD + "#SBATCH -N1 -n8 -c4 --mem=120G\npids=()\n"
        "for s in 1 2; do srun --exact -n1 -c4 python t.py $s & pids+=($!); done\n",
        4,
        W,
        "has all memory of --mem, if the cluster allocates memory",
    ),
    Bad(
        "KIT415",
        HEAD + "sbatch --dependency=afterok:$SLURM_JOB_ID chain.sh $((N + 1))\n"
        "python t.py --ckpt-dir ckpt/$SLURM_JOB_ID --resume auto\n",
        3,
        W,
        "another id",
    ),
    Bad("KIT417", HEAD + "timeout 11h marian --model m.npz\nscontrol requeue $SLURM_JOB_ID\n", 3, W, "starts again"),
    Bad("KIT421", HEAD + "vllm serve m --port 8000 > log 2>&1\nlm_eval --tasks mmlu\n", 2, E, "never starts"),
    Bad("KIT125", HEAD + "module --redirect load gcc | tee log\nsrun ./a.x\n", 2, W, "the pipe ends"),
    Bad(
        "KIT315",
        HEAD + "#SBATCH -N2 --gpus-per-node=8\nexport NCCL_IB_DISABLE=1  # test from Tuesday\nsrun python t.py\n",
        3,
        W,
        "InfiniBand",
    ),
    Bad(
        "KIT212",
        HEAD + "#SBATCH -N2 --ntasks-per-node=1\ntar -xf d.tar -C /local_nvme/$SLURM_JOB_ID\n"
        "srun python t.py --data /local_nvme/$SLURM_JOB_ID/d\n",
        3,
        W,
        "local to the first node",
    ),
    Bad(
        "KIT309",
        HEAD + "#SBATCH -N2 --ntasks-per-node=1 -p std\nexport GLOO_SOCKET_IFNAME=lo\nsrun python t.py\n",
        3,
        E,
        "reaches no other node",
    ),
    Bad(
        "KIT204",
        HEAD + "#SBATCH -N2 --ntasks-per-node=4\nexport RANK=$SLURM_PROCID\nsrun ./wrapper.sh\n",
        3,
        W,
        "every task gets 0",
    ),
    Bad(
        "KIT401",
        HEAD + "srun python t.py\nsbatch --dependency=afterany:$SLURM_JOB_ID clean.sh\n",
        2,
        W,
        "status of 'sbatch'",
    ),
    Bad("KIT432", HEAD + "LAST=$(ls --sort=time out/*.pt | tail -n 1)\n", 2, E, "oldest"),
    Bad("KIT501", HEAD + "HF_TOKEN=$(<t)\nexport HF_TOKEN\nenv\n", 4, W, "env prints"),
    Bad("KIT401", HEAD + "X=$(srun python t.py)\nls ?\n", 2, W, "a failure in $(...) is lost"),
    Bad("KIT139", HEAD + "A=(1 2)\npython t.py --lr $A\n", 3, W, "the first of the 2 elements"),
    Bad("KIT216", FOUR + "srun python t.py --hidden-size 10 --num-attention-heads 4\n", 3, W, "4 attention heads"),
    Bad("KIT230", GPUS + DEEPSPEED + "deepspeed --num_gpus 4 t.py --deepspeed_config d.json\n", 4, E, "x 4 ranks = 32"),
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
    Bad("KIT403", HEAD + "srun python t.py | tee log &\npid=$!\nwait $pid\n", 2, W, "returns the status of tee"),
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
        6,
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
    Bad("KIT305", FOUR + 'MASTER_ADDR="$(scontrol show hostname $SLURM_NODELIST)"\n', 3, E, "names of all nodes"),
    Bad("KIT421", HEAD + "nvidia-smi dmon > g.csv &\npython t.py\nwait\n", 4, E, "nvidia-smi in line 2, which never"),
    Bad("KIT421", HEAD + "while :; do free; sleep 9; done &\npython t.py &\nwait\n", 4, E, "also waits for the loop"),
    Bad("KIT217", HEAD + "#SBATCH -c 4\nsrun STAR --runThreadN 32 --in x\n", 3, W, "32 threads or processes"),
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
    Bad("KIT401", HEAD + "a() { python t.py; }\nb() { a; echo x; }\nb\n", 2, W, "the status of 'echo' in line 3"),
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
        "KIT144",
        FOUR + 'for n in $(scontrol show hostnames); do\necho "$n slots=2" > hosts.txt\ndone\n'
        "deepspeed --hostfile hosts.txt t.py\n",
        4,
        E,
        "only its last line remains",
    ),
    Bad(
        "KIT144",
        HEAD + "F=shards\nls d | while read -r s; do echo d/$s > $F; done\npython t.py --list=$F\n",
        3,
        W,
        "empties shards",
    ),
    Bad(
        "KIT505",
        HEAD + "D=/big/tiles\nsrun --container-image=a --container-mounts=$D:/data \\\n python t.py --data $D/a\n",
        4,
        W,
        "there, its name is /data",
    ),
    Bad(
        "KIT505",
        HEAD + "docker run --rm --mount type=bind,source=/raid/x,target=/d i python t.py --in /raid/x/a\n",
        2,
        W,
        "there, its name is /d",
    ),
    Bad(
        "KIT223",
        GPUS + "#SBATCH -c 16\nsrun -c4 nvidia-smi -l 5 &\nsrun -c8 --gpus=4 python t.py\n",
        5,
        E,
        "has all GPUs of the job: it never ends",
    ),
    Bad(
        "KIT504",
        HEAD + "#SBATCH --container-image=/a.sqsh\nexport A=$(scontrol show hostnames)\nsrun python t.py\n",
        3,
        W,
        "runs in the container of line 2",
    ),
    Bad("KIT312", HEAD + "#SBATCH -t 3-0\npython t.py --detect_anomaly --lr 1\n", 3, W, "detect_anomaly checks"),
    Bad("KIT312", HEAD + "python t.py trainer.limit_train_batches=10\n", 2, W, "limit_train_batches ends"),
    Bad("KIT252", HEAD + "#SBATCH -a 1-9\necho task $SLURM_ARRAY_TASK_ID\npython t.py\n", 4, W, "same command"),
    Bad("KIT306", ONE_A_NODE + "srun bash -c 'torchrun --rdzv-id=$(date +%s) t.py'\n", 3, W, "some differ"),
    Bad("KIT123", HEAD + "#SBATCH --gres=gpu:8\n#SBATCH --mem=2G\npython t.py\n", 3, W, "256 MiB for the process"),
    Bad("KIT123", HEAD + "#SBATCH --mem=64M\npython t.py\n", 2, W, "--mem=64M is 64 MiB"),
    Bad("KIT429", HEAD + "a=$(sbatch a.sh | cut -d' ' -f3)\nsbatch -d afterok:$a b.sh\n", 3, E, "not a job id"),
    Bad("KIT422", HEAD + "#SBATCH -N1\nread -rp 'Resume? ' answer\npython t.py $answer\n", 3, W, "nobody answers"),
    Bad("KIT411", HEAD + 'trap "kill $pid" USR1\npython t.py &\npid=$!\nwait $pid\n', 2, E, "$pid is expanded now"),
    Bad("KIT137", HEAD + 'if ["$N" -gt 0]; then R=--resume; fi\npython t.py $R\n', 2, E, "[ needs a space"),
    Bad("KIT432", HEAD + "C=$(ls -tr c/*.pt | head -n1)\npython t.py --resume $C\n", 2, E, "the oldest file"),
    Bad("KIT208", GPUS + "python t.py --gpus 1\n", 3, W, "told to use 1 of the 4 GPUs"),
    Bad("KIT129", HEAD + "H=$(scontrol show hostnames $SLURM_NODE_LIST)\nsrun python t.py\n", 2, W, "$SLURM_NODELIST"),
    Bad("KIT134", HEAD + "python t.py --name 'run-$SLURM_ARRAY_TASK_ID'\n", 2, W, "in single quotes"),
    Bad("KIT134", HEAD + "LR=1\ntorchrun t.py '--lr=$LR'\n", 3, W, "$LR in single quotes"),
    Bad("KIT133", HEAD + "#SBATCH -n1\npython t.py --enable_cuda\n", 3, W, "asks for none"),
    Bad("KIT312", HEAD + "export HIP_LAUNCH_BLOCKING=1\npython t.py\n", 2, W, "waits for each kernel"),
    Bad("KIT106", HEAD + "python t.py > logs/%x_%j.log\n", 2, W, "does not expand %x"),
    Bad("KIT106", HEAD + "python t.py --out=runs/%j 2>&1 | tee log\n", 2, W, "does not expand %j"),
    Bad("KIT106", HEAD + "python t.py | tee log.%j\n", 2, W, "does not expand %j"),
    Bad("KIT206", FOUR + "srun python t.py --cpu-bind=none\n", 3, W, "behind the program"),
    Bad("KIT217", FOUR + "#SBATCH -c 8\nmpirun --bind-to core python t.py\n", 4, W, "one core for its 8 threads"),
    Bad("KIT502", HEAD + "for l in 1 2; do sbatch --export=LR=$l t.sh; done\n", 2, W, "none of your variables"),
    Bad("KIT204", HEAD + 'sbatch -a 0-9 --wrap="python t.py $SLURM_ARRAY_TASK_ID"\n', 2, E, "this shell expands"),
    Bad(
        "KIT204",
        HEAD + "sbatch <<E\n#!/bin/bash\n#SBATCH -a 0-9\npython t.py $SLURM_ARRAY_TASK_ID\nE\n",
        5,
        E,
        "and not the job that it submits",
    ),
    Bad(
        "KIT207",
        ONE_A_NODE + "srun bash -c 'torchrun --nnodes 4 --node-rank $SLURM_LOCALID --master-addr $H t.py'\n",
        3,
        E,
        "--node-rank=$SLURM_LOCALID on each of the 4 nodes",
    ),
    Bad(
        "KIT416",
        HEAD + "W=/tmp/$SLURM_JOB_ID\npython t.py --out $W\nrm -rf $W\ncp -r $W/best.pt ~/\n",
        4,
        W,
        "the result of the training",
    ),
    Bad("KIT217", FOUR + "srun python t.py --workers $SLURM_CPUS_ON_NODE\n", 3, W, "as many data loaders"),
    Bad("KIT140", HEAD + "#SBATCH --gres=gpu:a100:4\n#SBATCH -C v100\n", 3, W, "a100 and v100"),
    Bad(
        "KIT251",
        HEAD + "#SBATCH -a 0-9\nA=$(awk -v n=$SLURM_ARRAY_TASK_ID 'NR==n' p.txt)\npython t.py $A\n",
        3,
        E,
        "lines count from 1",
    ),
    Bad(
        "KIT207",
        ONE_A_NODE
        + "rank=0\nfor h in $H; do\n  srun -N1 -n1 -w $h torchrun --nnodes=4 --node-rank=$rank t.py &\ndone\n",
        5,
        E,
        "each pass of the loop starts an agent with --node-rank=0",
    ),
    Bad("KIT308", HEAD + "deepspeed a.py &\ndeepspeed --include localhost:1 b.py\n", 3, E, "line 2 uses port 29500"),
    Bad("KIT308", HEAD + "for i in 0 1; do torchrun --master-port=29601 t.py $i & done\n", 2, E, "uses port 29601"),
    Bad("KIT251", HEAD + '#SBATCH -a 0-1\nM="a b"\npython t.py ${M[$SLURM_ARRAY_TASK_ID]}\n', 4, E, "no list"),
    Bad("KIT252", HEAD + "#SBATCH -a 1-9\npython t.py --name $SLURM_ARRAY_JOB_ID\n", 3, W, "same command"),
    Bad(
        "KIT311",
        GPUS + "CUDA_VISIBLE_DEVICES=0 python t.py 0 &\nCUDA_VISIBLE_DEVICES=0 python t.py 1 &\nwait\n",
        4,
        W,
        "line 3 uses GPU 0 at the same time",
    ),
    Bad("KIT139", HEAD + 'L=(1,2)\nfor l in "${L[@]}"; do python t.py $l; done\n', 2, W, "this is one element"),
    Bad("KIT125", HEAD + "module -q load cuda | tee log\npython t.py\n", 2, W, "effect of module load:"),
    Bad("KIT125", HEAD + "ml -q cuda/12.4\nml purge\npython t.py\n", 3, W, "takes back ml cuda/12.4 of line 2"),
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
    Bad("KIT401", HEAD + "R=$(srun python t.py)\necho $R\n", 2, W, "a failure in $(...) is lost"),
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
    *(
        Bad("KIT142", HEAD + f"export PYTORCH_CUDA_ALLOC_CONF={value}\npython t.py\n", 2, W, "there is no option")
        for value in ("expandable_segment:True", "max_split_size:128")
    ),
    Bad("KIT309", FOUR + "export NCCL_SOCKET_IFNAME=lo\nsrun python t.py\n", 3, E, "reaches no other node"),
    Bad("KIT404", HEAD + "if ! srun python t.py; then\n  echo failed\nfi\n", 2, W, "the if uses the exit status"),
    Bad("KIT404", HEAD + "trap 'rm -rf x; exit 0' EXIT\nsrun python t.py\n", 2, W, "ends every job with 0"),
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
    Bad("KIT105", HEAD + "#SBATCH --job-name=a#b\n", 2, W, "Slurm reads --job-name=a"),
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
    Bad("KIT108", "#!/bin/csh\npython t.py > log 2>&1\n", 2, E, "csh ends here with 'Ambiguous output redirect'"),
    Bad("KIT108", "#!/bin/csh\npython t.py 2>&1 | tee log\n", 2, E, "Ambiguous output redirect"),
    Bad("KIT108", "#!/bin/csh\nif ($?X) then\n  python t.py 2>&1\nendif\n", 3, E, "to a file named 1"),
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
    Bad("KIT113", HEAD + "#SBATCH --output=logs/%j.log\npython here.py\n", 2, W, "does not exist: logs"),
    Bad("KIT113", HEAD + "#SBATCH --output=l/%j.log\nmkdir -p l\npython t.py\n", 2, W, "does not exist: l"),
    Bad(
        "KIT113",
        HEAD + "#SBATCH -J a -D there -e logs/%x/%j.err\npython here.py\n",
        2,
        W,
        "does not exist: there/logs/a",
    ),
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
    Bad("KIT302", HEAD + "srun python t.py --init_method=tcp://$HOST:23456 --size 4\n", 2, W, "port 23456 is fixed"),
    Bad("KIT302", HEAD + "srun python t.py --dist-url 'tcp://[fd00::1]:23456'\n", 2, W, "port 23456 is fixed"),
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
    Bad("KIT302", HEAD + "export MASTER_PORT=34567\n", 2, W, "34567 is ephemeral"),
    Bad("KIT302", HEAD + "#SBATCH --gpus-per-node=1\nsrun torchrun --master-port=60000 t.py\n", 3, W, "60000"),
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
    Bad("KIT401", HEAD + "srun python t.py\necho done\n", 2, W, "'echo' in line 3"),
    Bad("KIT401", HEAD + "srun python t.py\nrc=$?\ncp -r out /archive\nexit 0\n", 2, W, "'exit' in line 5"),
    Bad("KIT401", HEAD + "torchrun t.py > log\ndate >> log\nX=1\n", 2, W, "'X=' in line 4"),
    Bad("KIT401", HEAD + "srun python t.py || true\n", 2, W, "'|| true'"),
    Bad(
        "KIT405", HEAD + "python t.py | tee l\necho end\nexit ${PIPESTATUS[0]}\n", 4, E, "PIPESTATUS is that of 'echo'"
    ),
    Bad(
        "KIT405",
        HEAD + 'set -e\npython t.py\nrc=$?\nif [ $rc = 85 ]; then\n scontrol requeue "$SLURM_JOB_ID"\nfi\n',
        4,
        E,
        "line 6 never sees another status than 0",
    ),
    Bad("KIT222", HEAD + "#SBATCH -n 32\nsrun python preprocess.py --workers 32\n", 3, W, "each starts 32 workers"),
    Bad("KIT432", HEAD + "LAST=$(ls -1tr ckpt/* | head -1)\npython t.py --resume $LAST\n", 2, E, "oldest file"),
    Bad(
        "KIT505",
        HEAD + "srun --container-image=a --no-container-mount-home python $HOME/t.py\n",
        2,
        W,
        "does not see $HOME/t.py",
    ),
    Bad("KIT401", HEAD + "srun python t.py\nsbatch eval.sh\n", 2, W, "the status of 'sbatch'"),
    Bad("KIT401", HEAD + "srun python t.py\nsbatch -d afterok:$SLURM_JOB_ID e.sh\n", 2, E, "the status of 'sbatch'"),
    Bad("KIT401", HEAD + "srun python t.py\ntouch runs/.done\n", 2, E, "the status of 'touch'"),
    Bad("KIT403", HEAD + "srun python t.py | tee log\nrc=$?\nexit $rc\n", 2, E, "the status of tee"),
    Bad("KIT123", HEAD + "#SBATCH --gpus=1 --mem=64\n./run.sh\n", 2, W, "--mem=64 is 64 MiB"),
    Bad("KIT140", HEAD + "#SBATCH -C a100&h100|v100\n", 2, E, "a100 and h100"),
    Bad("KIT139", HEAD + "A=(--lr 1)\npython t.py $A\n", 3, E, "the first of the 2 elements"),
    Bad("KIT256", HEAD + "#SBATCH --array=0-99:10%4\npython t.py $SLURM_ARRAY_TASK_ID\n", 2, W, "0, 10, ... 90"),
    Bad("KIT431", HEAD + "#SBATCH -t 60\nsrun timeout 3600 python t.py\ncp a b\n", 3, W, "line 4 never runs"),
    Bad("KIT415", HEAD + "#SBATCH --requeue\nR=r/$(date +%s)\npython t.py --out $R --resume $R/a\n", 3, W, "the time"),
    Bad("KIT401", HEAD + "set -e\nsrun python t.py && echo fine\ndate\n", 3, W, "'date' in line 4"),
    Bad("KIT401", HEAD + "for i in 1 2; do srun python t.py; done\ndate\n", 2, W, "'date' in line 3"),
    Bad(
        "KIT119",
        HEAD + "#SBATCH --gres=gpu:2\n#SBATCH -N1 --gpus=4\nsrun python t.py\n",
        3,
        E,
        "--gres=gpu:2 is 2 nodes",
    ),
    Bad("KIT502", HEAD + "#SBATCH --export=ALL,GPUS=a,b\nsrun python t.py\n", 2, E, "'b' is no variable"),
    Bad("KIT402", HEAD + "srun python a.py &\nsrun python b.py &\nwait\n", 4, W, "wait without a process id"),
    Bad(
        "KIT401",
        HEAD + "srun python t.py &\npid=$!\nwait $pid\necho done\n",
        2,
        W,
        "'echo' in line 5, not the status of wait",
    ),
    Bad("KIT402", FOUR + "for h in $H; do ssh $h python t.py & done\nwait\n", 4, W, "wait without a process id"),
    Bad("KIT402", HEAD + "srun python a.py &\nsleep 5\nconda deactivate\n", 2, E, "without a wait"),
    Bad("KIT402", HEAD + "srun python a.py &\necho started\n", 2, E, "without a wait"),
    Bad("KIT403", HEAD + "srun python t.py | tee log\n", 2, W, "the status of tee"),
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
    Bad("KIT403", HEAD + "set -e\nsrun python t.py 2>&1 | tee log\n", 3, W, "the status of tee"),
    Bad("KIT403", HEAD + "{ module load x; srun python t.py; } |& tee log\n", 2, W, "the status of tee"),
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
    Bad("KIT501", HEAD + "mysql -phunter2 runs < a.sql\n", 2, E, "the login of mysql is a secret"),
    Bad("KIT501", HEAD + f"wandb login --relogin {'a1b2c3d4' * 5}\n", 2, E, "the login of wandb is a secret"),
    Bad("KIT501", HEAD + f"wandb login {'a1b2c3d4' * 5}\n", 2, E, "the login of wandb is a secret"),
    Bad("KIT501", HEAD + "curl -H 'Authorization: Bearer a1b2c3d4e5' https://a.b\n", 2, E, "a header is a secret"),
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
    Bad("KIT302", HEAD + "u=tcp://\nu+=${L:0:9}\nu+=:40000\nsrun python t.py --dist_url $u\n", 4, W, "port 40000"),
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
    Bad("KIT401", HEAD + "uv run t.py\necho done\n", 2, W, "the status of 'echo'"),
    Bad("KIT402", HEAD + "python t.py 1 &\npython t.py 2\n", 2, W, "the job ends when t.py in line 3 has ended"),
    Bad("KIT402", HEAD + "python t.py 1 & P=$!\npython t.py 2\nkill -0 $P && echo on\n", 2, W, "the job ends when"),
    Bad("KIT118", HEAD + "#SBATCH --array=0-4:4 --output=%x.log\n", 2, W, "write to %x.log"),
    Bad("KIT412", HEAD + "#SBATCH --signal=USR1@90\npython t.py\n", 2, W, "no program gets it"),
    Bad("KIT412", HEAD + "#SBATCH --signal=USR1@90\nmodule load a\ntorchrun t.py\n", 2, W, "no program gets it"),
    Bad("KIT141", "#!/bin/zsh\nARGS='--lr 1'\npython t.py $ARGS\n", 3, E, "as one word"),
    Bad(
        "KIT251",
        "#!/bin/zsh\n#SBATCH -a 0-1\nL=(a b)\npython t.py ${L[$SLURM_ARRAY_TASK_ID]}\n",
        4,
        E,
        "index 0 selects",
    ),
    Bad("KIT251", "#!/bin/zsh\n#SBATCH -a 1-3\nL=(a b)\npython t.py ${L[$SLURM_ARRAY_TASK_ID]}\n", 4, E, "1 to 2"),
    Bad("KIT142", HEAD + "export NCCL_SOCKET_IFACE=ib0\npython t.py\n", 2, W, "there is NCCL_SOCKET_IFNAME"),
    Bad("KIT142", FOUR + "srun --export=ALL,OMP_THREADS=4 python t.py\n", 3, W, "there is OMP_NUM_THREADS"),
    Bad("KIT231", HEAD + "python t.py --load_in_8bit True --load_in_4bit\n", 2, W, "contradicts --load_in_8bit"),
    Bad("KIT232", HEAD + "#SBATCH -n3\ncat > f <<E\n0 a\n2 b\nE\nsrun --multi-prog f\n", 5, E, "no program for task 1"),
    Bad("KIT232", HEAD + "cat > f <<E\n0 a\n1-2 b\nE\nsrun -n2 --multi-prog f\n", 4, W, "there is no task 2"),
    Bad("KIT207", ONE_A_NODE + "srun torchrun \\\n  --standalone --nproc-per-node=4 t.py\n", 4, W, "a separate model"),
    Bad("KIT208", GPUS + "torchrun \\\n  --nproc-per-node=2 t.py\n", 4, W, "the remaining GPUs are idle"),
    Bad(
        "KIT311",
        GPUS2 + "srun bash -c 'CUDA_VISIBLE_DEVICES=$SLURM_PROCID python t.py'\n",
        3,
        E,
        "beyond the first node",
    ),
    Bad("KIT314", GPUS2 + "srun taskset -c 0-15 python t.py\n", 3, W, "all 4 tasks of a node on the same CPUs, 0-15"),
    Bad("KIT314", GPUS2 + "srun numactl --cpunodebind=0 python t.py\n", 3, W, "numactl puts all 4 tasks"),
    Bad(
        "KIT313",
        HET + "H=$(scontrol show hostnames $SLURM_JOB_NODELIST_HET_GROUP_0 | head -1)\n"
        "srun --het-group=1 torchrun --nnodes=2 --rdzv-endpoint=$H:29500 t.py\n",
        5,
        E,
        "a host of component 0, but the training runs in component 1",
    ),
    Bad(
        "KIT417",
        HEAD + "#SBATCH --output=chain-%j.out\npython t.py\nsbatch chain.sbatch\n",
        4,
        W,
        "even a failure at its start",
    ),
    Bad("KIT431", HEAD + "#SBATCH -t 60\npython t.py --max-minutes=90\n", 3, W, "after 5400 s"),
    Bad("KIT431", HEAD + "#SBATCH -t 60\nsrun python t.py --trainer.max_time 00:01:30:00\n", 3, W, "after 5400 s"),
    Bad("KIT431", HEAD + "#SBATCH -t 60\nsrun python t.py --exit-duration-in-mins 60\n", 3, W, "after 3600 s"),
    Bad("KIT432", HEAD + "L=$(ls -d o/checkpoint-* | sort | tail -n 1)\npython t.py --resume $L\n", 2, W, "as text"),
    Bad("KIT432", HEAD + "L=$(find o -name 'global_step*' | sort -r | head -1)\npython t.py $L\n", 2, W, "as text"),
    Bad(
        "KIT501",
        HEAD + "export HF_TOKEN=$(<~/.hf)\nenv | sort\npython t.py\n",
        3,
        W,
        "env prints the value of HF_TOKEN",
    ),
    Bad("KIT501", FOUR + "export HF_TOKEN=$(<~/.hf)\nsrun -n1 printenv\n", 4, W, "srun prints"),
    Bad("KIT501", HEAD + 'export HF_TOKEN=$(<~/.hf)\necho "with $HF_TOKEN"\npython t.py\n', 3, W, "echo prints"),
    Bad(
        "KIT505",
        HEAD + "srun --container-image=a --container-mounts=/d:/d python t.py --output_dir /out/run\n",
        2,
        W,
        "/out/run is not mounted",
    ),
    Bad(
        "KIT505",
        HEAD + "apptainer run --writable-tmpfs i.sif train project=/opt/out\n",
        2,
        W,
        "ends with the container",
    ),
    Bad("KIT509", HEAD + "#SBATCH --gres=gpu:2 --mem=9G\ndocker run --gpus=all i python t.py\n", 3, W, "every GPU"),
    Bad("KIT510", HEAD + "export TRANSFORMERS_OFFLINE=1\nhuggingface-cli download a/b\n", 3, W, "sends no request"),
    Bad("KIT143", HEAD + 'python t.py "hydra.run.dir=${hydra.job.name}"\n', 2, E, "meant for Hydra"),
    Bad("KIT204", FOUR + "RANK=$SLURM_PROCID\nexport RANK\nsrun python t.py\n", 3, E, "every task gets 0"),
    Bad(
        "KIT212",
        FOUR + "dask scheduler --scheduler-file /tmp/s &\nsrun dask worker --scheduler-file /tmp/s\n",
        3,
        W,
        "/tmp/s",
    ),
    Bad("KIT212", FOUR + "hostname > /tmp/head\nsrun python t.py --head /tmp/head\n", 3, W, "/tmp/head is local"),
    Bad("KIT233", HEAD + "python -m t ++seed=1 lr=1,2\n", 2, E, "lr=1,2 is a sweep"),
    Bad(
        "KIT253",
        HEAD + "#SBATCH -a 0-1\nO=o/a.csv\npython t.py --seed $SLURM_ARRAY_TASK_ID \\\n  --out $O\n",
        5,
        W,
        "all elements of the array write o/a.csv",
    ),
    Bad(
        "KIT257",
        HEAD + "#SBATCH -a 0-1\nconda activate a\npython -m pip install -e .\npython t.py\n",
        4,
        W,
        "environment",
    ),
    Bad("KIT311", HEAD + "#SBATCH --gpus=2\nexport CUDA_VISIBLE_DEVICES=\npython t.py\n", 2, W, "does not use them"),
    Bad("KIT311", HEAD + "#SBATCH --gres=gpu:2\npython t.py --device cpu\n", 2, W, "does not use them"),
    Bad("KIT421", HEAD + "vllm serve m &\ns=$!\npython e.py\nwait $s\n", 5, E, "vllm in line 2, which never ends"),
    Bad("KIT422", GPUS + "docker run --rm -it image python t.py\n", 3, E, "needs a terminal"),
    Bad("KIT501", HEAD + "source ~/secrets.env\nenv > env.txt\npython t.py\n", 3, W, "secrets.env"),
    Bad("KIT505", HEAD + "srun --container-image=a bash -c 'python t.py --save-dir /w/ckpt'\n", 2, W, "/w/ckpt"),
    Bad("KIT511", HEAD + "umask 000\npython t.py\n", 2, W, "lets every user change"),
    Bad("KIT511", HEAD + "python t.py\nchmod -R a+rwX out\n", 3, W, "lets every user change"),
    Bad("KIT142", HEAD + "export NCCL_IB_DISABLE=true\npython t.py\n", 2, W, "is 0"),
    Bad("KIT212", FOUR + "srun python t.py --dist-url file:///tmp/sync\n", 3, W, "never meet"),
    Bad(
        "KIT231",
        HEAD + "python t.py --per_device_train_batch_size 4 --load_best_model_at_end\n",
        2,
        W,
        "eval_strategy=no",
    ),
    Bad(
        "KIT231",
        HEAD + "python t.py --per_device_train_batch_size 4 --load_best_model_at_end --eval_strategy steps "
        "--save_strategy steps --eval_steps 300 --save_steps 500\n",
        2,
        W,
        "no multiple of 300",
    ),
    Bad("KIT257", HEAD + "#SBATCH -a 0-9\ngit -C code pull\npython t.py\n", 3, W, "the same code"),
    Bad("KIT311", HEAD + "#SBATCH --gres=gpu:1\npython t.py --no_cuda\n", 2, W, "does not use them"),
    Bad("KIT402", HEAD + "docker run -d --rm image python t.py\n", 2, E, "the job ends immediately"),
    Bad("KIT432", HEAD + "L=$(ls -d o/checkpoint-* | sort -n | tail -1)\npython t.py --resume $L\n", 2, W, "as text"),
    Bad("KIT406", HEAD + "set -e\nn=$(grep -c unk hyp.txt)\necho $n\n", 3, W, "grep -c returns 1"),
    Bad("KIT432", HEAD + "L=$(ls o | grep -E '^step_[0-9]+' | sort | tail -n 1)\npython t.py $L\n", 2, W, "as text"),
    Bad(
        "KIT407",
        HEAD + 'finish() {\n  rsync -a --delete $L/out/ "$SLURM_SUBMIT_DIR/"\n}\ntrap finish EXIT\n',
        3,
        E,
        "program",
    ),
    Bad(
        "KIT311",
        HEAD + "#SBATCH --gpus=4\nfor lr in 1 2; do\n  python t.py --device cuda:0 --lr $lr &\ndone\nwait\n",
        4,
        W,
        "uses cuda:0 at the same time",
    ),
    Bad(
        "KIT402",
        HEAD + "for i in 0 1; do\n  CUDA_VISIBLE_DEVICES=$i lm_eval --tasks $i &\ndone\necho started\n",
        3,
        W,
        "the job ends immediately",
    ),
    Bad("KIT432", HEAD + "C=(o/checkpoint-*)\npython t.py --resume ${C[-1]}\n", 3, W, "sorts numbers as text"),
    Bad("KIT501", HEAD + "echo $WANDB_API_KEY\npython t.py\n", 2, W, "echo prints the value of WANDB_API_KEY"),
    Bad("KIT501", HEAD + "cat ~/.netrc\npython t.py\n", 2, W, "cat prints the value of ~/.netrc"),
    Bad("KIT112", HEAD + "python t.py --lr 1e-4 --seed 1 \\\n  --lr 2e-4\n", 3, W, "uses 2e-4 and ignores 1e-4"),
    Bad(
        "KIT313",
        HET + "H=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -1)\nsrun --het-group=0 python a.py &\n"
        "srun --het-group=1 torchrun --nnodes=2 --rdzv-endpoint=$H:29500 t.py\n",
        5,
        E,
        "a host of component 0",
    ),
    Bad(
        "KIT253",
        HEAD + "#SBATCH -a 0-3\npython t.py --lr 0.$SLURM_ARRAY_TASK_ID --ckpt-dir $VSC_SCRATCH/c\n",
        3,
        W,
        "save",
    ),
    Bad(
        "KIT402",
        HEAD + "podman run -d --rm img python t.py\necho started\n",
        2,
        E,
        "podman runs the program in the background",
    ),
    Bad(
        "KIT402",
        HEAD
        + "#SBATCH -n4 --mem=9G\nset -e\nfor f in 0 1; do\nsrun -n1 --exact --mem=2G python t.py $f &\ndone\nwait\n"
        "python train.py\n",
        7,
        W,
        "after a failure, set -e does not end the script here",
    ),
    Bad(
        "KIT501", HEAD + "set -x\nset -a\nsource hub.env\npython t.py # reads HF_TOKEN\n", 4, W, "the lines of hub.env"
    ),
    Bad(
        "KIT134",
        HEAD + "MICRO=2\ncat > ds.json <<'E'\n{\"train_micro_batch_size_per_gpu\": ${MICRO}}\nE\npython t.py\n",
        3,
        W,
        "$MICRO stays as it is",
    ),
    Bad("KIT146", GPUS + "python t.py --train-data /data/{00000..01023}.tar\n", 3, W, "WebDataset reads one pattern"),
    Bad(
        "KIT228",
        HEAD + "#SBATCH -a 1-9\nprintf -v N '%03d' $SLURM_ARRAY_TASK_ID\npython t.py $((N + 7))\n",
        4,
        E,
        "zeros",
    ),
    Bad(
        "KIT505",
        GPUS + "apptainer exec --nv -B /l/d:/data:ro i.sif python t.py exp_manager.exp_dir=/data/checkpoints/a\n",
        3,
        E,
        "mounted read-only",
    ),
    Bad(
        "KIT417",
        HEAD + "cd $HOME/p || exit 1\nsbatch -d afterany:$SLURM_JOB_ID $0\npython t.py --resume auto\n",
        3,
        W,
        "nothing ends the chain",
    ),
    Bad(
        "KIT316",
        HEAD + "#SBATCH -N2 --ntasks-per-node=1\nexport NCCL_IB_HCA=ib0\nsrun python t.py\n",
        3,
        W,
        "no InfiniBand device",
    ),
    Bad(
        "KIT222",
        HEAD + "#SBATCH --ntasks-per-node=4 --gres=gpu:4\nsrun python run_clm.py --do_train --save_strategy no\n",
        3,
        W,
        "each of 4 tasks trains alone",
    ),
    Bad("KIT220", HET + "srun --het-group=1 ./a : --het-group=2 ./b\n", 5, E, "no component 2"),
    Bad(
        "KIT125",
        HEAD + "scontrol show hostnames | read -r H\nexport H\nsrun python t.py $H\n",
        2,
        E,
        "H stays as it was",
    ),
    Bad("KIT310", HEAD + "export MASTER_PORT=${SLURM_JOB_ID: -5}\nsrun python t.py\n", 2, E, "99999"),
    Bad(
        "KIT134",
        HEAD + 'A="--lr 1"\nA+=" --text \'a b\'"\npython t.py $A\n',
        4,
        W,
        "the quotes in the value of $A stay",
    ),
    Bad(
        "KIT145", GPUS + "N=$(nvidia-smi -L | wc -l)\nfor i in {0..$((N-1))}; do python t.py $i; done\n", 4, E, "{0..$"
    ),
    Bad("KIT145", HEAD + "for i in {1..$N..2} 9; do python t.py $i; done\n", 2, E, "the loop runs once"),
    Bad("KIT145", HEAD + "for i in run_{$A..${B}}; do python t.py $i; done\n", 2, E, "the loop runs once"),
    Bad("KIT202", ONE_A_NODE + "srun -n1 -N1 python p.py\nrun() { torchrun --nnodes=4 t.py; }\nrun\n", 4, E, "once"),
    Bad("KIT204", FOUR + "cat >w.sh <<E\npython t.py --rank $SLURM_PROCID\nE\nsrun bash w.sh\n", 4, E, "gets 0"),
    Bad("KIT212", FOUR + "ls /d/*.tar | xargs -P4 -I{} cp {} /tmp/d/\nsrun python t.py --d /tmp/d\n", 3, W, "/tmp/d"),
    Bad("KIT212", FOUR + "find /d -exec cp -t /tmp/d {} +\nsrun python t.py --d /tmp/d\n", 3, W, "/tmp/d"),
    Bad("KIT212", FOUR + "rclone copy s3:d /tmp/d -q\nsrun python t.py --d /tmp/d\n", 3, W, "/tmp/d"),
    Bad(
        "KIT228",
        HEAD + "#SBATCH -N2 --gpus-per-node=v100:4\nsrun torchrun \\\n --nproc_per_node $SLURM_GPUS_PER_NODE t.py\n",
        4,
        E,
        "v100:4",
    ),
    Bad("KIT308", GPUS + "run() { torchrun --master_port=29511 $1.py >$1; }\nrun a &\nrun b &\nwait\n", 3, E, "29511"),
    Bad("KIT310", HEAD + "export MASTER_PORT=1${SLURM_JOB_ID: -5}\nsrun python t.py\n", 2, E, "may be 199999"),
    Bad(
        "KIT310", HEAD + "MASTER_PORT=6${SLURM_JOBID: -4}\nexport MASTER_PORT\nsrun python t.py\n", 2, E, "may be 69999"
    ),
    Bad(
        "KIT311",
        GPUS + 'T=(a b "c d" e f)\nfor i in "${!T[@]}"; do CUDA_VISIBLE_DEVICES=$i python t.py ${T[i]} & done\nwait\n',
        4,
        E,
        "no GPU 4",
    ),
    Bad("KIT402", HEAD + "ls *.y | while read -r f; do\n  srun -n1 python t.py $f &\ndone\nwait\n", 2, E, "a subshell"),
    Bad(
        "KIT402",
        HEAD + "r() { python t.py $1 & }\ncat l | while read f; do r $f; done\necho\nwait\n",
        3,
        E,
        "a subshell",
    ),
    *(
        Bad("KIT434", f"{HEAD}id=$(sbatch --parsable a.sh)\n{code}\n", 3, E, "is an argument of")
        for code in (
            "sbatch b.sh --dependency=afterok:$id",
            'E=$(sbatch --parsable -p gpu jobs/b.sbatch --dependency=afterok:"$id" "runs/$X")',
            "sbatch -N 2 $HOME/b.sh --dependency afterok:$id | tee log",
        )
    ),
    *(
        Bad("KIT405", f"{HEAD}{code}", 3, E, "status of the !")
        for code in (
            "if ! srun python t.py; then\n  rc=$?; exit $rc; fi\n",
            "while ! torchrun t.py\ndo [ $? -eq 75 ] || break; done\n",
            "if cd x && ! python t.py; then\n  exit $?; elif ! python u.py; then echo no; fi\n",
        )
    ),
    Bad("KIT405", HEAD + 'srun python t.py\necho "code $?"\nif [ $? -eq 75 ]; then exit 3; fi\n', 4, E, "echo"),
    Bad(
        "KIT405", HEAD + "f() {\nlocal m=$(python c.py 2>&1)\nif [ $? -ne 0 ]; then return 1; fi\n}\nf\n", 4, E, "local"
    ),
    Bad("KIT405", HEAD + "set -e\nexport V=$(./v)\nrc=$?\npython t.py\nexit $rc\n", 4, E, "'export' in line 3"),
    Bad("KIT405", HEAD + "cp -r a b\necho copied\nif test $? != 0; then exit 1; fi\npython t.py\n", 4, E, "'echo'"),
    Bad("KIT406", HEAD + 'set -eo pipefail\nL=$(ls -t o/*.pt | head -1)\n[ -n "$L" ] && A=1\n', 3, E, "no file yet"),
    Bad(
        "KIT406", HEAD + "set -e\nL=$(ls -d $O/step_* 2>/dev/null)\npython t.py ${L:+--load $L}\n", 3, E, "no file yet"
    ),
    Bad("KIT405", HEAD + "./p | tee l\ndate\nif ((${PIPESTATUS[0]} > 0)); then exit 1; fi\n", 4, E, "that of 'date'"),
    Bad(
        "KIT405", HEAD + "make\necho built\nif [[ $? -ne 0 ]]; then exit 1; fi\npython t.py\n", 4, E, "'echo' in line 3"
    ),
    Bad(
        "KIT406",
        HEAD + 'set -eo pipefail\nL=$(ls o | grep pt | tail -1)\n[ -z "$L" ] || A=1\n',
        3,
        E,
        "no line matches",
    ),
    Bad("KIT401", HEAD + "python train.py || true\npython eval.py\n", 2, W, "hides a failure"),
    Bad("KIT423", HEAD + "exec srun python t.py\nrsync -a $TMPDIR/ o/\n", 2, E, "line 3 never runs"),
    Bad("KIT423", HEAD + "python t.py\nexit $?\ncp -r /tmp/o .\n", 3, E, "line 4 never runs"),
    Bad("KIT429", HEAD + "for p in 1 2; do sbatch -J a$p -d singleton t.sh; done\n", 2, W, "side by side"),
    Bad("KIT426", GPUS + 'sbatch --wait -d afterok:"$SLURM_JOB_ID" e.sh\npython r.py\n', 3, W, "are idle"),
    Bad("KIT431", HEAD + "timeout -s TERM 3h50m srun python t.py\n", 2, E, "refuses 3h50m"),
    Bad("KIT431", HEAD + "timeout -k 60 23:30:00 python t.py\n", 2, E, "refuses 23:30:00"),
    Bad(
        "KIT431",
        HEAD + "#SBATCH -t 1-0\nB=$((24*60 - 15))\ntimeout -k 300 $B python t.py\n",
        3,
        W,
        "takes 1425 for seconds",
    ),
    Bad("KIT431", HEAD + "#SBATCH -t 24:00:00\ntimeout 23 python t.py\n", 3, W, "the job has 24 h"),
    Bad("KIT432", HEAD + "ls -dt o/step_* | head -n -3 | xargs -r rm -rf\npython t.py\n", 2, E, "keeps the oldest"),
    Bad("KIT432", HEAD + "ls -d o/s_* | sort -V | tail -n +4 | xargs rm -r\npython t.py\n", 2, E, "keeps the oldest"),
    Bad("KIT432", HEAD + "for d in $(ls -tr o | tail -n +3); do\n rm -r o/$d\ndone\npython t.py\n", 2, E, "keeps the"),
    Bad(
        "KIT505", GPUS + 'M="/a:/a, /b:/b"\nsrun --container-image=i --container-mounts=$M python t.py\n', 3, E, "space"
    ),
    Bad("KIT505", GPUS + "apptainer exec --nv --bind /a:/a, /b:/b i.sif python t.py\n", 3, E, "ends the list"),
    Bad(
        "KIT505",
        GPUS
        + "mkdir -p $SLURM_TMPDIR/v\napptainer exec --nv -C -B /p:/p i.sif torchrun /p/t.py --data $SLURM_TMPDIR/v\n",
        4,
        W,
        "does not see $SLURM_TMPDIR/v",
    ),
    Bad(
        "KIT507",
        ONE_A_NODE
        + "srun apptainer exec --nv --cleanenv i.sif bash -c 'torchrun --nnodes=4 --node_rank=$SLURM_NODEID t.py'\n",
        3,
        W,
        "no SLURM_NODEID",
    ),
    Bad("KIT145", HEAD + "A=({0..$((K - 1))})\nfor i in ${A[@]}; do python t.py $i; done\n", 2, E, "one element"),
    Bad("KIT145", HEAD + "for i in x{0..$(( ${#S[@]} - 1 ))}; do python t.py $i; done\n", 2, E, "the loop runs once"),
    Bad("KIT212", FOUR + "rclone copy s3:d /tmp/d --transfers 8\nsrun python t.py --d /tmp/d\n", 3, W, "/tmp/d"),
    Bad(
        "KIT308",
        GPUS + "M=29511\nMASTER_PORT=$M\nr() { torchrun --master_port=$MASTER_PORT $1.py; }\nr a &\nr b &\nwait\n",
        3,
        E,
        "29511",
    ),
    Bad("KIT310", HEAD + "export MASTER_PORT=9${SLURM_JOBID:(-4)}\nsrun python t.py\n", 2, E, "may be 99999"),
    Bad(
        "KIT311",
        GPUS + "for ((g = 0; g < 8; g++)); do CUDA_VISIBLE_DEVICES=$g python t.py --seed $g & done\nwait\n",
        3,
        E,
        "no GPU 7",
    ),
    Bad(
        "KIT405", HEAD + "srun python t.py\necho end\ncase $? in 0) ;; *) exit 1 ;; esac\n", 4, E, "of 'echo' in line 3"
    ),
    Bad("KIT405", HEAD + "./p | tee l\nrc=$?\n[ ${PIPESTATUS[0]} -eq 0 ] || exit 1\n", 4, E, "that of the assignment"),
    Bad("KIT405", HEAD + "srun python t.py\nE=$(date +%s)\nif [ $? -ne 0 ]; then exit 1; fi\n", 4, E, "the assignment"),
    Bad(
        "KIT406",
        HEAD + 'set -eo pipefail\nL=$(ls -t o/*.pt | head -1)\nif [ -z "$L" ]; then\n  A=0\nfi\nsrun python t.py\n',
        3,
        E,
        "no file yet",
    ),
    Bad(
        "KIT429", HEAD + "for ((k = 0; k < 4; k++)); do\n n=p$k\n sbatch -J $n -d singleton t.sh\ndone\n", 4, W, "side"
    ),
    Bad("KIT432", HEAD + "rm -rf $(ls -dt o/step_* | head -n -2)\npython t.py\n", 2, E, "keeps the oldest"),
    Bad("KIT432", HEAD + "ls -d s_* | sort -t_ -k2,2nr | head -n -3 | xargs rm -r\npython t.py\n", 2, E, "keeps the"),
    Bad(
        "KIT432",
        HEAD + "ls -dtr s_* | tail -n +4 | while read d; do\n rm -r $d\ndone\npython t.py\n",
        2,
        E,
        "keeps the",
    ),
    *(
        Bad("KIT413", HEAD + f"#SBATCH --requeue --open-mode=append\n{code}\n", 3, W, "log is overwritten")
        for code in (
            "python t.py --resume > >(tee log)",
            "python t.py --resume > >(cat > log)",
            "python t.py --resume |& tee -i log",
            "python t.py --resume | stdbuf -oL tee log",
            "python t.py --resume | tee -a old >(grep loss > log)",
            "python t.py --resume &> log",
            "{ python t.py --resume; } > log",
            "srun bash -c 'python t.py --resume > log'",
            "exec > >(tee log) 2>&1; python t.py --resume",
            "exec > log; python t.py --resume",
        )
    ),
    Bad("KIT413", HEAD + "#SBATCH --requeue\nsrun python t.py --resume >> out\n", 2, W, "the log is overwritten"),
    *(
        Bad("KIT406", HEAD + f"set -e\n{code}\npython t.py\n", 3, E, words)
        for code, words in (
            ("let i=0", "let returns 1"),
            ("(( i = 0 ))", "the value is 0"),
            ("n=$(expr 2 \\* 0)", "expr returns 1"),
        )
    ),
    *(
        Bad("KIT406", HEAD + f"#SBATCH -a 1-8\nset -e\n{code}\npython t.py $n\n", 4, E, "in element 1 of the array")
        for code in (
            "let n=SLURM_ARRAY_TASK_ID-1",
            "(( n = (SLURM_ARRAY_TASK_ID - 1) % 4 ))",
            "n=$(expr $SLURM_ARRAY_TASK_ID / 4)",
        )
    ),
    Bad("KIT406", HEAD + "set -e\ni=0\nfor s in 1 2; do\n (( i++ ))\ndone\npython t.py\n", 5, E, "i is 0"),
    Bad("KIT406", HEAD + "set -eo pipefail\nn=$(cat l | grep nan | wc -l)\npython t.py\n", 3, W, "with pipefail"),
    *(
        Bad("KIT432", HEAD + f"{code}\npython t.py --resume $C\n", 2, E, "is the oldest file")
        for code in (
            "C=$(basename $(ls -t c/*.pt | tail -n 1))",
            "C=$(ls -t c/*.pt |\n  tail -n 1)",
            "latest() { ls -t c/*.pt | tail -n 1; }; C=$(latest)",
        )
    ),
    *(
        Bad("KIT432", HEAD + f"{code}\npython t.py\n", 2, W, "newest files")
        for code in (
            "ls -t c/*.pt | head -n 3 | xargs rm",
            "ls -d c/* | sort -V | tail -3 | xargs -r rm -r",
            "for f in $(ls -tr c | tail -n 2); do\n  echo\n  echo\n  rm c/$f\ndone",
        )
    ),
    *(
        Bad("KIT145", HEAD + f"N=3\nfor i in {words}; do python t.py $i; done\n", 3, E, "the loop runs once")
        for words in ('"{0..3}"', "$(echo {0..$N})", '"$(echo {0..$N})"', '"$(seq 0 3)"', '"$(eval echo {0..$N})"')
    ),
    Bad("KIT212", FOUR + "cat hosts | tee /tmp/d/list\nsrun python t.py --d /tmp/d/list\n", 3, W, "first node"),
    *(
        Bad("KIT125", HEAD + f"{code}\npython t.py\n", 2, W, "the pipe ends the effect of module load")
        for code in (
            "{ module load cuda; source venv/bin/activate; } 2>&1 | tee log",
            "setup() { module load cuda; }; setup | tee log",
            "cat modules | while read m; do module load $m; done",
        )
    ),
    *(
        Bad("KIT512", GPUS + f"{code}\n", 3, W, "outside of the container of line 3")
        for code in (
            "srun apptainer exec --nv i.sif python -m pip install peft && srun python t.py",
            "singularity exec --nv i.sif cd /work && torchrun t.py",
            "srun --container-image=i pip install peft && cd src && srun python t.py",
        )
    ),
    Bad("KIT505", GPUS + "apptainer exec --nv -C i.sif python src/t.py\n", 3, W, "does not see src/t.py"),
    Bad(
        "KIT118",
        HEAD + "#SBATCH -a 0-9 -o %x-%A.out --open-mode=t\npython t.py $SLURM_ARRAY_TASK_ID\n",
        2,
        W,
        "write to",
    ),
    Bad("KIT305", TWO + "export MASTER_ADDR=$(srun hostname)\nsrun python t.py\n", 3, E, "a line for each task"),
    Bad(
        "KIT305",
        TWO + "ip=$(srun hostname -I | awk '{print $1}')\nsrun torchrun --rdzv-endpoint=$ip:1 t.py\n",
        3,
        E,
        "a line for each task",
    ),
    Bad(
        "KIT305",
        TWO + "ip=`srun hostname -i | cut -d' ' -f1`\nsrun torchrun --rdzv-endpoint=$ip:1 t.py\n",
        3,
        E,
        "a line for each task",
    ),
    Bad(
        "KIT305",
        TWO + "srun torchrun --nnodes 2 --rdzv-endpoint=$(srun hostname -s):29500 t.py\n",
        3,
        E,
        "a line for each task",
    ),
    Bad(
        "KIT305",
        TWO
        + 'head_node_ip="$(srun /bin/hostname -i 2>e | tr -d " ")"\nsrun torchrun --rdzv-endpoint=$head_node_ip t.py\n',
        3,
        E,
        "a line for each task",
    ),
    Bad("KIT406", HEAD + "set -e\nf() {\n [[ -f a ]] && A=1\n}\nf\npython t.py $A\n", 4, W, "test is false"),
    Bad(
        "KIT406",
        HEAD + "set -e\nfunction f {\n if true; then\n test -f a && A=1\n fi\n}\nmain() { f; python t.py; }\nmain\n",
        5,
        W,
        "test is false",
    ),
    Bad("KIT406", HEAD + "set -e\nf() { [ -f a ] && echo --r; }\nA=$(f)\npython t.py $A\n", 3, W, "test is false"),
    Bad("KIT406", HEAD + "set -e\nA=$([ -f a ] && echo --r)\npython t.py $A\n", 3, W, "test is false"),
    Bad("KIT406", HEAD + "set -e\n(cd x; [ -f a ] && rm a)\npython t.py $A\n", 3, W, "test is false"),
    Bad(
        "KIT406",
        HEAD + "set -e\nf() { for i in a b; do [ -f $i ] && rm $i; done; }\nf\npython t.py\n",
        3,
        W,
        "test is false",
    ),
    Bad(
        "KIT406",
        HEAD + "set -e\nf() { command -v module >/dev/null && module purge; }\nf\npython t.py\n",
        3,
        W,
        "test is false",
    ),
    Bad("KIT427", HEAD + "trap 'rm -rf $T' EXIT\ntrap 'kill $P' EXIT\npython t.py\n", 3, W, "this replaces"),
    Bad(
        "KIT427", HEAD + "trap 'cp -r $T/o .' EXIT\nf() { rm -rf $T; }\ntrap f 0\npython t.py\n", 4, W, "this replaces"
    ),
    Bad(
        "KIT427",
        HEAD + "a() { rsync a b; }\nset_up() { trap a EXIT; }\nset_up\ntrap 'rm -rf $T' EXIT\npython t.py\n",
        5,
        W,
        "this replaces",
    ),
    Bad(
        "KIT427",
        HEAD + "trap 'touch stop' USR1\ntrap 'date; scontrol requeue $SLURM_JOB_ID' SIGUSR1\npython t.py & wait $!\n",
        3,
        W,
        "this replaces",
    ),
    Bad(
        "KIT417",
        CHAIN
        + "trap 'kill $P; wait $P; exit 1' USR1\nsbatch -d afterok:$SLURM_JOB_ID $0\npython t.py & P=$!\nwait $P\n",
        4,
        E,
        "never starts",
    ),
    Bad(
        "KIT417",
        CHAIN + 'sbatch --dependency="afterok:${SLURM_JOB_ID}" jobs/tr.sh\ntimeout 50m python t.py\n',
        3,
        E,
        "never starts",
    ),
    Bad(
        "KIT417",
        CHAIN
        + "sbatch -d afterok:$SLURM_JOBID tr.sbatch\nf() { wait; exit 99; }\ntrap f SIGUSR1\npython t.py & wait $!\n",
        3,
        E,
        "never starts",
    ),
    Bad("KIT421", HEAD + "for ((;;)); do date; sleep 5; done > l\npython t.py\n", 2, E, "the loop runs"),
    Bad("KIT421", HEAD + "until false; do date; sleep 5; done\npython t.py\n", 2, E, "the loop runs"),
    Bad("KIT421", HEAD + "while [ 1 ]; do date; sleep 5; done\npython t.py\n", 2, E, "the loop runs"),
    Bad("KIT421", HEAD + "while ((1)); do date; sleep 5; done\npython t.py\n", 2, E, "the loop runs"),
    Bad("KIT421", HEAD + "while [[ 1 ]]; do date; sleep 5; done\npython t.py\n", 2, E, "the loop runs"),
    Bad(
        "KIT421",
        HEAD
        + "m() { while true; do for i in 1 2; do [ $i = 2 ] && break; done; sleep 5; done; }\nm > log\npython t.py\n",
        2,
        E,
        "the loop runs",
    ),
    Bad("KIT421", HEAD + "{ while :; do date; sleep 5; done; } | tee log\npython t.py\n", 2, E, "the loop runs"),
    Bad("KIT406", "#!/bin/bash -e\nf() {\n (( N > 1 )) && export X=1\n}\nf\npython t.py\n", 3, W, "test is false"),
    Bad("KIT406", HEAD + "set -e\nf() { grep -q foo log && R=1; }\nf\npython t.py\n", 3, W, "test is false"),
    Bad("KIT421", HEAD + "bash -c 'while true; do date; sleep 1; done' > log\npython t.py\n", 2, E, "the loop runs"),
    Bad("KIT421", HEAD + "while true; do free; sleep 1; done >log 2>&1; MON=$!\npython t.py\n", 2, E, "the loop runs"),
    Bad("KIT421", HEAD + "for (( ; ; ))\ndo\n nvidia-smi\n sleep 3\n done\nsrun python t.py\n", 4, E, "the loop runs"),
    Bad("KIT421", HEAD + "while sleep 30; do rsync a b; done\ntorchrun --standalone t.py\n", 2, E, "the loop runs"),
    Bad("KIT427", HEAD + "trap -- 'rm -rf $T' EXIT\ntrap -- 'kill $P' EXIT\npython t.py\n", 3, W, "this replaces"),
    Bad("KIT421", HEAD + 'sh -c "while :; do nvidia-smi; sleep 5; done"\npython t.py\n', 2, E, "the loop runs"),
    Bad("KIT421", HEAD + "while test 1 ; do nvidia-smi; sleep 5; done\npython t.py\n", 2, E, "the loop runs"),
    Bad("KIT421", HEAD + "while [ true ]; do nvidia-smi; sleep 5; done\npython t.py\n", 2, E, "the loop runs"),
    Bad("KIT406", HEAD + "set -e\nrun() {\n [[ -f $1 ]] && B=1\n}\nrun big\npython t.py\n", 4, W, "test is false"),
    Bad(
        "KIT427", HEAD + "trap 'rm x' EXIT\nf() { trap - EXIT; ls; }\ntrap f EXIT\npython t.py\n", 4, W, "this replaces"
    ),
    Bad(
        "KIT427",
        HEAD + "trap 'rm x' EXIT\n(trap - EXIT; ls)\ntrap 'kill $P' EXIT\npython t.py\n",
        4,
        W,
        "this replaces",
    ),
]

_HOSTS = "scontrol show hostnames $SLURM_JOB_NODELIST"
_STAGED = "tar -xf d.tar -C /tmp/j$SLURM_JOB_ID/d\n"

BAD += [
    *(
        Bad("KIT215", ONE_A_NODE + f"{code}\ndeepspeed {option} h t.py\n", 3, E, "without slots")
        for option, code in (
            ("--hostfile", f"{_HOSTS} > h"),
            ("--hostfile", f"{_HOSTS} | sort -u > h"),
            ("-H", f"{_HOSTS} | tee h"),
            ("--hostfile", "srun hostname -s | sort -u > h"),
            ("--hostfile", f"for n in $({_HOSTS}); do echo $n >> h; done"),
            ("--hostfile", f'for n in $({_HOSTS}); do echo "$n:8"; done > h'),
            ("--hostfile", f"echo $({_HOSTS}) > h"),
            ("--hostfile", f'nodes=($({_HOSTS})); printf "%s\\n" "${{nodes[@]}}" > h'),
            ("--hostfile", f"{_HOSTS} >> h"),
            ("-H", f"{_HOSTS} | head -n 8 > h"),
        )
    ),
    *(
        Bad("KIT434", HEAD + f"{code}\n", 2, severity, "is an argument of")
        for severity, code in (
            (E, "sbatch a.sh --dependency=afterok:$id"),
            (E, "sbatch a.sh -d afterany:$id x"),
            (E, "sbatch -p gpu -J n a.sh --dependency afterok:$id"),
            (E, "n=$(sbatch --parsable a.sh --dependency=singleton)"),
            (E, "if sbatch --parsable a.sh --dependency=afterok:$id; then echo x; fi"),
            (E, "sbatch jobs/a.sh -d singleton"),
            (W, "sbatch a.sh --array=0-9"),
            (W, "sbatch a.sh data --gres=gpu:1"),
            (W, "for i in 1 2; do sbatch a.sh --export=ALL,I=$i; done"),
            (W, "sbatch a.sh --partition=gpu --time=1:00:00"),
            (W, "sbatch --nodes=2 a.sh --parsable"),
        )
    ),
    *(
        Bad("KIT124", HEAD + f"set -u\n{code}\n", 3, W, "under set -u")
        for code in ("source ~/miniconda3/bin/activate", "source /opt/py/bin/activate pt", ". activate pt")
    ),
    *(
        Bad("KIT408", HEAD + f"{code}\n", line, W, "this test is false")
        for line, code in (
            (4, 'D=0\nsrun python t.py\n[ "$D" = 1 ] && echo kept'),
            (4, "D=0\nsrun python t.py\n[[ $D == 1 ]] && echo kept"),
            (4, "D=0\nsrun python t.py\n((D)) && echo kept"),
            (4, "D=0\nsrun python t.py\ntest $D -eq 1 && cp a b && echo x"),
            (4, "D=false\nsrun python t.py\n[ $D = true ] && rm -rf x"),
            (4, 'D=\nsrun python t.py\n[ -n "$D" ] && rm -rf x'),
            (4, "D=${D:-0}\nsrun python t.py\n[ $D -gt 0 ] && echo x"),
            (3, 'srun python t.py\n[ "${D:-0}" = 1 ] && echo x'),
            (4, "srun python t.py\nrc=$?\n[ $rc -ne 0 ] && exit $rc"),
            (4, "rc=0\nsrun python t.py || rc=$?\n(( rc != 0 )) && exit $rc"),
            (3, "srun python t.py\n[ $? -ne 0 ] && echo failed"),
            (4, 'export "D=0"\nsrun python t.py\n[ "$D" = 1 ] && echo kept'),
            (5, 'D=0\nsrun python t.py\necho "D is off"\n[ "$D" = 1 ] && echo kept'),
            (5, 'D=0\neval "$(conda shell.bash hook)"\nsrun python t.py\n[ $D = 1 ] && echo x'),
            (5, "D=0\nend() {\n  echo x\n  [ $D = 1 ] && rm -rf x\n}\nsrun python t.py\nend"),
            (4, "D=1\nsrun python t.py\n[ ! $D = 1 ] && echo x"),
            (4, "srun python t.py | tee l\nrc=${PIPESTATUS[0]}\n[[ $rc -ne 0 ]] && scontrol requeue $SLURM_JOB_ID"),
        )
    ),
    *(
        Bad("KIT109", HEAD + f"source c/etc/profile.d/conda.sh\n{code}\n", 3, W, "the new shell")
        for code in (
            "srun bash -c 'conda activate a; python t.py'",
            'srun bash -c "conda activate a && python t.py"',
            "srun sh -c 'conda activate a; python t.py'",
            "srun bash -c 'cd x && conda activate a && python t.py'",
            "conda activate a; srun bash -c 'conda activate a; python t.py'",
            "bash -c 'conda activate a; python t.py'",
            "timeout 1h bash -c 'conda activate a; python t.py'",
            "srun bash -c 'mamba activate a; python t.py'",
            "srun --mpi=pmix numactl -l bash -ec 'conda activate a; python t.py'",
            "srun bash -c 'if true; then conda activate a; fi; python t.py'",
        )
    ),
    *(
        Bad("KIT507", ONE_A_NODE + f"export M=x A=1\n{code}\n", 4, W, words)
        for words, code in (
            ("no SLURM_NODEID", "srun apptainer exec -e i.sif bash -c 'torchrun --node-rank=$SLURM_NODEID t.py'"),
            ("no SLURM_NODEID", "srun singularity exec -C i.sif bash -c 'torchrun --node-rank $SLURM_NODEID t.py'"),
            ("no SLURM_JOB_ID", "apptainer exec --nv -e i.sif bash -c 'python t.py --out $SLURM_JOB_ID'"),
            (
                "no SLURM_NODEID",
                "srun apptainer exec -e --env B=1 i.sif bash -c 'torchrun --node-rank=$SLURM_NODEID t.py'",
            ),
            ("no M", "srun apptainer exec -e i.sif bash -c 'torchrun --master-addr=$M --nnodes=4 t.py'"),
            ("no M", "srun apptainer exec -e i.sif bash -c 'export N=$M; torchrun --master-addr=$N t.py'"),
            ("no SLURM_PROCID", "srun apptainer exec -e --env A=1 i.sif python t.py"),
            ("no SLURM_PROCID", "APPTAINERENV_NCCL_DEBUG=WARN srun apptainer exec -e i.sif python t.py"),
            ("no SLURM_PROCID", "srun apptainer exec -C i.sif bash -c 'RANK=$SLURM_PROCID python t.py'"),
            ("no SLURM_NODEID", 'srun apptainer exec -e i.sif bash -c "torchrun --node-rank=\\$SLURM_NODEID t.py"'),
        )
    ),
    *(
        Bad("KIT212", FOUR + f"L=/tmp/j$SLURM_JOB_ID\n{code}\n", 4, W, "local to the first node")
        for code in (
            "tar -xf d.tar -C $L/d\nsrun python t.py --data $L",
            "tar -xf d.tar -C $L/d & p=$!\nwait $p\nsrun bash -c 'python t.py \"$@\"' m --data $L",
            "tar --directory=$L -xf d.tar\nsrun python t.py --data $L/x",
            "tar xf d.tar -C$L\nsrun python t.py $L",
            "cat d.tar | tar x -C $L/d\nsrun python t.py --data=$L",
            "unzip -q d.zip -d $L/d\nexport DATA_DIR=$L\nsrun python t.py",
            "unzip -qd $L d.zip\nsrun python t.py --data $L",
            "rsync -a d/ $L/d/\nsrun torchrun t.py --root $L",
            "7z x d.7z -o$L\nsrun python t.py --data $L",
            "wget -q -P $L https://x/d.tar\nsrun python t.py --data $L",
            "hf download org/m --local-dir $L/m\nsrun python t.py --model $L/m",
            "T=$(mktemp -d); cp -r d $T\nsrun python t.py --data $T",
            "cp d.h5 $TMPDIR/d/\nsrun python t.py --data $TMPDIR",
        )
    ),
    Bad(
        "KIT402",
        HEAD + "for t in a b; do lm_eval $t & done\nwait $!\npython c.py\n",
        3,
        E,
        "the last process of the loop",
    ),
    Bad("KIT421", HEAD + "while sleep 9; do date; done &\npython t.py &\nwait\n", 4, E, "which never ends"),
    Bad("KIT309", FOUR + "export NCCL_SOCKET_IFNAME=docker,lo\nsrun python t.py\n", 3, E, "reaches no other node"),
    Bad(
        "KIT253",
        HEAD + "#SBATCH -a 0-3\nrm -rf /w/$USER/o\npython t.py --log /w/$USER/o/$SLURM_ARRAY_TASK_ID\n",
        3,
        W,
        "deletes",
    ),
    Bad("KIT134", HEAD + "export HF_TOKEN='$(< $HOME/token)'\npython t.py\n", 2, W, "does not run this command"),
    Bad("KIT428", HEAD + "python t.py --ckpt-dir $SLURM_TMPDIR/o\nls $SLURM_TMPDIR/o\n", 2, W, "nothing copies it"),
    Bad(
        "KIT505",
        HEAD + "srun --container-image=a --container-mounts=/r:/results:ro python t.py exp_manager.exp_dir=/results\n",
        2,
        E,
        "mounted read-only",
    ),
    Bad(
        "KIT129",
        HEAD + "M=a\nMODEL=b\npython t.py --out r/$MODEL_fold\n",
        4,
        W,
        "nothing sets $MODEL_fold: the name of",
    ),
    Bad(
        "KIT129",
        HEAD + "for seed in 1 2; do python t.py --seed $seed > log_$seed_x.txt; done\n",
        2,
        W,
        "nothing sets $seed_x: the name of",
    ),
    Bad(
        "KIT129", HEAD + "MODEL=x\nSEED=1\npython t.py --out $MODEL_$SEED\n", 4, W, "nothing sets $MODEL_: the name of"
    ),
    Bad(
        "KIT129",
        HEAD + "python t.py --out out_$SLURM_JOB_ID_best --d $USER_run\n",
        2,
        W,
        "nothing sets $SLURM_JOB_ID_best: the name of",
    ),
    Bad("KIT129", HEAD + 'RUN=a\npython t.py --out "$RUN_01/x"\n', 3, W, "nothing sets $RUN_01: the name of"),
    Bad("KIT135", HEAD + "export PATH=PATH:/opt/bin\nsrun python t.py\n", 2, E, "PATH is a name here, and"),
    Bad("KIT135", HEAD + 'PATH="$HOME/bin:{PATH}"\npython t.py\n', 2, E, "{PATH} is a name here, and"),
    Bad("KIT135", HEAD + "export PATH='/opt/bin:$PATH'\npython t.py\n", 2, E, "$PATH is a name here, and"),
    Bad(
        "KIT135",
        HEAD + "export LD_LIBRARY_PATH=/opt/lib:LD_LIBRARY_PATH\npython t.py\n",
        2,
        W,
        "LD_LIBRARY_PATH is a name here, and",
    ),
    Bad("KIT135", HEAD + "PYTHONPATH=$PWD:PYTHONPATH python t.py\n", 2, W, "PYTHONPATH is a name here, and"),
    Bad(
        "KIT135",
        HEAD + "export PYTHONPATH=/s${PYTHONPATH:+:PYTHONPATH}\npython t.py\n",
        2,
        W,
        "PYTHONPATH is a name here, and",
    ),
    Bad(
        "KIT106",
        HEAD + "#SBATCH -a 0-3\nO=o\npython t.py $SLURM_ARRAY_TASK_ID > $O/t_%a.txt\n",
        4,
        E,
        "the shell does not expand %a",
    ),
    Bad(
        "KIT106",
        HEAD + "#SBATCH -a 0-3\npython t.py $SLURM_ARRAY_TASK_ID 2>&1 | tee log_%A_%a.txt\n",
        3,
        E,
        "the shell does not expand %a",
    ),
    Bad(
        "KIT106",
        HEAD + '#SBATCH -a 0-3\nL=log_%a.out\npython t.py $SLURM_ARRAY_TASK_ID > "$L" 2>&1\n',
        4,
        E,
        "the shell does not expand %a",
    ),
    Bad(
        "KIT106",
        HEAD + "#SBATCH -a 0-3\n{ date; python t.py $SLURM_ARRAY_TASK_ID; } >> out_%a.log\n",
        3,
        W,
        "the shell does not expand %a",
    ),
    Bad(
        "KIT106",
        HEAD + "#SBATCH -a 0-3\npython t.py $SLURM_ARRAY_TASK_ID --out res/%a.json\n",
        3,
        W,
        "the shell does not expand %a",
    ),
    Bad(
        "KIT106",
        HEAD + "#SBATCH -a 0-3\nexec > run_%A_%a.log 2>&1\npython t.py $SLURM_ARRAY_TASK_ID\n",
        3,
        E,
        "the shell does not expand %a",
    ),
    Bad(
        "KIT316",
        HEAD + "#SBATCH -N2 --ntasks-per-node=1 -p x\nexport GLOO_SOCKET_IFNAME=^lo\nsrun python t.py --backend gloo\n",
        3,
        E,
        "the ^ is NCCL's own: Gloo",
    ),
    Bad(
        "KIT316",
        HEAD + "#SBATCH -N2 --ntasks-per-node=1 -p x\nexport GLOO_SOCKET_IFNAME=^docker0,lo\nsrun python t.py\n",
        3,
        W,
        "the ^ is NCCL's own: Gloo",
    ),
    Bad(
        "KIT316",
        HEAD + "#SBATCH -N2 --ntasks-per-node=1 -p x\nexport NCCL_SOCKET_IFNAME=^lo\n"
        "export GLOO_SOCKET_IFNAME=$NCCL_SOCKET_IFNAME\nsrun python t.py\n",
        3,
        W,
        "the ^ is NCCL's own: Gloo",
    ),
    Bad(
        "KIT316",
        HEAD + "#SBATCH -N2 --ntasks-per-node=1 -p x\nexport GLOO_SOCKET_IFNAME==ib0\nsrun python t.py\n",
        3,
        W,
        "the = is NCCL's own: Gloo",
    ),
    Bad(
        "KIT316",
        HEAD + "#SBATCH -N2 --ntasks-per-node=1 -p x\nexport TP_SOCKET_IFNAME=^lo\nsrun python t.py\n",
        3,
        W,
        "the ^ is NCCL's own: Gloo",
    ),
    Bad(
        "KIT421",
        HEAD + "python t.py &\nwhile true; do date; sleep 9; done &\nP=$!\nwait $P\n",
        4,
        E,
        "$! is the process of the",
    ),
    Bad(
        "KIT421",
        HEAD + 'w() { while true; do date; sleep 9; done; }\npython t.py &\nw > g.csv &\nP=$!\nwait "$P"\n',
        5,
        E,
        "$! is the process of the",
    ),
    Bad(
        "KIT421",
        HEAD + "python t.py &\nnvidia-smi -l 5 > g.csv &\nwait $!\n",
        4,
        E,
        "this waits for nvidia-smi in line",
    ),
    Bad(
        "KIT421",
        HEAD + "python t.py &\nnvidia-smi dmon > g.csv &\nPID=${!}\necho $PID\nwait $PID\n",
        4,
        E,
        "$! is the process of nvidia-smi",
    ),
    Bad(
        "KIT421",
        HEAD + "torchrun t.py &\ntensorboard --logdir x &\nTB=$!\nsleep 3\nwait $TB\n",
        4,
        E,
        "$! is the process of tensorboard",
    ),
    Bad("KIT513", HEAD + "apptainer exec i.sif --nv python t.py\n", 2, E, "--nv stands behind the image: the"),
    Bad(
        "KIT513",
        HEAD + 'S=/c/i.sif\nsrun singularity exec "$S" --bind /d:/d python t.py\n',
        3,
        E,
        "--bind stands behind the image: the",
    ),
    Bad("KIT513", HEAD + "O=--nv\napptainer exec $SIF $O python t.py\n", 2, E, "--nv stands behind the image: the"),
    Bad(
        "KIT513",
        HEAD + "apptainer exec --bind /d $HOME/i.sif -B /e python t.py\n",
        2,
        E,
        "-B stands behind the image: the",
    ),
    Bad(
        "KIT513",
        HEAD + "singularity run docker://nvcr.io/nvidia/pytorch:24.01-py3 --nv python t.py\n",
        2,
        W,
        "--nv stands behind the image, whose",
    ),
    Bad(
        "KIT513",
        HEAD + "apptainer exec \\\n  $IMAGE \\\n  --nv --pwd /w python t.py\n",
        4,
        E,
        "--nv stands behind the image: the",
    ),
    Bad(
        "KIT514",
        HEAD + "srun --container-image=a.sqsh pip install ftfy\nsrun --container-image=a.sqsh python t.py\n",
        2,
        W,
        "the packages are lost when this",
    ),
    Bad(
        "KIT514",
        HEAD + "I=/x/a.sqsh\n"
        "srun -n1 --container-image=$I --container-mounts=/d:/d python -m pip install -r r.txt\n"
        'srun --container-image="$I" python t.py\n',
        3,
        W,
        "the packages are lost when this",
    ),
    Bad(
        "KIT514",
        HEAD + "srun --container-image=a.sqsh bash -c 'cd /w && pip install a && pip install b'\n"
        "srun --container-image=a.sqsh bash -c 'cd /w && torchrun t.py'\n",
        2,
        W,
        "the packages are lost when this",
    ),
    Bad(
        "KIT514",
        HEAD + "srun --container-image=a.sqsh apt-get -y install libgl1\n"
        "srun --container-image=a.sqsh --container-name=x python t.py\n",
        2,
        W,
        "the packages are lost when this",
    ),
    Bad(
        "KIT514",
        HEAD + "srun --container-image $IMG --container-writable pip3 install -q a\n"
        "srun --container-image $IMG python -m m.train\n",
        2,
        W,
        "the packages are lost when this",
    ),
    Bad(
        "KIT251",
        HEAD + "#SBATCH -a 1-16\ni=0\nfor f in d/*; do\n"
        "  if (( i % 16 == SLURM_ARRAY_TASK_ID )); then python t.py $f; fi\n  i=$((i + 1))\ndone\n",
        5,
        E,
        "no index of --array=1-16 takes remainder",
    ),
    Bad(
        "KIT251",
        HEAD + "#SBATCH -a 1-8\nN=8\ni=0\nfor f in d/*; do\n"
        "  [ $((i % N)) -ne $SLURM_ARRAY_TASK_ID ] && continue\n  python t.py $f\ndone\n",
        6,
        E,
        "no index of --array=1-8 takes remainder",
    ),
    Bad(
        "KIT251",
        HEAD + "#SBATCH -a 1-4\n"
        "awk -v n=4 -v id=\"$SLURM_ARRAY_TASK_ID\" 'NR % n == id' all.txt > l.$SLURM_ARRAY_TASK_ID\n"
        "python t.py l.$SLURM_ARRAY_TASK_ID\n",
        3,
        E,
        "no index of --array=1-4 takes remainder",
    ),
    Bad(
        "KIT251",
        HEAD + "#SBATCH -a 0-9\nsplit -n l/$SLURM_ARRAY_TASK_ID/10 all.txt > l.$SLURM_ARRAY_TASK_ID\n"
        "python t.py l.$SLURM_ARRAY_TASK_ID\n",
        3,
        E,
        "no index of --array=0-9 takes chunk",
    ),
    Bad(
        "KIT251",
        HEAD + "#SBATCH -a 1-4\nF=(d/*)\n"
        "for ((i = SLURM_ARRAY_TASK_ID; i < ${#F[@]}; i += SLURM_ARRAY_TASK_COUNT)); do python t.py ${F[$i]}; done\n",
        4,
        W,
        "no index of --array=1-4 takes item",
    ),
    Bad(
        "KIT251",
        HEAD + "#SBATCH -a 0-14\ni=0\nfor f in d/*; do\n"
        "  (( i++ % 16 == ${SLURM_ARRAY_TASK_ID:-0} )) || continue\n  python t.py $f\ndone\n",
        5,
        W,
        "no index of --array=0-14 takes remainder",
    ),
    Bad(
        "KIT251",
        HEAD + "#SBATCH -a 0-7\nfor f in d/*; do\n  ((i++))\n"
        "  if ((i % SLURM_ARRAY_TASK_MAX == SLURM_ARRAY_TASK_ID)); then python t.py $f; fi\ndone\n",
        5,
        W,
        "index 7 takes no remainder",
    ),
    Bad(
        "KIT251",
        HEAD + "#SBATCH -a 1-4\n"
        'python -c "import sys; print(*sys.stdin.read().split()[$SLURM_ARRAY_TASK_ID::4])" < l > m\npython t.py m\n',
        3,
        W,
        "no index of --array=1-4 takes item",
    ),
    Bad(
        "KIT256",
        HEAD + "#SBATCH -a 0-475:25\nC=25\nS=$(( SLURM_ARRAY_TASK_ID * C ))\nE=$((S + C))\npython t.py $S $E\n",
        4,
        E,
        "the index is a multiple of",
    ),
    Bad(
        "KIT256",
        HEAD + "#SBATCH -a 0-475:25\nSTART=$((SLURM_ARRAY_TASK_ID * SLURM_ARRAY_TASK_STEP))\npython t.py $START\n",
        3,
        E,
        "the index is a multiple of",
    ),
    Bad(
        "KIT256",
        HEAD + "#SBATCH -a 0-475:25\npython t.py --start-idx $((SLURM_ARRAY_TASK_ID * 25)) --n 25\n",
        3,
        W,
        "the index is a multiple of",
    ),
    Bad(
        "KIT256",
        HEAD
        + "#SBATCH -a 0-475:25\n((first = SLURM_ARRAY_TASK_ID * 25))\nlast=$((first + 24))\npython t.py $first $last\n",
        3,
        E,
        "the index is a multiple of",
    ),
    Bad(
        "KIT256",
        HEAD + "#SBATCH -a 1-476:25\nID=$SLURM_ARRAY_TASK_ID\nOFFSET=$(((ID - 1) * 25))\npython t.py $OFFSET\n",
        4,
        W,
        "the index is a multiple of",
    ),
    Bad(
        "KIT417",
        HEAD + "#SBATCH -J train\nLINK=${LINK:-1}\nif (( LINK < 6 )); then\n  LINK=$((LINK + 1))\n"
        "  sbatch --dependency=afterany:$SLURM_JOB_ID $SLURM_SUBMIT_DIR/train.sh\nfi\npython t.py --resume auto\n",
        5,
        W,
        "the next job does not get",
    ),
    Bad(
        "KIT417",
        HEAD + "#SBATCH -J train\nN=${N:-0}\n((N++))\n"
        '[ $N -lt 5 ] && sbatch --dependency=afterany:$SLURM_JOB_ID "$0"\npython t.py --resume auto\n',
        4,
        W,
        "the next job does not get",
    ),
    Bad(
        "KIT417",
        HEAD + "#SBATCH -J train\nN=${1:-0}\nNEXT=$((N + 1))\n"
        "if [ $NEXT -le 9 ]; then sbatch --dependency=afterany:$SLURM_JOB_ID -J t$NEXT train.sh; fi\n"
        "python t.py --resume auto\n",
        4,
        W,
        "the next job does not get",
    ),
    Bad(
        "KIT417",
        HEAD + "#SBATCH -J train\nCOUNT=${COUNT:-1}\npython t.py --resume auto\nCOUNT=$(expr $COUNT + 1)\n"
        "if [ $COUNT -lt 4 ]; then sbatch train.sh; fi\n",
        5,
        W,
        "the next job does not get",
    ),
    Bad(
        "KIT417",
        HEAD + '#SBATCH -J train\nI="${I:-0}"\nlet I++\nif [[ $I -lt 3 ]]; then\n  echo "job $I"\n'
        "  sbatch --dependency=afterany:$SLURM_JOB_ID train.sh\nfi\npython t.py --resume auto\n",
        4,
        W,
        "the next job does not get",
    ),
    Bad(
        "KIT402",
        HEAD + "#SBATCH -N1 --gpus-per-node=4\nD=$SLURM_TMPDIR/d\n"
        "for p in 0 1 2; do tar -xf a$p.tar -C $D/train & done\ntorchrun --nproc-per-node=4 t.py --data $D\n",
        4,
        E,
        "nothing waits for this tar: line",
    ),
    Bad(
        "KIT402",
        HEAD + "#SBATCH -N1 --gpus-per-node=4\nD=$SLURM_TMPDIR/d\ncp m.bin $D/m.bin &\npython t.py --model $D/m.bin\n",
        4,
        E,
        "nothing waits for this cp: line",
    ),
    Bad(
        "KIT402",
        HEAD + "#SBATCH -N1 --gpus-per-node=4\nD=$SLURM_TMPDIR/d\nrsync -a /p/set/ $D/set &\necho staging\n"
        "python t.py data.root=$D/set\n",
        4,
        E,
        "nothing waits for this rsync: line",
    ),
    Bad(
        "KIT402",
        HEAD + "#SBATCH -N1 --gpus-per-node=4\nD=$SLURM_TMPDIR/d\n"
        "(cp a.zip $D && unzip -q $D/a.zip -d $D/x) &\nexport DATA_DIR=$D/x\npython t.py\n",
        4,
        E,
        "nothing waits for this cp: line",
    ),
    Bad(
        "KIT402",
        HEAD + "#SBATCH -N1 --gpus-per-node=4\nD=$SLURM_TMPDIR/d\nzstd -dc /p/a.tar.zst > $D/a.tar &\n"
        "python t.py --shards $D/a.tar\n",
        4,
        E,
        "nothing waits for this zstd: line",
    ),
    Bad(
        "KIT402",
        HEAD + "#SBATCH -N1 --gpus-per-node=4\nD=$SLURM_TMPDIR/d\nstage() { tar -xf $1 -C $D/train; }\n"
        "stage a.tar &\nstage b.tar &\npython t.py --data $D/train\n",
        4,
        E,
        "nothing waits for this tar: line",
    ),
    Bad(
        "KIT409",
        HEAD + "set -e\nprep() {\n  python tok.py --out d\n  rm -rf raw\n  echo ok\n}\nprep || exit 1\n"
        "python t.py --data d\n",
        8,
        W,
        "set -e has no effect in",
    ),
    Bad(
        "KIT409",
        HEAD + "set -e\nrun() { python a.py; python b.py; }\nif run; then sbatch next.sh; fi\n",
        4,
        W,
        "set -e has no effect in",
    ),
    Bad(
        "KIT409",
        HEAD + "set -e\n( python a.py; echo done ) || { echo failed; exit 1; }\npython t.py\n",
        3,
        W,
        "set -e has no effect in",
    ),
    Bad(
        "KIT409",
        HEAD + "set -e\nstage() {\n  cp -r /p/d $TMPDIR/d\n  echo staged\n}\nstage && python t.py --data $TMPDIR/d\n",
        7,
        W,
        "set -e has no effect in",
    ),
    Bad(
        "KIT409",
        HEAD + 'set -e\nlog() { echo "$(date) $*"; }\ntrain() { srun python t.py; log end; }\n'
        "train || status=$?\nexit ${status:-0}\n",
        5,
        W,
        "set -e has no effect in",
    ),
    Bad(
        "KIT409",
        HEAD + 'set -e\ndie() { echo "$1"; exit 1; }\nfetch() { wget -q http://x/a; tar -xf a; mkdir -p o; }\n'
        "fetch || die fetch\npython t.py\n",
        5,
        W,
        "set -e has no effect in",
    ),
    Bad(
        "KIT251",
        HEAD + "#SBATCH -a 1-16\ni=0\nfor f in d/*; do\n"
        "  if [ $(( $i % $SLURM_ARRAY_TASK_COUNT )) -eq $SLURM_ARRAY_TASK_ID ]; then pyth"
        "on t.py $f; fi\n  i=$((i + 1))\ndone\n",
        5,
        E,
        "no index of --array=1-16 takes remainder",
    ),
    Bad(
        "KIT251",
        HEAD + "#SBATCH -a 1-16\nNT=16\nTASK=$SLURM_ARRAY_TASK_ID\nn=0\nfor f in d/*; do\n"
        "  (( (n++ % NT) == TASK )) || continue\n  python t.py $f\ndone\n",
        7,
        E,
        "no index of --array=1-16 takes remainder",
    ),
    Bad(
        "KIT251",
        HEAD + '#SBATCH -a 1-16\nawk "NR % 16 == $SLURM_ARRAY_TASK_ID" l > m.$SLURM_ARRAY_TASK_ID\n'
        "python t.py m.$SLURM_ARRAY_TASK_ID\n",
        3,
        E,
        "no index of --array=1-16 takes remainder",
    ),
    Bad(
        "KIT251",
        HEAD + "#SBATCH -a 1-16\n"
        "mapfile -t F < <(ls d | awk -v k=$SLURM_ARRAY_TASK_ID -v n=16 '(NR - 1) % n == k')\npython t.py ${F[@]}\n",
        3,
        E,
        "no index of --array=1-16 takes remainder",
    ),
    Bad(
        "KIT251",
        HEAD + "#SBATCH -a 1-16\n"
        'for i in ${!F[@]}; do [[ $((i % 16)) == "$SLURM_ARRAY_TASK_ID" ]] && python t.py ${F[i]}; done\n',
        3,
        E,
        "no index of --array=1-16 takes remainder",
    ),
    Bad(
        "KIT256",
        HEAD + "#SBATCH -a 0-475:25\n"
        "for ((i = SLURM_ARRAY_TASK_ID * 25; i < (SLURM_ARRAY_TASK_ID + 1) * 25; i++)); do python t.py $i; done\n",
        3,
        W,
        "the index is a multiple of",
    ),
    Bad(
        "KIT256",
        HEAD + "#SBATCH -a 0-475:25\n"
        "for i in $(seq $((SLURM_ARRAY_TASK_ID * 25)) $((SLURM_ARRAY_TASK_ID * 25 + 24))); do python t.py $i; done\n",
        3,
        W,
        "the index is a multiple of",
    ),
    Bad(
        "KIT106",
        HEAD + "#SBATCH -a 0-3\nmkdir -p out/%a\npython t.py $SLURM_ARRAY_TASK_ID\n",
        3,
        W,
        "the shell does not expand %a",
    ),
    Bad(
        "KIT402",
        HEAD + "D=/tmp/d\nsrun -n1 tar -xf a.tar -C $D &\nsrun python t.py --data $D\n",
        3,
        E,
        "nothing waits for this tar: line",
    ),
    Bad(
        "KIT402",
        HEAD + "D=/tmp/d\npigz -dc a.tgz | tar -x -C $D &\npython t.py --data $D\n",
        3,
        E,
        "nothing waits for this tar: line",
    ),
]

BAD += [
    *(
        Bad("KIT142", HEAD + code, line, E, "torch stops")
        for line, code in (
            (2, "export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb=512\npython t.py\n"),
            (2, "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments=True\npython t.py\n"),
            (2, "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:true\npython t.py\n"),
            (
                2,
                (
                    "export PYTORCH_CUDA_ALLOC_CONF='max_split_size_mb:128;garbage_collection_threshold:0.8'\n"
                    "python t.py\n"
                ),
            ),
            (2, ("export PYTORCH_CUDA_ALLOC_CONF=garbage_collection_threshold:80,max_split_size_mb:64\npython t.py\n")),
            (2, "export PYTORCH_CUDA_ALLOC_CONF=True\npython t.py\n"),
            (2, "PYTORCH_ALLOC_CONF=max_split_size_mb=64 python t.py\n"),
            (2, "PYTORCH_ALLOC_CONF=max_split_size_mb=64\nexport PYTORCH_ALLOC_CONF\npython t.py\n"),
        )
    ),
    *(
        Bad("KIT311", GPUS + code, line, E, "from 1")
        for line, code in (
            (3, "parallel -j 4 'CUDA_VISIBLE_DEVICES={%} python t.py {}' ::: a b\n"),
            (3, 'parallel -j 4 "CUDA_VISIBLE_DEVICES={%} python t.py {}" ::: a b\n'),
            (3, "parallel -j 4 python t.py --gpu {%} --in {} ::: a b\n"),
            (3, "parallel -j 4 python t.py --device cuda:{%} --in {} ::: a b\n"),
            (
                4,
                (
                    "run() {\n export CUDA_VISIBLE_DEVICES=$2\n python t.py $1\n}\nexport -f run\n"
                    "parallel -j 4 run {} {%} ::: a b\n"
                ),
            ),
            (
                5,
                (
                    "run() {\n local f=$1 gpu=$2\n CUDA_VISIBLE_DEVICES=$gpu python t.py $f\n}\nexport -f run\n"
                    "parallel -j 4 run {} {%} ::: a b\n"
                ),
            ),
            (
                4,
                (
                    "run() {\n CUDA_VISIBLE_DEVICES=$PARALLEL_JOBSLOT python t.py $1\n}\nexport -f run\n"
                    "parallel -j 4 run ::: a b\n"
                ),
            ),
            (3, "parallel -j 4 'CUDA_VISIBLE_DEVICES={#} python t.py {}' ::: a b c d\n"),
        )
    ),
    *(
        Bad("KIT412", HEAD + code, line, E, "takes the id")
        for line, code in (
            (4, "srun python t.py &\nsleep 9\nkill -USR1 $SLURM_JOB_ID\nwait\n"),
            (2, "trap 'kill -TERM $SLURM_JOB_ID' USR1\nsrun python t.py &\nwait\n"),
            (4, 'J=$SLURM_JOBID\nsrun python t.py &\nkill -s TERM "$J"\nwait\n'),
            (3, "id=$(sbatch --parsable a.sh)\nkill $id\n"),
            (3, "id=$(sbatch --parsable a.sh)\nwait $id\npython t.py\n"),
            (3, "python t.py &\nscancel $!\n"),
            (5, "python t.py &\npid=$!\nsleep 9\nscancel $pid\n"),
            (2, 'stop() { kill -USR1 "$SLURM_JOB_ID"; }\ntrap stop TERM\npython t.py &\nwait\n'),
        )
    ),
    *(
        Bad("KIT423", HEAD + code, line, W, "Slurm ends the job")
        for line, code in (
            (
                5,
                (
                    "f() {\n kill $p\n wait $p\n scontrol requeue $SLURM_JOB_ID\n cp -r $L $R\n}\ntrap f USR1\n"
                    "python t.py & p=$!\nwait $p\n"
                ),
            ),
            (
                5,
                (
                    "python t.py\nrc=$?\nif [ $rc = 85 ]; then\n"
                    " scontrol requeue ${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}\n tar -cf a.tar d\nfi\n"
                    "exit $rc\n"
                ),
            ),
            (3, "python t.py\nscancel $SLURM_JOB_ID\nrsync -a d/ e/\n"),
            (
                3,
                ('python t.py\nif [ ! -f done ]; then scontrol requeue "$SLURM_JOB_ID"; sleep 5; rsync -a d/ e/; fi\n'),
            ),
            (
                4,
                (
                    "python t.py\nif [ ! -f done ]; then\n scontrol requeue $SLURM_JOB_ID || echo no\n"
                    " python upload.py\nfi\n"
                ),
            ),
        )
    ),
    *(
        Bad("KIT147", HEAD + code, line, E, "bash")
        for line, code in (
            (2, "GROUPS=(a b c)\npython t.py ${GROUPS[$I]}\n"),
            (2, "UID=7\npython t.py --uid $UID\n"),
            (2, "read -r UID NAME < f\npython t.py $UID\n"),
            (2, "for GROUPS in a b; do python t.py $GROUPS; done\n"),
            (3, "set -e\nexport UID=$(id -u)\npython t.py\n"),
            (2, "PPID=$(cat f)\nkill $PPID\n"),
            (2, "FUNCNAME=relu\npython t.py --f $FUNCNAME\n"),
        )
    ),
    *(
        Bad("KIT402", GPUS + code, line, W, "wait -n returns")
        for line, code in (
            (
                5,
                (
                    "run() { CUDA_VISIBLE_DEVICES=$1 python t.py $1; }\nfor i in 0 1 2 3; do run $i & done\n"
                    "wait -n\npython plot.py\n"
                ),
            ),
            (4, "python t.py --seed 1 & python t.py --seed 2 &\nwait -n\necho done\n"),
            (4, ('for i in 0 1; do CUDA_VISIBLE_DEVICES=$i python t.py & p+=($!); done\nwait -n "${p[@]}"\ncp a b\n')),
            (4, "for i in 0 1; do srun -N1 -n1 --exact python t.py $i & done\nwait -n\n"),
            (4, "for i in 0 1; do CUDA_VISIBLE_DEVICES=$i python t.py & done\nwait -fn\npython plot.py\n"),
        )
    ),
    *(
        Bad("KIT148", HEAD + code, line, W, "IFS stays")
        for line, code in (
            (2, "IFS=','\nset -- $ROW\nO='--a 1 --b 2'\npython t.py $O --lr $1\n"),
            (2, 'IFS=,\nread -ra G <<< $X\nO="--a 1 --b 2"\nsrun python t.py $O\n'),
            (2, "IFS=$'\\n'\nL=($(cat f))\nO='--a 1 --b 2'\npython t.py ${L[0]} $O\n"),
            (2, "IFS=,\nset -- $X\nfor h in $(scontrol show hostnames); do ssh $h python t.py; done\n"),
            (2, "export IFS=:\nS='1 2 3'\nfor s in $S; do python t.py $s; done\n"),
            (2, "IFS=,\nA=($X)\nO=(x $(seq 1 3))\npython t.py ${O[1]}\n"),
        )
    ),
    *(
        Bad("KIT409", HEAD + code, line, W, "this subshell alone")
        for line, code in (
            (2, "test -f d || (echo missing; exit 1)\npython t.py\n"),
            (3, "if [ ! -f d ]; then\n (echo missing; exit 1)\nfi\npython t.py\n"),
            (3, "ls d | while read f; do\n test -s d/$f || exit 1\ndone\npython t.py\n"),
            (2, "md5sum -c s || ( echo bad >&2 ; rm -f s ; exit 2 )\nsrun python t.py\n"),
            (2, "[ -f done ] && (echo done; exit 0)\npython t.py\n"),
            (3, "set -e\n{ test -f d || exit 1; } | tee log\npython t.py\n"),
            (2, "cd /data || (exit 1)\npython t.py\n"),
        )
    ),
    *(
        Bad("KIT210", GPUS2 + code, line, E, "ranks exist twice")
        for line, code in (
            (3, "srun bash -c 'RANK=$SLURM_LOCALID python t.py'\n"),
            (3, "srun bash -c 'export RANK=$SLURM_NODEID; python t.py'\n"),
            (3, "srun bash -c 'python t.py --rank $SLURM_LOCALID'\n"),
            (4, "cat > w.sh <<'E'\nexport RANK=${SLURM_LOCALID}\npython t.py\nE\nsrun bash w.sh\n"),
        )
    ),
    *(
        Bad("KIT228", GPUS + code, line, E, "${#")
        for line, code in (
            (3, "N=${#CUDA_VISIBLE_DEVICES}\ntorchrun --nproc-per-node=$N t.py\n"),
            (3, "export NG=${#SLURM_JOB_GPUS}\npython t.py\n"),
            (4, "GPUS=0,1,2,3\nN=${#GPUS}\ntorchrun --nproc-per-node=$N t.py\n"),
            (4, "L=(a b c)\nfor ((i = 0; i < 3; i++)); do python t.py ${#L}; done\n"),
            (4, "S='1 2 3'\nN=${#S}\npython t.py $N\n"),
            (4, "H=($(scontrol show hostnames))\nN=${#H}\npython t.py $N\n"),
        )
    ),
    *(
        Bad("KIT231", HEAD + code, line, E, "exclude each other")
        for line, code in (
            (3, "#SBATCH --gpus-per-node=4\ndeepspeed --num_gpus 4 --include localhost:0,1,2,3 t.py\n"),
            (3, "#SBATCH --gpus-per-node=4\ndeepspeed --num_gpus=4 --exclude=localhost:0 t.py\n"),
            (3, "#SBATCH --gpus-per-node=4\ndeepspeed --include a:0 --exclude a:1 t.py\n"),
            (3, "#SBATCH --gpus-per-node=4\ndeepspeed --num_nodes 2 --hostfile h --include a@b t.py\n"),
            (3, "#SBATCH --gpus-per-node=4\naccelerate launch --multi_gpu --use_fsdp --num_processes 4 t.py\n"),
            (3, ("#SBATCH --gpus-per-node=4\naccelerate launch --multi_gpu --use_deepspeed --num_processes 4 t.py\n")),
        )
    ),
    *(
        Bad("KIT225", HEAD + code, line, E, "no worker can join")
        for line, code in (
            (
                4,
                (
                    "#SBATCH -N2 --ntasks-per-node=1 --gpus-per-node=4 -c8\n"
                    "srun -N1 -n1 -w $A ray start --head --node-ip-address=$IP --port=6379 --block &\n"
                    "srun -N1 -n1 -w $B ray start --address $IP:8265 --block &\npython t.py\n"
                ),
            ),
            (
                4,
                (
                    "#SBATCH -N2 --ntasks-per-node=1 --gpus-per-node=4 -c8\n"
                    "srun -N1 -n1 -w $A ray start --head --node-ip-address=$IP --port 6380 --block &\n"
                    "srun -N1 -n1 -w $B ray start --address $IP:6379 --block &\npython t.py\n"
                ),
            ),
            (
                4,
                (
                    "#SBATCH -N2 --ntasks-per-node=1 --gpus-per-node=4 -c8\n"
                    "srun -N1 -n1 -w $A ray start --head --node-ip-address=$IP  --block &\n"
                    "srun -N1 -n1 -w $B ray start --address $IP:6380 --block &\npython t.py\n"
                ),
            ),
            (
                5,
                (
                    "#SBATCH -N2 --ntasks-per-node=1 --gpus-per-node=4 -c8\nP=$((7000 + SLURM_JOB_ID % 1000))\n"
                    "srun -N1 -n1 -w $A ray start --head --node-ip-address=$IP --port=$P --block &\n"
                    "srun -N1 -n1 -w $B ray start --address $IP:6379 --block &\npython t.py\n"
                ),
            ),
            (
                6,
                (
                    "#SBATCH -N2 --ntasks-per-node=1 --gpus-per-node=4 -c8\n"
                    "srun -N1 -n1 -w $A ray start --head --node-ip-address=$IP --port=6379 --block &\n"
                    "srun -N1 -n1 -w $B ray start --address $IP:6379 --block &\npython t.py\n"
                    "RAY_ADDRESS=$IP:8265 python u.py\n"
                ),
            ),
            (
                5,
                (
                    "#SBATCH -N2 --ntasks-per-node=1 --gpus-per-node=4 -c8\nP=6379\nD=8265\nH=$IP:$D\n"
                    "srun -N1 -n1 -w $A ray start --head --port=$P --dashboard-port=$D --block &\n"
                    "srun -N1 -n1 -w $B ray start --address $H --block &\npython t.py\n"
                ),
            ),
        )
    ),
    *(
        Bad("KIT107", HEAD + code, line, E, "the unquoted")
        for line, code in (
            (2, "sbatch --constraint=a100|h100 a.sh\npython t.py\n"),
            (2, "id=$(sbatch --parsable -C a100|h100 a.sh)\npython t.py\n"),
            (2, "srun --constraint=[r1|r2] python t.py\n"),
            (2, "sbatch -C a100&nvlink a.sh\n"),
            (2, "curl -O https://h.org/f?a=1&b=2\npython t.py\n"),
            (2, 'wget -q "$U" https://h.org/f?id=3&confirm=t -O x\npython t.py\n'),
            (2, "sbatch --prefer=a100|h100 a.sh\n"),
        )
    ),
    *(
        Bad("KIT433", GPUS + code, line, E, "and this asks port")
        for line, code in (
            (
                4,
                (
                    "vllm serve m --port 9000 &\nuntil curl -sf http://localhost:8000/health; do sleep 5; done\n"
                    "python c.py\n"
                ),
            ),
            (
                5,
                (
                    "P=$((9000 + SLURM_JOB_ID % 99))\nvllm serve m --port $P &\n"
                    "until curl -sf localhost:8000/health; do sleep 5; done\npython c.py\n"
                ),
            ),
            (
                5,
                (
                    "P=9000\npython -m vllm.entrypoints.openai.api_server --port $P &\n"
                    "while ! nc -z localhost 8000; do sleep 5; done\npython c.py\n"
                ),
            ),
            (5, "vllm serve m --port 9000 &\nsleep 300\npython c.py --base-url http://127.0.0.1:8000/v1\n"),
            (
                4,
                (
                    "python -m sglang.launch_server --port=9000 &\n"
                    "until curl -s http://$(hostname):30000/health; do sleep 1; done\npython c.py\n"
                ),
            ),
        )
    ),
    *(
        Bad("KIT136", HEAD + code, line, W, "this copies to")
        for line, code in (
            (2, "rsync -a /data/imagenet $TMPDIR/d\npython t.py --train_dir $TMPDIR/d/train\n"),
            (3, "mkdir -p $TMPDIR/d\ncp -r /data/imagenet $TMPDIR/d\npython t.py --data-dir=$TMPDIR/d/train\n"),
            (
                3,
                (
                    "mkdir -p $TMPDIR/d\nsrun -n1 rsync -a /data/imagenet $TMPDIR/d\n"
                    "python t.py --train $TMPDIR/d/train --val $TMPDIR/d/val\n"
                ),
            ),
            (3, "S=/data/coco\nrsync -av --info=progress2 $S $TMPDIR/\npython t.py --images $TMPDIR/images\n"),
            (2, "rsync -a me@fs:/data/coco $TMPDIR/c\npython t.py --images $TMPDIR/c/train2017\n"),
            (3, "mkdir $TMPDIR/d\ncp -R /data/imagenet $TMPDIR/d\npython t.py --data-dir=$TMPDIR/d/train\n"),
        )
    ),
    *(
        Bad("KIT417", HEAD + code, line, W, "its time limit ends")
        for line, code in (
            (
                3,
                (
                    "# each link runs until the time limit ends it\n"
                    "if [ ! -f done ]; then sbatch --dependency=afterok:$SLURM_JOB_ID $0; fi\n"
                    "python t.py --resume\n"
                ),
            ),
            (
                3,
                (
                    "# Jobs are killed at the wall clock limit, so that the chain goes on with the next one.\n"
                    "if [ ! -f done ]; then sbatch --dependency=afterok:$SLURM_JOB_ID $0; fi\n"
                    "python t.py --resume\n"
                ),
            ),
        )
    ),
    *(
        Bad("KIT402", GPUS + code, line, E, "the parentheses are")
        for line, code in (
            (6, ("for f in 0 1; do\n (\n cd r$f || exit 1\n CUDA_VISIBLE_DEVICES=$f python t.py &\n )\ndone\nwait\n")),
            (
                3,
                (
                    "(CUDA_VISIBLE_DEVICES=0 python t.py --seed 0 &)\n"
                    "(CUDA_VISIBLE_DEVICES=1 python t.py --seed 1 &)\nwait\n"
                ),
            ),
        )
    ),
]

GOOD = [
    *(
        (
            "KIT207",
            f"{ONE_A_NODE}r=0\n{loop}\n  ssh -n $h '{agent}' &\n  {count}\ndone{source}\nwait\n".replace("'", '"'),
        )
        for agent in ("cd /x && torchrun --nnodes=4 --node_rank=$r t.py",)
        for loop, source in (("while read -r h; do", " < hosts"), ("for h in $(cat hosts); do", ""))
        for count in ("((r++))", "r=$((r + 1))", "let r+=1")
    ),
    *(
        ("KIT434", f"{HEAD}id=$(sbatch --parsable a.sh)\n{code}\n")
        for code in (
            "sbatch --dependency=afterok:$id b.sh --dependencies x",
            "sbatch $OPTIONS --dependency=afterok:$id b.sh",
            'sbatch "${options[@]}" --dependency=afterok:$id b.sh',
            "sbatch -d afterok:$id --wrap 'python t.py'",
            "sbatch -N 2 -d afterok:$id $HOME/b.sh",
        )
    ),
    *(
        ("KIT405", HEAD + code)
        for code in (
            "if srun python t.py; then :; else rc=$?; exit $rc; fi\n",
            "if ! srun python t.py; then touch FAILED; rc=1; exit $rc; fi\n",
            "if ! false || srun python t.py; then rc=$?; fi\n",
            "if ! srun python t.py; then cd x; a=$?; fi\n",
        )
    ),
    ("KIT401", GPUS + "for c in *.pt; do\n  srun python t.py $c || echo $c >> failed\ndone\npython collect.py\n"),
    ("KIT125", HEAD + "{ module load cuda; source v/bin/activate; } > >(tee log) 2>&1\npython t.py\n"),
    ("KIT125", HEAD + "{ module load cuda; python t.py; } 2>&1 | tee log\npython t.py --eval\n"),
    ("KIT125", HEAD + "main() { module load cuda; python t.py; }\nmain | tee log\n"),
    ("KIT125", "#!/bin/zsh\ncat modules | while read m; do module load $m; done\npython t.py\n"),
    ("KIT512", GPUS + "apptainer exec i.sif pip install peft && apptainer exec --nv i.sif python t.py\n"),
    ("KIT512", GPUS + "apptainer exec i.sif convert a b && python t.py\n"),
    *(
        ("KIT505", GPUS + f"{code}\n")
        for code in (
            "apptainer exec --nv i.sif python src/t.py",
            "apptainer exec --nv -C --bind $PWD --pwd $PWD i.sif python t.py",
            "apptainer exec --nv -C -H $PWD i.sif python t.py",
            "apptainer exec --nv -C $OPTIONS i.sif python t.py",
            "apptainer exec --nv -C i.sif python /opt/t.py",
            "apptainer exec --nv -C i.sif bash -c 'cd /app && python t.py'",
            "docker run --rm --gpus all image python t.py",
        )
    ),
    *(
        ("KIT406", HEAD + f"{head}\n{code}\npython t.py\n")
        for head, code in (
            ("set -e", "let i=1"),
            ("set -e", "let i=0 || true"),
            ("set -e", "i=0; ((i += 1)); ((i++))"),
            ("set -e", "n=$(expr length $X)"),
            ("set -e", "(( N > 0 ))"),
            ("set -e", "for ((i = 0; i < 4; i++)); do python t.py; done"),
            ("set -e", "n=$(grep nan l | wc -l)"),
            ("set -e; set +e", "let i=0"),
            ("set -eo pipefail", "n=$(nvidia-smi -L | grep GPU | wc -l)"),
            ("set -eo pipefail", "n=$({ grep nan l || true; } | wc -l)"),
            ("#SBATCH -a 1-8\nset -e", "n=$((SLURM_ARRAY_TASK_ID - 1)); let m=SLURM_ARRAY_TASK_ID%9"),
        )
    ),
    *(
        ("KIT432", HEAD + f"{code}\npython t.py\n")
        for code in (
            "ls -t c/*.pt | head -n 1 | xargs rm",
            "ls -tr c/*.pt | head -n 3 | xargs rm",
            "ls -t c | head -n 3 | xargs -I{} cp c/{} keep/",
            "echo newest: $(basename $(ls -t c | tail -n 1))",
        )
    ),
    ("KIT145", HEAD + 'N=3\nfor i in $(bash -c "echo {0..$N}") "$(seq 0 3)"; do python t.py $i; done\n'),
    ("KIT145", HEAD + "for s in 'a-{00..12}.tar' 'b-{00..03}.tar'; do python t.py $s; done\n"),
    *(
        ("KIT413", HEAD + f"#SBATCH --requeue{mode}\n{code}\n")
        for mode, code in (
            *(
                (" --open-mode=append", code)
                for code in (
                    "python t.py --resume > >(tee -a log) 2> >(tee --append err >&2)",
                    "python t.py --resume &> >(cat >> log)",
                    "python t.py --resume |& tee -ia log",
                    "python t.py --resume | tee log -a",
                    "python t.py --resume > >(logger -t job)",
                    "python t.py --resume > >(awk '{print $1 > 2}' >> log)",
                    "python t.py --resume | tee >(grep loss >> loss)",
                    "{ python t.py --resume; } >> log 2>&1",
                    "exec 9> lock; flock 9; python t.py --resume >&2",
                )
            ),
            ("", "exec > >(tee -a log) 2>&1; python t.py --resume"),
            ("", "exec &>> log; python t.py --resume"),
            ("", "python t.py --resume |& tee -a log"),
            ("", "srun --output=log --open-mode=append python t.py --resume"),
            (" --output=/dev/null", "python t.py --resume >> log"),
        )
    ),
    ("KIT145", HEAD + "for i in d/{0..7}/$S {a..c}-${T} {$A,$B}/../x; do python t.py $i; done\n"),
    ("KIT145", HEAD + 'A=({0..3} "{0..$N}" {a,b}/$N/.. $(seq 0 $N))\nfor i in "${A[@]}"; do python t.py $i; done\n'),
    ("KIT202", ONE_A_NODE + "srun -N1 -n1 python train.py\ncat hosts | xargs -I{} ssh {} torchrun --nnodes=4 t.py\n"),
    ("KIT212", FOUR + "cat hosts | xargs -I{} ssh {} cp -r /d /tmp/d\nsrun python t.py --d /tmp/d\n"),
    ("KIT212", FOUR + "ls /d/* | xargs -I{} srun -N2 -n2 cp {} /tmp/d/\nsrun python t.py --d /tmp/d\n"),
    ("KIT212", FOUR + "gzip -r /tmp/d\nsrun python t.py --d /tmp/d\n"),
    (
        "KIT308",
        GPUS + "P=29511\ntorchrun --master_port=$P a.py &\nP=29512\ntorchrun --master_port=$P b.py &\nwait\n",
    ),
    (
        "KIT311",
        GPUS
        + "T=(a b c d e f)\nfor i in ${!T[@]}; do\n ((i < 4)) && CUDA_VISIBLE_DEVICES=$i python t.py &\ndone\nwait\n",
    ),
    (
        "KIT311",
        GPUS + "T=(a b c d e)\nunset 'T[4]'\nfor i in ${!T[@]}; do CUDA_VISIBLE_DEVICES=$i python t.py & done\nwait\n",
    ),
    ("KIT311", GPUS + "for ((g = 0; g < 4; g++)); do CUDA_VISIBLE_DEVICES=$g python t.py & done\nwait\n"),
    (
        "KIT402",
        "#!/bin/zsh\nls *.y | while read f; do\n python t.py $f & p+=($!)\ndone\nfor i in $p; do wait $i; done\nwait\n",
    ),
    ("KIT405", HEAD + "echo a\n[[ -f done ]] || { python t.py; rc=$?; }\nexit $rc\n"),
    ("KIT405", HEAD + "mkdir o\necho a\nif [[ -n $R ]]; then python t.py; rc=$?; fi\nexit $rc\n"),
    ("KIT405", HEAD + "mkdir o\necho a\ncase $1 in a) python t.py; exit $? ;; esac\n"),
    ("KIT405", HEAD + "mkdir o\nV=$(python c.py)\nif [ $? -ne 0 ]; then exit 1; fi\npython t.py $V\n"),
    ("KIT405", HEAD + "./p | tee l\nS=(${PIPESTATUS[@]})\n[ ${S[0]} -eq 0 ] || exit 1\n"),
    *(
        ("KIT406", HEAD + f"set -euo pipefail\n{code}\nsrun python t.py $A\n")
        for code in (
            'if compgen -G "o/*.pt"; then\n  L=$(ls -t o/*.pt | head -1)\n  A=${L:+--resume $L}\nfi',
            'L=$(ls c/*.yaml | sed -n "${N}p")\nif [ -n "$L" ]; then A=$L; fi',
            'L=$(ls -t o/*.pt | head -1)\n[ -n "${L:-}" ] || exit 1',
            'L=$(ls -t o/*.pt | head -1)\n[[ -f "$L" ]] || {\n  echo none\n  exit 2\n}',
            'L=$(ls -t o/*.pt | head -1)\nif [[ -z "$L" ]]; then\n  echo none\n  exit 2\nfi',
            'L=$(grep id m | cut -d: -f2)\n[ -n "$L" ] || die none',
            'python train.py\nL=$(ls -t o/*.pt | head -1)\n[ -n "$L" ] && A=$L',
        )
    ),
    ("KIT423", HEAD + 'exec {lock}>"$HOME/.lock"\nflock $lock\npython t.py\ncp -r o $HOME/\n'),
    *(
        ("KIT429", HEAD + f"for s in {words}; do\n{code}\ndone\n")
        for words, code in (
            ("1 2", "export SEED=$s\nsbatch -J s$s -d singleton t.sh"),
            ("1 2", "SEED=$s sbatch -J s$s -d singleton t.sh"),
            ("1 2", "cd run$s\nsbatch -J s$s -d singleton t.sh\ncd .."),
            ("1 2", "sbatch -J s$s -d singleton <<E\n#!/bin/bash\npython t.py --seed $s\nE"),
            ("a b", "sbatch -J $s -d singleton t.sh"),
        )
    ),
    ("KIT431", HEAD + "#SBATCH -t 2:00:00\ntimeout 120 srun python check_nccl.py || exit 1\nsrun python t.py\n"),
    ("KIT431", HEAD + "#SBATCH -t 1:00:00\ntimeout 60 srun python eval.py --quick\n"),
    *(
        ("KIT432", HEAD + f"python t.py\n{code}\n")
        for code in (
            "ls -t --color=never o/*.pt | tail -n +4 | xargs rm",
            "ls --sort=time o/*.pt | tail -n +4 | xargs rm",
            "ls -d o/s_* | sort --version-sort | head -n -3 | xargs rm -r",
            "ls -d s_* | sort -t_ -k2,2nr | tail -n +4 | xargs rm -r",
            "ls o/*-val_loss=*.ckpt | sort -t= -k3 -n | tail -n +4 | xargs rm",
            "ls -ltr o | tail -n +2 > list\nrm -r tmp",
            "ls -v o | tail -n +2 | wc -l\nrm -f core",
            "for d in $(ls -dt s_* | head -n -2); do cp -r $d b/; done\nrm -r tmp",
        )
    ),
    ("KIT505", GPUS + "apptainer exec --nv --bind /d:/d, /images/x.sif python t.py\n"),
    ("KIT505", GPUS + "mkdir $TMPDIR/v\napptainer exec --nv -C -B /jobfs i.sif python t.py --d $TMPDIR/v\n"),
    ("KIT308", HEAD + "for k in 0 1; do\n  CUDA_VISIBLE_DEVICES=$k torchrun --nproc_per_node=2 t.py &\ndone\nwait\n"),
    ("KIT308", HEAD + "accelerate launch --num_processes 1 a.py &\naccelerate launch --num_processes 1 b.py &\nwait\n"),
    ("KIT308", HEAD + 'for c in a b; do\n  torchrun --master-port=29601 t.py $c & pid=$!\n  wait "$pid"\ndone\n'),
    (
        "KIT251",
        HEAD + '#SBATCH -a 0-1\nL="a b"\nread -r -a L <<< "$L"\npython t.py ${L[$SLURM_ARRAY_TASK_ID]}\n',
    ),
    ("KIT411", HEAD + 'trap "rm -rf $TMPDIR/x" EXIT\nTMPDIR=/dev/shm python prepare.py\npython t.py\n'),
    ("KIT411", HEAD + 'trap "rm -rf $TMPDIR/x" EXIT\nexport TMPDIR=/dev/shm\npython t.py\n'),
    ("KIT411", HEAD + 'trap "rm -rf $stage" EXIT\nstage=/dev/shm python prepare.py\npython t.py\n'),
    ("KIT432", HEAD + 'python t.py --resume auto --init-from "$(ls -t old/*.pt | tail -n 1)"\n'),
    ("KIT252", HEAD + '#SBATCH -a 1-9\nseed() {\n  echo "$SLURM_ARRAY_TASK_ID"\n}\npython t.py --seed $(seed)\n'),
    ("KIT252", HEAD + '#SBATCH -a 1-9\n{\n  echo "seed: $SLURM_ARRAY_TASK_ID"\n} > c.yaml\npython t.py c.yaml\n'),
    ("KIT106", HEAD + "python run_with_submitit.py --job_dir runs/%j\n"),
    ("KIT202", ONE_A_NODE + "python submitit_sweep.py\n"),
    ("KIT134", HEAD + "LR=1\nsrun python affinity.py -- bash -c 'python t.py --lr $LR'\n"),
    ("KIT223", GPUS + "export SLURM_STEP_GRES=none\nsrun -n1 python a.py &\nsrun -n1 python b.py &\nwait\n"),
    ("KIT217", FOUR + "#SBATCH -c 8\nmpirun --bind-to core --cpus-per-rank 8 python t.py\n"),
    ("KIT139", HEAD + 'A=(1, 2)\npython t.py --dims "${A[*]}"\n'),
    (
        "KIT207",
        ONE_A_NODE + "srun bash -c 'accelerate launch --config_file a.yaml --num_machines 4 --num_processes 16 "
        "--machine_rank $SLURM_LOCALID t.py'\n",
    ),
    ("KIT208", GPUS + "python t.py --device cuda:0 --data_parallel\n"),
    ("KIT208", GPUS + "python t.py --gpu 0 --multiprocessing-distributed\n"),
    (
        "KIT253",
        HEAD + "#SBATCH --array=0-3\nL=(1 2)\nLR=${L[$SLURM_ARRAY_TASK_ID]}\n"
        "python t.py --lr $LR --name x-$LR --checkpoint-dir /s/ckpt --save-steps 5\n",
    ),
    ("KIT505", HEAD + "apptainer exec --nv -B /p:/p:ro i.sif python infer.py --ckpt-dir /p/m --root-dir /p/data\n"),
    ("KIT139", HEAD + 'A=(1, 2)\npython t.py --dims "${A[*]}"\nB=(3, 4)\nb=${B[0]}\npython t.py ${b%,}\n'),
    ("KIT139", HEAD + "A=(--betas 0.9,0.95)\npython t.py ${A[0]} ${A[1]}\n"),
    ("KIT134", HEAD + "F=run.sh\ncat > $F <<'E'\nnodes: $SLURM_NNODES\nE\n"),
    ("KIT119", GPUS2 + "#SBATCH --gpus-per-task=1\n"),
    ("KIT208", GPUS + "vllm serve m --tensor-parallel-size 3 &\npython t.py --device cuda:0\n"),
    ("KIT208", GPUS + "python t.py --device cuda\n"),
    ("KIT503", HEAD + "rm -rf /shared/out/a /gpfs/lab/shared/$USER/cache /gpfs/lab/shared/tmp/$SLURM_JOB_ID\n"),
    ("KIT503", HEAD + "export HF_HOME=/tmp/hf\nrm -rf /tmp/hf\n"),
    ("KIT429", HEAD + 'sbatch -d afterok:${a}_7:$b,after:$c+5 y -d data\nsbatch --dependency="afterok$ids" y\n'),
    (
        "KIT253",
        HEAD + "#SBATCH --array=0-3\nL=(1 2)\nLR=${L[$SLURM_ARRAY_TASK_ID]}\n"
        "python t.py --lr $LR --run-name x-$LR --checkpoint-dir /s/ckpt\n",
    ),
    (
        "KIT415",
        HEAD + "#SBATCH --array=1-6%1\n"
        "python t.py --seed $SLURM_ARRAY_TASK_ID --output_dir out --overwrite_output_dir\n",
    ),
    (
        "KIT415",
        HEAD + "#SBATCH --requeue\npython t.py --overwrite_output_dir --resume_from_checkpoint out/last\n",
    ),
    (
        "KIT505",
        HEAD + "apptainer exec --nv -B /p:/w:ro,/p/out:/w/out i.sif python t.py --save-dir /w/out/a --data /w\n",
    ),
    (
        "KIT210",
        ONE_A_NODE + "W=$((SLURM_NTASKS * 8))\nA=$((GLOBAL_BATCH / (4 * W)))\n"
        "srun torchrun --nnodes=4 --nproc-per-node=8 --rdzv-endpoint=h:1 t.py --gradient_accumulation_steps $A\n",
    ),
    (
        "KIT210",
        ONE_A_NODE + "A=$((32 / SLURM_NTASKS))\n"
        "srun torchrun --nnodes=4 --nproc-per-node=8 --rdzv-endpoint=h:1 t.py --gradient_accumulation_steps $A\n",
    ),
    ("KIT133", HEAD + "#SBATCH -p a100\n# submit with: sbatch --gpus=4 this.sh\npython t.py\n"),
    ("KIT421", HEAD + "while true; do python t.py && break; done\npython u.py\n"),
    ("KIT406", HEAD + "set -e\nn=0\n((n++)) || true\n"),
    ("KIT406", HEAD + "set -e\nn=$(grep -c unk hyp.txt || true)\nm=$(grep -c a b) || m=0\n"),
    ("KIT406", HEAD + "n=$(grep -c unk hyp.txt)\n"),
    ("KIT407", HEAD + "cp -r out results\nrm -rf other\n"),
    ("KIT407", HEAD + 'rsync -a "$SLURM_SUBMIT_DIR/" "$L/"\nrsync -a --delete "$L/" "$SLURM_SUBMIT_DIR/"\n'),
    ("KIT407", HEAD + 'rsync -a --delete "$L/" "$SLURM_SUBMIT_DIR/results/"\n'),
    ("KIT311", HEAD + "#SBATCH --gpus=2\nfor n in 0 1; do\n  python t.py --device cuda:$n &\ndone\nwait\n"),
    ("KIT311", HEAD + "#SBATCH --gpus=2\nfor n in 0 1; do\n  python t.py --device cuda:0 &\n  wait\ndone\n"),
    ("KIT402", HEAD + "CUDA_VISIBLE_DEVICES=1 vllm serve model &\npython client.py\n"),
    ("KIT407", HEAD + "set -e\ncp -r out results\nrm -rf out\n"),
    (
        "KIT407",
        HEAD + "rsync -a $TMPDIR/out results/\nrm -rf $TMPDIR/out\n"
        "rsync -a /scratch/$SLURM_JOB_ID/out results/\nrm -rf /scratch/$SLURM_JOB_ID/out\n",
    ),
    ("KIT407", HEAD + "cp -r out results || exit 1\nrm -rf out\n"),
    (
        "KIT223",
        HEAD + "#SBATCH -n8 -c4 --mem-per-cpu=2G\nfor s in 1 2; do srun --exact -n1 -c4 python t.py $s & done\nwait\n",
    ),
    (
        "KIT415",
        HEAD + "sbatch --dependency=afterok:$SLURM_JOB_ID chain.sh $((N + 1))\n"
        "python t.py --ckpt-dir ckpt/$SLURM_JOB_ID --resume ckpt/$PREVIOUS\n",
    ),
    ("KIT417", HEAD + "timeout 11h marian --model m.npz\n[ -f done ] || scontrol requeue $SLURM_JOB_ID\n"),
    ("KIT421", HEAD + "code-server --port 8080 &\nwait\n"),
    ("KIT227", HEAD + '#SBATCH -N1\n[ -n "$PBS_JOBID" ] && ID=$PBS_JOBID\npython t.py\n'),
    ("KIT316", HEAD + "#SBATCH -N2 --ntasks-per-node=4\nexport NCCL_SOCKET_IFNAME=eth,ib\nsrun python t.py\n"),
    ("KIT503", HEAD + '[ -n "$OUT" ] && rm -rf $OUT/*\n'),
    (
        "KIT209",
        HEAD + "#SBATCH -N1 --ntasks-per-node=1\ncat > sub.sh <<'EOF2'\n"
        "export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\nEOF2\n"
        "srun python t.py  # no $SLURM_CPUS_PER_TASK here\n",
    ),
    ("KIT406", HEAD + "set -e\ni=0\ncat > loop.sh <<'EOF2'\n((i++))\nEOF2\n"),
    ("KIT432", HEAD + 'echo "LATEST=\\$(ls -t out/*.pt | tail -n 1)"\n'),
    ("KIT503", HEAD + "for d in a b; do rm -rf $d/*; done\nread -r dir < list\nrm -rf $dir/*\n"),
    ("KIT503", HEAD + "trap 'pkill -TERM -P $$' EXIT\npkill --parent $$\npkill -f \"t.py --job $SLURM_JOB_ID\"\n"),
    (
        "KIT504",
        HEAD + 'srun apptainer exec i.sif bash -c "python t.py --host $(scontrol show hostnames $X | head -n1)"\n',
    ),
    ("KIT217", HEAD + "#SBATCH -N1 --ntasks-per-node=64\nexport OMP_NUM_THREADS=4\nmpirun -np 16 ./a\n"),
    (
        "KIT301",
        HEAD + "#SBATCH -N2 --ntasks-per-node=1\nexport MASTER_ADDR=localhost\n"
        'if [ "$SLURM_NNODES" -gt 1 ]; then export MASTER_ADDR=$(scontrol show hostnames | head -n 1); fi\n'
        "srun python t.py\n",
    ),
    (
        "KIT301",
        HEAD + "#SBATCH -N2 --ntasks-per-node=1\nexport MASTER_ADDR=${MASTER_ADDR:-localhost}\nsrun python t.py\n",
    ),
    (
        "KIT304",
        HEAD
        + "#SBATCH -N2 --ntasks-per-node=1\nrank=0\nsrun bash -c 'for rank in 0 1; do echo $rank; done; python t.py'\n",
    ),
    (
        "KIT313",
        HEAD + "#SBATCH -N2 --ntasks-per-node=1\n"
        'HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | tail -n 1)\n'
        'srun -N1 -n1 -w "$HEAD_NODE" ray start --head --block &\n',
    ),
    ("KIT202", HEAD + "#SBATCH -N4 --ntasks-per-node=1\npython launch_all.py\n"),
    ("KIT208", HEAD + "#SBATCH --gpus-per-node=1 -c8\ntorchrun --standalone --nproc-per-node=8 t.py --device cpu\n"),
    ("KIT218", HEAD + "srun ulimit -a\nsrun type python\n"),
    ("KIT411", HEAD + "#SBATCH --signal=B:USR1@120\nexec python t.py\n"),
    ("KIT424", HEAD + "while read -r line <&3; do srun python t.py $line; done 3< list\n"),
    ("KIT421", HEAD + "timeout 60 nvidia-smi -l 1\ntop -b -n 1 | head\ntensorboard --version\npython t.py\n"),
    ("KIT501", HEAD + "export OPENAI_API_KEY=EMPTY\nvllm serve x --api-key token-abc123 &\n"),
    ("KIT135", HEAD + "PATH=/opt/conda/bin python a.py\nsrun python t.py\n"),
    ("KIT253", HEAD + "#SBATCH -a 1-4\ncd run_$SLURM_ARRAY_TASK_ID\npython t.py --out results.json > log.txt\n"),
    (
        "KIT313",
        HEAD + "#SBATCH -N1\n#SBATCH hetjob\n#SBATCH -N2\n"
        "export A=$(host $SLURM_JOB_NODELIST_HET_GROUP_0) MASTER_ADDR=$(host $SLURM_JOB_NODELIST_HET_GROUP_1)\n"
        "srun --het-group=1 python t.py\n",
    ),
    (
        "KIT311",
        HEAD + "#SBATCH -N2 --ntasks-per-node=4 --gpus-per-node=4\n"
        "srun -N1 -n4 bash -c 'CUDA_VISIBLE_DEVICES=$SLURM_PROCID python t.py'\n",
    ),
    (
        "KIT311",
        HEAD
        + "#SBATCH --gpus-per-node=4\n# GPU 3 of our node is broken\nexport CUDA_VISIBLE_DEVICES=0,1,2\npython t.py\n",
    ),
    (
        "KIT314",
        HEAD + "#SBATCH -N1 --ntasks-per-node=2 --gpus-per-task=1\n# the prolog of this site shows all GPUs\n"
        "srun bash -c 'python t.py --device cuda:$SLURM_LOCALID'\n",
    ),
    ("KIT505", HEAD + "docker run --rm --gpus all $MOUNTS image python t.py --data /data/x\n"),
    ("KIT505", HEAD + "docker run --rm --gpus all --volumes-from store image python t.py --data /data/x\n"),
    ("KIT505", HEAD + "apptainer exec --nv --mount type=bind,src=/raid,dst=/data i.sif python t.py --data /data/x\n"),
    ("KIT505", HEAD + "apptainer exec --nv $BINDS i.sif python t.py --data /data/x\n"),
    ("KIT505", HEAD + "podman run --rm --gpus all -v/data:/data image python t.py --data /data/x\n"),
    ("KIT231", HEAD + "python t.py --fp16=$FP16 --bf16 ${BF16:-true}\n"),
    ("KIT417", HEAD + "#SBATCH --job-name=train\npython t.py\nsbatch other/train.sh\n"),
    ("KIT112", HEAD + "python t.py --seed 1 --seed 2 --lr=1 --lr=2\n"),
    ("KIT432", HEAD + "LAST=$(find out -name 'checkpoint-*' -printf '%T@ %p\\n' | sort -n | tail -n 1)\n"),
    ("KIT432", HEAD + "LAST=$(ls -d --sort=time --reverse out/checkpoint-* | tail -n 1)\n"),
    ("KIT432", HEAD + "LAST=$(ls -t -r out/*.pt | tail -n 1)\n"),
    ("KIT212", HEAD + "#SBATCH -N2 --ntasks-per-node=4\nsrun python t.py --data-url=file:///tmp/data\n"),
    ("KIT511", HEAD + 'D=$(mktemp -d)\nchmod 777 "$D"\n'),
    ("KIT511", HEAD + "chmod 777 out  # the administrators publish this folder\n"),
    (
        "KIT509",
        HEAD + "#SBATCH --gpus-per-node=1 --mem=10G\n# this partition gives every job a whole node\n"
        "docker run --rm --gpus all image python t.py\n",
    ),
    ("KIT142", HEAD + "# t.py reads it and calls init_process_group\nexport NCCL_TIMEOUT=3600\npython t.py\n"),
    ("KIT501", HEAD + "HF_TOKEN=$(<t)\nenv\npython t.py\n"),
    ("KIT501", HEAD + "HF_TOKEN=$(<t) python get.py\nenv\npython t.py\n"),
    ("KIT257", HEAD + "#SBATCH -a 0-9\ngit clone /r $TMPDIR/r\ngit -C $TMPDIR/r checkout main\npython t.py\n"),
    ("KIT112", HEAD + "A=(--lr 1)\npython t.py ${A[@]} --lr 2\n"),
    ("KIT112", HEAD + "python t.py --tag a --tag b --lr 1 --lr=1\n"),
    ("KIT431", HEAD + "#SBATCH -t 60\npython t.py --timeout-minutes 90 --time-between-saves-minutes 90\n"),
    (
        "KIT505",
        HEAD + "docker run --rm --gpus all --mount type=bind,source=/r,target=/m i python t.py --save-dir /m/a\n",
    ),
    ("KIT129", HEAD + "printf '%s' \"$WANDB_API_KEY\" | login\npython t.py\n"),
    ("KIT142", HEAD + "export NCCL_NVLS_ENABLE=false NCCL_IB_DISABLE=1\npython t.py # NCCL_IB_DISABLE=true\n"),
    ("KIT212", FOUR + "srun python t.py --dist-url file:///home/u/sync\n"),
    ("KIT231", HEAD + "python t.py --load_best_model_at_end\n"),
    (
        "KIT231",
        HEAD + "python t.py --per_device_train_batch_size 4 --load_best_model_at_end True --eval_strategy steps "
        "--eval_steps 250 --save_steps 500\n",
    ),
    ("KIT257", HEAD + "#SBATCH -a 0-9\ngit rev-parse HEAD\npip list\npython t.py\n"),
    ("KIT402", HEAD + "docker run -d --name n image python t.py\ndocker wait n\n"),
    ("KIT432", HEAD + "C=(o/checkpoint-*)\npython t.py --resume ${C[0]} --n ${#C[@]}\n"),
    ("KIT501", HEAD + "cat ~/.netrc > /dev/null\ncat token_counts.txt\necho $N_TOKENS ${#HF_TOKEN}\npython t.py\n"),
    ("KIT143", HEAD + "python t.py hydra.run.dir=o/\\${now:%Y} b='${oc.env:HOME}'\n"),
    ("KIT143", HEAD + "cat > c.yaml <<'E'\ndir: ${hydra.job.name}\nE\npython t.py ${now:-a}\n"),
    ("KIT204", HEAD + "#SBATCH -n1\nRANK=$SLURM_PROCID\nexport RANK\nsrun python t.py\n"),
    ("KIT212", FOUR + "hostname > head\nhostname > /tmp/log\nsrun python t.py --head head\n"),
    ("KIT233", HEAD + "python t.py -m hydra.run.dir=a lr=1,2\n"),
    ("KIT233", HEAD + "python t.py hydra.run.dir=a 'lr=[1,2]' --devices=0,1\n"),
    ("KIT233", HEAD + "yolo train device=0,1\npython t.py device=0,1\n"),
    ("KIT257", HEAD + "#SBATCH -a 0-9%1\npip install x\npython t.py\n"),
    ("KIT257", HEAD + "#SBATCH -a 0-9\npip install --target $TMPDIR/p x\n[ -d p ] || pip install y\npython t.py\n"),
    ("KIT311", HEAD + "#SBATCH --gpus=2\npython t.py --device cpu\npython t.py --device cuda\n"),
    ("KIT311", HEAD + "#SBATCH --gpus=2\nCUDA_VISIBLE_DEVICES= python a.py\npython t.py\n"),
    (
        "KIT314",
        GPUS2 + "srun bash -c 'LOCAL_RANK=$SLURM_LOCALID ROCR_VISIBLE_DEVICES=$SLURM_LOCALID python t.py --device 0'\n",
    ),
    ("KIT421", HEAD + "vllm serve m &\ns=$!\nkill -0 $s\npython e.py\nkill $s\nwait $s\n"),
    ("KIT421", HEAD + "vllm serve m &\ns=$!\npython e.py &\np=$!\nwait $p\n"),
    ("KIT422", GPUS + "docker run --rm -i image python t.py -it\ndocker run -t image python t.py\n"),
    ("KIT501", HEAD + "source ~/venv/bin/activate\nenv > env.txt\npython t.py\n"),
    ("KIT511", HEAD + "chmod 777 /tmp/a\nchmod a+rX out\nchmod +x t.sh\numask 002\nchmod 1770 out\npython t.py\n"),
    ("KIT141", "#!/bin/zsh\nARGS='--lr 1'\npython t.py ${=ARGS}\n"),
    ("KIT141", "#!/bin/zsh\nsetopt KSH_ARRAYS\nL=(a b)\npython t.py ${L[0]}\n"),
    ("KIT251", "#!/bin/zsh\n#SBATCH -a 1-2\nL=(a b)\npython t.py ${L[$SLURM_ARRAY_TASK_ID]}\n"),
    ("KIT142", HEAD + "export NCCL_TIMEOUT=7200\npython t.py --timeout $NCCL_TIMEOUT\n"),
    ("KIT142", HEAD + "export MASTER_ADDRESS=a\nexport MASTER_ADDR=$MASTER_ADDRESS\npython t.py\n"),
    ("KIT142", HEAD + "OMP_THREADS=4\nOMP_NUM_THREADS=$OMP_THREADS python t.py\n"),
    ("KIT231", HEAD + "python t.py --fp16_opt_level O1 --bf16\n"),
    ("KIT231", HEAD + "python a.py --fp16\npython b.py --bf16\n"),
    ("KIT232", HEAD + "#SBATCH -n4\ncat > f <<E\n# roles\n0,3 a\n1-2 b\nE\nsrun --multi-prog f\n"),
    ("KIT232", HEAD + "#SBATCH -n4\ncat > f <<E\n0 a\n1-$LAST b\nE\nsrun --multi-prog f\n"),
    ("KIT311", GPUS + "srun bash -c 'CUDA_VISIBLE_DEVICES=$SLURM_PROCID python t.py'\n"),
    ("KIT314", GPUS2 + "srun bash -c 'taskset -c $((SLURM_LOCALID * 8))-$((SLURM_LOCALID * 8 + 7)) python t.py'\n"),
    ("KIT314", GPUS + "srun numactl --cpunodebind=0 python t.py\n"),
    ("KIT314", GPUS2 + "srun numactl --interleave=all python t.py -N 4\n"),
    (
        "KIT313",
        HET + "H=$(scontrol show hostnames $SLURM_JOB_NODELIST_HET_GROUP_1 | head -1)\n"
        "srun --het-group=1 torchrun --nnodes=2 --rdzv-endpoint=$H:29500 t.py\n",
    ),
    (
        "KIT313",
        HET + "export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST_HET_GROUP_0 | head -1)\n"
        "srun --het-group=0 python a.py : --het-group=1 python b.py\n",
    ),
    ("KIT417", HEAD + "#SBATCH --output=train-%j.out\npython t.py\nsbatch eval.sbatch\n"),
    ("KIT417", HEAD + "#SBATCH --job-name=chain\npython t.py\n[ -f done ] || sbatch chain.sbatch\n"),
    ("KIT431", HEAD + "#SBATCH -t 60\npython t.py --max-minutes=50 --max-time 3600\n"),
    ("KIT431", HEAD + "#SBATCH -t 60\npython t.py --max-steps 9000 --save-minutes 90\n"),
    ("KIT432", HEAD + "L=$(ls -d o/checkpoint-* | sort -V | tail -n 1)\npython t.py --resume $L\n"),
    ("KIT432", HEAD + "L=$(ls -d o/checkpoint-* | sort -t- -k2 -n | tail -n 1)\npython t.py --resume $L\n"),
    ("KIT432", HEAD + "ls -d o/checkpoint-* | head -n 1\npython t.py\n"),
    ("KIT432", HEAD + "L=$(ls logs/2024-* | sort | tail -n 1)\npython t.py --resume $L\n"),
    ("KIT501", HEAD + "export HF_TOKEN=$(<~/.hf)\nenv | grep SLURM\nenv | sort | grep -v TOKEN\npython t.py\n"),
    ("KIT501", HEAD + "env\nexport HF_TOKEN=$(<~/.hf)\necho $HF_TOKEN | login --stdin\npython t.py\n"),
    ("KIT501", HEAD + 'export HF_TOKEN=$(<~/.hf)\necho "${HF_TOKEN:+token is set}"\npython t.py\n'),
    ("KIT505", HEAD + "srun --container-image=a --container-mounts=/d:/out python t.py --output_dir /out/run\n"),
    ("KIT505", HEAD + "srun --container-image=a --container-name=b python t.py --output_dir /out\n"),
    ("KIT505", HEAD + "srun --container-image=a python t.py --resume_from /opt/model --log_dir /tmp/l\n"),
    ("KIT505", HEAD + "apptainer run i.sif train project=/opt/out\n"),
    ("KIT509", HEAD + "#SBATCH --gres=gpu:2 --mem=9G --exclusive\ndocker run --gpus=all i python t.py\n"),
    ("KIT509", HEAD + "#SBATCH --gres=gpu:2 --mem=9G\ndocker run --gpus device=$SLURM_JOB_GPUS i python t.py\n"),
    ("KIT510", HEAD + "export HF_HUB_OFFLINE=1\nHF_HUB_OFFLINE=0 hf download a/b\n"),
    ("KIT510", HEAD + "export HF_HUB_OFFLINE=1\nunset HF_HUB_OFFLINE\nhf download a/b\n"),
    ("KIT510", HEAD + "HF_HUB_OFFLINE=1 python t.py\nhf download a/b\n"),
    ("KIT138", HEAD + "S=0\nseq 3 | while read s; do S=$s python t.py; done\npython e.py --seed $S\n"),
    ("KIT138", HEAD + "n=a\nls | while read f; do n=$f; echo $n; done\nfor n in a b; do python t.py $n; done\n"),
    ("KIT138", HEAD + "n=0\nls | while read f; do n=$((n + 1)); done\nread -r n < count\npython t.py $n\n"),
    (
        "KIT139",
        HEAD + "S='1 2'\nfor s in $S; do python t.py $s; done\nS=(3 4)\nfor s in ${S[@]}; do python t.py $s; done\n",
    ),
    ("KIT139", HEAD + "A=(1 2)\nread A < list\nfor s in $A; do python t.py $s; done\n"),
    ("KIT139", "#!/bin/zsh\nA=(--lr 1)\npython t.py $A\n"),
    ("KIT140", HEAD + "#SBATCH -C gpu_a100&a100\n"),
    ("KIT140", HEAD + "#SBATCH -C l40&l40s\n"),
    ("KIT140", HEAD + "#SBATCH -C a12&v100&rtx\n"),
    ("KIT216", FOUR + "srun python t.py --hidden-size 1000 --num-attention-heads 12 --head-dim 128\n"),
    ("KIT230", GPUS2 + DEEPSPEED + "deepspeed --hostfile h t.py --deepspeed_config d.json\n"),
    ("KIT230", GPUS2 + DEEPSPEED + "deepspeed --num_nodes 2 --num_gpus 4 t.py --deepspeed_config d.json\n"),
    ("KIT230", GPUS2 + DEEPSPEED + "ssh n1 torchrun --nnodes=2 --nproc-per-node=4 t.py --deepspeed d.json\n"),
    ("KIT230", FOUR + DEEPSPEED.replace("64", "32") + "srun python t.py --pp-size 2 --deepspeed d.json\n"),
    ("KIT254", HEAD + "#SBATCH -a 0-3\npython t.py --task 3 > task$SLURM_ARRAY_TASK_ID.log\n"),
    ("KIT254", HEAD + "for n in 1 2; do python t.py --steps 100 --size $n --out steps_$n; done\n"),
    (
        "KIT255",
        HEAD + "#SBATCH -a 0-7\nALL=800\nN=8\nC=$((ALL / N))\nE=$((SLURM_ARRAY_TASK_ID * C + C))\n"
        "((E > ALL)) && E=$ALL\npython t.py $E\n",
    ),
    (
        "KIT255",
        HEAD + "#SBATCH -a 0-7\nALL=$(wc -l < l)\nN=8\nC=$((ALL / N))\nE=$((SLURM_ARRAY_TASK_ID * C + C))\n"
        "((SLURM_ARRAY_TASK_ID == 7)) && E=$ALL\n((E > ALL)) && E=$ALL\npython t.py $E\n",
    ),
    ("KIT256", HEAD + "#SBATCH -a 0-999:7\nfor i in {0..6}; do python t.py $((SLURM_ARRAY_TASK_ID + i)); done\n"),
    ("KIT310", HEAD + "export MASTER_PORT=$((15000 + SLURM_JOB_ID - SLURM_JOB_ID / 1000 * 1000))\npython t.py\n"),
    (
        "KIT430",
        HEAD + "while getopts m:a o; do case $o in\n m) case $OPTARG in\n   a) M=$OPTARG ;;\n  esac ;;\n"
        " a) A=1 ;;\nesac; done\npython t.py $M\n",
    ),
    ("KIT431", HEAD + "#SBATCH -t 60\ntimeout 2h python t.py &\nsleep 3000\nkill $!\ncp a b\n"),
    ("KIT432", HEAD + 'rm "latest/$(ls -t latest | tail -n 1)"\npython t.py\n'),
    ("KIT414", HEAD + "#SBATCH -t 60 --signal=USR1@180\n# saving interval: 20 min\nsrun python t.py\n"),
    ("KIT415", HEAD + "[ -f c/latest.pt ] && cp c/latest.pt c/last.pt\npython t.py --ckpt-file c/last.pt\n"),
    ("KIT405", HEAD + "python t.py | tee l\ns=${PIPESTATUS[0]}\ndate | cat\necho ${PIPESTATUS[1]}\nexit $s\n"),
    ("KIT129", HEAD + "((rc = 0))\npython t.py || ((rc = $?))\nexit $rc\n"),
    ("KIT129", HEAD + ": ${rc:=0}\npython t.py || rm x\nexit $rc\n"),
    ("KIT129", HEAD + "module load cuda\nCUDA=12.1\npython t.py --cuda-home $CUDA_HOME\n"),
    ("KIT125", HEAD + "source v/bin/activate\nmodule load python/3.11\nv/bin/python t.py\n"),
    *(
        (
            "KIT314",
            HEAD + "#SBATCH -n4 --gpus-per-task=1\ncat > a.py <<'E'\nimport os, torch\n"
            f"i = int(os.environ['SLURM_LOCALID'])\n{code}\nE\nsrun python a.py\n",
        )
        for code in (
            "i %= torch.cuda.device_count()\ntorch.cuda.set_device(i)",
            "torch.cuda.set_device(i if torch.cuda.device_count() > 1 else 0)",
            "if torch.cuda.device_count() == 1:\n    i = 0\ntorch.cuda.set_device(i)",
        )
    ),
    ("KIT138", HEAD + "n=0\nls | while read f; do n=$((n + 1)); python t.py $n; done\nn=5\necho $n\n"),
    ("KIT129", HEAD + "srun python t.py | tee log\nexit ${PIPESTATUS[0]}\n"),
    ("KIT129", HEAD + 'MODE=full\npython t.py "$MODEL_MODE"\n'),
    ("KIT504", HEAD + "#SBATCH --container-image=/a.sqsh\npython t.py\n"),
    ("KIT415", HEAD + "#SBATCH --requeue --open-mode=append\ntorchrun -m qwen.predict --split test\n"),
    ("KIT312", HEAD + "python t.py --limit_train_batches 0.25 --overfit_batches 0.0 --detect_anomaly False\n"),
    ("KIT312", HEAD + "#SBATCH -t 20\npython t.py --limit_train_batches 10 --detect_anomaly\n"),
    ("KIT252", HEAD + "#SBATCH -a 1-9\necho $SLURM_ARRAY_TASK_ID > index.txt\npython t.py\n"),
    ("KIT406", HEAD + "set -e\nread -r -d '' A <<E || true\n--lr 1\nE\npython t.py $A\n"),
    ("KIT406", HEAD + "set -e\n! read -r -d '' A <<E\n--lr 1\nE\npython t.py $A\n"),
    ("KIT406", HEAD + "set -e\nread -r -d '' first < <(find d -print0)\npython t.py $first\n"),
    ("KIT402", HEAD + "abaqus fetch job=beam\nabaqus upgrade job=x odb=y\n"),
    ("KIT402", HEAD + "abaqus job=beam -interactive\n"),
    (
        "KIT223",
        HEAD + "#SBATCH -N2 --ntasks-per-node=1\n"
        "srun -N1 -n1 -w $(scontrol show hostnames | sed -n 1p) ray start --head --block &\n"
        "srun -N1 -n1 -w $(scontrol show hostnames | sed -n 2p) ray start --block &\nwait\n",
    ),
    (
        "KIT223",
        HEAD + "#SBATCH -N2 --ntasks-per-node=1\nread -r H rest <<< $NODES\n"
        "srun -N1 -n1 -w $H ray start --head --block &\nread -r H rest <<< $rest\n"
        "srun -N1 -n1 -w $H ray start --block &\nwait\n",
    ),
    ("KIT503", HEAD + "#SBATCH -a 1-8\nread -r a b < <(sed -n ${SLURM_ARRAY_TASK_ID}p l)\nrm -rf /tmp/$a-$b\n./t $a\n"),
    ("KIT503", HEAD + "#SBATCH -a 1-8\nprintf -v tag %03d $SLURM_ARRAY_TASK_ID\nrm -rf /tmp/$tag\n./t $tag\n"),
    ("KIT417", HEAD + "N=${N:-0}\nif [ $N -lt 5 ]; then trap 'sbatch \"$0\" $((N + 1))' EXIT; fi\npython t.py\n"),
    (
        "KIT417",
        HEAD + 'again() { while read -r c; do sbatch "$0" "$c"; break; done < todo; }\ntrap again EXIT\npython t.py\n',
    ),
    ("KIT415", HEAD + "# sbatch -d afterok:$PREP t.sh\npython t.py --output_dir r/$SLURM_JOB_ID --resume auto\n"),
    ("KIT415", HEAD + "# sbatch -d afterany:$id eval.sh\npython t.py --output_dir r/$SLURM_JOB_ID --resume auto\n"),
    (
        "KIT415",
        HEAD + "# sbatch -d afterany:$id t.sh\nR=${R:-$SLURM_JOB_ID}\npython t.py --output_dir r/$R --resume auto\n",
    ),
    ("KIT134", HEAD + "printf '%s\\n' 'NR == $SLURM_ARRAY_TASK_ID'\npython t.py\n"),
    ("KIT231", GPUS + "python t.py --train-samples data/a.json --lr-decay-iters 300\n"),
    ("KIT123", HEAD + "#SBATCH --mem=96G\n# /dev/shm has 1 TB; a.ffcv fits\ncp a.ffcv /dev/shm/x\n./t\n"),
    ("KIT123", HEAD + "#SBATCH --mem=96G\n# d 150G\nrsync --files-from=l d /dev/shm/\n./t\n"),
    ("KIT501", HEAD + "(. ~/.wandb_key; python t.py)\nenv\ncat conf/keys\n"),
    (
        "KIT418",
        HEAD + "#SBATCH --signal=B:USR1@300\ntrap 'touch stop' USR1\nsrun python t.py & pid=$!\nwait $pid\n"
        "tail --pid=$pid -f /dev/null\n",
    ),
    ("KIT119", HEAD + "#SBATCH -N2 --ntasks-per-node=1 --gpus-per-task=8\nsrun python t.py\n"),
    ("KIT119", HEAD + "#SBATCH -N2 --gpus-per-task=8\n# sbatch --ntasks-per-node=1 a.sbatch\nsrun python t.py\n"),
    ("KIT406", HEAD + "set -e\n! read -r -d '' A <<E\n--lr 1\nE\npython t.py $A\n"),
    ("KIT406", HEAD + "set -e\nread -r -d '' A < <(find c -print0 | sort -rz)\npython t.py $A\n"),
    (
        "KIT223",
        HEAD + "#SBATCH -N3 --ntasks-per-node=1 -c8\nL=($(scontrol show hostnames))\ni=0\n"
        "srun -N1 -n1 -c8 -w ${L[$i]} ray start --head --block &\n((i++))\nsrun -N1 -n1 -c8 -w ${L[$i]} python t.py\n",
    ),
    (
        "KIT223",
        HEAD + "#SBATCH -N3 --ntasks-per-node=1 -c8\nread -r H < hosts\nsrun -N1 -n1 -c8 -w $H ray start --head "
        "--block &\nread -r _ H < hosts\nsrun -N1 -n1 -c8 -w $H python t.py\n",
    ),
    (
        "KIT232",
        HEAD + "#SBATCH -n8\nF=mp.conf\ncat > $F <<E\n0 ./m\nE\nfor i in {1..7}; do echo $i ./w >> $F; done\n"
        "srun --multi-prog $F\n",
    ),
    ("KIT232", HEAD + "#SBATCH -n8\ncat > f <<E\n0 ./m\nE\necho 1-7 ./w | tee -a f\nsrun --multi-prog ./f\n"),
    (
        "KIT251",
        HEAD + "#SBATCH -a 0-7\nS=$SLURM_ARRAY_TASK_MAX\n"
        "for ((i = SLURM_ARRAY_TASK_ID; i < 99; i += S + 1)); do python t.py $i; done\n",
    ),
    (
        "KIT207",
        HEAD + "#SBATCH -N2 --ntasks-per-node=1\ni=0\nfor h in $(scontrol show hostnames); do\n"
        "srun -N1 -n1 -w $h torchrun --nnodes 2 --node-rank $i --master-addr a t.py &\n"
        "p+=($!)\ni=$((i + 1))\ndone\nwait\n",
    ),
    (
        "KIT415",
        HEAD + "#SBATCH --requeue\n# evaluate: sbatch -d afterok:$id eval.sbatch\n"
        "python t.py --output_dir r/$SLURM_JOB_ID --resume auto\n",
    ),
    ("KIT417", HEAD + "trap '[ -f done ] && exit; sbatch \"$0\"' EXIT\npython t.py\n"),
    ("KIT417", HEAD + "trap 'sbatch \"$0\"' EXIT\npython t.py || exit\ntrap 'rm -f lock' EXIT\n"),
    (
        "KIT418",
        HEAD + "#SBATCH --signal=B:USR1@300\ntrap 'touch STOP' USR1\npython t.py &\nwait $!\nsleep 240\n",
    ),
    ("KIT231", GPUS + "python gan.py --train-samples 9 --train-iters 7\n"),
    ("KIT503", HEAD + "#SBATCH -a 1-8 --mem=0\ntrap 'rm -rf /tmp/$USER/c' EXIT\npython t.py\n"),
    (
        "KIT503",
        HEAD + '#SBATCH -a 1-8\nread -r N LR <<< "$(sed -n "${SLURM_ARRAY_TASK_ID}p" list)"\n'
        "trap 'rm -rf /tmp/$USER/$N' EXIT\npython t.py $LR\n",
    ),
    ("KIT503", HEAD + "#SBATCH -a 1-8\nT=/tmp/$RANDOM\ntrap 'rm -rf $T' EXIT\npython t.py\n"),
    ("KIT123", HEAD + "#SBATCH --mem=96G\n# results: at most 500G\n./t\ncp /dev/shm/x /data/results\n"),
    ("KIT123", HEAD + "#SBATCH --mem=96G\n# a.tar goes to RAM, the nodes have 512 GB\ncp a.tar /dev/shm/\n./t\n"),
    (
        "KIT223",
        HEAD + "#SBATCH -N2 --ntasks-per-node=1 -c8\nsrun -N1 -n1 -c8 -w $H ray start --head --block &\n"
        "srun -N1 -n1 -c2 -w $G python t.py\n",
    ),
    (
        "KIT415",
        HEAD + "#SBATCH --requeue\nO=r/$SLURM_JOB_ID\npython t.py --output_dir $O --resume $O/last.pt\n",
    ),
    ("KIT503", HEAD + "#SBATCH -a 1-8\ntrap 'rm -rf /tmp/$USER/$SLURM_JOB_ID' EXIT\npython t.py\n"),
    ("KIT503", HEAD + "#SBATCH -a 1-8%1\ntrap 'rm -rf /tmp/$USER/c' EXIT\npython t.py\n"),
    (
        "KIT223",
        HEAD + "#SBATCH -N3 --ntasks-per-node=1 -c8\non() { srun -N1 -n1 -c8 -w $1 ray start --block; }\n"
        "on $H &\nfor n in $NODES; do on $n & done\npython t.py\n",
    ),
    ("KIT231", GPUS + "python t.py --train-samples 9 --lr-decay-samples 7\n"),
    ("KIT134", HEAD + "a=$(awk -v n=$SLURM_ARRAY_TASK_ID 'NR == n {print $NF}' f)\npython t.py $a\n"),
    ("KIT402", HEAD + "abaqus job=b input=b.inp interactive\ncp b.odb out/\n"),
    (
        "KIT251",
        HEAD + "#SBATCH -a 1-8\nS=$SLURM_ARRAY_TASK_MAX\nfor ((i = 0; i < 99; i += S)); do python t.py $i; done\n",
    ),
    (
        "KIT222",
        HEAD + "#SBATCH --nodes=1 --ntasks=8\nsrun bash -c 'exec 9>l; flock 9; pip install w'\n",
    ),
    ("KIT216", GPUS2 + "srun python t.py --tp 8\n"),
    ("KIT417", HEAD + "[ -f done ] && exit 0\ntrap 'sbatch \"$0\"' EXIT\npython t.py\n"),
    ("KIT417", HEAD + "trap 'sbatch \"$0\"' EXIT\npython t.py && trap - EXIT\n"),
    ("KIT417", HEAD + "trap '[ -f done ] || sbatch \"$0\"' EXIT\npython t.py\n"),
    ("KIT501", HEAD + "set -a; . ~/.config/monkeys\nenv | sort\n"),
    ("KIT123", HEAD + "#SBATCH -c2 --mem-per-cpu=500G\npython t.py\n"),
    ("KIT123", HEAD + "#SBATCH --mem=96G\n# a.ffcv: 16G of 900G\ncp a.ffcv /dev/shm/x\n./t\n"),
    ("KIT123", HEAD + "#SBATCH --mem=96G\n# a.ffcv: 900G\ncp a.ffcv /scratch/x\n./t\n"),
    ("KIT123", HEAD + "#SBATCH --gres=gpu:8\n#SBATCH --mem=0\npython t.py\n"),
    ("KIT429", HEAD + "a=$(sbatch a.sh | awk '{print $4}')\nsbatch -d afterok:$a b.sh\n"),
    ("KIT429", HEAD + "a=$(sbatch a.sh | cut -d ' ' -f 4)\nsbatch -d afterok:$a b.sh\n"),
    ("KIT422", HEAD + "#SBATCH -N1\nread -rp a answer < file\npython t.py\n"),
    ("KIT422", HEAD + "#SBATCH -N1\n[ -t 0 ] && read -p a answer\npython t.py\n"),
    ("KIT411", HEAD + 'd=$(mktemp -d)\ntrap "rm -rf $d" EXIT\npython t.py\nd=x\n'),
    ("KIT411", HEAD + "trap 'kill $pid' USR1\npython t.py &\npid=$!\nwait $pid\n"),
    ("KIT432", HEAD + "OLD=$(ls -tr c/*.pt | head -n1)\nrm $OLD\npython t.py --resume auto\n"),
    ("KIT208", GPUS + "python t.py --gpus 4\n"),
    ("KIT208", GPUS + "python t.py --gpus 0\n"),
    ("KIT208", GPUS + "python t.py --gpus 0,1,2,3\n"),
    ("KIT208", GPUS + "python t.py --gpus 2 --fold 0 &\npython t.py --gpus 2 --fold 1 &\nwait\n"),
    ("KIT134", HEAD + "LR=1\npython t.py \"--lr=$LR\" \"a\\$LR\" 'dir=${LR}' 'cost $5'\n"),
    ("KIT134", HEAD + "LR=1\npython -c 'print(\"$LR\")'\nsrun bash -c 'python t.py --lr $LR'\n"),
    ("KIT125", HEAD + "module load anaconda\nsource activate e\nmodule unload anaconda\npython t.py\n"),
    ("KIT129", HEAD + "HIP_VISIBLE_DEVICES=0\nexport LD_LIBRARY_PATH=$HIP_LIB_PATH:/x\npython t.py\n"),
    ("KIT506", GPUS + "export MIOPEN_USER_DB_PATH=/tmp/m\nsrun apptainer exec i.sif python t.py\n"),
    ("KIT311", GPUS + "export CUDA_VISIBLE_DEVICES=$SLURM_LOCALID\nsrun python t.py\n"),
    ("KIT106", HEAD + "python t.py > $(date +%j_%H).log\nsrun --output=%x-%j.log python t.py --fmt %y-%j\n"),
    ("KIT106", HEAD + "squeue -o %j\npython t.py --out %Y/%m-%d/%j\nprintf '%x\\n' 3 > a\n"),
    ("KIT206", FOUR + "srun --cpu-bind=none python t.py --nodes 4 --bind x\n"),
    ("KIT217", FOUR + "#SBATCH -c 8\nmpirun --map-by slot:PE=8 --bind-to core python t.py\n"),
    ("KIT502", HEAD + "sbatch --export=ALL,LR=1 t.sh\nsbatch --export=$E t.sh\nsbatch --export=NONE t.sh\n"),
    ("KIT204", HEAD + "sbatch -a 0-9 --wrap='python t.py $SLURM_ARRAY_TASK_ID'\n"),
    ("KIT204", HEAD + "sbatch <<'E'\n#!/bin/bash\npython t.py $SLURM_ARRAY_TASK_ID\nE\n"),
    ("KIT204", HEAD + '#SBATCH -a 0-9\nsbatch --wrap="python e.py $SLURM_ARRAY_TASK_ID"\n'),
    (
        "KIT223",
        HEAD + "#SBATCH -N1 -n4 -c8 --gpus-per-task=1\n"
        "for s in 1 2 3 4; do srun --exact -n1 -c8 python t.py $s & done\nwait\n",
    ),
    ("KIT106", HEAD + "python t.py --date-format %j\n"),
    ("KIT106", HEAD + '#SBATCH -a 0-3\nT=o/r_%a.txt\npython t.py > "${T//%a/$SLURM_ARRAY_TASK_ID}"\n'),
    ("KIT106", HEAD + 'T=o/%j\nmkdir -p "${T//%j/$SLURM_JOB_ID}"\npython t.py\n'),
    ("KIT129", HEAD + 'DATA=/d\nexport $(grep -v "^#" .env | xargs)\npython t.py $DATA_root\n'),
    ("KIT129", HEAD + 'run=/s\neval "$(python vars.py)"\npython t.py $run_dir\n'),
    ("KIT129", HEAD + 'run=/s\ndeclare "${1#--}=$2"\npython t.py $run_dir\n'),
    ("KIT129", HEAD + "# usage: model_dir=/x sbatch this.sh\nmodel=a\npython t.py $model $model_dir\n"),
    ("KIT129", HEAD + "source ~/.bashrc\nscratch=/s\npython t.py $scratch $scratch_dir\n"),
    (
        "KIT251",
        HEAD + "#SBATCH -a 1-4\nN=(a b)\nfor i in 0 1; do echo ${N[$i]}; done\n"
        "for ((i=SLURM_ARRAY_TASK_ID; i<=100; i+=4)); do python t.py --seed $i; done\n",
    ),
    (
        "KIT251",
        HEAD + "#SBATCH -a 0-3\nI=$SLURM_ARRAY_TASK_ID\n"
        "for s in {0..9}; do if (( s % 8 == I || s % 8 == I + 4 )); then python t.py $s; fi; done\n",
    ),
    ("KIT256", HEAD + "#SBATCH -a 0-90:10\npython t.py --start $((SLURM_ARRAY_TASK_ID / 10 * 100))\n"),
    ("KIT135", HEAD + "export DATA_PATH='{DATA_PATH}'\npython t.py\n"),
    ("KIT513", HEAD + "apptainer run --nv $SIF --nv\n"),
    ("KIT133", HEAD + "#SBATCH -n1\npython t.py --cuda false --gpu -1 --use_gpu_stats x\n"),
    ("KIT416", HEAD + "W=/tmp/$SLURM_JOB_ID\npython t.py --out $W\ncp -r $W/best.pt ~/\nrm -rf $W\n"),
    ("KIT416", HEAD + "W=/tmp/w\ntrap 'rm -rf $W' EXIT\npython t.py --out $W\ncp -r $W/best.pt ~/\n"),
    ("KIT217", GPUS + "srun python t.py --workers $SLURM_CPUS_ON_NODE\n"),
    ("KIT140", HEAD + "#SBATCH --gres=gpu:a100:4\n#SBATCH -C a100-80g\n"),
    ("KIT140", HEAD + "#SBATCH --gres=gpu:l40:4\n#SBATCH -C l40s\n"),
    ("KIT251", HEAD + "#SBATCH -a 1-9\nA=$(awk -v n=$SLURM_ARRAY_TASK_ID 'NR==n' p.txt)\npython t.py $A\n"),
    (
        "KIT207",
        ONE_A_NODE + "r=0\nfor h in $H; do\n  srun -N1 -n1 -w $h torchrun --nnodes=4 --node-rank=$r t.py &\n"
        "  ((r++))\ndone\nwait\n",
    ),
    ("KIT308", HEAD + "torchrun a.py &\nwait\ntorchrun b.py\n"),
    ("KIT308", HEAD + "torchrun --standalone a.py &\ntorchrun --standalone b.py\n"),
    ("KIT308", HEAD + "torchrun --master-port 2001 a.py &\ntorchrun --master-port 2002 b.py\n"),
    ("KIT308", HEAD + "p=29501\nfor i in 0 1; do\n  torchrun --master-port=$p t.py $i &\n  p=$((p + 1))\ndone\n"),
    ("KIT251", HEAD + '#SBATCH -a 0-1\nM="a b"\nM=($M)\npython t.py ${M[$SLURM_ARRAY_TASK_ID]}\n'),
    ("KIT311", GPUS + "for g in 0 1 2 3; do CUDA_VISIBLE_DEVICES=$g python t.py & done\nwait\n"),
    (
        "KIT311",
        HEAD + "#SBATCH -N1 --gpus-per-node=2\nCUDA_VISIBLE_DEVICES=0 python a.py &\n"
        "CUDA_VISIBLE_DEVICES=0 python b.py &\nCUDA_VISIBLE_DEVICES=1 python c.py &\nwait\n",
    ),
    ("KIT139", HEAD + 'A=(0,1)\nL=(0,1 2,3)\nfor l in ${L[@]}; do python t.py --gpus $l "${A[@]}"; done\n'),
    ("KIT144", HEAD + "for n in a b; do echo $n > $n.txt; python p.py $n.txt; done\npython t.py a.txt\n"),
    ("KIT144", HEAD + "for n in a b; do echo $n > cfg; python p.py cfg; done\npython t.py cfg\n"),
    ("KIT144", HEAD + "for n in a b; do echo $n >> cfg; done\npython t.py cfg\n"),
    ("KIT144", HEAD + "for n in a b; do echo $n > last.txt; done\npython t.py last.txt\n"),
    ("KIT144", HEAD + "for n in a b; do [ -d $n ] && echo $n > dir.txt; done\npython t.py dir.txt\n"),
    ("KIT144", HEAD + "for n in a b; do echo start > cfg.txt; done\npython t.py my-cfg.txt cfg.txt\n"),
    ("KIT505", HEAD + "singularity exec --nv -B $PWD:/code i.sif python $PWD/t.py\n"),
    ("KIT505", HEAD + "D=/data/x\nsrun --container-image=a --container-mounts=$D:$D python t.py $D\n"),
    (
        "KIT314",
        GPUS2 + "srun bash -c 'export CUDA_VISIBLE_DEVICES=${cards[SLURM_LOCALID]}; python t.py --device cuda:0'\n",
    ),
    ("KIT223", GPUS + "run() { srun -n1 python t.py --seed $1 & }\nrun 1\nwait\nrun 2\nwait\n"),
    ("KIT401", HEAD + "for f in a b; do python t.py $f || echo $f >> failed; done\n"),
    ("KIT415", HEAD + "[ -f c/latest.pt ] && R=--resume\npython t.py --ckpt-file c/latest.pt $R\n"),
    ("KIT118", HEAD + "# sbatch --array=0-3 t.sbatch\n#SBATCH -o log_%A_%a.txt\nsrun python t.py\n"),
    ("KIT133", HEAD + "#SBATCH -c 8\napptainer exec --nv i.sif python convert.py\n"),
    ("KIT251", HEAD + "#SBATCH -a 0-7\nA=(1 2)\npython t.py ${A[(SLURM_ARRAY_TASK_ID-1)/4]}\n"),
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
    ("KIT405", HEAD + "python t.py | tee l\nexit ${PIPESTATUS[0]}\n"),
    ("KIT405", HEAD + "set -e\npython t.py || rc=$?\nif [ $rc = 85 ]; then sbatch next.sh; fi\n"),
    ("KIT405", HEAD + "set -e\npython t.py\nrc=$?\nexit $rc\n"),
    ("KIT222", HEAD + "#SBATCH -n 8\nsrun python preprocess.py --workers 4 --shard $SLURM_PROCID\n"),
    ("KIT432", HEAD + "OLD=$(ls -t ckpt/* | tail -n 1)\nrm $OLD\npython t.py\n"),
    ("KIT433", HEAD + "vllm serve m --port 1 &\nsleep 300\npython e.py --port 1\n"),
    ("KIT433", HEAD + "vllm serve m &\npython wait_ready.py --port 1\npython e.py --port 1\n"),
    ("KIT505", HEAD + "srun --container-image=a --container-mounts=$HOME:$HOME python $HOME/t.py\n"),
    ("KIT401", HEAD + "for i in 1 2; do python t.py $i || echo $i failed; done\n"),
    ("KIT404", HEAD + "for i in 1 2; do\n if ! python t.py $i; then echo $i; fi\ndone\n"),
    ("KIT140", HEAD + "#SBATCH --constraint=a100,nvlink\n"),
    ("KIT140", HEAD + "#SBATCH --constraint=[a100*2&h100*2]\n"),
    ("KIT139", HEAD + "A=(x)\nB=(1 2)\nB=3\npython t.py $A $B ${B[0]}\n"),
    ("KIT256", HEAD + "#SBATCH --array=0-990:10%8\npython t.py $SLURM_ARRAY_TASK_ID\n"),
    ("KIT256", HEAD + "#SBATCH --array=0-999:10\npython t.py --first $SLURM_ARRAY_TASK_ID --count 10\n"),
    ("KIT431", HEAD + "#SBATCH --time=1:00:00\ntimeout 3500 python t.py\ncp a b\n"),
    ("KIT415", HEAD + "#SBATCH --requeue\npython t.py --log-dir l/$(date +%s) --out r --resume r/last\n"),
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
    ("KIT305", FOUR + "HEAD_NODE=$(scontrol show hostnames)\nexport MASTER_ADDR=${HEAD_NODE%%$'\\n'*}\n"),
    ("KIT141", "#!/bin/zsh\ntypeset -A lr\nlr=(0 1e-3 1 1e-4)\npython t.py ${lr[0]}\n"),
    ("KIT143", HEAD + "hydra=x\npython t.py ${hydra:-out}\n"),
    ("KIT232", HEAD + "#SBATCH -n 8\ncat >m.conf <<E\n0-3 ./a\nE\necho '4-7 ./b' >>m.conf\nsrun --multi-prog m.conf\n"),
    ("KIT233", HEAD + 'python t.py hydra.run.dir=o "$@" a=1,2\n'),
    ("KIT233", HEAD + 'python t.py hydra.run.dir=o "name=a\\,b"\n'),
    ("KIT421", HEAD + "jupyter lab &\nwait\n"),
    ("KIT501", HEAD + "export HF_TOKEN=$(<~/.hf)\npython t.py\nunset HF_TOKEN\nenv\n"),
    ("KIT501", HEAD + "export HF_TOKEN=$(<~/.hf)\nenv >/dev/null\npython t.py\n"),
    ("KIT510", HEAD + "export HF_HUB_OFFLINE=1\necho 'run hf download a/b first'\npython t.py\n"),
    ("KIT431", HEAD + "#SBATCH -t 1:00:00\npython t.py --max-audio-sec 7200 --max-age-hours 48\n"),
    ("KIT305", FOUR + "MAIN_HOST=$(scontrol show hostnames)\nA=($MAIN_HOST)\nexport MASTER_ADDR=${A[0]}\n"),
    ("KIT421", HEAD + "nvidia-smi dmon > g.csv & M=$!\npython t.py\nkill $M\nwait\n"),
    ("KIT421", HEAD + "(nvidia-smi dmon > g.csv &)\npython t.py\nwait\n"),
    ("KIT421", HEAD + "timeout 60 nvidia-smi dmon > g.csv &\npython t.py\nwait\n"),
    ("KIT421", HEAD + "while :; do ls done && break; sleep 9; done &\npython t.py\nwait\n"),
    ("KIT217", HEAD + "#SBATCH -N1 --ntasks-per-node=8 -c 4\npython prepare.py --num_proc 32\n"),
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
    ("KIT501", HEAD + 'curl -u "me:$PW" -H "Authorization: Bearer $(cat t)" https://a.b\nmysql -p"$PW" db\n'),
    ("KIT501", HEAD + 'curl -H "Authorization: Bearer $T" -H "X-Api-Key: ${K}" https://a.b\nsshpass -p "$P" ssh a\n'),
    ("KIT501", HEAD + "python t.py --model-key vit_base_patch16_224.augreg2_in1k --private-key keys/a.pem\n"),
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
    ("KIT412", HEAD + 'trap \'kill "$pid"\nscontrol requeue "$SLURM_JOB_ID"\' USR1\npython t.py & pid=$!\nwait $pid\n'),
    ("KIT412", HEAD + "trap 'echo \"wait for job $SLURM_JOB_ID\"' USR1\npython t.py & pid=$!\nwait $pid\n"),
    (
        "KIT433",
        HEAD
        + "vllm serve m --port 8000 &\nredis-server &\nuntil nc -z localhost 6379; do sleep 1; done\npython t.py\n",
    ),
    ("KIT142", HEAD + "export PYTORCH_HIP_ALLOC_CONF=release_lock_on_hipmalloc:True\npython t.py\n"),
    (
        "KIT311",
        GPUS + "run() {\n local slot=$2\n ((slot--))\n CUDA_VISIBLE_DEVICES=$slot python t.py $1\n}\n"
        "export -f run\nparallel -j4 run {} {%} ::: 1 2 3 4 5 6\n",
    ),
    ("KIT107", HEAD + 'srun tar cf - -C "$SCRATCH"|zstd > $HOME/a.zst\npython t.py\n'),
    ("KIT423", HEAD + 'python t.py\nscancel "${SLURM_JOB_ID}.0"\ncp -r out $HOME\n'),
    ("KIT148", HEAD + "IFS=$'\\n'\nDATA='/data/my set'\npython t.py --data $DATA\n"),
    (
        "KIT136",
        HEAD + "rsync -a /proj/code $TMPDIR\ncd $TMPDIR/code\npython t.py --hf-home $TMPDIR/hf\n",
    ),
    (
        "KIT409",
        HEAD + "cat list | while read f; do\n [ -f $f ] || { echo $f >> missing.txt; exit 1; }\ndone\n"
        "[ ! -s missing.txt ] || exit 1\npython t.py\n",
    ),
    ("KIT309", HEAD + "#SBATCH -N1 -n4\nexport NCCL_SOCKET_IFNAME=lo\nsrun python t.py\n"),
    ("KIT401", HEAD + "timeout 23h python t.py\nrc=$?\ncp -r out $HOME\n[ $rc -eq 124 ] && rc=0\nexit $rc\n"),
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
    ("KIT113", HEAD + "#SBATCH -o new/%j.log\npython file_of_another_folder.py\n"),
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
    ("KIT302", HEAD + "export MASTER_PORT=28123\nX=40000\nY=29500\n"),
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
    ("KIT108", "#!/bin/tcsh\npython t.py >& log\npython t.py |& tee log\nbash -c 'python t.py 2>&1'\n"),
    ("KIT423", "#!/bin/tcsh\nif ( ! -e data ) then\n  echo no data\n  exit 1\nendif\npython t.py\n"),
    ("KIT423", "#!/bin/tcsh\nif ( ! -e data ) exit 1\npython t.py\n"),
    ("KIT423", "#!/bin/tcsh\nforeach f (a b)\n  switch ($f)\n  case c:\n    exit 1\n  endsw\nend\npython t.py\n"),
    ("KIT423", "#!/bin/tcsh\nif ( $a == 1 && \\\n $b == 2 ) then\n  echo a\nendif\npython t.py\n"),
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
    ("KIT253", HEAD + "#SBATCH -a 0-3\npython t.py --lr 0.$SLURM_ARRAY_TASK_ID --ckpt-dir $LOCAL_SCRATCH/c\n"),
    ("KIT402", HEAD + "podman run --rm -e A=-d img python t.py\necho done\n"),
    ("KIT501", HEAD + "set -x\nsource modules.env\npython t.py\n"),
    ("KIT134", HEAD + "M=2\ncat > a.yaml <<'E'\nsize: ${M}\nE\npython t.py\n"),
    ("KIT146", GPUS + "python t.py --train-data '/data/{00000..01023}.tar' --lrs {1..3}\n"),
    ("KIT146", GPUS + "python t.py --files {00000..00003}.npy\n"),
    ("KIT228", HEAD + "#SBATCH -a 1-9\nprintf -v N '%03d' $SLURM_ARRAY_TASK_ID\npython t.py $((10#$N + 7)) $N\n"),
    ("KIT505", GPUS + "apptainer exec --nv -B /l/d:/data:ro i.sif python t.py exp_manager.exp_dir=/data/imagenet\n"),
    ("KIT417", HEAD + "[ -f done ] && exit 0\nsbatch -d afterany:$SLURM_JOB_ID $0\npython t.py --resume auto\n"),
    ("KIT316", HEAD + "#SBATCH -N2 --ntasks-per-node=1\nexport NCCL_IB_HCA=mlx5_0,ibp12s0\nsrun python t.py\n"),
    ("KIT222", HEAD + "#SBATCH --ntasks-per-node=4\nexport RANK_BY=slurm\nsrun python run_clm.py --do_train\n"),
    ("KIT222", HEAD + "#SBATCH --ntasks-per-node=4\nsrun torchrun --nproc-per-node=1 run_clm.py --do_train\n"),
    ("KIT220", HET + "srun --het-group=0 ./a : --het-group=1 ./b\n"),
    (
        "KIT125",
        HEAD + "scontrol show hostnames | while read -r H; do echo $H; done\nread -r H < hosts\npython t.py $H\n",
    ),
    ("KIT125", HEAD + "cat x | { read -r H; python t.py $H; }\n"),
    ("KIT310", HEAD + "export MASTER_PORT=1${SLURM_JOB_ID: -4}\nsrun python t.py\n"),
    ("KIT134", HEAD + "A=\"--text 'a b'\"\neval python t.py $A\n"),
    ("KIT134", HEAD + 'A="--name it\'s"\npython t.py $A\n'),
    ("KIT134", HEAD + 'A="import os; f(\'a b\')"\npython t.py "$A"\n'),
    ("KIT134", HEAD + "N=\"$(awk '{print $1}' n)\"\npython t.py $N\n"),
    ("KIT134", HEAD + "A=\"--text 'a b'\"\necho $A\nA=--lr\npython t.py $A\n"),
    ("KIT125", HEAD + "hostname -I | read -r H\nH=$(hostname)\npython t.py $H\n"),
    ("KIT505", GPUS + "apptainer exec --nv -B /r:/r:ro i.sif python eval.py --run-dir /r/output/a --out /tmp/o\n"),
    ("KIT505", GPUS + "apptainer exec --nv -B /r:/r:ro i.sif python t.py --root-dir /r/logos --out /tmp/o\n"),
    ("KIT253", HEAD + "#SBATCH -a 0-3\n. dirs.sh\npython t.py --lr $SLURM_ARRAY_TASK_ID --ckpt-dir $RUN_WORK/c\n"),
    ("KIT310", HEAD + "export MASTER_PORT=$((10#${SLURM_JOB_ID: -4} + 20000))\npython t.py\n"),
    ("KIT402", HEAD + "set -e\nsrun python t.py &\nwait\ngrep -q done log\npython train.py --init a\n"),
    ("KIT402", HEAD + "set -e\n(srun python t.py || kill $$) &\nwait\npython train.py --init a\n"),
    ("KIT134", HEAD + 'export M=2\ncat > a.json <<\'E\'\n{"size": "${M}"}\nE\npython t.py\n'),
    ("KIT501", HEAD + "source ~/.token.sh\nHF_TOKEN=${HF_TOKEN%x}\nset -x\nsource modules.env\npython t.py\n"),
    ("KIT222", HEAD + "#SBATCH --ntasks-per-node=4\nsrun python jax_t.py --do_train --output_dir o\n"),
    ("KIT222", HEAD + "#SBATCH --ntasks-per-node=4\nsrun python start.py run.py --save_strategy no\n"),
    ("KIT222", HEAD + "#SBATCH --ntasks-per-node=4\nsrun --task-prolog=p.sh python run.py --save_strategy no\n"),
    ("KIT402", HEAD + "set -e\nsrun python t.py &\nwait\n[ -f a/best.pt ]\npython train.py --init a/best.pt\n"),
    ("KIT402", HEAD + "set -e\n./dmon & m=$!\npython t.py & p=$!\nwait $p\nkill $m\nwait\npython train.py\n"),
    ("KIT220", HET + "srun --het-group=1 python t.py --het-group=4\n"),
    ("KIT146", GPUS + "python t.py --shards a-{000..007}.tar\npython t.py b-{000..007}.tar\n"),
    ("KIT145", HEAD + "for i in $(eval echo {0..$N}); do python t.py $i; done\n"),
    ("KIT145", HEAD + 'for i in {0..7} $(seq 0 $N) "{a..$b}" ${L[@]:0:2}; do python t.py $i; done\n'),
    ("KIT145", "#!/bin/zsh\nfor i in {0..$N}; do python t.py $i; done\n"),
    ("KIT145", HEAD + "for i in ${A%.*} {a,$b..c} $X..$Y ../{a,$b}; do python t.py $i; done\n"),
    ("KIT145", HEAD + "for ((i = 0; i < N; i++)); do python t.py --urls {0..$N}.tar; done\n"),
    ("KIT202", ONE_A_NODE + "srun -N1 -n1 python p.py\nsrun torchrun --nnodes=4 t.py\ntorchrun --nnodes=4 t.py\n"),
    ("KIT202", ONE_A_NODE + "srun -N1 -n1 python p.py\ntorchrun --nproc-per-node=4 t.py\n"),
    ("KIT202", ONE_A_NODE + "srun -N1 -n1 python p.py\ntorchrun --nnodes=1 t.py\n"),
    (
        "KIT202",
        ONE_A_NODE + "srun -N1 -n1 python p.py\nfor h in $HS; do ssh $h torchrun --nnodes=4 t.py & done\nwait\n",
    ),
    ("KIT202", ONE_A_NODE + "srun -N1 -n1 python p.py\ntorchrun --nnodes=4 --node-rank=$R t.py\n"),
    ("KIT212", FOUR + "srun -N4 -n4 bash -c 'ls /d/*.tar | xargs -I{} cp {} /tmp/d/'\nsrun python t.py --d /tmp/d\n"),
    ("KIT212", FOUR + "ls /tmp/d/*.tar | xargs -I{} cp {} /shared/d\nsrun python t.py --d /shared/d\n"),
    ("KIT212", HEAD + "#SBATCH -N1\nls *.tar | xargs -I{} cp {} /tmp/d/\nsrun python t.py --d /tmp/d\n"),
    ("KIT212", FOUR + "find /tmp/d -name x -delete\nsrun python t.py --d /tmp/d\n"),
    ("KIT222", FOUR.replace("=2", "=1") + "srun vllm serve m --port 8000 &\npython t.py\n"),
    ("KIT302", GPUS.replace("=4", "=1") + "export MASTER_PORT=29577\nsrun python t.py\n"),
    ("KIT302", GPUS + "export MASTER_PORT=54123\nsrun python t.py\n"),
    ("KIT308", GPUS + "run() { torchrun --master_port=29511 $1.py; }\nrun a\nrun b\n"),
    ("KIT308", GPUS + "run() { torchrun --master_port=29511 $1.py; }\nrun a &\nwait\nrun b &\nwait\n"),
    ("KIT308", GPUS + "run() { torchrun --master_port=$2 $1.py; }\nrun a 29511 &\nrun b 29512 &\nwait\n"),
    ("KIT308", GPUS + "run() { torchrun --standalone $1.py; }\nrun a &\nrun b &\nwait\n"),
    ("KIT310", HEAD + "export MASTER_PORT=1${SLURM_JOB_ID: -4}\nsrun python t.py\n"),
    ("KIT310", HEAD + "export MASTER_PORT=2${SLURM_JOB_ID: -4}\nsrun python t.py\n"),
    ("KIT310", HEAD + "export MASTER_PORT=29${SLURM_JOB_ID: -3}\nsrun python t.py\n"),
    ("KIT310", HEAD + "export MASTER_PORT=1${N: -5}\nsrun python t.py\n"),
    (
        "KIT311",
        GPUS + 'T=(a b c d)\nfor i in "${!T[@]}"; do CUDA_VISIBLE_DEVICES=$i python t.py ${T[i]} & done\nwait\n',
    ),
    ("KIT311", GPUS + 'T=($(ls d))\nfor i in "${!T[@]}"; do CUDA_VISIBLE_DEVICES=$i python t.py & done\nwait\n'),
    (
        "KIT311",
        GPUS + 'T=(a*)\nT+=(b c d e f)\nfor i in "${!T[@]}"; do CUDA_VISIBLE_DEVICES=$i python t.py & done\nwait\n',
    ),
    (
        "KIT311",
        GPUS + 'T=(a b c d e f)\nfor i in "${!T[@]}"; do CUDA_VISIBLE_DEVICES=$((i % 4)) python t.py & done\nwait\n',
    ),
    ("KIT401", HEAD + 'echo "mpirun: $(command -v mpirun)"\nmpirun python t.py\n'),
    ("KIT401", HEAD + "srun python train.py\nset +x\n"),
    ("KIT401", HEAD + "python train.py a || true\npython train.py b || exit 1\n"),
    ("KIT401", HEAD + "python train.py || exit 1\npython plot.py\necho done\n"),
    (
        "KIT411",
        HEAD + "#SBATCH --signal=B:TERM@300\ntrap 'kill $p' TERM\npython t.py & p=$!\nwait $p\npython plot.py\n",
    ),
    ("KIT505", GPUS + "apptainer exec --nv -B /l:/l:ro i.sif python eval_train_set.py --ckpt-dir /l/ckpt\n"),
    ("KIT401", FOUR + "set -e\n# one worker may die without harm\nsrun python w.py || echo failed\npython best.py\n"),
    (
        "KIT402",
        HEAD
        + "while read f; do python t.py $f & p+=($!)\ndone < <(ls *.y)\nfor i in ${p[@]}; do wait $i || exit 1; done\n",
    ),
    ("KIT402", HEAD + "ls *.y | { while read f; do python t.py $f & p+=($!); done; wait ${p[@]}; }\n"),
    ("KIT402", HEAD + "ls *.y | while read f; do python t.py $f; done & p=$!\nwait $p\n"),
    (
        "KIT402",
        HEAD + "scontrol show hostnames | while read h; do\n srun -w $h --overlap nvidia-smi dmon >$h &\ndone\n"
        "python t.py & p=$!\nwait $p\n",
    ),
    ("KIT302", GPUS.replace("=4", "=1") + "#SBATCH --array=1-4%1\nexport MASTER_PORT=29577\nsrun python t.py\n"),
    ("KIT402", HEAD + "shopt -s lastpipe\nls | while read f; do python t.py $f & p=$!; done\nwait $p || exit 1\n"),
    ("KIT402", HEAD + "set -o pipefail\npython t.py | tee log & p=$!\nwait $p\n"),
    (
        "KIT405",
        HEAD + "f() {\nlocal m\nm=$(python c.py)\nif [ $? -ne 0 ]; then return 1; fi\n}\nf || exit 1\npython t.py\n",
    ),
    ("KIT405", HEAD + "local=3\nexport A=3\npython t.py\nrc=$?\necho $rc\nexit $rc\n"),
    ("KIT405", HEAD + "echo a | grep -q b\nif [ $? -eq 0 ]; then echo yes; fi\npython t.py\n"),
    ("KIT405", HEAD + "echo a > f\nif [ $? -ne 0 ]; then exit 1; fi\npython t.py\n"),
    (
        "KIT405",
        HEAD + "trap 'echo end; exit $?' TERM\nmake || echo failed\nif [ $? -ne 0 ]; then exit 1; fi\npython t.py\n",
    ),
    ("KIT406", HEAD + 'set -eo pipefail\nL=$(ls -t o/*.pt 2>/dev/null | head -1 || true)\n[ -n "$L" ] && A=1\n'),
    ("KIT405", HEAD + 'make\n[[ $? -eq 0 ]] || exit 1\necho "$?"\nif [[ $A -eq 0 ]]; then echo; fi\npython t.py\n'),
    ("KIT405", HEAD + "if ! make; then exit 1; fi\necho built\nif [ $? -ne 0 ]; then exit 1; fi\npython t.py\n"),
    ("KIT405", HEAD + "python t.py | tee l\nif [ ${PIPESTATUS[0]} -ne 0 ]; then exit 1; fi\necho\n"),
    ("KIT406", HEAD + 'set -e\nL=$(ls -t o/*.pt 2>/dev/null | head -1)\n[ -n "$L" ] && A=1\n'),
    ("KIT406", HEAD + "set -eo pipefail\nL=$(ls -t o/*.pt | head -1)\npython t.py $L\n"),
    ("KIT406", HEAD + 'set -eo pipefail\nL=$(ls -t o | head -1)\nM=$(find o -name "*.pt" | tail -1)\n[ -n "$L$M" ]\n'),
    ("KIT406", HEAD + 'set -eo pipefail\nL=$(ls o/*.pt | head -1) || L=\n[ -z "$L" ] || A=1\nlocal X=$(ls *)\n'),
    ("KIT423", HEAD + "exec > >(tee log) 2>&1\nexec 3< f\nsrun python t.py\nrsync -a o/ p/\n"),
    ("KIT423", HEAD + "if [ $A ]; then exec srun python t.py; fi\nrsync -a o/ p/\n"),
    ("KIT423", HEAD + "exec srun python t.py\nsave() { cp a b; }\n"),
    ("KIT423", HEAD + "srun python t.py\n(exec python e.py)\nrsync -a o/ p/\nexit 0\n# cp a b\n"),
    ("KIT429", HEAD + "for p in 1 2; do sbatch -J chain -d singleton t.sh $p; done\n"),
    ("KIT429", HEAD + "for m in a b; do for p in 1 2; do sbatch -J x -d singleton t.sh $m; done; done\n"),
    ("KIT429", HEAD + 'sbatch -J "$NAME" --dependency=singleton t.sh\n'),
    (
        "KIT429",
        HEAD + "for p in 1 2; do sbatch -J a$p -d afterany:$ID t.sh; done\nsbatch -d afterok:$SLURM_JOB_ID e.sh\n",
    ),
    ("KIT429", HEAD + "id=$(sbatch --parsable a.sh)\nsbatch --wait -d afterok:$id e.sh\n"),
    ("KIT431", HEAD + "#SBATCH -t 1-0\ntimeout 1425m python t.py\ntimeout 23.5h python t.py\n"),
    ("KIT431", HEAD + "#SBATCH -t 1-0\ntimeout 60 python t.py\ntimeout 85000 python t.py\n"),
    ("KIT431", HEAD + '#SBATCH -t 1-0\ntimeout $((23*3600)) python t.py\ntimeout "${LIMIT}m" python t.py\n'),
    ("KIT431", HEAD + "#SBATCH -t 60\ntimeout -k 5m --signal=USR1 0.9h srun python t.py\n"),
    ("KIT432", HEAD + "ls -dt o/step_* | tail -n +4 | xargs -r rm -rf\npython t.py\n"),
    ("KIT432", HEAD + "ls -d o/s_* | sort -V | head -n -3 | xargs rm -r\npython t.py\n"),
    ("KIT432", HEAD + "ls -d o/s_* | sort -rV | tail -n +4 | xargs rm -r\nls -dtr o/* | head -n -3 | xargs rm -r\n"),
    (
        "KIT432",
        HEAD
        + "ls -l o | tail -n +2 > list\nls -t o | head -n -3 > old\nsort -n s | tail -n +2\npython t.py\nrm list\n",
    ),
    ("KIT505", GPUS + 'M="/a:/a,/b:/b"\nsrun --container-image=i --container-mounts=$M python t.py\n'),
    ("KIT505", GPUS + "apptainer exec --nv -B /a:/a -B /b i.sif python t.py --betas 0.9, /a\n"),
    (
        "KIT505",
        GPUS + "mkdir $SLURM_TMPDIR/v\napptainer exec --nv -C -B $SLURM_TMPDIR i.sif python t.py --d $SLURM_TMPDIR/v\n",
    ),
    ("KIT505", GPUS + "mkdir $TMPDIR/v\napptainer exec --nv -C -B /localscratch i.sif python t.py --d $TMPDIR/v\n"),
    ("KIT505", GPUS + "mkdir $SLURM_TMPDIR/v\napptainer exec --nv i.sif python t.py --d $SLURM_TMPDIR/v\n"),
    ("KIT505", GPUS + "mkdir $TMPDIR/v\napptainer exec --nv -C i.sif bash -c 'python t.py --d $TMPDIR/v'\n"),
    ("KIT505", GPUS + "apptainer exec --nv -B /l:/l:ro i.sif python analyze_training.py --log-dir /l\n"),
    (
        "KIT507",
        ONE_A_NODE
        + 'srun apptainer exec --nv -e i.sif bash -c "torchrun --node_rank=0 --rdzv-id=$SLURM_JOB_ID t.py"\n',
    ),
    ("KIT507", ONE_A_NODE + "srun bash -c 'apptainer exec --nv -e i.sif torchrun --node_rank=$SLURM_NODEID t.py'\n"),
    (
        "KIT507",
        ONE_A_NODE
        + "srun apptainer exec --nv -e --env SLURM_NODEID=1 i.sif bash -c 'torchrun --node_rank=$SLURM_NODEID t.py'\n",
    ),
    ("KIT507", ONE_A_NODE + "srun apptainer exec --nv i.sif bash -c 'torchrun --node_rank=$SLURM_NODEID t.py'\n"),
    ("KIT136", HEAD + 'O=/s/p/r/q/$SLURM_JOB_ID\nL=$O/a/t.log\nmkdir -p "${L%/*}"\nsrun python t.py > $O/a/t.log\n'),
    ("KIT253", HEAD + "#SBATCH -a 1-4\npython t.py --lr $SLURM_ARRAY_TASK_ID --ckpt-dir $FAST_SCRATCH/c\n"),
    ("KIT501", HEAD + "# HF_TOKEN is not needed here\nset -x\nA=1\nsource b.env\npython t.py\n"),
    ("KIT118", HEAD + "#SBATCH -a 0-9 -o %x-%A.out --open-mode=a\npython t.py $SLURM_ARRAY_TASK_ID\n"),
    (
        "KIT305",
        TWO + "ip=$(srun -N1 -n1 -w $h hostname -i | awk '{print $1}')\nsrun torchrun --rdzv-endpoint=$ip:1 t.py\n",
    ),
    ("KIT305", TWO + "ip=$(srun hostname -i | awk 'NR==1{print $1}')\nsrun torchrun --rdzv-endpoint=$ip:1 t.py\n"),
    ("KIT305", TWO + "ip=$(srun hostname -i | awk '{print $1; exit}')\nsrun torchrun --rdzv-endpoint=$ip:1 t.py\n"),
    ("KIT305", TWO + "ip=$(srun hostname -i | sed 1q)\nsrun torchrun --rdzv-endpoint=$ip:1 t.py\n"),
    ("KIT305", TWO + "ip=$(srun hostname -i | tr '\\n' ,)\nsrun torchrun --rdzv-endpoint=${ip%%,*}:29500 t.py\n"),
    ("KIT305", TWO + "ip=$(srun hostname -i)\nip=${ip%%$'\\n'*}\nsrun torchrun --rdzv-endpoint=$ip:1 t.py\n"),
    ("KIT305", HEAD + "#SBATCH -N1 -n1\nip=$(srun hostname -i)\nsrun torchrun --rdzv-endpoint=$ip:1 t.py\n"),
    ("KIT305", TWO + "ip=$(srun hostname -i)\necho $ip\nsrun python t.py\n"),
    ("KIT406", HEAD + "set -e\nf() {\n [[ -f a ]] && A=1\n}\nif f; then :; fi\nf || true\npython t.py $A\n"),
    ("KIT406", HEAD + "set -e\nf() {\n [[ -f a ]] && A=1\n return 0\n}\nf\npython t.py $A\n"),
    ("KIT406", HEAD + "set -e\n[ -f a ] && A=1\nfor i in 1 2; do [ -f $i ] && rm $i; done\npython t.py $A\n"),
    (
        "KIT406",
        HEAD + "set -e\nA=$([ -f a ] && echo --r || true)\nexport B=$([ -f a ] && echo b)\npython t.py $A\n",
    ),
    ("KIT406", HEAD + "f() { [ -f a ] && A=1; }\nf\npython t.py $A\n"),
    ("KIT406", HEAD + "set -e\nf() { [ -f a ] && rm a; }\ntrap f EXIT\npython t.py $A\n"),
    ("KIT406", HEAD + "set -e\nf() { [ -f a ] && [ -f b ]; }\nf\npython t.py $A\n"),
    (
        "KIT406",
        HEAD + 'set -e\nf() { [ "$SLURM_PROCID" = 0 ] && date; }\nf\nV=1\ng() { [ "$V" = 1 ] && date; }\ng\n',
    ),
    ("KIT406", HEAD + "set -e\nset +e\nf() { [ -f a ] && A=1; }\nf\nset -e\npython t.py $A\n"),
    ("KIT427", HEAD + "trap 'rm -rf $T' EXIT\ntrap - EXIT\ntrap 'kill $P' EXIT\npython t.py\n"),
    ("KIT427", HEAD + "c() { rm -rf $T; }\ntrap c EXIT\ntrap 'kill $P; c' EXIT\npython t.py\n"),
    ("KIT427", HEAD + "trap 'rm -rf $T/a' EXIT\nrm -rf $T/a\ntrap 'kill $P' EXIT\npython t.py\n"),
    ("KIT427", HEAD + "trap 'kill $A' TERM\nprep & A=$!\nwait $A\ntrap 'pkill x' TERM\npython t.py & wait $!\n"),
    ("KIT427", HEAD + "if [ a = b ]; then trap 'rm -rf $T' EXIT; else trap 'kill $P' EXIT; fi\npython t.py\n"),
    ("KIT427", HEAD + "trap 'rm x' EXIT\n(trap 'kill $P' EXIT; ls)\npython t.py\n"),
    (
        "KIT427",
        HEAD + "trap 'kill $a' EXIT\ntrap 'kill $(jobs -p)' EXIT\ntrap 'kill $(jobs -p); rm x' EXIT\npython t.py\n",
    ),
    ("KIT427", HEAD + "c() { rm -rf $T; }\ntrap c EXIT INT TERM\ntrap 'kill $P; exit 1' TERM\npython t.py\n"),
    *(
        ("KIT417", CHAIN + f"[ -f d ] && exit\ntrap 'kill $P; {code} $0\npython t.py & P=$!\nwait $P\n")
        for code in (
            "exit 1' USR1\nsbatch -d afterany:$SLURM_JOB_ID",
            "exit 0' USR1\nsbatch -d afterok:$SLURM_JOB_ID",
            "scancel $N; exit 1' USR1\nsbatch -d afterok:$SLURM_JOB_ID",
        )
    ),
    (
        "KIT417",
        CHAIN + "trap 'wait $P; exit 1' USR1\nsbatch -d afterok:$SLURM_JOB_ID eval.sh\npython t.py & P=$!\nwait $P\n",
    ),
    (
        "KIT417",
        CHAIN
        + "sbatch -d afterok:$SLURM_JOB_ID tr.sh\ntimeout 50m python t.py\nrc=$?\n[ $rc = 124 ] && exit 0\nexit $rc\n",
    ),
    ("KIT421", HEAD + "for ((;;)); do date; [ -f x ] && break; sleep 5; done > l\npython t.py\n"),
    ("KIT421", HEAD + "die() { exit 1; }\nwhile true; do ls x || die; done\npython t.py\n"),
    ("KIT421", HEAD + "while true; do python t.py; done\n"),
    ("KIT421", HEAD + "while true; do echo y; done | python t.py\n"),
    ("KIT421", HEAD + "( while true; do date; sleep 9; done ) > x &\npython t.py\n"),
    ("KIT421", HEAD + "m() { while true; do date; sleep 5; done; }\nm &\npython t.py\n"),
    ("KIT421", HEAD + "while true; do\n while true; do date; break 2; done\ndone\npython t.py\n"),
    ("KIT421", HEAD + "watch() { while sleep 3; do date; done; }\npython t.py\n"),
    ("KIT427", HEAD + "trap 'rm a' EXIT\ntrap 'rm a' EXIT # again\ntrap \"rm 'a' b\" EXIT\npython t.py\n"),
    ("KIT406", HEAD + 'set -e\nlog() { echo hi; }\nd() { [ -n "$D" ] || return 0; echo; }\nd\npython t.py\n'),
    ("KIT406", HEAD + "f() { [ -f a ] && A=1; }\nf\nset -e\npython t.py\n"),
    ("KIT406", HEAD + 'set -e\nretry() { "$@" && return; }\nretry ls\npython t.py\n'),
    ("KIT305", TWO + "ip=$(srun -N 1 -n 1 hostname -i)\nsrun torchrun --rdzv-endpoint=$ip:1 t.py\n"),
    ("KIT305", TWO + "ip=$(srun hostname -i | grep -m1 10)\nsrun torchrun --rdzv-endpoint=$ip:1 t.py\n"),
    ("KIT305", TWO + 'ip=$(srun hostname -i)\nread -r ip _ <<< "$ip"\nsrun torchrun --rdzv-endpoint=$ip:1 t.py\n'),
    ("KIT305", TWO + "ip=$(hostname -i | awk '{print $1}')\nsrun torchrun --rdzv-endpoint=$ip:1 t.py\n"),
    ("KIT305", TWO + "ip=$(ssh $h hostname -i | awk '{print $1}')\nsrun torchrun --rdzv-endpoint=$ip:1 t.py\n"),
    ("KIT305", TWO + "ip=$(srun $ONE hostname -i)\nsrun torchrun --rdzv-endpoint=$ip:1 t.py\n"),
    ("KIT305", TWO + "ips=$(srun hostname -i)\nfor h in $ips; do echo $h; done\nsrun python t.py\n"),
    ("KIT417", CHAIN + "sbatch -d afterok:$SLURM_JOB_ID eval/tr_eval.sh\ntrap 'exit 1' USR1\npython t.py & wait $!\n"),
    ("KIT417", CHAIN + "[ -f d ] && exit\nsbatch -d afterok:$SLURM_JOB_ID $0\ntimeout 55m python t.py\nexit 0\n"),
    ("KIT417", CHAIN + "[ -f d ] && exit\nsbatch -d afterok:$SLURM_JOB_ID $0\ntimeout 55m python t.py || true\n"),
    ("KIT406", HEAD + "set -e\nf() {\n if [ -f a ]; then A=1; fi\n}\nf\npython t.py $A\n"),
    ("KIT406", HEAD + "set -e\nf() { [ -f a ] || A=1; }\nf\npython t.py $A\n"),
    ("KIT406", HEAD + "set -e\nf() { [ -f a ] && A=1 || A=2; }\nf\npython t.py $A\n"),
    ("KIT406", HEAD + "set -e\nf() { [ -f a ] && A=1; true; }\nf\npython t.py $A\n"),
    ("KIT406", HEAD + "set -e\nf() { [ -f a ] && A=1; :; }\nf\npython t.py $A\n"),
    ("KIT406", HEAD + "set -e\nf() { [ -f a ] && A=1; }\nf &\nwait\npython t.py $A\n"),
    ("KIT406", HEAD + "set -e\nf() { [ -f a ] && A=1; }\necho $(f)\nlocal_x=1 python t.py $(f)\n"),
    ("KIT406", HEAD + 'set -e\nmkdir -p $D\nf() { [ -d "$D" ] && cd "$D"; }\nf\npython t.py $A\n'),
    ("KIT406", HEAD + "set -e\nf() { while :; do sleep 5; [ -f ready ] && break; done; }\nf\npython t.py $A\n"),
    ("KIT406", HEAD + "set -e\nsrun bash -c 'f() { [ -f a ] && A=1; }; f; python t.py'\n"),
    ("KIT406", HEAD + "set -e\nmain() { f; }\nf() { [ -f a ] && A=1; }\nmain || exit 1\npython t.py $A\n"),
    ("KIT427", HEAD + "trap 'echo failed' EXIT\ntrap 'rm x' EXIT\npython t.py\n"),
    ("KIT427", HEAD + "a() { rm x; }\nb() { kill $P; a; }\ntrap a EXIT\ntrap b EXIT\npython t.py\n"),
    ("KIT427", HEAD + "a() { rm x; }\ntrap a EXIT\na\ntrap 'kill $P' EXIT\npython t.py\n"),
    ("KIT427", HEAD + "trap 'rm x' EXIT\ntrap 'kill $P' TERM\ntrap 'date' ERR\ntrap 'ls' ERR\npython t.py\n"),
    ("KIT427", HEAD + "trap '' TERM\ntrap 'kill $P' TERM\npython t.py\n"),
    ("KIT427", HEAD + "trap 'rm x' EXIT\n# from now on, the checkpoint replaces x\ntrap 'cp c d' EXIT\npython t.py\n"),
    ("KIT427", HEAD + 'C=\'rm a\'\ntrap "$C" EXIT\nC="$C; rm b"\ntrap "$C" EXIT\npython t.py\n'),
    ("KIT421", HEAD + "while true; do if curl -s x; then break; fi; sleep 1; done\npython t.py\n"),
    ("KIT421", HEAD + "while true; do nvidia-smi; sleep 1; done > log & M=$!\npython t.py\nkill $M\n"),
    ("KIT421", HEAD + "until curl -s x; do sleep 1; done\nwhile [ ! -f x ]; do sleep 1; done\npython t.py\n"),
    ("KIT421", HEAD + "w() { while true; do [ -f x ] && return 0; sleep 1; done; }\nw\npython t.py\n"),
    ("KIT421", HEAD + "timeout 60 bash -c 'while true; do nvidia-smi; sleep 1; done'\npython t.py\n"),
    ("KIT421", HEAD + "{\n while true; do nvidia-smi; sleep 1; done\n} > log 2>&1 &\npython t.py\n"),
    ("KIT421", HEAD + "python t.py\nwhile true; do date; sleep 5; done\n"),
    ("KIT421", HEAD + 'if [ -n "$DEBUG" ]; then while true; do date; sleep 5; done; fi\npython t.py\n'),
    ("KIT421", HEAD + "srun bash -c 'while true; do nvidia-smi; sleep 5; done' &\npython t.py\n"),
    ("KIT421", HEAD + "cat > mon.sh <<'E'\nwhile true; do nvidia-smi; sleep 5; done\nE\nsrun python t.py\n"),
    ("KIT427", HEAD + "cat > a.sh <<'E'\ntrap 'rm x' EXIT\ntrap 'ls y' EXIT\nE\npython t.py\n"),
    ("KIT427", HEAD + "bash -c \"trap 'rm x' EXIT; ls\"\ntrap 'ls y' EXIT\npython t.py\n"),
    ("KIT305", TWO + "read -r ip < <(srun hostname -i)\nsrun torchrun --rdzv-endpoint=$ip:1 t.py\n"),
    ("KIT305", TWO + "ip=$(srun hostname -i | paste -sd,)\nsrun torchrun --rdzv-endpoint=${ip%%,*}:1 t.py\n"),
    ("KIT305", TWO + "ip=$(srun hostname -i | awk 'END{print $1}')\nsrun torchrun --rdzv-endpoint=$ip:1 t.py\n"),
    ("KIT305", TWO + "echo $(srun hostname) > hosts\nsrun python t.py\n"),
]

GOOD += [
    *(
        ("KIT215", ONE_A_NODE + f"{code}\ndeepspeed --hostfile h t.py\n")
        for code in (
            f"{_HOSTS} | sed 's/$/ slots=8/' > h",
            f"{_HOSTS} > h; sed -i 's/$/ slots=8/' h",
            f"{_HOSTS} | awk '{{print $1, \"slots=8\"}}' > h",
            f'for n in $({_HOSTS}); do echo "$n slots=8" >> h; done',
            f'for n in $({_HOSTS}); do echo "$n $SUFFIX" >> h; done',
            f"{_HOSTS} | python add.py > h",
            f"{_HOSTS} > h; python add.py h",
            f"{_HOSTS} > other",
            "./hosts.sh > h",
            "echo $LINE > h",
            "cat $HOSTS > h",
            f"{_HOSTS} | while read n; do echo $n $S; done > h",
            f"{_HOSTS} > raw; while read -r n; do echo $n >> h; done < raw",
            "n=$m; m=$n; echo $n > h",
            f"mapfile -t n < <({_HOSTS}); n+=($EXTRA); echo ${{n[@]}} > h",
        )
    ),
    ("KIT215", FOUR + f"{_HOSTS} | sed 's/$/ slots=4/' > a\nsed 's/4/2/; s/$/ slots=2/' b > c\ndeepspeed -H a t.py\n"),
    ("KIT229", ONE_A_NODE + f"{_HOSTS} > nodes\ndeepspeed --hostfile ~/all --include $(paste -sd@ nodes) t.py\n"),
    ("KIT202", ONE_A_NODE + "python slots.py > h\ndeepspeed -H h t.py\n"),
    ("KIT311", HEAD + "#SBATCH --gpus=2\n" + "".join(f"CUDA_VISIBLE_DEVICES={n} python t.py {n} &\n" for n in (0, 1))),
    *(
        ("KIT124", HEAD + f"set -u\n{code}\n")
        for code in ("source venv/bin/activate", ". $V/bin/activate", "source activate.sh")
    ),
    *(
        ("KIT109", HEAD + f"{code}\n")
        for code in (
            "apptainer exec --nv i.sif bash -c 'conda activate a && python t.py'",
            "docker run --rm i bash -c 'conda activate a && python t.py'",
            "enroot start i bash -c 'conda activate a && python t.py'",
            "singularity exec i.sif bash <<E\nconda activate a\npython t.py\nE",
        )
    ),
    ("KIT215", ONE_A_NODE + f"{_HOSTS} > h\nmpirun --hostfile h python t.py\n"),
    *(
        ("KIT434", HEAD + f"{code}\n")
        for code in (
            "sbatch --dependency=afterok:$id a.sh x",
            "sbatch a.sh --epochs 3 --output x --time 5",
            "sbatch $OPTS a.sh --gres=gpu:1",
            "sbatch $OPTS --array=0-9 a.sh",
            "sbatch a.sh srun --gres=gpu:1 python t.py",
            "sbatch a.sh torchrun --nproc-per-node=4 t.py --array=0",
            "sbatch a.sh -- --array=0-9",
            "sbatch --wrap 'srun --gres=gpu:1 a' --dependency=afterok:1",
            "sbatch -d afterok:1 <<E\n#!/bin/sh\nE",
            "sbatch a.sh -d data -p 3 -a x",
            "sbatch a.sh --export onnx --nodes 3",
            'sbatch "${args[@]}" --gres=gpu:1',
        )
    ),
    *(
        ("KIT408", HEAD + f"{code}\n")
        for code in (
            "D=0\nsrun python t.py\n[ $D = 1 ] && echo x || true",
            "D=0\nsrun python t.py\n[ $D = 1 ] && echo x\nexit 0",
            "D=0\nsrun python t.py\n[ $D = 1 ] && echo x\necho done",
            "D=0\nsrun python t.py\n[ $D = 0 ] && echo x",
            "srun python t.py\n[ $D = 1 ] && echo x",
            "D=$1\nsrun python t.py\n[ $D = 1 ] && echo x",
            "D=0\ntrap 'D=1' USR1\nsrun python t.py\n[ $D = 1 ] && echo x",
            'D=0\neval "$(python c.py)"\nsrun python t.py\n[ $D = 1 ] && echo x',
            "D=0\nset_it() { local -n r=$1; r=1; }\nset_it D\nsrun python t.py\n[ $D = 1 ] && echo x",
            'D=0\nexport "D=$(cat f)"\nsrun python t.py\n[ $D = 1 ] && echo x',
            "#SBATCH --export=ALL,D=1\nsrun python t.py\n[ ${D:-0} = 1 ] && echo x",
            ": ${D:=1}\nsrun python t.py\n[ ${D:-0} = 1 ] && echo x",
            "D=0\nsrun python t.py\n[[ $D = [0-9] ]] && echo x",
            "D=0\nsrun python t.py\n[[ $D = 1 || $E = 1 ]] && echo x",
            "D=0\nwhile getopts k o; do case $o in k) D=1;; esac; done\nsrun python t.py\n[ $D = 1 ] && echo x",
            "srun python t.py\n[ -f best.pt ] && cp best.pt x",
            "srun python t.py\nrc=$?\n[ $rc -eq 0 ] && sbatch next.sh",
            "srun python t.py\nrc=$?\n[ $rc -ne 0 ] && echo failed\nexit $rc",
            "D=0\nsrun python t.py\nif [ $D = 1 ]; then echo x; fi",
            "D=0\nsrun python t.py\n[ $D = 1 ] || echo x",
            "D=0\nend() { [ $D = 1 ] && rm x; }\nsrun python t.py\nend\necho x",
            "D=0\nsrun python t.py\nend() { [ $D = 1 ] && rm x; }",
            "D=0\nsource conf.sh; read D < f\nsrun python t.py\n[ $D = 1 ] && echo x",
            "D=0\nsource conf.sh\nsrun python t.py\n[ $D = 1 ] && echo x",
            "srun python t.py\ngrep -q nan log; rc=$?\nsrun python t.py\n[ $found = 1 ] && echo x",
        )
    ),
    *(
        ("KIT109", HEAD + f"source c/etc/profile.d/conda.sh\n{code}\n")
        for code in (
            "srun bash -c 'source c/etc/profile.d/conda.sh; conda activate a; python t.py'",
            "srun bash -c 'eval \"$(conda shell.bash hook)\"; conda activate a; python t.py'",
            "srun bash -lc 'conda activate a; python t.py'",
            "srun bash -ic 'conda activate a; python t.py'",
            "srun bash -l -c 'conda activate a; python t.py'",
            "export BASH_ENV=x; srun bash -c 'conda activate a; python t.py'",
            "export -f conda __conda_exe __conda_activate; srun bash -c 'conda activate a; python t.py'",
            "srun bash -c 'conda run -n a python t.py'",
            "srun bash -c 'source activate a; python t.py'",
            "srun bash -c 'source ~/.bashrc; conda activate a; python t.py'",
            "srun bash -c 'module load miniforge; conda activate a; python t.py'",
            "srun apptainer exec i.sif bash -c 'conda activate a; python t.py'",
            "ssh h 'conda activate a; python t.py'",
        )
    ),
    *(
        ("KIT507", ONE_A_NODE + f"export M=x A=1\n{code}\n")
        for code in (
            (
                "export APPTAINERENV_SLURM_NODEID=x\n"
                "srun apptainer exec -e i.sif bash -c 'torchrun --node-rank=$SLURM_NODEID t.py'"
            ),
            "srun bash -c 'apptainer exec -e i.sif torchrun --node-rank=$SLURM_NODEID t.py'",
            "srun apptainer exec -e --env M=$M i.sif bash -c 'torchrun --nnodes=4 --master-addr=$M t.py'",
            "srun apptainer exec -e --env-file e i.sif bash -c 'torchrun --node-rank=$SLURM_NODEID t.py'",
            "srun apptainer exec -e $OPTS i.sif bash -c 'torchrun --node-rank=$SLURM_NODEID t.py'",
            'srun apptainer exec -e i.sif bash -c "torchrun --nnodes=$SLURM_NNODES --rdzv-endpoint=$M:1 t.py"',
            "srun bash -c 'APPTAINERENV_RANK=$SLURM_PROCID apptainer exec -e i.sif python t.py'",
            "srun apptainer exec -e i.sif bash -c 'M=y; torchrun --master-addr=$M t.py'",
            "srun apptainer exec -e i.sif bash -c 'torchrun --node-rank=${SLURM_NODEID:-0} t.py'",
            "srun -N1 -n1 apptainer exec -e i.sif python t.py",
            "srun apptainer exec i.sif bash -c 'torchrun --node-rank=$SLURM_NODEID t.py'",
        )
    ),
    *(
        ("KIT212", FOUR + f"L=/tmp/j$SLURM_JOB_ID\n{code}\n")
        for code in (
            "srun --ntasks-per-node=1 tar -xf d.tar -C $L/d\nsrun python t.py --data $L",
            (
                "srun -N4 -n4 --ntasks-per-node=1 bash -c 'mkdir -p $0 && tar -xf d.tar -C $0/d' $L\n"
                "srun python t.py --data $L"
            ),
            "sbcast d.tar $L/d.tar\nsrun -n4 --ntasks-per-node=1 tar -xf $L/d.tar -C $L\nsrun python t.py --data $L",
            "tar -xf d.tar -C $L/d\npdsh -w $N tar -xf d.tar -C $L/d\nsrun python t.py --data $L",
            "tar -xf d.tar -C $L/d\nsrun -N1 -n1 python t.py --data $L",
            "tar -xf d.tar -C $SCRATCH/d\nsrun python t.py --data $SCRATCH",
            "tar -xf d.tar -C $L/d\nsrun python t.py --cache-dir $L",
            "tar -czf d.tar -C $L/d .\nsrun python t.py --data $L",
            "srun python t.py --out $L\ntar -xf d.tar -C $L/d",
            "T=$(mktemp -d -p $SCRATCH); cp -r d $T\nsrun python t.py --data $T",
            "cp c.yaml /tmp/c.yaml\nexport TMPDIR=/tmp\nsrun python t.py",
            "python -m venv $L/v\nsrun python t.py --tmp $L",
        )
    ),
    ("KIT402", HEAD + "for t in a b; do lm_eval $t & done\nwait\npython c.py\n"),
    ("KIT402", HEAD + "for t in a b; do lm_eval $t; done &\nwait $!\n"),
    ("KIT421", HEAD + "python t.py & P=$!\nwhile sleep 9; kill -0 $P; do date; done &\nwait $P\n"),
    (
        "KIT253",
        HEAD
        + "#SBATCH -a 0-3\nrm -rf /w/$USER/o/$SLURM_ARRAY_TASK_ID\npython t.py --log /w/$USER/o/$SLURM_ARRAY_TASK_ID\n",
    ),
    ("KIT134", HEAD + "C='$(date +%s)'\neval \"echo $C\"\npython t.py\n"),
    ("KIT428", HEAD + "python t.py --ckpt-dir $SLURM_TMPDIR/o\nls $SLURM_TMPDIR/o\ncp -r $SLURM_TMPDIR/o .\n"),
    ("KIT103", HEAD + "#SBATCH -n1\n# SBATCH --nodelist=n3\npython t.py\n"),
    ("KIT402", HEAD + "for t in 1 2; do srun python t.py & sleep 5; kill -0 $! && break; done\nwait $!\n"),
    ("KIT402", HEAD + "for t in 1 2; do if [ $t = 2 ]; then srun python t.py & fi; done\nwait $!\n"),
    ("KIT253", HEAD + "#SBATCH -a 0-3\ncd r/$SLURM_ARRAY_TASK_ID\nrm -rf s/out\npython t.py --log s/out/a\n"),
    ("KIT129", HEAD + "MODEL=b\npython t.py --out r/${MODEL}_fold\n"),
    ("KIT129", HEAD + "DATA=/d\npython t.py --data $DATA_DIR --root $DATA\n"),
    ("KIT129", HEAD + "MODEL=a\nread MODEL_fold < f\npython t.py --out $MODEL_fold\n"),
    ("KIT129", HEAD + "no=1\necho $no_proxy\npython t.py\n"),
    ("KIT129", HEAD + 'M=1\nfor i in 1 2; do declare "M_$i=3"; done\npython t.py $M_1\n'),
    ("KIT129", HEAD + 'MODEL=a\n[ -n "$MODEL_fold" ] && python t.py $MODEL_fold\n'),
    ("KIT129", HEAD + "source conf.sh\nMODEL=a\npython t.py $MODEL_fold\n"),
    ("KIT129", HEAD + 'MODEL=a\npython t.py "r/$MODEL/$SLURM_JOB_ID-a_b"\n'),
    ("KIT129", HEAD + "MODEL=a\npython -c 'print(\"$MODEL_fold\")'\n"),
    ("KIT135", HEAD + "export PATH=$HOME/bin:$PATH\npython t.py\n"),
    ("KIT135", HEAD + 'export PATH="$HOME/bin:${PATH}"\npython t.py\n'),
    ("KIT135", HEAD + "export PYTHONPATH=/s${PYTHONPATH:+:$PYTHONPATH}\npython t.py\n"),
    ("KIT135", HEAD + "export LD_LIBRARY_PATH=/opt/lib:$LD_LIBRARY_PATH:$CUDA_PATH/lib\npython t.py\n"),
    ("KIT135", HEAD + "DATA_PATH=/PATH/x\npython t.py --p PATH\n"),
    ("KIT135", HEAD + "export PATH=/opt/PATH:$PATH\npython t.py\n"),
    ("KIT135", HEAD + "prepend() { export PATH=$1:$PATH; }\nprepend /x\npython t.py\n"),
    ("KIT135", HEAD + "srun bash -c 'export PATH=/x:$PATH; python t.py'\n"),
    ("KIT135", HEAD + "export MANPATH=:$MANPATH\npython t.py\n"),
    ("KIT106", HEAD + "#SBATCH -a 0-3\npython t.py $SLURM_ARRAY_TASK_ID > log_$(date +%a).txt\n"),
    ("KIT106", HEAD + "#SBATCH -a 0-3\npython t.py $SLURM_ARRAY_TASK_ID > log_$SLURM_ARRAY_TASK_ID.txt\n"),
    ("KIT106", HEAD + "#SBATCH -a 0-3\nsrun --output=log_%a.txt python t.py $SLURM_ARRAY_TASK_ID\n"),
    ("KIT106", HEAD + "#SBATCH -a 0-3\nD=$(date '+%a-%d')\npython t.py $SLURM_ARRAY_TASK_ID > $D.txt\n"),
    ("KIT106", HEAD + "#SBATCH -a 0-3\nprintf 'x_%a.txt' > f\npython t.py $SLURM_ARRAY_TASK_ID\n"),
    ("KIT106", HEAD + "#SBATCH -a 0-3\npython t.py $SLURM_ARRAY_TASK_ID --date-format %b/%a/%d\n"),
    ("KIT106", HEAD + "#SBATCH -a 0-3\nsbatch --output=next_%A_%a.out next.sh\npython t.py $SLURM_ARRAY_TASK_ID\n"),
    (
        "KIT316",
        HEAD + "#SBATCH -N2 --ntasks-per-node=1 -p x\nexport NCCL_SOCKET_IFNAME=^lo,docker0\nsrun python t.py\n",
    ),
    ("KIT316", HEAD + "#SBATCH -N2 --ntasks-per-node=1 -p x\nexport NCCL_SOCKET_IFNAME==ib0\nsrun python t.py\n"),
    (
        "KIT316",
        HEAD + "#SBATCH -N2 --ntasks-per-node=1 -p x\nexport GLOO_SOCKET_IFNAME=ib0\nsrun python t.py --backend gloo\n",
    ),
    (
        "KIT316",
        HEAD
        + "#SBATCH -N2 --ntasks-per-node=1 -p x\nexport GLOO_SOCKET_IFNAME=ib0,ib1\nsrun python t.py --backend gloo\n",
    ),
    (
        "KIT316",
        HEAD + "#SBATCH -N2 --ntasks-per-node=1 -p x\n"
        "export GLOO_SOCKET_IFNAME=$(ip -o route get 10.0.0.1 | awk '{print $3}')\nsrun python t.py\n",
    ),
    (
        "KIT316",
        HEAD + "#SBATCH -N2 --ntasks-per-node=1 -p x\nexport GLOO_SOCKET_IFNAME=${GLOO_IF:-ib0}\nsrun python t.py\n",
    ),
    ("KIT421", HEAD + "python t.py &\nP=$!\nnvidia-smi -l 5 > g.csv &\nM=$!\nwait $P\nkill $M\n"),
    ("KIT421", HEAD + "nvidia-smi -l 5 > g.csv &\npid=$!\npython t.py &\npid=$!\nwait $pid\n"),
    ("KIT421", HEAD + "nvidia-smi -l 5 > g.csv &\npython t.py &\nwait $!\n"),
    ("KIT421", HEAD + "python t.py &\nP=$!\nwhile kill -0 $P; do date; sleep 9; done &\nM=$!\nwait $M\n"),
    ("KIT421", HEAD + "python t.py &\ntimeout 60 nvidia-smi -l 5 &\nM=$!\nwait $M\n"),
    (
        "KIT421",
        HEAD
        + "python t.py &\nP=$!\nw() { while true; do date; sleep 9; done; }\nw &\nM=$!\nwait $P\nkill $M\nwait $M\n",
    ),
    ("KIT421", HEAD + "w() { while sleep 5; do [ -f stop ] && break; done; }\npython t.py &\nw &\nM=$!\nwait $M\n"),
    ("KIT513", HEAD + "apptainer exec --nv i.sif python t.py --nv\n"),
    ("KIT513", HEAD + "apptainer exec $OPTS --nv $SIF python t.py\n"),
    ("KIT513", HEAD + "apptainer exec --no-mount home --nv i.sif python t.py\n"),
    ("KIT513", HEAD + "apptainer run --nv i.sif --model m --epochs 3\n"),
    ("KIT513", HEAD + 'apptainer exec "$SIF" python -u t.py\n'),
    ("KIT513", HEAD + "apptainer exec $BINDS $SIF -c t\n"),
    ("KIT513", HEAD + 'A=(--nv --bind /d)\napptainer exec "${A[@]}" i.sif python t.py\n'),
    ("KIT513", HEAD + "apptainer exec --network-args portmap=80:80/tcp --nv i.sif python t.py\n"),
    ("KIT513", HEAD + "apptainer exec i.sif $CMD --nv\n"),
    ("KIT513", HEAD + "apptainer exec $IMG_OPTS --nv $IMG python t.py\n"),
    (
        "KIT514",
        HEAD + "srun --container-image=a.sqsh --container-name=x pip install a\nsrun --container-name=x python t.py\n",
    ),
    (
        "KIT514",
        HEAD + "srun --container-image=a.sqsh --container-name=x pip install a\n"
        "srun --container-image=a.sqsh --container-name=x python t.py\n",
    ),
    (
        "KIT514",
        HEAD + "srun --container-image=a.sqsh --container-save=b.sqsh pip install a\n"
        "srun --container-image=b.sqsh python t.py\n",
    ),
    ("KIT514", HEAD + "srun --container-image=a.sqsh bash -c 'pip install a && python t.py'\n"),
    (
        "KIT514",
        HEAD + "srun --container-image=a.sqsh pip install --target=/w/p a\nsrun --container-image=a.sqsh python t.py\n",
    ),
    (
        "KIT514",
        HEAD + "srun --container-image=a.sqsh --container-mounts=/l/s:/usr/lib/python3/dist-pack"
        "ages pip install a\nsrun --container-image=a.sqsh python t.py\n",
    ),
    (
        "KIT514",
        HEAD + "srun --container-image=a.sqsh pip install --user a\n"
        "srun --container-image=a.sqsh --container-mount-home python t.py\n",
    ),
    (
        "KIT514",
        HEAD + "export PIP_TARGET=/w/p\nsrun --container-image=a.sqsh pip install a\n"
        "srun --container-image=a.sqsh python t.py\n",
    ),
    ("KIT514", HEAD + "srun --container-image=a.sqsh pip install a\nsrun --container-image=other.sqsh python t.py\n"),
    (
        "KIT514",
        HEAD + "srun --container-image=a.sqsh pip install a\n"
        "srun --container-image=a.sqsh bash -c 'pip install a && python t.py'\n",
    ),
    ("KIT514", HEAD + "srun --container-image=a.sqsh pip install -e /w\nsrun --container-image=a.sqsh python t.py\n"),
    ("KIT514", HEAD + "srun pip install a\nsrun --container-image=a.sqsh python t.py\n"),
    (
        "KIT514",
        HEAD + "srun --container-image=a.sqsh pip download -d /w/whl a\nsrun --container-image=a.sqsh python t.py\n",
    ),
    (
        "KIT251",
        HEAD + "#SBATCH -a 0-15\ni=0\nfor f in d/*; do\n"
        "  if (( i % 16 == SLURM_ARRAY_TASK_ID )); then python t.py $f; fi\n  i=$((i + 1))\ndone\n",
    ),
    (
        "KIT251",
        HEAD + "#SBATCH -a 1-16\ni=0\nfor f in d/*; do\n"
        "  if (( i % 16 == SLURM_ARRAY_TASK_ID - 1 )); then python t.py $f; fi\n  i=$((i + 1))\ndone\n",
    ),
    (
        "KIT251",
        HEAD + "#SBATCH -a 1-16\ni=0\nfor f in d/*; do\n"
        "  if (( i % 16 + 1 == SLURM_ARRAY_TASK_ID )); then python t.py $f; fi\n  i=$((i + 1))\ndone\n",
    ),
    (
        "KIT251",
        HEAD + "#SBATCH -a 3,7,11\ni=0\nfor f in d/*; do\n"
        "  if (( i % 16 == SLURM_ARRAY_TASK_ID )); then python t.py $f; fi\ndone\n",
    ),
    (
        "KIT251",
        HEAD + "#SBATCH -a 8-15\ni=0\nfor f in d/*; do\n"
        "  if (( i % 16 == SLURM_ARRAY_TASK_ID )); then python t.py $f; fi\ndone\n",
    ),
    (
        "KIT251",
        HEAD + "#SBATCH -a 1-16\nN=${N:-16}\nfor f in d/*; do\n"
        "  if (( i % N == SLURM_ARRAY_TASK_ID )); then python t.py $f; fi\ndone\n",
    ),
    (
        "KIT251",
        HEAD
        + "#SBATCH -a 1-8\nif (( SLURM_ARRAY_TASK_ID % 2 == 0 )); then X=a; fi\npython t.py $SLURM_ARRAY_TASK_ID\n",
    ),
    (
        "KIT251",
        HEAD + "#SBATCH -a 1-8\nf=x.$SLURM_ARRAY_TASK_ID\n[ ${f%4} = $SLURM_ARRAY_TASK_ID ] && echo\n"
        "python t.py $SLURM_ARRAY_TASK_ID\n",
    ),
    (
        "KIT251",
        HEAD + "#SBATCH -a 1-10\nsplit -n l/$SLURM_ARRAY_TASK_ID/10 all.txt > l.$SLURM_ARRAY_TASK_ID\n"
        "python t.py l.$SLURM_ARRAY_TASK_ID\n",
    ),
    (
        "KIT251",
        HEAD + "#SBATCH -a 1-4\n"
        "for ((i = SLURM_ARRAY_TASK_ID; i <= 100; i += SLURM_ARRAY_TASK_COUNT)); do pytho"
        'n t.py "$(sed -n "${i}p" l)"; done\n',
    ),
    (
        "KIT251",
        HEAD + "#SBATCH -a 0-3\n"
        "awk -v n=$SLURM_ARRAY_TASK_COUNT -v id=$SLURM_ARRAY_TASK_ID 'NR % n == id' l > m"
        ".$SLURM_ARRAY_TASK_ID\npython t.py $SLURM_ARRAY_TASK_ID\n",
    ),
    (
        "KIT251",
        HEAD
        + "#SBATCH -a 1-4\nfor e in 1 2 3; do (( e % 100 == 0 )) && echo; done\npython t.py $SLURM_ARRAY_TASK_ID\n",
    ),
    (
        "KIT256",
        HEAD + "#SBATCH -a 0-475:25\nSTART=$SLURM_ARRAY_TASK_ID\nEND=$((START + 25))\npython t.py $START $END\n",
    ),
    ("KIT256", HEAD + "#SBATCH -a 0-475:25\nC=$((SLURM_ARRAY_TASK_ID / 25))\nSTART=$((C * 25))\npython t.py $START\n"),
    (
        "KIT256",
        HEAD + "#SBATCH -a 0-19\nSTART=$((SLURM_ARRAY_TASK_ID * 25))\nEND=$((START + 25))\npython t.py $START $END\n",
    ),
    (
        "KIT256",
        HEAD
        + "#SBATCH -a 0-14:2\nPORT=$((20000 + SLURM_ARRAY_TASK_ID * 2))\npython t.py $PORT --i $SLURM_ARRAY_TASK_ID\n",
    ),
    (
        "KIT256",
        HEAD + "#SBATCH -a 0-475:25\nSEED=$((SLURM_ARRAY_TASK_ID * 100))\npython t.py $SEED $SLURM_ARRAY_TASK_ID\n",
    ),
    ("KIT256", HEAD + "#SBATCH -a 0-475:25\nC=${CHUNK:-25}\nSTART=$((SLURM_ARRAY_TASK_ID * C))\npython t.py $START\n"),
    (
        "KIT417",
        HEAD + "#SBATCH -J train\nLINK=${LINK:-1}\nif (( LINK < 6 )); then\n  export LINK=$((LINK + 1))\n"
        "  sbatch --dependency=afterany:$SLURM_JOB_ID train.sh\nfi\npython t.py --resume auto\n",
    ),
    (
        "KIT417",
        HEAD + "#SBATCH -J train\nLINK=${LINK:-1}\nif (( LINK < 6 )); then\n"
        "  LINK=$((LINK + 1)) sbatch --dependency=afterany:$SLURM_JOB_ID train.sh\nfi\npython t.py --resume auto\n",
    ),
    (
        "KIT417",
        HEAD + "#SBATCH -J train\nLINK=${LINK:-1}\nif (( LINK < 6 )); then\n  LINK=$((LINK + 1))\n"
        "  sbatch --dependency=afterany:$SLURM_JOB_ID --export=ALL,LINK=$LINK train.sh\nfi\n"
        "python t.py --resume auto\n",
    ),
    (
        "KIT417",
        HEAD + "#SBATCH -J train\nN=${1:-0}\nNEXT=$((N + 1))\n"
        "if [ $NEXT -le 9 ]; then sbatch --dependency=afterany:$SLURM_JOB_ID train.sh $NEXT; fi\n"
        "python t.py --resume auto\n",
    ),
    (
        "KIT417",
        HEAD + "#SBATCH -J train\nset -a\nLINK=${LINK:-1}\nif (( LINK < 6 )); then\n  LINK=$((LINK + 1))\n"
        "  sbatch --dependency=afterany:$SLURM_JOB_ID train.sh\nfi\npython t.py --resume auto\n",
    ),
    (
        "KIT417",
        HEAD + "#SBATCH -J train\n# first: LINK=1 sbatch train.sh\nLINK=${LINK:-1}\nif (( LINK < 6 )); then\n"
        "  LINK=$((LINK + 1))\n  sbatch --dependency=afterany:$SLURM_JOB_ID train.sh\nfi\npython t.py --resume auto\n",
    ),
    (
        "KIT417",
        HEAD + "#SBATCH -J train\nN=$(cat n 2>/dev/null)\nN=${N:-0}\nN=$((N + 1))\necho $N > n\n"
        "[ $N -lt 5 ] && sbatch --dependency=afterany:$SLURM_JOB_ID train.sh\npython t.py --resume auto\n",
    ),
    (
        "KIT417",
        HEAD + "#SBATCH -J train\nTRY=${TRY:-0}\nuntil python t.py --resume auto; do\n  TRY=$((TRY + 1))\n"
        "  [ $TRY -gt 3 ] && exit 1\ndone\nsbatch eval.sh\n",
    ),
    (
        "KIT417",
        HEAD + "#SBATCH -J train\nLINK=${LINK:-1}\nexport LINK\nif (( LINK < 6 )); then\n  ((LINK++))\n"
        "  sbatch --dependency=afterany:$SLURM_JOB_ID train.sh\nfi\npython t.py --resume auto\n",
    ),
    (
        "KIT402",
        HEAD + "#SBATCH -N1 --gpus-per-node=4\nD=$SLURM_TMPDIR/d\n"
        "for p in 0 1 2; do tar -xf a$p.tar -C $D/train & done\nwait\ntorchrun --nproc-per-node=4 t.py --data $D\n",
    ),
    (
        "KIT402",
        HEAD + "#SBATCH -N1 --gpus-per-node=4\nD=$SLURM_TMPDIR/d\ncp m.bin $D/m.bin &\nP=$!\npython prep.py\n"
        "wait $P\npython t.py --model $D/m.bin\n",
    ),
    (
        "KIT402",
        HEAD + "#SBATCH -N1 --gpus-per-node=4\nD=$SLURM_TMPDIR/d\nrsync -a /p/next/ $D/next &\n"
        "python t.py --data /p/now\nwait\n",
    ),
    (
        "KIT402",
        HEAD + "#SBATCH -N1 --gpus-per-node=4\nD=$SLURM_TMPDIR/d\n"
        "while true; do rsync -a $SCRATCH/out/ $HOME/out; sleep 300; done &\npython t.py --out $SCRATCH/out\n",
    ),
    (
        "KIT402",
        HEAD + "#SBATCH -N1 --gpus-per-node=4\nD=$SLURM_TMPDIR/d\ncp c.yaml $SCRATCH/o/c.yaml &\n"
        "python t.py --output-dir $SCRATCH/o\n",
    ),
    (
        "KIT402",
        HEAD + "#SBATCH -N1 --gpus-per-node=4\nD=$SLURM_TMPDIR/d\ntar -xf a.tar -C $D &\n"
        "until [ -f $D/done ]; do sleep 5; done\npython t.py --data $D\n",
    ),
    (
        "KIT402",
        HEAD + "#SBATCH -N1 --gpus-per-node=4\nD=$SLURM_TMPDIR/d\nfor s in 1 2 3; do\n"
        "  cp /p/$((s + 1)).tar $D/ &\n  python t.py --data $D/$s.tar\n  wait\ndone\n",
    ),
    (
        "KIT402",
        HEAD + "#SBATCH -N1 --gpus-per-node=4\nD=$SLURM_TMPDIR/d\n"
        "stage() { for p in 0 1; do tar -xf a$p.tar -C $D & done; wait; }\nstage\npython t.py --data $D\n",
    ),
    (
        "KIT402",
        HEAD + "#SBATCH -N1 --gpus-per-node=4\nD=$SLURM_TMPDIR/d\ntar -xf a.tar -C $D &\n"
        "python t.py --data $D --wait-for-pid $!\n",
    ),
    (
        "KIT402",
        HEAD + "#SBATCH -N1 --gpus-per-node=4\nD=$SLURM_TMPDIR/d\ntar -cf b.tar $D &\npython t.py --data $D\nwait\n",
    ),
    (
        "KIT409",
        HEAD + "set -e\nprep() {\n  python tok.py --out d || return 1\n  rm -rf raw\n  echo ok\n}\n"
        "prep || exit 1\npython t.py --data d\n",
    ),
    (
        "KIT409",
        HEAD + "set -e\nprep() {\n  python tok.py --out d && rm -rf raw\n}\nprep || exit 1\npython t.py --data d\n",
    ),
    ("KIT409", HEAD + "set -e\nprep() {\n  python tok.py --out d\n  rm -rf raw\n}\nprep\npython t.py --data d\n"),
    ("KIT409", HEAD + "set -e\nsetup() { mkdir -p o; cp $0 conf.yaml o; echo o; }\nsetup && python t.py\n"),
    ("KIT409", HEAD + "set -e\ntrain() { mkdir -p o; torchrun t.py; }\ntrain || { echo failed; exit 1; }\n"),
    ("KIT409", HEAD + "set -e\nnotify() { python post.py; echo sent; }\nnotify || echo 'no message'\npython t.py\n"),
    ("KIT409", HEAD + "set -e\nnotify() { python post.py; echo sent; }\nnotify || true\npython t.py\n"),
    (
        "KIT409",
        HEAD + "set -e\nprep() {\n  python tok.py --out d\n  [ -s d/index ] || return 1\n  echo ok\n}\n"
        "prep || exit 1\npython t.py --data d\n",
    ),
    (
        "KIT409",
        HEAD + "set -e\nstage() { cp d.tar $TMPDIR; tar -xf $TMPDIR/d.tar -C $TMPDIR; }\nstage || exit 1\n"
        "python t.py --data $TMPDIR\n",
    ),
    ("KIT409", HEAD + "run() { python a.py; echo done; }\nrun || exit 1\npython t.py\n"),
    ("KIT409", HEAD + "set -e\nrun() { python a.py; rc=$?; echo $rc; return $rc; }\nrun || exit 1\npython t.py\n"),
    ("KIT409", HEAD + "set -e\nbash -c 'set -e; python a.py; echo done' || exit 1\npython t.py\n"),
    (
        "KIT251",
        HEAD + "#SBATCH -a 0-15\n"
        "for j in 1 2 3 4; do (( j % 4 == SLURM_ARRAY_TASK_ID % 4 )) && python t.py $j $SLURM_ARRAY_TASK_ID; done\n",
    ),
    (
        "KIT251",
        HEAD
        + "#SBATCH -a 0-15\nfor j in 1 2 3 4; do (( 2 * SLURM_ARRAY_TASK_ID == j % 32 )) && python t.py $j; done\n",
    ),
    (
        "KIT251",
        HEAD + '#SBATCH -a 0-15\nawk "NR % 16 == $SLURM_ARRAY_TASK_ID" l > m.$SLURM_ARRAY_TASK_ID\n'
        "python t.py m.$SLURM_ARRAY_TASK_ID\n",
    ),
    (
        "KIT251",
        HEAD + "#SBATCH -a 1-16\n"
        "mapfile -t F < <(ls d | awk -v k=$((SLURM_ARRAY_TASK_ID - 1)) -v n=16 'NR % n == k')\npython t.py ${F[@]}\n",
    ),
    (
        "KIT256",
        HEAD + "#SBATCH -a 0-475:25\n"
        "for ((i = SLURM_ARRAY_TASK_ID; i < SLURM_ARRAY_TASK_ID + 25; i++)); do python t.py $i; done\n",
    ),
    (
        "KIT256",
        HEAD + "#SBATCH -a 0-19\n"
        "for i in $(seq $((SLURM_ARRAY_TASK_ID * 25)) $((SLURM_ARRAY_TASK_ID * 25 + 24))); do python t.py $i; done\n",
    ),
    ("KIT106", HEAD + "#SBATCH -a 0-3\nmkdir -p out_$(date +%a)\npython t.py $SLURM_ARRAY_TASK_ID\n"),
]

GOOD += [
    *(
        ("KIT142", HEAD + code)
        for code in (
            "export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512\npython t.py\n",
            "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,max_split_size_mb:128\npython t.py\n",
            ("export PYTORCH_CUDA_ALLOC_CONF='roundup_power2_divisions:[256:1,512:2,1024:4,>:8]'\npython t.py\n"),
            "export PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync\npython t.py\n",
            "export PYTORCH_CUDA_ALLOC_CONF=garbage_collection_threshold:0.8\npython t.py\n",
            "export PYTORCH_CUDA_ALLOC_CONF=$CONF\npython t.py\n",
            "export PYTORCH_CUDA_ALLOC_CONF=''\npython t.py\n",
            "export PYTORCH_CUDA_ALLOC_CONF=new_option:3\npython t.py\n",
            "export PYTORCH_CUDA_ALLOC_CONF='expandable_segments: True'\npython t.py\n",
            "export PYTORCH_CUDA_ALLOC_CONF=garbage_collection_threshold:.6\npython t.py\n",
            'export PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:${MB:-128}"\npython t.py\n',
        )
    ),
    *(
        ("KIT311", GPUS + code)
        for code in (
            "parallel -j 4 'CUDA_VISIBLE_DEVICES=$(({%} - 1)) python t.py {}' ::: a b\n",
            "parallel -j 4 'CUDA_VISIBLE_DEVICES={= $_=slot()-1 =} python t.py {}' ::: a b\n",
            (
                "run() {\n export CUDA_VISIBLE_DEVICES=$((PARALLEL_JOBSLOT - 1))\n python t.py $1\n}\n"
                "export -f run\nparallel -j 4 run ::: a b\n"
            ),
            (
                "run() {\n local gpu=$(($2 - 1))\n CUDA_VISIBLE_DEVICES=$gpu python t.py $1\n}\n"
                "export -f run\nparallel -j 4 run {} {%} ::: a b\n"
            ),
            "parallel -j 4 'python t.py {} > log.{%}' ::: a b\n",
            "parallel -j 4 --link 'CUDA_VISIBLE_DEVICES={2} python t.py {1}' ::: a b ::: 0 1\n",
            "# CUDA_VISIBLE_DEVICES={%} would count from 1\nparallel -j 4 python t.py {} ::: a b\n",
        )
    ),
    *(
        ("KIT412", HEAD + code)
        for code in (
            "srun python t.py &\npid=$!\nsleep 9\nkill -USR1 $pid\nwait\n",
            "scancel --signal=USR1 $SLURM_JOB_ID\n",
            "trap 'kill -TERM $pid; echo $SLURM_JOB_ID' USR1\npython t.py & pid=$!\nwait $pid\n",
            "pkill -f job_$SLURM_JOB_ID\n",
            "kill $(cat /tmp/$SLURM_JOB_ID.pid)\n",
            "kill -TERM -$$\n",
            "kill $(pgrep -f $SLURM_JOB_ID)\n",
            "trap 'kill $pid; rm -rf /tmp/$SLURM_JOB_ID' EXIT\npython t.py & pid=$!\nwait $pid\n",
            "kill %1\n",
            "kill -0 $(< run/$SLURM_JOB_ID)\n",
        )
    ),
    *(
        ("KIT423", HEAD + code)
        for code in (
            (
                "f() {\n kill $p\n wait $p\n cp -r $L $R\n scontrol requeue $SLURM_JOB_ID\n exit 0\n}\n"
                "trap f USR1\npython t.py & p=$!\nwait $p\ncp -r $L $R\n"
            ),
            "python t.py\nrc=$?\nif [ $rc = 85 ]; then scontrol requeue $SLURM_JOB_ID; exit 0; fi\ncp a b\n",
            "python t.py\n[ -f done ] || scontrol requeue $SLURM_JOB_ID\ncp a b\n",
            "scontrol requeue $OTHER\npython t.py\ncp a b\n",
            "scancel $WATCH\npython t.py\ncp a b\n",
            "python t.py\nif [ $? = 85 ]; then scontrol requeue $SLURM_JOB_ID; sleep 60; else cp a b; fi\n",
            ("f() {\n scontrol requeue $SLURM_JOB_ID\n exit 0\n cp a b\n}\ntrap f USR1\npython t.py & wait $!\n"),
            "python t.py\nscancel --signal=USR1 $SLURM_JOB_ID\ncp a b\n",
        )
    ),
    *(
        ("KIT147", HEAD + code)
        for code in (
            "export UID=$(id -u)\npython t.py\n",
            "GROUP=(a b)\npython t.py ${GROUP[0]} $UID ${GROUPS[0]}\n",
            "UID_MIN=3 GROUPS_FILE=x\npython t.py $UID_MIN $GROUPS_FILE\n",
            "groups=(a b)\nuid=3\npython t.py ${groups[0]} $uid\n",
            "docker run -e UID=$UID -u $UID i python t.py\n",
            "env UID=3 python t.py\n",
        )
    ),
    *(
        ("KIT147", code)
        for code in (
            "#!/bin/zsh\nGROUPS=(a)\npython t.py $GROUPS\n",
            "#!/bin/sh\nUID=3\npython t.py $UID\n",
        )
    ),
    *(
        ("KIT402", GPUS + code)
        for code in (
            (
                "run() { CUDA_VISIBLE_DEVICES=$1 python t.py $1; }\nfor i in 0 1 2 3 4 5; do\n run $i &\n"
                " [ $(jobs -r | wc -l) -ge 4 ] && wait -n\ndone\nwait\n"
            ),
            "python s.py --serve &\npython t.py &\nwait -n\nkill $(jobs -p)\n",
            "nvidia-smi dmon > log &\npython t.py & pid=$!\nwait -n $pid\n",
            (
                "run() { CUDA_VISIBLE_DEVICES=$1 python t.py $1; }\nfor i in 0 1 2 3; do run $i & done\n"
                "for i in 0 1 2 3; do wait -n || rc=1; done\nexit $rc\n"
            ),
            (
                "run() { CUDA_VISIBLE_DEVICES=$1 python t.py $1; }\nfor i in 0 1 2 3; do run $i & done\n"
                "while [ $(jobs -r | wc -l) -gt 0 ]; do wait -n; done\n"
            ),
            "python t.py &\nwait -n\nrc=$?\nexit $rc\n",
            ("run() { CUDA_VISIBLE_DEVICES=$1 python t.py $1; }\nfor i in 0 1 2 3; do run $i & done\nwait -n\nwait\n"),
            "python watch.py --dir d &\npython t.py &\nwait -n\n",
            (
                "for f in 0 1; do\n (cd r$f && CUDA_VISIBLE_DEVICES=$f python t.py) & p+=($!)\ndone\n"
                "for x in ${p[@]}; do wait $x || rc=1; done\nexit $rc\n"
            ),
            ("(\nfor f in 0 1; do python t.py $f & p+=($!); done\nfor x in ${p[@]}; do wait $x || exit 1; done\n)\n"),
            "( nvidia-smi dmon & )\npython t.py & p=$!\nwait $p\n",
        )
    ),
    *(
        ("KIT148", HEAD + code)
        for code in (
            "IFS=',' read -r LR WD <<< $ROW\nO='--a 1 --b 2'\npython t.py $O --lr $LR\n",
            "OLD=$IFS\nIFS=,\nset -- $ROW\nIFS=$OLD\nO='--a 1 --b 2'\npython t.py $O --lr $1\n",
            "IFS=,\nset -- $ROW\nunset IFS\nO='--a 1 --b 2'\npython t.py $O --lr $1\n",
            'IFS=,\nset -- $ROW\nO=(--a 1 --b 2)\npython t.py "${O[@]}" --lr $1\n',
            "f() { local IFS=,; echo \"$*\"; }\nO='--a 1 --b 2'\npython t.py $O $(f 1 2)\n",
            'J=$(IFS=,; echo "${L[*]}")\n(IFS=,; echo "${L[*]}")\nO=\'--a 1 --b 2\'\npython t.py $O $J\n',
            "IFS=$' \\t\\n'\nO='--a 1 --b 2'\npython t.py $O\n",
            "IFS=$'\\n\\t'\nO='--a=1'\npython t.py \"$O\"\n",
            "while IFS=, read -r a b; do python t.py $a $b; done < f\nO='--a 1 --b 2'\npython t.py $O\n",
            "O='--a 1 --b 2'\nIFS=' '\npython t.py $O\n",
            "for f in $(ls d); do\n IFS=_\n set -- $f\n python t.py $1\n unset IFS\ndone\n",
        )
    ),
    *(
        ("KIT409", HEAD + code)
        for code in (
            "test -f d || { echo missing; exit 1; }\npython t.py\n",
            "set -e\ntest -f d || (echo missing; exit 1)\npython t.py\n",
            "(cd x || exit 1; make)\npython t.py\n",
            "test -f d || (echo missing; exit 1) || exit 1\npython t.py\n",
            "chk() { test -f d || (echo missing; exit 1); }\nchk || exit 1\npython t.py\n",
            "if ! (test -f d || exit 1); then exit 1; fi\npython t.py\n",
            "set -eo pipefail\nls d | while read f; do test -s d/$f || exit 1; done\npython t.py\n",
            "{ python t.py; exit $?; } 2>&1 | tee log\nexit ${PIPESTATUS[0]}\n",
            "(sleep 9; echo late; exit 0) &\npython t.py\n",
            "while read f; do test -s $f || exit 1; done < l\npython t.py\n",
            "ls d | while read f; do test -s d/$f || exit 1; done || exit 1\npython t.py\n",
            "srun bash -c 'test -f d || (echo no; exit 1)'\npython t.py\n",
            "ls d | while read f; do\n test -s d/$f && echo $f && exit 0\ndone\npython t.py\n",
        )
    ),
    *(
        ("KIT210", GPUS2 + code)
        for code in (
            "srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID python t.py'\n",
            "srun bash -c 'RANK=$((SLURM_NODEID * 4 + SLURM_LOCALID)) python t.py'\n",
            "srun bash -c 'NODE_RANK=$SLURM_NODEID RANK=$SLURM_PROCID python t.py --local_rank $SLURM_LOCALID'\n",
        )
    ),
    *(
        ("KIT210", HEAD + code)
        for code in (
            (
                "#SBATCH --nodes=1 --ntasks-per-node=4 --gpus-per-node=4\n"
                "srun bash -c 'RANK=$SLURM_LOCALID python t.py'\n"
            ),
            "#SBATCH --nodes=4 --ntasks-per-node=1\nsrun bash -c 'RANK=$SLURM_NODEID python t.py'\n",
        )
    ),
    *(
        ("KIT228", GPUS + code)
        for code in (
            'IFS=, read -ra G <<< "$CUDA_VISIBLE_DEVICES"\nN=${#G[@]}\ntorchrun --nproc-per-node=$N t.py\n',
            "if [ ${#CUDA_VISIBLE_DEVICES} -eq 0 ]; then exit 1; fi\npython t.py\n",
            "N=$(( (${#CUDA_VISIBLE_DEVICES} + 1) / 2 ))\npython t.py $N\n",
            "T='my title'\nW=${#T}\necho $W\npython t.py\n",
            "L=(a b)\nN=${#L[*]}\npython t.py $N ${#}\n",
            "[[ ${#SLURM_JOB_GPUS} -gt 0 ]] || exit 1\npython t.py $#\n",
            "N=${CUDA_VISIBLE_DEVICES//[^,]/}\nM=$((${#N} + 1))\npython t.py $M\n",
        )
    ),
    *(
        ("KIT231", HEAD + code)
        for code in (
            "#SBATCH --gpus-per-node=4\ndeepspeed --include localhost:0,1,2,3 t.py --num_gpus 4\n",
            "#SBATCH --gpus-per-node=4\ndeepspeed --num_gpus 4 --num_nodes 1 t.py --include x\n",
            "#SBATCH --gpus-per-node=4\naccelerate launch --use_fsdp --num_processes 4 t.py --multi_gpu\n",
            "#SBATCH --gpus-per-node=4\naccelerate launch --multi_gpu --num_processes 4 t.py\n",
            "#SBATCH --gpus-per-node=4\nrsync -a --include a --exclude b x y\ndeepspeed --num_gpus=4 t.py\n",
        )
    ),
    *(
        ("KIT225", HEAD + code)
        for code in (
            (
                "#SBATCH -N2 --ntasks-per-node=1 --gpus-per-node=4 -c8\n"
                "srun -N1 -n1 -w $A ray start --head --node-ip-address=$IP --port=6379 --block &\n"
                "srun -N1 -n1 -w $B ray start --address $IP:6379 --block &\npython t.py\n"
            ),
            (
                "#SBATCH -N2 --ntasks-per-node=1 --gpus-per-node=4 -c8\nP=7001\n"
                "srun -N1 -n1 -w $A ray start --head --node-ip-address=$IP --port=$P --block &\n"
                "srun -N1 -n1 -w $B ray start --address $IP:$P --block &\npython t.py\n"
            ),
            (
                "#SBATCH -N2 --ntasks-per-node=1 --gpus-per-node=4 -c8\n"
                "srun -N1 -n1 -w $A ray start --head --node-ip-address=$IP  --block &\n"
                "srun -N1 -n1 -w $B ray start --address $IP:6379 --block &\npython t.py\n"
            ),
            (
                "#SBATCH -N2 --ntasks-per-node=1 --gpus-per-node=4 -c8\nP=$((7000 + SLURM_JOB_ID % 1000))\n"
                "H=$IP:$P\nsrun -N1 -n1 -w $A ray start --head --node-ip-address=$IP --port=$P --block &\n"
                "srun -N1 -n1 -w $B ray start --address $H --block &\npython t.py\n"
            ),
            (
                "#SBATCH -N2 --ntasks-per-node=1 --gpus-per-node=4 -c8\n"
                "srun -N1 -n1 -w $A ray start --head --node-ip-address=$IP --port=$PORT --block &\n"
                "srun -N1 -n1 -w $B ray start --address $IP:6379 --block &\npython t.py\n"
            ),
            (
                "#SBATCH -N2 --ntasks-per-node=1 --gpus-per-node=4 -c8\n"
                "srun -N1 -n1 -w $A ray start --head --node-ip-address=$IP --port=6379 --block &\n"
                "srun -N1 -n1 -w $B ray start --address $IP:6379 --block &\npython t.py\n"
                "RAY_ADDRESS=http://$IP:8265 ray job submit -- python u.py\n"
            ),
            (
                "#SBATCH -N2 --ntasks-per-node=1 --gpus-per-node=4 -c8\n"
                "srun -N1 -n1 -w $A ray start --head --node-ip-address=$IP --port=6379 --block &\n"
                "srun -N1 -n1 -w $B ray start --address $HEADADDR --block &\npython t.py\n"
            ),
        )
    ),
    *(
        ("KIT107", HEAD + code)
        for code in (
            "sbatch --constraint='a100|h100' a.sh\npython t.py\n",
            "sbatch --constraint=a100\\|h100 a.sh\n",
            "sbatch --constraint=a100 a.sh|tee log\npython t.py\n",
            "squeue -h|wc -l\npython t.py\n",
            'sbatch -C "a100&nvlink" a.sh\n',
            "curl -O 'https://h.org/f?a=1&b=2' & wget https://h.org/x?y=1 &\nwait\npython t.py\n",
            "curl https://h.org/f?a=1|tar -x\npython t.py\n",
            "python t.py --c=a|grep x\n",
        )
    ),
    *(
        ("KIT433", GPUS + code)
        for code in (
            (
                "vllm serve m --port 9000 &\nuntil curl -sf http://localhost:9000/health; do sleep 5; done\n"
                "python c.py\n"
            ),
            ("P=9000\nvllm serve m --port $P &\nuntil curl -sf localhost:$P/health; do sleep 5; done\npython c.py\n"),
            ("vllm serve m --port $PORT &\nuntil curl -sf localhost:8000/health; do sleep 5; done\npython c.py\n"),
            (
                "vllm serve m --port 9000 &\nredis-server --port 6379 &\n"
                "until curl -sf localhost:9000/health; do sleep 5; done\npython c.py --redis localhost:6379\n"
            ),
            (
                "vllm serve m --port 9000 --metrics-port 8000 &\n"
                "until curl -sf localhost:9000/health; do sleep 5; done\ncurl localhost:8000/metrics\n"
                "python c.py\n"
            ),
            ("vllm serve m --port 9000 &\nuntil curl -sf http://other:8000/health; do sleep 5; done\npython c.py\n"),
            (
                "vllm serve m --port 9000 &\nuntil curl -sf localhost:9000/health; do sleep 5; done\n"
                "curl http://localhost:$Q/metrics\npython c.py\n"
            ),
            (
                "P=${P:-9000}\nvllm serve m --port $P &\n"
                "until curl -sf localhost:8000/health; do sleep 5; done\npython c.py\n"
            ),
            (
                "vllm serve m --port 9000 &\nuntil curl -sf localhost:9000/health; do sleep 5; done\n"
                "curl localhost:9100/metrics\npython c.py\n"
            ),
        )
    ),
    *(
        ("KIT136", HEAD + code)
        for code in (
            "rsync -a /data/imagenet/ $TMPDIR/d\npython t.py --train_dir $TMPDIR/d/train\n",
            "rsync -a /data/imagenet $TMPDIR/d\npython t.py --train_dir $TMPDIR/d/imagenet/train\n",
            "cp -r /data/imagenet $TMPDIR/d\npython t.py --train_dir $TMPDIR/d/train\n",
            (
                "rsync -a /data/a.tar $TMPDIR/\ntar -xf $TMPDIR/a.tar -C $TMPDIR\n"
                "python t.py --train_dir $TMPDIR/train\n"
            ),
            (
                "rsync -a /data/train $TMPDIR/d\nrsync -a /data/val $TMPDIR/d\n"
                "python t.py --train $TMPDIR/d/train --val $TMPDIR/d/val\n"
            ),
            "rsync -a /data/imagenet $TMPDIR\npython t.py --data $TMPDIR --out $TMPDIR/out\n",
            "mkdir -p $TMPDIR/d\ncp -rT /data/imagenet $TMPDIR/d\npython t.py --train $TMPDIR/d/train\n",
            ("rsync -a /data/imagenet $TMPDIR\nmv $TMPDIR/imagenet/* $TMPDIR/\npython t.py --train $TMPDIR/train\n"),
            "rsync -a $SRC/ $TMPDIR/d\npython t.py --train $TMPDIR/d/train\n",
            "rsync -aR /data/imagenet $TMPDIR/d\npython t.py --train $TMPDIR/d/data\n",
            "rsync -a code $TMPDIR\npython t.py --train $TMPDIR/train\n",
            "rsync -a /data/imagenet $TMPDIR/\nmkdir -p $TMPDIR/scratch\npython t.py --db $TMPDIR/scratch\n",
        )
    ),
    *(
        ("KIT417", HEAD + code)
        for code in (
            "if [ ! -f done ]; then sbatch --dependency=afterok:$SLURM_JOB_ID $0; fi\npython t.py --resume\n",
            (
                "# each link runs two epochs\n"
                "if [ ! -f done ]; then sbatch --dependency=afterok:$SLURM_JOB_ID $0; fi\n"
                "python t.py --resume\n"
            ),
            (
                "# each link runs until the time limit ends it\n"
                "if [ ! -f done ]; then sbatch --dependency=afterany:$SLURM_JOB_ID $0; fi\n"
                "python t.py --resume\n"
            ),
            (
                "# each link runs until the time limit ends it\n"
                "if [ ! -f done ]; then sbatch --dependency=afterok:$SLURM_JOB_ID $0; fi\n"
                "timeout 3500 python || true; :  t.py --resume\n"
            ),
            (
                "#SBATCH --signal=TERM@300\n# each link runs until the time limit ends it\n"
                "if [ ! -f done ]; then sbatch --dependency=afterok:$SLURM_JOB_ID $0; fi\n"
                "python t.py --resume\n"
            ),
            (
                "# links stop after 3 epochs, well within the time limit\n"
                "if [ ! -f done ]; then sbatch --dependency=afterok:$SLURM_JOB_ID $0; fi\n"
                "python t.py --resume\n"
            ),
        )
    ),
    *(("KIT228", HEAD + code) for code in ("L=(a b)\nL=abc\npython t.py ${#L}\n",)),
    *(("KIT228", code) for code in ("#!/bin/zsh\nL=(a b)\npython t.py ${#L}\n",)),
]


@pytest.mark.parametrize("code", sorted({bad.code for bad in BAD}))
def test_a_rule_finds_its_faults(code: str) -> None:
    for bad in BAD:
        if bad.code == code:
            findings = find_code(bad.text, code, paths={"/", "here.py", "there/here.py"})
            assert findings, bad.text
            assert (findings[0].line, findings[0].severity) == (bad.line, bad.severity), bad.text
            assert bad.words in findings[0].what, bad.text
            assert findings[0].remedy, bad.text


@pytest.mark.parametrize("code", sorted({code for code, _ in GOOD}))
def test_a_rule_ignores_lookalikes(code: str) -> None:
    false = [text for of_rule, text in GOOD if of_rule == code and find_code(text, code, paths={"/", "logs"})]
    assert false == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_the_examples_of_a_rule_have_its_fault_and_no_fault(rule: Rule) -> None:
    bad, good = example_of(rule.code)
    found = [finding.code for finding in find_faults(bad, paths={"/"})]
    assert rule.code in found
    assert find_faults(good, paths={"/"}) == []


def test_tasks_beyond_the_gpus_may_be_meant_as_cpus() -> None:
    (beyond,) = find_code(HEAD + "#SBATCH -n 12 --gres=gpu:1\npython t.py\n", "KIT202")
    (one_each,) = find_code(HEAD + "#SBATCH -n 3 --gres=gpu:3\npython t.py\n", "KIT202")
    assert "--cpus-per-task" in beyond.remedy
    assert "--cpus-per-task" not in one_each.remedy


@pytest.mark.parametrize(("array", "count"), [("1990-2020", 0), ("0-2020", 1)])
def test_large_indexes_alone_show_a_site_with_a_larger_limit(array: str, count: int) -> None:
    text = f"{HEAD}#SBATCH --array={array}\npython t.py $SLURM_ARRAY_TASK_ID\n"
    assert [finding.code for finding in check(BatchScript(text))] == ["KIT132"] * count


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_a_rule_has_nothing_to_find_without_the_texts_that_it_needs(part: int) -> None:
    corpus = sorted((Path(__file__).parent / "corpus").glob("*/*.sbatch"))
    texts = [*(bad.text for bad in BAD), *(text for _, text in GOOD), *(path.read_text() for path in corpus)]
    texts += [example for rule in RULES for example in example_of(rule.code)]
    for text in texts[part::8]:
        script = BatchScript(text, site=Site(None, SlurmVersion(22, 5, 8), CLUSTER))
        applicable = applicable_rules(script)
        skipped = [rule for rule in RULES if rule not in applicable]
        wrong = [rule.code for rule in skipped if rule.findings(script)]
        assert wrong == [], text


def test_codes_of_rules_are_unique() -> None:
    codes = [topic.code for topic in explained_codes()]
    assert len(set(codes)) == len(codes)
    assert sorted(codes) == codes[: len(RULES)] + sorted(codes[len(RULES) :])


def test_every_rule_explains_the_fault_the_reason_the_fix_and_the_source() -> None:
    for topic in explained_codes():
        title, empty, *rest = topic.text.split("\n")
        assert title.endswith("."), topic.code
        assert len(title) < 100, topic.code
        assert empty == "", topic.code
        assert re.search(r"^Fix: ", "\n".join(rest), re.MULTILINE), topic.code
        assert re.search(r"^Documented: ", "\n".join(rest), re.MULTILINE), topic.code


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


@pytest.mark.parametrize(
    ("setting", "count"),
    [
        ("NCCL_SOCKET_IFNAME=eth0", 0),
        ("NCCL_SOCKET_IFNAME=ib", 0),
        ("NCCL_SOCKET_IFNAME==ib1,ib0", 0),
        ("NCCL_SOCKET_IFNAME=^docker0,lo", 0),
        ("NCCL_SOCKET_IFNAME=$SITE_INTERFACE", 0),
        ("NCCL_SOCKET_IFNAME=hsn", 1),
        ("NCCL_SOCKET_IFNAME==ib", 1),
        ("GLOO_SOCKET_IFNAME=ib0", 0),
        ("GLOO_SOCKET_IFNAME=ib", 1),
        ("GLOO_SOCKET_IFNAME=bond0 # the nodes of partition b have it", 0),
    ],
)
def test_an_interface_is_compared_with_those_of_the_cluster_file(setting: str, count: int) -> None:
    text = f"{HEAD}#SBATCH -N2 --ntasks-per-node=4\nexport {setting}\nsrun python train.py\n"
    cluster = Cluster(slurm="system", node=Node(interfaces=("eth0", "ib0")))
    found = check(BatchScript(text, site=Site(cluster=cluster)))
    assert sum("the cluster file lists eth0, ib0" in each.what for each in found if each.code == "KIT316") == count


@pytest.mark.parametrize(("version", "count"), [("22.05", 1), ("23.02.7", 1), ("23.11", 0), ("21.08", 0), (None, 0)])
def test_lost_cpus_depend_on_the_release(version: str | None, count: int) -> None:
    text = f"{HEAD}#SBATCH --cpus-per-task=4 --ntasks=2\nsrun python train.py\n"
    found = check(BatchScript(text, site=Site(version=parse_version(version) if version else None)))
    assert sum(each.code == "KIT205" for each in found) == count


@pytest.mark.parametrize(
    ("line", "fixed"),
    [
        ("#SBATCH -\u2014mem=16G", "#SBATCH --mem=16G"),
        ("#SBATCH \u2013-nodes=2", "#SBATCH --nodes=2"),
        ("#SBATCH --mem=4G \u2013nodes=2", "#SBATCH --mem=4G --nodes=2"),
        ("#SBATCH \u2013n 4", "#SBATCH -n 4"),
    ],
)
def test_a_long_dash_is_named_and_replaced(line: str, fixed: str) -> None:
    (finding,) = find_code(HEAD + line + "\n", "KIT103")
    assert "long dash" in finding.remedy
    assert apply_edits(HEAD + line + "\n", finding.edits) == HEAD + fixed + "\n"


def test_a_carriage_return_at_the_end_of_one_line_does_not_stop_the_check() -> None:
    script = BatchScript("#!/bin/bash\n#SBATCH -N2\r")
    assert script.options == {"nodes": "2"}
