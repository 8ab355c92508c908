"""GPUs by name, from `hardware.toml`."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from hpc_kit.errors import SpecError
from hpc_kit.planner.machine import GIB, Gpu, Machine

USUAL = {
    "a100": "a100-80g",
    "a100-pcie": "a100-pcie-80g",
    "v100": "v100-32g",
    "v100-pcie": "v100-pcie-32g",
    "gh200": "gh200-96g",
}
SAME = {
    "gh200-120g": "gh200-96g",
    "gh200-480g": "gh200-96g",
    "mi250-128g": "mi250-64g",
    "mi250x-128g": "mi250x-64g",
    "mi300": "mi300x",
    "mi300-192g": "mi300x-192g",
}
"""Names that mean another row: they count the processor's memory, or that of a card's two dies."""
SHOWN = 0.99
"""Share of a card's nominal memory that its driver shows."""
NO_MEANING = re.compile(r"^(nvidia|tesla|amd|instinct|sxm\d?|hbm\d?e?|oam|nvl\d+|dgxs?|hgx|vf|h)$")
"""Parts of a driver's name that do not tell two rows apart."""
GLUED = re.compile(r"(?<=\d)(?=(?:sxm|pcie|nvl|hbm))")
"""Where a name leaves out a blank: `h100sxm`, `gb200nvl72`."""
FILE = Path(__file__).with_name("hardware.toml")


@cache
def _tables() -> dict[str, dict[str, dict[str, Any]]]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def _file() -> dict[str, dict[str, Any]]:
    return _tables()["gpu"]


def machines() -> tuple[str, ...]:
    """Every machine that can be named without a cluster file."""
    return tuple(_tables()["machine"])


def machine(name: str) -> Machine:
    """A machine by its name; KeyError where there is none."""
    row = _tables()["machine"][name]
    return Machine(
        gpu=gpu(row["gpu"]),
        gpus_per_node=row["gpus_per_node"],
        network=row["network"] * 1e9 / 8,
        fabric=row["fabric"],
    )


def names() -> tuple[str, ...]:
    """Every GPU that can be named."""
    return tuple(_file())


def plain(name: str) -> str:
    """A card's name as in the table: `NVIDIA A100 80GB PCIe` and `a100-pcie-80gb` are `a100-pcie-80g`."""
    words = re.split(r"[\s_-]+", GLUED.sub("-", name.lower()))
    parts = [part for part in words if part and not NO_MEANING.match(part)]
    sizes = [found[1] + "g" for part in parts if (found := re.fullmatch(r"(\d+)gi?b?", part))]
    key = "-".join([part for part in parts if not re.fullmatch(r"\d+gi?b?", part)] + sizes)
    return SAME.get(key, key)


def memory(card: Gpu) -> float:
    """Bytes of a GPU's memory; where a row does not say them, those of its family's usual card."""
    return card.memory or gpu(card.name).memory


def _row(key: str, *, exact: bool) -> str:
    """The row of a name in the table's form, or of its family's usual card; "" where there is none."""
    table = _file()
    family = [known for known in table if known.startswith(f"{key}-")]
    if family and not (exact and key in table):
        return USUAL.get(key, family[0])
    return key if key in table else ""


class _Near(NamedTuple):
    """The row that a name means, the GiB that it says where that row has another size, and words that no row has."""

    row: str
    size: float = 0.0
    unknown: str = ""


def _nearest(name: str, *, near: bool) -> _Near:
    """The row of a GPU. Where none has the whole name its last parts are left out until one has.

    Rows of the very memory size come first. `near`: as in `gpu`.

    Raises:
        SpecError: No row is near: nothing is, or the name is that of a slice of a card; or it has words of no row.
    """
    key = plain(name)
    if found := _row(key, exact=near):
        return _Near(found)
    parts = key.split("-")
    size = f"{parts.pop().removesuffix('g')}g" if re.fullmatch(r"[1-9]\d{0,3}g?", parts[-1]) else ""
    left: list[str] = []
    while parts and "mig" not in parts:
        if left and not near:
            break
        known, word = "-".join(parts), "-".join(left)
        same = [row for row in _file() if size and row.startswith(f"{known}-") and row.endswith(f"-{size}")]
        if same:
            return _Near(same[0], unknown=word)
        if found := _row(known, exact=near):
            return _Near(found, float(size[:-1]) * SHOWN if size else 0.0, word)
        left.insert(0, parts.pop())
    raise unknown(name)


