"""Records of jobs and steps, one row each, and the names of job states."""

from __future__ import annotations

from typing import NamedTuple

# ruff: noqa: RUF012 - records are never changed in place, so their empty defaults may be shared


NEVER = 0.0
"""A point in time that has not come."""

ACTIVE = ("PENDING", "RUNNING")
"""States of a job that is not over; every other one is final."""


class Job(NamedTuple):
    """A batch job, a task of an array, the pending tasks of an array, or the allocation of an srun or salloc.

    Each component of a heterogeneous job has a record. The first one is the leader: it has the script and the
    supervisor, processes of all components have its id, and the components start and end with it.

    Attributes:
        job_id: Its id; the pending tasks of an array share the array's.
        array_job_id: The array's id; None outside of arrays.
        array_task_id: Its index; None for the pending tasks.
        array_waiting: Indices of the pending tasks, such as `0-3,7`; empty otherwise.
        array_at_once: Limit of running tasks; 0 for none.
        array_spec: All indices of the array: `0-9`.
        het_job_id: Id of the leader of a heterogeneous job, None otherwise; `het_offset` is the component's index.
        state: Slurm's name; `completing` while the job's processes are being ended.
        options: The options of sbatch or srun by long name, as written; flags are empty.
        request: The requested size, see `JobRequest`.
        command: Path of the script; `arguments` are its arguments.
        work_dir: Folder in which it runs; `submit_dir` is the folder of sbatch.
        nodes: Its nodes in order, with `cpus`, `mem` (MiB) and `gpus` (device numbers) of each.
        tasks: Tasks on each node.
        exit_code: Wait status of the batch script (of the step, for an srun of its own); `derived_exit_code` is the
            highest of the steps.
        batch: It has a script.
        holder: Identity (`processes.identity`) of the srun or salloc that owns an allocation; empty for a batch job.
        supervisor: Identity of its supervisor; empty while there is none.
        attempt: Number of this start; a supervisor of an older attempt is ignored.
        limits: Soft resource limits of the submitter by name.
        begin_time: Earliest start; `time_limit` is in seconds, -1 without limit.
        submit_line: The command line, for `sacct -o SubmitLine`.
    """

    job_id: int
    name: str
    user: str
    uid: int
    group: str
    gid: int
    partition: str
    array_job_id: int | None = None
    array_task_id: int | None = None
    array_waiting: str = ""
    array_at_once: int = 0
    array_spec: str = ""
    het_job_id: int | None = None
    het_offset: int = 0
    account: str = ""
    qos: str = ""
    comment: str = ""
    cluster: str = ""
    state: str = "PENDING"
    completing: bool = False
    reason: str = "None"
    priority: int = 1
    options: dict[str, str] = {}
    request: dict[str, object] = {}
    command: str = ""
    arguments: list[str] = []
    submit_line: str = ""
    submit_dir: str = "/"
    submit_host: str = ""
    work_dir: str = "/"
    std_out: str = ""
    std_err: str = ""
    std_in: str = "/dev/null"
    nodes: list[str] = []
    cpus: list[int] = []
    mem: list[int] = []
    gpus: list[list[int]] = []
    tasks: list[int] = []
    batch: bool = True
    holder: str = ""
    supervisor: str = ""
    attempt: int = 0
    dependency: str = ""
    deadline: float = NEVER
    umask: int = 0o022
    limits: dict[str, int] = {}
    begin_time: float = NEVER
    submit_time: float = NEVER
    eligible_time: float = NEVER
    start_time: float = NEVER
    end_time: float = NEVER
    time_limit: int = -1
    requeue: bool = True
    restart_count: int = 0
    exit_code: int = 0
    derived_exit_code: int = 0
    killed_by: int | None = None
    next_step: int = 0

    @property
    def active(self) -> bool:
        """Not over yet."""
        return self.state in ACTIVE or self.completing

    @property
    def shown_state(self) -> str:
        """The state as squeue and scontrol show it."""
        return "COMPLETING" if self.completing else self.state

    @property
    def leader_id(self) -> int:
        """The job that this one begins and ends with: itself, but for a component of a heterogeneous job."""
        return self.het_job_id or self.job_id

    @property
    def display_id(self) -> str:
        """The id as users know it: `12`, `12_3`, `12_[4-9%2]`, `12+1`."""
        if self.het_job_id is not None:
            return f"{self.het_job_id}+{self.het_offset}"
        if self.array_job_id is None:
            return str(self.job_id)
        if self.array_task_id is not None:
            return f"{self.array_job_id}_{self.array_task_id}"
        limit = f"%{self.array_at_once}" if self.array_at_once else ""
        return f"{self.array_job_id}_[{self.array_waiting}{limit}]"


class Step(NamedTuple):
    """One step of a job, or (`step_id` -1) its batch script.

    Attributes:
        nodes: Its nodes; `cpus`, `mem` (MiB), `gpus` (device numbers) and `tasks` (task numbers) go along with them.
        srun: Identity of the srun that runs it.
        overlap: It counts as using nothing.
        exit_code: Wait status: the highest of its tasks.
        killed_by: The user who cancelled this step alone.
        user_cpu: CPU seconds of its processes, known at its end; `system_cpu` those in the kernel.
        peak_memory: KiB of its largest process, 0 where it is not known.
    """

    job_id: int
    step_id: int
    attempt: int
    name: str
    nodes: list[str]
    cpus: list[int] = []
    mem: list[int] = []
    gpus: list[list[int]] = []
    tasks: list[list[int]] = []
    srun: str = ""
    overlap: bool = False
    state: str = "RUNNING"
    exit_code: int = 0
    killed_by: int | None = None
    submit_line: str = ""
    start_time: float = NEVER
    end_time: float = NEVER
    user_cpu: float = 0.0
    system_cpu: float = 0.0
    peak_memory: int = 0

    @property
    def label(self) -> str:
        """Its number as users know it: `batch` or `0`."""
        return "batch" if self.step_id == BATCH_STEP else str(self.step_id)


BATCH_STEP = -1
"""The `step_id` of a batch script."""
