"""Renders the script of a job, byte for byte as sbatch gets it.

The templates show the script. This module fills them, and turns errors in a template into messages with its name and
line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from hpc_kit.errors import SpecError, TemplateError, page
from hpc_kit.script.context import template_values, working_folder
from hpc_kit.script.quoting import quoting_environment
from hpc_kit.script.shell_files import read_shell_files, write_shell_files
from hpc_kit.spec import load, search_path
from hpc_kit.spec.default_cluster import default_cluster
from hpc_kit.spec.resolve import Resolved, format_render_command, resolve
from hpc_kit.spec.shell_code import check_setup
from hpc_kit.spec.toml_documents import format_toml_value

if TYPE_CHECKING:
    from jinja2 import Environment, FileSystemBytecodeCache
    from jinja2.bccache import Bucket

    from hpc_kit.spec.cluster import Cluster
    from hpc_kit.spec.job import Job

_CPU_SECONDS = 5.0
"""CPU time that a rendering may use. The shipped templates need a tenth of a second with an empty cache."""


def render(
    job: str | Path | Job,
    cluster: str | Path | Cluster | None = None,
    *,
    set: Mapping[str, object] | None = None,  # noqa: A002 - the option's name
    standalone: bool = False,
    simple: bool = False,
    root: str | Path | None = None,
) -> str:
    """Return the sbatch script of a job on a cluster.

    Also write the shell files that the script calls to the runs folder of the project, unless they are there.

    Args:
        job: Name or path of a job file, or a job.
        cluster: Name or path of a cluster file, or a cluster (default: the one that fits this machine).
        set: Values that replace those of the files, by dotted key: {"resources.nodes": 2}.
        standalone: Make a script that needs neither hpc_kit on the nodes nor its shell files in the project.
        simple: Make a script with only the plain srun line: it forwards no signals and records no first failure.
        root: The user's project, with jobs/, env/ and templates/ (default: the current folder).

    Raises:
        SpecError: A file is missing, or a value is not valid.
        TemplateError: The template is missing, or uses a value that does not exist.
        RecordError: The shell files cannot be written.
    """
    root = Path(root or search_path.current_folder())
    resolved = resolve_arguments(job, cluster, set or {}, root)
    text = render_resolved(resolved, standalone=standalone, simple=simple, root=root)
    write_shell_files(text, resolved, root)
    return text


def resolve_arguments(
    job: str | Path | Job,
    cluster: str | Path | Cluster | None,
    set: Mapping[str, object],  # noqa: A002 - the option's name
    root: Path,
    *,
    require_answer: bool = False,
    check: bool = True,
) -> Resolved:
    """Return the job that the arguments of `render` name, fitted to its cluster.

    `require_answer`: see `default_cluster`. A submission must know the cluster; rendering works without.
    """
    if cluster is None:
        choice = default_cluster(root, os.environ, require_answer=require_answer)
        cluster, set = choice.name, {**choice.settings, **set}  # noqa: A001
    loaded = load.load(job, cluster, set=set, root=root)
    render_command = _build_render_command(str(job), cluster, set) if isinstance(job, str | Path) else ()
    return resolve(loaded, root=root, render_command=render_command, check=check)


def _build_render_command(job: str, cluster: str | Path | Cluster, set: Mapping[str, object]) -> tuple[str, ...]:  # noqa: A002
    """Return the command that renders the same script; empty if a value is None, which TOML cannot express."""
    if None in set.values():
        return ()
    name = str(cluster) if isinstance(cluster, str | Path) else cluster.name
    values = {key: value if isinstance(value, str) else format_toml_value(value) for key, value in set.items()}
    return format_render_command([job], name, settings=(f"{key}={value}" for key, value in values.items()))


def render_resolved(resolved: Resolved, *, standalone: bool = False, simple: bool = False, root: Path) -> str:
    """Return the script of a job that is fitted to its cluster; writes no files."""
    _check_variant(resolved, standalone=standalone, simple=simple)
    check_setup(resolved.cluster.setup, resolved.job.setup)
    if standalone:
        # sbatch may run anywhere: the names in the script start at the project.
        folder = working_folder(resolved, root)
        resources = structs.replace(resolved.job.resources, chdir=str(folder))
        resolved = structs.replace(resolved, job=structs.replace(resolved.job, resources=resources))
    name = resolved.job.template
    path = search_path.find_file("templates", name, root, suffix=search_path.TEMPLATE)
    shell, shown = read_shell_files(resolved, root), search_path.display_path(path, root)
    values = template_values(resolved, template=shown, standalone=standalone, simple=simple, shell=shell)
    return fill_template(path, values, root)


def _check_variant(resolved: Resolved, *, standalone: bool, simple: bool) -> None:
    """Refuse a standalone or simple script that cannot do what the job needs."""
    if not (standalone or simple):
        return
    job, launch, argv = resolved.job, resolved.job.launch, resolved.argv
    kind, spares = "standalone" if standalone else "simple", job.restart.spares if job.restart else 0
    runs_hpc_kit = any(word == "hpc_kit" or word.startswith("hpc_kit.") for word in argv)
    for is_refused, what, found, alternative in (
        (standalone and launch.backend == "mpi", "has no backend mpi", "backend = mpi", "--set launch.backend=gloo"),
        (standalone and runs_hpc_kit, "cannot run a program of hpc_kit", " ".join(argv), ""),
        (standalone and spares > 0, "has no spare nodes", f"[restart] spares = {spares}", "set spares = 0"),
        (job.preflight.enabled, "has no preflight", "[preflight] enabled = true", "--set preflight.enabled=false"),
        (simple and job.restart is not None, "cannot start its job again", "[restart]", "leave [restart] out"),
        (simple and launch.launcher == "ray", "cannot start Ray", "launcher = ray", ""),
    ):
        if is_refused:
            remedy = f"leave --{kind} out" + (f", or {alternative}" if alternative else "")
            raise SpecError(f"a {kind} script {what}", found=f"job {job.name}: {found}", remedy=remedy)


def fill_template(path: Path, values: Mapping[str, object], root: Path) -> str:
    """Return the text of a template with its values."""
    with _template_errors(path.name.removesuffix(search_path.TEMPLATE)), _cpu_limit():
        text = _jinja_environment(root, path.parent).get_template(path.name).render(values)
    _check_encoding(text)
    return text


def _check_encoding(text: str) -> None:
    """Refuse text that is not UTF-8. Words of the command line may contain any bytes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        line = text[: error.start].rpartition("\n")[2] + text[error.start : error.end]
        raise SpecError(
            "a value of the job is not UTF-8",
            found=os.fsencode(line).decode(errors="backslashreplace"),
            remedy="write the text in UTF-8; put other bytes into a file",
        ) from error


