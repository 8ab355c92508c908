"""The arguments that describe a job, shared by `render`, `check`, `submit` and `launch`; and the resulting job."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem
from msgspec import Struct, structs

from hpc_kit.cli.options import CLUSTER_OPTION, FILE
from hpc_kit.errors import SpecError
from hpc_kit.slurm.getopt import parse_options
from hpc_kit.spec import load, search_path
from hpc_kit.spec.cluster import Cluster
from hpc_kit.spec.default_cluster import ClusterChoice, configured_name, default_cluster
from hpc_kit.spec.job import Job
from hpc_kit.spec.job_checks import Origins
from hpc_kit.spec.launch_from_command import adopt_launcher, check_launcher_size
from hpc_kit.spec.launcher_command import find_launcher
from hpc_kit.spec.load import LoadedJob
from hpc_kit.spec.resolve import Resolved, format_render_command, resolve
from hpc_kit.spec.resources import Resources
from hpc_kit.spec.typed_values import dotted_keys

if TYPE_CHECKING:
    from pathlib import Path

    from hpc_kit.ssh.hosts import LaunchHost


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
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        names = {name: option for option in options for name in (*option.opts, *option.secondary_opts)}
        known, others = _split_arguments(split_program(ctx, args), names)
        if ctx.resilient_parsing:  # the completion of an unfinished line
            ctx.meta["sbatch"], words = {}, [word for word in others if not word.startswith("-")]
        else:
            ctx.meta["sbatch"], words = parse_sbatch_options(others)
        # Options come last, so that one without its value does not take the name of the job.
        return super().parse_args(ctx, [*words, *known])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete sbatch's options, too."""
        found = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            own = {item.value for item in found}
            names = [f"--{name.replace('_', '-')}" for name in Resources.__struct_fields__]
            found += [CompletionItem(name) for name in names if name.startswith(incomplete) and name not in own]
        return found

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Mention the sbatch options, which the list does not contain."""
        super().format_epilog(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text("Every option of sbatch works as well: --time 2:00:00, -p gpu, --requeue.")


def split_program(ctx: click.Context, args: list[str]) -> list[str]:
    """Return the arguments before `--`, and store the program after it in click's `meta`."""
    end = args.index("--") if "--" in args else len(args)
    ctx.meta["program"] = tuple(args[end + 1 :])
    return args[:end]


def _split_arguments(args: list[str], options: Mapping[str, click.Option]) -> tuple[list[str], list[str]]:
    """Split the arguments into options of this command with their values, and all other arguments."""
    known: list[str] = []
    others: list[str] = []
    words = iter(args)
    for word in words:
        name, equals, _ = word.partition("=")
        has_short_value = word.startswith("-j") and len(word) > 2  # -j4x2
        option = options["-j"] if has_short_value else options.get(name)
        if option is None:
            others.append(word)
            continue
        # As in sbatch, an optional value needs an equals sign.
        is_optional = bool(option.metavar and option.metavar.startswith("[="))
        known.append(f"{name}={option.flag_value}" if is_optional and not equals else word)
        if not (is_optional or option.is_flag or equals or has_short_value):
            known += [value for value in [next(words, None)] if value is not None]
    return known, others


def parse_sbatch_options(words: list[str]) -> tuple[dict[str, object], list[str]]:
    """Parse the sbatch options of a command line. Return them by field name, and the remaining arguments."""
    values: dict[str, object] = {}
    arguments: list[str] = []
    while words:
        options, rest = parse_options(words)
        for each in options.given:
            name = each.option.name.replace("-", "_")
            if name not in Resources.__struct_fields__:
                by_hand = "hpc-kit render ... > job.sbatch, then sbatch with it"
                raise SpecError(
                    f"--{each.option.name} is not an option of a job",
                    found="sbatch uses it for the submission itself",
                    remedy="submit --wait follows the job to its end" if name == "wait" else by_hand,
                )
            values[name] = True if each.value is None else each.value
        # Options may follow an argument.
        arguments += rest[:1]
        words = list(rest[1:])
    return values, arguments


