"""The machine to plan for: a cluster file, a machine by name, or both with numbers from the command line."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct, structs

from hpc_kit.errors import SpecError
from hpc_kit.planner import calibration, hardware
from hpc_kit.planner.case_cells import FRAMEWORK, normalize_word
from hpc_kit.planner.constants import Constants, constants_for
from hpc_kit.planner.hardware import Machine
from hpc_kit.spec import load, search_path
from hpc_kit.spec.cluster import Cluster

SPELLINGS = {normalize_word(word): name for name, others in FRAMEWORK.items() for word in (name, *others)}
"""Frameworks by each spelling; `torch` uses the general constants."""


class PlanningTarget(Struct, frozen=True):
    """A machine with its constants, and notes on the origin of its numbers."""

    machine: Machine
    fitted: Constants
    notes: tuple[str, ...]


def parse_framework(name: str) -> str:
    """Return a framework by any spelling; case, `-`, `_`, `.` and blanks are ignored.

    Raises:
        SpecError: No such framework; near matches.
    """
    from difflib import get_close_matches

    key = normalize_word(name)
    if key in SPELLINGS:
        return SPELLINGS[key]
    near = dict.fromkeys(SPELLINGS[word] for word in get_close_matches(key, SPELLINGS, n=3, cutoff=0.6))
    raise SpecError(
        f"no framework '{name}'",
        found=f"known: {', '.join(FRAMEWORK)}",
        remedy=(" or ".join(f"--framework {one}" for one in near) + ";\n" if near else "") + "torch: in general",
    )


def measured_file(cluster: str, root: Path) -> Path:
    """Return the path of the measured numbers of a cluster."""
    return root / "env" / f"{Path(cluster).stem}.measured.json"


def resolve_target(
    cluster: str,
    root: Path,
    *,
    framework: str,
    gpu: str | None = None,
    gpus_per_node: int | None = None,
    network: float | None = None,
    measurement: Path | None = None,
) -> PlanningTarget:
    """Return the machine of a cluster.

    Args:
        cluster: A cluster file's name or path, or a machine of `hardware.toml`.
        root: The user's project.
        framework: Selects the calibrated constants; a name that `parse_framework` returns.
        gpu: Replaces the cluster's GPU.
        gpus_per_node: Replaces the cluster's number.
        network: Gb/s for each GPU; replaces the cluster's.
        measurement: File of measured numbers; None: the cluster's file if it exists.

    Raises:
        SpecError: The cluster is unknown, or its file does not contain its GPUs.
    """
    machine, notes = _resolve_machine(cluster, root, gpu, gpus_per_node)
    if network is not None:
        if not 0 < network < 1e5:
            raise SpecError("--network is out of range", found=f"{network:g}", remedy="Gb/s for each GPU, such as 200")
        machine = structs.replace(machine, network=network * 1e9 / 8)
    fitted = constants_for(framework, machine.gpu.generation, machine.fabric)
    path = measurement or measured_file(cluster, root)
    if measurement is not None or path.exists():
        found = calibration.read_measurement(path)
        own = calibration.select_for_gpu(found, machine.gpu)
        machine, fitted = calibration.apply_measurement(own, machine, fitted)
        links = "" if own == found else f", the links alone: its GPU is {found.gpu}, not {machine.gpu.name}"
        notes = (*notes, f"measured numbers from {search_path.display_path(path, root)}{links}")
    return PlanningTarget(machine, fitted, notes)


def _resolve_machine(
    cluster: str, root: Path, gpu: str | None, per_node: int | None
) -> tuple[Machine, tuple[str, ...]]:
    known = search_path.file_names("env", root, ".toml")
    if cluster in hardware.machine_names() and cluster not in known:
        machine = hardware.find_machine(cluster)
        if gpu:
            machine = structs.replace(machine, gpu=hardware.find_gpu(gpu))
        notes = [f"{cluster}: built-in figures", *_similar_gpu_note(gpu)]
        return structs.replace(machine, gpus_per_node=per_node or machine.gpus_per_node), tuple(notes)
    try:
        profile = load.load_cluster(cluster, root=root)
    except SpecError as error:
        raise SpecError(
            error.what,
            found=error.found,
            remedy=f"{error.remedy};\nor a machine: {', '.join(hardware.machine_names())}",
        ) from error
    return _machine_of_cluster(profile, gpu, per_node)


def _similar_gpu_note(kind: str | None) -> list[str]:
    """Return a note if a GPU's name matches a row only approximately."""
    other = hardware.matched_name(kind) if kind else ""
    return [other] if other else []


def _machine_of_cluster(profile: Cluster, gpu: str | None, per_node: int | None) -> tuple[Machine, tuple[str, ...]]:
    node = profile.for_partition(profile.defaults.partition).node
    # On nodes without GPUs, each core is one rank.
    gpus = per_node or node.gpus or (node.cpus if node.gpus == 0 else None)
    kind = gpu or ("cpu" if node.gpus == 0 else node.gpu)
    if kind is None:
        raise SpecError(
            f"cluster {profile.name} does not say what its GPUs are",
            found=f"[node] gpu, in its file; known GPUs: {', '.join(hardware.gpu_names())}",
            remedy="[node] gpu = 'a100-80g' and gpus = 8 there, or --gpu a100-80g --gpus-per-node 8,\n"
            f"or a machine: --cluster {hardware.machine_names()[0]}",
        )
    card = hardware.find_gpu(kind)
    notes = _similar_gpu_note(kind)
    if not gpus:
        gpus = 8
        notes.append("8 GPUs a node are assumed: [node] gpus, or --gpus-per-node")
    if node.network is None:
        speed = hardware.usual_network(card)
        notes.append(f"{speed * 8 / 1e9:g} Gb/s of network a GPU are assumed: [node] network, or --network")
    else:
        # The cluster file has the Gb/s of a whole node.
        speed = node.network * 1e9 / 8 / gpus
    fabric = node.fabric or ("ethernet" if card.generation == "cpu" else "infiniband")
    return Machine(gpu=card, gpus_per_node=gpus, network=speed, fabric=fabric), tuple(notes)
