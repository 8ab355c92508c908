"""Job and cluster files: found, read, put together, typed.

Order, the later wins: built-in defaults, cluster, job (first what it extends), --set.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, structs

from hpc_kit.errors import SpecError
from hpc_kit.spec import search_path, toml_documents
from hpc_kit.spec.cluster import Cluster
from hpc_kit.spec.job import Job
from hpc_kit.spec.resources import excluded_options
from hpc_kit.spec.toml_documents import Document
from hpc_kit.spec.typed_values import coerce, convert

CLUSTER_PREFIX = "cluster."
"""Keys of --set that begin so go to the cluster file."""

Settings = Mapping[str, object]
"""What overrides the files: dotted keys, such as {"resources.nodes": 2}."""


class LoadedJob(Struct, frozen=True):
    """A job and a cluster as their files say, not yet fitted to one another."""

    job: Job
    cluster: Cluster
    job_origins: Document
    cluster_origins: Document
    sources: tuple[str, ...]


def load_job(name: str, *, set: Settings | None = None, root: Path | None = None) -> Job:  # noqa: A002 - the option's name
    """The job of that name or path.

    Args:
        name: `ddp_4node`, or `jobs/mine.toml`.
        set: Values over those of the file, by dotted key.
        root: The user's project (default: the current folder).

    Raises:
        SpecError: It is missing, malformed, or holds an unknown key or a wrong value.
    """
    return _job(_job_document(name, root or search_path.current_folder()), set, Path(name).stem)[0]


def load_cluster(name: str, *, set: Settings | None = None, root: Path | None = None) -> Cluster:  # noqa: A002
    """The cluster of that name or path; keys of `set` that do not begin with `cluster.` are not its.

    Raises:
        SpecError: It is missing, malformed, or holds an unknown key or a wrong value.
    """
    return _cluster(_document("env", name, root or search_path.current_folder())[0], set, Path(name).stem)[0]


def load(
    job: str | Path | Job,
    cluster: str | Path | Cluster,
    *,
    set: Settings | None = None,  # noqa: A002
    root: Path | None = None,
) -> LoadedJob:
    """Both, each given by name, path or value, with the place of every key.

    Raises:
        SpecError: As `load_job` and `load_cluster`.
    """
    root = root or search_path.current_folder()
    sources: list[str] = []
    if isinstance(job, str | Path):
        job = str(job)
        job_document, job_sources = _chain(job, root, ())
        sources += job_sources
        stem = Path(job).stem
    else:
        job_document, stem = _document_of(job, "the job"), job.name
    if isinstance(cluster, str | Path):
        cluster = str(cluster)
        cluster_document, path = _document("env", cluster, root)
        sources.append(path)
        cluster_stem = Path(cluster).stem
    else:
        cluster_document, cluster_stem = _document_of(cluster, "the cluster"), cluster.name
    typed_job, job_document = _job(job_document, set, stem)
    typed_cluster, cluster_document = _cluster(cluster_document, set, cluster_stem)
    return LoadedJob(typed_job, typed_cluster, job_document, cluster_document, tuple(sources))


def _document_of(value: Job | Cluster, shown: str) -> Document:
    import msgspec

    table = msgspec.to_builtins(value)
    return Document(table, (toml_documents.Layer(shown, None, table),))


def _job_document(name: str, root: Path) -> Document:
    return _chain(name, root, ())[0]


def _chain(name: str, root: Path, seen: tuple[Path, ...], place: str = "") -> tuple[Document, list[str]]:
    """A job file over those that it extends, and their names; `place` is where it was named, if in a file."""
    path = search_path.find_file("jobs", name, root, said_in=seen[-1] if seen else None, place=place)
    shown = search_path.display_path(path, root)
    if path.resolve() in seen:
        raise SpecError(
            f"{shown} extends itself", found=" -> ".join(p.name for p in (*seen, path)), remedy="drop one extends"
        )
    document = toml_documents.read_document(path, shown)
    base = document.data.get("extends")
    if base is None:
        return document, [shown]
    if not isinstance(base, str):
        raise SpecError(
            f"wrong value for extends in {shown}", found=f"extends = {base!r}", remedy="the name of a job file"
        )
    # What the base is called and says of itself is not inherited.
    lower, sources = _chain(base, root, (*seen, path.resolve()), document.origin_of("extends"))
    lower, document = (
        toml_documents.drop_keys(lower, "name", "description"),
        toml_documents.drop_keys(document, "extends"),
    )
    if "program" in document.data:  # it describes another program: nothing of the base's table is true of it
        lower = toml_documents.drop_keys(lower, "program")
    return _over(lower, document), [shown, *sources]


def _over(lower: Document, upper: Document) -> Document:
    """Both documents, the upper one over the lower: its choice among options that exclude one another holds."""
    said, below = upper.data.get("resources"), lower.data.get("resources")
    if isinstance(said, dict) and isinstance(below, dict):
        lower = toml_documents.drop_keys(lower, *excluded_options(said, below), table="resources")
    return toml_documents.merge_documents(lower, upper)


def _document(kind: search_path.FileKind, name: str, root: Path) -> tuple[Document, str]:
    path = search_path.find_file(kind, name, root)
    shown = search_path.display_path(path, root)
    return toml_documents.read_document(path, shown), shown


def _job(document: Document, settings: Settings | None, stem: str) -> tuple[Job, Document]:
    own = {key: value for key, value in (settings or {}).items() if not key.startswith(CLUSTER_PREFIX)}
    document = _over(document, _overrides(own, Job))
    job = convert(document, Job)
    if job.extends is not None:
        raise SpecError(
            f"extends cannot be said in {document.origin_of('extends')}",
            found=f"extends = {job.extends!r}",
            remedy="a job file that says it: extends is resolved before anything is set",
        )
    return (job if job.name else structs.replace(job, name=stem)), document


def _cluster(document: Document, settings: Settings | None, stem: str) -> tuple[Cluster, Document]:
    own = {
        key.removeprefix(CLUSTER_PREFIX): value
        for key, value in (settings or {}).items()
        if key.startswith(CLUSTER_PREFIX)
    }
    document = toml_documents.merge_documents(document, _overrides(own, Cluster, CLUSTER_PREFIX))
    cluster = convert(document, Cluster)
    return (cluster if cluster.name else structs.replace(cluster, name=stem)), document


def _overrides(settings: Settings, kind: type[Job | Cluster], prefix: str = "") -> Document:
    return toml_documents.document_of_settings(
        {key: coerce(value, kind, key) if isinstance(value, str) else value for key, value in settings.items()}, prefix
    )
