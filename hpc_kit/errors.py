"""Every error that hpc_kit raises on purpose.

::

    HpcKitError                      what, found, remedy; exit status 2: wrong use
    ├── SpecError                    a job file, a cluster file or a --set is wrong
    ├── UnitError                    a time, memory size or count that Slurm does not accept
    ├── HostlistError                a malformed node list; `position` points at the character
    ├── DirectiveError               an #SBATCH line or an option that Slurm does not accept
    ├── TemplateError                a template is missing, or uses a value that does not exist
    ├── LauncherError                the launcher's variables cannot be used
    │   ├── IncompleteEnvironment    a variable is missing or is not a number
    │   └── ContradictoryEnvironment two variables contradict each other
    └── AnswerNo                     exit status 1: the request was right, and the answer is no
        ├── SlurmUnavailable         no Slurm on this machine, or it does not answer
        ├── SubmitRefused            sbatch refused the script
        ├── RecordError              the runs folder cannot be written or read
        ├── UnknownJob               neither Slurm nor runs/ knows this job
        ├── RendezvousError          the ranks did not find each other in time
        ├── LaunchError              a host cannot be used over ssh
        └── JobFailed                the job failed
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar


class HpcKitError(Exception):
    """An error in three parts: what is wrong, what was found, and what to do.

    Args:
        what: The fault, in one line.
        found: The values that show the fault; may have several lines.
        remedy: The edit or command that fixes it; may have several lines.
    """

    exit_status: ClassVar[int] = 2

    def __init__(self, what: str, *, found: str | None = None, remedy: str | None = None) -> None:
        super().__init__(what, found, remedy)
        self.what = what
        self.found = found
        self.remedy = remedy

    def __str__(self) -> str:
        lines = [self.what]
        for label, text in (("found", self.found), ("do", self.remedy)):
            if text:
                first, *rest = text.splitlines()
                lines.append(f"  {label:<5}  {first}")
                lines.extend(f"         {line}" for line in rest)
        return "\n".join(lines)


class SpecError(HpcKitError):
    """A job file, a cluster file or a --set is wrong."""


class UnitError(HpcKitError):
    """Slurm cannot read a time, a memory size or a count."""


class HostlistError(HpcKitError):
    """A node list is malformed.

    Args:
        what: The fault.
        text: The whole list.
        position: Index in `text` of the character at which parsing stopped.
        remedy: What to write instead.
    """

    def __init__(self, what: str, *, text: str, position: int, remedy: str | None = None) -> None:
        super().__init__(what, found=f"{text}\n{' ' * position}^", remedy=remedy)
        self.text = text
        self.position = position


class DirectiveError(HpcKitError):
    """Slurm does not accept an #SBATCH line or an option of the command line."""


class TemplateError(HpcKitError):
    """A template is missing, or uses a value that does not exist."""


class LauncherError(HpcKitError):
    """The launcher's variables do not identify this process.

    Args:
        what: The fault, in one line.
        found: The variables that show the fault.
        remedy: Variables to set or to unset.
        everywhere: True if all ranks of the launch fail in the same way.
    """

    def __init__(
        self, what: str, *, found: str | None = None, remedy: str | None = None, everywhere: bool = False
    ) -> None:
        super().__init__(what, found=found, remedy=remedy)
        self.everywhere = everywhere

    def shortened(self, reporter: int) -> LauncherError:
        """Return this error in one line, for the ranks that do not print the whole error."""
        found = "; ".join(line.strip() for line in (self.found or "").splitlines())
        return type(self)(f"{self.what}: {found}; rank {reporter} shows the remedy")


class IncompleteEnvironment(LauncherError):
    """A variable is missing or is not a number."""


class ContradictoryEnvironment(LauncherError):
    """Two variables contradict each other; the error names both with their values."""


class AnswerNo(HpcKitError):
    """The request was right, and the answer is no."""

    exit_status: ClassVar[int] = 1


class SlurmUnavailable(AnswerNo):
    """This machine has no Slurm, or Slurm does not answer."""


class SubmitRefused(AnswerNo):
    """Sbatch refused the script; `found` contains its message."""


class RecordError(AnswerNo):
    """The folder of a run cannot be written or read."""


class UnknownJob(AnswerNo):
    """Neither Slurm nor the runs folder knows this job id."""


class RendezvousError(AnswerNo):
    """The ranks did not find each other in time.

    Args:
        what: The fault.
        found: The values that show the fault.
        remedy: What to do.
        missing: The ranks that did not come, if they are known.
        host: The host of the first of them, if it is known.
        waited: Seconds that the other ranks have waited.
    """

    def __init__(
        self,
        what: str,
        *,
        found: str | None = None,
        remedy: str | None = None,
        missing: tuple[int, ...] = (),
        host: str | None = None,
        waited: float = 0,
    ) -> None:
        super().__init__(what, found=found, remedy=remedy)
        self.missing = missing
        self.host = host
        self.waited = waited


class LaunchError(AnswerNo):
    """A host cannot be reached or used over ssh."""


class JobFailed(AnswerNo):
    """The job failed; `found` names the rank that failed first, and its error."""


@contextmanager
def explain_file_errors(
    kind: type[HpcKitError], what: str, remedy: str, *, also: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Return a context that raises an error of hpc_kit in place of an OSError, or of an exception in `also`."""
    explained: tuple[type[Exception], ...] = (OSError, *also)
    try:
        yield
    except explained as error:
        raise kind(what, found=getattr(error, "strerror", None) or str(error), remedy=remedy) from error


def page(name: str) -> str:
    """Return the path of a page of docs/, in the checkout or in the installed package.

    Args:
        name: Such as `templates.md`.
    """
    package = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - errors are imported by every command
    shipped = f"{package}/share/docs"
    folder = shipped if os.path.isdir(shipped) else f"{os.path.dirname(package)}/docs"  # noqa: PTH112, PTH120
    try:
        return f"{folder}/{name}".removeprefix(f"{os.getcwd()}/")  # noqa: PTH109
    except OSError:  # the current folder is gone
        return f"{folder}/{name}"
