"""What sbatch says, and what to do about it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_kit.errors import SlurmUnavailable, SubmitRefused
from hpc_kit.slurm.client import Completed
from hpc_kit.spec import load
from hpc_kit.spec.resolve import Resolved, resolve
from hpc_kit.submission.sbatch import ANSWER_LOST, refusal_error
from tests.runs.fake import FakeSlurm

FAILED = "sbatch: error: Batch job submission failed: {}\n"


@pytest.fixture
def resolved(slurm: FakeSlurm, project: Path) -> Resolved:
    changes = {"resources.partition": "mian", "resources.cpus_per_task": 64}
    return resolve(load.load("job", "fake", set=changes, root=project), root=project)


def answer(words: str) -> Completed:
    return Completed(("sbatch", "x"), 1, "", FAILED.format(words))


@pytest.mark.parametrize(
    ("words", "sinfo", "remedy"),
    [
        ("Invalid partition name specified", "gpu\nmain\n", "--partition=main"),
        ("Invalid partition name specified", "a\nb\n", "--partition=a or --partition=b"),
        ("Invalid partition name specified", "", "partitions that there are: sinfo --summarize"),
        ("User's group not permitted to use this partition", "", "another --partition, or ask to be let in"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "main 1-00:00:00\n",
         "--time within the partition's limit: main 1-00:00:00"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "",
         "a smaller --time: sinfo --format='%R %l'"),
        ("Requested node configuration is not available", "main: 4 nodes of 8 CPUs, 16000 MiB, gres gpu:2\n",
         "asked for: 2 nodes, 4 tasks x 64 CPUs\nmain: 4 nodes of 8 CPUs, 16000 MiB, gres gpu:2"),
        ("Node count specification invalid", "",
         "asked for: 2 nodes, 4 tasks x 64 CPUs; there are: sinfo --format='%R %D %c %m %G'"),
        ("Invalid node name specified", "n[1-4]\n", "nodes that there are: n[1-4]"),
        ("Memory specification can not be satisfied", "",
         "less --mem: sinfo --format='%R %m' tells what the nodes have, in MiB"),
        ("Invalid generic resource (gres) specification", "main* (null)\ngpu gpu:a100:4\n",
         "what the partitions have: gpu gpu:a100:4"),
        ("Invalid generic resource (gres) specification", "main* (null)\n", "no node here has GPUs or other gres"),
        ("Invalid feature specification", "a100,ib\n(null)\n", "features that there are: a100, ib"),
        ("Invalid feature specification", "(null)\n", "no node has features: leave --constraint out"),
        ("Requested reservation is invalid", "", "reservations that there are: scontrol show reservation"),
        ("Invalid job array specification", "",
         "indices below MaxArraySize: scontrol show config | grep MaxArraySize"),
        ("Job dependency problem", "", "jobs that are still known: squeue --me"),
        ("Invalid license specification", "", "licences that there are: scontrol show licenses"),
        ("Something of the site's own", "", "mend what it names"),
    ],
)  # fmt: skip
def test_each_refusal_gets_its_remedy(
    slurm: FakeSlurm, resolved: Resolved, words: str, sinfo: str, remedy: str
) -> None:
    slurm.says("sinfo.out", sinfo)
    error = refusal_error(resolved, slurm.access(os.environ), answer(words))
    assert isinstance(error, SubmitRefused)
    assert (error.what, error.found, error.remedy) == (
        "sbatch refused job",
        f"Batch job submission failed: {words}",
        remedy,
    )


def test_a_job_without_a_partition_is_shown_those_that_there_are(slurm: FakeSlurm, project: Path) -> None:
    slurm.says("sinfo.out", "gpu\nmain\n")
    resolved = resolve(load.load("job", "fake", root=project), root=project)
    error = refusal_error(
        resolved, slurm.access(os.environ), answer("No partition specified or system default partition")
    )
    assert error.remedy == "name one: --partition=gpu or main"


def test_a_missing_sinfo_costs_the_near_matches_only(slurm: FakeSlurm, resolved: Resolved) -> None:
    (slurm.bin / "sinfo").unlink()
    access = slurm.access(os.environ)._replace(environ={"PATH": str(slurm.bin), "FAKE": str(slurm.folder)})
    error = refusal_error(resolved, access, answer("Invalid partition name specified"))
    assert error.remedy == "partitions that there are: sinfo --summarize"


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("Unable to contact slurm controller (connect failure)", "scontrol ping"),
        ("Protocol authentication error", "munge"),
        ("Could not establish a configuration source", "--cluster local"),
    ],
)
def test_a_slurm_that_is_away_is_another_error(slurm: FakeSlurm, resolved: Resolved, words: str, remedy: str) -> None:
    error = refusal_error(resolved, slurm.access(os.environ), answer(words))
    assert isinstance(error, SlurmUnavailable)
    assert remedy in str(error.remedy)


def test_a_silent_failure_tells_the_exit_status(slurm: FakeSlurm, resolved: Resolved) -> None:
    error = refusal_error(resolved, slurm.access(os.environ), Completed(("sbatch", "x"), 3, "", ""))
    assert error.found == "exit status 3, without a word"


@pytest.mark.parametrize(
    "words", ["Socket timed out on send/recv operation", "Zero Bytes were transmitted or received", "Broken pipe"]
)
def test_what_leaves_it_open_whether_the_job_is_there(words: str) -> None:
    assert ANSWER_LOST.search(FAILED.format(words))
    assert not ANSWER_LOST.search(FAILED.format("Invalid partition name specified"))


def test_memory_that_no_node_has_is_said_beside_what_they_have(slurm: FakeSlurm, project: Path) -> None:
    loaded = load.load("job", "fake", set={"resources.mem": "900G"}, root=project)
    words = "Memory specification can not be satisfied\nRequested node configuration is not available"
    slurm.says("sinfo.out", "main: 4 nodes of 8 CPUs, 16000 MiB, gres (null)\n")
    error = refusal_error(resolve(loaded, root=project), slurm.access(os.environ), answer(words))
    assert (error.remedy or "").splitlines() == [
        "asked for: 2 nodes, 4 tasks x 1 CPUs, mem 900G",
        "main: 4 nodes of 8 CPUs, 16000 MiB, gres (null)",
    ]
