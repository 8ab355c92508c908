"""The arguments that describe a job, shared by `render`, `check`, `submit` and `launch`; and the resulting job."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct, structs

from hpc_kit.errors import SpecError
from hpc_kit.slurm.getopt import parse_options
from hpc_kit.spec import load, search_path
from hpc_kit.spec.default_cluster import ClusterChoice, default_cluster, ssh_cluster
from hpc_kit.spec.job import Job, Launch
from hpc_kit.spec.load import LoadedJob
from hpc_kit.spec.resolve import Resolved, format_render_command, resolve
from hpc_kit.spec.resources import Resources

if TYPE_CHECKING:
    from hpc_kit.ssh.hosts import Host


F = TypeVar("F", bound=Callable[..., Any])


class JobRequest(Struct, frozen=True):
    """A job on the command line: the name of a job file, or a program after `--`."""

    job: str | None
    program: tuple[str, ...]
    shape: str | None
    settings: tuple[str, ...]
    cluster: str | None
    options: dict[str, object]


class JobCommand(click.Command):
    """A command that accepts every option of sbatch, and a program after `--`.

    The option table of sbatch parses its ninety options. Declaring each to click would slow down every start.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Remove the program and the sbatch options before click parses the rest."""
        own, program = (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, [])
        ctx.meta["program"] = tuple(program)
        names = {name: param for param in self.get_params(ctx) for name in (*param.opts, *param.secondary_opts)}
        ours, others = _split_options(
            own, {name: param for name, param in names.items() if isinstance(param, click.Option)}
        )
        ctx.meta["sbatch"], words = parse_sbatch_options(others)
        return super().parse_args(ctx, [*ours, *words])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Mention the sbatch options, which the list does not contain."""
        super().format_epilog(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text("Every option of sbatch works as well: --time 2:00:00, -p gpu, --requeue.")


def _split_options(args: list[str], ours: Mapping[str, click.Option]) -> tuple[list[str], list[str]]:
    """Split the arguments into options of this command with their values, and all other arguments."""
    mine: list[str] = []
    others: list[str] = []
    words = iter(args)
    for word in words:
        name, equals, _ = word.partition("=")
        short = word[:2] if not word.startswith("--") else name
        option = ours.get(name) or (ours.get(short) if short == "-j" else None)
        if option is None:
            others.append(word)
            continue
        # As in sbatch, an optional value needs an equals sign.
        may = bool(option.metavar and option.metavar.startswith("[="))
        mine.append(f"{name}={option.flag_value}" if may and not equals else word)
        alone = may or option.is_flag or equals or (short == "-j" and len(word) > 2)
        mine.extend([] if alone else [value for value in [next(words, None)] if value is not None])
    return mine, others


def parse_sbatch_options(words: list[str]) -> tuple[dict[str, object], list[str]]:
    """Parse the sbatch options of a command line. Return them by field name, and the remaining arguments.

    Raises:
        DirectiveError: sbatch has no such option, or its value is missing.
        SpecError: The option of sbatch is not an option of a job.
    """
    found: dict[str, object] = {}
    between: list[str] = []
    while words:
        options, rest = parse_options(words)
        for given in options.given:
            name = given.option.name.replace("-", "_")
            if name not in Resources.__struct_fields__:
                raise SpecError(
                    f"--{given.option.name} is not an option of a job",
                    found="sbatch uses it for the submission itself",
                    remedy="submit --wait follows the job to its end"
                    if name == "wait"
                    else "hpc-kit render ... > job.sbatch, then sbatch with it",
                )
            found[name] = True if given.value is None else given.value
        between += rest[:1]
        words = list(rest[1:])
    return found, between


def job_arguments(function: F) -> F:
    """Add the arguments that describe a job: its name, `-j`, `--set` and `--cluster`."""
    return click.argument("job", required=False)(job_options(function))


def job_options(function: F) -> F:
    """Add the options of `job_arguments` without the name of the job."""
    decorators = (
        click.option("-j", "shape", metavar="NODESxRANKS", help="Nodes x ranks per node, such as 4x2."),
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="KEY=VALUE",
            help="Override a key of the job file: resources.nodes=2.",
        ),
        click.option(
            "--cluster", metavar="NAME", help="Cluster file in env/ [default: the one that fits this machine]."
        ),
    )
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def parse_request() -> JobRequest:
    """Return the request of a command with `job_arguments`."""
    return _make_request(click.get_current_context().params["job"])


