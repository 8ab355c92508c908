"""Every error that hpc_kit raises on purpose.

::

    HpcKitError                      what, found, remedy; exit status 2: wrong use
    ├── SpecError                    a job or cluster file, or a --set, says something that cannot be
    ├── UnitError                    a time, memory size or count that Slurm would not take
    ├── HostlistError                a malformed node list; `position` points at the character
    ├── DirectiveError               an #SBATCH line or an option that Slurm would not take
    ├── TemplateError                a template is missing, or asks for a value that does not exist
    ├── LauncherError                the launcher's variables cannot be used
    │   ├── IncompleteEnvironment    some of them are missing or are no numbers
    │   └── ContradictoryEnvironment two of them cannot both be true
    └── AnswerNo                     exit status 1: the question was right, the answer is no
        ├── SlurmUnavailable         no Slurm here, or it does not answer
        ├── SubmitRefused            sbatch refused the script
        ├── RecordError              the runs folder cannot be written or read
        ├── UnknownJob               neither Slurm nor runs/ knows this job
        ├── RendezvousError          the ranks did not find one another in time
        ├── LaunchError              a host of a launch over ssh cannot be used
        └── JobFailed                the job ended badly
"""

from __future__ import annotations

import os
from typing import ClassVar


class HpcKitError(Exception):
    """An error that tells what is wrong, what was found, and what to do.

    Args:
        what: One line, the fault itself.
        found: The values it was seen by; may be several lines.
        remedy: The edit or command that mends it; may be several lines.
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
    """A job file, cluster file or --set says something that cannot be."""


class UnitError(HpcKitError):
    """A time, memory size or count is not written the way Slurm reads it."""


class HostlistError(HpcKitError):
    """A node list is malformed.

    Args:
        what: The fault.
        text: The whole list.
        position: Index of the character in `text` where reading stopped.
        remedy: What to write instead.
    """

    def __init__(self, what: str, *, text: str, position: int, remedy: str | None = None) -> None:
        super().__init__(what, found=f"{text}\n{' ' * position}^", remedy=remedy)
        self.text = text
        self.position = position


class DirectiveError(HpcKitError):
    """An #SBATCH line, or an option on a command line, is not one that Slurm takes."""


class TemplateError(HpcKitError):
    """A template is missing, or asks for a value that does not exist."""


class LauncherError(HpcKitError):
    """The launcher's variables do not say who this process is.

    Args:
        what: One line, the fault itself.
        found: The variables it was seen by.
        remedy: What to set, or to unset.
        everywhere: Whether all ranks of the launch certainly fail alike.
    """

    def __init__(
        self, what: str, *, found: str | None = None, remedy: str | None = None, everywhere: bool = False
    ) -> None:
        super().__init__(what, found=found, remedy=remedy)
        self.everywhere = everywhere

    def shortened(self, teller: int) -> LauncherError:
        """The same in one line, for a rank beside that which tells all of it."""
        found = "; ".join(line.strip() for line in (self.found or "").splitlines())
        return type(self)(f"{self.what}: {found}; rank {teller} tells what to do")


class IncompleteEnvironment(LauncherError):
    """A variable is missing or is not a number."""


class ContradictoryEnvironment(LauncherError):
    """Two variables cannot both be true; both are named with their values."""


class AnswerNo(HpcKitError):
    """The question was right; the answer is no."""

    exit_status: ClassVar[int] = 1


class SlurmUnavailable(AnswerNo):
    """There is no Slurm here, or it does not answer."""


class SubmitRefused(AnswerNo):
    """Sbatch refused the script; its own words are in `found`."""


class RecordError(AnswerNo):
    """A run's folder cannot be written or read."""


class UnknownJob(AnswerNo):
    """Neither Slurm nor the runs folder knows this job id."""


class RendezvousError(AnswerNo):
    """The ranks did not find one another in time."""


class LaunchError(AnswerNo):
    """A host of a launch over ssh cannot be reached, or not be used."""


class JobFailed(AnswerNo):
    """The job ended badly; `found` tells which rank failed first and how."""


def page(name: str) -> str:
    """Where a page of docs/ lies, for a remedy: in the checkout, or inside the installed package.

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
