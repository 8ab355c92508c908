"""What joins the GPUs of a node, in words: `nvlink4`, `pcie4`."""

from __future__ import annotations

import re

from msgspec import structs

from hpc_kit.planner import hardware
from hpc_kit.planner.cells import Cells, plain
from hpc_kit.planner.machine import GIB, Gpu

PCIE = {3: 16e9, 4: 32e9, 5: 64e9, 6: 128e9}
"""Bytes/s, each way, of 16 lanes of each generation."""
OF = {"v100": 3, "h100": 5, "h20": 5, "b200": 5, "mi300x": 5, "mi355x": 5}
"""Generation of PCIe of a generation of GPUs where it is not 4."""
FAST = re.compile(r"nvlink|nvswitch|nvl|infinityfabric|xgmi|sxm")


def joined(card: Gpu, cells: Cells) -> Gpu:
    """The GPU with the links that a row's `intra_node` says; where they are not its own, the row is told so.

    A card for PCIe has a row of its own in most families, with the rates that it reaches.
    """
    word = plain(cells.text("intra_node", say=False))
    if not word:
        return card
    through_pcie = card.link <= PCIE[5]
    if word.startswith("pci"):
        return card if through_pcie else _by_pcie(card, word, cells)
    if not FAST.search(word):
        cells.assumed.append(f"intra_node '{cells.text('intra_node')}' as {card.name}'s own")
        return card
    return _by_links(card, cells) if through_pcie else card


def _by_pcie(card: Gpu, word: str, cells: Cells) -> Gpu:
    number = re.search(r"[3-6]", word)
    speed = PCIE[int(number[0]) if number else OF.get(card.generation, 4)]
    family, _, size = card.name.rpartition("-")
    names = (f"{family}-pcie-{size}", f"{family}-nvl-{size}")
    if found := next((name for name in names if name in hardware.names()), None):
        cells.assumed.append(f"gpu '{card.name}' as {found}, for intra_node is {word}")
        return structs.replace(hardware.gpu(found), link=speed, memory=card.memory)
    cells.assumed.append(f"gpu '{card.name}' without its links, for intra_node is {word}")
    return structs.replace(card, link=speed)


def _by_links(card: Gpu, cells: Cells) -> Gpu:
    """The family's card with links, of the memory that the name says; a name that itself says PCIe is believed."""
    said = hardware.plain(cells.text("gpu"))
    family = card.name.partition("-")[0]
    usual = hardware.gpu(family)
    if "pcie" in said or "nvl" in said or usual.link <= PCIE[5]:
        cells.assumed.append(
            f"intra_node '{cells.text('intra_node')}' as {card.name}'s own, without NVLink beyond a pair"
        )
        return card
    cells.assumed.append(f"gpu '{said}' as {usual.name} with {card.memory / GIB:.1f} GiB, for intra_node has links")
    return structs.replace(usual, memory=card.memory)
