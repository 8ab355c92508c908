"""Checks a job before it is submitted. Each error names the file, the values and the edit to make."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from msgspec import Struct

from hpc_kit.errors import HpcKitError, SpecError, UnitError
from hpc_kit.slurm.getopt import SBATCH
from hpc_kit.slurm.option_values import check_value
from hpc_kit.spec.cluster import Cluster
from hpc_kit.spec.job import Job
from hpc_kit.spec.resources import EXCLUSIVE_FIELDS, Resources
from hpc_kit.spec.search_path import FEW, similar_name
from hpc_kit.spec.secrets import doubtful_arguments, looks_secret, may_be_secret, secret_arguments
from hpc_kit.spec.toml_documents import Document


class Origins(Struct, frozen=True):
    """Origins of the keys of a job and its cluster: file and line."""

    job: Document
    cluster: Document

    def of(self, key: str) -> str:
        """Return the origin of a key of the job, or of the cluster's default for it."""
        if key in _PARTS_OF_TRES and not self.has_key(key) and self.has_key("resources.tres_per_task"):
            key = "resources.tres_per_task"
        # Without the key in the job, its value comes from the defaults of the cluster file.
        if not self.job.has_key(key) and self.has_key(key):
            return self.cluster.origin_of(_key_of_default(key))
        return self.job.origin_of(key)

    def wrong_value(self, key: str, found: str, remedy: str) -> SpecError:
        """Return the error for a key of the job; `found` follows its name, such as `= 'x': it is empty`."""
        name = key.rpartition(".")[2]
        return SpecError(f"wrong value for {name} in {self.of(key)}", found=f"{name} {found}", remedy=remedy)

    def wrong_cluster_value(self, key: str, found: str, remedy: str | None) -> SpecError:
        """Like `wrong_value`, for a key of the cluster file."""
        return SpecError(
            f"wrong value for {key} in {self.cluster.origin_of(key)}", found=f"{key} {found}", remedy=remedy
        )

    def has_key(self, key: str) -> bool:
        """Return whether the job or the defaults of its cluster set a key of the job."""
        return self.job.has_key(key) or self.cluster.has_key(_key_of_default(key))


def _key_of_default(key: str) -> str:
    """Return the key of a cluster file for the default of a job's key: `defaults.mem` for `resources.mem`."""
    return f"defaults.{key.removeprefix('resources.')}" if key.startswith("resources.") else key


_PARTS_OF_TRES = frozenset({"resources.cpus_per_task", "resources.gpus_per_task"})
"""Options that `resolve` reads from --tres-per-task if the job does not set them."""


ONE_OF = ("conda", "venv", "uv", "apptainer", "pyxis")
"""Keys of [environment] that exclude one another."""

READONLY = frozenset({"BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"})
"""Read-only variables of bash. A script that sets one ends there."""


_WRITE_A_PATH = "write a path, from the project's folder or absolute"

LONGEST_NAME = 255
"""Bytes in the name of a folder, on Linux."""


def _has_control_characters(text: str) -> bool:
    return any(character < " " or character == "\x7f" for character in text)


def check_values(job: Job, cluster: Cluster, root: Path, origins: Origins) -> None:
    """Run all checks that need no number of nodes or tasks."""
    check_options(job.resources, origins)
    check_release(job.resources, cluster, origins)
    check_names(job, cluster, origins)
    check_paths(cluster, origins)
    check_files(job, origins)
    check_root(job, cluster, root, origins)


def check_names(job: Job, cluster: Cluster, origins: Origins) -> None:
    """Check that the name can be a folder, that there is a command, and that no value is a secret."""
    if (
        not job.name
        or job.name in {".", ".."}
        or "/" in job.name
        or "\\" in job.name
        or _has_control_characters(job.name)
    ):
        raise SpecError(
            f"{job.name!r} cannot name a job",
            found=f"name = {job.name!r} in {origins.of(name_key(origins))}: its logs go to {cluster.runs}/<name>/",
            remedy="choose a name such as train-1, without '/', '\\' and line breaks",
        )
    if (length := len(os.fsencode(job.name))) > LONGEST_NAME:
        raise SpecError(
            "the name of the job is too long for a folder",
            found=f"{length} bytes in {origins.of(name_key(origins))}: its logs go to {cluster.runs}/<name>/",
            remedy=f"choose a name of at most {LONGEST_NAME} bytes",
        )
    if not job.command:
        raise SpecError(
            f"job {job.name} has no command",
            found=origins.of("command"),
            remedy='command = ["python", "train.py"]',
        )
    for name, value in job.env.items():
        _check_variable(name, str(value), origins)
    if (argument := next(secret_arguments(_arguments(job)), None)) is not None:
        raise SpecError(
            f"{argument} in {origins.of('command')} looks like a secret",
            found="every user of a node can read the arguments of a program, and others the script and its record",
            remedy="export it as a variable in the shell that submits, and read the variable in the program",
        )
    # NAME=VALUE pairs of --export end up in the script, too.
    exported = ",".join(["", str(job.resources.export or "")])
    _check_assignments(re.findall(r",(\w+)=([^,]*)", exported), lambda: origins.of("resources.export"))
    for document, lines in ((origins.cluster, cluster.setup), (origins.job, job.setup)):
        for line in lines:
            assignments = re.findall(r"(?:^|[\s;&|(])([A-Za-z_]\w*)=([^\s;&|]*)", line)
            _check_assignments(assignments, partial(document.origin_of, "setup"))


