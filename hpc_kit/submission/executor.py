"""submitit's executor with our script: pickled functions, one result a rank, arrays too."""

from __future__ import annotations

import os
import shlex
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec import structs
from submitit.core.utils import DelayedSubmission, JobPaths
from submitit.slurm.slurm import SlurmExecutor

from hpc_kit.errors import HpcKitError, SpecError, SubmitRefused
from hpc_kit.runs.access import access_of
from hpc_kit.runs.logs import make_folder
from hpc_kit.script.render import render_resolved
from hpc_kit.slurm.job_ids import base_id
from hpc_kit.spec import load
from hpc_kit.spec.cluster import Cluster
from hpc_kit.spec.default_cluster import Choice, default_cluster
from hpc_kit.spec.job import Job
from hpc_kit.spec.resolve import Resolved, resolve
from hpc_kit.spec.search_path import current_folder
from hpc_kit.submission import table
from hpc_kit.submission.job_handles import FunctionJob
from hpc_kit.submission.parameters import Extras, parameters
from hpc_kit.submission.pickles import Pickles
from hpc_kit.submission.protocol import timeout_minutes, with_protocol
from hpc_kit.submission.submit import Submission, send

__all__ = ["Executor", "PartlySubmitted"]


class PartlySubmitted(SubmitRefused):
    """Sbatch took the first arrays of several, and refused the next; `jobs` are those that are in the queue."""

    def __init__(self, error: HpcKitError, jobs: list[FunctionJob[Any]], total: int) -> None:
        ids = ", ".join(dict.fromkeys(base_id(job.job_id) for job in jobs))
        super().__init__(
            f"only the first {len(jobs)} of {total} are submitted: {error.what}",
            found=error.found,
            remedy=f"those go on as job {ids}; to end them: scancel {ids}\n{error.remedy or ''}".rstrip(),
        )
        self.jobs = jobs


