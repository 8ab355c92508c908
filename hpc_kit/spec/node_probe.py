"""Asks a node, in a small job, about its network cards and the links between its GPUs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from hpc_kit.errors import SlurmUnavailable
from hpc_kit.slurm.client import SlurmClient
from hpc_kit.spec.discovery import Fact

SECONDS = 600.0
"""Longest wait for the job, with its time in the queue."""

PROBE_ARGV = ("srun", "--time=5", "--job-name=hpc-kit-probe")

SOURCE = "srun, on a node"

_FABRICS = {"hfi1": "omnipath", "efa": "efa"}
"""Fabrics whose ports have the driver interface of InfiniBand."""

PROGRAM = r"""
import glob, json, os, re, subprocess

def read(path):
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""

interfaces, slingshot = {}, False
for path in glob.glob("/sys/class/net/*"):
    if read(path + "/operstate") == "up":
        # Bridges, containers and bonds have no card of their own.
        speed = read(path + "/speed") if os.path.exists(path + "/device") else ""
        interfaces[os.path.basename(path)] = int(speed) if speed.isdigit() else None
        slingshot |= os.path.basename(os.path.realpath(path + "/device/driver")).startswith("cxi")
ports = []
for path in glob.glob("/sys/class/infiniband/*/ports/*"):
    if "ACTIVE" in read(path + "/state"):
        rate = re.match(r"\d+", read(path + "/rate"))
        driver = os.path.basename(os.path.realpath(path + "/../../device/driver"))
        ports.append([driver, read(path + "/link_layer"), int(rate[0]) if rate else 0])
try:
    topology = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=60).stdout
except (OSError, subprocess.TimeoutExpired):
    topology = ""
nvlinks = [int(count) for count in re.findall(r"\bNV(\d+)\b", topology)]
found = {"interfaces": interfaces, "slingshot": slingshot, "ports": ports, "nvlinks": max(nvlinks, default=0)}
print(json.dumps(found))
"""
"""Runs with any Python 3 of the node. A card without InfiniBand's driver, such as Slingshot's, is an interface."""


def probe_node(client: SlurmClient, options: Sequence[str]) -> tuple[Fact, ...]:
    """Run the probe on one node, and return its facts.

    `options` are options of srun, such as `--partition=gpu`.
    """
    # The interpreter of a login node may not exist on the nodes of a cluster.
    python = sys.executable if client.embedded else "python3"
    answer = client.run(
        [*PROBE_ARGV, "--nodes=1", "--ntasks=1", *options, python, "-I", "-c", PROGRAM], timeout=SECONDS
    )
    lines = answer.stdout.strip().splitlines()
    try:
        # Prologs of sites print lines before it.
        found = json.loads(lines[-1]) if answer.returncode == 0 and lines else None
    except ValueError:
        found = None
    if found is None:
        raise SlurmUnavailable(
            "the probe did not run on a node",
            found=answer.stderr.strip()[-500:] or f"srun ended with {answer.returncode}",
            remedy="add the options that a job needs here: --srun=--account=NAME --srun=--partition=NAME",
        )
    return tuple(_facts(found))


def _facts(found: dict[str, Any]) -> Iterator[Fact]:
    interfaces = {name: speed for name, speed in found["interfaces"].items() if name != "lo"}
    if interfaces:
        yield Fact(("node", "interfaces"), sorted(interfaces), SOURCE)
    # NCCL prefers ports with the driver of InfiniBand, also RoCE, to all other cards.
    rates: dict[str, int] = {}
    for driver, layer, rate in found["ports"]:
        fabric = _FABRICS.get(driver) or ("infiniband" if layer == "InfiniBand" else "ethernet")
        rates[fabric] = rates.get(fabric, 0) + rate
    # Nodes with InfiniBand often have a port of Ethernet, too, for their administration.
    usual = "slingshot" if found["slingshot"] else "ethernet"
    fabric = next((each for each in ("infiniband", "omnipath", "efa", "ethernet") if rates.get(each)), usual)
    speeds = [speed or 0 for speed in interfaces.values()]
    # Slingshot's cards are four interfaces of the same speed; a slower one is for the administration.
    total = rates.get(fabric, 0) or sum(speed for speed in speeds if speed == max(speeds)) // 1000
    if total:
        yield Fact(("node", "network"), total, SOURCE)
        yield Fact(("node", "fabric"), fabric, SOURCE)
    if found["nvlinks"]:
        yield Fact(("node", "nvlinks"), found["nvlinks"], SOURCE)