def _jinja_environment(root: Path, folder: Path) -> Environment:
    """Return Jinja2's environment. It first looks for files in the folder of the template."""
    from jinja2 import FileSystemLoader, StrictUndefined

    return quoting_environment(
        loader=FileSystemLoader((folder, *search_path.search_folders("templates", root))),
        undefined=StrictUndefined,
        bytecode_cache=_bytecode_cache(),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # escapes for HTML; the filters quote for the shell
    )


def _bytecode_cache() -> FileSystemBytecodeCache | None:
    """Return a cache of compiled templates, or None. Compiling takes longer than all other work of a rendering."""
    from jinja2 import FileSystemBytecodeCache

    class Cache(FileSystemBytecodeCache):
        """A cache that ignores a full disk and an unreadable file."""

        def load_bytecode(self, bucket: Bucket) -> None:
            with suppress(OSError):
                super().load_bytecode(bucket)

        def dump_bytecode(self, bucket: Bucket) -> None:
            with suppress(OSError):
                super().dump_bytecode(bucket)

    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(home) / "hpc_kit"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
        # A cache contains code, so no other user may write to it.
        usable = found.st_uid == os.getuid() and not found.st_mode & 0o022 and os.access(folder, os.W_OK)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home folder
        return None
    # Earlier releases, which had no sandbox, used other file names.
    return Cache(str(folder), "sandboxed-%s.cache") if usable else None


@contextmanager
def _cpu_limit() -> Iterator[None]:
    """Raise TimeoutError when the block has used too much CPU time.

    There is no limit in other threads than the main thread, which runs all signal handlers, and in a program that uses
    SIGPROF itself, such as a profiler.
    """
    import signal
    import time
    from threading import current_thread, main_thread

    if current_thread() is not main_thread() or signal.getsignal(signal.SIGPROF) != signal.SIG_DFL:
        yield
        return
    end = time.thread_time() + _CPU_SECONDS

    def stop(*_: object) -> None:
        # The timer also counts the CPU time of other threads.
        if time.thread_time() >= end:
            raise TimeoutError(f"rendering took longer than {_CPU_SECONDS:g} s of CPU")

    signal.signal(signal.SIGPROF, stop)
    try:
        # The timer repeats, because Jinja2 ignores exceptions of constant expressions while it compiles them.
        signal.setitimer(signal.ITIMER_PROF, _CPU_SECONDS, _CPU_SECONDS / 10)
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)


@contextmanager
def _template_errors(name: str) -> Iterator[None]:
    """Turn errors of Jinja2 and of the template into `TemplateError`, with the name of the file and the line."""
    from jinja2 import TemplateNotFound, TemplateSyntaxError, UndefinedError
    from jinja2.exceptions import SecurityError

    try:
        yield
    except TemplateNotFound as error:
        raise TemplateError(
            f"template {name} includes {error.name}, which is missing",
            remedy="copy that file to templates/ of the project, or remove the include",
        ) from error
    except TemplateSyntaxError as error:
        raise TemplateError(
            f"template {error.filename}, line {error.lineno}: {error.message}", remedy="fix the template"
        ) from error
    except SecurityError as error:
        raise TemplateError(
            f"template {name} would run code",
            found=f"{error.message}{_template_line(error)}",
            remedy="read the template before you use this project;\n"
            "a template may call macros, filters and methods of texts, and nothing else",
        ) from error
    except UndefinedError as error:
        raise TemplateError(
            f"template {name} uses a value that does not exist",
            found=f"{error.message}{_template_line(error)}",
            remedy=f"use a value that {page('templates.md')} lists; test an optional one with 'is not none'",
        ) from error
    except TemplateError:
        raise
    except Exception as error:  # a template is a program: it can raise anything
        raise TemplateError(
            f"template {name} cannot be rendered",
            found=f"{_describe_error(error)}{_template_line(error)}",
            remedy=_REMEDIES.get(type(error).__name__, "fix the template").format(page=page("templates.md")),
        ) from error


_REMEDIES = {
    "RecursionError": "give the template another name than the one that it extends or includes",
    "TimeoutError": "read the template: a loop or a repeated text in it does not end",
    "TemplateRuntimeError": "fill the block 'launch' of base.sbatch.j2: see {page}",
    "UnicodeDecodeError": "save the template as UTF-8",
}


def _describe_error(error: Exception) -> str:
    from jinja2 import TemplateError as JinjaError

    return str(error.message) if isinstance(error, JinjaError) else f"{type(error).__name__}: {error}"


def _template_line(error: BaseException) -> str:
    """Return file and line of the innermost frame in a template, in parentheses; empty if there is none."""
    place, trace = "", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name.endswith(".j2"):
            place = f" ({Path(name).name}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return place
