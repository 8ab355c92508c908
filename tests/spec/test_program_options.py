"""What a [program] table says is known before the job is queued: degrees, batch and model that the program supports."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from hpc_kit.errors import SpecError
from hpc_kit.script.render import render_resolved
from hpc_kit.spec import load
from hpc_kit.spec.cluster import Cluster, Node
from hpc_kit.spec.job import Component, Job, Layout, Model
from hpc_kit.spec.program_options import find_program, list_programs
from hpc_kit.spec.resolve import Resolved, resolve
from hpc_kit.spec.resources import Resources
from tests.conftest import ROOT

CPUS = Cluster(name="c", node=Node(gpus=0))


def fit(command: str, *, ranks: int = 4, nodes: int = 1, **tables: dict[str, int]) -> Resolved:
    """A user's own job that runs a shipped program."""
    made = Job(
        name="mine",
        template="hybrid",
        command=("python", *f"jobs/train/{command}".split()),
        resources=Resources(nodes=nodes, ntasks_per_node=ranks // nodes),
        layout=Layout(**tables.get("layout", {})),
        model=Model(**tables.get("model", {})),
    )
    return resolve(load.load(made, CPUS, root=ROOT), root=ROOT)


TABLE = """
command = ["python", "mine.py"]

[program]
file = "mine.py"
defaults = { steps = 9, global_batch = 30 }
all_ranks = ["pp"]
only = { dp = [1] }
"""


def test_the_option_table_of_a_job_applies_to_its_program_only(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "mine.py").touch()
    (tmp_path / "jobs" / "mine.toml").write_text(TABLE)
    (tmp_path / "jobs" / "other.toml").write_text('extends = "mine"\ncommand = ["python", "other.py"]\n')
    (tmp_path / "jobs" / "replaced.toml").write_text(
        'extends = "mine"\ncommand = ["python", "other.py"]\n[program]\nfile = "other.py"\nall_ranks = ["tp"]\n'
    )
    mine, other, replaced = (
        resolve(load.load(name, CPUS, set={"resources.ntasks_per_node": 2}, root=tmp_path), root=tmp_path)
        for name in ("mine", "other", "replaced")
    )
    assert (mine.job.layout.pp, other.job.layout.pp, replaced.job.layout.tp) == (2, 1, 2)
    with pytest.raises(SpecError, match=r"mine\.py takes dp 1 only"):
        resolve(
            load.load("mine", CPUS, set={"resources.ntasks_per_node": 2, "layout.dp": 2}, root=tmp_path), root=tmp_path
        )


def test_the_last_value_in_the_command_counts() -> None:
    [program] = [each for each in list_programs(ROOT) if each.file == "jobs/train/pipeline.py"]
    words = ("python3", program.file, "--pp=2", "--steps", "3", "--steps", "4", "--other", "5")
    assert find_program(words, program, ROOT, ROOT).values == {"pp": "2", "steps": "4"}


@pytest.mark.parametrize("command", [("python", "mine.py", "--tp", "4"), ("bash", "mine.sh"), ()])
def test_a_program_without_a_table_is_not_checked(command: tuple[str, ...], tmp_path: Path) -> None:
    assert find_program(command, None, tmp_path, tmp_path).program is None


def test_with_several_programs_the_job_file_decides_the_layout() -> None:
    loaded = load.load("ddp_1node", CPUS, root=ROOT)
    parts = tuple(Component(command=("python", f"{name}.py"), nodes=1, ntasks_per_node=2) for name in "ab")
    job = structs.replace(loaded.job, layout=Layout(pp=2), component=parts)
    assert resolve(structs.replace(loaded, job=job), root=ROOT).job.layout.pp == 2


def test_the_default_batch_applies_to_the_shipped_programs_only() -> None:
    assert fit("ddp.py", ranks=4).world_size == 4
    with pytest.raises(SpecError, match="the global batch does not divide"):
        fit("ddp.py", ranks=3)
    loaded = load.load("ddp_1node", CPUS, root=ROOT)
    resources = structs.replace(loaded.job.resources, ntasks_per_node=3)
    mine = structs.replace(loaded.job, command=("python", "mine.py"), resources=resources)
    assert resolve(structs.replace(loaded, job=mine), root=ROOT).world_size == 3


def test_unset_degrees_are_the_defaults_of_the_program() -> None:
    assert fit("pipeline.py").job.layout.pp == 4
    assert fit("tensor.py --heads 8").job.layout.tp == 4
    assert fit("context.py", layout={"dp": 2}).job.layout.cp == 2
    assert fit("fsdp.py").job.layout.zero == 3
    assert fit("modelparallel.py", ranks=2).job.layout.pp == 2
    assert fit("hybrid.py").job.layout == Layout()
    assert fit("ddp.py").layout_text == ""


def test_a_degree_of_one_is_passed_to_a_program_that_defaults_to_all_ranks() -> None:
    made = Job(
        name="mine", command=("python", "jobs/train/context.py"), resources=Resources(nodes=1, ntasks_per_node=2)
    )
    loaded = load.load(made, CPUS, set={"layout.cp": 1}, root=ROOT)
    assert resolve(loaded, root=ROOT).layout_text == "cp=1"


def test_the_command_has_priority_over_the_layout() -> None:
    resolved = fit("hybrid.py --tp 2 --micro-batches=2", nodes=2, layout={"tp": 4, "pp": 2, "global_batch": 64})
    assert resolved.layout_text == "pp=2 tp=2 global_batch=64 micro_batches=2"
    assert "# tp  2   parts of each matrix: ranks 0-1 | 2-3, each on one node" in render_resolved(resolved, root=ROOT)


@pytest.mark.parametrize(
    ("command", "tables", "words"),
    [
        ("ddp.py", {"layout": {"global_batch": 66}}, ("global_batch = 66", "dp 4 x micro_batches 1 = 4")),
        ("ddp.py --global-batch 66", {}, ("global_batch = 66 in the command, --global-batch;",)),
        ("ddp.py", {"ranks": 6}, ("global_batch = 64 in jobs/train/ddp.py, its own; dp 6 x", "global_batch = 66")),
        ("hybrid.py --pp 4", {"ranks": 12}, ("dp 3 x micro_batches 4 = 12",)),
        ("pipeline.py", {"ranks": 8, "model": {"layers": 8}}, ("micro_batches = 4 in jobs/train/pipeline.py,",)),
        ("tensor.py", {"ranks": 8}, ("tp does not divide", "heads = 4 in jobs/train/tensor.py, its own")),
        ("pipeline.py", {"layout": {"pp": 2}}, (
            "jobs/train/pipeline.py takes dp 1 only", "found  dp = 2; 4 ranks, pp 2",
            "do     2 ranks in [resources], or a larger pp; or hybrid.py",
        )),
        ("tensor.py --tp 2", {}, ("jobs/train/tensor.py takes dp 1 only", "or a larger tp; or hybrid.py")),
        ("modelparallel.py", {}, ("takes dp 1 only", "do     2 ranks in [resources]; or hybrid.py")),
        ("modelparallel.py", {"layout": {"pp": 4}}, (
            "takes pp 2 only", "pp = 4 in the job", "do     pp = 2; or hybrid.py; or pipeline.py",
        )),
        ("dataparallel.py", {}, ("takes dp 1 only", "found  dp = 4; 4 ranks, dp\n", "do     1 rank in [resources]")),
        ("ddp.py", {"layout": {"zero": 1}}, (
            "ddp.py does not split by zero", "it has no --zero", "leave zero out; or hybrid.py; or zero1.py",
        )),
        ("zero1.py", {"layout": {"zero": 1, "dp_shard": 2}}, ("does not split by dp_shard", "leave dp_shard out")),
        ("hybrid.py", {"layout": {"zero": 3, "dp_shard": 2}}, ("does not split by dp_shard", "or fsdp.py")),
        ("hybrid.py", {"layout": {"zero": 2}}, ("takes zero 0 or 1 or 3 only", "zero = 2 in", "or fsdp.py")),
        ("zero1.py --zero 0", {}, ("takes zero 1 only", "do     zero = 1; or context.py; or ddp.py; or ")),
        ("fsdp.py --zero 1", {}, ("takes zero 2 or 3 only", "zero = 1 in the command, --zero; 4 ranks, dp")),
        ("parameter_server.py --global-batch 64", {"ranks": 6}, ("dp 5 x micro_batches 1 = 5",)),
    ],
)  # fmt: skip
def test_a_layout_that_the_program_does_not_support_is_refused_with_the_numbers(
    command: str, tables: dict[str, dict[str, int]], words: tuple[str, ...]
) -> None:
    with pytest.raises(SpecError) as caught:
        fit(command, **tables)  # type: ignore[arg-type]
    for word in words:
        assert word in str(caught.value)


def test_a_parameter_server_has_no_share_of_the_batch() -> None:
    fit("parameter_server.py", ranks=5)  # 64 samples, 4 workers
