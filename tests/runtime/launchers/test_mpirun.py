"""Launchers of MPI programs, recognized by their variables. Each case names its source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from hpc_kit.errors import ContradictoryEnvironment, IncompleteEnvironment
from hpc_kit.runtime import World, resolve
from tests.runtime.launches import Environ, Step, captured_case

LAYOUTS = {
    "one node": (0, 0, 0),
    "even": (0, 0, 0, 0, 1, 1, 1, 1),
    "by node": (0, 1, 0, 1, 0, 1),
    "uneven": (0, 0, 0, 1, 2, 2),
    "one a node": (0, 1, 2),
}
"""The node index of each rank."""


class Rank(NamedTuple):
    """One rank of a layout."""

    rank: int
    local: int
    local_size: int
    node: int
    size: int
    nodes: int


def ranks_of(layout: Sequence[int]) -> list[Rank]:
    """Return all ranks of a layout."""
    return [
        Rank(rank, layout[:rank].count(node), layout.count(node), node, len(layout), len(set(layout)))
        for rank, node in enumerate(layout)
    ]


def jsrun(rank: Rank) -> Environ:
    """jsrun of IBM's Job Step Manager under LSF.

    Lightning's LSFEnvironment (JSM_NAMESPACE_RANK, _SIZE, _LOCAL_RANK) and Open MPI's own test programs
    (JSM_NAMESPACE_LOCAL_SIZE); LSB_MCPU_HOSTS: IBM Spectrum LSF, environment variables.
    """
    names = {"RANK": rank.rank, "SIZE": rank.size, "LOCAL_RANK": rank.local, "LOCAL_SIZE": rank.local_size}
    return (
        {f"JSM_NAMESPACE_{name}": str(value) for name, value in names.items()}
        | {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in names.items()}
        | {"PMIX_RANK": str(rank.rank), "PMIX_NAMESPACE": "1", "LSB_JOBID": "4711"}
        | {"LSB_MCPU_HOSTS": "batch3 1 " + " ".join(f"h{node}n08 42" for node in range(rank.nodes))}
    )


def flux(rank: Rank) -> Environ:
    """flux-environment(7): FLUX_TASK_*, FLUX_JOB_SIZE, FLUX_JOB_NNODES, and PMI's variables."""
    return {
        "FLUX_JOB_ID": "f2YPThUs",
        "FLUX_TASK_RANK": str(rank.rank),
        "FLUX_TASK_LOCAL_ID": str(rank.local),
        "FLUX_JOB_SIZE": str(rank.size),
        "FLUX_JOB_NNODES": str(rank.nodes),
        "FLUX_URI": "local:///run/flux/local",
        "PMI_RANK": str(rank.rank),
        "PMI_SIZE": str(rank.size),
        "PMI_FD": "20",
    }


def flux_on_cray(rank: Rank) -> Environ:
    """Flux with flux-coral2's plugin cray-pals (its issue 6), which sets no PALS_LOCAL_RANKID."""
    return flux(rank) | {"PALS_RANKID": str(rank.rank), "PALS_NODEID": str(rank.node), "PALS_APID": "f2YPThUs"}


def pals(rank: Rank) -> Environ:
    """mpiexec of PALS under PBS (Polaris, Derecho): PALS_*, and the variables of Cray PMI."""
    return {
        "PALS_APID": "2c1c5ad0-9d3b-4a5b-8e6f-0a1b2c3d4e5f",
        "PALS_RANKID": str(rank.rank),
        "PALS_NODEID": str(rank.node),
        "PALS_LOCAL_RANKID": str(rank.local),
        "PALS_LOCAL_SIZE": str(rank.local_size),
        "PMI_RANK": str(rank.rank),
        "PMI_SIZE": str(rank.size),
        "PMI_LOCAL_RANK": str(rank.local),
        "PMI_LOCAL_SIZE": str(rank.local_size),
        "PBS_JOBID": "1234.polaris-pbs-01",
    }


def pals_with_pmix(rank: Rank) -> Environ:
    """PALS with PMIx (Aurora) sets no size. Job scripts export it as WORLD_SIZE."""
    told = {name: value for name, value in pals(rank).items() if not name.startswith("PMI_")}
    return told | {"PMIX_RANK": str(rank.rank), "WORLD_SIZE": str(rank.size)}


