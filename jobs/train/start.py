"""How every program begins: the ranks meet, have read the same text, and refuse what cannot work."""

from __future__ import annotations

import os
import pickle
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import distributed as dist

import hpc_kit
from data import Text, read_text
from model import GPT, initialise
from options import Options
from ranks import compare, gather, in_time

if TYPE_CHECKING:
    from hpc_kit.runtime import Group


@contextmanager
def ranks_of(options: Options) -> Iterator[tuple[Group, Text]]:
    """The world and the text, alike on all ranks."""
    with hpc_kit.distributed(timeout=options.timeout) as world, in_time(options.timeout or world.timeout):
        text = text_of_node(world, options.data)
        versions = {"Python": platform.python_version(), "torch": torch.__version__}
        alike = f"the same files on every node, in {options.data}" if options.data else "the same Python on every node"
        compare({**versions, "text": str(text), "options": repr(options)}, {"text": alike})
        yield world, text


def text_of_node(world: Group, folder: Path | None) -> Text:
    """The text, whose many files one rank of each node reads; the others map what it has put into memory."""
    text = read_text(folder) if world.local_rank == 0 else None
    with in_memory(text) as place:
        places = gather((world.node_rank, place))
        if text is None:
            of_node = next((there for node, there in places if node == world.node_rank and there), "")
            text = mapped(of_node) or read_text(folder)
        gather(None)  # nobody takes it away before all have it
    return text


@contextmanager
def in_memory(text: Text | None) -> Iterator[str]:
    """A path under which this host's processes find it: of a file without a name, which no kill can leave behind."""
    if text is None:
        yield ""
        return
    with os.fdopen(os.memfd_create("text"), "wb") as file:
        torch.save(vars(text), file)
        file.flush()
        yield f"/proc/{os.getpid()}/fd/{file.fileno()}"


def mapped(place: str) -> Text | None:
    """The text there, of which the host has one copy; None where its processes are hidden from one another."""
    try:
        return Text(**torch.load(place, mmap=True))
    except (OSError, RuntimeError, ValueError, pickle.UnpicklingError):
        return None


def group_of_all(options: Options, world: Group, backend: str | None = None) -> dist.ProcessGroup:
    """Another group of all ranks, with the time-out of the first one: a new one has torch's own."""
    seconds = options.timeout or world.timeout
    timeout = None if seconds is None else timedelta(seconds=seconds)
    return cast("dist.ProcessGroup", dist.new_group(backend=backend, timeout=timeout))


def gpt(options: Options, device: torch.device, part: range | None = None) -> GPT:
    """The model, or those layers of it, with its first weights, on the device."""
    model = GPT(options.model, part).to(device)
    initialise(model, options.seed)
    return with_options(model, options)


def with_options(model: GPT, options: Options) -> GPT:
    """Activation checkpointing and torch.compile, layer by layer; no parameter changes its name."""
    model.recompute = options.recompute
    if options.compile:
        for layer in model.layers.values():
            layer.compile(backend=options.compile)
    return model


def autocast(options: Options, device: torch.device) -> torch.autocast:
    """bfloat16 where --bf16 asks for it: the matrix products; the loss stays in float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=options.bf16)
