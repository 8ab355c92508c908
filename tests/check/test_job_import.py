"""`import`: a hand-written script becomes a job file that asks Slurm for the same. sbatch's own parser is the judge."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_kit.check.job_import import ImportedJob, import_script
from hpc_kit.slurm.option_values import parse_gpus
from hpc_kit.spec.job import Launch
from tests.conftest import ROOT
from tests.golden import render_job
from tests.slurm.oracle import sbatch_defined_options

TORCHRUN = """\
#!/bin/bash
#SBATCH --job-name=gpt
#SBATCH -N 4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:a100:4
#SBATCH -c 48 -t 2-00:00:00
#SBATCH -p gpu --account=proj
#SBATCH -o logs/%x-%j.out
set -euo pipefail
module purge
module load cuda/12.1 nccl   # both
source ~/miniconda3/etc/profile.d/conda.sh
conda activate train

export OMP_NUM_THREADS=8
export HF_HOME=$SCRATCH/hf
export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=29500
DATA=/data/c4
echo "nodes: $SLURM_JOB_NODELIST"

srun torchrun --nnodes=$SLURM_NNODES --nproc_per_node=4 --rdzv_id=$SLURM_JOB_ID --rdzv_backend=c10d \\
    --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT --max_restarts=3 \\
    train.py --data $DATA --lr 1e-4

python eval.py
"""

SRUN = """\
#!/bin/bash -l
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=7
#SBATCH --mem=480G
#SBATCH --time=24:00:00
#SBATCH --partition=standard-g
#SBATCH --exclusive
#SBATCH --signal=USR1@120
#SBATCH --requeue
module load LUMI PyTorch
cd $SLURM_SUBMIT_DIR
cd src
srun --cpu-bind=cores --output=logs/%t.log python3 -u -m project.train --epochs 90
"""

SCRIPTS = {
    "torchrun": TORCHRUN,
    "srun": SRUN,
    "one_gpu": """\
#!/bin/bash
#SBATCH --gres=gpu:1
#SBATCH --mem=16G
#SBATCH --time=60
#SBATCH --array=0-9%4
#SBATCH --mail-type=END,FAIL --mail-user=me@example.org
source venv/bin/activate
python train.py --seed $SLURM_ARRAY_TASK_ID
""",
    "standalone_torchrun": """\
#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=h100:8
#SBATCH --cpus-per-gpu=12
#SBATCH --qos=high --constraint="ib&h100"
torchrun --standalone --nproc_per_node=8 train.py
""",
    "tasks_for_torchrun": """\
#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:4
#SBATCH --mem-per-cpu=4G
torchrun --nproc_per_node=4 train.py
""",
    "gpus_per_task": """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks=8 --ntasks-per-node=4 --gpus-per-task=1 --cpus-per-task=16
srun python train.py
""",
    "mpirun": """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=16
#SBATCH --mem=0
#SBATCH --hint=nomultithread
mpirun -np 32 -x NCCL_DEBUG=INFO ./solver input.dat
""",
    "accelerate": """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
head_node=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)
srun bash -c "accelerate launch --num_machines 2 --num_processes 8 --mixed_precision bf16 \\
  --machine_rank \\$SLURM_PROCID --main_process_ip $head_node train.py --config c.yaml"
""",
    "dependency": """\
#!/bin/bash
#SBATCH -n 1
#SBATCH --dependency=afterok:123
#SBATCH --begin=2031-01-31T12:00:00
#SBATCH --nice=100
#SBATCH --comment="it's a test"
#SBATCH --exclude=n[1-3]
./prepare.sh
""",
    "container": """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --licenses=scratch:2
srun apptainer exec --nv --bind /data image.sif python train.py
""",
    "deepspeed": """\
#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gres=gpu:v100:2
#SBATCH --cpus-per-task=8
deepspeed --num_gpus=2 train.py --deepspeed ds.json
""",
    "node_rank_in_bash": """\
#!/bin/bash
#SBATCH -N2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus=16
#SBATCH --time-min=01:00:00 --time=02:00:00
srun bash -c 'torchrun --nnodes=2 --node_rank=$SLURM_NODEID --nproc_per_node=8 --master_addr=$MASTER_ADDR train.py'
""",
    "distributed_launch": """\
#!/bin/bash
#SBATCH --nodes=1 --ntasks=1 --gpus-per-task=2 --reservation=course --tmp=10G
python -m torch.distributed.launch --nproc_per_node=2 --use_env train.py
""",
    "only_counts": """\