def mvapich2(rank: Rank) -> Environ:
    """MVAPICH2's mpirun_rsh and mpiexec: user guide, MV2_COMM_WORLD_*; mpispawn.c for the rest."""
    names = {"RANK": rank.rank, "SIZE": rank.size, "LOCAL_RANK": rank.local, "LOCAL_SIZE": rank.local_size}
    return {f"MV2_COMM_WORLD_{name}": str(value) for name, value in names.items()} | mpirun_rsh(rank)


def mpirun_rsh(rank: Rank) -> Environ:
    """An mpirun_rsh without MV2_COMM_WORLD_*: mpispawn.c of MVAPICH2 1.9."""
    return {
        "PMI_ID": str(rank.rank),
        "PMI_PORT": f"n{rank.node}:40001",
        "MPIRUN_ID": "31337",
        "MPIRUN_NPROCS": str(rank.size),
        "MV2_NUM_NODES_IN_JOB": str(rank.nodes),
    }


def mvapich(rank: Rank) -> Environ:
    """MVAPICH 3 and 4: the same names with MVP_ (mvp_env_params.h)."""
    return {name.replace("MV2_", "MVP_"): value for name, value in mvapich2(rank).items()}


def hydra_over_a_port(rank: Rank) -> Environ:
    """`mpiexec -pmi-port` of MPICH 5.0.2, as observed: no PMI_RANK, no PMI_SIZE."""
    return {
        "PMI_ID": str(rank.rank),
        "PMI_PORT": "n0:41231",
        "PMI_HOSTNAME": f"n{rank.node}",
        "MPI_LOCALRANKID": str(rank.local),
        "MPI_LOCALNRANKS": str(rank.local_size),
        "WORLD_SIZE": str(rank.size),
    }


def fujitsu(rank: Rank) -> Environ:
    """Fujitsu's mpiexec (Fugaku): PMIX_RANK and no size."""
    return {"PMIX_RANK": str(rank.rank), "PLE_RANK_ON_NODE": str(rank.local), "WORLD_SIZE": str(rank.size)}


def alps(rank: Rank) -> Environ:
    """aprun(1): ALPS_APP_PE and no size."""
    return {"ALPS_APP_PE": str(rank.rank), "ALPS_APP_ID": "99", "WORLD_SIZE": str(rank.size)}


def horovodrun(rank: Rank) -> Environ:
    """horovodrun over gloo: gloo_run.py; its cross rank counts the nodes that have a rank with this local rank."""
    names = {"RANK": rank.rank, "SIZE": rank.size, "LOCAL_RANK": rank.local, "LOCAL_SIZE": rank.local_size}
    return {f"HOROVOD_{name}": str(value) for name, value in names.items()} | {
        "HOROVOD_HOSTNAME": f"n{rank.node}",
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "40001",
        "HOROVOD_CONTROLLER": "gloo",
    }


def mpt(rank: Rank) -> Environ:
    """HPE MPT's mpiexec_mpt (RADICAL-Pilot's launch methods and scripts of NASA's users): MPT_MPI_RANK and no size."""
    return {"MPT_MPI_RANK": str(rank.rank), "MPT_LRANK": str(rank.local), "WORLD_SIZE": str(rank.size)}


def htcondor(rank: Rank) -> Environ:
    """The parallel universe of HTCondor: its parallel shadow sets these two variables on each slot."""
    return {"_CONDOR_PROCNO": str(rank.rank), "_CONDOR_NPROCS": str(rank.size)}


PLACES, NODE, NODES = {"local_rank", "local_world_size"}, {"node_rank"}, {"nnodes"}

