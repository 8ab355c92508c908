"""The sbatch options of a job: each field is a long option with `_` in place of `-`.

The order is that of the sbatch man page (22.05), what newer releases added last, and a script's directives follow it.
Options of a single submission (`--wait`, `--parsable`, `--test-only`, `--wrap`) are not included.

The annotations are evaluated here, once, and are plain: every command that touches a job pays for them. The description
of each option is in `schema.py`, which only `hpc-kit schema` imports.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct

from hpc_kit.slurm.option_table import CPU_COUNT_OPTIONS, EXCLUSIVE_OPTIONS
from hpc_kit.slurm.sizes import GPU_COUNT_OPTIONS, GPU_OPTIONS, count_gres_gpus, read_gpu_counts

Count = Annotated[int, Meta(ge=1)]
Number = Annotated[int, Meta(ge=0)]
Minutes = str | int
"""Minutes, or 'M:S', 'H:M:S', 'D-H', 'D-H:M', 'D-H:M:S'."""

Size = str | int
"""MiB, or with a unit: '512M', '4G', '1T'."""


class Resources(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The options of one job. None means the cluster's default. False removes a default."""

    account: str | None = None
    acctg_freq: str | None = None
    array: str | int | None = None
    batch: str | None = None
    bb: str | None = None
    bbf: str | None = None
    begin: str | None = None
    chdir: str | None = None
    cluster_constraint: str | None = None
    clusters: str | None = None
    comment: str | None = None
    constraint: str | None = None
    container: str | None = None
    context: str | None = None
    contiguous: bool | None = None
    core_spec: Number | None = None
    cores_per_socket: Count | None = None
    cpu_freq: str | None = None
    cpus_per_gpu: Count | None = None
    cpus_per_task: Count | None = None
    deadline: str | None = None
    delay_boot: Minutes | None = None
    dependency: str | None = None
    distribution: str | None = None
    error: str | None = None
    exclude: str | None = None
    exclusive: bool | str | None = None
    export: str | None = None
    export_file: str | None = None
    extra_node_info: str | None = None
    get_user_env: bool | str | None = None
    gpu_bind: str | None = None
    gpu_freq: str | None = None
    gpus: str | int | None = None
    gpus_per_node: str | int | None = None
    gpus_per_socket: str | int | None = None
    gpus_per_task: str | int | None = None
    gres: str | None = None
    gres_flags: str | None = None
    hint: str | None = None
    hold: bool | None = None
    input: str | None = None
    job_name: str | None = None
    kill_on_invalid_dep: bool | str | None = None
    licenses: str | None = None
    mail_type: str | None = None
    mail_user: str | None = None
    mcs_label: str | None = None
    mem: Size | None = None
    mem_bind: str | None = None
    mem_per_cpu: Size | None = None
    mem_per_gpu: Size | None = None
    mincpus: Count | None = None
    network: str | None = None
    nice: bool | int | None = None
    no_kill: bool | str | None = None
    no_requeue: bool | None = None
    nodefile: str | None = None
    nodelist: str | None = None
    nodes: Count | str | None = None
    ntasks: Count | None = None
    ntasks_per_core: Count | None = None
    ntasks_per_gpu: Count | None = None
    ntasks_per_node: Count | None = None
    ntasks_per_socket: Count | None = None
    open_mode: Literal["append", "truncate"] | None = None
    output: str | None = None
    overcommit: bool | None = None
    oversubscribe: bool | None = None
    partition: str | None = None
    power: str | None = None
    prefer: str | None = None
    priority: int | str | None = None
    profile: str | None = None
    propagate: str | None = None
    qos: str | None = None
    reboot: bool | None = None
    requeue: bool | str | None = None
    reservation: str | None = None
    signal: str | None = None
    sockets_per_node: Count | None = None
    spread_job: bool | None = None
    switches: str | None = None
    thread_spec: Number | None = None
    threads_per_core: Count | None = None
    time: Minutes | None = None
    time_min: Minutes | None = None
    tmp: Size | None = None
    tres_bind: str | None = None
    use_min_nodes: bool | None = None
    wait_all_nodes: Literal[0, 1] | None = None
    wckey: str | None = None
    consolidate_segments: bool | None = None
    container_id: str | None = None
    container_type: str | None = None
    extra: str | None = None
    mem_update: str | None = None
    oom_kill_step: bool | Literal[0, 1] | None = None
    resources: str | None = None
    resv_ports: bool | Number | None = None
    segment: Count | None = None
    spread_segments: bool | None = None
    stepmgr: bool | None = None
    tres_per_task: str | None = None

    def given(self) -> dict[str, str | int | bool]:
        """The options that are set, in the man page's order, by field name."""
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return {name: value for name, value in values if value is not None and value is not False}

    def by_option_name(self) -> dict[str, str]:
        """Return the options that are set by their long sbatch names, for `hpc_kit.slurm.sizes`."""
        return {name.replace("_", "-"): "" if value is True else str(value) for name, value in self.given().items()}

    def count_gpus(self, nodes: int, ntasks: int | None) -> int | None:
        """Return the GPUs of the whole job; None if it asks for none, or their number is unknown."""
        return read_gpu_counts(self.by_option_name()).in_job(nodes, ntasks)


EXCLUSIVE_FIELDS = tuple(
    frozenset(name.replace("-", "_") for name in group) for group in (*EXCLUSIVE_OPTIONS, CPU_COUNT_OPTIONS)
)
"""Groups of fields of which a job may set only one. Its choice replaces a cluster's default of the same group."""

GPU_COUNT_FIELDS = frozenset(name.replace("-", "_") for name in GPU_COUNT_OPTIONS)
"""Fields that ask for a number of GPUs. A job may set several. If it sets one, the cluster's defaults do not apply."""

GPU_FIELDS = tuple(name.replace("-", "_") for name in GPU_OPTIONS)


def excluded_options(given: Mapping[str, object], others: Mapping[str, object]) -> set[str]:
    """Return the options among `others` that `given` replaces by another option with the same purpose.

    In `given`, `false` chooses nothing.
    """
    chosen = {name for name, value in given.items() if value is not None and value is not False}
    excluded = {name for group in EXCLUSIVE_FIELDS if group & chosen for name in group}
    if GPU_COUNT_FIELDS & chosen or count_gres_gpus(str(given.get("gres"))) is not None:
        excluded |= GPU_COUNT_FIELDS
        if count_gres_gpus(str(others.get("gres"))) is not None:
            excluded.add("gres")
    return (excluded & others.keys()) - given.keys()
