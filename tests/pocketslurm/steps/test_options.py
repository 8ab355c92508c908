"""Options of srun: the command line has priority over the environment; messages for refused options."""

from __future__ import annotations

import pytest

from hpc_kit.slurm.command_environment import SRUN_VARIABLES
from hpc_kit.slurm.getopt import SRUN
from pocketslurm.errors import BAD_OPTION, CommandError
from pocketslurm.option_support import ALLOCATION, SRUN_SUPPORT, Support
from pocketslurm.steps.options import StepOptions, read_options

IN_JOB = {"SLURM_JOB_ID": "12"}


def parse_line(line: str, **environ: str) -> StepOptions:
    return read_options(line.split(), environ)


def refusal(line: str, **environ: str) -> tuple[str, int]:
    """Return the error message of srun and its exit status."""
    with pytest.raises(CommandError) as caught:
        parse_line(line, **environ)
    return caught.value.text_for("srun"), caught.value.status


def test_every_option_of_srun_is_supported_ignored_or_refused() -> None:
    assert SRUN_SUPPORT.keys() == SRUN.keys()
    assert ALLOCATION | set(SRUN_VARIABLES.values()) <= SRUN_SUPPORT.keys()
    silent = {name for name, row in SRUN_SUPPORT.items() if row.support is not Support.WORKS and not row.note}
    assert not silent

    accepted = {name: row.note for name, row in SRUN_SUPPORT.items() if row.support is not Support.REFUSED}
    newer = {name for name, note in accepted.items() if note.startswith("newer than 22.05")}
    assert newer == {name for name in accepted if SRUN[name].since}


def test_the_command_line_has_priority_over_the_environment() -> None:
    found = parse_line("-n3 prog -n4", SLURM_NTASKS="8", SLURM_DISTRIBUTION="cyclic", SLURM_JOB_ID="12")
    assert found.values == {"ntasks": "3", "distribution": "cyclic", "jobid": "12"}
    assert (found.typed, found.command, found.number("ntasks")) == (frozenset({"ntasks"}), ("prog", "-n4"), 3)


@pytest.mark.parametrize(
    ("environ", "name", "value"),
    [
        ({"SLURM_NPROCS": "2", "SLURM_NTASKS": "4"}, "ntasks", "4"),
        ({"SLURM_NTASKS": "4", "SLURM_NPROCS": "2"}, "ntasks", "4"),
        ({"SLURM_STEP_GRES": "gpu:1", "SLURM_GRES": "gpu:2"}, "gres", "gpu:2"),
        ({"SLURM_CPUS_PER_TASK": "4"}, "cpus-per-task", None),
        ({"SRUN_CPUS_PER_TASK": "4"}, "cpus-per-task", "4"),
        ({"SLURM_NNODES": "2"}, "nodes", None),
        ({"SLURM_JOB_NUM_NODES": "2"}, "nodes", "2"),
        ({"SLURM_NODELIST": "n1"}, "nodelist", None),
        ({"SLURM_LABELIO": ""}, "label", ""),
        ({"SLURM_LABELIO": "yes"}, "label", ""),
        ({"SLURM_LABELIO": "2"}, "label", ""),
        ({"SLURM_LABELIO": "0"}, "label", None),
        ({"SLURM_LABELIO": "no"}, "label", None),
        ({"SLURM_KILL_BAD_EXIT": "1"}, "kill-on-bad-exit", "1"),
        ({"SLURM_OVERLAP": ""}, "overlap", ""),
        ({"SLURM_EXACT": "1"}, "exact", ""),
    ],
)
def test_variables_that_srun_reads(environ: dict[str, str], name: str, value: str | None) -> None:
    assert parse_line("true", **environ).values.get(name) == value


def test_one_kind_of_memory_option_replaces_the_other_kind_of_the_job() -> None:
    found = parse_line("--mem-per-cpu=10 true", SLURM_MEM_PER_NODE="500")
    assert found.values == {"mem-per-cpu": "10"}
    assert "mutually exclusive" in refusal("--mem=1 --mem-per-cpu=1 true")[0]


