"""submitit's executor with our script: pickled functions, one result for each rank, and arrays.

submitit has no public hooks for the script. Its own executors override the same private methods as `Executor`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import reprlib
import shlex
import sys
import time
import uuid
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, structs
from submitit.core.utils import DelayedSubmission, JobPaths
from submitit.slurm.slurm import SlurmExecutor, SlurmJobEnvironment

from hpc_kit.errors import HpcKitError, RecordError, SpecError, SubmitRefused
from hpc_kit.runs.record import describe_os_error
from hpc_kit.script.context import working_folder
from hpc_kit.script.quoting import shell_word
from hpc_kit.script.render import render_resolved
from hpc_kit.shared_folders import make_folder, own_folder
from hpc_kit.slurm.job_ids import base_id
from hpc_kit.slurm.units import UNLIMITED, parse_time
from hpc_kit.spec import load
from hpc_kit.spec.cluster import Cluster
from hpc_kit.spec.cluster_client import open_client
from hpc_kit.spec.default_cluster import default_cluster
from hpc_kit.spec.job import Job, Preflight
from hpc_kit.spec.resolve import Resolved, resolve
from hpc_kit.spec.resources import Count, Number, Resources
from hpc_kit.spec.search_path import current_folder
from hpc_kit.submission.job_handles import FunctionJob
from hpc_kit.submission.staging import Pickles, replace_symlink
from hpc_kit.submission.submit import Submission, submit_script

__all__ = ["Executor", "PartlySubmitted"]

SUBMITIT_NAMES = {
    "name": "job_name",
    "timeout_min": "time",
    "mem_gb": "mem",
    "tasks_per_node": "ntasks_per_node",
}
"""submitit's names of options that all its executors share, and sbatch's names for them."""

EXECUTOR_PARAMETERS = {
    "additional_parameters",
    "array_parallelism",
    "setup",
    "signal_delay_s",
    "stderr_to_stdout",
    "teardown",
}
"""Parameters of submitit that are not options of sbatch."""

REFUSED_PARAMETERS = {
    "array": "use map_array or batch(), which make arrays",
    "error": "read the logs by job.paths; set stderr_to_stdout=True for a single log",
    "num_gpus": "use gpus_per_node",
    "open_mode": "leave it out: logs are appended to, so that a requeued job keeps its earlier output",
    "output": "read the logs by job.paths, in the executor's folder",
    "signal": "use signal_delay_s, the seconds before the time limit; the signal is submitit's",
    "srun_args": "set variables instead, such as set={'env.SLURM_CPU_BIND': 'none'}: the template has the srun line",
    "use_srun": "for a job of one rank, set nodes=1 and tasks_per_node=1: srun starts the ranks",
}
"""Parameters of submitit and options of sbatch that an Executor refuses, and what to do instead."""

SIGNAL_DELAY = 90
"""Seconds between submitit's signal and the time limit, if the limit is long enough."""

UNLIMITED_MINUTES = 10 * 365 * 24 * 60
"""Ten years: submitit needs a number for a job without a time limit."""

MAP_TABLE_SUFFIX = "_table.jsonl"

SUBMITIT_MAIN = (
    "import os, sys; here = os.getcwd(); folders = [folder or here for folder in sys.path]; "
    "sys.path = [folder for folder in folders if folder != here]; "
    "from submitit.core.submission import submitit_main; sys.path = folders; submitit_main()"
)
"""Runs `python -m submitit.core._submit`. A file of the current folder, such as types.py, replaces no module of Python.

The functions of the job can still come from modules in the current folder. The code must run with any version of
Python that a container has.
"""

DEFAULT_JOB = Job(name="submitit", description="functions of an Executor", command=("python",))
"""The job of an Executor without a job file; submitit's jobs have this name, too."""

_ID_PATTERN = re.compile("%[jtAa]")

_short_repr = reprlib.Repr()
_short_repr.maxstring = _short_repr.maxother = 200


class UnknownParameter(SpecError, ValueError):
    """There is no such parameter. It is a `ValueError`, like submitit's exception."""


class PartlySubmitted(SubmitRefused):
    """sbatch submitted the first arrays of a map and refused the next one. `jobs` are the submitted jobs."""

    def __init__(self, error: HpcKitError, jobs: list[FunctionJob[Any]], total: int) -> None:
        ids = ", ".join(dict.fromkeys(base_id(job.job_id) for job in jobs))
        super().__init__(
            f"only the first {len(jobs)} of {total} functions were submitted: {error.what}",
            found=error.found,
            remedy=f"let job {ids} run, or cancel it with scancel {ids}\n{error.remedy or ''}".rstrip(),
        )
        self.jobs = jobs


