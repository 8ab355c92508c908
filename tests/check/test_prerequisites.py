"""Files that are missing on this machine are refused before submission, with the edit that helps."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from hpc_kit.check.prerequisites import check_program, find_missing
from hpc_kit.errors import SpecError
from hpc_kit.spec import load
from hpc_kit.spec.cluster import Cluster, Embedded
from hpc_kit.spec.job import Job, Launch
from hpc_kit.spec.resolve import Resolved, resolve
from hpc_kit.spec.resources import Resources
from tests.conftest import ROOT


def resolved(
    *command: str,
    root: Path,
    setup: tuple[str, ...] = (),
    chdir: str | None = None,
    partition: str | None = None,
    cluster: Cluster | None = None,
    launch: Launch | None = None,
) -> Resolved:
    resources = Resources(chdir=chdir, partition=partition)
    job = Job(name="mine", command=command, setup=setup, resources=resources, launch=launch or Launch())
    cluster = cluster or Cluster(name="here", python=sys.executable)
    return resolve(load.load(job, cluster, root=root), root=root)


@pytest.mark.parametrize(
    "command",
    [
        ("python", "train.py", "--x", "missing.py"),
        ("python", "-u", "jobs/other.py"),
        ("python", "-m", "json.tool"),
        ("python", "-c", "print()"),
        ("python", "-"),
        ("bash", "run.sh"),
        ("bash", "-c", "missing.sh"),
        ("./run.sh",),
        ("env", "A=1", "python", "train.py"),
        ("apptainer", "exec", "image.sif", "python", "/inside/train.py"),
        ("python", "-m", "torch.distributed.run", "--nproc-per-node=2", "train.py"),
    ],
)
def test_a_job_with_all_its_files_passes(project: Path, command: tuple[str, ...]) -> None:
    for name in ("train.py", "run.sh", "jobs/other.py", "bin/apptainer"):
        file = project / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("#!/bin/sh\n")
        file.chmod(0o755)
    job = resolved(*command, root=project)
    if command[0] == "apptainer":
        job = resolved(*command, root=project, setup=("module load apptainer",))
    check_program(job, project)
    assert find_missing(job, project) == []


@pytest.mark.parametrize(
    ("command", "what", "remedy"),
    [
        (("python", "trian.py"), "no program file trian.py", "train.py"),
        (("python", "other.py"), "no program file other.py", "jobs/other.py"),
        (("python", "jobs/othre.py"), "no program file jobs/othre.py", "jobs/other.py"),
        (("python", "$HOME/train.py"), "no program file $HOME/train.py", "no shell expands"),
        (("python", "-m", "torch.distributed.run", "gone.py"), "no program file gone.py", "the path"),
        (("./gone",), "no program file ./gone", "the path"),
        (("./train.py",), "./train.py is not executable", "chmod +x ./train.py"),
        (("bash", "gone.sh"), "no program file gone.sh", "the path"),
        (("pyhton", "train.py"), "no program 'pyhton' on PATH", "python"),
    ],
)
def test_a_missing_program_is_refused(project: Path, command: tuple[str, ...], what: str, remedy: str) -> None:
    (project / "train.py").write_text("")
    (project / "jobs" / "other.py").write_text("")
    job = resolved(*command, root=project)
    with pytest.raises(SpecError) as caught:
        check_program(job, project)
    assert caught.value.what == what
    assert caught.value.remedy is not None
    assert remedy in caught.value.remedy
    (finding,) = find_missing(job, project)
    assert (finding.code, finding.severity, finding.line, finding.what) == ("KIT601", "error", 0, what)


def test_a_missing_interpreter_names_the_cluster_file(project: Path) -> None:
    (project / "train.py").write_text("")
    job = resolved("python", "train.py", root=project, cluster=Cluster(name="big", python=".venv/bin/python"))
    with pytest.raises(SpecError, match=r"the interpreter \.venv/bin/python does not exist") as caught:
        check_program(job, project)
    assert caught.value.found == f"python of cluster big; looked for {project}/.venv/bin/python"
    assert caught.value.remedy == (
        "write the path of an interpreter: python = '/path/to/python' in the cluster file, or "
        f"--set cluster.python={sys.executable}"
    )
    assert [finding.severity for finding in find_missing(job, project)] == ["error"]
    assert [finding.severity for finding in find_missing(job, project, elsewhere=True)] == ["warning"]


@pytest.mark.parametrize(("module", "missing"), [
    ("mine.train", None), ("mine.sub", None), ("mine.sub.__main__", None), ("alone", None), ("plain.train", None),
    ("dynamic.made", None), ("dynamic", None), ("torch.distributed.run", None), ("json.tool", None), ("pdb", None),
    ("mine.nope", "mine.nope"), ("nope", "nope"), ("nope.train", "nope"), ("mine", "mine.__main__"),
    ("mine.train.py", "mine.train.py"), ("mine/train.py", "mine/train"), ("plain.nope", "plain.nope"),
    ("plain", "plain.__main__"), ("json.nope", "json.nope"), ("plain.inner", None), ("plain.inner.train", None),
])  # fmt: skip
def test_a_module_that_does_not_exist_is_refused(project: Path, module: str, missing: str | None) -> None:
    for name in ("mine/__init__", "mine/train", "mine/sub/__init__", "mine/sub/__main__", "plain/train", "alone",
                 "plain/inner/train", "plain/inner/__main__"):  # fmt: skip
        (project / f"{name}.py").parent.mkdir(parents=True, exist_ok=True)
        (project / f"{name}.py").write_text("raise SystemExit('imported')")
    (project / "dynamic").mkdir()
    (project / "dynamic" / "__init__.py").write_text("import sys\nsys.modules['dynamic.made'] = sys\n")
    found = [finding.what for finding in find_missing(resolved(sys.executable, "-m", module, root=project), project)]
    assert found == ([f"no module {missing}"] if missing else [])
    job = resolved(sys.executable, "-m", module, root=project, setup=("module load mine",))
    assert find_missing(job, project) == []


def test_setup_may_provide_a_program_or_change_the_folder(project: Path) -> None:
    check_program(resolved("special", root=project, setup=("module load special",)), project)
    check_program(resolved("python", "gone.py", root=project, setup=("cd /scratch/x",)), project)


def test_the_program_is_searched_in_the_working_folder_which_must_exist(project: Path) -> None:
    job = resolved("python", "train.py", root=project, chdir="sub")
    assert [finding.code for finding in find_missing(job, project)] == ["KIT601", "KIT602"]
    (project / "sub").mkdir()
    (project / "sub" / "train.py").write_text("")
    assert find_missing(job, project) == []


def test_a_log_folder_that_cannot_be_created_is_found(project: Path) -> None:
    (project / "train.py").write_text("")
    (project / "runs").write_text("a file")
    (finding,) = find_missing(resolved("python", "train.py", root=project), project)
    assert (finding.code, finding.found) == ("KIT603", f"{project / 'runs'} is a file")


def test_a_log_folder_without_write_permission_is_found(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, runs = resolved("true", root=project), project / "runs" / "mine"
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everywhere
    for problem, folder in (("created", project), ("written to", runs)):
        (finding,) = (each for each in find_missing(job, project) if each.code == "KIT603")
        assert (finding.what, finding.found) == (f"{runs} cannot be {problem}", f"no write permission in {folder}")
        runs.mkdir(parents=True, exist_ok=True)


def test_an_unreadable_log_folder_counts_as_missing(project: Path) -> None:
    """As that of another user; here by a name that is too long, which a test as root meets, too."""
    job = Job(name="x", command=("python", "-c", "1"))
    here = Cluster(name="here", python=sys.executable, runs="x" * 300)
    assert find_missing(resolve(load.load(job, here, root=project), root=project), project) == []


def test_a_strict_embedded_slurm_checks_its_partitions(project: Path) -> None:
    (project / "train.py").write_text("")
    embedded = Embedded(partitions=("a", "b"), strict=True)
    cluster = Cluster(name="local", slurm="embedded", python=sys.executable, embedded=embedded)
    check_program(resolved("python", "train.py", root=project, cluster=cluster, partition="a,b"), project)
    with pytest.raises(SpecError, match="no partition 'c'") as caught:
        check_program(resolved("python", "train.py", root=project, cluster=cluster, partition="c"), project)
    assert caught.value.found == "partitions of cluster local: a, b"


def test_the_embedded_slurm_counts_its_nodes(project: Path) -> None:
    (project / "train.py").write_text("")
    cluster = Cluster(name="local", slurm="embedded", python=sys.executable, embedded=Embedded(nodes="v[1-3]"))
    job = Job(name="mine", command=("python", "train.py"), resources=Resources(nodes=3))
    check_program(resolve(load.load(job, cluster, root=project), root=project), project)
    wide = resolve(load.load(job, cluster, set={"resources.nodes": 4}, root=project), root=project)
    with pytest.raises(SpecError, match="more nodes than cluster local has") as caught:
        check_program(wide, project)
    assert caught.value.found == "4 nodes; there are 3: v[1-3]"


def test_a_shipped_job_without_its_program_names_the_command_that_copies_it(project: Path) -> None:
    for root, remedy in ((project, "run hpc-kit init --job single "), (ROOT / "docs", f"run cd {ROOT}")):
        job = resolve(load.load("single", Cluster(name="here", python=sys.executable), root=root), root=root)
        with pytest.raises(SpecError, match=r"no program file jobs/train/ddp\.py") as caught:
            check_program(job, root)
        assert (caught.value.remedy or "").startswith(remedy)


def test_a_program_that_imports_torch_needs_an_interpreter_with_torch(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "train.py").write_text("import os\nfrom torch import nn\n")
    (project / "plain.py").write_text("try:\n    import torch\nexcept ImportError:\n    torch = None\n")
    check_program(resolved("python", "train.py", root=project), project)
    monkeypatch.setitem(sys.modules, "torch", None)
    check_program(resolved("python", "plain.py", root=project), project)
    check_program(resolved("python", "train.py", root=project, setup=("module load pytorch",)), project)
    with pytest.raises(SpecError, match=f"there is no torch for {sys.executable}") as caught:
        check_program(resolved("python", "train.py", root=project), project)
    assert caught.value.found == "train.py imports it"
    assert [finding.code for finding in find_missing(resolved("python", "train.py", root=project), project)] == [
        "KIT606"
    ]


def test_a_program_that_python_cannot_read_is_refused_before_it_waits_in_the_queue(project: Path) -> None:
    (project / "train.py").write_text("import os\nprint(1 +)\n")
    job = resolved("python", "train.py", root=project)
    with pytest.raises(SpecError, match=r"train\.py, line 2: invalid syntax") as caught:
        check_program(job, project)
    assert caught.value.found == "print(1 +)"
    assert [finding.code for finding in find_missing(job, project)] == ["KIT609"]
    (project / "train.py").write_text("# -*- coding: nonsense -*-\n")
    with pytest.raises(SpecError, match=r"train\.py: unknown encoding: nonsense"):
        check_program(job, project)
    # Another release of Python may read it.
    other = Cluster(name="there", python="/usr/bin/python3")
    assert find_missing(resolved("python", "train.py", root=project, cluster=other), project) == []


INIT = "import os\nimport torch.distributed as dist\ndef main():\n    {}\nmain()\n"


def test_a_program_of_plain_torch_needs_variables_that_srun_does_not_set(project: Path) -> None:
    (project / "train.py").write_text(INIT.format("dist.init_process_group('gloo')"))
    with pytest.raises(SpecError, match="needs RANK and WORLD_SIZE, and nothing sets them") as caught:
        check_program(resolved("python", "train.py", root=project), project)
    assert caught.value.found == ("train.py, line 4: init_process_group without a rank; launch.bootstrap = false")
    for launch in (Launch(bootstrap=True), Launch(launcher="torchrun")):
        check_program(resolved("python", "train.py", root=project, launch=launch), project)
    check_program(resolved("python", "train.py", root=project, setup=("export RANK=$SLURM_PROCID",)), project)


@pytest.mark.parametrize(
    "line",
    [
        "dist.init_process_group('gloo', rank=0, world_size=1, store=dist.HashStore())",
        "dist.init_process_group('gloo', 'tcp://localhost:2950')",
        "if 'RANK' in os.environ: dist.init_process_group('gloo')",
        "if 'WORLD_SIZE' not in os.environ: return\n    dist.init_process_group('gloo')",
        "dist.init_process_group('mpi')",
        "os.environ |= {f'{name}_SIZE': '1' for name in ['WORLD']}; dist.init_process_group('gloo')",
        "os.environ['RANK'] = '0'; dist.init_process_group('gloo')",
        "rank = os.environ['SLURM_PROCID']; dist.init_process_group('gloo')",
        "import lightning; dist.init_process_group('gloo')",
        "from setup import ranks; dist.init_process_group('gloo')",
    ],
)
def test_a_program_that_may_know_its_rank_is_left_alone(project: Path, line: str) -> None:
    (project / "train.py").write_text(INIT.format(line))
    check_program(resolved("python", "train.py", root=project), project)


@pytest.mark.parametrize(
    ("job", "name", "found", "remedy"),
    [
        ("ray_4node", "ray", "imports it", "-m pip install -r env/requirements-ray.txt"),
        ("ray_4node", "pydantic", "imports ray.train, which needs it", "-m pip install -r env/requirements-ray.txt"),
        ("horovod_4node", "horovod", "imports it", "env/build_horovod.sh "),
    ],
)
def test_a_missing_ray_or_horovod_is_found_before_submission(
    job: str, name: str, found: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda each: None if each == name else there("json"))
    with pytest.raises(SpecError, match=rf"there is no {name} for \S*python") as caught:
        check_program(resolve(load.load(job, "slurm", root=ROOT), root=ROOT), ROOT)
    assert (caught.value.found or "").endswith(found)
    assert remedy in (caught.value.remedy or "")


def test_a_missing_mpi_is_found_before_submission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path / "no-such-folder"))
    monkeypatch.setattr(sys, "executable", str(python))
    there = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda each: None if each == "mpi4py" else there(each))
    cluster = Cluster(name="here", python=str(python), slurm="embedded")
    job = resolve(load.load("ddp_mpi_backend", cluster, root=ROOT), root=ROOT)
    found = [finding for finding in find_missing(job, ROOT) if finding.code == "KIT608"]
    assert [finding.what for finding in found] == [
        "there is no mpirun on this machine",
        f"there is no mpi4py for {python}",
    ]
    assert "apt-get install openmpi-bin" in found[0].remedy
    (python.parent / "mpirun").symlink_to("/bin/true")
    assert len([finding for finding in find_missing(job, ROOT) if finding.code == "KIT608"]) == 1