TOLD: dict[Callable[[Rank], Environ], set[str]] = {
    jsrun: PLACES,
    flux: {"local_rank"} | NODES,
    flux_on_cray: {"local_rank"} | NODES,
    pals: PLACES | NODE,
    pals_with_pmix: PLACES | NODE,
    mvapich2: PLACES | NODES,
    mvapich: PLACES | NODES,
    mpirun_rsh: NODES,
    hydra_over_a_port: PLACES,
    fujitsu: {"local_rank"},
    alps: set(),
    mpt: {"local_rank"},
    htcondor: set(),
    horovodrun: PLACES,
}
"""The values that each launcher sets in addition to rank and size, on any number of nodes."""


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("launcher", TOLD, ids=lambda each: each.__name__)
def test_every_rank_gets_the_values_of_its_launcher_and_no_guess(
    launcher: Callable[[Rank], Environ], layout: Sequence[int]
) -> None:
    for rank in ranks_of(layout):
        world = resolve(launcher(rank))
        truth = {
            "local_rank": rank.local,
            "local_world_size": rank.local_size,
            "node_rank": rank.node,
            "nnodes": rank.nodes,
        }
        assert (world.launcher, world.rank, world.world_size) == ("mpi", rank.rank, rank.size)
        for name, value in truth.items():
            # With one node, or as many nodes as ranks, only one value is possible.
            certain = name in TOLD[launcher]
            assert getattr(world, name) in ({value} if certain else {value, None}), name


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("launcher", TOLD, ids=lambda each: each.__name__)
def test_all_ranks_meet_at_one_port(launcher: Callable[[Rank], Environ], layout: Sequence[int]) -> None:
    worlds = [resolve(launcher(rank)) for rank in ranks_of(layout)]
    assert len({(world.key, world.master_port, world.hosts) for world in worlds}) == 1


def test_flux_ranks_get_the_local_size_if_it_is_unambiguous() -> None:
    one, several = ranks_of(LAYOUTS["one node"])[1], ranks_of(LAYOUTS["one a node"])[1]
    assert (resolve(flux(one)).local_world_size, resolve(flux(one)).node_rank) == (3, 0)
    assert (resolve(flux(several)).local_world_size, resolve(flux(several)).node_rank) == (1, None)


def test_jobs_of_lsf_have_separate_rendezvous_despite_equal_step_numbers() -> None:
    rank = ranks_of(LAYOUTS["even"])[5]
    assert resolve(jsrun(rank)).key != resolve(jsrun(rank) | {"LSB_JOBID": "4712"}).key


def test_jobs_of_flux_have_separate_rendezvous() -> None:
    rank = ranks_of(LAYOUTS["even"])[5]
    assert resolve(flux(rank)).key != resolve(flux(rank) | {"FLUX_JOB_ID": "f2YPThUt"}).key


def test_jobs_of_flux_in_one_step_of_brokers_have_separate_rendezvous() -> None:
    """`srun -N2 -n2 flux start`: the step of the brokers has the same numbers as a job with one task per node."""
    rank = ranks_of(LAYOUTS["one a node"][:2])[1]
    worlds = [resolve(Step.of(1, 1).environ(1) | flux(rank) | {"FLUX_JOB_ID": number}) for number in ("f2A", "f2B")]
    assert [(world.launcher, world.rank, world.world_size) for world in worlds] == [("mpi", 1, 2)] * 2
    assert worlds[0].key != worlds[1].key


OF_OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}


@pytest.mark.parametrize("beside", [{}, {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}])
def test_open_mpi_variables_set_by_a_script_do_not_hide_the_nodes_of_the_step(beside: Environ) -> None:
    """`srun bash -c 'export OMPI_COMM_WORLD_RANK=$SLURM_PROCID ...'`, for programs that read only these variables."""
    world = resolve(Step.of(2, 2).environ(3) | OF_OPEN_MPI | beside)
    assert (world.launcher, world.rank, world.node_rank, world.nnodes, world.master_addr) == ("slurm", 3, 1, 2, "n1")


def test_a_program_started_by_a_rank_of_open_mpi_under_srun_belongs_to_the_step() -> None:
    """Under `srun --mpi=pmix`, MPI_Init sets Open MPI's variables, and the children of the rank inherit them."""
    for rank, environ in enumerate(captured_case("16_srun_pmix@22.05")):
        bare = resolve(environ)
        names = {"RANK": bare.rank, "SIZE": bare.world_size, "LOCAL_RANK": bare.local_rank}
        world = resolve(environ | {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in names.items()})
        assert (world.launcher, world.rank, world.key, world.nnodes) == ("slurm", rank, bare.key, bare.nnodes)


