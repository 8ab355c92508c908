"""Make the labelled cases of `tests/why/run/` again, by running failing programs on the embedded Slurm.

    .venv/bin/python tests/why/make_cases.py [NAME...]

Programs with torch use its CPU build and gloo. Paths and host names of the machine are replaced. The cases of
`tests/why/written/` and `tests/why/unseen/` are written by hand after public error texts.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import NamedTuple

CASES = Path(__file__).parent / "run"
ROOT = Path(__file__).parents[2]


class Case(NamedTuple):
    label: str
    """The label as TOML."""
    script: str
    """The body of the batch script."""
    python: str = ""
    """`train.py`."""
    nodes: int = 1
    ntasks: int = 1
    sacct: bool = False
    """Keep the output of sacct, too."""
    keep: str = "slurm-*.out *.log *.err *.txt"
    submit: str = ""
    """Commands in place of sbatch. Their output is the log."""


INIT = """
import datetime, os, sys, time
import torch
import torch.distributed as dist
os.environ.setdefault("RANK", os.environ.get("SLURM_PROCID", "0"))
os.environ.setdefault("WORLD_SIZE", os.environ.get("SLURM_NTASKS", "1"))
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29571")
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
"""
GROUP = INIT + "dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=8))\n"
TRAIN = (
    GROUP
    + """
def batches(rank):
    for step in range(6):
        yield {"inputs": torch.ones(4) * step}

def train():
    for step, batch in enumerate(batches(rank)):
        total = batch["inputs"].sum()
        dist.all_reduce(total)
        print(f"rank {rank} step {step} loss {total.item() / 10 + 1:.3f}", flush=True)
