"""Detection of the MPI that started a process, and the errors without one. These tests import no MPI library."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from torch import distributed as dist
from torch.distributed import distributed_c10d

from hpc_kit.errors import ContradictoryEnvironment, IncompleteEnvironment, SpecError
from hpc_kit.runtime import resolve
from hpc_kit.runtime.mpi import library
from tests import preloaded
from tests.runtime.launches import Step, worker

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


@pytest.fixture(autouse=True)
def _no_mpi_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)


@pytest.mark.parametrize(
    ("environ", "families"),
    [
        (OPEN_MPI, ("Open MPI",)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, ("MPICH", "Open MPI")),
        ({"PMIX_RANK": "0"}, ("Open MPI", "MPICH")),
        ({"JSM_NAMESPACE_RANK": "0", "JSM_NAMESPACE_SIZE": "2", "PMIX_RANK": "0"}, ("Open MPI",)),
        ({"MVP_COMM_WORLD_RANK": "0", "MVP_COMM_WORLD_SIZE": "2"}, ("MPICH",)),
        ({"PMI_ID": "0", "MPIRUN_NPROCS": "2"}, ("MPICH",)),
        ({"PMI_ID": "0", "WORLD_SIZE": "2"}, ("MPICH",)),
        ({"PALS_RANKID": "0", "WORLD_SIZE": "2", "PMIX_RANK": "0"}, ("MPICH", "Open MPI")),
        ({"PMI_RANK": "0"}, None),
        ({"OMPI_MCA_plm_slurm_args": "--external-launcher", "HYDRA_BOOTSTRAP": "slurm"}, None),
        ({}, None),
    ],
)
def test_a_rank_with_a_size_is_evidence_of_mpi_and_a_prefix_is_not(
    environ: dict[str, str], families: tuple[str, ...] | None
) -> None:
    found = library.find_evidence(environ)
    assert (found and found.families) == families


def test_the_library_is_found_next_to_the_parent_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libmpi.so.40").write_text("")
    parents = [Path("/usr/bin/bash"), tmp_path / "bin" / "orted", Path("/usr/sbin/slurmstepd")]
    monkeypatch.setattr(library, "_parent_processes", lambda: enumerate(parents))
    found = library.find_evidence(OPEN_MPI)
    assert found is not None
    assert list(library.libraries(found)) == [str(tmp_path / "lib" / "libmpi.so.40"), "libmpi.so.40"]
    mpich = library.find_evidence({"PMI_RANK": "0", "PMI_SIZE": "2"})
    assert mpich is not None
    monkeypatch.setattr(sys, "prefix", "/nowhere")
    assert list(library.libraries(mpich))[-3:] == ["libmpi.so.12", "libmpich.so.12", "libmpi.so.40"]


def test_a_library_installed_by_pip_comes_before_another_mpi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under srun no parent process shows the prefix of MPI, and the loader does not search wheels."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libmpi.so.12").write_text("")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(library, "_parent_processes", lambda: enumerate([Path("/usr/sbin/slurmstepd")]))
    found = library.find_evidence({"PMI_RANK": "0", "PMI_SIZE": "2"})
    assert found is not None
    of_pip = str(tmp_path / "lib" / "libmpi.so.12")
    assert list(library.libraries(found)) == ["libmpi.so.12", "libmpich.so.12", of_pip, "libmpi.so.40"]


def test_the_parents_of_a_process_are_read() -> None:
    names = [path.name for _, path in library._parent_processes()]
    assert all(names)
    assert not library.mpiexec_of_proxy()


def test_tasks_of_srun_without_mpi_are_refused_before_mpi_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    srun = tmp_path / "srun"
    listed = (
        "MPI plugin types are...\\n\\tnone\\n\\tpmi2\\n\\tpmix\\nspecific pmix plugin versions available: pmix_v4\\n"
    )
    srun.write_text(f"#!/bin/sh\nprintf '{listed}'\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    step = Step.of(4, 4).environ(3)
    with pytest.raises(IncompleteEnvironment) as caught:
        library.import_mpi4py(resolve(step), step)
    assert str(caught.value) == (
        "MPI would make 8 worlds of 1 inside of the srun step 1234.0 of 8\n"
        "  found  neither PMIX_RANK nor PMI_RANK and PMI_SIZE: srun has started the tasks without MPI\n"
        "  do     srun --mpi=pmix (`srun --mpi=list` offers pmi2, pmix, pmix_v4 here);\n"
        "         or start the ranks with mpirun: hpc-kit submit --set launch.launcher=mpirun ..."
    )


@pytest.mark.parametrize("environ", [{}, worker() | OPEN_MPI])
def test_a_process_not_started_by_mpi_does_not_initialize_mpi(environ: dict[str, str]) -> None:
    with pytest.raises(IncompleteEnvironment, match="needs ranks that MPI has started"):
        library.import_mpi4py(resolve(environ), environ)
    assert "mpi4py.MPI" not in sys.modules


def test_a_missing_mpi4py_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "find_spec", lambda _name: None)
    with pytest.raises(SpecError, match=r"needs mpi4py[^$]*pip install 'hpc_kit\[mpi\]'"):
        library.import_mpi4py(resolve(OPEN_MPI), OPEN_MPI)


def _finds(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Find an mpi4py that cannot be imported."""

    class Finder:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "mpi4py.MPI":
                raise error

    monkeypatch.setattr(library, "find_spec", lambda _name: object())
    monkeypatch.setitem(sys.modules, "mpi4py", ModuleType("mpi4py"))
    sys.modules["mpi4py"].__path__ = []
    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])


