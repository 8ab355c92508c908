"""`hpc-kit doctor`: what a machine has, what works, and what is missing for which command."""

from __future__ import annotations

import json
import os
from importlib import metadata
from pathlib import Path

import pytest

from hpc_kit.check import installation
from hpc_kit.check.installation import InstalledPart, inspect_installation
from tests.cli.conftest import Kit, kit
from tests.runs.conftest import slurm
from tests.runs.fake import FakeSlurm

__all__ = ["kit", "slurm"]


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment in which PATH has one empty folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    return {"PATH": str(folder), "HOME": str(tmp_path)}


def add(environ: dict[str, str], name: str, text: str, status: int = 0) -> None:
    program = Path(environ["PATH"], name)
    program.write_text(f"#!/bin/sh\n/bin/cat <<'END'\n{text}\nEND\nexit {status}\n")
    program.chmod(0o755)


def part(environ: dict[str, str], name: str) -> InstalledPart:
    return next(each for each in inspect_installation(environ) if each.name == name)


@pytest.fixture(autouse=True)
def torch_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the process with torch prints, without the seconds of its import."""
    monkeypatch.setattr(installation, "_TORCH", 'import enum; print(\'["2.9.0+cpu", null, [], ["gloo"]]\')')


def test_a_bare_machine_names_the_line_to_type(bare: dict[str, str]) -> None:
    parts = {each.name: each for each in inspect_installation(bare)}
    assert parts["python"].state == "ok"
    assert parts["slurm"].state == "none"
    assert "embedded Slurm" in parts["slurm"].found
    assert (parts["shellcheck"].state, parts["shellcheck"].remedy) == ("missing", "apt-get install shellcheck")
    assert parts["containers"].found == "none on PATH"


def test_torch_is_asked_in_another_process(bare: dict[str, str]) -> None:
    assert part(bare, "torch") == InstalledPart(
        "torch", "ok", "2.9.0+cpu; backends gloo", "the training programs, bench"
    )


def test_torch_does_not_import_files_of_the_current_folder(
    bare: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "enum.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.chdir(tmp_path)
    assert part(bare, "torch").state == "ok"


def test_a_torch_that_sees_no_gpu_is_broken(bare: dict[str, str]) -> None:
    add(bare, "nvidia-smi", "NVIDIA A100-SXM4-40GB, 40960 MiB, 550.54\nNVIDIA A100-SXM4-40GB, 40960 MiB, 550.54")
    assert part(bare, "gpus").found == "2 x NVIDIA A100-SXM4-40GB, 40960 MiB, 550.54"
    found = part(bare, "torch")
    assert found.state == "broken"
    assert "built without CUDA" in found.found


def test_a_torch_whose_import_fails_is_broken(bare: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "_TORCH", "raise ImportError('libcudart.so.12: cannot open')")
    found = part(bare, "torch")
    assert (found.state, found.found) == ("broken", "ImportError: libcudart.so.12: cannot open")


def test_an_environment_without_torch(bare: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "torch":
            raise metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(metadata, "version", version)
    assert part(bare, "torch").remedy == "pip install torch"


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs", "mpirun (Open MPI) 4.1.4"),
        ("HYDRA build details:\n    Version:              4.0.2\n    CC: gcc", "Hydra (MPICH) 4.0.2"),
    ],
)
def test_mpirun_names_its_mpi(bare: dict[str, str], answer: str, found: str) -> None:
    add(bare, "mpirun", answer)
    assert part(bare, "mpirun").found == found


def test_a_driver_that_fails_is_broken(bare: dict[str, str]) -> None:
    add(bare, "nvidia-smi", "NVIDIA-SMI has failed", status=9)
    assert part(bare, "gpus").state == "broken"


def test_a_slurm_that_answers(slurm: FakeSlurm) -> None:
    slurm.write("sinfo.out", "main*\nbig\n")
    found = {each.name: each for each in inspect_installation(slurm.environ(os.environ))}
    assert found["slurm"].state == "ok"
    assert "2 partitions" in found["slurm"].found
    assert found["accounting"].state == "none"


def test_the_command_prints_a_table_or_json(kit: Kit, project: Path) -> None:
    done = kit("doctor", "--json")
    names = {each["name"] for each in json.loads(done.stdout)}
    assert {"python", "torch", "slurm", "gpus", "mpirun", "containers", "shellcheck"} <= names
    assert kit("doctor").stdout.startswith("python ")