def _arguments(job: Job) -> tuple[str, ...]:
    """Return the command, and resume_args: the template adds them from the second attempt on."""
    return (*job.command, *(job.restart.resume_args if job.restart else ()))


def name_key(origins: Origins) -> str:
    """Return the key that sets the name of the job: resources.job_name if it is set, else name."""
    return "resources.job_name" if origins.has_key("resources.job_name") else "name"


def check_paths(cluster: Cluster, origins: Origins) -> None:
    """Check folders and interpreter. No shell expands them."""
    own = cluster.environment
    values = [("runs", cluster.runs), ("python", cluster.python)]
    values += [(f"environment.{key}", getattr(own, key)) for key in ONE_OF]
    values += [("environment.modules", name) for name in own.modules]
    values += [("environment.mounts", mount) for mount in own.mounts]
    _check_embedded(cluster, origins)
    both = [key for key in ONE_OF if getattr(own, key) is not None]
    if len(both) > 1:
        place = origins.cluster.origin_of("environment")
        remedy = f"keep one of {', '.join(both)}"
        raise SpecError(f"{' and '.join(both)} exclude one another", found=place, remedy=remedy)
    for key, value in values:
        if value is not None and (fault := _path_fault(value)):
            remedy = "write its name" if key == "environment.modules" else _WRITE_A_PATH
            raise origins.wrong_cluster_value(key, f"= {value!r}: {fault}", remedy)


def _check_embedded(cluster: Cluster, origins: Origins) -> None:
    embedded = cluster.embedded
    for key, value, such in (
        ("nodes", embedded.nodes.strip(), '"127.0.0.[1-4]"'),
        ("partitions", embedded.partitions, '["local"]'),
    ):
        if not value:
            raise SpecError(
                f"no {key} in {origins.cluster.origin_of(f'embedded.{key}')}",
                found="a Slurm without any takes no job",
                remedy=f"{key} = {such}, or leave it out",
            )


def check_files(job: Job, origins: Origins) -> None:
    """Check the names of logs. Slurm neither expands them nor creates folders."""
    keys = [f"resources.{name}" for name in ("chdir", "output", "error", "input")]
    for key in (*keys, "launch.output", "launch.error"):
        table, _, name = key.partition(".")
        value = getattr(getattr(job, table), name)
        if value is None:
            continue
        folder = name != "chdir" and (value.endswith("/") or Path(value).name in {"", ".."})
        if why := "it is a folder" if folder else _path_fault(value):
            remedy = f"{_WRITE_A_PATH}, such as logs/%j.log" if folder else _WRITE_A_PATH
            raise origins.wrong_value(key, f"= {value!r}: {why}", remedy)


def _path_fault(value: str) -> str:
    """Return why no path can have this value; "" for a usable one."""
    if not value.strip():
        return "it is empty"
    if _has_control_characters(value):
        return "it contains control characters"
    return "it is not expanded: '~' and '$' have no meaning" if value.startswith("~") or "$" in value else ""