class ExecutorOptions(Struct, frozen=True, kw_only=True):
    """Options of an executor that are not options of a job."""

    array_parallelism: Count = 256
    signal_delay_s: Number | None = None
    stderr_to_stdout: bool = False
    teardown: tuple[str, ...] = ()

    def updated(self, values: dict[str, object]) -> ExecutorOptions:
        """Return the options with other values."""
        try:
            return msgspec.convert({**structs.asdict(self), **values}, ExecutorOptions)
        except msgspec.ValidationError as error:
            raise SpecError(
                "wrong value for an Executor", found=f"{values}: {error}", remedy=f"use values like {ExecutorOptions()}"
            ) from None


class Executor(SlurmExecutor):
    """submitit's `SlurmExecutor` with the script of a job file: its resources, template and environment.

    `submit`, `map_array`, `submit_array`, `batch()` and `update_parameters` are submitit's, and so is its protocol for
    checkpoints: a callable with a `checkpoint` method is requeued when it is preempted or reaches its time limit.

    Args:
        job: Name or path of a job file, or a job. Its command is not used. Default: one rank on one node, until
            `update_parameters` asks for more.
        folder: Folder of pickles, results and logs, which all nodes must see. `%j` in it is the job id. Default:
            runs/functions below `root`, or runs/functions-UID if it is another user's.
        cluster: Name or path of a cluster file, or a cluster (default: the one that fits this machine).
        set: Values that replace those of the files, by dotted key: {"resources.nodes": 2}.
        root: The user's project (default: the current folder).
        max_num_timeout: How often a checkpointable callable may reach its time limit.
        max_pickle_size_gb: Limit for the pickles of one submission.
        python: Words that start Python in the job, such as `apptainer exec image.sif python`.

    Raises:
        SpecError: A file is missing or contains an error.
    """

    job_class = FunctionJob

    def __init__(
        self,
        job: str | Path | Job = DEFAULT_JOB,
        folder: str | Path | None = None,
        cluster: str | Path | Cluster | None = None,
        *,
        set: Mapping[str, object] | None = None,  # noqa: A002 - the option's name
        root: str | Path | None = None,
        max_num_timeout: int = 3,
        max_pickle_size_gb: float = 1.0,
        python: str | None = None,
    ) -> None:
        self.root = Path(root or current_folder()).absolute()
        folder = folder or own_folder(self.root / "runs" / "functions")
        super().__init__(folder, max_num_timeout, max_pickle_size_gb, python or "python")
        self._job = job
        settings = dict(set or {})
        if cluster is None:
            choice = default_cluster(self.root, os.environ)
            cluster, settings = choice.name, choice.settings | settings
        self._cluster, self._settings = cluster, settings
        self._options = ExecutorOptions()
        self._resolve()

    @classmethod
    def name(cls) -> str:
        """Return the executor's name in submitit's protocol."""
        return "slurm"

    @classmethod
    def affinity(cls) -> int:
        """Return 1, submitit's mark of an available executor: a machine without Slurm has the embedded one."""
        return 1

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        """Set parameters. If one is wrong, all keep their old values."""
        new = sort_parameters(kwargs)
        before = self._settings, self._options
        self._settings = {**self._settings, **new.settings}
        try:
            self._options = self._options.updated(new.options)
            self._resolve()
        except SpecError:
            self._settings, self._options = before
            raise
        self.parameters.update(kwargs)

    def _resolve(self) -> Resolved:
        """Return the job of the file with the current parameters and submitit's command."""
        loaded = load.load(self._job, self._cluster, set=self._settings, root=self.root)
        job = loaded.job
        if job.launch.launcher != "srun":
            raise SpecError(
                f"job {job.name} is started by {job.launch.launcher}",
                found="srun starts the functions of an Executor, one for each rank",
                remedy="use a job with launcher = 'srun', or set={'launch.launcher': 'srun', "
                "'launch.nproc_per_node': 1}",
            )
        job = structs.replace(job, command=tuple(shlex.split(self._submitit_command_str)))
        return resolve(structs.replace(loaded, job=job), root=self.root)

    def _add_protocol(self, resolved: Resolved, array: str | None) -> Resolved:
        log_folder = path_without_backslash(self.folder, working_folder(resolved, self.root) / resolved.cluster.runs)
        job = add_submitit_protocol(resolved.job, log_folder, self._options, array)
        return structs.replace(resolved, job=job)

    @property
    def _submitit_command_str(self) -> str:
        return f"{self.python} -u -c {shlex.quote(SUBMITIT_MAIN)} {shlex.quote(str(self.folder))}"

    def _num_tasks(self) -> int:
        return self._resolve().ntasks

    def _make_submission_file_text(self, command: str, uid: str) -> str:  # noqa: ARG002 - submitit's hook
        return render_resolved(self._resolve_command(command), root=self.root)

    def _resolve_command(self, command: str) -> Resolved:
        resolved = self._add_protocol(self._resolve(), None)
        return structs.replace(resolved, job=structs.replace(resolved.job, command=tuple(shlex.split(command))))

    def _submit_command(self, command: str) -> FunctionJob[Any]:
        return self._submit_script(self._resolve_command(command), Pickles(str(self.folder), (), array=False))

    def _submit_script(self, resolved: Resolved, pickles: Pickles) -> FunctionJob[Any]:
        """Submit a job and return its handle.

        submitit's own method would also pass on the variables of a job that this process runs in.
        """
        text = render_resolved(resolved, root=self.root)
        try:
            done = submit_script(resolved, text, root=self.root, command_line=sys.argv, pickles=pickles)
        except BaseException:
            pickles.discard()
            raise
        job = self._make_handle(done, done.job_id, resolved)
        make_folder(job.paths.folder, mode=0o700)
        job.paths.submission_file.write_text(text)
        self._write_job_id(done.job_id, uuid.uuid4().hex)
        return job

    def _make_handle(self, done: Submission, job_id: str, resolved: Resolved) -> FunctionJob[Any]:
        job: FunctionJob[Any] = self.job_class(folder=self.folder, job_id=job_id, tasks=range(resolved.ntasks))
        job.attach(done.run_folder.with_name(job_id), done.client, resolved.cluster)
        return job

    def _internal_process_submissions(self, delayed_submissions: Sequence[DelayedSubmission]) -> list[Any]:
        """Submit one function, or several as arrays of at most MaxArraySize elements."""
        submissions, resolved = list(delayed_submissions), self._resolve()
        if len(submissions) == 1:
            return self._submit_functions(resolved, submissions, None)
        size = max(1, open_client(resolved.cluster).max_array_size())
        chunks = [submissions[start : start + size] for start in range(0, len(submissions), size)]
        # array_parallelism limits the whole map, and Slurm's throttle one array.
        share = max(1, self._options.array_parallelism // len(chunks))
        jobs: list[FunctionJob[Any]] = []
        for chunk in chunks:
            throttle = f"%{share}" if share < len(chunk) else ""
            try:
                jobs += self._submit_functions(resolved, chunk, f"0-{len(chunk) - 1}{throttle}")
                base = JobPaths.get_first_id_independent_folder(self.folder)
                append_to_map_table(base, [job.job_id for job in jobs], submissions, len(chunk))
            except HpcKitError as error:
                if not jobs:
                    raise
                raise PartlySubmitted(error, jobs, len(submissions)) from error
        return jobs

    def _submit_functions(
        self, resolved: Resolved, submissions: list[DelayedSubmission], array: str | None
    ) -> list[FunctionJob[Any]]:
        """Pickle the functions and submit one job or array that runs them."""
        resolved = self._add_protocol(resolved, array)
        paths = self._pickle(submissions, timeout_minutes(resolved.job))
        pickles = Pickles(str(self.folder), tuple(map(str, paths)), array is not None)
        # submitit limits the rate of its submissions.
        self._throttle()
        self._last_job_submitted = time.time()
        job = self._submit_script(resolved, pickles)
        if array is None:
            return [job]
        # submitit expects one job for each function.
        done = Submission(job.job_id, job.run.folder, job.client)
        return [self._make_handle(done, f"{job.job_id}_{index}", resolved) for index in range(len(submissions))]

    def _pickle(self, submissions: list[DelayedSubmission], minutes: int) -> list[Path]:
        folder = JobPaths.get_first_id_independent_folder(self.folder)
        # Arguments may be confidential.
        make_folder(folder, mode=0o700)
        pickles: list[Path] = []
        with ExitStack() as undo:
            for delayed in submissions:
                pickles.append(folder / f"{uuid.uuid4().hex}.pkl")
                undo.callback(pickles[-1].unlink, missing_ok=True)
                delayed.set_timeout(minutes, self.max_num_timeout)
                delayed.dump(pickles[-1])
                size = pickles[-1].stat().st_size / 1024**3
                if size * len(submissions) > self.max_pickle_size_gb:
                    raise SpecError(
                        "the function and its arguments are too large to be pickled",
                        found=f"{len(submissions)} x {size:.2f} GB; max_pickle_size_gb = {self.max_pickle_size_gb:g}",
                        remedy="pass the path of the data instead of the data, or raise max_pickle_size_gb",
                    )
            undo.pop_all()  # all are written, so none is removed
        return pickles


class SortedParameters(NamedTuple):
    """Arguments of `update_parameters`: values of a job file by dotted key, and `ExecutorOptions` by name."""

    settings: dict[str, object]
    options: dict[str, object]


def sort_parameters(values: dict[str, object]) -> SortedParameters:
    """Sort the arguments of `update_parameters`.

    Names are submitit's (`timeout_min`), sbatch's (`time`), or either with the prefix `slurm_`.
    """
    settings: dict[str, object] = {}
    options: dict[str, object] = {}
    for key, value in values.items():
        name = key.removeprefix("slurm_").replace("-", "_")
        name = SUBMITIT_NAMES.get(name, name)
        if name in REFUSED_PARAMETERS:
            raise SpecError(f"{key} is not for an Executor", found=f"{key}={value!r}", remedy=REFUSED_PARAMETERS[name])
        if name == "additional_parameters":
            inner = sort_parameters(dict(value) if isinstance(value, dict) else {"additional_parameters": value})
            settings |= inner.settings
            options |= inner.options
        elif name in {"setup", "teardown"}:
            commands = list(value) if isinstance(value, list | tuple) else [] if value is None else [value]
            (settings if name == "setup" else options)[name] = commands
        elif name in EXECUTOR_PARAMETERS:
            options[name] = value
        elif name in Resources.__struct_fields__:
            settings |= _to_setting(key.removeprefix("slurm_"), name, value)
        else:
            raise _unknown_parameter(key, name, value)
    return SortedParameters(settings, options)


def _to_setting(key: str, name: str, value: object) -> dict[str, object]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if key == "mem_gb":
            value = f"{math.ceil(value * 1024)}M" if value != int(value) else f"{int(value)}G"
        elif name == "time":
            value = math.ceil(value)
    if name == "job_name":
        # The name of the job file names the run folder.
        return {"name": value, "resources.job_name": value}
    return {f"resources.{name}": value}


def _unknown_parameter(key: str, name: str, value: object) -> UnknownParameter:
    from difflib import get_close_matches

    known = sorted({*Resources.__struct_fields__, *SUBMITIT_NAMES, *EXECUTOR_PARAMETERS} - REFUSED_PARAMETERS.keys())
    near = get_close_matches(name, known, n=1, cutoff=0.6)
    remedy = f"did you mean {near[0]}?" if near else "use a parameter of submitit, or an option of sbatch"
    return UnknownParameter(f"no parameter '{key}'", found=f"{key}={value!r}", remedy=remedy)


def add_submitit_protocol(job: Job, folder: Path, options: ExecutorOptions, array: str | None) -> Job:
    """Return a job whose script follows submitit's protocol: names of logs, signal, and name of the executor.

    `array` is Slurm's notation of the indices of an array.
    """
    output, error = (_to_pattern(path, array) for path in (JobPaths(folder).stdout, JobPaths(folder).stderr))
    is_separate = not options.stderr_to_stdout
    mkdir = _make_folder_commands(str(folder), array=array is not None)
    # bash runs a trap at the end of the script, whatever its exit status, and keeps that status.
    teardown = [f"trap {shlex.quote(chr(10).join(['set +e', *options.teardown]))} EXIT"] if options.teardown else []
    return structs.replace(
        job,
        env={**job.env, "SUBMITIT_EXECUTOR": "slurm"},
        restart=None,  # submitit requeues its jobs itself
        preflight=Preflight(),
        setup=(*job.setup, *mkdir, *teardown),
        launch=structs.replace(job.launch, output=output, error=error if is_separate else None),
        resources=structs.replace(
            job.resources,
            array=array,
            # The script itself makes a folder named after the job, so Slurm cannot open its log there.
            output=None if mkdir else output.replace("%t", "0"),
            error=error.replace("%t", "0") if is_separate and not mkdir else None,
            open_mode="append",
            signal=f"{SlurmJobEnvironment.USR_SIG}@{_signal_delay(job, options)}",
        ),
    )


def path_without_backslash(folder: Path, runs: Path) -> Path:
    """Return a path of the log folder without a backslash: with one, Slurm would not expand `%j` and other patterns.

    If `folder` contains a backslash, make a symbolic link to it in the runs folder, and return the path of the link.

    Raises:
        SpecError: The path of the runs folder has a backslash, too.
        RecordError: The link cannot be made.
    """
    parts = folder.parts
    last = max((index for index, part in enumerate(parts) if "\\" in part), default=None)
    if last is None:
        return folder
    if "\\" in str(runs):
        raise SpecError(
            "a backslash in the path of the runs folder",
            found=str(runs),
            remedy="set={'cluster.runs': '/a/path/without/it'}: Slurm expands no patterns in a name with a backslash",
        )
    target = Path(*parts[: last + 1])
    link = runs / ".folders" / hashlib.sha256(os.fsencode(target)).hexdigest()[:12]
    make_folder(link.parent)
    try:
        if not link.is_symlink():
            replace_symlink(link, str(target))
    except OSError as error:
        raise RecordError(
            f"cannot make the link {link}", found=error.strerror, remedy=f"check {link.parent}"
        ) from error
    return link.joinpath(*parts[last + 1 :])


def _to_pattern(path: Path, array: str | None) -> str:
    """Return submitit's file name for Slurm: all percent signs but those of %j, %t, %A and %a are escaped."""
    text = re.sub(r"%(?![jtAa])", "%%", str(path))
    return text if array is None else text.replace("%j", "%A_%a")


def _make_folder_commands(folder: str, *, array: bool) -> tuple[str, ...]:
    """Return the shell command that creates a folder named after the job; empty for other folders."""
    if not _ID_PATTERN.search(folder):
        return ()
    ids = {"%j": "$SLURM_JOB_ID", "%A": "$SLURM_JOB_ID", "%t": "0"}
    if array:
        ids |= {"%A": "$SLURM_ARRAY_JOB_ID", "%a": "$SLURM_ARRAY_TASK_ID"}
        ids["%j"] = "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
    parts = re.split(f"({_ID_PATTERN.pattern})", folder)
    return ("mkdir -p " + "".join(f'"{ids[part]}"' if part in ids else shell_word(part) for part in parts if part),)


def _signal_delay(job: Job, options: ExecutorOptions) -> int:
    """Return the seconds between the signal and the time limit.

    The default is at most a quarter of the limit. Slurm may send the signal a minute early, which would stop a short
    job at its start.
    """
    if options.signal_delay_s is not None:
        return options.signal_delay_s
    limit = _limit_seconds(job)
    return SIGNAL_DELAY if limit is None or limit == UNLIMITED else min(SIGNAL_DELAY, limit // 4)


def timeout_minutes(job: Job) -> int:
    """Return the time limit that submitit compares with the age of a job at a signal.

    0 if the limit is unknown: each signal then counts as a time-out, so that no job is requeued forever.
    """
    limit = _limit_seconds(job)
    return 0 if limit is None else UNLIMITED_MINUTES if limit == UNLIMITED else limit // 60


def _limit_seconds(job: Job) -> int | None:
    limit = job.resources.time
    return None if limit is None else parse_time(str(limit))


def append_to_map_table(folder: Path, ids: Sequence[str], submissions: Sequence[DelayedSubmission], count: int) -> None:
    """Append the arguments of the last `count` functions to the table of a map.

    The table is named after the first array. Each line is a JSON object with the number of the function, its job id
    (12_3), its name and its arguments, cut to 200 characters. If the table cannot be written, this only warns: the jobs
    are already in the queue.
    """
    path = folder / f"{base_id(ids[0])}{MAP_TABLE_SUFFIX}"
    rows = [_map_table_row(number, ids[number], submissions[number]) for number in range(len(ids) - count, len(ids))]
    try:
        # Arguments may be confidential.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    except OSError as error:
        warnings.warn(f"no table of this map: {describe_os_error(error)}", stacklevel=2)


def _map_table_row(number: int, job_id: str, submission: DelayedSubmission) -> dict[str, object]:
    function = submission.function
    return {
        "number": number,
        "job_id": job_id,
        "function": getattr(function, "__qualname__", None) or type(function).__qualname__,
        "args": [_short_repr.repr(value) for value in submission.args],
        "kwargs": {key: _short_repr.repr(value) for key, value in submission.kwargs.items()},
    }
