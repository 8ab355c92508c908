"""What a job asks of Slurm, in sbatch's own words: each field is the long option with `_` for `-`.

The order is that of the sbatch man page (22.05), and a script's directives follow it. What belongs to one submission
rather than to the job (`--wait`, `--parsable`, `--test-only`, `--wrap`) is not here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=1)]
Number = Annotated[int, Meta(ge=0)]
Minutes = Annotated[str | int, Meta(description="minutes, 'M:S', 'H:M:S', 'D-H', 'D-H:M' or 'D-H:M:S'")]
Size = Annotated[str | int, Meta(description="MiB, or with a unit: '512M', '4G', '1T'")]


class Resources(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The options of one job; None or False: not given, Slurm's or the cluster's default holds."""

    account: Annotated[str | None, Meta(description="Account that is charged")] = None
    acctg_freq: Annotated[str | None, Meta(description="Sampling intervals of accounting")] = None
    array: Annotated[str | int | None, Meta(description="Array of jobs: indices such as '0-9:2%4'")] = None
    batch: Annotated[str | None, Meta(description="Features that the batch script's node must have")] = None
    bb: Annotated[str | None, Meta(description="Burst buffer specification")] = None
    bbf: Annotated[str | None, Meta(description="File with the burst buffer specification")] = None
    begin: Annotated[str | None, Meta(description="Start no sooner, such as 'now+1hour' or '2026-01-31T20:00'")] = None
    chdir: Annotated[str | None, Meta(description="Working directory of the batch script")] = None
    cluster_constraint: Annotated[str | None, Meta(description="Features that a federated cluster must have")] = None
    clusters: Annotated[str | None, Meta(description="Clusters to try, comma separated")] = None
    comment: Annotated[str | None, Meta(description="Comment, seen in squeue and sacct")] = None
    constraint: Annotated[str | None, Meta(description="Node features, such as 'a100&ib'")] = None
    container: Annotated[str | None, Meta(description="OCI bundle to run the script in")] = None
    contiguous: Annotated[bool, Meta(description="Ask for nodes that lie side by side")] = False
    core_spec: Annotated[Number | None, Meta(description="Cores a node kept for the system")] = None
    cores_per_socket: Annotated[Count | None, Meta(description="Least cores a socket")] = None
    cpu_freq: Annotated[str | None, Meta(description="CPU frequency or governor")] = None
    cpus_per_gpu: Annotated[Count | None, Meta(description="CPUs for each GPU")] = None
    cpus_per_task: Annotated[Count | None, Meta(description="CPUs for each task")] = None
    deadline: Annotated[str | None, Meta(description="Remove the job if it cannot end before")] = None
    delay_boot: Annotated[Minutes | None, Meta(description="Wait this long before rebooting nodes for a feature")] = (
        None
    )
    dependency: Annotated[str | None, Meta(description="Jobs to wait for, such as 'afterok:123' or 'singleton'")] = None
    distribution: Annotated[str | None, Meta(description="How tasks are spread: block, cyclic, plane=N, arbitrary")] = (
        None
    )
    error: Annotated[str | None, Meta(description="File of the batch script's stderr (default: with its stdout)")] = (
        None
    )
    exclude: Annotated[str | None, Meta(description="Nodes not to use, such as 'n[3,7]'")] = None
    exclusive: Annotated[bool | str | None, Meta(description="Whole nodes; or 'user', 'mcs'")] = None
    export: Annotated[str | None, Meta(description="Variables taken along: ALL, NONE or a list")] = None
    extra_node_info: Annotated[str | None, Meta(description="sockets[:cores[:threads]] of the nodes")] = None
    get_user_env: Annotated[bool | str | None, Meta(description="Load the user's login environment")] = None
    gpu_bind: Annotated[
        str | None, Meta(description="How tasks are bound to GPUs; 'none' lets each see all of its node's")
    ] = None
    gpu_freq: Annotated[str | None, Meta(description="GPU frequency")] = None
    gpus: Annotated[str | int | None, Meta(description="GPUs of the whole job, such as 8 or 'a100:8'")] = None
    gpus_per_node: Annotated[str | int | None, Meta(description="GPUs on each node")] = None
    gpus_per_socket: Annotated[str | int | None, Meta(description="GPUs on each socket")] = None
    gpus_per_task: Annotated[str | int | None, Meta(description="GPUs for each task")] = None
    gres: Annotated[str | None, Meta(description="Generic resources of each node, such as 'gpu:a100:4'")] = None
    gres_flags: Annotated[str | None, Meta(description="disable-binding or enforce-binding")] = None
    hint: Annotated[str | None, Meta(description="compute_bound, memory_bound, multithread or nomultithread")] = None
    hold: Annotated[bool, Meta(description="Submit held: `scontrol release` starts it")] = False
    input: Annotated[str | None, Meta(description="File of the batch script's stdin")] = None
    job_name: Annotated[str | None, Meta(description="Name of the job (default: the job file's)")] = None
    kill_on_invalid_dep: Annotated[
        bool | str | None, Meta(description="End the job when its dependency can never be met: yes or no")
    ] = None
    licenses: Annotated[str | None, Meta(description="Licences needed")] = None
    mail_type: Annotated[str | None, Meta(description="When to send mail, such as 'END,FAIL'")] = None
    mail_user: Annotated[str | None, Meta(description="Who gets the mail")] = None
    mcs_label: Annotated[str | None, Meta(description="MCS label")] = None
    mem: Annotated[Size | None, Meta(description="Memory of each node, such as '4G'")] = None
    mem_bind: Annotated[str | None, Meta(description="Binding of tasks to memory")] = None
    mem_per_cpu: Annotated[Size | None, Meta(description="Memory for each CPU")] = None
    mem_per_gpu: Annotated[Size | None, Meta(description="Memory for each GPU")] = None
    mincpus: Annotated[Count | None, Meta(description="Least CPUs a node")] = None
    network: Annotated[str | None, Meta(description="Network options of the system")] = None
    nice: Annotated[bool | int | None, Meta(description="Lower the priority by this")] = None
    no_kill: Annotated[bool, Meta(description="Go on when a node of the job fails")] = False
    no_requeue: Annotated[bool, Meta(description="Never requeue")] = False
    nodefile: Annotated[str | None, Meta(description="File that lists the nodes")] = None
    nodelist: Annotated[str | None, Meta(description="Nodes that must be among the job's")] = None
    nodes: Annotated[Count | str | None, Meta(description="How many nodes")] = None
    ntasks: Annotated[Count | None, Meta(description="Tasks in all (default: nodes x ntasks_per_node)")] = None
    ntasks_per_core: Annotated[Count | None, Meta(description="Most tasks a core")] = None
    ntasks_per_gpu: Annotated[Count | None, Meta(description="Tasks for each GPU")] = None
    ntasks_per_node: Annotated[
        Count | None, Meta(description="Tasks on each node; under srun one task is one rank")
    ] = None
    ntasks_per_socket: Annotated[Count | None, Meta(description="Most tasks a socket")] = None
    open_mode: Annotated[
        Literal["append", "truncate"] | None, Meta(description="What to do with log files that exist")
    ] = None
    output: Annotated[
        str | None,
        Meta(description="File of the batch script's own output (default: runs/<job_name>/%j.log)"),
    ] = None
    overcommit: Annotated[bool, Meta(description="More than one task a CPU")] = False
    oversubscribe: Annotated[bool, Meta(description="Let other jobs share the nodes")] = False
    partition: Annotated[str | None, Meta(description="Partition, or several, comma separated")] = None
    power: Annotated[str | None, Meta(description="Power management options")] = None
    prefer: Annotated[str | None, Meta(description="Features wanted, not needed")] = None
    priority: Annotated[int | str | None, Meta(description="Priority, where one may set it")] = None
    profile: Annotated[str | None, Meta(description="Profiling: energy, task, lustre, network, all, none")] = None
    propagate: Annotated[str | None, Meta(description="Resource limits taken along")] = None
    qos: Annotated[str | None, Meta(description="Quality of service")] = None
    reboot: Annotated[bool, Meta(description="Reboot the nodes first")] = False
    requeue: Annotated[bool, Meta(description="May be requeued after a node failure or preemption")] = False
    reservation: Annotated[str | None, Meta(description="Reservation to run in")] = None
    signal: Annotated[
        str | None, Meta(description="Signal before the time limit, such as 'USR1@120' or 'B:TERM@60'")
    ] = None
    sockets_per_node: Annotated[Count | None, Meta(description="Least sockets a node")] = None
    spread_job: Annotated[bool, Meta(description="Spread over as many nodes as can be")] = False
    switches: Annotated[str | None, Meta(description="Most leaf switches, such as '1@60:00'")] = None
    thread_spec: Annotated[Number | None, Meta(description="Threads a node kept for the system")] = None
    threads_per_core: Annotated[Count | None, Meta(description="Threads of each core to use")] = None
    time: Annotated[Minutes | None, Meta(description="Time limit: minutes, 'H:M:S' or 'D-H:M:S'")] = None
    time_min: Annotated[Minutes | None, Meta(description="Least time limit that would do")] = None
    tmp: Annotated[Size | None, Meta(description="Least temporary disk space a node")] = None
    tres_bind: Annotated[str | None, Meta(description="Binding of tasks to generic resources")] = None
    use_min_nodes: Annotated[bool, Meta(description="Prefer the smaller count of a node range")] = False
    wait_all_nodes: Annotated[Literal[0, 1] | None, Meta(description="1: start when all nodes are booted")] = None
    wckey: Annotated[str | None, Meta(description="Workload characterization key")] = None

    def given(self) -> dict[str, str | int | bool]:
        """The options that are set, in the man page's order, by field name."""
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return {name: value for name, value in values if value is not None and value is not False}


ALTERNATIVES: tuple[frozenset[str], ...] = (
    frozenset({"mem", "mem_per_cpu", "mem_per_gpu"}),
    frozenset({"requeue", "no_requeue"}),
)
"""Options of which sbatch takes one at most; a job's choice puts a cluster's default of the same group aside."""