def parse_requests(jobs: tuple[str, ...]) -> list[JobRequest]:
    """Return the requests of a command with several jobs, or with a program alone.

    Raises:
        SpecError: Several jobs are combined with a program.
    """
    if len(jobs) > 1 and click.get_current_context().meta["program"]:
        raise SpecError(
            "arguments after -- belong to one job",
            found=f"{len(jobs)} jobs: {', '.join(jobs)}",
            remedy="name one job, or put the arguments into the `command` of its file",
        )
    found = [_make_request(job) for job in jobs] or [_make_request(None)]
    if (
        found[0].shape is not None
        and jobs
        and not found[0].program
        and search_path.is_program(jobs[0], search_path.current_folder())
    ):
        words = ("python", *jobs) if jobs[0].endswith(".py") else jobs
        raise SpecError(
            f"'{jobs[0]}' is a program, and no job file",
            remedy=f"write a program after --:  hpc-kit submit -j {found[0].shape} -- {shlex.join(words)}",
        )
    return found


def _make_request(job: str | None) -> JobRequest:
    ctx = click.get_current_context()
    given = ctx.params
    program, options = ctx.meta["program"], ctx.meta["sbatch"]
    # click keeps the equals sign of -j=4x2
    shape = given["shape"] and given["shape"].removeprefix("=")
    return JobRequest(job, program, shape, given["settings"], given["cluster"], options)


def resolve_request(request: JobRequest, root: Path, *, require_answer: bool = False) -> Resolved:
    """Resolve the job of a request for its cluster.

    Raises:
        SpecError: The request, or a file that it names, is invalid.
    """
    choice = (
        ClusterChoice(request.cluster, {})
        if request.cluster
        else default_cluster(root, os.environ, require_answer=require_answer)
    )
    return resolve(load_request(request, root, choice), root=root, render_command=render_command(request, choice))


def load_request(request: JobRequest, root: Path, choice: ClusterChoice) -> LoadedJob:
    """Load the job of a request and its cluster, and apply the options of the command line.

    Raises:
        SpecError: A file is missing or invalid.
    """
    settings = {**choice.settings, **_collect_settings(request)}
    job = request.job if request.job is not None else job_for_program(request.program)
    if request.job is not None and request.program:
        base = load.load_job(request.job, root=root)
        settings["command"] = [*base.command, *request.program]
    return load.load(job, choice.name, set=settings, root=root)


def job_for_program(program: tuple[str, ...]) -> Job:
    """Return a job that runs a program without a job file. The runtime starts it, so any program works.

    Raises:
        SpecError: The program is empty.
    """
    if not program:
        typed = f"hpc-kit {click.get_current_context().command.name}"
        raise SpecError(
            "neither a job nor a program", remedy=f"{typed} ddp_4node, or {typed} -j 4x2 -- python train.py"
        )
    if program[0].endswith(".py"):
        program = ("python", *program)
    stem = re.sub(r"[^\w.+-]+", "_", Path(_program_name(program)).name.removesuffix(".py")) or "job"
    return Job(name=stem, description=shlex.join(program), command=program, launch=Launch(bootstrap=True))


def _program_name(program: tuple[str, ...]) -> str:
    """Return the file or module that a command line runs, behind launchers and their options."""
    from hpc_kit.check.preflight import programs_of

    found = programs_of(program)
    last = next((each for each in reversed(found) if each.kind != "wrapper"), found[0])
    return last.file or last.module or last.program


