"""Jobs of one command that start one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

KINDS = ("afterok", "afterany", "afternotok", "after", "aftercorr")
"""How a job may follow the one before it: sbatch's own words."""


def dependency(kind: str, before: str, own: Mapping[str, object]) -> dict[str, object]:
    """The options that make a job wait for the one before it, on top of what it waits for anyway.

    A job whose condition can no longer come true would stay in the queue for ever, and with it all that follow: it is
    taken out, unless the job itself says otherwise.

    Args:
        kind: How it follows, one of `KINDS`.
        before: The id of the job before it.
        own: The job's own options, by field name.

    Raises:
        SpecError: Its own dependency is one of several that may come true.
    """
    waits = str(own.get("dependency") or "")
    if "?" in waits:
        raise SpecError(
            "a job of a chain must wait for the one before it",
            found=f"dependency = {waits!r}: one of them is enough",
            remedy="conditions joined by ',', or no dependency of its own",
        )
    chained = ",".join(filter(None, [f"{kind}:{before}", waits]))
    return {"dependency": chained, "kill_on_invalid_dep": own.get("kill_on_invalid_dep", "yes")}
