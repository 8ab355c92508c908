"""Comparison of versions and code between the nodes, before the process group is created."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from hpc_kit.errors import ContradictoryEnvironment
from hpc_kit.runtime import resolve
from hpc_kit.runtime.rendezvous import meeting, node_comparison
from hpc_kit.runtime.rendezvous.node_comparison import find_differences, node_facts, program_hash
from tests.runtime.launches import Step

WORLD = resolve(Step.of(2, 2).environ(0))


def write_modules(folder: Path, **texts: str) -> Path:
    """Write modules with these names (`_` separates folders). The program is train.py."""
    for name, text in texts.items():
        path = folder / f"{name.replace('_', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "train.py"


def test_each_rank_reports_its_versions_and_each_node_its_code(tmp_path: Path) -> None:
    program = write_modules(tmp_path, train="print(1)\n")
    first, second = (node_facts(resolve(Step.of(2, 2).environ(rank)), program, {}) for rank in (2, 3))
    assert first["torch"] == torch.__version__.partition("+")[0]
    assert set(first) - set(second) == {"the code of train.py"}
    assert node_facts(WORLD, program, {"HPC_KIT_SAME": "0"}) == {}
    assert node_facts(dataclasses.replace(WORLD, world_size=1), program, {}) == {}


@pytest.mark.parametrize(
    ("changed", "counts"),
    [("train", True), ("model", True), ("parts_layer", True), ("parts_deep_block", True), ("notes", False)],
)
def test_the_code_is_the_program_and_what_it_imports_from_its_own_folder(
    tmp_path: Path, changed: str, counts: bool
) -> None:
    texts = {
        "train": "import os, torch\nfrom model import (\n    Model,\n)\n",
        "model": "def f():\n    from parts import layer as l, other\n",
        "parts_layer": "from .deep.block import Block\n",
        "parts_deep_block": "import json\n",
        "notes": "",
    }
    here, there = write_modules(tmp_path / "here", **texts), write_modules(tmp_path / "there", **texts)
    assert program_hash(here) == program_hash(there)
    node_comparison._list_folder.cache_clear()
    write_modules(tmp_path / "there", **{changed: texts[changed] + "# newer\n"})
    assert (program_hash(here) != program_hash(there)) is counts


def test_a_program_may_contain_lines_that_look_like_imports_from_above_the_root_folder(tmp_path: Path) -> None:
    program = write_modules(tmp_path, train='"""Prefer\n\n    from .................... import x\n\nto import *."""\n')
    assert len(program_hash(program)) == 8


def test_the_name_of_a_program_may_contain_bytes_that_are_no_utf_8(tmp_path: Path) -> None:
    program = tmp_path / os.fsdecode(b"tr\xe4in.py")
    program.write_text("1\n")
    assert len(program_hash(program)) == 8


def test_the_differing_host_is_named_first_and_other_programs_are_not_compared() -> None:
    same = {"torch": "2.13.0", "the code of train.py": "aa"}
    everybody = [
        ("n1", same),
        ("n2", {**same, "torch": "2.12.0"}),
        ("n3", same),
        ("n4", {"the code of other.py": "bb"}),
    ]
    assert find_differences(everybody) == ["torch: 2.12.0 on n2; 2.13.0 on n1, n3"]
    assert find_differences([("n1", same), ("n2", same)]) == []


def test_nodes_that_differ_are_refused_by_all_ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here, there = write_modules(tmp_path / "here", train="1\n"), write_modules(tmp_path / "there", train="2\n")
    step, refused = Step.of(1, 1, hosts=("localhost", "otherhost")), dict[int, tuple[str, str | None]]()
    wait_until = meeting.wait_until

    def wait_late(*words: Any) -> bool:
        time.sleep(1 if threading.current_thread().name == "1" else 0)
        return wait_until(*words)

    monkeypatch.setattr(meeting, "wait_until", wait_late)

    def meet(rank: int) -> None:
        environ = step.environ(rank) | {"MASTER_ADDR": "127.0.0.1"}
        world = dataclasses.replace(resolve(environ), master_addr="127.0.0.1", hosts=("127.0.0.1",), nnodes=1)
        try:
            meeting.meet(world, timeout=20, environ=environ, meeting_number=77, program=(here, there)[rank])
        except ContradictoryEnvironment as error:
            refused[rank] = error.what, error.found  # the error itself would keep rank 0's store alive

    threads = [threading.Thread(target=meet, args=(rank,), name=str(rank)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    differs = f"the code of train.py: {program_hash(here)} on localhost; {program_hash(there)} on otherhost"
    assert refused[0] == ("the nodes do not run the same", differs)
    assert refused[1][0] == f"the nodes do not run the same: {differs}"
