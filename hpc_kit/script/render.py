"""`render(job, cluster) -> str`: the very bytes that sbatch gets.

The templates show the script; this module only hands them values that are ready, and turns what can go wrong in a
template into an error that names the template and the line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_kit import run_files
from hpc_kit.errors import SpecError, TemplateError, page
from hpc_kit.script import quoting
from hpc_kit.script.context import context
from hpc_kit.spec import load, search_path
from hpc_kit.spec.default_cluster import default_cluster
from hpc_kit.spec.resolve import Resolved, resolve
from hpc_kit.spec.toml_documents import format_toml_value

if TYPE_CHECKING:
    from jinja2 import Environment, FileSystemBytecodeCache
    from jinja2.bccache import Bucket

    from hpc_kit.spec.cluster import Cluster
    from hpc_kit.spec.job import Job


def render(
    job: str | Path | Job,
    cluster: str | Path | Cluster | None = None,
    *,
    set: Mapping[str, object] | None = None,  # noqa: A002 - the option's name
    standalone: bool = False,
    root: str | Path | None = None,
) -> str:
    """The sbatch script of a job on a cluster.

    Args:
        job: Name or path of a job file, or a job.
        cluster: Name or path of a cluster file, or a cluster (default: what fits this machine).
        set: Values over those of the files, by dotted key: {"resources.nodes": 2}.
        standalone: Need no hpc_kit on the nodes.
        root: The user's project, where jobs/, env/ and templates/ are looked for (default: the current folder).

    Raises:
        SpecError: A file is missing or says something that cannot be.
        TemplateError: The template is missing or asks for a value that does not exist.
    """
    root = Path(root or search_path.current_folder())
    return render_resolved(resolved_of(job, cluster, set or {}, root), standalone=standalone, root=root)


def resolved_of(
    job: str | Path | Job,
    cluster: str | Path | Cluster | None,
    set: Mapping[str, object],  # noqa: A002 - the option's name
    root: Path,
    *,
    sure: bool = False,
) -> Resolved:
    """The job of `render`'s arguments, fitted to its cluster.

    Args:
        job: As there.
        cluster: As there.
        set: As there.
        root: The user's project.
        sure: See `default_cluster`: a script needs no controller, its submission does.

    Raises:
        SpecError: A file is missing or says something that cannot be.
        SlurmUnavailable: Which cluster fits cannot be known, and has to be.
    """
    if cluster is None:
        choice = default_cluster(root, os.environ, sure=sure)
        cluster, set = choice.name, {**choice.settings, **set}  # noqa: A001
    loaded = load.load(job, cluster, set=set, root=root)
    again = _command_line(str(job), cluster, set) if isinstance(job, str | Path) else ()
    return resolve(loaded, root=root, again=again)


def _command_line(job: str, cluster: str | Path | Cluster, set: Mapping[str, object]) -> tuple[str, ...]:  # noqa: A002
    """The command that prints the same script again, for the header; none where a value is None, which TOML has not."""
    if None in set.values():
        return ()
    name = str(cluster) if isinstance(cluster, str | Path) else cluster.name
    values = {key: value if isinstance(value, str) else format_toml_value(value) for key, value in set.items()}
    chosen = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    return ("hpc-kit", "render", job, "--cluster", name, *chosen)


def render_resolved(resolved: Resolved, *, standalone: bool = False, root: Path) -> str:
    """The script of a job that is already fitted to its cluster.

    Raises:
        TemplateError: The template is missing or asks for a value that does not exist.
    """
    name = resolved.job.template
    path = search_path.find("templates", name, root, suffix=search_path.TEMPLATE)
    return fill(path, context(resolved, template=search_path.shown(path, root), standalone=standalone), root)


def fill(path: Path, values: Mapping[str, object], root: Path) -> str:
    """A template with its values.

    Raises:
        TemplateError: It asks for a value that does not exist, or is no template.
        SpecError: A value holds bytes that are no UTF-8.
    """
    with _template_errors(path.name.removesuffix(search_path.TEMPLATE)):
        text = _environment(root, path.parent).get_template(path.name).render(values)
    _check_text(text)
    return text


def _check_text(text: str) -> None:
    """A word of the command line may be made of any bytes; those of a script are UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        line = text[: error.start].rpartition("\n")[2] + text[error.start : error.end]
        raise SpecError(
            "a value of the job is no UTF-8",
            found=os.fsencode(line).decode(errors="backslashreplace"),
            remedy="the same text in UTF-8; bytes that are no text belong into a file, or into the program",
        ) from error


def _environment(root: Path, own: Path) -> Environment:
    from jinja2 import FileSystemLoader, StrictUndefined

    from hpc_kit.script.filtered import Filtered

    environment = Filtered(
        loader=FileSystemLoader((own, *search_path.folders("templates", root))),
        undefined=StrictUndefined,
        bytecode_cache=_bytecode_cache(),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # shell, not HTML: each place has its own quoting filter
    )
    environment.filters.update(quoting.FILTERS)
    environment.globals["run_files"] = run_files
    return environment


def _bytecode_cache() -> FileSystemBytecodeCache | None:
    """Compiled templates, kept between calls: compiling them takes longer than all else that render does."""
    from jinja2 import FileSystemBytecodeCache

    class Cache(FileSystemBytecodeCache):
        """One that a full disk or an unreadable file only makes slow."""

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
        usable = folder.stat().st_uid == os.getuid() and os.access(folder, os.W_OK)
    except (OSError, RuntimeError):  # a user without a home
        return None
    # What was compiled before values were looked at has another name.
    return Cache(str(folder), "filtered-%s.cache") if usable else None


@contextmanager
def _template_errors(name: str) -> Iterator[None]:
    from jinja2 import TemplateNotFound, TemplateSyntaxError, UndefinedError

    try:
        yield
    except TemplateNotFound as error:
        raise TemplateError(
            f"template {name} needs {error.name}, which is missing", remedy="copy it beside, or drop it there"
        ) from error
    except TemplateSyntaxError as error:
        raise TemplateError(
            f"template {error.filename}, line {error.lineno}: {error.message}", remedy="mend the template"
        ) from error
    except UndefinedError as error:
        raise TemplateError(
            f"template {name} asks for a value that does not exist",
            found=f"{error.message}{_line_of(error)}",
            remedy=f"{page('templates.md')} lists the values; an optional one is tested with 'is not none'",
        ) from error
    except TemplateError:
        raise
    except Exception as error:  # a template is a program, and can fail in any way that one can
        raise TemplateError(
            f"template {name} cannot be rendered",
            found=f"{_reason(error)}{_line_of(error)}",
            remedy=_REMEDIES.get(type(error).__name__, "mend the template").format(page=page("templates.md")),
        ) from error


_REMEDIES = {
    "RecursionError": "a template that extends or includes itself: give it another name than the one that it extends",
    "TemplateRuntimeError": "a template that extends base.sbatch.j2 fills its block 'launch': see {page}",
    "UnicodeDecodeError": "save the template as UTF-8",
}


def _reason(error: Exception) -> str:
    from jinja2 import TemplateError as JinjaError

    return str(error.message) if isinstance(error, JinjaError) else f"{type(error).__name__}: {error}"


def _line_of(error: BaseException) -> str:
    """File and line of the innermost template frame."""
    place, trace = "", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name.endswith(".j2"):
            place = f" ({Path(name).name}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return place