def job_arguments(function: F) -> F:
    """Add the arguments that describe a job: its name, `-j`, `--set` and `--cluster`."""
    return click.argument("job", required=False, shell_complete=complete_job)(job_options(function))


def complete_job(context: click.Context, _parameter: object, start: str) -> list[CompletionItem]:
    """Return the names of jobs that begin with a text. After `--` or without such a job, the shell completes files."""
    names = [] if context.meta.get("program") else search_path.file_names("jobs", search_path.current_folder())
    found = [CompletionItem(name) for name in names if name.startswith(start) and name != "base"]
    return found or [CompletionItem(start, type="file")]


def _complete_setting(_context: object, _parameter: object, start: str) -> list[str]:
    """Return the keys of job and cluster files that begin with a text, each with the equals sign that follows."""
    keys = [*dotted_keys(Job), *dotted_keys(Cluster, load.CLUSTER_PREFIX)]
    return [key if key.endswith(".") else f"{key}=" for key in keys if key.startswith(start)]


def job_options(function: F) -> F:
    """Add the options of `job_arguments` without the name of the job."""
    shape = click.option("-j", "shape", metavar="NODESxRANKS", help="Nodes x ranks per node, such as 4x2.")
    settings = click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="Override a key of the job file: resources.nodes=2.",
        shell_complete=_complete_setting,
    )
    return shape(settings(CLUSTER_OPTION(function)))


def parse_requests(jobs: tuple[str, ...]) -> list[JobRequest]:
    """Return the requests of a command with several jobs, or with a program alone."""
    if len(jobs) > 1 and click.get_current_context().meta["program"]:
        raise SpecError(
            "arguments after -- belong to one job",
            found=f"{len(jobs)} jobs: {', '.join(jobs)}",
            remedy="name one job, or put the arguments into the `command` of its file",
        )
    requests = [parse_request(job) for job in jobs or (None,)]
    shape, program = requests[0].shape, requests[0].program
    is_line = shape is not None or len(jobs) > 1
    if is_line and jobs and not program and search_path.is_program(jobs[0], search_path.current_folder()):
        words = ("python", *jobs) if jobs[0].endswith(".py") else jobs
        raise SpecError(
            f"'{jobs[0]}' is a program, and no job file",
            remedy=f"write a program after --:  hpc-kit submit -j {shape or '4x2'} -- {shlex.join(words)}",
        )
    return requests


def parse_request(job: str | None) -> JobRequest:
    """Return the request of the command that runs, for one of its jobs."""
    ctx = click.get_current_context()
    values = ctx.params
    # click keeps the equals sign of -j=4x2
    shape = values["shape"] and values["shape"].removeprefix("=")
    settings, options, save = values["settings"], ctx.meta["sbatch"], values.get("save")
    if save is not None and "job_name" not in options and not any(each.startswith("name=") for each in settings):
        # The job has the name of the file to which --save writes it, now as later.
        settings = (f"name={save.stem}", *settings)
    return JobRequest(job, ctx.meta["program"], shape, settings, values["cluster"], options)


def resolve_request(request: JobRequest, root: Path, *, require_answer: bool = False, check: bool = True) -> Resolved:
    """Resolve the job of a request for its cluster. See `default_cluster` and `resolve` for the options."""
    choice = (
        ClusterChoice(request.cluster, {})
        if request.cluster
        else default_cluster(root, os.environ, require_answer=require_answer)
    )
    loaded = load_request(request, root, choice)
    return resolve(loaded, root=root, render_command=render_command(request, choice), check=check)


def load_request(request: JobRequest, root: Path, choice: ClusterChoice) -> LoadedJob:
    """Load the job of a request and its cluster, and apply the options of the command line."""
    settings = {**choice.settings, **_collect_settings(request)}
    if request.job is not None:
        if request.program:
            settings["command"] = [*load.load_job(request.job, root=root).command, *request.program]
        return load.load(request.job, choice.name, set=settings, root=root)
    if not request.program:
        kit = f"hpc-kit {click.get_current_context().command.name}"
        raise SpecError("neither a job nor a program", remedy=f"{kit} ddp_4node, or {kit} -j 4x2 -- python train.py")
    from hpc_kit.submission.program_job import job_for_program

    return load.load(job_for_program(request.program), choice.name, set=settings, root=root)