"""
)
SRUN = "srun python -u train.py"
EACH = "srun --output=rank-%t.log python -u train.py"

CASES_TO_RUN: dict[str, Case] = {
    # Python
    "key_error_rank2": Case(
        "class='python-exception'\nrank=2",
        SRUN,
        "import os, time\nif os.environ['SLURM_PROCID'] == '2':\n    {}['labels']\ntime.sleep(2)\n",
        2,
        4,
    ),
    "zero_division": Case(
        "class='python-exception'",
        "python train.py",
        "def mean(values):\n    return sum(values) / len(values)\nprint(mean([]))\n",
    ),
    "missing_package": Case("class='missing-package'", "python train.py", "import flash_attn_3_missing\n"),
    "missing_data": Case("class='missing-file'\nrank=0", SRUN, "print('loading')\nopen('/data/imagenet/train.lmdb')\n"),
    "missing_program": Case("class='missing-file'", "python trian.py"),
    "command_missing": Case("class='command-not-found'", "set -e\ntorchrunn --nnodes=2 train.py"),
    "command_missing_srun": Case("class='command-not-found'", "srun pyhton train.py"),
    "unbound": Case("class='unbound-variable'", "set -euo pipefail\ncd $SCRATCH_OF_PROJECT/data"),
    "shell_syntax": Case("class='shell-syntax'", "if true; then\n  echo hello\nfi fi\n"),
    "quote_missing": Case("class='shell-syntax'", "echo 'start\npython train.py\n"),
    "dos_lines": Case(
        "class='line-endings'",
        "set -e\ncat > run.sh <<'X'\necho start\\r\ncd /tmp\\r\nX\nprintf 'echo start\\r\\nmkdir -p x\\r\\nfor i in 1 2; do\\r\\n echo $i\\r\\ndone\\r\\n' > run.sh\nbash run.sh",
    ),
    "dos_interpreter": Case(
        "class='missing-file'", "printf '#!/bin/bash\\r\\necho hi\\r\\n' > run.sh; chmod +x run.sh; srun ./run.sh"
    ),
    "bad_interpreter": Case(
        "class='bad-interpreter'", "printf '#!/opt/missing/python\\nprint(1)\\n' > run.sh; chmod +x run.sh; ./run.sh"
    ),
    "not_executable": Case("class='permission'", "echo 'echo hi' > run.sh; ./run.sh"),
    "disk_full": Case(
        "class='disk-full'",
        "python train.py",
        "with open('/dev/full', 'wb') as file:\n    for step in range(3):\n        print('step', step, flush=True)\n        file.write(b'x' * 100000)\n        file.flush()\n",
    ),
    "open_files": Case(
        "class='open-files'", "ulimit -n 40\npython train.py", "files = [open('/dev/null') for number in range(1000)]\n"
    ),
    "recursion": Case(
        "class='recursion'", "python train.py", "def a(n):\n    return b(n)\ndef b(n):\n    return a(n)\na(1)\n"
    ),
    "assertion": Case(
        "class='assertion'",
        "python train.py",
        "batch = []\nassert len(batch) == 32, f'batch has {len(batch)} samples'\n",
    ),
    "pickle_lambda": Case(
        "class='pickling'",
        "python train.py",
        "import multiprocessing as mp\nif __name__ == '__main__':\n    mp.set_start_method('spawn')\n    mp.Process(target=lambda: None).start()\n",
    ),
    "spawn_no_guard": Case(
        "class='pickling'",
        "python train.py",
        "import multiprocessing as mp\nmp.get_context('spawn').Process(target=print).start()\n",
    ),
    "nan_error": Case(
        "class='nan'",
        "python train.py",
        "loss = 9.0\nfor step in range(6):\n    loss *= 1e200\n    loss -= loss if step > 3 else 0\n    print(f'step {step} loss {loss}')\n    if loss != loss:\n        raise FloatingPointError(f'loss is {loss} at step {step}')\n",
    ),
    "segfault": Case(
        "class='segfault'\nrank=1",
        SRUN,
        "import ctypes, os, time\nif os.environ['SLURM_PROCID'] == '1':\n    ctypes.string_at(0)\ntime.sleep(3)\n",
        2,
        2,
    ),
    "segfault_faulthandler": Case(
        "class='segfault'", "python -X faulthandler train.py", "import ctypes\nctypes.string_at(0)\n"
    ),
    "abort": Case("class='abort'\nrank=0", SRUN, "import os\nprint('init')\nos.abort()\n"),
    "sigkill": Case(
        "class='killed'\nrank=3",
        SRUN,
        "import os, signal, time\nprint('step 1')\nif os.environ['SLURM_PROCID'] == '3':\n    os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(3)\n",
        2,
        4,
    ),
    "sigill": Case(
        "class='illegal-instruction'\nrank=0", SRUN, "import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n"
    ),
    "sigbus": Case("class='bus-error'\nrank=0", SRUN, "import os, signal\nos.kill(os.getpid(), signal.SIGBUS)\n"),
    "sigfpe": Case("class='floating-point'\nrank=0", SRUN, "import os, signal\nos.kill(os.getpid(), signal.SIGFPE)\n"),
    "memory_error": Case(
        "class='host-memory'", "ulimit -v 400000\npython train.py", "data = [bytearray(1 << 28) for _ in range(10)]\n"
    ),
    "torch_cpu_memory": Case("class='host-memory'", "python train.py", "import torch\nx = torch.empty(1 << 50)\n"),
    "killed_in_shell": Case(
        "class='killed'", "python train.py\nexit $?", "import os\nprint('epoch 1')\nos.kill(os.getpid(), 9)\n"
    ),
    "eof_input": Case("class='arguments'", "python train.py < /dev/null", "name = input('run name? ')\n"),
    "syntax_error": Case("class='syntax-error'", "python train.py", "for step in range(3)\n    print(step)\n"),
    "python2_print": Case("class='python-version'", "python train.py", "print 'hello'\n"),
    "argparse": Case(
        "class='arguments'",
        "python train.py --bf17 --epochs 3",
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--epochs', type=int)\nparser.parse_args()\n",
    ),
    "argparse_required": Case(
        "class='arguments'",
        "srun python train.py",
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--data', required=True)\nparser.parse_args()\n",
    ),
    "json_damaged": Case(
        "class='corrupt-file'",
        "echo '{\"a\": 1' > c.cfg; python train.py",
        "import json\nconfig = json.load(open('c.cfg'))\n",
    ),
    "chained": Case(
        "class='python-exception'",
        "python train.py",
        "def load():\n    try:\n        return {}['path']\n    except KeyError as error:\n        raise ValueError('config has no path') from error\nload()\n",
    ),
    "exit_silent": Case("class='unknown'", "srun python train.py", "import sys\nprint('starting')\nsys.exit(3)\n"),
    "library_missing": Case(
        "class='shared-library'", "python train.py", "import ctypes\nctypes.CDLL('libcudart.so.11.0')\n"
    ),
    "library_missing_exec": Case(
        "class='wrong-architecture'", "printf '\\x7fELF\\x02\\x01\\x01garbage' > prog; chmod +x prog; ./prog"
    ),
    "conda_missing": Case(
        "class='conda'", "conda activate pt25\npython train.py", "import a_package_of_that_environment\n"
    ),
    "module_missing": Case(
        "class='missing-module'", "module load cuda/12.4\npython train.py", "import a_package_of_that_module\n"
    ),
    "venv_missing": Case(
        "class='venv'", "source /home/user/envs/pt/bin/activate\npython train.py", "import a_package_of_that_venv\n"
    ),
    "cd_missing": Case("class='missing-file'", "cd /scratch/project/run7 || exit 1\npython train.py"),
    "thread_pool": Case(
        "class='python-exception'",
        "python train.py",
        "from concurrent.futures import ThreadPoolExecutor\ndef work(n):\n    return 10 // n\nwith ThreadPoolExecutor() as pool:\n    print(list(pool.map(work, [3, 2, 1, 0])))\n",
    ),
    "exception_group": Case(
        "class='python-exception'",
        "python train.py",
        "raise ExceptionGroup('two shards failed', [ValueError('shard 3 is empty'), KeyError('shard 4')])\n",
    ),
    "subprocess_fails": Case(
        "class='missing-file'",
        "python train.py",
        "import subprocess\nsubprocess.run(['cat', '/data/missing/list.txt'], check=True)\n",
    ),
    # Slurm
    "masked_tee": Case(
        "class='python-exception'",
        "python train.py 2>&1 | tee out.txt\necho 'copy of the results'",
        "print('step 1 loss 2.3')\nraise RuntimeError('shape of labels is wrong')\n",
        sacct=True,
        keep="slurm-*.out sacct.txt",
    ),
    "handled_success": Case(
        "class='no-failure'",
        "python train.py",
        "import traceback\nfor step in range(8):\n    try:\n        if step == 2:\n            raise ConnectionError('metrics server refused')\n    except ConnectionError:\n        print('WARNING could not log metrics, will retry')\n        traceback.print_exc()\n    print(f'step {step} loss {3 - step / 9:.3f} error {step / 10}', flush=True)\nprint('Training complete')\n",
        sacct=True,
    ),
    "handled_success_no_state": Case(
        "class='no-failure'",
        "python train.py",
        "import logging\nfor step in range(9):\n    try:\n        if step == 2:\n            open('/data/cache/index')\n    except OSError:\n        logging.exception('no cache, reading the data instead')\n    print(f'step {step} loss {3 - step / 9:.3f}', flush=True)\nprint('Training finished after 9 steps')\n",
    ),
    "plain_success": Case(
        "class='no-failure'",
        "python train.py",
        "import warnings\nwarnings.warn('errors of this metric are not reduced')\nfor epoch in range(4):\n    print(f'epoch {epoch} train_error {0.5 / (epoch + 1):.3f} failed_samples 0')\n",
        sacct=True,
    ),
    "cancelled": Case("class='cancelled'", "echo step 1\n(sleep 1; scancel $SLURM_JOB_ID) &\nsrun sleep 30"),
    "time_limit": Case("class='time-limit'", "#SBATCH --time=00:00:02\necho step 1\nsrun sleep 200"),
    "log_folder": Case(
        "class='log-folder'",
        "echo hi",
        sacct=True,
        submit="sbatch --wait --output=nowhere/logs/%j.log job.sh; sacct -P -o JobID,JobName,State,ExitCode",
    ),
    "option_unknown": Case("class='invalid-request'", "echo hi", submit="sbatch --gpu-per-node=2 job.sh"),
    "script_missing": Case("class='missing-file'", "echo hi", submit="sbatch jobs/train.sh"),
    "no_shebang": Case("class='bad-interpreter'", "echo hi", submit="echo 'echo hi' > plain.sh; sbatch plain.sh"),
    "dependency_never": Case(
        "class='dependency'",
        "exit 1",
        submit="sbatch --wait job.sh; sbatch --dependency=afterok:1 job.sh; sleep 1; squeue",
    ),
    "held": Case("class='held'", "sleep 1", submit="sbatch --hold job.sh; squeue"),
    "running": Case(
        "class='running'",
        "echo step 1\nsleep 20",
        submit="sbatch job.sh; sleep 2; squeue; cat slurm-1.out",
        keep="submit.txt",
    ),
    "too_many_tasks": Case("class='invalid-request'", "srun --ntasks=64 --nodes=1 hostname"),
    "requeued_twice": Case(
        "class='missing-package'",
        "echo attempt\nif [ \"${SLURM_RESTART_COUNT:-0}\" = 0 ]; then python -c 'open(\"/data/first\")'; scontrol requeue $SLURM_JOB_ID; sleep 30; fi\npython -c 'import second_attempt'",
    ),
    "mpirun_root": Case("class='permission'", "env -u OMPI_ALLOW_RUN_AS_ROOT /usr/bin/mpirun -n 2 hostname"),
    "mpirun_exit": Case(
        "class='python-exception'\nrank=1",
        "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\nunset ${!SLURM_@}\n/usr/bin/mpirun --oversubscribe -n 3 python train.py",
        "import os, time\nif os.environ['OMPI_COMM_WORLD_RANK'] == '1':\n    raise IndexError('token id 50300 is out of range')\ntime.sleep(2)\n",
    ),
    "mpirun_killed": Case(
        "class='killed'\nrank=2",
        "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\nunset ${!SLURM_@}\n/usr/bin/mpirun --oversubscribe -n 3 python train.py",
        "import os, time\nif os.environ['OMPI_COMM_WORLD_RANK'] == '2':\n    os.kill(os.getpid(), 9)\ntime.sleep(2)\n",
    ),
    # torch
    "victims": Case(
        "class='python-exception'\nrank=2",
        SRUN,
        TRAIN.replace("yield {", "yield {} if rank == 2 and step == 4 else {") + "train()\n",
        2,
        4,
    ),
    "victims_labelled": Case(
        "class='python-exception'\nrank=1",
        "srun -l python -u train.py",
        TRAIN.replace("yield {", "yield {} if rank == 1 and step == 3 else {") + "train()\n",
        2,
        3,
    ),
    "victims_per_rank": Case(
        "class='python-exception'\nrank=3",
        EACH,
        TRAIN.replace("yield {", "yield {} if rank == 3 and step == 4 else {") + "train()\n",
        2,
        4,
    ),
    "killed_rank_torch": Case(
        "class='killed'\nrank=1",
        EACH,
        TRAIN.replace("    for step in", "    for step in")
        + "import signal\nif rank == 1:\n    dist.all_reduce(torch.ones(1))\n    os.kill(os.getpid(), signal.SIGKILL)\ntrain()\n",
        2,
        3,
    ),
    "late_rank": Case(
        "class='late-rank'\nrank=1",
        EACH,
        TRAIN + "if rank == 1:\n    print('rank 1 reads the index', flush=True)\n    time.sleep(40)\ntrain()\n",
        2,
        3,
    ),
    "uneven": Case(
        "class='uneven-inputs'\nrank=2",
        EACH,
        TRAIN.replace("range(6)", "range(6 - (rank == 2))")
        + "train()\nprint(f'rank {rank} finished its epoch', flush=True)\nif rank == 2:\n    time.sleep(20)\n",
        2,
        3,
    ),
    "shapes": Case(
        "class='collective-shapes'",
        SRUN,
        GROUP + "dist.all_reduce(torch.ones(10 if rank == 1 else 20))\nprint('done')\n",
        1,
        2,
    ),
    "order_debug": Case(
        "class='collective-order'",
        "export TORCH_DISTRIBUTED_DEBUG=DETAIL\n" + SRUN,
        GROUP + "x = torch.ones(4)\nif rank == 1:\n    dist.broadcast(x, 0)\nelse:\n    dist.all_reduce(x)\n",
        1,
        2,
    ),
    "monitored_barrier": Case(
        "class='late-rank'\nrank=1",
        SRUN,
        GROUP + "if rank == 1:\n    time.sleep(12)\ndist.monitored_barrier(timeout=datetime.timedelta(seconds=4))\n",
        1,
        3,
    ),
    "ddp_unused": Case(
        "class='unused-parameters'",
        SRUN,
        GROUP
        + "model = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.parts = model\n    def forward(self, x):\n        return self.parts[0](x)\nnet = torch.nn.parallel.DistributedDataParallel(Net())\nfor step in range(3):\n    net(torch.ones(1, 2)).sum().backward()\n",
        1,
        2,
    ),
    "ddp_different_models": Case(
        "class='collective-shapes'",
        SRUN,
        GROUP + "net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2 + rank, 2))\n",
        1,
        2,
    ),
    "master_unknown": Case(
        "class='name-resolution'",
        "export MASTER_ADDR=gpu-node-17.cluster.invalid\n" + SRUN,
        GROUP.replace("seconds=8", "seconds=4") + "print('init')\n",
    ),
    "port_in_use": Case(
        "class='port-in-use'\nrank=0",
        "export MASTER_PORT=29583\npython -c \"import socket, time; s = socket.socket(); s.bind(('0.0.0.0', 29583)); s.listen(); time.sleep(25)\" &\nsleep 1\n"
        + SRUN,
        GROUP,
    ),
    "rendezvous_incomplete": Case("class='rendezvous-timeout'", "export WORLD_SIZE=4\n" + SRUN, GROUP, 1, 2),
    "no_rank_variables": Case(
        "class='world-size'", "python train.py", "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
    ),
    "refused": Case(
        "class='unreachable-host'",
        "export RANK=1 WORLD_SIZE=2 MASTER_PORT=29599\npython train.py",
        GROUP.replace("seconds=8", "seconds=3"),
    ),
    "nccl_on_cpu": Case("class='package-version'", SRUN, INIT + "dist.init_process_group('nccl')\n"),
    "cuda_on_cpu": Case(
        "class='package-version'", "python train.py", "import torch\nmodel = torch.nn.Linear(2, 2).cuda()\n"
    ),
    "state_dict": Case(
        "class='checkpoint-mismatch'",
        "python train.py",
        "import torch\nold, new = torch.nn.Linear(4, 2), torch.nn.Linear(8, 2)\nnew.load_state_dict(old.state_dict())\n",
    ),
    "matmul_shapes": Case(
        "class='tensor-shapes'",
        "python train.py",
        "import torch\nmodel = torch.nn.Linear(512, 10)\nmodel(torch.ones(32, 256))\n",
    ),
    "dtype": Case(
        "class='tensor-devices'",
        "python train.py",
        "import torch\nmodel = torch.nn.Linear(4, 2).double()\nmodel(torch.ones(3, 4))\n",
    ),
    "checkpoint_truncated": Case(
        "class='corrupt-file'",
        "python train.py",
        "import torch\ntorch.save(torch.nn.Linear(99, 99).state_dict(), 'last.pt')\nopen('last.pt', 'r+b').truncate(2000)\nprint('resuming from last.pt')\ntorch.load('last.pt')\n",
    ),
    "weights_only": Case(
        "class='package-version'",
        "python train.py",
        "import argparse, torch\ntorch.save(argparse.Namespace(lr=1), 'args.pt')\ntorch.load('args.pt')\n",
    ),
    "loader_worker_error": Case(
        "class='python-exception'",
        "python train.py",
        "import torch\nclass Data(torch.utils.data.Dataset):\n    def __len__(self):\n        return 8\n    def __getitem__(self, index):\n        return {'a': torch.ones(1)}['b' if index == 5 else 'a']\nfor batch in torch.utils.data.DataLoader(Data(), num_workers=1):\n    print('batch')\n",
    ),
    "loader_worker_killed": Case(
        "class='dataloader-worker'",
        "python train.py",
        "import os, torch\nclass Data(torch.utils.data.Dataset):\n    def __len__(self):\n        return 8\n    def __getitem__(self, index):\n        if index == 5:\n            os.kill(os.getpid(), 9)\n        return torch.ones(1)\nfor batch in torch.utils.data.DataLoader(Data(), num_workers=1):\n    print('batch')\n",
    ),
    "torchrun_one_rank": Case(
        "class='python-exception'\nrank=1",
        "torchrun --nproc-per-node=3 --master-port=29641 train.py",
        TRAIN.replace("yield {", "yield {} if rank == 1 and step == 3 else {") + "train()\n",
    ),
    "torchrun_killed": Case(
        "class='killed'\nrank=2",
        "torchrun --nproc-per-node=3 --master-port=29642 train.py",
        TRAIN + "import signal\nif rank == 2:\n    os.kill(os.getpid(), signal.SIGKILL)\ntrain()\n",
    ),
    "torchrun_success": Case(
        "class='no-failure'",
        "torchrun --nproc-per-node=2 --master-port=29643 train.py",
        TRAIN + "train()\ndist.destroy_process_group()\nprint('Training complete')\n",
    ),
    "spawn_process": Case(
        "class='python-exception'",
        "python train.py",
        "import torch.multiprocessing as mp\ndef main(rank):\n    print('start', rank)\n    if rank == 1:\n        raise ValueError('bad learning rate: -1')\n    import time\n    time.sleep(2)\nif __name__ == '__main__':\n    mp.spawn(main, nprocs=2)\n",
    ),
    "autograd": Case("class='autograd'", "python train.py", "import torch\ntorch.ones(1).backward()\n"),
}


def main(names: list[str]) -> None:
    for name in names or CASES_TO_RUN:
        make(name, CASES_TO_RUN[name])


def make(name: str, case: Case) -> None:
    folder = Path(tempfile.mkdtemp(prefix="why-", dir="/tmp"))
    try:
        run(case, folder)
        target = CASES / name
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for pattern in case.keep.split():
            for path in folder.glob(pattern):
                if path.stat().st_size or path.suffix == ".out":
                    (target / path.name).write_text(anonymous(path.read_text(errors="replace"), folder))
        (target / "label.toml").write_text(f"{case.label}\nmade = 'run'\n")
        print(name, sorted(path.name for path in target.iterdir()), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(case: Case, folder: Path) -> None:
    state = folder / "state"
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "OMPI", "PMI"))}
    environ |= {"HPC_KIT_SLURM_STATE": str(state), "OMP_NUM_THREADS": "1"}
    environ["MASTER_PORT"] = str(20_000 + zlib.crc32(str(folder).encode()) % 9000)
    kit = Path(sys.executable).parent
    commands = subprocess.run(
        [str(kit / "hpc-kit"), "embedded", "path"], capture_output=True, text=True, check=True, env=environ, cwd=ROOT
    )
    environ["PATH"] = f"{commands.stdout.strip()}:{kit}:{environ['PATH']}"
    options = f"#SBATCH --nodes={case.nodes}\n#SBATCH --ntasks={case.ntasks}\n"
    (folder / "job.sh").write_text(f"#!/bin/bash\n{options}{case.script}\n")
    (folder / "train.py").write_text(case.python)
    command = case.submit or "sbatch --wait job.sh"
    output = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environ, capture_output=True, text=True, timeout=120
    )
    if case.submit:
        (folder / "submit.txt").write_text(output.stdout + output.stderr)
    if case.sacct and not case.submit:
        accounting = subprocess.run(
            ["sacct", "-P", "-o", "JobID,JobName,State,ExitCode,NodeList"], env=environ, capture_output=True, text=True
        )
        (folder / "sacct.txt").write_text(accounting.stdout)
    subprocess.run(
        ["bash", "-c", "scancel --user=$USER 2>/dev/null; scancel $(squeue -h -o %i) 2>/dev/null"],
        env=environ,
        capture_output=True,
    )


def anonymous(text: str, folder: Path) -> str:
    """Remove the paths of this machine."""
    text = (
        text.replace(str(folder), "/home/user/project")
        .replace(str(ROOT / ".venv"), "/opt/venv")
        .replace(str(ROOT), "/opt/src")
    )
    text = re.sub(r"/\S*?/\.pyenv/versions/[\d.]+", "/opt/python", text)
    return re.sub(r"/tmp/why-\w+", "/home/user/project", text)


if __name__ == "__main__":
    main(sys.argv[1:])
