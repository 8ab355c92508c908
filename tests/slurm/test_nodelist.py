"""Node lists: expanded and folded as Slurm does, and refused where it is careless."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_kit.errors import HostlistError
from hpc_kit.slurm.nodelist import expand, expand_tasks_per_node, fold, fold_tasks_per_node

from .oracle import scontrol

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLES = [
    ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
    ("host[22],host[5-9]", ["host22", "host5", "host6", "host7", "host8", "host9"]),
    ("a[1-2]b[3-4]", ["a1b3", "a1b4", "a2b3", "a2b4"]),
    ("h[08-11]", ["h08", "h09", "h10", "h11"]),
    ("n[8-011]", ["n8", "n9", "n10", "n11"]),
    ("n[098-101]", ["n098", "n099", "n100", "n101"]),
    ("127.0.0.[1-4]", ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"]),
    ("n[1-2][3-4]", ["n13", "n14", "n23", "n24"]),
    ("n[1-2]-[3-4]", ["n1-3", "n1-4", "n2-3", "n2-4"]),
    ("[1-3]", ["1", "2", "3"]),
    ("login1", ["login1"]),
    ("n5-3", ["n5-3"]),
    ("n1, n2", ["n1", "n2"]),
    ("n1,n1", ["n1", "n1"]),
    ("n08,n9", ["n08", "n9"]),
    ("n1-ib0,n2-ib0", ["n1-ib0", "n2-ib0"]),
]

FOLDED = [
    (["n1", "n2", "n3", "n7"], "n[1-3,7]"),
    (["n1", "n3", "n2"], "n[1,3,2]"),
    (["n1", "m1", "n2"], "n1,m1,n2"),
    (["n1", "n1"], "n[1,1]"),
    (["n9", "n10"], "n[9-10]"),
    (["n08", "n09", "n10"], "n[08-10]"),
    (["n08", "n9"], "n[08,9]"),
    (["n099", "n100"], "n[099-100]"),
    (["1", "2", "3"], "[1-3]"),
    (["a1b3", "a1b4", "a2b3", "a2b4"], "a1b[3-4],a2b[3-4]"),
    (["n", "n1"], "n,n1"),
    (["127.0.0.1", "127.0.0.2"], "127.0.0.[1-2]"),
]


@pytest.mark.parametrize(("text", "hosts"), SAMPLES)
def test_host_lists_are_expanded(text: str, hosts: list[str]) -> None:
    assert expand(text) == hosts


@pytest.mark.oracle("scontrol")
@pytest.mark.parametrize("text", [text for text, _ in SAMPLES])
def test_host_lists_are_expanded_as_scontrol_does(text: str) -> None:
    assert expand(text) == scontrol("show", "hostnames", text).split()


@pytest.mark.parametrize(("hosts", "text"), FOLDED)
def test_host_names_are_folded(hosts: list[str], text: str) -> None:
    assert fold(hosts) == text


@pytest.mark.oracle("scontrol")
@pytest.mark.parametrize("hosts", [hosts for hosts, _ in FOLDED])
def test_host_names_are_folded_as_scontrol_does(hosts: list[str]) -> None:
    assert fold(hosts) == scontrol("show", "hostlist", ",".join(hosts)).strip()


def test_a_suffix_after_a_bracket_is_read_as_in_newer_releases() -> None:
    assert expand("n[1-2]-ib0,m[08-09].example.org") == ["n1-ib0", "n2-ib0", "m08.example.org", "m09.example.org"]


def test_the_empty_list_has_no_hosts() -> None:
    assert expand("") == expand("  \n") == []
    assert fold([]) == ""


@pytest.mark.parametrize(
    ("text", "position", "what"),
    [
        ("n[1-3", 1, "never closed"),
        ("n1-3]", 4, "without an opening one"),
        ("n[]", 2, "a missing number"),
        ("n[a]", 2, "not a number"),
        ("n[1-x]", 3, "not a number"),
        ("n[1,x]", 4, "not a number"),
        ("m,n[1,2,]", 8, "a missing number"),
        ("n[ 1]", 2, "not a number"),
        ("n[1-]", 3, "not a number"),
        ("n[5-3]", 2, "backwards"),
        ("n[1-2]a[5-3]", 8, "backwards"),
        ("n[1,7-3]", 4, "backwards"),
        ("n[1-[2]]", 4, "inside a bracket"),
        ("n[[1-2]", 2, "inside a bracket"),
        ("n1,,n2", 3, "an empty item"),
        (",n1", 0, "an empty item"),
        ("n1,", 2, "an empty item at the end"),
        ("n1, ", 2, "an empty item at the end"),
        (" n1,,", 4, "an empty item"),
        ("n[1234567890123456789]", 2, "too long"),
        ("n[1-1000001]", 0, "more than 1000000 hosts"),
        ("m1,n[1-9999]x[1-9999]", 3, "more than 1000000 hosts"),
        ("n[٣]", 2, "not a number"),
        ("n1\0,n2", 2, "not allowed in names"),
    ],
)
def test_a_malformed_list_points_at_the_character(text: str, position: int, what: str) -> None:
    with pytest.raises(HostlistError, match=what) as caught:
        expand(text)
    assert (caught.value.position, caught.value.text) == (position, text)
    assert caught.value.found == f"{text}\n{' ' * position}^"
    assert caught.value.remedy


@pytest.mark.parametrize(("host", "position"), [("", 0), ("a,b", 1), ("n[1]", 1), ("a b", 1), ("n]", 1)])
def test_a_text_that_is_no_host_name_is_not_folded(host: str, position: int) -> None:
    with pytest.raises(HostlistError, match="not a host name") as caught:
        fold(["n1", host])
    assert caught.value.position == position


names = st.text("ab.-019", min_size=1, max_size=6) | st.from_regex(r"n[0-9]{1,3}", fullmatch=True)


@given(st.lists(names, max_size=30))
def test_folding_then_expanding_returns_the_same_hosts_in_order(hosts: list[str]) -> None:
    assert expand(fold(hosts)) == hosts


@given(st.lists(st.integers(0, 10**20).map("n{}".format) | st.integers(0, 30).map("n{:02d}".format), max_size=20))
def test_numbers_of_any_length_survive_folding(hosts: list[str]) -> None:
    assert expand(fold(hosts)) == hosts


@given(st.text("n[]-,019 x(", max_size=14))
def test_any_text_is_a_list_or_an_error_that_points_into_it(text: str) -> None:
    try:
        hosts, position = expand(text), 0
    except HostlistError as error:
        hosts, position = [], error.position
    assert 0 <= position < max(len(text), 1)
    assert all(hosts)
    assert expand(fold(hosts)) == hosts


@pytest.mark.oracle("scontrol")
@settings(max_examples=25, deadline=None)
@given(st.lists(st.from_regex(r"[ab]{1,2}[0-9]{1,4}", fullmatch=True), min_size=1, max_size=12))
def test_scontrol_folds_and_expands_equally(hosts: list[str]) -> None:
    folded = fold(hosts)
    assert scontrol("show", "hostlist", ",".join(hosts)).strip() == folded
    assert scontrol("show", "hostnames", folded).split() == hosts


@pytest.mark.slow
@pytest.mark.usefixtures("untraced")
def test_the_time_is_linear_in_the_hosts() -> None:
    hosts = [f"node{index}" for index in range(1, 50_001)]
    random.Random(7).shuffle(hosts)
    few, many = hosts[:5_000], hosts
    assert expand(fold(many)) == many
    for work in (fold, lambda names: expand(fold(names))):
        # Ten times the hosts: ten times the time, where a square would be a hundred.
        assert _seconds(work, many) < 40 * _seconds(work, few)


def _seconds(work: Callable[[list[str]], object], hosts: list[str]) -> float:
    """CPU time of the quickest of three."""
    taken = []
    for _ in range(3):
        begin = time.process_time()
        work(hosts)
        taken.append(time.process_time() - begin)
    return min(taken)


@pytest.mark.parametrize(
    ("text", "counts"),
    [("2(x3),1", [2, 2, 2, 1]), ("4", [4]), ("2,1", [2, 1]), ("1(x1)", [1]), ("8(x2), 4", [8, 8, 4]), ("0", [0])],
)
def test_tasks_per_node_are_expanded(text: str, counts: list[int]) -> None:
    assert expand_tasks_per_node(text) == counts


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        ("2(x0)", 1),
        ("2(x", 1),
        ("x", 0),
        ("2,,1", 2),
        ("2(3)", 1),
        ("-1", 0),
        ("2(x99999999)", 0),
        ("1, x", 3),
    ],
)
def test_malformed_tasks_per_node_point_at_the_character(text: str, position: int) -> None:
    with pytest.raises(HostlistError) as caught:
        expand_tasks_per_node(text)
    assert caught.value.position == position


@given(st.lists(st.integers(0, 200), min_size=1, max_size=50))
def test_tasks_per_node_survive_folding(counts: list[int]) -> None:
    assert expand_tasks_per_node(fold_tasks_per_node(counts)) == counts


def test_tasks_per_node_are_folded_as_slurm_does() -> None:
    assert fold_tasks_per_node([2, 2, 2, 1]) == "2(x3),1"
