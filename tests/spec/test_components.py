"""Heterogeneous jobs: components over what they share, counted, checked, written and read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_kit.errors import SpecError
from hpc_kit.script.render import render
from hpc_kit.spec import load
from hpc_kit.spec.resolve import Resolved, resolve
from hpc_kit.spec.toml_documents import save_job
from tests.conftest import ROOT
from tests.slurm.oracle import sbatch_defined_options

HEAD = 'command = ["python", "train.py"]\n[resources]\nntasks_per_node = 2\nmem = "4G"\nrequeue = true\n'
TWO = HEAD + (
    '[[component]]\nnodes = 1\nmem_per_cpu = "1G"\n[[component]]\nnodes = 2\nntasks_per_node = 4\n'
    'command = ["python", "worker.py"]\n'
)


def resolved(project: Path, text: str, cluster: str = "slurm", **settings: object) -> Resolved:
    (project / "jobs/mine.toml").write_text(text)
    return resolve(load.load("mine", cluster, set=settings, root=project), root=project)


def test_components_are_counted_separately_and_form_one_world(project: Path) -> None:
    found = resolved(project, TWO)
    assert (found.nodes, found.ntasks, found.world_size) == (3, 10, 10)
    first, second = found.components
    assert (first.resources.mem, first.resources.mem_per_cpu, first.resources.ntasks) == (None, "1G", 2)
    assert (second.resources.mem, second.resources.ntasks, second.resources.nodes) == ("4G", 8, 2)
    assert (first.command[-1], second.command[-1]) == ("train.py", "worker.py")
    assert resolved(project, TWO + "[layout]\ntp = 2\n").job.layout.size(10) == 10


def test_components_are_saved_in_the_job_file(project: Path) -> None:
    found = resolved(project, TWO)
    save_job(found.requested_job, project / "jobs/again.toml")
    again = load.load_job("again", root=project)
    assert again.component == found.requested_job.component
    output = render("mine", "slurm", set={"component": [{"nodes": 1}, {"nodes": 1, "constraint": "a&b"}]}, root=project)
    line = next(line for line in output.splitlines() if line.startswith("# again"))
    assert "--set 'component=[{nodes = 1}, {nodes = 1, constraint = \"a&b\"}]'" in line


@pytest.mark.parametrize(
    ("text", "cluster", "expected"),
    [
        (HEAD + "[[component]]\nnodes = 2\n", "slurm", "a heterogeneous job of one component"),
        (TWO.replace("mem = ", 'array = "0-3"\nmem = '), "slurm", "no arrays of heterogeneous jobs"),
        (TWO.replace("nodes = 1", "node = 1"), "slurm", "unknown key 'node' in jobs/mine.toml, line 7"),
        (TWO.replace("nodes = 2", "nodes = 0"), "slurm", "wrong value for component.nodes"),
        (TWO.replace("nodes = 2", "nodes = 2\nntasks = 7"), "slurm", "the tasks do not fill the nodes"),
        (
            HEAD.replace("ntasks_per_node = 2\n", "")
            + "[[component]]\nnodes = 1\n[[component]]\nnodes = 2\nntasks = 3\n",
            "slurm",
            "need the same number of tasks",
        ),
        (TWO + "[layout]\ndp = 4\n", "slurm", "the layout does not fill the job"),
    ],
)
def test_impossible_components_are_refused(project: Path, text: str, cluster: str, expected: str) -> None:
    with pytest.raises(SpecError) as error:
        resolved(project, text, cluster)
    assert expected in str(error.value)
    assert error.value.remedy


@pytest.mark.oracle("sbatch")
def test_the_real_parser_reads_each_component(project: Path) -> None:
    (project / "jobs/mine.toml").write_text(TWO)
    text = render("mine", "slurm", root=project)
    head, second = text.split("#SBATCH hetjob\n")
    output = sbatch_defined_options(text)
    assert output["nodes"] == "1"
    assert {name: output[name] for name in ("ntasks", "mem-per-cpu")} == {"ntasks": "2", "mem-per-cpu": "1G"}
    alone = sbatch_defined_options("#!/bin/bash\n" + second)
    assert {name: alone[name] for name in ("nodes", "ntasks", "mem")} == {"nodes": "2", "ntasks": "8", "mem": "4G"}
    assert "--requeue" in head
    assert "--requeue" not in second


def test_the_shipped_heterogeneous_job_has_two_components() -> None:
    found = resolve(load.load("hetjob", "slurm", root=ROOT), root=ROOT)
    assert [(part.nodes, part.ntasks, part.resources.cpus_per_task) for part in found.components] == [
        (1, 2, 2),
        (1, 2, 1),
    ]
