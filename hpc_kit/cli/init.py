"""`hpc-kit init`."""

from __future__ import annotations

import ast
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from hpc_kit.cli.output import print_line
from hpc_kit.errors import RecordError, SpecError, explain_file_errors
from hpc_kit.run_files import write_whole
from hpc_kit.spec import search_path, toml_documents

MOST_SCRIPTS = 5
"""A project with more batch scripts is not asked about each of them."""

_PATTERNS = ("*.sbatch", "*.slurm", "*.sh")
"""Names of files that may be batch scripts."""

MAKEFILE = """\
# Submit, look at and follow the jobs of this project. `make help` lists the targets.
.DEFAULT_GOAL := help
HPC_KIT ?= hpc-kit
JOB ?=
ID ?=
ARGS ?=
CLUSTER ?=
OPTIONS = $(if $(CLUSTER),--cluster $(CLUSTER)) $(ARGS)

.PHONY: help list submit render check status logs cancel

help:
\t@echo 'make submit|render|check JOB=ddp_4node [ARGS="--set resources.nodes=2"]'
\t@echo 'make status|logs|cancel [JOB=ddp_4node|ID=12] [CLUSTER=...] [ARGS=...]     make list'

list:
\t@$(HPC_KIT) list $(ARGS)

submit render check:
\t@$(HPC_KIT) $@ $(JOB) $(OPTIONS)

status logs cancel:
\t@$(HPC_KIT) $@ $(or $(ID),$(JOB)) $(OPTIONS)
"""


@click.command("init")
@click.argument("folder", type=click.Path(path_type=Path), default=Path())
@click.option(
    "--job", "jobs", multiple=True, metavar="NAME", help="Copy only this job and the files it needs; repeatable."
)
@click.option("--minimal", is_flag=True, help="Copy one job with its program, and one cluster file; no templates.")
@click.option(
    "--discover/--no-discover",
    default=None,
    help="Write env/default.toml from Slurm's answers; all commands use it [default: asked on a terminal].",
)
@click.option(
    "--import",
    "scripts",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Convert a batch script to a job file; repeatable [default: asked on a terminal].",
)
@click.pass_context
def command(
    context: click.Context,
    folder: Path,
    jobs: tuple[str, ...],
    minimal: bool,
    discover: bool | None,
    scripts: tuple[Path, ...],
) -> None:
    """Copy jobs, programs, templates, clusters and a Makefile into FOLDER [the current one], to read and change.

    The files of the project have priority over the shipped ones. Existing files are not changed. On a terminal, the
    command offers to write a cluster file if there is a Slurm, and to convert the batch scripts of FOLDER.
    """
    here = search_path.current_folder()
    # All questions come first: an interrupted dialogue leaves no half-made project.
    offers = _complete_offers(folder, discover, scripts)
    shipped = search_path.shipped_folder("jobs").parent
    if minimal:
        jobs = jobs or ("ddp_1node",)
    paths = [path for job in jobs for path in _files_of_job(job)] if jobs else _all_files()
    # Several jobs need the same templates and modules: the same key of `texts`.
    wanted = [*(path.relative_to(shipped) for path in paths), *_cluster_files()]
    if minimal:
        wanted = [path for path in wanted if _is_minimal(path)]
    texts = {path: (shipped / path).read_bytes() for path in wanted}
    if not minimal:
        texts[Path("Makefile")] = MAKEFILE.encode()
    for path, content in texts.items():
        _write_file(folder / path, content)
    _carry_out(context, folder, offers)
    name = jobs[0] if jobs else "ddp_4node"
    inside = "" if folder.resolve() == here else f"cd {shlex.quote(str(folder))} && "
    print_line("next", f"{inside}{'hpc-kit submit ' if minimal else 'make submit JOB='}{name}")


def _is_minimal(path: Path) -> bool:
    """Return whether `--minimal` copies a file: no templates, and only the commented cluster file."""
    if path.parts[0] == "env" and path.suffix == ".toml":
        return path.stem == "example-gpu"
    return path.parts[0] != "templates"


def _all_files() -> Iterator[Path]:
    jobs, templates = search_path.shipped_folder("jobs"), search_path.shipped_folder("templates")
    # The patterns include base.toml and the shared modules, which other files need.
    for folder, pattern in ((jobs, "*.toml"), (jobs / "train", "*.py"), (templates, "**/*.j2"), (templates, "**/*.sh")):
        yield from sorted(folder.glob(pattern))


def _cluster_files() -> list[Path]:
    """Return cluster files, and the schemas of job and cluster files for editors."""
    jobs, env = search_path.shipped_folder("jobs"), search_path.shipped_folder("env")
    found = [*jobs.glob("*.schema.json"), *sorted(env.glob("*.schema.json")), *sorted(env.glob("*.toml"))]
    return [path.relative_to(path.parents[1]) for path in found]


