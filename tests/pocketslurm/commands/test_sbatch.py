"""Options that sbatch accepts and refuses, with the messages and exit statuses of Slurm 22.05.8."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_kit.slurm.command_environment import SBATCH_VARIABLES
from hpc_kit.slurm.getopt import SBATCH
from pocketslurm.option_support import SBATCH_SUPPORT, Support
from pocketslurm.settings import Partition
from tests.pocketslurm.conftest import Slurm

FAILED = "sbatch: error: Batch job submission failed: "
NO_NODES = FAILED + "Requested node configuration is not available\n"
INVALID_TASKS = "sbatch: error: Failed to validate job spec. "
NO_SOCKETS = (
    "sbatch: error: --gpus-per-socket is not supported by the embedded Slurm: "
    "a virtual node has no sockets: give --gpus-per-node\n"
)
INVALID_GRES = "sbatch: error: Invalid generic resource (gres) specification\n"
OTHER_CLUSTER = (
    "sbatch: error: No cluster 'elsewhere' known by database.\n"
    "sbatch: error: 'elsewhere' can't be reached now, or it is an invalid entry for --cluster.  "
    "Use 'sacctmgr list clusters' to see available clusters.\n"
)
TRY = 'Try "sbatch --help" for more information\n'
NUMBER = 'sbatch: error: Invalid numeric value "{}" for --{}.\n'


@pytest.mark.parametrize(
    ("options", "status", "complaint"),
    [
        (["--bogus"], 255, "sbatch: unrecognized option '--bogus'\n" + TRY),
        (["--bogus=1"], 255, "sbatch: unrecognized option '--bogus=1'\n" + TRY),
        (["--requeue=1"], 255, "sbatch: option '--requeue' doesn't allow an argument\n" + TRY),
        (["--tres-per-task=cpu:1"], 255, "sbatch: unrecognized option '--tres-per-task'\n" + TRY),
        (["--nodes=x"], 255, 'sbatch: error: "x" is not a valid node count\n'),
        (["--nodes=4-2"], 255, "sbatch: error: Maximum node count 2 is less than minimum node count 4\n"),
        (["--nodes=0"], 1, FAILED + "Node count specification invalid\n"),
        (["--ntasks=0"], 1, NUMBER.format("0", "ntasks")),
        (["--ntasks=-1"], 1, NUMBER.format("-1", "ntasks")),
        (["--cpus-per-task=x"], 1, NUMBER.format("x", "cpus-per-task")),
        (["--mem=abc"], 255, "sbatch: error: Invalid --mem specification\n"),
        (["--time=2h30"], 255, "sbatch: error: Invalid --time specification\n"),
        (["--time="], 255, "sbatch: error: Invalid --time specification\n"),
        (["--signal=FOO@10"], 255, "sbatch: error: Invalid --signal specification\n"),
        (["--mail-type=foo"], 255, "sbatch: error: Invalid --mail-type specification\n"),
        (["--open-mode=x"], 255, "sbatch: error: Invalid --open-mode specification\n"),
        (["--exclusive=foo"], 255, "sbatch: error: Invalid --exclusive specification\n"),
        (
            ["--begin=garbage"],
            255,
            "Invalid time specification (pos=0): garbage\nsbatch: error: Invalid --begin specification\n",
        ),
        (
            ["-p", "nopart"],
            1,
            "sbatch: error: invalid partition specified: nopart\n" + FAILED + "Invalid partition name specified\n",
        ),
        (["-c", "9"], 1, "sbatch: error: CPU count per node can not be satisfied\n" + NO_NODES),
        (["-N1", "--ntasks-per-node=9"], 1, "sbatch: error: CPU count per node can not be satisfied\n" + NO_NODES),
        (["-N1", "-n9"], 1, NO_NODES),
        (["-N2", "-n5", "--ntasks-per-node=2"], 1, NO_NODES),
        (["--mem=20G"], 1, "sbatch: error: Memory specification can not be satisfied\n" + NO_NODES),
        (["--gres=gpu:3"], 1, NO_NODES),
        (["--gpus-per-node=3"], 1, NO_NODES),
        (["--gpus=9"], 1, NO_NODES),
        (["--gres=foo:1"], 1, "sbatch: error: Invalid generic resource (gres) specification\n"),
        (["--exclude=n[1-4]"], 1, NO_NODES),
        (["-w", "n9"], 1, FAILED + "Invalid node name specified\n"),
        (["-w", "n1", "-x", "n1"], 1, FAILED + "Invalid node name specified\n"),
        (["-w", "n1,n2", "-N1"], 1, "sbatch: error: invalid number of nodes (-N 2-1)\n"),
        (["--reservation=foo"], 1, FAILED + "Requested reservation is invalid\n"),
        (["-M", "elsewhere"], 1, OTHER_CLUSTER),
        (
            ["--uid=nobody"],
            1,
            "sbatch: error: --uid is not supported by the embedded Slurm: jobs run as their submitter\n",
        ),
        (["--constraint=fast"], 1, FAILED + "Invalid feature specification\n"),
        (
            ["--gpus-per-task=1"],
            1,
            INVALID_TASKS
            + "--gpus-per-task used without either --gpus or -n/--ntasks is not allowed.\n"
            + INVALID_GRES,
        ),
        (
            ["--mem=1G", "--mem-per-cpu=1G"],
            1,
            "sbatch: fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive.\n",
        ),
        (
            ["--export-file=env"],
            1,
            "sbatch: error: --export-file is not supported by the embedded Slurm: export the variables before sbatch\n",
        ),
        (["--gpus-per-socket=1"], 1, NO_SOCKETS),
        (
            ["--begin=now+2hours", "--deadline=now+1hour"],
            1,
            "sbatch: error: Incompatible begin and deadline time specification\n",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_sbatch_refuses_wrong_options(unused_slurm: Slurm, options: list[str], status: int, complaint: str) -> None:
    script = unused_slurm.folder / "job.sh"
    script.write_text("#!/bin/sh\n")
    assert unused_slurm.refused("sbatch", *options, str(script)) == (status, complaint)
    script.write_text("#!/bin/sh\n#SBATCH " + " ".join(options) + "\n")
    assert unused_slurm.refused("sbatch", str(script)) == (status, complaint)
    assert unused_slurm.jobs() == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", ["Batch script is empty!"]),
        (" \n", ["Batch script contains only whitespace!"]),
        (
            "echo\n",
            [
                "This does not look like a batch script.  The first",
                "line must start with #! followed by the path to an interpreter.",
                "For instance: #!/bin/sh",
            ],
        ),
        (
            "#!/bin/sh\r\n",
            ["Batch script contains DOS line breaks (\\r\\n)", "instead of expected UNIX line breaks (\\n)."],
        ),
        ("#!/bin/sh\n\0", ["The Slurm controller does not allow scripts that", "contain a NULL character '\\0'."]),
    ],
)
def test_files_that_are_no_scripts_are_refused(slurm: Slurm, text: str, complaint: list[str]) -> None:
    expected = (1, "".join(f"sbatch: error: {line}\n" for line in complaint))
    assert slurm.refused("sbatch", stdin=text) == expected
    (slurm.folder / "job.sh").write_text(text)
    assert slurm.refused("sbatch", "job.sh") == expected


def test_missing_scripts_are_refused(slurm: Slurm) -> None:
    assert slurm.refused("sbatch", "no.sh") == (1, "sbatch: error: Unable to open file no.sh\n")
    expected = (1, "sbatch: error: Script arguments not permitted with --wrap option\n")
    assert slurm.refused("sbatch", "--wrap=true", "job.sh") == expected


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["-N", "9"], "PartitionNodeLimit"),
        (["-n", "100"], "PartitionConfig"),
        (["-t", "2:00:00"], "PartitionTimeLimit"),
    ],
)
def test_jobs_that_never_start_are_accepted(make_slurm: Callable[..., Slurm], options: list[str], reason: str) -> None:
    slurm = make_slurm(partitions=(Partition("short", max_time=3600),))
    job_id = slurm.submit("true", *options)
    after = slurm.submit("true")
    slurm.until(after, "COMPLETED")
    assert slurm.check_output("squeue", "-h", "-o", "%i %T %r") == f"{job_id} PENDING {reason}\n"


def test_the_command_line_has_priority_over_variables_and_these_over_directives(slurm: Slurm) -> None:
    script = slurm.folder / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH -J directive --comment=directive\n#SBATCH --account=directive --hold\n")
    variables = {"SBATCH_JOB_NAME": "variable", "SBATCH_ACCOUNT": "variable", "SBATCH_NO_REQUEUE": "1"}
    slurm.check_output("sbatch", "-J", "line", str(script), env=variables)
    job = slurm.job(1)
    assert (job.name, job.account, job.comment, job.requeue) == ("line", "variable", "directive", False)


def test_a_later_option_cancels_an_earlier_one(slurm: Slurm) -> None:
    assert slurm.job(slurm.submit("#SBATCH --no-requeue\n", "--hold", "--requeue")).requeue
    assert not slurm.job(slurm.submit("#SBATCH --requeue\n", "--hold", "--no-requeue")).requeue


def test_options_of_real_clusters_change_nothing(slurm: Slurm) -> None:
    text = """
        --account=abc --qos=high --mail-type=END,FAIL --mail-user=me@example.org --comment=x
        --wckey=k --nice=10 --hint=nomultithread --switches=1@1:00 --tmp=10G
        --threads-per-core=1 --sockets-per-node=2 --mem-bind=local --gpu-bind=closest --cpu-freq=high --no-kill
        --oversubscribe --propagate=NONE --profile=task --acctg-freq=30 --core-spec=1 --network=x --power=x
    """
    job_id = slurm.submit("\n".join(f"#SBATCH {each}" for each in text.split()) + "\ntrue")
    assert slurm.until(job_id, "COMPLETED").account == "abc"


def test_the_size_is_corrected_with_a_warning(slurm: Slurm) -> None:
    done = slurm.run("sbatch", "-N3", "-n2", "--wrap", "true")
    warning = "sbatch: Warning: can't run 2 processes on 3 nodes, setting nnodes to 2\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "Submitted batch job 1\n", warning)
    assert len(slurm.until(1, "COMPLETED").nodes) == 2


def test_quiet_parsable_and_version(slurm: Slurm) -> None:
    assert slurm.check_output("sbatch", "-Q", "--hold", "--wrap", "true") == ""
    assert slurm.check_output("sbatch", "--parsable", "--hold", "--wrap", "true") == "2\n"
    assert slurm.check_output("sbatch", "--version") == slurm.check_output("sbatch", "-V") == "slurm 22.05.8\n"
    assert "--ntasks-per-node=VALUE" in slurm.check_output("sbatch", "--help")


def test_test_only_submits_nothing(slurm: Slurm) -> None:
    done = slurm.run("sbatch", "--test-only", "-N2", "-n4", "--wrap", "true")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("sbatch: Job 1 to start at ")
    assert done.stderr.endswith(" using 4 processors on nodes n[1-2] in partition local\n")
    assert slurm.check_output("squeue", "-h", "-t", "all") == ""
    refusal = (1, "allocation failure: Requested node configuration is not available\n")
    assert slurm.refused("sbatch", "--test-only", "-N1", "-n9", "--wrap", "true") == refusal


def test_the_job_name_is_that_of_the_script_or_wrap(slurm: Slurm) -> None:
    assert slurm.job(slurm.submit("true", "--hold")).name == "job.sh"
    slurm.check_output("sbatch", "--hold", "--wrap", "true")
    assert slurm.job(2).name == "wrap"


def test_the_first_suitable_partition_of_a_list_is_used(make_slurm: Callable[..., Slurm]) -> None:
    slurm = make_slurm(partitions=(Partition("small", nodes="n1"), Partition("large")))
    assert slurm.job(slurm.submit("true", "-p", "small,large", "-N2", "--hold")).partition == "large"
    assert slurm.job(slurm.submit("true", "-p", "small,large", "--hold")).partition == "small"


def test_a_job_has_the_default_time_of_its_partition(make_slurm: Callable[..., Slurm]) -> None:
    slurm = make_slurm(partitions=(Partition("a", max_time=7200, default_time=600), Partition("b", max_time=7200)))
    assert slurm.job(slurm.submit("true", "--hold")).time_limit == 600
    assert slurm.job(slurm.submit("true", "--hold", "-p", "b")).time_limit == 7200
    assert slurm.job(slurm.submit("true", "--hold", "-t", "0")).time_limit == 600


def test_every_option_of_sbatch_has_its_row() -> None:
    assert set(SBATCH) == set(SBATCH_SUPPORT)
    assert set(SBATCH_VARIABLES.values()) <= set(SBATCH_SUPPORT)
    assert all(row.note for row in SBATCH_SUPPORT.values() if row.support is not Support.WORKS)


def test_a_script_is_searched_on_path(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "found.sh").write_text("#!/bin/sh\n")
    slurm.check_output("sbatch", "--hold", "found.sh", env={"PATH": f"{slurm.environ['PATH']}:{tmp_path}"})
    assert slurm.job(1).command == str(tmp_path / "found.sh")


def test_gpu_options_are_refused_without_gpus(make_slurm: Callable[..., Slurm]) -> None:
    slurm = make_slurm(gpus=0)
    for option in ("--gres=gpu:1", "--gpus=1", "--gpus-per-task=1"):
        assert slurm.refused("sbatch", "-n1", option, "--wrap", "true") == (1, INVALID_GRES)
    slurm.check_output("sbatch", "--wait", "--gres=none", "--wrap", "true")


def test_files_of_the_queue_are_private(slurm: Slurm) -> None:
    slurm.submit("true", "--hold")
    for name in ("slurm.db", "slurm.db-wal", "controller.lock", "controller.log", "wake", "wake/controller"):
        path = slurm.directory / name
        assert not path.exists() or path.stat().st_mode & 0o077 == 0, name
    assert slurm.directory.stat().st_mode & 0o777 == 0o700
