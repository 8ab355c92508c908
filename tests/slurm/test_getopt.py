"""The table of options against the real commands, and getopt's rules over it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_kit.errors import DirectiveError
from hpc_kit.slurm.getopt import SALLOC, SBATCH, SRUN, GetoptError, OptionParser, ParsedOptions, parse_options
from hpc_kit.slurm.option_table import OPTIONS, Option, ValueUse

from .oracle import messages

TABLES = {"sbatch": SBATCH, "srun": SRUN, "salloc": SALLOC}
ENDS = {"help", "usage", "version"}
NEWER_VALUES = {"requeue"}
STRANGER = "unrecognized option '--no-such-option'"


def list_given(options: ParsedOptions) -> list[tuple[str, str | None]]:
    return [(each.option.name, each.value) for each in options.given]


def list_old_options(command: str) -> list[Option]:
    return [
        option for option in TABLES[command].values() if not option.since and option.name not in ENDS | NEWER_VALUES
    ]


def trials(option: Option, spelling: str) -> list[tuple[list[str], str]]:
    """Command lines that show whether the option takes a value, and what getopt says of each."""
    letter = f"-{option.short}"
    if option.value is ValueUse.NONE:
        found = [([f"--{spelling}=x"], f"option '--{spelling}' doesn't allow an argument")]
    elif option.value is ValueUse.REQUIRED:
        found = [([f"--{spelling}"], f"option '--{spelling}' requires an argument")]
    else:
        found = [([f"--{spelling}", "--no-such-option"], STRANGER)]
    if option.short and option.value is ValueUse.REQUIRED:
        found.append(([letter], f"option requires an argument -- '{option.short}'"))
    elif option.short:
        found.append(([letter, "--no-such-option"], STRANGER))
    return found


@pytest.mark.oracle("sbatch", "srun", "salloc")
@pytest.mark.parametrize("command", TABLES)
def test_every_option_of_22_05_takes_a_value_exactly_if_the_command_does(command: str) -> None:
    asked = [
        (argv, words)
        for option in list_old_options(command)
        for spelling in (option.name, *option.aliases)
        for argv, words in trials(option, spelling)
    ]
    wrong = [(argv, words, seen) for argv, words in asked if words not in (seen := messages(command, *argv))]
    assert wrong == []


@pytest.mark.oracle("sbatch", "srun", "salloc")
@pytest.mark.parametrize("command", TABLES)
def test_every_recorded_command_line_is_parsed_as_by_slurm(command: str) -> None:
    for option in list_old_options(command):
        for argv, words in trials(option, option.name):
            with pytest.raises(DirectiveError) as caught:
                parse_options(argv, command)
            assert caught.value.found == f"{command}: {words}"


@pytest.mark.oracle("sbatch", "srun", "salloc")
@pytest.mark.parametrize("command", TABLES)
def test_no_option_of_the_help_is_missing(command: str) -> None:
    text = messages(command, "--help")
    shown = set(re.findall(r"^ +(?:-\w, )?--([a-z0-9][a-z0-9-]*)", text, re.MULTILINE))
    letters = dict(re.findall(r"^ +-(\w), --([a-z0-9-]+)", text, re.MULTILINE))
    assert len(shown) > 60
    assert shown - TABLES[command].keys() == set()
    assert {letter: name for letter, name in letters.items() if TABLES[command][name].short != letter} == {}


@pytest.mark.oracle("sbatch")
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(SBATCH)).flatmap(lambda name: st.integers(1, len(name)).map(lambda end: name[:end])))
def test_any_prefix_of_a_name_is_accepted_or_refused_as_by_sbatch(typed: str) -> None:
    seen = messages("sbatch", f"--{typed}=x", "--no-such-option")
    option, found = None, ""
    try:
        option = parse_options([f"--{typed}=x"])[0].given[0].option
    except DirectiveError as error:
        found = str(error.found).split("possibilities")[0]
    if option is None:
        # The one thing 22.05 can say otherwise: a beginning of newer names alone is unknown to it.
        newer = all(name.since for name in SBATCH.values() if name.name.startswith(typed))
        assert found in seen or newer
    elif not option.since:
        assert "ambiguous" not in seen
        assert f"unrecognized option '--{typed}" not in seen


def test_the_table_has_the_order_of_the_manual_with_newer_options_last() -> None:
    old_names = [option.name for option in OPTIONS if not option.since]
    assert old_names == sorted(old_names)
    assert [option.since is not None for option in OPTIONS] == sorted(option.since is not None for option in OPTIONS)


@pytest.mark.parametrize(
    ("argv", "given_", "rest"),
    [
        (["-N4", "-n", "8", "train.py", "-x"], [("nodes", "4"), ("ntasks", "8")], ["train.py", "-x"]),
        (["--nodes=4", "--ntasks", "8"], [("nodes", "4"), ("ntasks", "8")], []),
        (["-vvQ"], [("verbose", None), ("verbose", None), ("quiet", None)], []),
        (["-vN4"], [("verbose", None), ("nodes", "4")], []),
        (["-vN", "4"], [("verbose", None), ("nodes", "4")], []),
        (["-N=4"], [("nodes", "=4")], []),
        (["--exclusive", "user"], [("exclusive", None)], ["user"]),
        (["--exclusive=user"], [("exclusive", "user")], []),
        (["-k", "off"], [("no-kill", None)], ["off"]),
        (["-koff"], [("no-kill", "off")], []),
        (["--job-name="], [("job-name", "")], []),
        (["-J", "", "-H"], [("job-name", ""), ("hold", None)], []),
        (["-J", "--hold"], [("job-name", "--hold")], []),
        (["--comment=a=b"], [("comment", "a=b")], []),
        (["-H", "--", "-N4"], [("hold", None)], ["-N4"]),
        (["-"], [], ["-"]),
        ([], [], []),
        (["--ntasks-per-nod=2"], [("ntasks-per-node", "2")], []),
        (["--tasks=2"], [("ntasks-per-node", "2")], []),
        (["--cluster=a"], [("clusters", "a")], []),
        (["--ext=2:4"], [("extra-node-info", "2:4")], []),
        (["--requeue", "--requeue=expedite"], [("requeue", None), ("requeue", "expedite")], []),
        (["--oom-kill-step", "--segment=4"], [("oom-kill-step", None), ("segment", "4")], []),
    ],
)
def test_reads_a_command_line(argv: list[str], given_: list[tuple[str, str | None]], rest: list[str]) -> None:
    options, left = parse_options(argv, "sbatch")
    assert (list_given(options), left) == (given_, rest)


def test_one_letter_may_mean_another_option_for_another_command() -> None:
    assert list_given(parse_options(["-W", "x"], "sbatch")[0]) == [("wait", None)]
    assert list_given(parse_options(["-W", "60", "x"], "srun")[0]) == [("wait", "60")]
    assert list_given(parse_options(["-K", "x"], "srun")[0]) == [("kill-on-bad-exit", None)]
    assert list_given(parse_options(["-KTERM", "x"], "salloc")[0]) == [("kill-command", "TERM")]


def test_order_and_repeats_are_kept_and_the_last_one_counts() -> None:
    options, _ = parse_options(["-N2", "--hold", "-N3", "--exclusive"])
    assert options.all("nodes") == ["2", "3"]
    assert options.get("nodes") == "3"
    assert (options.get("exclusive"), options.get("hold"), options.get("time"), options.get("time", "x")) == (
        "",
        "",
        None,
        "x",
    )
    assert (options.has("hold"), options.has("time")) == (True, False)
    assert [each.word for each in options.given] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("argv", "command", "found", "remedy"),
    [
        (["--ndoes=4"], "sbatch", "sbatch: unrecognized option '--ndoes=4'", "did you mean --nodes=4?"),
        (["--partitoin", "x"], "sbatch", "sbatch: unrecognized option '--partitoin'", "did you mean --partition?"),
        (["--ntasks_per_node=4"], "srun", "srun: unrecognized option '--ntasks_per_node=4'", "--ntasks-per-node=4?"),
        (["--qqqqq"], "salloc", "salloc: unrecognized option '--qqqqq'", "salloc --help lists its options"),
        (["--label"], "sbatch", "sbatch: unrecognized option '--label'", "--label is an option of srun"),
        (
            ["--tim=3"],
            "sbatch",
            "sbatch: option '--tim=3' is ambiguous; possibilities: '--time' '--time-min'",
            "write the option's name in full",
        ),
        (["--hol=3"], "sbatch", "sbatch: option '--hold' doesn't allow an argument", "write --hold"),
        (["--ntasks"], "sbatch", "sbatch: option '--ntasks' requires an argument", "write --ntasks=VALUE"),
        (["-vn"], "srun", "srun: option requires an argument -- 'n'", "write --ntasks=VALUE"),
        (["-vy"], "sbatch", "sbatch: invalid option -- 'y'", "sbatch --help lists its options"),
    ],
)
def test_refuses_in_slurms_words_with_a_remedy(argv: list[str], command: str, found: str, remedy: str) -> None:
    with pytest.raises(DirectiveError) as caught:
        parse_options(argv, command)
    assert caught.value.found == found
    assert remedy in str(caught.value.remedy)


def test_an_error_has_the_index_of_its_word_and_the_options_before_it() -> None:
    with pytest.raises(GetoptError, match="sbatch does not take") as caught:
        parse_options(["-N", "2", "--foo"])
    assert (caught.value.message, caught.value.word) == ("unrecognized option '--foo'", 2)
    assert list_given(caught.value.parsed) == [("nodes", "2")]


def test_options_after_arguments_are_read_if_permutation_is_allowed() -> None:
    parser = OptionParser("squeue", [SBATCH["nodes"], SBATCH["hold"]])
    options, words = parser.parse(["a", "-N2", "b", "--hold", "--", "-N3"], permute=True)
    assert (list_given(options), words) == ([("nodes", "2"), ("hold", None)], ["a", "b", "-N3"])


def test_parsing_needs_neither_difflib_nor_dataclasses_nor_subprocess() -> None:
    import os
    import subprocess
    import sys

    # The start of the interpreter may import some of them for the .pth files of its packages.
    program = (
        "import sys; before = set(sys.modules);"
        "import hpc_kit.slurm.directives, hpc_kit.slurm.job_status, hpc_kit.slurm.client;"
        "heavy = {'difflib', 'dataclasses', 'subprocess', 'datetime', 'pathlib', 'msgspec', 'torch'};"
        "found = heavy & (sys.modules.keys() - before);"
        "sys.exit(repr(found) if found else 0)"
    )
    # Coverage, where it measures, starts in each process and brings modules of its own.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
