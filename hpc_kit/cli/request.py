"""What the user asked for: the arguments that `render`, `check` and `submit` share, and the job they make."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from msgspec import Struct

from hpc_kit.errors import SpecError
from hpc_kit.slurm.options import SBATCH
from hpc_kit.spec import files
from hpc_kit.spec.choose import Choice, default_cluster
from hpc_kit.spec.job import Job, Launch
from hpc_kit.spec.resolve import Resolved, resolve
from hpc_kit.spec.resources import Resources

F = TypeVar("F", bound=Callable[..., Any])


class Request(Struct, frozen=True):
    """A job to be made: by name, or by the program behind `--`."""

    job: str | None
    program: tuple[str, ...]
    shape: str | None
    settings: tuple[str, ...]
    cluster: str | None
    options: dict[str, object]


class JobCommand(click.Command):
    """A command that makes a job: it takes every option of sbatch, and behind `--` a program exactly as it stands.

    Sbatch's options are read by its own table and not by click, which would have to be told of all ninety first.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Set the program and sbatch's options aside before click looks at the rest."""
        own, program = (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, [])
        ctx.meta["program"] = tuple(program)
        ours = {name: option for option in self.params for name in option.opts if isinstance(option, click.Option)}
        ctx.meta["sbatch"], rest = _sbatch_options(own, ours)
        return super().parse_args(ctx, rest)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Say what the table of options leaves out."""
        super().format_epilog(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text("Every option of sbatch is an option here, too: --time 2:00:00, -p gpu, --requeue.")


def _sbatch_options(args: list[str], ours: Mapping[str, click.Option]) -> tuple[dict[str, object], list[str]]:
    """Sbatch's options among the words of a command line, by field name; and the words that are left."""
    table = {f"--{name.replace('_', '-')}": name for name in Resources.__struct_fields__}
    table |= {f"-{SBATCH[name[2:]].short}": field for name, field in table.items() if SBATCH[name[2:]].short}
    found: dict[str, object] = {}
    rest: list[str] = []
    words = iter(args)
    for word in words:
        name, equals, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
        if not word.startswith("-") or name in ours or name not in table:
            rest.append(word)
            option = ours.get(name)
            if option is not None and not option.is_flag and not equals:
                rest.extend(word for word in [next(words, None)] if word is not None)
        elif isinstance(getattr(Resources(), table[name]), bool):
            found[table[name]] = True
        else:
            given = value if equals else next(words, None)
            if given is None:
                raise SpecError(f"{name} wants a value", remedy=f"hpc-kit schema says what {table[name]} takes")
            found[table[name]] = given
    return found, rest


def job_arguments(function: F) -> F:
    """The arguments of a command that makes a job: its name or `-j`, `--set`, `--cluster`."""
    decorators = (
        click.argument("job", required=False),
        click.option("-j", "shape", metavar="NODESxRANKS", help="Nodes x ranks a node, such as 4x2."),
        click.option(
            "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override anything: resources.nodes=2."
        ),
        click.option("--cluster", metavar="NAME", help="Cluster file in env/ [default: what fits this machine]."),
    )
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def request_of() -> Request:
    """The request that the arguments of `job_arguments` make."""
    ctx = click.get_current_context()
    given = ctx.params
    program, options = ctx.meta["program"], ctx.meta["sbatch"]
    return Request(given["job"], program, given["shape"], given["settings"], given["cluster"], options)


def job_of(request: Request, root: Path) -> Resolved:
    """The job of a request, fitted to its cluster.

    Raises:
        SpecError: The request, or a file that it names, says something that cannot be.
    """
    choice = Choice(request.cluster, {}) if request.cluster else default_cluster(root, os.environ)
    settings = {**choice.settings, **_settings(request)}
    job = request.job if request.job is not None else adhoc(request.program)
    if request.job is not None and request.program:
        base = files.load_job(request.job, root=root)
        settings["command"] = [*base.command, *request.program]
    loaded = files.load(job, choice.name, set=settings, root=root)
    return resolve(loaded, root=root, again=_again(request, choice))


def adhoc(program: tuple[str, ...]) -> Job:
    """The job of a program without a job file: started through the runtime, so that it need not know us.

    Raises:
        SpecError: There is no program.
    """
    if not program:
        raise SpecError(
            "neither a job nor a program",
            remedy="hpc-kit submit ddp_4node, or hpc-kit submit -j 4x2 -- python train.py",
        )
    if program[0].endswith(".py"):
        program = ("python", *program)
    words = [word for word in program if not word.startswith("-")]
    subject = words[1] if len(words) > 1 and Path(words[0]).name.startswith("python") else words[0]
    stem = re.sub(r"[^\w.+-]+", "_", Path(subject).name.removesuffix(".py")) or "job"
    return Job(name=stem, description=shlex.join(program), command=program, launch=Launch(bootstrap=True))


def _settings(request: Request) -> dict[str, object]:
    """Everything that overrides the files, the more specific last."""
    settings: dict[str, object] = {}
    if request.shape is not None:
        shape = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", request.shape)
        if not shape:
            raise SpecError(f"-j {request.shape} is no shape", remedy="nodes x ranks a node: -j 4x2")
        settings |= {"resources.nodes": int(shape[1]), "resources.ntasks_per_node": int(shape[2])}
    settings |= {f"resources.{name}": value for name, value in request.options.items()}
    for setting in request.settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise SpecError(f"--set {setting} sets nothing", remedy="--set resources.nodes=2")
        settings[key.strip()] = value
    return settings


def _again(request: Request, choice: Choice) -> tuple[str, ...]:
    """The command line that makes the same script on any machine."""
    words = ["hpc-kit", "render"]
    if request.job is not None:
        words.append(request.job)
    if request.shape is not None:
        words += ["-j", request.shape]
    words += ["--cluster", choice.name]
    for name, value in request.options.items():
        option = f"--{name.replace('_', '-')}"
        words += [option] if value is True else [f"{option}={value}"]
    for setting in (*(f"{key}={value}" for key, value in choice.settings.items()), *request.settings):
        words += ["--set", setting]
    return (*words, "--", *request.program) if request.program else tuple(words)
