"""Values of options: read into their parts, and taken or refused as Slurm does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_kit.errors import DirectiveError, HpcKitError, UnitError
from hpc_kit.slurm.getopt import SBATCH, SRUN
from hpc_kit.slurm.option_table import OPTIONS, Option
from hpc_kit.slurm.option_values import (
    ArraySpec,
    Condition,
    Dependency,
    DependencyJob,
    Distribution,
    NodeCount,
    SignalSpec,
    check_value,
    parse_array,
    parse_dependency,
    parse_distribution,
    parse_gpus,
    parse_mail_types,
    parse_nodes,
    parse_open_mode,
    parse_signal,
    sbatch_error_line,
)

from .oracle import Refused, sbatch_defined_options

SCRIPT = "#!/bin/bash\n"

# Taken by Slurm 22.05 and by us.
GOOD = [
    *(("time", value) for value in ("90", "1:30", "2:00:00", "1-12", "1-12:30:05", "UNLIMITED", "1:70")),
    *(("mem", value) for value in ("4096", "4G", "4gb", "512K", "1T", "0")),
    *(("nodes", value) for value in ("4", "2-4", "2K", "1k-2K")),
    *(("signal", value) for value in ("USR1@90", "B:SIGTERM@10", "R:10", "BR:USR1@5", "sigusr1", "10@65535", "64")),
    *(("distribution", value) for value in ("block", "cyclic:block", "*:block", "plane=4", "arbitrary", "Block,Pack")),
    *(("distribution", value) for value in ("block:fcyclic:cyclic,nopack", "cyclic,NoPack")),
    *(("mail-type", value) for value in ("END", "end,FAIL", "TIME_LIMIT_80,ARRAY_TASKS", "NONE", "ALL")),
    *(("open-mode", value) for value in ("append", "truncate", "a", "T")),
    *(("ntasks", value) for value in ("1", "4000")),
    *(("array", value) for value in ("0-9:2%4,12", "7", "1,3,5", "0-3%0")),
    *(("dependency", value) for value in ("afterok:12:13", "afterok:1,afterany:2", "singleton", "12", "after:1+5")),
    *(("gpus", value) for value in ("4", "a100:2", "volta:3,kepler:5")),
    *(("gres", value) for value in ("gpu:a100:4", "gpu:2,shard:3", "craynetwork:0")),
    *(("exclusive", value) for value in ("user", "mcs", "", "USER")),
    *(("nice", value) for value in ("", "5", "-5", "+5")),
    *(("priority", value) for value in ("4", "TOP")),
    *(("hint", value) for value in ("nomultithread", "compute_bound,nomultithread")),
    *(("profile", value) for value in ("task,energy", "all", "none")),
    *(("switches", value) for value in ("2", "2@10", "1@1:00:00")),
    *(("begin", value) for value in ("now", "now+2hours", "16:00", "2030-12-24T18:00", "tomorrow", "teatime")),
    *(("nodelist", value) for value in ("n1", "n[1-3,7]")),
    *(("extra-node-info", value) for value in ("2", "2:3:4", "*:2")),
    *(("get-user-env", value) for value in ("", "10L", "L")),
    *(("gpu-bind", value) for value in ("closest", "None", "verbose,single:2", "map_gpu:0,1", "per_task:2")),
    *(("mem-bind", value) for value in ("local", "verbose,none", "v,local,sort", "map_mem:0,1")),
    *(("no-kill", value) for value in ("", "off")),
    *(("kill-on-invalid-dep", value) for value in ("yes", "no")),
    *(("wait-all-nodes", value) for value in ("0", "1")),
    *(("gres-flags", value) for value in ("disable-binding", "enforce-binding")),
    *(("job-name", value) for value in ("", "a b", "é")),
    *(("output", value) for value in ("a b/%j.log", "/dev/null")),
]

# Refused by both.
BAD = [
    *(("time", value) for value in ("2h", "", "1.5", "1-2-3", "1:2:3:4", " 5", "x")),
    *(("mem", value) for value in ("4.5G", "x", "-1", "4B", "1P", "")),
    *(("nodes", value) for value in ("4-2", "max", "", "2-x", "-")),
    *(("ntasks", value) for value in ("0", "-1", "2.5", "2K", "abc", "")),
    *(("cpus-per-task", value) for value in ("0", "x")),
    *(("signal", value) for value in ("FOO", "B:", "X:USR1", "USR1@x", "USR1@70000", "SIGSEGV", "0", "")),
    *(("distribution", value) for value in ("foo", "plane", "plane=0", "cyclic:arbitrary", "block,x")),
    *(("mail-type", value) for value in ("foo", "")),
    *(("open-mode", value) for value in ("x", "")),
    *(("exclusive", value) for value in ("x", "yes")),
    *(("hint", value) for value in ("x", "")),
    *(("profile", value) for value in ("x",)),
    *(("switches", value) for value in ("x", "0")),
    *(("begin", value) for value in ("foo", "2026-13-01", "now+2h", "11:00+1", "", "25:00", "13:00PM", "10:75")),
    *(("extra-node-info", value) for value in ("x",)),
    *(("get-user-env", value) for value in ("10X",)),
    *(("gpu-bind", value) for value in ("foo", "", "v,none")),
    *(("mem-bind", value) for value in ("x", "")),
    *(("no-kill", value) for value in ("on",)),
    *(("kill-on-invalid-dep", value) for value in ("x",)),
    *(("wait-all-nodes", value) for value in ("3",)),
    *(("gres-flags", value) for value in ("x",)),
    *(("hold", value) for value in ("yes",)),
]

# sbatch 22.05 lets these pass; they fail in the controller, or mean something that nobody wants.
STRICTER = [
    *(("nodes", value) for value in ("0", "0-3")),
    *(("array", value) for value in ("", "a", "5-3", "0-9:0", "%4", "1,,2", "0-4000001")),
    *(("dependency", value) for value in ("foo", "afterok", "afterok:", "afterok:x", "singleton:1", "", "afterok:0")),
    *(("gpus", value) for value in ("", "-1", "1.5", "a:b", "4G")),
    *(("gres", value) for value in ("", "gpu:1,", "gpu: 2")),
    *(("nice", value) for value in ("x", "1.5")),
    *(("priority", value) for value in ("x", "")),
    *(("nodelist", value) for value in ("n[1-2", "n1,,n2")),
    *(("switches", value) for value in ("2@x",)),
    *(("mail-type", value) for value in ("END,foo",)),
    *(("output", value) for value in ("",)),
    *(("signal", value) for value in ("99", "USR1@")),
]


@pytest.mark.parametrize(("name", "value"), GOOD)
def test_valid_values_are_accepted(name: str, value: str) -> None:
    check_value(SBATCH[name], value)


@pytest.mark.oracle("sbatch")
@pytest.mark.parametrize(("name", "value"), [*GOOD, *STRICTER])
def test_sbatch_accepts_the_valid_values(name: str, value: str) -> None:
    assert name in sbatch_defined_options(SCRIPT, [f"--{name}={value}"])


@pytest.mark.parametrize(("name", "value"), [*BAD, *STRICTER])
def test_wrong_values_are_refused_with_a_remedy(name: str, value: str) -> None:
    with pytest.raises(DirectiveError) as caught:
        check_value(SBATCH[name], value)
    assert caught.value.what.startswith(f"--{name}: ")
    assert caught.value.found == f"--{name}={value}"
    assert caught.value.remedy


@pytest.mark.oracle("sbatch")
@pytest.mark.parametrize(("name", "value"), BAD)
def test_sbatch_refuses_the_wrong_values(name: str, value: str) -> None:
    with pytest.raises(Refused):
        sbatch_defined_options(SCRIPT, [f"--{name}={value}"])


@pytest.mark.oracle("sbatch")
@pytest.mark.parametrize(
    ("name", "value"),
    [("ntasks", "0"), ("nodes", "max"), ("time", "2h"), ("mem", "x"), ("signal", "FOO"), ("begin", "foo")],
)
def test_a_refusal_in_slurms_own_words(name: str, value: str) -> None:
    with pytest.raises(Refused) as caught:
        sbatch_defined_options(SCRIPT, [f"--{name}={value}"])
    assert f"sbatch: error: {sbatch_error_line(SBATCH[name], value)}" in str(caught.value)


def test_a_flag_takes_no_value_and_an_optional_one_may_be_left_out() -> None:
    check_value(SBATCH["hold"], None)
    check_value(SBATCH["exclusive"], None)
    check_value(SRUN["resv-ports"], None)
    with pytest.raises(DirectiveError, match="an option without value"):
        check_value(SBATCH["hold"], "1")
    with pytest.raises(DirectiveError, match="--time: not a duration"):
        check_value(SBATCH["time"], None)


def test_every_kind_of_value_in_the_table_has_a_check() -> None:
    def is_refused(option: Option) -> bool:
        try:
            check_value(option, "\0")
        except DirectiveError:
            return True
        return False

    assert [option.name for option in OPTIONS if not is_refused(option)] == []


@given(st.sampled_from(OPTIONS), st.text(max_size=12))
def test_any_value_is_accepted_or_refused_with_one_kind_of_error(option: Option, value: str) -> None:
    try:
        check_value(option, value)
    except DirectiveError as error:
        assert error.remedy  # noqa: PT017 - either way is right


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("4", NodeCount(4, 4)),
        ("2-4", NodeCount(2, 4)),
        ("2K", NodeCount(2048, 2048)),
        ("1m", NodeCount(1024**2, 1024**2)),
        ("1,5,9-13:2", NodeCount(1, 13, (1, 5, 9, 11, 13))),
    ],
)
def test_node_counts_are_read(text: str, count: NodeCount) -> None:
    assert parse_nodes(text) == count


@pytest.mark.parametrize("text", ["0", "3-2", "x", "1,x", "0,1", "-", "2-", "2k-1"])
def test_a_text_that_is_no_node_count_is_refused(text: str) -> None:
    with pytest.raises(UnitError, match=r"not a (number|range|an array)|not an array"):
        parse_nodes(text)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("0-9:2%4,12", ArraySpec((0, 2, 4, 6, 8, 12), 4)),
        ("3,1,3", ArraySpec((1, 3), None)),
        ("[4-6%2]", ArraySpec((4, 5, 6), 2)),
        ("7", ArraySpec((7,), None)),
        ("0-3%0", ArraySpec((0, 1, 2, 3), None)),
        ("0-1,5%3,7%9", ArraySpec((0, 1, 5, 7), 3)),
    ],
)
def test_array_indices_are_read(text: str, spec: ArraySpec) -> None:
    assert parse_array(text) == spec


def test_an_index_must_be_below_max_array_size() -> None:
    assert parse_array("0-1000", 1001).indices[-1] == 1000
    with pytest.raises(UnitError, match="above the limit of this Slurm: 1001") as caught:
        parse_array("0-3,1001", 1001)
    assert caught.value.remedy == "keep every index at 1000 or below"


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("USR1@90", SignalSpec(10, 90, batch_shell=False, reservation=False)),
        ("B:SIGTERM", SignalSpec(15, 60, batch_shell=True, reservation=False)),
        ("rb:2@0", SignalSpec(2, 0, batch_shell=True, reservation=True)),
    ],
)
def test_signal_options_are_read(text: str, spec: SignalSpec) -> None:
    assert parse_signal(text) == spec


@pytest.mark.parametrize(
    ("text", "dependency"),
    [
        ("singleton", Dependency((Condition("singleton"),))),
        ("afterok:12:13", Dependency((Condition("afterok", (DependencyJob(12), DependencyJob(13))),))),
        ("AfterAny:1_3", Dependency((Condition("afterany", (DependencyJob(1, "3"),)),))),
        ("aftercorr:1_*", Dependency((Condition("aftercorr", (DependencyJob(1, "*"),)),))),
        ("after:1+5", Dependency((Condition("after", (DependencyJob(1, None, 5),)),))),
        ("7", Dependency((Condition("afterany", (DependencyJob(7),)),))),
        (
            "afterok:1?afternotok:2",
            Dependency(
                (Condition("afterok", (DependencyJob(1),)), Condition("afternotok", (DependencyJob(2),))), any_of=True
            ),
        ),
        ("afterok:1,singleton", Dependency((Condition("afterok", (DependencyJob(1),)), Condition("singleton")))),
    ],
)
def test_dependencies_are_read(text: str, dependency: Dependency) -> None:
    assert parse_dependency(text) == dependency


@pytest.mark.parametrize(
    ("text", "distribution"),
    [
        ("block", Distribution("block")),
        ("*", Distribution(None)),
        ("cyclic:block:fcyclic", Distribution("cyclic", "block", "fcyclic")),
        ("plane=4,Pack", Distribution("plane", plane_size=4, pack=True)),
        ("block,NoPack", Distribution("block", pack=False)),
        ("arbitrary", Distribution("arbitrary")),
        ("*:*:cyclic", Distribution(None, None, "cyclic")),
    ],
)
def test_distributions_are_read(text: str, distribution: Distribution) -> None:
    assert parse_distribution(text) == distribution


def test_lists_of_words_are_read() -> None:
    assert parse_mail_types("end,Fail") == ("END", "FAIL")
    assert parse_open_mode("Append") == "append"
    assert parse_gpus("a100:2,4,v100") == (("a100", 2), (None, 4), ("v100", 1))


@given(st.text("afterok:0129_*+,?[]%-=blockpn@BR", max_size=15))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_array, parse_dependency, parse_distribution, parse_signal, parse_nodes, parse_gpus):
        try:
            parse(text)
        except HpcKitError as error:
            assert repr(text) in str(error.found)  # noqa: PT017 - either way is right