class Executor(SlurmExecutor):
    """submitit's `SlurmExecutor`, with the script of a job file: its resources, template, environment.

    `submit`, `map_array`, `submit_array`, `batch()` and `update_parameters` are submitit's, and so is its protocol for
    checkpoints: a callable with a `checkpoint` method is requeued when it is preempted or out of time.

    Args:
        job: Name or path of a job file, or a job: all but its command counts.
        folder: Where pickles, results and logs go; all nodes must see it. `%j` in it stands for the job's id. Default:
            runs/functions below `root`.
        cluster: Name or path of a cluster file, or a cluster (default: what fits this machine).
        set: Values over those of the files, by dotted key: {"resources.nodes": 2}.
        root: The user's project (default: the current folder).
        max_num_timeout: How often a checkpointable callable may run out of time before it is given up.
        max_pickle_size_gb: Most that one submission may pickle.
        python: Words that start Python in the job, such as `apptainer exec image.sif python`.

    Raises:
        SpecError: A file is missing or says something that cannot be.
    """

    job_class = FunctionJob

    def __init__(
        self,
        job: str | Path | Job,
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
        super().__init__(
            folder or self.root / "runs" / "functions", max_num_timeout, max_pickle_size_gb, python or "python"
        )
        self._job = job
        choice = Choice("", {}) if cluster is not None else default_cluster(self.root, os.environ)
        self._cluster = choice.name if cluster is None else cluster
        self._settings = {**choice.settings, **(set or {})}
        self._extras = Extras()
        self._check_folder()
        self._resolve()

    @classmethod
    def name(cls) -> str:
        """The name that submitit's protocol has for it in the job."""
        return "slurm"

    @classmethod
    def affinity(cls) -> int:
        """Always there: where the machine has no Slurm, the embedded one serves."""
        return 1

    def _check_folder(self) -> None:
        if "\\" in str(self.folder):
            raise SpecError(
                "a backslash in the executor's folder",
                found=str(self.folder),
                remedy="a folder without it: Slurm would no longer put the job's id into the names of the logs",
            )

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        """Take submitit's names, sbatch's, or either with `slurm_` before it.

        Raises:
            UnknownParameter: There is no such name; near ones are named.
            SpecError: It has no meaning here, or a value cannot be.
        """
        new = parameters(kwargs)
        before = self._settings, self._extras
        self._settings = {**self._settings, **new.settings}
        try:
            self._extras = self._extras.updated(new.extras)
            self._resolve()
        except SpecError:
            self._settings, self._extras = before
            raise
        self.parameters.update(kwargs)

    def _resolve(self) -> Resolved:
        """The job as it would be submitted now: the file's, with submitit's command."""
        loaded = load.load(self._job, self._cluster, set=self._settings, root=self.root)
        job = loaded.job
        if job.launch.launcher != "srun":
            raise SpecError(
                f"job {job.name} is started by {job.launch.launcher}",
                found="an Executor's functions are started by srun, one a rank",
                remedy="a job with launcher = 'srun', or set={'launch.launcher': 'srun', 'launch.nproc_per_node': 1}",
            )
        job = structs.replace(job, command=tuple(shlex.split(self._submitit_command_str)))
        return resolve(structs.replace(loaded, job=job), root=self.root)

    def _with_protocol(self, resolved: Resolved, array: str | None) -> Resolved:
        """With submitit's logs and signal."""
        return structs.replace(resolved, job=with_protocol(resolved.job, self.folder, self._extras, array))

    @property
    def _submitit_command_str(self) -> str:
        return f"{self.python} -u -m submitit.core._submit {shlex.quote(str(self.folder))}"

    def _num_tasks(self) -> int:
        return self._resolve().ntasks

    def _make_submission_file_text(self, command: str, uid: str) -> str:  # noqa: ARG002 - submitit's hook
        return render_resolved(self._calling(command), root=self.root)

    def _calling(self, command: str) -> Resolved:
        resolved = self._with_protocol(self._resolve(), None)
        return structs.replace(resolved, job=structs.replace(resolved.job, command=tuple(shlex.split(command))))

    def _submit_command(self, command: str) -> FunctionJob[Any]:
        return self._send(self._calling(command), Pickles(str(self.folder), (), array=False))

    def _send(self, resolved: Resolved, pickles: Pickles) -> FunctionJob[Any]:
        """Render, hand to sbatch, record; submitit's own would leave the environment of a surrounding job in."""
        text = render_resolved(resolved, root=self.root)
        try:
            done = send(resolved, text, root=self.root, command_line=sys.argv, pickles=pickles)
        except BaseException:
            pickles.drop()
            raise
        job = self._handle(done, done.job_id, resolved)
        make_folder(job.paths.folder, mode=0o700)
        job.paths.submission_file.write_text(text)
        self._write_job_id(done.job_id, uuid.uuid4().hex)
        return job

    def _handle(self, done: Submission, job_id: str, resolved: Resolved) -> FunctionJob[Any]:
        job: FunctionJob[Any] = self.job_class(folder=self.folder, job_id=job_id, tasks=range(resolved.ntasks))
        job.attach(done.run.with_name(job_id), done.access, resolved.cluster)
        return job

    def _internal_process_submissions(self, delayed_submissions: Sequence[DelayedSubmission]) -> list[Any]:
        """Submit one function, or several as arrays: as many as MaxArraySize asks for."""
        submissions, resolved = list(delayed_submissions), self._resolve()
        if len(submissions) == 1:
            return self._process(resolved, submissions, None)
        size = max(1, access_of(resolved.cluster).max_array_size())
        chunks = [submissions[start : start + size] for start in range(0, len(submissions), size)]
        share = max(1, self._extras.array_parallelism // len(chunks))
        jobs: list[FunctionJob[Any]] = []
        for chunk in chunks:
            throttle = f"%{share}" if share < len(chunk) else ""
            try:
                jobs += self._process(resolved, chunk, f"0-{len(chunk) - 1}{throttle}")
                base = JobPaths.get_first_id_independent_folder(self.folder)
                table.add(base, [job.job_id for job in jobs], submissions, len(chunk))
            except HpcKitError as error:
                if not jobs:
                    raise
                raise PartlySubmitted(error, jobs, len(submissions)) from error
        return jobs

    def _process(
        self, resolved: Resolved, submissions: list[DelayedSubmission], array: str | None
    ) -> list[FunctionJob[Any]]:
        """Pickle and submit."""
        resolved = self._with_protocol(resolved, array)
        paths = self._pickled(submissions, timeout_minutes(resolved.job))
        pickles = Pickles(str(self.folder), tuple(map(str, paths)), array is not None)
        self._throttle()
        self._last_job_submitted = time.time()
        job = self._send(resolved, pickles)
        if array is None:
            return [job]
        done = Submission(job.job_id, job.run.folder, job.access)
        return [self._handle(done, f"{job.job_id}_{index}", resolved) for index in range(len(submissions))]

    def _pickled(self, submissions: list[DelayedSubmission], minutes: int) -> list[Path]:
        folder = JobPaths.get_first_id_independent_folder(self.folder)
        # Arguments may hold what is nobody else's business.
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
            undo.pop_all()
        return pickles