def _collect_settings(request: JobRequest) -> dict[str, object]:
    """Return all settings that override the files, the more specific ones last."""
    settings: dict[str, object] = {}
    if request.shape is not None:
        shape = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", request.shape)
        if not shape:
            raise SpecError(f"-j {request.shape} is not of the form NODESxRANKS", remedy="nodes x ranks a node: -j 4x2")
        settings |= {"resources.nodes": int(shape[1]), "resources.ntasks_per_node": int(shape[2])}
    settings |= {f"resources.{name}": value for name, value in request.options.items()}
    for setting in request.settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise SpecError(f"--set {setting} sets nothing", remedy="--set resources.nodes=2")
        settings[key.strip()] = value
    return settings


def render_command(request: JobRequest, choice: ClusterChoice, *options: str) -> tuple[str, ...]:
    """Return the command line of `hpc-kit render` for a request.

    Args:
        request: The job.
        choice: Its cluster.
        options: Options before the job.
    """
    job_words = [*options, *([] if request.job is None else [request.job])]
    if request.shape is not None:
        job_words += ["-j", request.shape]
    sbatch_options: list[str] = []
    for name, value in request.options.items():
        option = f"--{name.replace('_', '-')}"
        sbatch_options.append(option if value is True else f"{option}={value}")
    settings = (*(f"{key}={value}" for key, value in choice.settings.items()), *request.settings)
    return format_render_command(
        job_words, choice.name, options=sbatch_options, settings=settings, program=request.program
    )


HOSTS = click.option(
    "--hosts",
    metavar="A,B,...",
    help="Hosts for ssh; a:4 means 4 ranks on a, n[1-4] are four hosts, ssh://a:2222 sets a port.",
)
HOSTFILE = click.option(
    "--hostfile",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Hosts as in a hostfile of mpirun: `a slots=4`, one host per line.",
)


def render_shell(request: JobRequest, hosts: Sequence[Host], root: Path, *, standalone: bool) -> tuple[Resolved, str]:
    """Return the job of a request, and a shell script that starts it without a scheduler.

    Args:
        request: The job.
        hosts: The hosts. Without any, the script expects one per node as arguments; a job of one node runs locally.
        root: The user's project.
        standalone: Render a script that needs no hpc_kit on the hosts.
    """
    from hpc_kit.ssh.rank_placement import count_ranks, render_shell_script

    written = ",".join(host.hosts_argument for host in hosts)
    resolved = resolve_on_hosts(hosts, request, root, "--shell", *(("--hosts", written) if hosts else ()))
    names, ranks = [host.ssh_argument for host in hosts], count_ranks(resolved, hosts)
    return resolved, render_shell_script(resolved, hosts=names, ranks=ranks, root=root, standalone=standalone)


def resolve_on_hosts(hosts: Sequence[Host], request: JobRequest, root: Path, *render_options: str) -> Resolved:
    """Resolve the job of a request for hosts. Each host is a node; the node count of the job file is ignored.

    Args:
        hosts: The hosts, in the order of the nodes. Without any, the job file sets the number of nodes.
        request: The job.
        root: The user's project.
        render_options: Options of the `hpc-kit render` command that makes the same script.

    Raises:
        SpecError: The request, or a file that it names, is invalid.
    """
    from hpc_kit.ssh.rank_placement import check_cluster, place_job

    choice = ClusterChoice(request.cluster, {}) if request.cluster else ssh_cluster(root, os.environ)
    if hosts and request.shape is not None and not request.shape.startswith(f"{len(hosts)}x"):
        raise SpecError(
            f"-j {request.shape} does not fit {len(hosts)} hosts",
            found=", ".join(host.name for host in hosts),
            remedy=f"-j {len(hosts)}xRANKS, or another number of hosts",
        )
    loaded = load_request(request, root, choice)
    if loaded.cluster.slurm == "embedded":
        raise SpecError(
            f"the nodes of cluster {loaded.cluster.name} are processes of this machine; ssh cannot reach them",
            found="slurm = 'embedded'",
            remedy="--cluster hosts",
        )
    loaded = structs.replace(loaded, job=place_job(loaded.job, hosts))
    resolved = resolve(loaded, root=root, render_command=render_command(request, choice, *render_options))
    check_cluster(resolved)
    return resolved