def taken_for(name: str, *, near: bool = False) -> str:
    """What a name is taken for, in words; "" where the table has that very name.

    Raises:
        SpecError: As `gpu`.
    """
    if ":" in name or _row(plain(name), exact=near):
        return ""
    row, size, word = _nearest(name, near=near)
    more = f" with {size:.1f} GiB" if size else ""
    return f"gpu '{name}' as {row}{more}" + (f", for '{word}' says nothing" if word else "")


@cache
def gpu(name: str, *, near: bool = False) -> Gpu:
    """A GPU by its name; a family such as `h100` means its usual card.

    A name that no row has means the row of another memory size, with the memory that the name says: see `taken_for`.

    Args:
        name: As in the table, or as the driver says it.
        near: A family that is a row itself is that row, and words that no row has are left out.

    Raises:
        SpecError: No such GPU; near matches and how to describe one.
    """
    if ":" in name:
        return described(name)
    key, size, _ = _nearest(name, near=near)
    row = _file()[key]
    return Gpu(
        name=key,
        memory=(size or row["memory"]) * GIB,
        bandwidth=row["memory_tb"] * 1e12,
        flops=row["tflops"] * 1e12,
        flops8=row.get("tflops8", 0) * 1e12,
        link=row["link"] * 1e9,
        units=row["units"],
        generation=row["generation"],
        measured=row.get("measured", 0.8),
        bf16=row.get("bf16", True),
    )


def network(card: Gpu) -> float:
    """Bytes/s of network a GPU of this kind usually has."""
    return float(_file().get(card.name, {}).get("network", 200)) * 1e9 / 8


def unknown(name: str) -> SpecError:
    """The error for a GPU that is not in the table."""
    from difflib import get_close_matches

    near = get_close_matches(plain(name) or name.lower(), names(), n=3, cutoff=0.4)
    return SpecError(
        f"no GPU '{name}'",
        found=f"known: {', '.join(names())}",
        remedy=(" or ".join(near) + ";\n" if near else "")
        + "or describe it: --gpu '"
        + name
        + ":memory=80,memory_tb=2.0,tflops=312,link=300'",
    )


NUMBERS = {"memory": GIB, "memory_tb": 1e12, "tflops": 1e12, "tflops8": 1e12, "link": 1e9, "units": 1.0}


def described(text: str) -> Gpu:
    """A GPU by its data sheet: `name:memory=80,memory_tb=2.0,tflops=312,link=300`.

    Raises:
        SpecError: A number is missing, unknown, or none.
    """
    name, _, rest = text.partition(":")
    given: dict[str, float] = {}
    for pair in rest.split(","):
        key, _, value = pair.strip().partition("=")
        try:
            given[key] = float(value) * NUMBERS[key]
        except (KeyError, ValueError):
            raise SpecError(
                f"--gpu cannot read '{pair}'", found=text, remedy=f"numbers for {', '.join(NUMBERS)}: memory=80"
            ) from None
        if not 0 < given[key] < 1e18:
            raise SpecError(f"--gpu: {key} is out of range", found=pair, remedy="a positive number")
    missing = [key for key in ("memory", "memory_tb", "tflops", "link") if key not in given]
    if missing:
        raise SpecError(f"--gpu lacks {', '.join(missing)}", found=text, remedy="its data sheet: memory in GiB, TB/s")
    return Gpu(
        name=name or "gpu",
        memory=given["memory"],
        bandwidth=given["memory_tb"],
        flops=given["tflops"],
        flops8=given.get("tflops8", 0.0),
        link=given["link"],
        units=int(given.get("units", 120)),
        generation=name or "gpu",
    )