def test_a_missing_library_is_named_with_the_variable_to_export(monkeypatch: pytest.MonkeyPatch) -> None:
    _finds(monkeypatch, RuntimeError("cannot load MPI library\nlibmpi.so: cannot open shared object file"))
    environ = OPEN_MPI | {library.LIBRARY_VARIABLE: "/nowhere/libmpi.so.40"}
    with pytest.raises(SpecError) as caught:
        library.import_mpi4py(resolve(environ), environ)
    text = str(caught.value)
    assert "mpi4py finds no library of Open MPI, which has started this process" in text
    assert "libmpi.so: cannot open shared object file" in text
    assert "export MPI4PY_LIBMPI=/PATH/TO/libmpi.so.40" in text


def test_debians_name_of_mpichs_library_is_named_with_the_link_to_create(monkeypatch: pytest.MonkeyPatch) -> None:
    _finds(monkeypatch, ImportError("libmpi.so.12: cannot open shared object file: No such file or directory"))
    environ = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", library.LIBRARY_VARIABLE: "libmpich.so.12"}
    with pytest.raises(SpecError, match=r"ln -sf /PATH/TO/libmpich.so.12 ~/mpich/libmpi.so.12"):
        library.import_mpi4py(resolve(environ), environ)


def _mpi(rank: int, size: int) -> SimpleNamespace:
    return SimpleNamespace(
        COMM_WORLD=SimpleNamespace(rank=rank, size=size),
        Get_library_version=lambda: "MPICH Version: 5.0\nmore",
        Is_initialized=lambda: True,
        Is_finalized=lambda: False,
    )


def test_an_mpi_other_than_that_of_the_launcher_is_a_contradiction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", _mpi(0, 1))
    with pytest.raises(ContradictoryEnvironment) as caught:
        library.import_mpi4py(resolve(OPEN_MPI), OPEN_MPI)
    assert str(caught.value).startswith("MPI's own world is rank 0 of 1, but this is rank 1 of 2 in the mpirun of Open")
    assert "the library is MPICH Version: 5.0" in str(caught.value)