def test_open_mpi_variables_of_the_submitter_do_not_hide_a_step_with_pmix() -> None:
    """A rank of `mpirun -n 1` has called sbatch. Slurm's PMIx proves that MPI sees the ranks of this step."""
    left = {"RANK": "0", "SIZE": "1", "LOCAL_RANK": "0", "LOCAL_SIZE": "1"}
    left = {f"OMPI_COMM_WORLD_{name}": value for name, value in left.items()}
    for rank, environ in enumerate(captured_case("16_srun_pmix@22.05")):
        assert (resolve(environ | left).launcher, resolve(environ | left).rank) == ("slurm", rank)
        with pytest.raises(ContradictoryEnvironment):
            resolve({name: value for name, value in (environ | left).items() if not name.startswith("PMIX")})


def test_variables_that_mpirun_may_have_set_belong_to_mpirun() -> None:
    daemon = Step.of(1, 1).environ(1)
    alone = {name: value.replace("3", "1").replace("4", "2") for name, value in OF_OPEN_MPI.items()}
    assert resolve(daemon | alone | {"OMPI_COMM_WORLD_LOCAL_RANK": "0"}).launcher == "mpi"
    typed = Step.of(2, 2).environ(0) | {"SLURM_PTY_PORT": "4711"}
    assert (
        resolve(typed | OF_OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}).launcher
        == "mpi"
    )


def test_jsrun_excludes_the_node_of_the_batch_script() -> None:
    rank = ranks_of(LAYOUTS["even"])[5]
    assert resolve(jsrun(rank)).hosts == ("h0n08", "h1n08")


@pytest.mark.parametrize("case", ["34_ompi4_mpirun@22.05", "37_ompi5_mpirun@22.05"])
def test_ranks_that_mpirun_started_over_ssh_meet_the_ranks_of_its_own_node(case: str) -> None:
    """A daemon started over ssh passes on no variable of the job (Open MPI built without Slurm, plm rsh)."""
    environs = captured_case(case)
    bare = [{name: value for name, value in each.items() if not name.startswith("SLURM")} for each in environs]
    worlds = [resolve(each) for each in (*environs[:4], *bare[4:])]
    assert [world.rank for world in worlds] == list(range(8))
    assert len({(world.key, world.master_port) for world in worlds}) == 1


@pytest.mark.parametrize("name", ["PALS_RANKID", "PMIX_RANK", "ALPS_APP_PE", "PMI_ID", "MPT_MPI_RANK"])
def test_an_unknown_rank_is_refused_with_a_remedy(name: str) -> None:
    with pytest.raises(IncompleteEnvironment) as refused:
        resolve({name: "1"})
    assert refused.value.what == f"{name} gives a rank, but no variable gives the number of ranks"
    assert "export WORLD_SIZE=RANKS" in str(refused.value)


@pytest.mark.parametrize(
    ("environ", "missing", "launcher"),
    [
        ({"OMPI_COMM_WORLD_RANK": "1"}, "OMPI_COMM_WORLD_SIZE", "mpirun"),
        ({"PMI_RANK": "1", "MPI_LOCALRANKID": "1"}, "PMI_SIZE", "mpirun or mpiexec"),
        ({"JSM_NAMESPACE_RANK": "1"}, "JSM_NAMESPACE_SIZE", "jsrun"),
        ({"FLUX_TASK_RANK": "1"}, "FLUX_JOB_SIZE", "flux run"),
        ({"HOROVOD_RANK": "1"}, "HOROVOD_SIZE", "horovodrun"),
        ({"RANK": "1"}, "WORLD_SIZE", "torchrun"),
    ],
)
def test_a_half_set_launch_is_refused_with_the_launcher_that_sets_the_rest(
    environ: Environ, missing: str, launcher: str
) -> None:
    with pytest.raises(IncompleteEnvironment, match=f"^{missing} is not set") as refused:
        resolve(environ)
    assert str(refused.value.remedy).startswith(f"start the program with {launcher}, which sets {missing} too;\n")


def test_a_world_size_left_by_a_login_profile_is_refused() -> None:
    rank = ranks_of(LAYOUTS["even"])[0]
    with pytest.raises(ContradictoryEnvironment, match="local_world_size 4 does not fit world_size 1"):
        resolve(pals_with_pmix(rank) | {"WORLD_SIZE": "1"})


