"""From a job to the queue and back: submission through submitit, the record of each run, its states, logs and end."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hpc_kit.spec.cluster import Cluster
    from hpc_kit.spec.job import Job
    from hpc_kit.submit.job import ScriptJob


class _Room(ModuleType):
    """This package, callable: importing any part of it puts it over the function `hpc_kit.submit` of the same name."""

    def __call__(
        self,
        job: str | Path | Job,
        cluster: str | Path | Cluster | None = None,
        *,
        set: Mapping[str, object] | None = None,  # noqa: A002 - the option's name
        root: str | Path | None = None,
        standalone: bool = False,
    ) -> ScriptJob:
        """`hpc_kit.submit.submission.submit`."""
        from hpc_kit.submit.submission import submit

        return submit(job, cluster, set=set, root=root, standalone=standalone)


sys.modules[__name__].__class__ = _Room
