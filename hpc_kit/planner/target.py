"""The machine to plan for: a cluster file, a machine by name, or both with numbers from the command line."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct, structs

from hpc_kit.errors import SpecError
from hpc_kit.planner import calibration, hardware
from hpc_kit.planner.calibration import Measurement
from hpc_kit.planner.case_cells import FRAMEWORK, normalize_word
from hpc_kit.planner.constants import Constants, constants_for
from hpc_kit.planner.hardware import Machine
from hpc_kit.spec import load, search_path
from hpc_kit.spec.cluster import Cluster, Node

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
    key = normalize_word(name)
    if key in SPELLINGS:
        return SPELLINGS[key]
    raise hardware.unknown_name_error("framework", name, key, FRAMEWORK, "torch: in general")


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
    """Return the machine of a cluster: a cluster file by name or path, or a machine of `hardware.toml`.

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
    machine, probed, notes = _resolve_machine(cluster, root, gpu, gpus_per_node)
    if network is not None:
        if not 0 < network < 1e5:
            raise SpecError("--network is out of range", found=f"{network:g}", remedy="Gb/s for each GPU, such as 200")
        machine = structs.replace(machine, network=network * 1e9 / 8)
    fitted = constants_for(framework, machine.gpu.generation, machine.fabric)
    if probed is not None and gpu is None:
        if network is not None:
            probed = structs.replace(probed, network=None, latency_network=None)
        machine, fitted = calibration.apply_measurement(probed, machine, fitted)
        notes = (*notes, f"links as measured by cluster discover --probe, in {cluster}")
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
) -> tuple[Machine, Measurement | None, tuple[str, ...]]:
    known = search_path.file_names("env", root, ".toml")
    if cluster in hardware.machine_names() and cluster not in known:
        machine = hardware.find_machine(cluster)
        card, note = hardware.match_gpu(gpu) if gpu else (machine.gpu, "")
        machine = structs.replace(machine, gpu=card, gpus_per_node=per_node or machine.gpus_per_node)
        return machine, None, tuple(filter(None, (f"{cluster}: built-in figures", note)))
    try:
        profile = load.load_cluster(cluster, root=root)
    except SpecError as error:
        raise SpecError(
            error.what,
            found=error.found,
            remedy=f"{error.remedy};\nor a machine: {', '.join(hardware.machine_names())}",
        ) from error
    return _machine_of_cluster(profile, gpu, per_node)


def _machine_of_cluster(
    profile: Cluster, gpu: str | None, per_node: int | None
) -> tuple[Machine, Measurement | None, tuple[str, ...]]:
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
    card, note = hardware.match_gpu(kind)
    notes = [note] if note else []
    if not gpus:
        gpus = 8
        notes.append("8 GPUs a node are assumed: [node] gpus, or --gpus-per-node")
    if node.network is None:
        speed = card.usual_network
        if not node.network_beta:
            notes.append(f"{speed * 8 / 1e9:g} Gb/s of network a GPU are assumed: [node] network, or --network")
    else:
        # The cluster file has the Gb/s of a whole node.
        speed = node.network * 1e9 / 8 / gpus
    fabric = node.fabric or ("ethernet" if card.generation == "cpu" else "infiniband")
    machine = Machine(gpu=card, gpus_per_node=gpus, network=speed, fabric=fabric)
    return machine, _measured_links(node), tuple(notes)


def _measured_links(node: Node) -> Measurement | None:
    """Return the links that `cluster discover --probe` has measured; None without them."""
    found = Measurement(
        link=1 / node.link_beta if node.link_beta else None,
        latency=node.link_alpha,
        network=1 / node.network_beta if node.network_beta else None,
        latency_network=node.network_alpha,
    )
    return found if found != Measurement() else None
