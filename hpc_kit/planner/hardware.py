"""GPUs and machines by name, from `hardware.toml`: data sheets, links inside a node, network between nodes."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpc_kit.errors import SpecError

GIB = 2.0**30

USUAL_CARDS = {
    "a100": "a100-80g",
    "a100-pcie": "a100-pcie-80g",
    "v100": "v100-32g",
    "v100-pcie": "v100-pcie-32g",
    "gh200": "gh200-96g",
}
"""Row of a family if a name has no memory size; families without an entry: their first row."""
ALIASES = {
    "gh200-120g": "gh200-96g",
    "gh200-480g": "gh200-96g",
    "mi250-128g": "mi250-64g",
    "mi250x-128g": "mi250x-64g",
    "mi300": "mi300x",
    "mi300-192g": "mi300x-192g",
}
"""Other names of a row. Those of GH200 have the size of the processor's memory, those of MI250 that of both dies."""
VISIBLE_SHARE = 0.99
"""Share of a card's nominal memory that its driver shows."""
IGNORED_PARTS = re.compile(r"^(nvidia|tesla|amd|instinct|sxm\d?|hbm\d?e?|oam|nvl\d+|dgxs?|hgx|vf|h)$")
"""Parts of a driver's name that do not distinguish rows."""
MISSING_SEPARATOR = re.compile(r"(?<=\d)(?=(?:sxm|pcie|nvl|hbm))")
"""Places where names lack a separator: `h100sxm`, `gb200nvl72`."""
PCIE_BANDWIDTH = {3: 16e9, 4: 32e9, 5: 64e9, 6: 128e9}
"""Bytes/s, each way, of 16 lanes of each generation."""
PCIE_GENERATION = {"p100": 3, "v100": 3, "h100": 5, "h20": 5, "b200": 5, "mi300x": 5, "mi355x": 5}
"""Generation of PCIe by generation of GPU, unless 4."""
HOST_MEMORY_BANDWIDTH = 100e9
"""Bytes/s of a node's own memory in an update by its CPUs: about half of what two sockets have."""
HARDWARE_FILE = Path(__file__).with_name("hardware.toml")


@cache
def _hardware_tables() -> dict[str, dict[str, dict[str, Any]]]:
    return tomllib.loads(HARDWARE_FILE.read_text(encoding="utf-8"))


def machine_names() -> tuple[str, ...]:
    """Return all machines that need no cluster file."""
    return tuple(_hardware_tables()["machine"])


def find_machine(name: str) -> Machine:
    """Return a machine by its name; raises KeyError if unknown."""
    row = _hardware_tables()["machine"][name]
    return Machine(
        gpu=find_gpu(row["gpu"]),
        gpus_per_node=row["gpus_per_node"],
        network=row["network"] * 1e9 / 8,
        fabric=row["fabric"],
    )


def gpu_names() -> tuple[str, ...]:
    """Return the names of all GPUs."""
    return tuple(_hardware_tables()["gpu"])


def normalize_gpu_name(name: str) -> str:
    """Return a card's name as in the table: `NVIDIA A100 80GB PCIe` becomes `a100-pcie-80g`."""
    words = re.split(r"[\s_-]+", MISSING_SEPARATOR.sub("-", name.lower()))
    parts = [part for part in words if part and not IGNORED_PARTS.match(part)]
    # Rows end with the memory size: A100-SXM4-80GB, A100 80GB PCIe.
    sizes = [found[1] + "g" for part in parts if (found := re.fullmatch(r"(\d+)gi?b?", part))]
    key = "-".join([part for part in parts if not re.fullmatch(r"\d+gi?b?", part)] + sizes)
    return ALIASES.get(key, key)


def memory_bytes(card: Gpu) -> float:
    """Return the bytes of a GPU's memory, or of its family's usual card if unknown."""
    return card.memory or find_gpu(card.name).memory


def _row_name(key: str, *, exact: bool) -> str:
    """Return the row of a normalized name, or of its family's usual card; "" if there is none."""
    table = _hardware_tables()["gpu"]
    family = [known for known in table if known.startswith(f"{key}-")]
    if family and not (exact and key in table):
        return USUAL_CARDS.get(key, family[0])
    return key if key in table else ""


def find_gpu(name: str, *, allow_similar: bool = False) -> Gpu:
    """Return a GPU by its name, as `match_gpu` does."""
    return match_gpu(name, allow_similar=allow_similar)[0]


@cache
def match_gpu(name: str, *, allow_similar: bool = False) -> tuple[Gpu, str]:
    """Return a GPU by its name, and a note if the name matches a row only approximately.

    A family such as `h100` means its usual card. A name with another memory size matches a row of the same card, with
    that size. The last parts of the name are left out until a row matches; rows with the same memory size come first.

    Args:
        name: Name in the table or of the driver, or a data sheet.
        allow_similar: Prefer a family's own row, and ignore unknown words.

    Raises:
        SpecError: No row matches, the name means a slice of a card, or it has unknown words.
    """
    if ":" in name:
        return parse_data_sheet(name), ""
    table, key = _hardware_tables()["gpu"], normalize_gpu_name(name)
    if row := _row_name(key, exact=allow_similar):
        return _make_gpu(row, table[row]), ""
    parts = key.split("-")
    size = f"{parts.pop().removesuffix('g')}g" if re.fullmatch(r"[1-9]\d{0,3}g?", parts[-1]) else ""
    ignored: list[str] = []
    # A MIG slice has a part of the card's processors and memory, so the card's row would be wrong.
    while parts and "mig" not in parts and (allow_similar or not ignored):
        known = "-".join(parts)
        same_size = [each for each in table if size and each.startswith(f"{known}-") and each.endswith(f"-{size}")]
        if row := same_size[0] if same_size else _row_name(known, exact=allow_similar):
            values, note = table[row], f"gpu '{name}' as {row}"
            if size and not same_size:
                values = {**values, "memory": float(size[:-1]) * VISIBLE_SHARE}
                note += f" with {values['memory']:.1f} GiB"
            return _make_gpu(row, values), f"{note}, ignoring '{'-'.join(ignored)}'" if ignored else note
        ignored.insert(0, parts.pop())
    raise unknown_name_error(
        "GPU",
        name,
        key or name.lower(),
        table,
        f"or describe it: --gpu '{name}:memory=80,memory_tb=2.0,tflops=312,link=300'",
    )


