"""The one table of the variables that launchers of MPI programs set for their ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.runtime.variables import read_node_list

if TYPE_CHECKING:
    from collections.abc import Mapping


class RankVariables(NamedTuple):
    """Names of the variables of one launcher."""

    rank: str
    size: str
    local_rank: str = ""
    local_size: str = ""
    node: str = ""
    """Index of the node in the launch, where the launcher sets it."""
    nodes: str = ""
    """Number of nodes of the launch, where the launcher sets it."""
    host: tuple[str, ...] = ()
    """Host of this process."""
    launch: tuple[str, ...] = ()
    """Variables that identify the launch and are equal on all ranks. The first one that is set counts."""
    over_ssh: bool = False
    """True if the launcher may use ssh. Ranks on other nodes then lack the variables of the job."""
    libraries: tuple[str, ...] = ()
    """MPI implementations whose launcher sets these variables, the most likely one first; empty if none of them."""
    also_set_by_srun: bool = False
    """True if srun sets them, too, with an MPI plug-in. In a Slurm job they are the step's own or inherited from a
    step.
    """

    def is_set_in(self, environ: Mapping[str, str]) -> bool:
        """Return whether these variables prove that this launcher started the process."""
        if not (environ.get(self.rank) and environ.get(self.size)):
            return False
        chosen = environ.get("HPC_KIT_LAUNCHER", "").strip() == "mpi"
        of_prun = self.rank == "PMIX_RANK" and environ.get("PMIX_NAMESPACE", "").startswith("prte")
        if self.also_set_by_srun and environ.get("SLURM_JOB_ID") and not (of_prun or chosen):
            return False
        # Several launchers set PMI's or PMIx's rank. The other variables decide which one it was.
        beside = (self.local_rank, self.local_size)
        return (
            not self.rank.startswith(("PMI_", "PMIX_"))
            or beside == ("", "")
            or any(environ.get(name) for name in beside)
        )


OPEN_MPI, MPICH = "Open MPI", "MPICH"
"""MPI implementations, by their binary interface: Intel MPI, MVAPICH and Cray MPICH have MPICH's."""

_PMI = ("PMI_RANK", "PMI_SIZE")
_HYDRA = ("MPI_LOCALRANKID", "MPI_LOCALNRANKS")
_HYDRA_HOST = ("PMI_HOSTNAME", "MPIR_CVAR_CH3_INTERFACE_HOSTNAME", "HYDRA_BSTRAP_LOCALHOST", "MPICH_INTERFACE_HOSTNAME")
_BY_JOB = "WORLD_SIZE"
"""Size variable that the job script may set for launchers that set a rank and no size."""


def _openmpi_like(
    prefix: str,
    *libraries: str,
    nodes: str = "",
    host: tuple[str, ...] = (),
    launch: tuple[str, ...] = (),
    over_ssh: bool = True,
) -> RankVariables:
    """Return the variables of a launcher that names rank and size like Open MPI, with another prefix."""
    names = RankVariables(f"{prefix}_RANK", f"{prefix}_SIZE", f"{prefix}_LOCAL_RANK", f"{prefix}_LOCAL_SIZE")
    return names._replace(nodes=nodes, host=host, launch=launch, over_ssh=over_ssh, libraries=libraries)