def _files_of_job(job: str) -> Iterator[Path]:
    """Yield the files of a job: extended job files, templates, programs and imported modules."""
    shipped = search_path.shipped_folder("jobs")
    name, data = job, dict[str, object]()
    while name:
        path = shipped / f"{name}.toml"
        if not path.is_file():
            raise SpecError(
                f"no shipped job '{name}'",
                remedy=search_path.similar_name(
                    name,
                    (each.stem for each in shipped.glob("*.toml")),
                    "write one of the names that `hpc-kit list` shows",
                ),
            )
        yield path
        own = toml_documents.read_document(path, path.name).data
        # The loop goes from the job to what it extends, so the values already in `data` have priority.
        name, data = str(own.get("extends", "")), {**own, **data}
    templates = search_path.shipped_folder("templates")
    # Skip the templates of other kinds of jobs and of ssh. Includes and shell files have one suffix: srun.j2, task.sh.
    kinds = {f"{kind}{search_path.TEMPLATE}" for kind in ("base", data.get("template", "ddp"))}
    for path in sorted(templates.rglob("*")):
        if path.is_file() and (path.name in kinds or path.name.count(".") == 1):
            yield path
    words = data.get("command", [])
    for word in words if isinstance(words, list) else []:
        if (program := shipped.parent / str(word)).suffix == ".py":
            yield from _imported_modules(program, set())


def _imported_modules(program: Path, seen: set[Path]) -> Iterator[Path]:
    """Yield a program and the imported modules of its folder."""
    if program in seen or not program.is_file():
        return
    seen.add(program)
    yield program
    for node in ast.walk(ast.parse(program.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        for name in names:
            yield from _imported_modules(program.with_name(f"{name}.py"), seen)


def _write_file(path: Path, content: bytes) -> None:
    if path.exists():
        if not path.is_file() or path.read_bytes() != content:
            print_line("kept", f"{path}: yours")
        return
    remedy = "write to a folder with free space and write permission: hpc-kit init FOLDER"
    with explain_file_errors(RecordError, f"cannot write {path}", remedy):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written atomically: the next `init` would keep half a file as the user's own.
        write_whole(path, content, 0o666, lasting=False)
    print_line("written", str(path))


class Offers(NamedTuple):
    """Additional work of `init`: write a cluster file, and convert these batch scripts."""

    discover: bool
    scripts: tuple[Path, ...]


def _complete_offers(folder: Path, discover: bool | None, scripts: tuple[Path, ...]) -> Offers:
    """Return the answers of the command line, and ask for the missing ones on a terminal.

    `discover=None` and no `scripts` mean: ask.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return Offers(bool(discover), scripts)
    if discover is None:
        discover = not (folder / "env" / "default.toml").exists() and _offer_cluster()
    if not scripts:
        scripts = tuple(
            script
            for script in find_scripts(folder)
            if not _job_of(folder, script).exists()
            and click.confirm(f"Convert {script} to {_job_of(folder, script)}?", default=True)
        )
    return Offers(discover, scripts)


def find_scripts(folder: Path) -> list[Path]:
    """Return the batch scripts of a project; none if it has many."""
    found = [
        path
        for pattern in _PATTERNS
        for path in sorted(folder.glob(pattern))
        if path.is_file() and b"#SBATCH" in path.read_bytes()[: 1 << 16]
    ]
    return found if len(found) <= MOST_SCRIPTS else []


def _carry_out(context: click.Context, folder: Path, offers: Offers) -> None:
    """Write the cluster file and the job files."""
    from hpc_kit.cli import cluster, import_script

    if offers.discover:
        context.invoke(cluster.discover_command, write=folder / "env" / "default.toml")
    for script in offers.scripts:
        job = _job_of(folder, script)
        if job.exists():
            print_line("kept", f"{job}: yours")
        else:
            context.invoke(import_script.command, script=script, output=job, as_json=False)


def _job_of(folder: Path, script: Path) -> Path:
    return folder / "jobs" / f"{script.stem}.toml"


def _offer_cluster() -> bool:
    """Offer a cluster file if a Slurm of the system is here."""
    from hpc_kit.errors import SlurmUnavailable
    from hpc_kit.slurm.client import has_slurm, is_embedded
    from hpc_kit.slurm.versions import detect_version

    try:
        here = not is_embedded(os.environ) and has_slurm(os.environ)
    except SlurmUnavailable:
        return False
    if not here:
        return False
    version = detect_version(os.environ)
    name = f"Slurm {version}" if version else "A Slurm"
    return click.confirm(f"{name} is here. Write env/default.toml with its partitions and limits?", default=True)