def _make_gpu(name: str, row: Mapping[str, Any]) -> Gpu:
    """Return the GPU of a row in the units of `hardware.toml`."""
    return Gpu(
        name=name,
        memory=row["memory"] * GIB,
        bandwidth=row["memory_tb"] * 1e12,
        flops=row["tflops"] * 1e12,
        flops8=row.get("tflops8", 0) * 1e12,
        link=row["link"] * 1e9,
        units=int(row.get("units", 120)),
        generation=row.get("generation", name),
        measured=row.get("measured", 0.8),
        bf16=row.get("bf16", True),
        usual_network=row.get("network", 200) * 1e9 / 8,
    )


def parse_data_sheet(text: str) -> Gpu:
    """Parse a GPU's data sheet: `name:memory=80,memory_tb=2.0,tflops=312,link=300`.

    Raises:
        SpecError: A number is missing, unknown or invalid.
    """
    name, _, rest = text.partition(":")
    given: dict[str, float] = {}
    for key, _, value in (pair.strip().partition("=") for pair in rest.split(",")):
        try:
            given[key] = float(value)
        except ValueError:
            given[key] = -1.0
        if key not in DATA_SHEET or not 0 < given[key] < 1e9:
            raise SpecError(
                f"--gpu cannot read '{key}={value}'",
                found=text,
                remedy=f"positive numbers for {', '.join(DATA_SHEET)}: memory=80",
            )
    missing = [key for key in ("memory", "memory_tb", "tflops", "link") if key not in given]
    if missing:
        raise SpecError(f"--gpu lacks {', '.join(missing)}", found=text, remedy="its data sheet: memory in GiB, TB/s")
    return _make_gpu(name or "gpu", given)


DATA_SHEET = ("memory", "memory_tb", "tflops", "tflops8", "link", "units")
"""Numbers of a described GPU, in the units of `hardware.toml`."""


def pcie_bandwidth(card: Gpu) -> float:
    """Return bytes/s, each way, between a GPU and the memory of its host; infinite for a CPU."""
    return math.inf if card.generation == "cpu" else PCIE_BANDWIDTH[PCIE_GENERATION.get(card.generation, 4)]


def unknown_name_error(kind: str, name: str, key: str, known: Iterable[str], otherwise: str) -> SpecError:
    """Return the error for a name that is in no table, with the names that resemble `key`."""
    from difflib import get_close_matches

    known = tuple(known)
    near = get_close_matches(key, known, n=3, cutoff=0.4)
    option = f"--{kind.lower()} "
    return SpecError(
        f"no {kind} '{name}'",
        found=f"known: {', '.join(known)}",
        remedy=(" or ".join(option + each for each in near) + ";\n" if near else "") + otherwise,
    )


class Gpu(Struct, frozen=True, kw_only=True):
    """One kind of GPU.

    Attributes:
        memory: Bytes that a program can allocate: those that the driver shows, less its own share.
        bandwidth: Bytes/s of its memory.
        flops: Floating-point operations/s of dense 16-bit matrix products, data sheet.
        flops8: The same of 8-bit floating point; 0: it has none.
        measured: Share of `flops` that the best measured matrix product reaches.
        link: Bytes/s, each way, to each GPU of its node.
        bf16: Whether it has matrix products of bfloat16.
        units: Multiprocessors: a matrix product runs in waves of this many tiles.
        generation: Selects the fitted constants.
        usual_network: Bytes/s of network, each way, where nothing else is known.
    """

    name: str
    memory: float
    bandwidth: float
    flops: float
    link: float
    units: int
    generation: str
    flops8: float = 0.0
    measured: float = 0.8
    bf16: bool = True
    usual_network: float = 25e9


class Machine(Struct, frozen=True, kw_only=True):
    """Nodes of one kind and the network between them: `infiniband`, `efa`, `omnipath` or `ethernet`."""

    gpu: Gpu
    gpus_per_node: int
    network: float
    """Bytes/s of each GPU, each way."""
    fabric: str = "infiniband"


class RankGroup(Struct, frozen=True):
    """Ranks that communicate: `ranks` in total, `per_node` on each of `nodes` nodes."""

    ranks: int
    per_node: int
    nodes: int


def make_rank_group(ranks: int, stride: int, gpus_per_node: int) -> RankGroup:
    """Return the group of `ranks` ranks with distance `stride`, where ranks fill node after node."""
    per_node = min(ranks, max(1, gpus_per_node // stride))
    return RankGroup(ranks, per_node, -(-ranks // per_node))