def check_root(job: Job, cluster: Cluster, root: Path, origins: Origins) -> None:
    """Check the folder of the submission: Slurm expands patterns such as %j in the whole path of a log."""
    if "\\" in cluster.runs:
        raise SpecError(
            f"a backslash in runs in {origins.cluster.origin_of('runs')}",
            found=f"runs = {cluster.runs!r}: with one, Slurm puts no job id into the names of logs",
            remedy="choose a folder without it",
        )
    base = root / (job.resources.chdir or "")
    # Slurm expands the patterns of a relative path together with the folder in front, so an absolute log is safe.
    logs = (cluster.runs, job.resources.output, job.resources.error)
    relative = any(path is not None and not Path(path).is_absolute() for path in logs)
    if relative and (_has_control_characters(str(base)) or any(character in str(base) for character in "%\\")):
        why = "'%' and '\\' begin patterns in the names of logs"
        raise SpecError(
            "Slurm would not write its logs below this folder",
            found=f"{str(base)!r}: srun refuses control characters"
            if _has_control_characters(str(base))
            else f"{base}: {why}",
            remedy="use another folder, or write the logs elsewhere: "
            "runs = '/path' in the cluster file, or --set cluster.runs=/path",
        )


def _check_variable(name: str, value: str, origins: Origins) -> None:
    key = f"env.{name}"
    if not (name.isidentifier() and name.isascii()):
        raise SpecError(
            f"'{name}' cannot name a variable",
            found=f"[env] in {origins.of(key)}",
            remedy="letters, digits and '_'",
        )
    if name in READONLY:
        raise SpecError(
            f"{name} in {origins.of(key)} is bash's own", found="it cannot be set", remedy="choose another name"
        )
    _check_assignments([(name, value)], lambda: origins.of(key))
    if "\0" in value:
        raise SpecError(f"{name} in {origins.of(key)} holds a NUL byte", remedy="write the text without it")


def _check_assignments(pairs: list[tuple[str, str]], origin: Callable[[], str]) -> None:
    for name, value in pairs:
        if looks_secret(name, value):
            raise SpecError(
                f"{name} in {origin()} looks like a secret",
                found="a script, its record and `scontrol show job` can be read by others",
                remedy=f"export {name} in the shell that submits (sbatch takes it along),\n"
                "or read it in the program from a file of mode 0600",
            )


def check_release(resources: Resources, cluster: Cluster, origins: Origins) -> None:
    """Check that the cluster's release of Slurm has all options, if the release is known."""
    if cluster.slurm_version is None:
        return
    from hpc_kit.slurm import versions  # most cluster files name no release

    try:
        version = versions.parse_version(cluster.slurm_version)
    except UnitError as error:
        found = f"= {cluster.slurm_version!r}: {error.what}"
        raise origins.wrong_cluster_value("slurm_version", found, error.remedy) from error
    for name, value in resources.given().items():
        option = SBATCH[name.replace("_", "-")]
        if since := versions.first_release_with(version, option.name, option.since, str(value)):
            shown = f"--{option.name}" if option.since else f"--{option.name}={value}"
            raise SpecError(
                f"{shown} is not in Slurm {version}",
                found=f"{name} in {origins.of(f'resources.{name}')}; {cluster.name} has {version},"
                f" and {since} added it",
                remedy=f"leave {name} out on this cluster",
            )


def check_container(job: Job, cluster: Cluster, origins: Origins) -> None:
    """Check the container. Each rank enters it, but the agents of torchrun would start outside."""
    own = cluster.environment
    if own.mounts and not own.is_container:
        raise SpecError(
            "mounts without a container",
            found=origins.cluster.origin_of("environment.mounts"),
            remedy="choose apptainer or pyxis",
        )
    if own.is_container and job.launch.launcher != "srun":
        found = f"launcher = {job.launch.launcher!r} in {origins.of('launch.launcher')}; {cluster.name} has a container"
        raise SpecError("ranks in containers are started by srun", found=found, remedy="write launcher = 'srun'")
    if own.pyxis and job.component:
        raise SpecError(
            "components of a heterogeneous job run in no Pyxis container",
            found=origins.cluster.origin_of("environment.pyxis"),
            remedy="use apptainer, or a job without components",
        )


def list_doubts(job: Job, cluster: Cluster) -> Iterator[str]:
    """Yield notes about accounts, QOS and containers that the cluster file does not list, and about possible secrets.

    They are no errors: the lists are those of one user and one login node.
    """
    for name, value in job.env.items():
        if may_be_secret(name, str(value)):
            yield f"[env] {name} may be a secret: script and record contain it; export it in the shell that submits"
    for name in dict.fromkeys(doubtful_arguments(_arguments(job))):
        yield f"{name} may be a secret: the script and `ps` show it; export it as a variable in the shell that submits"
    resources = job.resources
    yield from _doubts_about_partitions(resources.partition, cluster)
    for name, value, known in find_unlisted(cluster, resources.partition, resources.account, resources.qos):
        yield f"--{name}={value} is not among those of cluster '{cluster.name}': {', '.join(known)}"
    environment = cluster.environment
    tools = {"apptainer": {"apptainer", "singularity"}, "pyxis": {"pyxis"}}
    for name, tool in tools.items():
        if getattr(environment, name) and cluster.containers and not tool & set(cluster.containers):
            yield f"cluster '{cluster.name}' has no {name}; its containers: {', '.join(cluster.containers)}"