@pytest.mark.parametrize("environ", [{"PMIX_NAMESPACE": "prte-n5-99@1"}, {"PMIX_NAMESPACE": "prterun-n5-99@1"}])
def test_ranks_of_prun_in_a_job_are_not_separate_worlds(environ: Environ) -> None:
    """PRRTE without Open MPI's personality sets only PMIX_RANK, which srun's PMIx plug-in sets in a job too."""
    shell = captured_case("10_batch_shell_8task_job@22.05")[0]
    with pytest.raises(IncompleteEnvironment, match="PMIX_RANK gives a rank"):
        resolve(shell | environ | {"PMIX_RANK": "1"})
    assert resolve(shell | {"PMIX_RANK": "1", "PMIX_NAMESPACE": "slurm.pmix.77.0"}).launcher == "single"


def parastation(step: Step, rank: int) -> Environ:
    """ParaStation's psslurm (JUWELS, JURECA) sets Hydra's variables in every step (psslurmenv.c, pspmi)."""
    node = step.placement[rank]
    return step.environ(rank) | {
        "PMI_RANK": str(rank),
        "PMI_ID": str(rank),
        "PMI_SIZE": str(len(step.placement)),
        "MPI_LOCALRANKID": str(step.placement[:rank].count(node)),
        "MPI_LOCALNRANKS": str(step.placement.count(node)),
    }


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_in_a_step_of_parastation_the_step_provides_the_nodes(layout: Sequence[int]) -> None:
    step = Step(tuple(layout), tuple(f"n{node}" for node in sorted(set(layout))))
    for rank in ranks_of(layout):
        world = resolve(parastation(step, rank.rank))
        assert (world.launcher, world.node_rank, world.nnodes) == ("slurm", rank.node, rank.nodes)
        assert (world.local_rank, world.local_world_size) == (rank.local, rank.local_size)


STALE = ({"RANK": "0", "WORLD_SIZE": "1"}, {"LOCAL_RANK": "7"}, {"WORLD_SIZE": "16"})


@pytest.mark.parametrize("stale", STALE)
@pytest.mark.parametrize("launcher", [pals, mvapich2, flux, jsrun], ids=lambda each: each.__name__)
def test_contradicting_torch_variables_are_refused(launcher: Callable[[Rank], Environ], stale: Environ) -> None:
    rank = ranks_of(LAYOUTS["even"])[5]
    with pytest.raises(ContradictoryEnvironment, match="two launchers claim this process") as refused:
        resolve(launcher(rank) | stale)
    assert str(refused.value.remedy).startswith(f"unset {' '.join(stale)} in the batch script; or start one process")


def test_torch_variables_set_by_a_wrapper_agree() -> None:
    rank = ranks_of(LAYOUTS["even"])[5]
    world: World = resolve(mvapich2(rank) | {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"})
    assert world.agrees == ("RANK = 5", "WORLD_SIZE = 8", "LOCAL_RANK = 1")
    # A value that the launcher does not set cannot be contradicted.
    assert resolve(mpirun_rsh(rank) | {"LOCAL_RANK": "1"}).local_rank is None


@pytest.mark.parametrize(
    ("case", "missing"),
    [
        ("39_mpich4_mpiexec@22.05", "PMI_RANK"),
        ("39_mpich4_mpiexec@22.05", "PMI_SIZE"),
        ("34_ompi4_mpirun@22.05", "OMPI_COMM_WORLD_RANK"),
        ("37_ompi5_mpirun@22.05", "OMPI_COMM_WORLD_SIZE"),
    ],
)
def test_a_rank_of_mpirun_with_a_missing_variable_does_not_count_as_a_task_of_its_daemons_step(
    case: str, missing: str
) -> None:
    for environ in captured_case(case):
        with pytest.raises(IncompleteEnvironment, match=f"^{missing} is not set"):
            resolve({name: value for name, value in environ.items() if name != missing})


def test_a_missing_local_rank_stays_unknown_and_a_single_local_rank_is_no_mpirun() -> None:
    for environ in captured_case("39_mpich4_mpiexec@22.05"):
        world = resolve({name: value for name, value in environ.items() if name != "MPI_LOCALRANKID"})
        assert (world.launcher, world.rank, world.local_rank) == ("mpi", int(environ["PMI_RANK"]), None)
    # Some sites set this variable for their tools in every step.
    assert resolve(Step.of(4, 4).environ(5) | {"MPI_LOCALRANKID": "1"}).launcher == "slurm"
