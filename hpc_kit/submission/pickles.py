"""Pickled functions on their way to the job that calls them.

Each has a name of its own until the job has an id; a list of them lies in the folder of the submission. So they reach
the job however the submission ends: also one whose answer is lost, and that is found again later on.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from hpc_kit.run_files import write_whole

LIST = "pickles.json"


class Pickles(Struct):
    """The pickles of one submission."""

    folder: str
    """The executor's, with submitit's patterns."""

    paths: tuple[str, ...]
    array: bool
    """Whether each is of an element of an array."""

    own: str = ""
    """The folder of the submission, once the list is there."""

    def write(self, own: Path) -> None:
        """Leave the list of them in the folder of a submission."""
        write_whole(own / LIST, msgspec.json.encode(self), lasting=False)
        self.own = str(own)

    def drop(self) -> None:
        """Delete those that no job has, unless a submission whose answer was lost goes on waiting with them."""
        if self.own and Path(self.own, LIST).exists():
            return
        for path in self.paths:
            Path(path).unlink(missing_ok=True)


def listed(own: Path) -> Pickles | None:
    """The pickles that wait for the job of a submission; None: it has none, or has got them."""
    try:
        return msgspec.json.decode((own / LIST).read_bytes(), type=Pickles)
    except FileNotFoundError:
        return None


def deliver(own: Path, job_id: str) -> None:
    """Give each pickle of a submission the name under which its task looks for it; a second time does nothing."""
    pickles = listed(own)
    if pickles is None:
        return
    from submitit.core.utils import JobPaths

    from hpc_kit.runs.logs import make_folder

    for index, path in enumerate(pickles.paths):
        paths = JobPaths(pickles.folder, f"{job_id}_{index}" if pickles.array else job_id)
        make_folder(paths.folder, mode=0o700)
        if Path(path).exists():
            paths.move_temporary_file(path, "submitted_pickle")
    (own / LIST).unlink()
