"""A launcher in the command: one world of the job's size, or a refusal with the line that works."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from hpc_kit.errors import SpecError
from hpc_kit.script.render import render_resolved
from hpc_kit.spec import load
from hpc_kit.spec.cluster import Cluster, Environment, Node
from hpc_kit.spec.job import Job, Launch
from hpc_kit.spec.launcher_command import find_launcher
from hpc_kit.spec.resolve import Resolved, resolve
from tests.conftest import ROOT

HERE = Cluster(name="here", python="python")


def resolved(
    line: str, cluster: Cluster = HERE, env: dict[str, str | int | float] | None = None, **resources: object
) -> Resolved:
    """The job of `submit -- LINE`."""
    job = Job(name="mine", command=tuple(shlex.split(line)), launch=Launch(bootstrap=True), env=env or {})
    settings = {f"resources.{name}": value for name, value in resources.items()}
    return resolve(load.load(job, cluster, set=settings))


def size(job: Resolved) -> tuple[int, int, int]:
    """Nodes, ranks on each node, all ranks."""
    assert job.ranks_per_node is not None
    return job.nodes, job.ranks_per_node, job.world_size


@pytest.mark.parametrize(
    ("nodes", "ranks", "line", "program", "options"),
    [
        (2, 2, "torchrun train.py --lr 1", "python train.py --lr 1", ""),
        (1, 4, "torchrun train.py", "python train.py", ""),
        (2, 2, "torchrun --nnodes=2 --nproc_per_node 2 train.py", "python train.py", ""),
        (2, 2, "torchrun --nnodes=4 --nproc-per-node=1 train.py", "python train.py", ""),
        (1, 2, "torchrun --standalone --nproc-per-node=gpu train.py", "python train.py", ""),
        (
            2,
            1,
            "torchrun --rdzv-backend=c10d --rdzv-endpoint n1:1 --max-restarts 3 train.py",
            "python train.py",
            "--max-restarts 3",
        ),
        (2, 2, "python -m torch.distributed.run -m pkg.mod", "python -m pkg.mod", ""),
        (2, 2, "python3 -m torch.distributed.launch --use-env train.py", "python train.py", ""),
        (2, 2, "/opt/bin/torchrun --no-python ./simulate", "./simulate", ""),
        (
            2,
            2,
            "python -m torch.distributed.launch --nproc_per_node=2 train.py --lr 1",
            "python train.py '--local-rank=${local_rank}' --lr 1",
            "",
        ),
        (2, 2, "python -m torch.distributed.launch -m pkg.mod", "python -m pkg.mod '--local-rank=${local_rank}'", ""),
        (2, 2, "python3 -mtorch.distributed.run --nproc_per_node 2 train.py", "python train.py", ""),
        (2, 2, "python3.12 -um torch.distributed.run train.py", "python train.py", ""),
        (2, 2, "python -u .venv/bin/torchrun train.py", "python train.py", ""),
        (2, 2, "python /x/site-packages/torch/distributed/run.py train.py", "python train.py", ""),
    ],
)
def test_torchrun_becomes_one_agent_per_node(nodes: int, ranks: int, line: str, program: str, options: str) -> None:
    job = resolved(line, nodes=nodes, ntasks_per_node=ranks)
    assert size(job) == (nodes, ranks, nodes * ranks)
    assert (job.job.launch.launcher, job.ntasks) == ("torchrun", nodes)
    assert shlex.join(job.job.command) == program
    assert shlex.join(job.job.launch.options) == options
    for standalone in (False, True):
        script = render_resolved(job, standalone=standalone, root=ROOT)
        assert f" --nproc-per-node={ranks} \\\n" in script
        assert (f"  {options} \\\n" in script) == bool(options)


def test_each_node_gets_the_cpus_and_gpus_of_all_its_ranks() -> None:
    job = resolved("torchrun train.py", nodes=2, ntasks_per_node=4, cpus_per_task=3, gpus_per_task="a100:1")
    assert (job.job.resources.cpus_per_task, job.job.resources.gpus_per_node) == (12, "a100:4")
    assert resolved("torchrun train.py", nodes=2, ntasks_per_node=4).job.resources.cpus_per_task == 4
    assert "OMP_NUM_THREADS=3" in render_resolved(job, root=ROOT)


@pytest.mark.parametrize(
    ("line", "resources", "expected"),
    [
        ("torchrun --nproc-per-node 2 train.py", {}, (1, 2, 2)),
        ("torchrun --nnodes 2 --nproc-per-node 2 train.py", {}, (2, 2, 4)),
        ("torchrun --nproc-per-node 2 train.py", {"nodes": 2}, (2, 2, 4)),
        ("mpirun -n 4 python train.py", {"nodes": 2}, (2, 2, 4)),
    ],
)
def test_a_job_without_numbers_has_those_of_its_launcher(
    line: str, resources: dict[str, int], expected: tuple[int, int, int]
) -> None:
    assert size(resolved(line, HERE, None, **resources)) == expected


def test_mpirun_and_srun_start_the_ranks_of_the_job() -> None:
    by_mpi = resolved("mpirun -np 4 --oversubscribe python train.py", nodes=2, ntasks_per_node=2)
    assert (by_mpi.job.launch.launcher, by_mpi.job.command) == ("mpirun", ("python", "train.py"))
    assert resolved("mpiexec.hydra ./solve", nodes=2).job.launch.mpi == "mpich"
    by_srun = resolved("srun python train.py", nodes=2, ntasks_per_node=2)
    assert (by_srun.job.launch.launcher, by_srun.job.command) == ("srun", ("python", "train.py"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "accelerate launch --mixed_precision bf16 train.py",
            "-j 2x2 --set env.ACCELERATE_MIXED_PRECISION=bf16 -- python train.py",
        ),
        ("python -m accelerate.commands.launch train.py", "-j 2x2 -- python train.py"),
        ("accelerate launch --cpu train.py", "-j 2x2 --set env.ACCELERATE_USE_CPU=1 -- python train.py"),
        ("deepspeed --num_gpus 2 train.py --deepspeed", "-j 2x2 -- python train.py --deepspeed"),
        ("horovodrun -np 4 python train.py", "-j 2x2 --set launch.launcher=mpirun -- python train.py"),
        ("mpirun --mca btl self python train.py", "-j 2x2 --set launch.launcher=mpirun -- python train.py"),
        ("srun --mpi=pmix ./solve", "-j 2x2 -- ./solve"),
        ("ibrun ./solve", "-j 2x2 -- ./solve"),
        ("env MODE=1 torchrun train.py", "-j 2x2 -- env MODE=1 python train.py"),
        ("uv run torchrun --nproc-per-node=2 train.py", "-j 2x2 -- uv run python train.py"),
        ("pdm run torchrun train.py", "-j 2x2 -- pdm run python train.py"),
        ("uv run --python python3.12 torchrun train.py", "-j 2x2 -- uv run --python python3.12 python train.py"),
        ("podman run image torchrun train.py", "-j 2x2 -- podman run image python train.py"),
        ("accelerate-launch train.py", "-j 2x2 -- python train.py"),
        ("python -m accelerate.commands.accelerate_cli launch train.py", "-j 2x2 -- python train.py"),
        ("deepspeed --force_multi --bind_cores_to_rank train.py", "-j 2x2 -- python train.py"),
        ("python -m deepspeed.launcher.launch train.py", "-j 2x2 -- python train.py"),
        (
            "python -m horovod.runner.launch -np 4 python train.py",
            "-j 2x2 --set launch.launcher=mpirun -- python train.py",
        ),
        ("composer -n 2 train.py --lr 1", "-j 2x2 -- python train.py --lr 1"),
        ("colossalai run --nproc_per_node 2 train.py", "-j 2x2 -- python train.py"),
        (
            "axolotl train a.yml --launcher torchrun --debug -- --nnodes 2",
            "-j 2x2 -- python -m axolotl.cli.train a.yml --debug",
        ),
        ("llamafactory-cli train a.yaml", "-j 2x2 -- python -m llamafactory.launcher a.yaml"),
        ("trl sft --num_processes=4 --config a.yaml", "-j 2x2 -- python -m trl.scripts.sft --config a.yaml"),
        ("uv run tune run --nproc_per_node 2 full --config a", "-j 2x2 -- uv run tune run full --config a"),
        ("bash -c 'cd x && torchrun train.py'", "-j 2x2 -- python train.py"),
        ("bash -l -c 'python -m torch.distributed.run train.py'", "-j 2x2 -- python train.py"),
        ("env A=1 bash -ec 'uv run torchrun train.py'", "-j 2x2 -- uv run python train.py"),
        ("bash -c 'for i in 1; do A=1 /opt/bin/torchrun train.py; done'", "-j 2x2 -- python train.py"),
        ("bash -c 'srun -n 4 python train.py'", "-j 2x2 -- python train.py"),
    ],
)
def test_other_launchers_are_refused_with_the_line_that_works(line: str, words: str) -> None:
    with pytest.raises(SpecError, match="would not make one world of 4 ranks") as error:
        resolved(line, nodes=2, ntasks_per_node=2)
    assert str(error.value.remedy).endswith(f"hpc-kit submit {words}")


@pytest.mark.parametrize("line", ["accelerate launch train.py", "bash -c 'accelerate launch train.py'"])
def test_accelerate_connects_ranks_on_cpus_if_it_is_told_to(line: str) -> None:
    cpus = Cluster(name="cpus", python="python", node=Node(gpus=0))
    with pytest.raises(SpecError) as caught:
        resolved(line, cpus, nodes=2, ntasks_per_node=2)
    assert "hpc-kit submit -j 2x2 --set env.ACCELERATE_USE_CPU=1 -- python train.py" in str(caught.value)


@pytest.mark.parametrize(
    ("line", "nodes", "ranks", "words"),
    [
        ("torchrun --nproc-per-node 4 train.py", 2, 2, "-j 2x4 -- torchrun train.py"),
        ("torchrun --standalone --nproc-per-node 2 train.py", 2, 1, "-j 2x2 -- torchrun train.py"),
        ("torchrun --nnodes 4 --max-restarts 1 train.py", 2, 2, "-j 4x2 -- torchrun --max-restarts 1 train.py"),
        ("torchrun --standalone -m pkg.mod", 2, 2, "-j 2x2 -- torchrun -m pkg.mod"),
        (
            "python -m torch.distributed.launch --nproc_per_node=4 train.py",
            *(2, 2, "-j 2x4 -- python -m torch.distributed.launch train.py"),
        ),
        ("mpirun -n 8 ./solve", 2, 2, "-j 2x4 -- ./solve"),
        ("accelerate launch --num_processes 4 train.py", 1, 1, "-j 1x4 -- python train.py"),
    ],
)
def test_numbers_that_contradict_the_job_are_refused(line: str, nodes: int, ranks: int, words: str) -> None:
    with pytest.raises(SpecError, match="give different numbers of ranks") as error:
        resolved(line, nodes=nodes, ntasks_per_node=ranks)
    assert str(error.value.remedy).endswith(f"hpc-kit submit {words}")


@pytest.mark.parametrize(
    "line",
    [
        "hostname",
        "echo torchrun",
        "python train.py torchrun",
        "bash -c 'echo torchrun is here'",
        "accelerate env",
        "axolotl train a.yml --launcher python",
        "axolotl preprocess a.yml",
        "trl env",
        "tune run full --config a",
        "bash torchrun.sh",
        "python -c 'print(1)' torchrun",
        "fabric --help",
        "bash -c 'python train.py # torchrun train.py'",
        """bash -c 'if [ "$SLURM_PROCID" = 0 ]; then mpirun -n 2 ./solve; fi'""",
    ],
)
def test_other_commands_stay_as_they_are(line: str) -> None:
    job = resolved(line, nodes=2, ntasks_per_node=2)
    assert (shlex.join(job.job.command), job.job.launch.launcher, job.notes) == (line, "srun", ())


def test_a_launcher_in_one_task_stays_as_it_is() -> None:
    assert resolved("accelerate launch train.py").job.command[0] == "accelerate"
    assert resolved("deepspeed --num_gpus 4 train.py", nodes=1).job.command[0] == "deepspeed"


def test_separate_worlds_are_possible_if_the_job_names_them() -> None:
    job = resolved("torchrun --nproc-per-node=2 train.py", env={"HPC_KIT_LAUNCHER": "torchrun"}, nodes=2)
    assert job.job.command[0] == "torchrun"


def test_torchrun_in_a_container_is_refused() -> None:
    image = Cluster(name="here", python="python", environment=Environment(apptainer="image.sif"))
    with pytest.raises(SpecError, match="torchrun in the command") as error:
        resolved("torchrun train.py", image, nodes=2)
    assert "cluster here has a container" in str(error.value.found)


def test_a_job_file_may_name_torchrun_twice(project: Path) -> None:
    (project / "jobs/mine.toml").write_text(
        'command = ["torchrun", "train.py"]\n[resources]\nnodes = 2\n'
        '[launch]\nlauncher = "torchrun"\nnproc_per_node = 2\noptions = ["--max-restarts=1"]\n'
    )
    job = resolve(load.load("mine", HERE, root=project), root=project)
    assert (size(job), job.job.command) == ((2, 2, 4), ("python", "train.py"))
    assert job.job.launch.options == ("--max-restarts=1",)


def test_options_are_for_torchrun_only() -> None:
    job = Job(name="mine", command=("python", "t.py"), launch=Launch(options=("--max-restarts=1",)))
    with pytest.raises(SpecError, match="only torchrun has options"):
        resolve(load.load(job, HERE))


def test_a_launcher_without_a_program_is_none() -> None:
    found = find_launcher(("torchrun", "--help"))
    assert found is not None
    assert found.program == ()


@pytest.mark.parametrize("tasks", [{"ntasks_per_node": 1}, {"ntasks": 2}])
@pytest.mark.parametrize("ranks", ["4", "gpu", "auto"])
def test_one_task_per_node_is_the_agent_of_torchrun(tasks: dict[str, int], ranks: str) -> None:
    line = f"torchrun --nnodes=2 --nproc_per_node={ranks} train.py"
    job = resolved(line, HERE, None, nodes=2, gpus_per_node=4, cpus_per_task=16, **tasks)
    assert (size(job), job.ntasks, job.job.command) == ((2, 4, 8), 2, ("python", "train.py"))
    assert (job.job.resources.cpus_per_task, job.job.resources.gpus_per_node) == (16, 4)


@pytest.mark.parametrize(
    ("line", "resources", "expected"),
    [
        ("srun -n 4 python train.py", {}, (1, 4, 4)),
        ("srun --nodes 2 --ntasks-per-node=2 python train.py", {}, (2, 2, 4)),
        ("srun -n 4 --ntasks-per-node=2 python train.py", {}, (2, 2, 4)),
        ("srun -n 4 python train.py", {"nodes": 2}, (2, 2, 4)),
        ("srun -N2 -n4 python train.py", {"nodes": 2, "ntasks_per_node": 2}, (2, 2, 4)),
    ],
)
def test_srun_gives_its_numbers_to_the_job(
    line: str, resources: dict[str, int], expected: tuple[int, int, int]
) -> None:
    job = resolved(line, HERE, None, **resources)
    assert (size(job), job.job.command, job.job.launch.launcher) == (expected, ("python", "train.py"), "srun")


@pytest.mark.parametrize(
    ("line", "resources", "words"),
    [
        ("srun --mpi=pmix python t.py", {"nodes": 1, "ntasks_per_node": 1}, "-j 1x1 -- python t.py"),
        ("srun -N 4 python t.py", {"nodes": 2}, "-j 4x1 -- python t.py"),
        ("srun -n 1 python t.py", {"nodes": 2, "ntasks_per_node": 2}, "-j 1x1 -- python t.py"),
        ("srun -N 1-2 python t.py", {}, "-j 1x1 -- python t.py"),
    ],
)
def test_srun_inside_srun_is_refused(line: str, resources: dict[str, int], words: str) -> None:
    with pytest.raises(SpecError) as error:
        resolved(line, HERE, None, **resources)
    assert str(error.value.remedy).endswith(f"hpc-kit submit {words}")


@pytest.mark.parametrize("resources", [{}, {"nodes": 1, "ntasks_per_node": 4}])
def test_several_programs_of_mpirun_are_refused(resources: dict[str, int]) -> None:
    with pytest.raises(SpecError, match="starts several programs"):
        resolved("mpirun -n 2 python a.py : -n 2 python b.py", HERE, None, **resources)


def test_torchrun_counts_the_gpus_of_the_job() -> None:
    assert size(resolved("torchrun --nproc_per_node=gpu train.py", nodes=2, gpus_per_node=4)) == (2, 4, 8)
    for ranks in ("gpu", "auto", "cpu"):
        with pytest.raises(SpecError, match="number of ranks of torchrun is not known") as error:
            resolved(f"torchrun --nproc_per_node={ranks} train.py")
        assert str(error.value.remedy).endswith("hpc-kit submit -j 1xRANKS -- torchrun train.py")


def test_a_range_of_nodes_is_replaced_with_a_note() -> None:
    job = resolved("torchrun --nnodes=1:4 --nproc-per-node=2 train.py", nodes=2)
    assert size(job) == (2, 2, 4)
    assert any("ignoring --nnodes=1:4 of torchrun" in note for note in job.notes)


@pytest.mark.parametrize(
    "line",
    [
        "python -u -m torch.distributed.run train.py",
        "python -X faulthandler -W ignore -m torch.distributed.run train.py",
        "torchrun -- train.py",
        "torchrun --virtual-local-rank train.py",
        "accelerate launch --dynamo_use_dynamic train.py",
    ],
)
def test_the_program_is_found_behind_the_options(line: str) -> None:
    found = find_launcher(tuple(shlex.split(line)))
    assert found is not None
    assert found.program == ("python", "train.py")


def test_a_program_taken_for_a_value_is_refused() -> None:
    with pytest.raises(SpecError, match="the program behind torchrun is not clear"):
        resolved("torchrun --new-flag train.py")


@pytest.mark.parametrize(
    ("code", "refused"),
    [
        ("echo do torchrun x; python t.py", False),
        ("torchrun --version; python t.py", False),
        ("mpirun  --help", False),
        ("for x in 1; do torchrun t.py; done", True),
        ("A=1 exec torchrun t.py", True),
        ("module load x\ntorchrun t.py", True),
        ("trap '' TERM; python t.py", False),
        ("trap '' TERM; torchrun t.py", True),
    ],
)
def test_shell_code_with_a_launcher_as_a_command_is_refused(code: str, refused: bool) -> None:
    line = shlex.join(["bash", "-c", code])
    if not refused:
        assert resolved(line, nodes=2).job.command[0] == "bash"
        return
    with pytest.raises(SpecError, match="torchrun in the command"):
        resolved(line, nodes=2)


def test_variables_of_mpirun_go_to_the_environment_of_the_job() -> None:
    job = resolved("mpirun -n 4 -x A=1 -x HOME -x B=2=3 --bind-to none ./solve", nodes=2)
    assert (size(job), job.job.launch.launcher, job.job.command) == ((2, 2, 4), "mpirun", ("./solve",))
    assert (job.job.env["A"], job.job.env["B"], "HOME" in job.job.env) == ("1", "2=3", False)
    assert any("setting A, B in [env]" in note for note in job.notes)
    with pytest.raises(SpecError, match="mpirun in the command") as error:
        resolved("mpirun -n 4 -x A=1 --bind-to core ./solve", nodes=2)
    assert "--set env.A=1 -- ./solve" in str(error.value.remedy)
    assert "--bind-to core" in str(error.value.found)


def in_script(text: str, project: Path, command: str = "bash run.sh", **resources: int) -> Resolved:
    """The job of a command that runs the shell script run.sh."""
    (project / "run.sh").write_text(text)
    (project / "run").write_text(f"#!/usr/bin/env bash\n{text}")
    job = Job(name="mine", command=tuple(shlex.split(command)), launch=Launch(bootstrap=True))
    settings = {f"resources.{name}": value for name, value in resources.items()}
    return resolve(load.load(job, HERE, set=settings), root=project)


@pytest.mark.parametrize("command", ["bash run.sh", "bash -e run.sh 1", "./run.sh", "./run", "env A=1 sh run.sh"])
def test_a_shell_script_with_a_launcher_in_each_task_is_refused(project: Path, command: str) -> None:
    text = "# run it's\nmodule load cuda\nexport A=1\ntorchrun --nproc-per-node=2 \\\n  train.py --lr 1\n"
    with pytest.raises(SpecError, match="torchrun in the command would not make one world of 4 ranks") as error:
        in_script(text, project, command, nodes=2, ntasks_per_node=2)
    assert "torchrun --nproc-per-node=2 train.py --lr 1" in str(error.value.found)
    assert "write python train.py --lr 1 in its place" in str(error.value.remedy)
    assert "--set env.HPC_KIT_LAUNCHER=torchrun" in str(error.value.remedy)


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("python train.py\n", 2),
        ("# torchrun train.py\necho torchrun train.py\ntorchrun --version\n", 2),
        ("cat <<EOF\ntorchrun train.py\nEOF\npython train.py\n", 2),
        ("mpirun -n 4 ./solve $SLURM_PROCID\nsrun --overlap hostname\nsrun --container-image=x python t.py\n", 2),
        ('if [ "$SLURM_LOCALID" = 0 ]; then\n  torchrun --nnodes=2 train.py\nfi\n', 2),
        ("torchrun --nnodes=2 --nproc-per-node=2 --rdzv-endpoint=$MASTER_ADDR:1 train.py\n", 1),
        ("torchrun --nnodes=$SLURM_NNODES --nproc-per-node=2 train.py\n", 1),
    ],
)
def test_a_shell_script_that_may_make_one_world_stays_as_it_is(project: Path, text: str, ranks: int) -> None:
    job = in_script(text, project, nodes=2, ntasks_per_node=ranks)
    assert job.job.command == ("bash", "run.sh")


@pytest.mark.parametrize("options", ["", "--standalone --nproc-per-node=2", "--nnodes=1"])
def test_one_agent_per_node_that_ignores_the_other_nodes_is_refused(project: Path, options: str) -> None:
    with pytest.raises(SpecError, match="would not make one world of 2 ranks"):
        in_script(f"torchrun {options} train.py\n", project, nodes=2, ntasks_per_node=1)


def test_a_shell_script_in_one_task_may_start_a_launcher(project: Path) -> None:
    assert in_script("torchrun --nproc-per-node=4 train.py\n", project).job.command == ("bash", "run.sh")


@pytest.mark.parametrize("program", [".", "''", "src/", "archive.zip"])
def test_a_program_that_is_no_module_is_no_launcher(program: str) -> None:
    assert resolved(f"python {program} --steps 5").job.command == ("python", *shlex.split(program), "--steps", "5")