@pytest.mark.parametrize(
    ("function", "what"),
    [
        ("Is_initialized", "MPI has not been started\n  found  mpi4py.rc.init"),
        ("Is_finalized", "MPI has ended already"),
    ],
)
def test_an_mpi_that_is_not_running_is_refused(function: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = _mpi(1, 2)
    before = getattr(module, function)()
    setattr(module, function, lambda: not before)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", module)
    with pytest.raises(SpecError, match=what):
        library.import_mpi4py(resolve(OPEN_MPI), OPEN_MPI)


@pytest.mark.parametrize("name", ["SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE"])
def test_an_mpi_without_threads_is_refused(name: str) -> None:
    names = ["SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE"]
    module: Any = _mpi(0, 2)
    vars(module).update({f"THREAD_{each}": level for level, each in enumerate(names)})
    module.Query_thread = lambda: names.index(name)
    if name == "MULTIPLE":
        library.check_thread_level(module)
        return
    with pytest.raises(SpecError, match=f"MPI_THREAD_{name} of MPICH Version: 5.0\n  do     leave mpi4py.rc"):
        library.check_thread_level(module)


def test_the_variables_are_unchanged_if_mpi_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    world = resolve(OPEN_MPI)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", _mpi(0, 1))
    assert library.world_from_mpi(world, 9) is world
    step = resolve(Step.of(2).environ(0))
    assert library.world_from_mpi(step, 9) is step


HOSTS = ("n7", "n7", "n3")
"""The host of each rank."""


class Communicator(SimpleNamespace):
    """MPI_COMM_WORLD of HOSTS for one rank. The values of all other ranks are given in advance."""

    def allgather(self, value: tuple[int, str]) -> list[tuple[int, str]]:
        ranks = [(HOSTS.index(host), host) for host in HOSTS]
        assert value == ranks[self.rank]
        return ranks

    def bcast(self, value: tuple[tuple[str, ...], str]) -> tuple[tuple[str, ...], str]:
        return value if self.rank == 0 else (("10.0.0.7", "n7"), "a number of rank 0")

    def Split_type(self, _kind: object) -> SimpleNamespace:  # noqa: N802 (mpi4py's name)
        mine = [rank for rank, host in enumerate(HOSTS) if host == HOSTS[self.rank]]
        return SimpleNamespace(rank=mine.index(self.rank), size=len(mine), bcast=lambda _: mine[0], Free=lambda: None)


@pytest.mark.parametrize("rank", range(3))
def test_the_communicator_provides_the_hosts_and_the_address_of_rank_0(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = OPEN_MPI | {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "3"}
    local = HOSTS[:rank].count(HOSTS[rank])
    environ |= {"OMPI_COMM_WORLD_LOCAL_RANK": str(local), "OMPI_COMM_WORLD_LOCAL_SIZE": str(HOSTS.count(HOSTS[rank]))}
    module = SimpleNamespace(
        COMM_WORLD=Communicator(rank=rank, size=3),
        COMM_TYPE_SHARED=0,
        Get_library_version=lambda: "Open MPI v5",
    )
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", module)
    monkeypatch.setattr(library, "import_mpi4py", lambda *_: module)
    monkeypatch.setenv("SLURMD_NODENAME", HOSTS[rank])
    monkeypatch.delenv("MPI_LOCALRANKID", raising=False)
    world = library.world_from_mpi(resolve(environ), 9)
    assert (world.hosts, world.tasks_per_node) == (("n7", "n3"), (2, 1))
    assert (world.local_rank, world.local_world_size, world.node_rank, world.nnodes) == (
        local,
        2 - rank // 2,
        rank // 2,
        2,
    )
    assert world.reach == (("10.0.0.7", "n7") if rank == 2 else ("127.0.0.1",))


def test_installing_the_backend_makes_mpi_available(tmp_path: Path) -> None:
    """This test uses a new process, because the backend stays registered until the process ends."""
    program = """
from torch import distributed as dist
from hpc_kit.runtime import devices
from hpc_kit.runtime.mpi import backend
from torch.distributed import distributed_c10d, init_process_group
backend.install()
backend.install()
print(backend.is_registered(), dist.is_mpi_available(), devices.choose_backend("mpi"))
backend.install(started_by_mpi=True)
print(dist.is_mpi_available(), distributed_c10d.is_mpi_available())
"""
    done = preloaded.run(["-W", "error", "-c", program], tmp_path)
    assert (done.stdout, done.stderr) == ("True False mpi\nTrue True\n", "")


def test_torch_still_has_the_functions_that_map_the_backend_name() -> None:
    """A release of torch that renames them or their parameter needs a new place for the translation."""
    for name in ("init_process_group", "new_group"):
        assert "backend" in inspect.signature(getattr(distributed_c10d, name)).parameters
        assert getattr(dist, name) is getattr(distributed_c10d, name)
    assert dist.get_backend is distributed_c10d.get_backend
    assert dist.is_mpi_available is distributed_c10d.is_mpi_available
