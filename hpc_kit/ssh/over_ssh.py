"""The shell of a launch without a scheduler: what each host runs, and the whole as a script of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.check.preflight_program import folder_of
from hpc_kit.script.context import context
from hpc_kit.script.render import fill
from hpc_kit.spec import search_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hpc_kit.spec.resolve import Resolved

SUFFIX = ".sh.j2"


def agent_scripts(resolved: Resolved, ranks: Sequence[int], root: Path) -> tuple[str, ...]:
    """What each host of a launch runs, as bash reads it on stdin.

    Args:
        resolved: The job.
        ranks: Those of each host.
        root: The user's project.
    """
    of = {each: _filled("agent", resolved, root, standalone=False, ranks=each) for each in set(ranks)}
    return tuple(of[each] for each in ranks)


def launch_script(
    resolved: Resolved, *, hosts: Sequence[str] = (), ranks: Sequence[int], root: Path, standalone: bool = False
) -> str:
    """The launch as a plain shell script; it runs a job of one node on this machine.

    Args:
        resolved: The job.
        hosts: Names of the hosts; none: the script is told them.
        ranks: Those of each node.
        root: The user's project.
        standalone: Need no hpc_kit on the hosts.
    """
    uneven = len(set(ranks)) > 1
    return _filled(
        "launch",
        resolved,
        root,
        standalone=standalone,
        hosts=hosts,
        uneven=uneven,
        ranks=ranks[0],
        ranks_on=ranks,
    )


def _filled(name: str, resolved: Resolved, root: Path, *, standalone: bool, **own: object) -> str:
    path = search_path.find("templates", name, root, suffix=SUFFIX)
    values = context(resolved, template=search_path.shown(path, root), standalone=standalone)
    return fill(path, {**values, "folder": folder_of(resolved, root).absolute(), **own}, root)
