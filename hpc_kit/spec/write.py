"""A job as the text of a job file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hpc_kit.errors import RecordError, SpecError
from hpc_kit.spec.job import Job
from hpc_kit.spec.toml_documents import toml_value


def job_text(job: Job) -> str:
    """The TOML of a job; what is not set is left out."""
    table = msgspec.to_builtins(job)
    components = table.pop("component", [])
    lines = [f"{key} = {toml_value(value)}" for key, value in table.items() if not isinstance(value, dict)]
    tables = [(f"[{name}]", inner) for name, inner in table.items() if isinstance(inner, dict) and inner]
    for header, inner in (*tables, *(("[[component]]", each) for each in components)):
        lines += ["", header, *(f"{key} = {toml_value(value)}" for key, value in inner.items())]
    return "\n".join(lines) + "\n"


def check_new(path: Path, option: str = "--save") -> None:
    """Whether a new job file can have this name; `option`: by which it was given.

    Raises:
        SpecError: It exists, or does not end in .toml.
    """
    if path.suffix != ".toml":
        raise SpecError(f"{path} cannot be a job file", found="job files end in .toml", remedy=f"{option} {path}.toml")
    if path.exists():
        raise _there(path, option)


def _there(path: Path, option: str) -> SpecError:
    return SpecError(f"{path} exists", remedy=f"another name for {option}, or remove the file first")


def save_job(job: Job, path: Path, option: str = "--save") -> None:
    """Write a new job file; one that exists is never overwritten.

    Raises:
        SpecError: As `check_new`.
        RecordError: It cannot be written.
    """
    check_new(path, option)
    text = job_text(job)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            try:
                file.write(text)
                file.flush()
            except OSError:
                path.unlink()
                raise
    except FileExistsError as error:
        raise _there(path, option) from error
    except OSError as error:
        raise RecordError(f"cannot write {path}", found=str(error), remedy="a folder that you may write to") from error
