"""Inspects the programs and libraries of this machine: whether they work, and which command of hpc-kit uses them."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Literal, NamedTuple

from hpc_kit import __version__
from hpc_kit.errors import SlurmUnavailable
from hpc_kit.slurm.client import PROBE_SECONDS, has_slurm, is_embedded, run_command
from hpc_kit.slurm.cluster_identity import find_command

if TYPE_CHECKING:
    from collections.abc import Mapping

TORCH_SECONDS = 90.0
"""Time limit for the import of torch: a cold file system is slow."""

_TORCH = """
import json, torch
gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
backends = [name for name in ("gloo", "nccl", "mpi") if getattr(torch.distributed, f"is_{name}_available")()]
print(json.dumps([torch.__version__, torch.version.cuda or torch.version.hip, gpus, backends]))
"""

State = Literal["ok", "none", "missing", "broken"]
"""none: this machine does not have the thing, and needs none. missing: a command needs it. broken: it does not work."""


class InstalledPart(NamedTuple):
    """One part of the installation.

    Args:
        name: Its name.
        state: Whether it works.
        found: Version and place, or the fault.
        used_by: The commands that need it, or that work better with it.
        remedy: The line to type if it is missing or broken.
    """

    name: str
    state: State
    found: str
    used_by: str = ""
    remedy: str = ""


def inspect_installation(environ: Mapping[str, str]) -> list[InstalledPart]:
    """Return all parts, in the order of their importance. torch is imported by another process meanwhile."""
    # The import takes seconds: the other parts are inspected while it runs.
    torch = _start_torch(environ)
    gpus = _gpus(environ)
    parts = [*_slurm(environ), gpus, _mpi(environ), _containers(environ)]
    parts += [_program(environ, *row) for row in _PROGRAMS]
    parts += [_package(*row) for row in _PACKAGES]
    return [_python(), _torch(torch, has_gpus=gpus.state == "ok"), *parts]


_PROGRAMS = (
    ("shellcheck", "check, for faults of the shell", "apt-get install shellcheck"),
    ("ssh", "launch", "apt-get install openssh-client"),
    ("git", "submit, for the record of the code", "apt-get install git"),
)
_PACKAGES = (
    ("matplotlib", "bench, for plots", "pip install matplotlib"),
    ("mpi4py", 'backend = "mpi"', "pip install mpi4py"),
)


def _python() -> InstalledPart:
    return InstalledPart(
        "python", "ok", f"{platform.python_version()}, {sys.executable}; hpc_kit {__version__}", "everything"
    )


def _start_torch(environ: Mapping[str, str]) -> subprocess.Popen[str] | None:
    try:
        metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _TORCH],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=dict(environ),
    )


def _torch(process: subprocess.Popen[str] | None, *, has_gpus: bool) -> InstalledPart:
    used = "the training programs, bench"
    if process is None:
        return InstalledPart("torch", "missing", "not in this environment", used, "pip install torch")
    try:
        out, err = process.communicate(timeout=TORCH_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return InstalledPart(
            "torch", "broken", f"no import within {TORCH_SECONDS:g} s", used, "python -X importtime -c 'import torch'"
        )
    try:
        version, toolkit, gpus, backends = json.loads(out)
    except ValueError:
        last = (err.strip().splitlines() or ["the import fails"])[-1]
        return InstalledPart("torch", "broken", last, used, "pip install --force-reinstall torch")
    text = f"{version}, {len(gpus)} GPUs" if gpus else str(version)
    text += f"; backends {', '.join(backends)}"
    if has_gpus and not gpus:
        why = (
            "it was built without CUDA"
            if toolkit is None
            else "it sees no GPU: CUDA_VISIBLE_DEVICES, or the driver is too old"
        )
        return InstalledPart(
            "torch", "broken", f"{text}; {why}", used, "pip install the build for your driver: https://pytorch.org"
        )
    return InstalledPart("torch", "ok", text, used)


def _slurm(environ: Mapping[str, str]) -> list[InstalledPart]:
    from hpc_kit.slurm.versions import detect_version

    embedded = "submit, status, logs; without a Slurm they use the embedded one (--cluster local)"
    if is_embedded(environ):
        return [InstalledPart("slurm", "ok", "the embedded Slurm, inside one of its jobs", embedded)]
    try:
        here = has_slurm(environ)
    except SlurmUnavailable as error:
        return [InstalledPart("slurm", "broken", error.found or error.what, embedded, "scontrol ping")]
    if not here:
        lost = find_command("sbatch", environ) is not None
        found = "its commands have no configuration here" if lost else "none here"
        return [InstalledPart("slurm", "none", f"{found}: jobs run on the embedded Slurm", embedded)]
    version = detect_version(environ)
    answer = _run(["sinfo", "--noheader", "--format=%P"], environ)
    if answer is None:
        return [
            InstalledPart(
                "slurm", "broken", f"{version or 'Slurm'}: the controller does not answer", embedded, "scontrol ping"
            )
        ]
    count = len(set(answer.split()))
    parts = [
        InstalledPart("slurm", "ok", f"{version or 'unknown version'}, {count} partition{'s' * (count != 1)}", embedded)
    ]
    # A site without slurmdbd has sacct, too, but it fails.
    booked = _run(["sacct", "--noheader", "--starttime=now", "--format=JobID"], environ)
    used = "status and why, for jobs that ended long ago"
    if booked is None:
        return [*parts, InstalledPart("accounting", "none", "sacct does not answer", used)]
    return [*parts, InstalledPart("accounting", "ok", "sacct answers", used)]


def _gpus(environ: Mapping[str, str]) -> InstalledPart:
    used = "training on GPUs"
    queries = (
        ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"),
        ("rocm-smi", "--showproductname", "--csv"),
    )
    for argv in queries:
        if find_command(argv[0], environ) is None:
            continue
        answer = _run(argv, environ)
        if answer is None:
            return InstalledPart("gpus", "broken", f"{argv[0]} fails: no driver, or no GPU on this node", used, argv[0])
        # rocm-smi has no option to leave out the header of its CSV.
        lines = [line for line in answer.splitlines() if line.strip() and not line.startswith("device,")]
        return InstalledPart(
            "gpus", "ok" if lines else "none", f"{len(lines)} x {lines[0]}" if lines else "none here", used
        )
    return InstalledPart("gpus", "none", "none here (no nvidia-smi, no rocm-smi)", used)


def _mpi(environ: Mapping[str, str]) -> InstalledPart:
    used = "launcher = 'mpirun'"
    answer = _run(["mpirun", "--version"], environ) if find_command("mpirun", environ) else None
    if answer is None:
        return InstalledPart(
            "mpirun", "none", "not on PATH; many sites have it as a module", used, "module avail openmpi mpich"
        )
    first = next((" ".join(line.split()) for line in answer.splitlines() if re.search(r"\d+\.\d+", line)), "mpirun")
    if "HYDRA" in answer:  # MPICH's: a table that begins with `Version:`
        first = f"Hydra (MPICH) {first.removeprefix('Version: ')}"
    return InstalledPart("mpirun", "ok", first, used)


def _containers(environ: Mapping[str, str]) -> InstalledPart:
    tools = [name for name in ("apptainer", "singularity", "enroot", "podman") if find_command(name, environ)]
    if find_command("srun", environ) and "--container-image" in (_run(["srun", "--help"], environ) or ""):
        tools.append("pyxis")
    return InstalledPart(
        "containers", "ok" if tools else "none", ", ".join(tools) or "none on PATH", "[environment] of a cluster"
    )


def _program(environ: Mapping[str, str], name: str, used: str, remedy: str) -> InstalledPart:
    path = find_command(name, environ)
    return (
        InstalledPart(name, "ok", path, used) if path else InstalledPart(name, "missing", "not on PATH", used, remedy)
    )


def _package(name: str, used: str, remedy: str) -> InstalledPart:
    try:
        return InstalledPart(name, "ok", metadata.version(name), used)
    except metadata.PackageNotFoundError:
        return InstalledPart(name, "missing", "not in this environment", used, remedy)


def _run(argv: list[str] | tuple[str, ...], environ: Mapping[str, str]) -> str | None:
    """Return the output of a command; None if it fails or does not answer."""
    try:
        answer = run_command(argv, timeout=PROBE_SECONDS, environ=environ)
    except SlurmUnavailable:
        return None
    return answer.stdout if answer.returncode == 0 else None
