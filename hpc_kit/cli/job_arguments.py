"""What the user asked for: the arguments that `render`, `check` and `submit` share, and the job they make."""

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
        names = {name: param for param in self.get_params(ctx) for name in (*param.opts, *param.secondary_opts)}
        ours, others = _split_options(
            own, {name: param for name, param in names.items() if isinstance(param, click.Option)}
        )
        ctx.meta["sbatch"], words = parse_sbatch_options(others)
        return super().parse_args(ctx, [*ours, *words])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Say what the table of options leaves out."""
        super().format_epilog(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text("Every option of sbatch is an option here, too: --time 2:00:00, -p gpu, --requeue.")


def _split_options(args: list[str], ours: Mapping[str, click.Option]) -> tuple[list[str], list[str]]:
    """The words of our own options, with their values; and all others."""
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
        # As with sbatch's own, a value that may be left out is written behind an equals sign.
        may = bool(option.metavar and option.metavar.startswith("[="))
        mine.append(f"{name}={option.flag_value}" if may and not equals else word)
        alone = may or option.is_flag or equals or (short == "-j" and len(word) > 2)
        mine.extend([] if alone else [value for value in [next(words, None)] if value is not None])
    return mine, others


def parse_sbatch_options(words: list[str]) -> tuple[dict[str, object], list[str]]:
    """Sbatch's options in a command line, by field name and as sbatch itself reads them; and the words between them.

    Raises:
        DirectiveError: An option that sbatch does not have, or one without its value.
        SpecError: An option of sbatch that is not a job's.
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
                    found="sbatch has it, for the submission itself",
                    remedy="submit --wait follows the job to its end"
                    if name == "wait"
                    else "hpc-kit render ... > job.sbatch, then sbatch with it",
                )
            found[name] = True if given.value is None else given.value
        between += rest[:1]
        words = list(rest[1:])
    return found, between


def job_arguments(function: F) -> F:
    """The arguments of a command that makes a job: its name or `-j`, `--set`, `--cluster`."""
    return click.argument("job", required=False)(job_options(function))


def job_options(function: F) -> F:
    """As `job_arguments`, without the job's name."""
    decorators = (
        click.option("-j", "shape", metavar="NODESxRANKS", help="Nodes x ranks a node, such as 4x2."),
        click.option(
            "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override anything: resources.nodes=2."
        ),
        click.option("--cluster", metavar="NAME", help="Cluster file in env/ [default: what fits this machine]."),
    )
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def parse_request() -> JobRequest:
    """The request that the arguments of `job_arguments` make."""
    return _make_request(click.get_current_context().params["job"])


def parse_requests(jobs: tuple[str, ...]) -> list[JobRequest]:
    """The requests that `job_options` make of several jobs, or of a program without any.

    Raises:
        SpecError: A program stands behind several jobs.
    """
    if len(jobs) > 1 and click.get_current_context().meta["program"]:
        raise SpecError(
            "words behind -- belong to one job",
            found=f"{len(jobs)} jobs: {', '.join(jobs)}",
            remedy="one job; or the words in the `command` of its file",
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
            remedy=f"a program stands behind --:  hpc-kit submit -j {found[0].shape} -- {shlex.join(words)}",
        )
    return found


def _make_request(job: str | None) -> JobRequest:
    ctx = click.get_current_context()
    given = ctx.params
    program, options = ctx.meta["program"], ctx.meta["sbatch"]
    # click takes the sign along: -j=4x2
    shape = given["shape"] and given["shape"].removeprefix("=")
    return JobRequest(job, program, shape, given["settings"], given["cluster"], options)


def resolve_request(request: JobRequest, root: Path, *, require_answer: bool = False) -> Resolved:
    """The job of a request, fitted to its cluster; `sure`: see `default_cluster`.

    Raises:
        SpecError: The request, or a file that it names, says something that cannot be.
    """
    choice = (
        ClusterChoice(request.cluster, {})
        if request.cluster
        else default_cluster(root, os.environ, require_answer=require_answer)
    )
    return resolve(load_request(request, root, choice), root=root, render_command=render_command(request, choice))


def load_request(request: JobRequest, root: Path, choice: ClusterChoice) -> LoadedJob:
    """The job of a request and its cluster, as files and command line say.

    Raises:
        SpecError: A file is missing, or something says what cannot be.
    """
    settings = {**choice.settings, **_collect_settings(request)}
    job = request.job if request.job is not None else job_for_program(request.program)
    if request.job is not None and request.program:
        base = load.load_job(request.job, root=root)
        settings["command"] = [*base.command, *request.program]
    return load.load(job, choice.name, set=settings, root=root)


def job_for_program(program: tuple[str, ...]) -> Job:
    """The job of a program without a job file: started through the runtime, so that it need not know us.

    Raises:
        SpecError: There is no program.
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
    """What a command line is about: the file or module at its end, whatever starts it with whatever options."""
    from hpc_kit.check.preflight import programs_of

    found = programs_of(program)
    last = next((each for each in reversed(found) if each.kind != "wrapper"), found[0])
    return last.file or last.module or last.program


def _collect_settings(request: JobRequest) -> dict[str, object]:
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
    help="Hosts that ssh reaches; a:4 takes 4 ranks, n[1-4] are four, ssh://a:2222 has a port.",
)
HOSTFILE = click.option(
    "--hostfile",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The same as mpirun's: a slots=4, a host a line.",
)


def render_shell(request: JobRequest, hosts: Sequence[Host], root: Path, *, standalone: bool) -> tuple[Resolved, str]:
    """The job of a request, and the plain shell script that starts it.

    Args:
        request: The job.
        hosts: Where; none: the script takes as many as the job has nodes, or, with one node, runs where it is.
        root: The user's project.
        standalone: Need no hpc_kit on the hosts.
    """
    from hpc_kit.ssh.rank_placement import count_ranks, render_shell_script

    written = ",".join(host.hosts_argument for host in hosts)
    resolved = resolve_on_hosts(hosts, request, root, "--shell", *(("--hosts", written) if hosts else ()))
    names, ranks = [host.ssh_argument for host in hosts], count_ranks(resolved, hosts)
    return resolved, render_shell_script(resolved, hosts=names, ranks=ranks, root=root, standalone=standalone)


def resolve_on_hosts(hosts: Sequence[Host], request: JobRequest, root: Path, *render_options: str) -> Resolved:
    """The job of a request, laid over hosts that ssh reaches; a node each, whatever its file says of nodes.

    Args:
        hosts: Them; none: as many as the job has nodes.
        request: The job.
        root: The user's project.
        render_options: Options of the `hpc-kit render` command that makes the same script.

    Raises:
        SpecError: The request, or a file that it names, says something that cannot be.
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
            f"the nodes of cluster {loaded.cluster.name} are this machine: ssh reaches none of them",
            found="slurm = 'embedded'",
            remedy="--cluster hosts",
        )
    loaded = structs.replace(loaded, job=place_job(loaded.job, hosts))
    resolved = resolve(loaded, root=root, render_command=render_command(request, choice, *render_options))
    check_cluster(resolved)
    return resolved