@pytest.mark.parametrize(
    ("line", "environ", "verbosity"),
    [
        ("true", {}, 0),
        ("-vv true", {}, 2),
        ("-Q true", {}, -1),
        ("-v true", {"SLURM_DEBUG": "3"}, 1),
        ("true", {"SLURM_DEBUG": "3"}, 3),
    ],
)
def test_verbosity(line: str, environ: dict[str, str], verbosity: int) -> None:
    assert parse_line(line, **environ).verbosity == verbosity


@pytest.mark.parametrize(
    ("line", "output", "status"),
    [
        ("--bogus true", "srun: unrecognized option '--bogus'\n", BAD_OPTION),
        ("-8 true", "srun: invalid option -- '8'\n", BAD_OPTION),
        ("-n", "srun: option requires an argument -- 'n'\n", BAD_OPTION),
        ("--tres-per-task=cpu:2 true", "srun: unrecognized option '--tres-per-task'\n", BAD_OPTION),
        ("-t 1x true", "srun: error: Invalid --time specification\n", BAD_OPTION),
        ("-n x true", 'srun: error: Invalid numeric value "x" for --ntasks.\n', 1),
        ("-n 0 true", 'srun: error: Invalid numeric value "0" for --ntasks.\n', 1),
        ("-N 3-2 true", "srun: error: Maximum node count 2 is less than minimum node count 3\n", BAD_OPTION),
    ],
)
def test_unknown_options_and_wrong_values_are_refused(line: str, output: str, status: int) -> None:
    found, code = refusal(line)
    assert (found.removesuffix('Try "srun --help" for more information\n'), code) == (output, status)


REFUSED = {
    "--container=x": "container", "--debugger-test": "debugger-test",
    "-B1:1:1": "extra-node-info", "--gpus-per-socket=gpu:1": "gpus-per-socket",
    "--interactive": "interactive", "--multi-prog": "multi-prog", "-Z": "no-allocate", "--task-epilog=x": "task-epilog",
    "--task-prolog=x": "task-prolog", "--prolog=x": "prolog", "--epilog=x": "epilog",
    "--test-only": "test-only", "--nodefile=x": "nodefile", "--uid=x": "uid", "--gid=x": "gid",
}  # fmt: skip


@pytest.mark.parametrize(("option", "name"), REFUSED.items())
def test_an_unsupported_option_is_refused_with_the_reason(option: str, name: str) -> None:
    words = f"srun: error: --{name} is not supported by the embedded Slurm: {SRUN_SUPPORT[name].note}\n"
    assert refusal(f"{option} true") == (words, 1)


def test_options_of_newer_releases_are_accepted_unless_settings_are_strict() -> None:
    assert read_options(["--tres-bind=gres/gpu:closest", "--wait-for-children", "true"], {}, strict=False).command == (
        "true",
    )
    assert refusal("--wait-for-children true")[0].startswith("srun: unrecognized option '--wait-for-children'\n")
    with pytest.raises(CommandError, match="no OCI runtime"):
        read_options(["--container-id=x", "true"], {}, strict=False)


def test_all_unsupported_options_are_tested() -> None:
    refused = {name for name, row in SRUN_SUPPORT.items() if row.support is Support.REFUSED}
    assert refused == {*REFUSED.values(), "container-id", "container-type"}


@pytest.mark.parametrize("option", ["--bb=x", "--constraint=x", "--reboot"])
def test_options_of_an_allocation_are_ignored_inside_a_job(option: str) -> None:
    assert read_options([option, "true"], IN_JOB).command == ("true",)


@pytest.mark.parametrize("line", ["-o", "-e", "-D", "--prolog", "-W", "-d"])
def test_some_options_ignore_an_empty_value(line: str) -> None:
    assert read_options([line, "", "true"], {"SLURM_STDOUTMODE": "", "SLURM_GPUS": ""}).values == {}


@pytest.mark.parametrize("line", ["-n", "-N", "-c", "-t", "--mem", "--open-mode"])
def test_other_options_refuse_an_empty_value(line: str) -> None:
    with pytest.raises(CommandError):
        read_options([line, "", "true"], {})


def test_an_empty_prolog_is_ignored() -> None:
    assert parse_line("true", SLURM_TASK_PROLOG="", SLURM_TASK_EPILOG="none").command == ("true",)
    assert "--task-prolog is not supported" in refusal("true", SLURM_TASK_PROLOG="/x")[0]
