"""Errors of sbatch, each with a remedy."""

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


SIZE = "fit the job to the nodes. It asks for 2 nodes, 4 tasks x 64 CPUs"


@pytest.mark.parametrize(
    ("words", "sinfo", "remedy"),
    [
        ("Invalid partition name specified", "gpu\nmain\n", "use --partition=main"),
        ("Invalid partition name specified", "a\nb\n", "use --partition=a or --partition=b"),
        ("Invalid partition name specified", "", "choose one of the partitions: sinfo --summarize"),
        ("User's group not permitted to use this partition", "", "use another --partition, or ask for access"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "main 1-00:00:00\n",
         "choose --time within the partition's limit: main 1-00:00:00"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "",
         "choose a smaller --time: sinfo --format='%R %l'"),
        ("Requested node configuration is not available", "main: 4 nodes of 8 CPUs, 16000 MiB, gres gpu:2\n",
         f"{SIZE}\nmain: 4 nodes of 8 CPUs, 16000 MiB, gres gpu:2"),
        ("Node count specification invalid", "",
         f"{SIZE}; list the nodes: sinfo --format='%R %D %c %m %G'"),
        ("Invalid node name specified", "n[1-4]\n", "choose among the nodes: n[1-4]"),
        ("Memory specification can not be satisfied", "",
         "choose a smaller --mem; list the memory of the nodes in MiB: sinfo --format='%R %m'"),
        ("Invalid generic resource (gres) specification", "main* (null)\ngpu gpu:a100:4\n",
         "ask for what the partitions have: gpu gpu:a100:4"),
        ("Invalid generic resource (gres) specification", "main* (null)\n",
         "ask for no GPUs: no node here has GPUs or other gres"),
        ("Invalid feature specification", "a100,ib\n(null)\n", "choose among the features: a100, ib"),
        ("Invalid feature specification", "(null)\n", "remove --constraint: no node has features"),
        ("Requested reservation is invalid", "", "choose one of the reservations: scontrol show reservation"),
        ("Invalid job array specification", "",
         "choose indices below MaxArraySize: scontrol show config | grep MaxArraySize"),
        ("Job dependency problem", "", "name jobs that Slurm still knows: squeue --me"),
        ("Invalid license specification", "", "choose one of the licences: scontrol show licenses"),
        ("Something of the site's own", "", "change the option that the message names"),
    ],
)  # fmt: skip
def test_each_refusal_gets_its_remedy(
    slurm: FakeSlurm, resolved: Resolved, words: str, sinfo: str, remedy: str
) -> None:
    slurm.write("sinfo.out", sinfo)
    error = refusal_error(resolved, slurm.client(os.environ), answer(words))
    assert isinstance(error, SubmitRefused)
    assert (error.what, error.found, error.remedy) == (
        "sbatch refused job",
        f"Batch job submission failed: {words}",
        remedy,
    )


def test_a_job_without_a_partition_lists_the_partitions(slurm: FakeSlurm, project: Path) -> None:
    slurm.write("sinfo.out", "gpu\nmain\n")
    resolved = resolve(load.load("job", "fake", root=project), root=project)
    error = refusal_error(
        resolved, slurm.client(os.environ), answer("No partition specified or system default partition")
    )
    assert error.remedy == "name one: --partition=gpu or main"


def test_without_sinfo_only_suggestions_are_missing(slurm: FakeSlurm, resolved: Resolved) -> None:
    (slurm.bin / "sinfo").unlink()
    client = slurm.client(os.environ)._replace(environ={"PATH": str(slurm.bin), "FAKE": str(slurm.folder)})
    error = refusal_error(resolved, client, answer("Invalid partition name specified"))
    assert error.remedy == "choose one of the partitions: sinfo --summarize"


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("Unable to contact slurm controller (connect failure)", "scontrol ping"),
        ("Protocol authentication error", "munge"),
        ("Could not establish a configuration source", "--cluster local"),
    ],
)
def test_an_unreachable_slurm_is_another_error(slurm: FakeSlurm, resolved: Resolved, words: str, remedy: str) -> None:
    error = refusal_error(resolved, slurm.client(os.environ), answer(words))
    assert isinstance(error, SlurmUnavailable)
    assert remedy in str(error.remedy)


def test_a_failure_without_a_message_shows_the_exit_code(slurm: FakeSlurm, resolved: Resolved) -> None:
    error = refusal_error(resolved, slurm.client(os.environ), Completed(("sbatch", "x"), 3, "", ""))
    assert error.found == "exit status 3 without a message"


@pytest.mark.parametrize(
    "words", ["Socket timed out on send/recv operation", "Zero Bytes were transmitted or received", "Broken pipe"]
)
def test_an_answer_may_leave_it_open_whether_the_job_exists(words: str) -> None:
    assert ANSWER_LOST.search(FAILED.format(words))
    assert not ANSWER_LOST.search(FAILED.format("Invalid partition name specified"))


def test_too_much_memory_is_refused_with_the_memory_of_the_nodes(slurm: FakeSlurm, project: Path) -> None:
    loaded = load.load("job", "fake", set={"resources.mem": "900G"}, root=project)
    words = "Memory specification can not be satisfied\nRequested node configuration is not available"
    slurm.write("sinfo.out", "main: 4 nodes of 8 CPUs, 16000 MiB, gres (null)\n")
    error = refusal_error(resolve(loaded, root=project), slurm.client(os.environ), answer(words))
    assert (error.remedy or "").splitlines() == [
        "fit the job to the nodes. It asks for 2 nodes, 4 tasks x 1 CPU, mem 900G",
        "main: 4 nodes of 8 CPUs, 16000 MiB, gres (null)",
    ]
