"""`backend = "mpi"` with real ranks, under each installed MPI."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hpc_kit.runtime.first_failure import is_peer_loss
from hpc_kit.runtime.mpi import buffers
from tests.runtime.mpi import launch

MOST = str(buffers.MAX_COUNT)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_collective_returns_the_right_result() -> None:
    output = launch.check_output(launch.run_ranks("Open MPI", 2, "collectives.py", "14", "7", MOST))
    assert sorted(output.split("\n"))[1:] == [f"rank {rank} of 2: 14 cases on mpi" for rank in (0, 1)]


@pytest.mark.slow
@pytest.mark.timeout(600)
@launch.both
@pytest.mark.parametrize("count", [1, 2, 3])
def test_random_shapes_types_and_reductions(mpi: str, count: int) -> None:
    output = launch.check_output(launch.run_ranks(mpi, count, "collectives.py", "420", str(count), MOST, timeout=500))
    assert output.count("420 cases on mpi") == count


@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.parametrize("mpi", launch.MPIS)
def test_more_elements_than_an_mpi_count_are_transferred(mpi: str) -> None:
    """Large messages are split and use derived types. In this test one call may transfer 5000 elements."""
    output = launch.check_output(launch.run_ranks(mpi, 2, "collectives.py", "420", "5", "5000", timeout=250))
    assert output.count("420 cases on mpi") == 2


@pytest.mark.slow
@pytest.mark.timeout(900)
@launch.both
def test_training_has_the_losses_of_gloo(mpi: str, tmp_path: Path) -> None:
    """DistributedDataParallel, fully_shard with a checkpoint, tensor parallel on a mesh, and a pipeline."""
    losses = [
        launch.check_output(launch.run_ranks(mpi, 2, "training.py", backend, str(tmp_path / backend), timeout=400))
        for backend in ("gloo", "mpi")
    ]
    assert losses[0] == losses[1]
    assert [line.split()[0] for line in losses[0].splitlines()] == ["ddp", "sharded", "meshed", "pipelined"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@launch.both
def test_more_bytes_than_31_bits_count_are_transferred(mpi: str) -> None:
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 30
    if available < 16:
        pytest.skip(f"needs 16 GiB of free memory, and {available} are")
    assert launch.check_output(launch.run_ranks(mpi, 2, "giant.py", timeout=500)).count("has moved all") == 2


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_callbacks_wait_for_other_collectives() -> None:
    """On a bare future, and in torch's PowerSGD hook."""
    output = launch.check_output(launch.run_ranks("Open MPI", 2, "callbacks.py", timeout=120))
    assert sorted(output.split("\n"))[1:] == [f"rank {rank} has trained" for rank in (0, 1)]


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_collective_that_never_completes_ends_with_an_error() -> None:
    done = launch.run_ranks("Open MPI", 2, "ends.py", timeout=90)
    assert "rank 0: mpi: a message to receive of 8 bytes timed out" in done.stdout, done.stderr
    assert "the group is broken since an earlier operation failed" in done.stdout
    assert "rank 1: \n" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_harmless_orders_of_collectives_end_successfully() -> None:
    output = launch.check_output(launch.run_ranks("Open MPI", 2, "patient.py", timeout=120))
    assert sorted(output.split("\n"))[1:] == [f"rank {rank} ends well" for rank in (0, 1)]


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("mpi", "code"),
    [
        ("Open MPI", 7),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("Open MPI", 0), ("MPICH", 0), ("MPICH", 7))),
    ],
)
def test_the_end_of_a_broken_group_keeps_the_output(mpi: str, code: int, tmp_path: Path) -> None:
    """The output includes those of exit handlers, a file, and the exit code."""
    done = launch.run_ranks(mpi, 2, "misfit.py", str(tmp_path), str(code), timeout=60)
    assert done.returncode == (code or 1), done.stderr
    told = (tmp_path / "metrics-0").read_text()
    assert "a message to receive of 40 bytes: MPI_ERR_TRUNCATE" in told or "truncat" in told.lower(), done.stderr
    assert "the ranks' tensors do not fit one another" in told
    assert not is_peer_loss(RuntimeError(told))
    assert {"early-0", "late-0"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("mpi", [pytest.param("Open MPI", marks=pytest.mark.slow), "MPICH"])
def test_a_launch_ends_with_the_exit_code_of_the_rank_that_failed(mpi: str) -> None:
    """The launcher kills the second rank, which continues."""
    program = (
        "import signal, sys, hpc_kit\nwith hpc_kit.distributed(backend='gloo', timeout=60) as world:\n"
        "    sys.exit(7) if world.rank else signal.pause()"
    )
    done = launch.run_ranks(mpi, 2, "-c", program)
    assert done.returncode == 7, done.stderr


@pytest.mark.slow
@launch.both
def test_a_program_without_hpc_kit_may_use_the_backend_mpi(mpi: str) -> None:
    done = launch.run_ranks(mpi, 2, "-m", "hpc_kit.runtime", str(launch.PROGRAMS / "plain.py"))
    assert launch.check_output(done).splitlines() == ["mpi 2 [2.0, 2.0, 2.0, 2.0]"] * 2


@pytest.mark.slow
@launch.both
def test_a_silent_rank_ends_the_wait_at_the_timeout(mpi: str) -> None:
    done = launch.run_ranks(mpi, 3, "silent_rank.py", timeout=100)
    assert done.returncode not in {0, 124}
    assert "mpi: all_reduce of 4000 bytes timed out waiting for the other ranks after 3 s" in done.stderr


@pytest.mark.slow
def test_the_library_of_another_mpi_is_refused() -> None:
    """Open MPI starts the ranks, and MPI4PY_LIBMPI names MPICH's library."""
    library = Path(sys.prefix, "lib", "libmpi.so.12")
    if not library.exists():
        pytest.skip(f"needs MPICH's wheel: {library}")
    done = launch.run_ranks("Open MPI", 2, "silent_rank.py", MPI4PY_LIBMPI=str(library))
    assert done.returncode != 0
    assert "MPI's own world is rank 0 of 1, but this is rank" in done.stderr or "unsupported PMI version" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_an_mpi_without_threads_is_refused_by_the_backend_mpi_only() -> None:
    for backend in ("mpi", "gloo"):
        # Without the barrier, a rank may end while the other one still connects, which gloo reports as an error.
        program = f"import hpc_kit\nwith hpc_kit.distributed(backend='{backend}', timeout=60) as world: world.barrier()"
        done = launch.run_ranks("Open MPI", 2, "-c", program, MPI4PY_RC_THREAD_LEVEL="serialized")
        assert (done.returncode == 0) == (backend == "gloo"), done.stderr
        assert ("found  MPI_THREAD_SERIALIZED of Open MPI" in done.stderr) == (backend == "mpi")