MPI_LAUNCHERS = {
    # Ranks of Spectrum MPI have Open MPI's variables, too, with the same values.
    "jsrun": _openmpi_like("JSM_NAMESPACE", OPEN_MPI, launch=("PMIX_NAMESPACE",), over_ssh=False),
    # OMPI_COMM_WORLD_NODE_RANK is not the index of the node. It is a local rank that counts the ranks of all jobs on
    # the node.
    "Open MPI": _openmpi_like(
        "OMPI_COMM_WORLD",
        OPEN_MPI,
        host=("PMIX_HOSTNAME",),
        launch=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"),
    ),
    "MVAPICH2": _openmpi_like("MV2_COMM_WORLD", MPICH, nodes="MV2_NUM_NODES_IN_JOB", launch=("MPIRUN_ID",)),
    "MVAPICH": _openmpi_like("MVP_COMM_WORLD", MPICH, nodes="MVP_NUM_NODES_IN_JOB", launch=("MPIRUN_ID",)),
    # mpirun_rsh numbers its ranks like PMI. The other variables are MVAPICH2's.
    "MVAPICH2 (mpirun_rsh)": RankVariables(
        "PMI_ID",
        "MPIRUN_NPROCS",
        nodes="MV2_NUM_NODES_IN_JOB",
        launch=("MPIRUN_ID",),
        over_ssh=True,
        libraries=(MPICH,),
    ),
    # A job of Flux has PMI's variables, too, and with HPE's plug-in also PALS's.
    "Flux": RankVariables(
        "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", nodes="FLUX_JOB_NNODES", launch=("FLUX_JOB_ID",)
    ),
    "PALS": RankVariables(
        "PALS_RANKID",
        "PMI_SIZE",
        "PALS_LOCAL_RANKID",
        "PALS_LOCAL_SIZE",
        node="PALS_NODEID",
        launch=("PALS_APID",),
        libraries=(MPICH,),
        also_set_by_srun=True,
    ),
    "Cray PMI": RankVariables(*_PMI, "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE", launch=("PALS_APID",), also_set_by_srun=True),
    "Hydra (MPICH, Intel MPI)": RankVariables(*_PMI, *_HYDRA, host=_HYDRA_HOST, launch=("I_MPI_HYDRA_UUID",)),
    # This is gloo without MPI. Its cross rank counts the nodes that have this local rank, so it is not an index of
    # nodes.
    "Horovod": _openmpi_like("HOROVOD", launch=("HOROVOD_GLOO_RENDEZVOUS_PORT",)),
    # Launchers that do not set the local rank.
    "PMI": RankVariables(*_PMI, libraries=(MPICH, OPEN_MPI), also_set_by_srun=True),
    # mpiexec -pmi-port, PALS on machines whose MPI asks PMIx, and PMIx itself as Fujitsu's mpiexec sets it.
    "Hydra over a port": RankVariables("PMI_ID", _BY_JOB, *_HYDRA, host=_HYDRA_HOST, libraries=(MPICH,)),
    "PALS without PMI": RankVariables(
        "PALS_RANKID",
        _BY_JOB,
        "PALS_LOCAL_RANKID",
        "PALS_LOCAL_SIZE",
        node="PALS_NODEID",
        launch=("PALS_APID",),
        libraries=(MPICH, OPEN_MPI),
        also_set_by_srun=True,
    ),
    "Fujitsu": RankVariables("PMIX_RANK", _BY_JOB, "PLE_RANK_ON_NODE", launch=("PMIX_NAMESPACE",)),
    "PMIx": RankVariables(
        "PMIX_RANK",
        _BY_JOB,
        host=("PMIX_HOSTNAME",),
        launch=("PMIX_NAMESPACE",),
        libraries=(OPEN_MPI, MPICH),
        also_set_by_srun=True,
    ),
    "ALPS": RankVariables("ALPS_APP_PE", _BY_JOB, launch=("ALPS_APP_ID",), also_set_by_srun=True),
    "HPE MPT": RankVariables("MPT_MPI_RANK", _BY_JOB, "MPT_LRANK", libraries=(MPICH,)),
    # The parallel universe starts one process on each slot. An mpirun inside of it comes first in this table.
    "HTCondor": RankVariables("_CONDOR_PROCNO", "_CONDOR_NPROCS"),
}

COMMON_MPI_VARIABLES = (
    MPI_LAUNCHERS["Open MPI"].rank,
    MPI_LAUNCHERS["Open MPI"].size,
    MPI_LAUNCHERS["PMIx"].rank,
    *_PMI,
    _HYDRA[0],
)
"""Variables of the most common launchers, which `hpc-kit env` lists where they do not decide the rank."""

LAUNCHERS_WITHOUT_SIZE = tuple(dict.fromkeys(names.rank for names in MPI_LAUNCHERS.values() if names.size == _BY_JOB))
"""Rank variables of launchers that set no size."""


def is_set_by_hydra(environ: Mapping[str, str]) -> bool:
    """Return whether Hydra, and not srun, has set PMI's variables."""
    return any(environ.get(name) for name in _HYDRA)


_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "COBALT_JOBID")


def batch_job_of(environ: Mapping[str, str]) -> str:
    """Return the id of the batch job of any workload manager, or "" outside of a job."""
    return next((environ[name] for name in _JOBS if environ.get(name)), "")


def mpi_launch_key(environ: Mapping[str, str], names: RankVariables, size: int) -> str:
    """Return a key that all ranks of this launch share, including ranks on nodes that were reached over ssh."""
    launch = next((environ[name] for name in names.launch if environ.get(name)), "")
    if launch and names.over_ssh:
        return f"mpi {launch}, size {size}"
    return f"mpi {launch}, job {batch_job_of(environ)}, restart {environ.get('SLURM_RESTART_COUNT') or 0}, size {size}"


def hosts_of_job(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the nodes on which ranks may be, where Slurm or LSF names them."""
    if nodes := read_node_list(environ, "SLURM_JOB_NODELIST"):
        return nodes
    nodes = tuple(environ.get("LSB_MCPU_HOSTS", "").split()[::2])
    # LSF lists the batch script's own node first, and jsrun starts nothing there.
    return nodes[1:] if environ.get("JSM_NAMESPACE_RANK") else nodes