def _collect_settings(request: JobRequest) -> dict[str, object]:
    """Return all settings that override the files, the more specific ones last."""
    settings: dict[str, object] = {}
    if request.shape is not None:
        shape = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", request.shape)
        if not shape:
            example = f"1x{request.shape}" if re.fullmatch(r"[1-9]\d*", request.shape) else "4x2"
            raise SpecError(
                f"-j {request.shape} is not of the form NODESxRANKS",
                remedy=f"write nodes x ranks per node: -j {example}",
            )
        settings |= {"resources.nodes": int(shape[1]), "resources.ntasks_per_node": int(shape[2])}
        # -j counts ranks. As a number of tasks, 1 would also mean one torchrun that starts more ranks.
        if (launcher := find_launcher(request.program or ())) and launcher.kind == "torchrun":
            check_launcher_size(launcher, int(shape[1]), int(shape[2]))
    settings |= {f"resources.{name}": value for name, value in request.options.items()}
    return settings | parse_settings(request.settings)


def parse_settings(settings: Iterable[str]) -> dict[str, object]:
    """Return the values of `--set KEY=VALUE` by key."""
    values: dict[str, object] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise SpecError(
                f"--set {setting} sets nothing", found="a key without a value", remedy="write --set resources.nodes=2"
            )
        values[key.strip()] = value
    return values


def render_command(request: JobRequest, choice: ClusterChoice, *options: str) -> tuple[str, ...]:
    """Return the command line of `hpc-kit render` for a request."""
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
    type=FILE,
    metavar="FILE",
    help="Hosts as in a hostfile of mpirun: `a slots=4`, one host per line.",
)


def render_shell(
    request: JobRequest, hosts: Sequence[LaunchHost], root: Path, *, standalone: bool
) -> tuple[Resolved, str]:
    """Return the job of a request, and a shell script that starts it without a scheduler.

    Without hosts, the script expects one per node as arguments; a job of one node runs locally.
    """
    from hpc_kit.ssh.rank_placement import count_ranks, render_shell_script

    written = ",".join(host.hosts_argument for host in hosts)
    resolved = resolve_on_hosts(hosts, request, root, "--shell", *(("--hosts", written) if hosts else ()))
    names, ranks = [host.ssh_argument for host in hosts], count_ranks(resolved, hosts)
    return resolved, render_shell_script(resolved, hosts=names, ranks=ranks, root=root, standalone=standalone)


def resolve_on_hosts(hosts: Sequence[LaunchHost], request: JobRequest, root: Path, *render_options: str) -> Resolved:
    """Resolve the job of a request for hosts. Each host is a node; the node count of the job file is ignored.

    Without hosts, the job file sets the number of nodes. `render_options` make `hpc-kit render` print the same script.
    """
    from hpc_kit.ssh.rank_placement import check_cluster, place_job

    choice = ClusterChoice(request.cluster or configured_name(root, os.environ) or "hosts", {})
    if hosts and request.shape is not None and not request.shape.startswith(f"{len(hosts)}x"):
        raise SpecError(
            f"-j {request.shape} does not fit {len(hosts)} hosts",
            found=", ".join(host.name for host in hosts),
            remedy=f"write -j {len(hosts)}xRANKS, or name another number of hosts",
        )
    loaded = load_request(request, root, choice)
    if loaded.cluster.slurm == "embedded":
        raise SpecError(
            f"the nodes of cluster {loaded.cluster.name} are processes of this machine; ssh cannot reach them",
            found="slurm = 'embedded'",
            remedy="use --cluster hosts",
        )
    origins = Origins(loaded.job_origins, loaded.cluster_origins)
    job, _ = adopt_launcher(loaded.job, loaded.cluster, origins, root)
    loaded = structs.replace(loaded, job=place_job(job, hosts))
    resolved = resolve(loaded, root=root, render_command=render_command(request, choice, *render_options))
    check_cluster(resolved)
    return resolved
