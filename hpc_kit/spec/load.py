"""Loads a job file with the files that it extends, its cluster file and `--set` values.

Priority, lowest first: built-in defaults, cluster, job (first what it extends), --set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from hpc_kit.errors import SpecError
from hpc_kit.spec import search_path, toml_documents
from hpc_kit.spec.cluster import PARTITION_OVERRIDES, Cluster, Partition
from hpc_kit.spec.job import Job
from hpc_kit.spec.resources import excluded_options
from hpc_kit.spec.toml_documents import Document
from hpc_kit.spec.typed_values import coerce, convert

CLUSTER_PREFIX = "cluster."
"""Beginning of --set keys for the cluster file."""

Settings = Mapping[str, object]
"""Values with priority over the files, by dotted key: {"resources.nodes": 2}."""


class LoadedJob(Struct, frozen=True):
    """A job and a cluster as in their files, before the job is fitted to the cluster."""

    job: Job
    cluster: Cluster
    job_origins: Document
    cluster_origins: Document
    sources: tuple[str, ...]


def load_job(name: str, *, set: Settings | None = None, root: Path | None = None) -> Job:  # noqa: A002 - the option's name
    """Load a job by name or path.

    Args:
        name: `ddp_4node`, or `jobs/mine.toml`.
        set: Values with priority over the file, by dotted key.
        root: The user's project (default: the current folder).

    Raises:
        SpecError: The file is missing or malformed, or has an unknown key or a wrong value.
    """
    return _job(_merge_extended_files(name, root or search_path.current_folder(), ())[0], set, _file_name(name))[0]


def load_cluster(name: str, *, root: Path | None = None) -> Cluster:
    """Load a cluster by name or path.

    Raises:
        SpecError: The file is missing or malformed, or has an unknown key or a wrong value.
    """
    return _cluster(
        _merge_extended_files(name, root or search_path.current_folder(), (), kind="env")[0], None, _file_name(name)
    )[0]


def load(
    job: str | Path | Job,
    cluster: str | Path | Cluster,
    *,
    set: Settings | None = None,  # noqa: A002
    root: Path | None = None,
) -> LoadedJob:
    """Load a job and a cluster, each by name, path or value, with the origin of every key."""
    root = root or search_path.current_folder()
    sources: list[str] = []
    if isinstance(job, str | Path):
        job = str(job)
        job_document, job_sources = _merge_extended_files(job, root, ())
        sources += job_sources
        stem = _file_name(job)
    else:
        job_document, stem = Document.from_table("the job", msgspec.to_builtins(job)), job.name
    if isinstance(cluster, str | Path):
        cluster = str(cluster)
        cluster_document, cluster_sources = _merge_extended_files(cluster, root, (), kind="env")
        sources += cluster_sources
        cluster_stem = _file_name(cluster)
    else:
        cluster_document = Document.from_table("the cluster", msgspec.to_builtins(cluster))
        cluster_stem = cluster.name
    typed_job, job_document = _job(job_document, set, stem)
    typed_cluster, cluster_document = _cluster(cluster_document, set, cluster_stem, typed_job.resources.partition)
    return LoadedJob(typed_job, typed_cluster, job_document, cluster_document, tuple(sources))


def _file_name(name: str) -> str:
    """Return the name of a job or cluster file without its suffix. The name may contain dots: `jobs/net.v2.toml`."""
    return Path(name).name.removesuffix(".toml")


def _merge_extended_files(
    name: str,
    root: Path,
    seen: tuple[Path, ...],
    place: Callable[[], str] | None = None,
    *,
    kind: search_path.FileKind = "jobs",
) -> tuple[Document, list[str]]:
    """Merge a job or cluster file with the files that it extends, and return their names.

    `place` returns the line of its name.
    """
    path = search_path.find_file(kind, name, root, named_in=seen[-1] if seen else None, place=place)
    shown = search_path.display_path(path, root)
    # A file may extend one of the same name in another folder, so compare paths.
    if path.resolve() in seen:
        raise SpecError(
            f"{shown} extends itself", found=" -> ".join(p.name for p in (*seen, path)), remedy="remove one extends"
        )
    document = toml_documents.read_document(path, shown)
    base = document.data.get("extends")
    if base is None:
        return document, [shown]
    if not isinstance(base, str):
        remedy = f"write the name of a {'job' if kind == 'jobs' else 'cluster'} file"
        raise SpecError(f"wrong value for extends in {shown}", found=f"extends = {base!r}", remedy=remedy)
    # Name and description of the base file are not inherited.
    lower, sources = _merge_extended_files(
        base, root, (*seen, path.resolve()), partial(document.origin_of, "extends"), kind=kind
    )
    lower = toml_documents.drop_keys(lower, "name", "description")
    document = toml_documents.drop_keys(document, "extends")
    if "program" in document.data:  # it describes another program: nothing of the base's table is true of it
        lower = toml_documents.drop_keys(lower, "program")
    return _over(lower, document), [shown, *sources]


def _over(lower: Document, upper: Document) -> Document:
    """Merge two documents. An option of the upper one also removes options of the lower one that it excludes."""
    above, below = upper.data.get("resources"), lower.data.get("resources")
    if isinstance(above, dict) and isinstance(below, dict):
        lower = toml_documents.drop_keys(lower, *excluded_options(above, below), table="resources")
    return toml_documents.merge_documents(lower, upper)


def _job(document: Document, settings: Settings | None, stem: str) -> tuple[Job, Document]:
    own = {key: value for key, value in (settings or {}).items() if not key.startswith(CLUSTER_PREFIX)}
    document = _over(document, _overrides(own, Job))
    job = convert(document, Job)
    if job.extends is not None:
        raise SpecError(
            f"extends is not allowed in {document.origin_of('extends')}",
            found=f"extends = {job.extends!r}",
            remedy="write extends into a job file; it is resolved before other values are set",
        )
    return (job if job.name else structs.replace(job, name=stem)), document


def _partition_documents(document: Document) -> dict[str, Document]:
    """Return what each [partition.NAME] replaces in the rest of the cluster file."""
    tables = document.data.get("partition")
    found = {}
    for name, table in tables.items() if isinstance(tables, dict) else ():
        if isinstance(table, dict):
            title = f"[partition.{name}] of {document.origin_of(f'partition.{name}')}"
            # Only to refuse unknown keys and wrong values: an error names this table, not the merged file.
            convert(Document.from_table(title, table), Partition)
            own = {key: table[key] for key in PARTITION_OVERRIDES if key in table}
            found[name] = Document.from_table(title, own)
    return found


def _cluster(
    document: Document, settings: Settings | None, stem: str, partition: str | None = None
) -> tuple[Cluster, Document]:
    own = {
        key.removeprefix(CLUSTER_PREFIX): value
        for key, value in (settings or {}).items()
        if key.startswith(CLUSTER_PREFIX)
    }
    overrides = _overrides(own, Cluster, CLUSTER_PREFIX)
    partitions = _partition_documents(document)
    cluster = convert(toml_documents.merge_documents(document, overrides), Cluster)
    if cluster.extends is not None:
        raise SpecError(
            "extends is set for the cluster",
            found=f"cluster.extends = {cluster.extends!r}",
            remedy="write extends into a cluster file; it is resolved before other values are set",
        )
    default = next((name for name, table in cluster.partition.items() if table.default), None)
    if chosen := partitions.get(partition or cluster.defaults.partition or default or ""):
        document = toml_documents.merge_documents(document, chosen)
        # Again: the partition is only known after the defaults of the whole file are.
        cluster = convert(toml_documents.merge_documents(document, overrides), Cluster)
    document = toml_documents.merge_documents(document, overrides)
    return (cluster if cluster.name else structs.replace(cluster, name=stem)), document


def _overrides(settings: Settings, kind: type[Job | Cluster], prefix: str = "") -> Document:
    return toml_documents.document_of_settings(
        {key: coerce(value, kind, key) if isinstance(value, str) else value for key, value in settings.items()}, prefix
    )