def _doubts_about_partitions(partition: str | None, cluster: Cluster) -> Iterator[str]:
    """Yield notes about partitions without a table in the cluster file, and about a list of partitions with one."""
    names, tables = (partition or "").split(","), cluster.partition
    if not partition or not tables:
        return
    common = "the settings of the whole file apply"
    for name in names:
        if name not in tables:
            near = similar_name(name, tables, f"it has {', '.join(sorted(tables)[:FEW])}")
            yield f"cluster '{cluster.name}' has no [partition.{name}]; {common}; {near}"
    own = [name for name in names if name in tables and tables[name].has_settings]
    if len(names) > 1 and own:
        listed = " and ".join(f"[partition.{name}]" for name in own)
        yield f"--partition={partition}: Slurm chooses one later; {common}, not {listed}"


def find_unlisted(
    cluster: Cluster, partition: str | None, account: str | None, qos: str | None
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield the account and the QOS if the cluster file has a list without them: the option, its value, the list."""
    own = cluster.partition.get(partition or "")
    for name, value, lists in (
        ("account", account, [cluster.accounts, *([own.accounts] if own else [])]),
        ("qos", qos, [cluster.qos, *([own.qos] if own else [])]),
    ):
        # An empty list means that nothing is known. One note is enough if the cluster and its partition lack the value.
        lacking = next((known for known in lists if known and value not in known), None)
        if value is not None and lacking:
            yield name, value, lacking


def check_components(job: Job, origins: Origins, uneven: list[int]) -> None:
    """Check a heterogeneous job. `uneven` lists components whose nodes have different numbers of tasks."""
    if not job.component:
        return
    if len(job.component) == 1:
        raise SpecError(
            "a heterogeneous job of one component",
            found=origins.of("component"),
            remedy="move its options to [resources], or add a component",
        )
    if uneven:
        raise SpecError(
            "the nodes of a component need the same number of tasks",
            found=f"component {uneven[0]} in {origins.of('component')}, counted from 0",
            remedy="set ntasks_per_node and nodes",
        )
    if job.launch.launcher != "srun" or job.resources.array is not None:
        found = f"launcher = {job.launch.launcher!r}" if job.launch.launcher != "srun" else "array"
        raise SpecError(
            "components need launcher srun, and Slurm has no arrays of heterogeneous jobs",
            found=f"{found}; {len(job.component)} components in {origins.of('component')}",
            remedy="set launcher = 'srun', and leave array out",
        )


def check_preflight(job: Job, origins: Origins) -> None:
    """Check that one step can measure all nodes of the job."""
    if job.preflight.enabled and job.component:
        raise SpecError(
            "[preflight] does not support heterogeneous jobs",
            found=f"enabled = true in {origins.of('preflight.enabled')}; {origins.of('component')}",
            remedy="leave [preflight] out, or use one set of resources",
        )


def check_options(resources: Resources, origins: Origins) -> None:
    """Check the values of all options, and that no two options exclude one another."""
    given = resources.given()
    for name, value in given.items():
        key = f"resources.{name}"
        if _has_control_characters(str(value)):
            raise SpecError(
                f"{name} in {origins.of(key)} holds a line break", found=repr(value), remedy="write text on one line"
            )
        if isinstance(value, str) and not value.strip():
            raise SpecError(
                f"{name} in {origins.of(key)} is empty",
                found=f"{name} = {value!r}",
                remedy=f"leave {name} out, or give it a value",
            )
        option = SBATCH[name.replace("_", "-")]
        # `true` means an option without value.
        if isinstance(value, bool):
            continue
        try:
            check_value(option, str(value))
        except HpcKitError as error:
            raise SpecError(
                f"{error.what}, in {origins.of(key)}", found=f"{name} = {value!r}", remedy=error.remedy
            ) from error
    for group in EXCLUSIVE_FIELDS:
        both = sorted(group & given.keys())
        if len(both) > 1:
            raise SpecError(
                f"{' and '.join(both)} exclude one another",
                found="; ".join(f"{name} = {given[name]!r} in {origins.of(f'resources.{name}')}" for name in both),
                remedy=f"keep one of {', '.join(both)}",
            )
