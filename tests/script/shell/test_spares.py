"""Nodes that count as lost after a step failed."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.script.shell.conftest import SHELL, environment


@pytest.mark.parametrize(
    ("own", "lost"),
    [
        ("127.0.0.1", ["127.0.0.2", "127.0.0.3"]),
        # Not even the slurmd of this script's own node answers: there is a firewall, or names do not resolve.
        ("127.0.0.4", ["127.0.0.3"]),
    ],
)
def test_unreachable_nodes_are_lost_if_this_node_is_reachable(
    own: str, lost: list[str], tmp_path: Path, command: Callable[[str, str], None]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as slurmd:
        command("scontrol", f"echo 'SlurmdPort              = {slurmd.getsockname()[1]}'")
        command("sinfo", "echo 127.0.0.3")
        code = f". {SHELL}/spares.sh; restart_used=({own} 127.0.0.2); list_lost_nodes"
        environ = environment(tmp_path, SLURMD_NODENAME=own)
        done = subprocess.run(["bash", "-c", code], env=environ, capture_output=True, text=True, timeout=30)
    assert (done.stdout.split(), done.stderr) == (lost, "")