#!/bin/bash
#SBATCH --nodes=3
#SBATCH --ntasks=6
#SBATCH --distribution=block:cyclic
srun ./a.out
""",
}

WITHOUT_RESOURCES = {"job-name", "output", "error", "open-mode"}


def ask(script: str) -> dict[str, str]:
    """What a script asks Slurm for, with sbatch's defaults and one spelling of GPUs per node."""
    found = {name: value for name, value in sbatch_defined_options(script).items() if name not in WITHOUT_RESOURCES}
    each = int(found.get("ntasks-per-node", 0))
    nodes = int(found.setdefault("nodes", "1"))
    tasks = int(found.setdefault("ntasks", str(nodes * max(each, 1))))
    found.setdefault("ntasks-per-node", str(-(-tasks // nodes)))
    found.setdefault("cpus-per-task", "1")
    if gpus := found.pop("gpus-per-task", None):
        kind, count = parse_gpus(gpus)[0]
        number = count * int(found["ntasks-per-node"])
        found["gpus-per-node"] = f"{kind}:{number}" if kind else str(number)
    return found


def imported(name: str, text: str | None = None) -> ImportedJob:
    return import_script(SCRIPTS[name] if text is None else text, name)


def notes_of(result: ImportedJob) -> str:
    return "\n".join(f"{note.line}: {note.text}" for note in result.notes)


@pytest.mark.oracle("sbatch")
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_rendered_job_asks_slurm_for_the_same(name: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = imported(name)
    script = render_job(result.job, "slurm", {})
    assert ask(script) == ask(SCRIPTS[name])


def test_torchrun_becomes_the_launcher(project: Path) -> None:
    job, _ = result = imported("torchrun")
    assert job.name == "gpt"
    assert job.command == ("python", "train.py", "--data", "/data/c4", "--lr", "1e-4")
    assert job.launch == Launch(launcher="torchrun", nproc_per_node=4, options=("--max_restarts=3",))
    assert job.env == {"OMP_NUM_THREADS": "8"}
    assert job.setup == (
        "module purge",
        "module load cuda/12.1 nccl   # both",
        "source ~/miniconda3/etc/profile.d/conda.sh",
        "conda activate train",
        "export HF_HOME=$SCRATCH/hf",
    )
    notes = notes_of(result)
    assert "17: WANDB_API_KEY looks like a secret" in notes
    assert "18: the job sets MASTER_ADDR itself" in notes
    assert "27: a job file starts one program" in notes
    assert "0123456789abcdef" not in notes


def test_srun_starts_the_ranks(project: Path) -> None:
    job, _ = result = imported("srun")
    assert job.command == ("python3", "-u", "-m", "project.train", "--epochs", "90")
    assert (job.launch.launcher, job.launch.bootstrap, job.launch.output) == ("srun", True, "logs/%t.log")
    assert job.setup == ("module load LUMI PyTorch", "cd src")
    assert "15: srun --cpu-bind=cores has no key" in notes_of(result)


@pytest.mark.parametrize(
    ("name", "launcher", "nproc", "command"),
    [
        ("standalone_torchrun", "torchrun", 8, ("python", "train.py")),
        ("tasks_for_torchrun", "srun", 1, ("python", "train.py")),
        ("mpirun", "mpirun", 1, ("./solver", "input.dat")),
        ("accelerate", "torchrun", 4, ("python", "train.py", "--config", "c.yaml")),
        ("deepspeed", "torchrun", 2, ("python", "train.py", "--deepspeed", "ds.json")),
        ("node_rank_in_bash", "torchrun", 8, ("python", "train.py")),
        ("distributed_launch", "torchrun", 2, ("python", "train.py")),
        ("container", "srun", 1, ("apptainer", "exec", "--nv", "--bind", "/data", "image.sif", "python", "train.py")),
        ("dependency", "srun", 1, ("./prepare.sh",)),
    ],
)
def test_each_launcher(name: str, launcher: str, nproc: int, command: tuple[str, ...], project: Path) -> None:
    job = imported(name).job
    assert (job.launch.launcher, job.launch.nproc_per_node, job.command) == (launcher, nproc, command)


def test_a_variable_of_the_task_is_expanded_in_the_task(project: Path) -> None:
    result = imported("one_gpu")
    assert result.job.command == ("bash", "-c", "exec python train.py --seed $SLURM_ARRAY_TASK_ID")
    assert "a shell in each task expands $SLURM_ARRAY_TASK_ID" in notes_of(result)


def test_options_of_accelerate_and_mpirun_become_variables(project: Path) -> None:
    assert imported("accelerate").job.env == {"ACCELERATE_MIXED_PRECISION": "bf16"}
    assert imported("mpirun").job.env == {"NCCL_DEBUG": "INFO"}


@pytest.mark.parametrize(
    ("body", "note"),
    [
        (
            "for seed in 1 2; do srun python t.py $seed; done",
            "3: the program stands in `for`: the job starts it once, and nothing sets $seed",
        ),
        ("srun python t.py | tee log", "3: the output went into a pipe"),
        ("srun python t.py &\nwait", "3: the program ran in the background"),
        ("trap 'scontrol requeue $SLURM_JOB_ID' USR1\nsrun python t.py", "3: a trap is left out"),
        ("nvidia-smi dmon > gpu.log &\nsrun python t.py", "3: a process in the background is left out"),
        ("srun python t.py\ncp -r out /archive", "4: runs after the program"),
        ("srun python t.py\nsrun python other.py", "4: a job file starts one program"),
        ("srun --container-image=nvcr.io#nvidia/pytorch python t.py", "set [environment] pyxis = 'nvcr.io#nvidia"),
        ("python t.py", "3: the script starts the program once; the job file starts 4 ranks"),
        ("srun -n 2 python t.py", "3: the step has 2 tasks, the job 4"),
        ("echo nothing", "None: no program was found"),
        ("export TOKENS=$(cat n)\nsrun python t.py\n#SBATCH --mem=1G", "5: Slurm ignores this directive"),
    ],
)
def test_what_a_job_file_has_no_place_for_is_named(body: str, note: str, project: Path) -> None:
    result = imported("x", f"#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=2\n{body}\n")
    assert note in notes_of(result)


@pytest.mark.parametrize(
    ("directive", "note"),
    [
        ("--wait", "--wait belongs to one submission"),
        ("--container-image=image.sqsh", "of a plug-in: #SBATCH --container-image=image.sqsh"),
        ("--ndoes=2", "Slurm refuses this directive"),
        ("--ntasks=8", "Slurm would choose the number of nodes"),
        ("--nodes=2-4", "Slurm would choose the number of nodes"),
        ("--job-name='a/b'", "a folder of runs has letters, digits"),
    ],
)
def test_directives_without_a_key_are_named(directive: str, note: str, project: Path) -> None:
    assert note in notes_of(imported("x", f"#!/bin/bash\n#SBATCH {directive}\nsrun ./a.out\n"))


LUMI = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
SIF=/images/rocm.sif
srun singularity exec -B /scratch $SIF bash -c 'export RANK=$SLURM_PROCID; $WITH_CONDA; python -u train.py --epochs 9'
"""


def test_the_code_of_a_shell_in_each_task_stays_whole(project: Path) -> None:
    result = imported("x", LUMI)
    code = "export RANK=$SLURM_PROCID; $WITH_CONDA; python -u train.py --epochs 9"
    start = "exec singularity exec -B /scratch /images/rocm.sif bash -c"
    assert result.job.command == ("bash", "-c", f"{start} '{code}'")
    assert result.job.launch.bootstrap
    job = imported("x", '#!/bin/bash\nsrun bash -c "\n  source env.sh\n  python t.py $ARGS\n"\n').job
    assert job.command == ("bash", "-c", 'exec bash -c "\n  source env.sh\n  python t.py $ARGS\n"')
    # Without other commands than those of the rendezvous, the program alone is the command.
    job = imported("x", "#!/bin/bash\nsrun bash -c 'export RANK=$SLURM_PROCID; python t.py'\n").job
    assert job.command == ("python", "t.py")


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("srun bash -c 'source env.sh && torchrun t.py'", "2: left out, although each task ran it: source env.sh"),
        ("srun apptainer exec i.sif bash -c 'torchrun t.py'", "ran it: apptainer, around bash -c"),
        ("srun python t.py > out.txt 2>&1", "2: the output went to out.txt"),
        ("srun ray start --head --block &\npython t.py", "2: a Ray cluster: set template = 'ray'"),
    ],
)
def test_what_a_launch_line_loses_is_named(line: str, note: str, project: Path) -> None:
    assert note in notes_of(imported("x", f"#!/bin/bash\n{line}\n"))


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("a: 1\nb:\n  - c\n", "1: sbatch refuses the script: its first line names no interpreter"),
        ("#!/bin/zsh\nsetopt extended_glob\nfor f (*.txt) echo $f\n", "None: not read: the text from line 3 on"),
        ("#!/bin/bash\ncat > job.sh <<EOF\nsrun a.out\nEOF\n", "None: no program was found"),
        (
            "#!/bin/tcsh\nsetenv A 4\nsrun python t.py\n",
            "1: the script is for tcsh: its commands were read as those of",
        ),
        ("#!/usr/bin/fish\nset -x A 3\nsrun python t.py\n", "1: the script is for fish: only its directives"),
    ],
)
def test_a_program_that_was_not_read_is_not_guessed(text: str, note: str, project: Path) -> None:
    result = imported("x", text)
    assert result.job.command == (("python", "t.py") if "tcsh" in text else ())
    assert note in notes_of(result)


@pytest.mark.parametrize(
    "text", ["", "#!/bin/bash\n", "\0\xff", "#!/usr/bin/python3\n#SBATCH -N2\nprint(1)\n", "if (("]
)
def test_a_text_that_is_no_script_is_no_crash(text: str, project: Path) -> None:
    assert imported("x", text).notes


def test_local_variables_of_the_setup_reach_it(project: Path) -> None:
    text = "#!/bin/bash\nROOT=/data\nUNUSED=1\nRUN=$ROOT/$SLURM_JOB_ID\nmkdir -p $RUN\nsrun ./a.out --dir $RUN\n"
    job = imported("x", text).job
    assert job.setup == ("export ROOT=/data", "RUN=$ROOT/$SLURM_JOB_ID", "export RUN", "mkdir -p $RUN")
    assert job.command[:2] == ("bash", "-c")
    assert job.command[2] == "exec ./a.out --dir $RUN"


def test_the_words_before_the_program_on_its_line_are_kept(project: Path) -> None:
    job = imported("x", "#!/bin/bash\ncd /work && srun ./a.out\n").job
    assert (job.setup, job.command) == (("cd /work",), ("./a.out",))


def test_the_result_of_a_command_reaches_the_program(project: Path) -> None:
    text = "#!/bin/bash\n#SBATCH -a 1-9\nF=$(sed -n ${SLURM_ARRAY_TASK_ID}p list)\npython t.py \"$F\" --tag 'a b'\n"
    job = imported("x", text).job
    assert job.setup == ("F=$(sed -n ${SLURM_ARRAY_TASK_ID}p list)", "export F")
    assert job.command == ("bash", "-c", "exec python t.py \"$F\" --tag 'a b'")


def test_an_item_of_an_array_is_read_in_the_setup_because_bash_exports_no_arrays(project: Path) -> None:
    text = "#!/bin/bash\n#SBATCH -a 0-1\nLRS=(0.2 0.1)\nsrun python t.py --lr ${LRS[$SLURM_ARRAY_TASK_ID]}\n"
    job = imported("x", text).job
    assert job.setup == ("LRS=(0.2 0.1)", "export LRS_ITEM=${LRS[$SLURM_ARRAY_TASK_ID]}")
    assert job.command == ("bash", "-c", "exec python t.py --lr ${LRS_ITEM}")


@pytest.mark.parametrize(
    "line", ["mpirun -np 4 bash -c 'RANK=$OMPI_COMM_WORLD_RANK exec python t.py'", "exec srun python t.py"]
)
def test_exec_is_no_program(line: str, project: Path) -> None:
    job = imported("x", f"#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=2\n{line}\n").job
    assert job.command == ("python", "t.py")


def test_torchrun_without_python_keeps_the_whole_program(project: Path) -> None:
    text = "#!/bin/bash\n#SBATCH -N2\nsrun torchrun --nproc-per-node=2 --no-python python -m tool t.py\n"
    assert imported("x", text).job.command == ("python", "-m", "tool", "t.py")


def test_the_table_of_multi_prog_is_no_program(project: Path) -> None:
    result = imported("x", "#!/bin/bash\n#SBATCH -N1 -n2\nsrun --multi-prog table.conf\n")
    assert result.job.command == ()
    assert "3: srun --multi-prog starts several programs" in notes_of(result)


def test_a_container_around_torchrun_is_named_with_its_image(project: Path) -> None:
    text = "#!/bin/bash\n#SBATCH -N1\nsingularity exec --nv x.sif torchrun --nproc_per_node 4 t.py\n"
    assert "set [environment] apptainer = 'x.sif' in the cluster file" in notes_of(imported("x", text))


BY_HAND = (
    "directives_everywhere", "head_and_workers", "hostfile_and_eval", "one_python_a_gpu", "submits_itself_again",
    "torchrun_each_node", "who_is_the_head",
)  # fmt: skip


@pytest.mark.oracle("sbatch")
@pytest.mark.parametrize("name", BY_HAND)
def test_scripts_of_other_clusters_keep_their_resources(name: str, project: Path) -> None:
    text = (ROOT / "tests" / "pocketslurm" / "by_hand" / f"{name}.sh").read_text()
    assert ask(render_job(import_script(text, name).job, "slurm", {})) == ask(text)


def test_a_component_without_options_is_a_component() -> None:
    notes = import_script("#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH hetjob\nsrun python t.py\n", "x").notes
    assert [note.line for note in notes if "heterogeneous" in note.text] == [3]
