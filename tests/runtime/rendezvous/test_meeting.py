"""The rendezvous. Each rank is a thread, which is enough to test stores, ports and names."""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]

from hpc_kit.errors import ContradictoryEnvironment, HpcKitError, RendezvousError
from hpc_kit.runtime import resolve
from hpc_kit.runtime.rendezvous import (
    ended_without_torch,
    master_host,
    network,
    store,
    store_discovery,
)
from hpc_kit.runtime.rendezvous import (
    meeting as rendezvous,
)
from hpc_kit.runtime.rendezvous.ended_without_torch import EndsWithoutTorch
from hpc_kit.runtime.rendezvous.meeting import Meeting
from hpc_kit.runtime.world import World
from tests.runtime.launches import Environ, Step, worker

NODES = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")

Outcome = Meeting | HpcKitError


NUMBERS = itertools.count(os.getpid() * 1000)


@pytest.fixture
def job() -> str:
    """A job id, and with it ports, that no other test uses."""
    return str(next(NUMBERS))


@pytest.fixture(autouse=True)
def _no_scontrol(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevent calls of scontrol, except in tests that need it."""
    monkeypatch.setattr(network, "slurm_address", lambda _host: None)


@pytest.fixture
def held() -> Iterator[ExitStack]:
    """Sockets and stores that stay open until the end of the test."""
    with ExitStack() as stack:
        yield stack


def meet_all(environs: Sequence[Environ], timeout: float = 20, meeting_number: int = 0) -> list[Outcome]:
    """Return the meeting or the error of each rank."""

    def meet_one(environ: Environ) -> Outcome:
        try:
            return rendezvous.meet(resolve(environ), timeout=timeout, environ=environ, meeting_number=meeting_number)
        except HpcKitError as error:
            return error

    with ThreadPoolExecutor(len(environs)) as threads:
        return list(threads.map(meet_one, environs))


def all_meetings(outcomes: Sequence[Outcome]) -> list[Meeting]:
    """Return the meetings of all ranks, which must all succeed."""
    for outcome in outcomes:
        if isinstance(outcome, HpcKitError):
            raise outcome
    return [outcome for outcome in outcomes if isinstance(outcome, Meeting)]


def error_text(outcome: Outcome) -> str:
    """Return the text of an error."""
    assert isinstance(outcome, HpcKitError), outcome
    return str(outcome)


def test_all_ranks_meet_on_the_first_port_in_one_store(job: str) -> None:
    step = Step.of(2, 1, 1, hosts=NODES[:3], job=job)
    meetings = all_meetings(meet_all(step.environs()))
    assert [meeting.world.rank for meeting in meetings] == [0, 1, 2, 3]
    assert {(meeting.host, meeting.port) for meeting in meetings} == {("127.0.0.1", meetings[0].world.master_port)}
    assert {meeting.interface for meeting in meetings} == {"lo"}
    assert [meeting.is_owner for meeting in meetings] == [True, False, False, False]
    meetings[3].substore("test").set("word", "from rank 3")
    assert meetings[1].substore("test").get("word") == b"from rank 3"


def test_a_rank_that_found_rank_0_waits_for_its_message(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not poll the store, which all ranks share."""
    real, asked = rendezvous.wait_until, set[int]()

    def spy(is_done: Callable[[], bool], until: float, ranks: int, check: Callable[[], None] | None = None) -> bool:
        asked.add(threading.get_ident())
        return real(is_done, until, ranks, check)

    monkeypatch.setattr(rendezvous, "wait_until", spy)
    all_meetings(meet_all(Step.of(1, 1, 1, hosts=NODES[:3], job=job).environs()))
    assert len(asked) == 1


def await_notification(notes: HashStore, notification: socket.socket | None, seconds: float = 20) -> str | None:
    """Wait for rank 0's answer as rank 1 of 2."""
    world = resolve(Step.of(2).environ(1))
    opened = store.OpenStore(notes, "n1", 1, notification=notification)  # type: ignore[arg-type]  # any store will do
    return rendezvous.SignIn(
        notes, world, opened, seconds, time.monotonic() + seconds, lambda: None
    )._await_notification()


@pytest.mark.parametrize("message", [b"", b'["half a'])
def test_a_rank_with_an_incomplete_message_queries_the_store(message: bytes) -> None:
    """If rank 0 may not open enough files, connections end early."""
    notification, other = socket.socketpair()
    notes = HashStore()
    notes.set("complete", '["a difference"]')
    with notification, other:
        other.sendall(message)
        other.close()
        assert await_notification(notes, notification) == '["a difference"]'
    assert await_notification(notes, None) == '["a difference"]'


def test_a_message_that_never_arrives_ends_at_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_STORE_POLL_SECONDS", 0.01)
    notification, other = socket.socketpair()
    notes = HashStore()
    with notification, other:
        assert await_notification(notes, notification, 0.1) is None
        notes.set("complete", "[]")
        assert await_notification(notes, notification) == "[]"


def test_the_same_processes_can_meet_again(job: str) -> None:
    environs = Step.of(1, 1, hosts=NODES[:2], job=job).environs()
    first, second = (
        all_meetings(meet_all(environs, meeting_number=0)),
        all_meetings(meet_all(environs, meeting_number=1)),
    )
    assert {meeting.prefix for meeting in first}.isdisjoint({meeting.prefix for meeting in second})


def test_ports_of_silent_and_of_talking_programs_are_skipped(job: str, held: ExitStack) -> None:
    environs = Step.of(1, 1, hosts=NODES[:2], job=job).environs()
    key = resolve(environs[0]).key
    for taken in (store.candidate_ports(key)[:2], store.discovery_ports(key)[:1]):
        for port in taken:
            held.enter_context(socket.create_server(("", port)))
    meetings = all_meetings(meet_all(environs))
    assert {meeting.port for meeting in meetings} == {store.candidate_ports(key)[2]}


def test_the_store_of_another_job_is_skipped(job: str, held: ExitStack) -> None:
    environs = Step.of(1, 1, hosts=NODES[:2], job=job).environs()
    world = resolve(environs[0])
    theirs = held.enter_context(store.serve_store(world, "hpc_kit/another", 5, {}))
    assert theirs.port == store.candidate_ports(world.key)[0]
    meetings = all_meetings(meet_all(environs))
    assert {meeting.port for meeting in meetings} == {store.candidate_ports(world.key)[1]}


def test_if_every_port_is_busy_rank_0_raises_an_error(
    job: str, held: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "CANDIDATES", 2)
    environ = Step.of(1, 1, hosts=NODES[:2], job=job).environ(0)
    world = resolve(environ)
    for port in store.candidate_ports(world.key):
        held.enter_context(socket.create_server(("", port)))
    (outcome,) = meet_all([environ], timeout=5)
    assert error_text(outcome).startswith(f"all 2 ports that the srun step {job}.0 may use are taken on this node")


def test_busy_ports_for_store_discovery_are_an_error_too(
    job: str, held: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "CANDIDATES", 2)
    environ = Step.of(1, 1, hosts=NODES[:2], job=job).environ(0)
    for port in store.discovery_ports(resolve(environ).key):
        held.enter_context(socket.create_server(("", port)))
    (outcome,) = meet_all([environ], timeout=5)
    assert f"{store.discovery_ports(resolve(environ).key)[0]}" in error_text(outcome)


def test_a_missing_rank_is_named_with_its_host_in_time(job: str) -> None:
    environs = Step.of(2, 2, 2, hosts=NODES[:3], job=job).environs()
    outcomes = meet_all([environ for rank, environ in enumerate(environs) if rank not in {3, 4, 5}], timeout=1)
    text = (
        "3 of 6 ranks did not come within 1 s\n"
        "  found  not there: ranks 3-5\n"
        "         127.0.0.2: 1 of 2 came\n"
        "         127.0.0.3: 0 of 2 came\n"
        "  do     look at their logs: a rank that fails early never comes;\n"
        "         HPC_KIT_TIMEOUT=SECONDS, or distributed(timeout=SECONDS), waits longer"
    )
    short = "3 of 6 ranks did not come within 1 s: 127.0.0.2, 127.0.0.3; rank 0 shows more"
    assert [error_text(outcome) for outcome in outcomes] == [text, short, short]


def test_a_single_rank_in_an_interactive_shell_gets_a_hint(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PTY_PORT", "4711")
    (outcome,) = meet_all(Step.of(2, hosts=NODES[:1], job=job).environs()[:1], timeout=1)
    assert error_text(outcome).endswith(
        "in the shell of srun --pty: HPC_KIT_LAUNCHER=single for one process, srun --overlap -nN for several"
    )


def test_of_many_hosts_with_missing_ranks_the_first_are_named(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_MAX_HOSTS_NAMED", 2)
    environs = Step.of(1, 1, 1, 1, hosts=NODES, job=job).environs()
    (outcome,) = meet_all(environs[:1], timeout=0.3)
    assert "not there: ranks 1-3\n" in error_text(outcome)
    assert "127.0.0.3: 0 of 1 came\n         and 1 more hosts" in error_text(outcome)


@pytest.fixture
def two_ranks_of_a_run(job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Environ]:
    monkeypatch.setattr(ended_without_torch, "_POLL_SECONDS", 0.1)
    return [environ | {"HPC_KIT_RUN": str(tmp_path)} for environ in Step.of(1, 1, hosts=NODES[:2], job=job).environs()]


@pytest.mark.parametrize("ended", [0, 1])
def test_a_rank_that_ended_without_torch_ends_the_wait(ended: int, two_ranks_of_a_run: list[Environ]) -> None:
    ended_environ, waiting_environ = two_ranks_of_a_run[ended], two_ranks_of_a_run[1 - ended]
    EndsWithoutTorch(resolve(ended_environ), ended_environ).record()
    (outcome,) = meet_all([waiting_environ], timeout=60)
    assert f"rank {ended} has ended without importing torch, and rank {1 - ended} imports it" in error_text(outcome)
    assert f"rank {ended} on {NODES[ended]} ended with exit code 0" in error_text(outcome)


def test_a_rank_that_ended_in_an_earlier_attempt_does_not_count(two_ranks_of_a_run: list[Environ]) -> None:
    first, second = two_ranks_of_a_run
    EndsWithoutTorch(resolve(second), second).record()
    (outcome,) = meet_all([first | {"SLURM_RESTART_COUNT": "1"}], timeout=0.5)
    assert "1 of 2 ranks did not come" in error_text(outcome)


def set_by_hand(environs: list[Environ]) -> list[Environ]:
    """Return environments with RANK and WORLD_SIZE alone: two launches with the same address look the same."""
    plain = {"WORLD_SIZE": str(len(environs)), "MASTER_ADDR": NODES[0], "MASTER_PORT": "29500"}
    return [plain | {"RANK": str(rank), "HPC_KIT_RUN": environ["HPC_KIT_RUN"]} for rank, environ in enumerate(environs)]


@pytest.mark.parametrize("launch", [list, set_by_hand], ids=["a step", "variables set by hand"])
def test_the_end_of_an_earlier_program_without_torch_does_not_count(
    launch: Callable[[list[Environ]], list[Environ]],
    two_ranks_of_a_run: list[Environ],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ended_without_torch, "_POLL_SECONDS", 0)
    monkeypatch.setattr(ended_without_torch, "_CHECKS_PER_SECOND", float("inf"))
    (first, environ), (second, other) = [(resolve(each), each) for each in launch(two_ranks_of_a_run)]
    EndsWithoutTorch(first, environ).record()
    check = EndsWithoutTorch(first, environ).check
    # The slower rank ends the first program while the other one waits in the second.
    EndsWithoutTorch(second, other).record()
    check()
    EndsWithoutTorch(second, other).check()
    EndsWithoutTorch(second, other).record()
    with pytest.raises(RendezvousError, match="rank 1 has ended without importing torch"):
        check()


def test_without_rank_0_each_rank_lists_the_addresses_it_tried(job: str) -> None:
    environ = Step.of(1, 1, hosts=NODES[:2], job=job).environ(1)
    (outcome,) = meet_all([environ], timeout=0.4)
    text = error_text(outcome)
    assert text.startswith("rank 1 did not find rank 0 on 127.0.0.1 within 0.4 s\n")
    assert f"127.0.0.1: Connection refused at {store.discovery_ports(resolve(environ).key)[0]}" in text


def test_two_processes_with_the_same_rank_are_refused(job: str) -> None:
    environs = Step.of(1, 1, 1, hosts=NODES[:3], job=job).environs()
    outcomes = meet_all([*environs[:2], environs[1]], timeout=1)
    errors = [outcome for outcome in outcomes if isinstance(outcome, ContradictoryEnvironment)]
    assert [error.what for error in errors] == [f"two processes claim to be rank 1 of the srun step {job}.0"]


def test_with_arbitrary_distribution_rank_0_is_found_on_any_node(job: str) -> None:
    step = Step((3, 0, 1, 2), NODES, "arbitrary", job=job)
    assert resolve(step.environ(1)).master_addr is None
    meetings = all_meetings(meet_all(step.environs()))
    assert {meeting.port for meeting in meetings} == {meetings[0].world.master_port}


def test_a_wrong_address_set_by_the_job_costs_nothing(job: str) -> None:
    environs = [
        environ | {"MASTER_ADDR": "127.0.0.9" if rank else "127.0.0.1"}
        for rank, environ in enumerate(Step.of(1, 1, hosts=NODES[:2], job=job).environs())
    ]
    worlds = [replace(resolve(environ), master_addr=environ["MASTER_ADDR"]) for environ in environs]
    with ThreadPoolExecutor(2) as threads:
        meetings = list(threads.map(lambda world: rendezvous.meet(world, timeout=20, meeting_number=0), worlds))
    assert len(meetings) == 2


def replace_lookup(table: dict[str, str]) -> Callable[[str], list[str]]:
    """Replace the name service."""

    def lookup(host: str) -> list[str]:
        if host not in table:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return table[host].split()

    return lookup


def test_a_name_that_does_not_resolve_is_reported_with_the_line_to_add(
    job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "lookup", replace_lookup({}))
    monkeypatch.setattr(master_host, "_NAME_TIMEOUT", 0.1)
    monkeypatch.setattr(network, "name_servers", lambda: ["10.0.0.53"])
    (outcome,) = meet_all([Step.of(1, 1, job=job).environ(1)], timeout=5)
    assert error_text(outcome) == (
        "the name n1 of rank 0's host does not resolve on n2\n"
        "  found  Name or service not known (gai error -2): no line of /etc/hosts contains n1, "
        "and the name server 10.0.0.53 has no entry\n"
        "  do     add a line to /etc/hosts on n2:  ADDRESS n1   (its address on the network of the nodes);\n"
        "         or export MASTER_ADDR=ADDRESS before srun"
    )


def test_a_name_server_that_is_slower_than_the_timeout_is_the_reason(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def lookup(_host: str) -> list[str]:
        time.sleep(0.3)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(network, "lookup", lookup)
    monkeypatch.setattr(network, "name_servers", lambda: ["10.0.0.53"])
    (outcome,) = meet_all([Step.of(1, 1, job=job).environ(1)], timeout=0.2)
    assert error_text(outcome).startswith("the name n1 of rank 0's host does not resolve on n2\n")
    assert (
        "(gai error -3): no line of /etc/hosts contains n1, and the name server 10.0.0.53 does not answer\n"
        in error_text(outcome)
    )


def test_a_name_that_resolves_to_the_loopback_is_reported_with_the_line_to_fix(
    job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "lookup", replace_lookup({"n1": "127.0.1.1"}))
    (outcome,) = meet_all([Step.of(1, 1, job=job).environ(1)], timeout=5)
    assert error_text(outcome).startswith(
        "the name n1 of rank 0's host means n2 itself there\n  found  n1 resolves to 127.0.1.1 on n2\n"
    )


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_on_rank_0s_node_its_full_name_may_mean_the_loopback(
    rank: int, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian's /etc/hosts has the line `127.0.1.1 n1.example.org n1`. torchrun sets MASTER_ADDR to the full name."""
    monkeypatch.setattr(network, "lookup", replace_lookup({"n1.example.org": "127.0.1.1"}))
    environ = Step.of(2, 1, job=job).environ(rank)
    resolver = master_host.HostResolver(resolve(environ), network.this_node_name(environ), 5, environ)
    if rank < 2:
        assert resolver.wait_for_addresses("n1.example.org") == ["127.0.1.1"]
    else:
        with pytest.raises(RendezvousError, match=r"n1\.example\.org of rank 0's host means n2 itself there"):
            resolver.wait_for_addresses("n1.example.org")


def test_a_node_is_known_by_its_short_name(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an arbitrary distribution, rank 0 may be on any node."""
    monkeypatch.setattr(network, "lookup", replace_lookup({"n2.example.org": "127.0.1.1"}))
    environ = Step.of(1, 1, job=job).environ(1)
    resolver = master_host.HostResolver(resolve(environ), "n2", 5, environ)
    assert resolver.wait_for_addresses("n2.example.org") == ["127.0.1.1"]


def test_a_slow_name_service_is_waited_for(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(100))

    def lookup(host: str) -> list[str]:
        return replace_lookup({"n1": "127.0.0.1"} if next(calls) > 3 else {})(host)

    monkeypatch.setattr(network, "lookup", lookup)
    monkeypatch.setattr(network, "is_loopback", lambda _address: False)
    assert len(all_meetings(meet_all(Step.of(2, 1, job=job).environs()))) == 3


def test_the_misleading_line_of_etc_hosts_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("127.0.0.1 localhost\n# 10.0.0.1 n1\n127.0.1.1 n1.cluster n1  # by the installer\n")
    assert network.hosts_line("n1", file) == f"{file} line 3: 127.0.1.1 n1.cluster n1  # by the installer"
    assert network.hosts_line("n2", file) is None


def test_the_store_listens_on_ipv6_only_where_other_nodes_may_need_it(
    job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch looks up the name of each IPv4 client of a store that listens on IPv6, one client at a time."""
    monkeypatch.setattr(network, "own_addresses", lambda: ("10.0.0.1",))
    stores = []
    for step, addresses in (
        (Step.of(2, job=f"{job}1"), {}),
        (Step.of(1, 1, job=f"{job}2"), {"n1": "127.0.0.1"}),
        (Step.of(1, 1, job=f"{job}3"), {"n1": "127.0.0.1 fd00::1"}),
    ):
        monkeypatch.setattr(
            network, "lookup", replace_lookup({"127.0.0.1": "127.0.0.1", "n1": "127.0.0.1"} | addresses)
        )
        monkeypatch.setattr(network, "is_loopback", lambda _address: False)
        stores.append(all_meetings(meet_all(step.environs()))[0])
    assert [network.is_reachable("::1", meeting.port) for meeting in stores] == [
        False,
        False,
        socket.has_dualstack_ipv6(),
    ]


def test_on_one_node_the_ranks_need_no_name(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "lookup", replace_lookup({"127.0.0.1": "127.0.0.1"}))
    meetings = all_meetings(meet_all(Step.of(2, job=job).environs()))
    assert {meeting.host for meeting in meetings} == {"127.0.0.1"}


@pytest.mark.parametrize("source", ["SLURM_LAUNCH_NODE_IPADDR", "scontrol"])
def test_without_host_names_rank_0_is_found_by_slurms_addresses(
    source: str, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "lookup", replace_lookup({}))
    monkeypatch.setattr(network, "is_loopback", lambda _address: False)
    if source == "scontrol":
        monkeypatch.setattr(network, "slurm_address", {"n1": "127.0.0.1"}.get)
    else:
        monkeypatch.setenv(source, "127.0.0.1")
    extra = {source: "127.0.0.1"} if source != "scontrol" else {}
    meetings = all_meetings(meet_all([environ | extra for environ in Step.of(1, 1, job=job).environs()]))
    assert {meeting.host for meeting in meetings} == {"127.0.0.1"}


def test_the_address_that_answers_is_used(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "lookup", replace_lookup({"n1": "127.0.0.9 127.0.0.1", "n2": "127.0.0.1"}))
    monkeypatch.setattr(network, "is_loopback", lambda _address: False)
    real = store_discovery.query

    def call_listeners(
        address: str, called: Sequence[int], token: str, timeout: float
    ) -> store_discovery.StoreAnswer | dict[int, str]:
        return dict.fromkeys(called, "no answer") if address == "127.0.0.9" else real(address, called, token, timeout)

    monkeypatch.setattr(store_discovery, "query", call_listeners)
    first, second = all_meetings(meet_all(Step.of(1, 1, job=job).environs()))
    assert (first.host, second.host) == ("n1", "127.0.0.1")


@pytest.mark.parametrize("pattern", ["{host}i", "{host}-ib0"])
def test_host_names_of_the_training_network_come_first(pattern: str, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = pattern.replace("{host}", "n1")
    monkeypatch.setattr(network, "lookup", replace_lookup({fast: "127.0.0.1", "n1": "127.0.0.9"}))
    monkeypatch.setattr(network, "is_loopback", lambda _address: False)
    environs = [environ | {"HPC_KIT_MASTER_HOST": pattern} for environ in Step.of(1, 1, job=job).environs()]
    assert all_meetings(meet_all(environs))[1].host == fast


def test_a_pattern_without_host_is_refused(job: str) -> None:
    (outcome,) = meet_all([Step.of(1, 1, job=job).environ(1) | {"HPC_KIT_MASTER_HOST": "ib0"}])
    assert "HPC_KIT_MASTER_HOST names no host" in error_text(outcome)


def test_after_some_time_rank_0_is_sought_on_the_other_nodes(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_ALL_NODES_AFTER", 0.1)
    step = Step((2, 1, 0), NODES[1:], "block", job=job)
    monkeypatch.setattr(network, "is_loopback", lambda _address: False)
    real = store_discovery.query

    def call_listeners(
        address: str, called: Sequence[int], token: str, timeout: float
    ) -> store_discovery.StoreAnswer | dict[int, str]:
        silent = dict.fromkeys(called, "Connection refused")
        return real(address, called, token, timeout) if address == NODES[3] else silent

    monkeypatch.setattr(store_discovery, "query", call_listeners)
    middle = step.environ(1)
    assert resolve(middle).master_addr == NODES[1]
    assert len(all_meetings(meet_all(step.environs()))) == 3


def test_a_firewall_that_drops_packets_is_reported_within_the_timeout(
    job: str, held: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 192.0.2.0/24 is reserved for documentation (RFC 5737): a connection gets no answer, or fails without a route.
    monkeypatch.setattr(network, "lookup", replace_lookup({"n1": "192.0.2.1"}))

    def make_silent_call(_address: str, _port: int) -> socket.socket:
        call, other = socket.socketpair()
        held.enter_context(other)
        return call

    monkeypatch.setattr(store_discovery, "_start_connecting", make_silent_call)
    start = time.monotonic()
    (outcome,) = meet_all([Step.of(1, 1, job=job).environ(1)], timeout=1)
    assert time.monotonic() - start < 3
    assert "a firewall drops the packets" in error_text(outcome)


def test_on_the_node_of_rank_0_its_name_may_resolve_to_the_loopback(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "lookup", replace_lookup({"127.0.0.1": "127.0.0.1", "n1": "127.0.1.1"}))
    assert len(all_meetings(meet_all(Step.of(2, job=job).environs()))) == 2


def test_if_the_host_of_rank_0_is_unknown_its_address_is_requested() -> None:
    world = World(
        rank=1,
        world_size=2,
        local_rank=0,
        local_world_size=1,
        node_rank=None,
        nnodes=None,
        launcher="mpi",
        name="mpirun",
    )
    with pytest.raises(RendezvousError, match="no variable names the host of rank 0"):
        rendezvous.meet(world, timeout=1, environ={}, meeting_number=0)


def test_on_one_node_rank_0_needs_no_name() -> None:
    """For example `mpiexec -n 2` of MPICH on a workstation without mpi4py."""
    ranks = {"PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "I_MPI_HYDRA_UUID": str(next(NUMBERS))}
    environs = [ranks | {"PMI_RANK": str(rank), "MPI_LOCALRANKID": str(rank)} for rank in range(2)]
    assert [meeting.world.rank for meeting in all_meetings(meet_all(environs))] == [0, 1]


def test_ranks_without_a_node_learn_it_at_the_rendezvous(job: str) -> None:
    step = Step((1, 0, 1, 0), NODES[:2], "arbitrary", job=job)
    environs = step.environs()
    worlds = [
        replace(resolve(environ), local_rank=None, local_world_size=None, node_rank=None, nnodes=None, launcher="mpi")
        for environ in environs
    ]

    def meet_one(rank: int) -> Meeting:
        return rendezvous.meet(worlds[rank], timeout=20, environ=environs[rank], meeting_number=0)

    with ThreadPoolExecutor(4) as threads:
        meetings = list(threads.map(meet_one, range(4)))
    found = [meeting.world for meeting in meetings]
    values = [(world.local_rank, world.local_world_size, world.node_rank, world.nnodes) for world in found]
    assert values == [(0, 2, 0, 2), (0, 2, 1, 2), (1, 2, 0, 2), (1, 2, 1, 2)]
    assert found[1].sources["node_rank"] == "the ranks' hosts, when they met"


def test_workers_of_torchrun_meet_in_the_store_of_their_agent(held: ExitStack) -> None:
    agent = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    at = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(agent.port)}
    meetings = all_meetings(meet_all([worker(rank, agents=1, per_agent=2, **at) for rank in range(2)]))
    assert [(meeting.port, meeting.is_owner) for meeting in meetings] == [(agent.port, False)] * 2
    for meeting in meetings:
        meeting.leave()


def test_a_launcher_without_a_store_is_reported_within_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (outcome,) = meet_all([worker(1, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))], timeout=1)
    assert error_text(outcome).startswith(
        "rank 1 did not find the agent with the store on 127.0.0.1 (MASTER_ADDR) within 1 s\n"
        f"  found  127.0.0.1:{port}: Connection refused\n"
    )


@pytest.mark.parametrize(("local", "is_shown"), [({"LOCAL_RANK": "0"}, True), ({"LOCAL_WORLD_SIZE": "2"}, False)])
def test_a_loopback_address_is_shown_as_that_of_this_node(local: dict[str, str], *, is_shown: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    at = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.1.1", "MASTER_PORT": str(port)}
    (outcome,) = meet_all([at | local], timeout=0.3)
    remedy = f"if rank 0 is not on {socket.gethostname()}: MASTER_ADDR=ADDRESS, its address for other nodes;"
    assert (remedy in error_text(outcome)) == is_shown


def test_rank_0_ends_after_all_other_ranks_or_if_the_store_is_unused(job: str) -> None:
    first, second = all_meetings(meet_all(Step.of(1, 1, hosts=NODES[:2], job=job).environs()))
    first.leave()  # without a wait, because no rank has used the store
    first.substore("program").set("used", "1")
    with ThreadPoolExecutor(1) as threads:
        last = threads.submit(first.leave)
        second.leave()
        last.result(timeout=10)


def test_leaving_after_rank_0_has_ended_prints_nothing(
    job: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second = all_meetings(meet_all(Step.of(1, 1, hosts=NODES[:2], job=job).environs()))
    monkeypatch.setattr(network, "is_reachable", lambda *_: False)
    second.leave()
    assert capfd.readouterr().err == ""


def test_the_node_of_rank_0_gets_its_address_from_other_nodes(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "is_loopback", lambda _address: False)
    monkeypatch.setattr(network, "source_address", lambda address: address)
    monkeypatch.setattr(network, "interface_with", {"127.0.1.1": "lo", "127.0.0.1": "eth0"}.get)
    monkeypatch.setattr(network, "lookup", replace_lookup({"n1": "127.0.0.1"}))
    monkeypatch.setattr(
        rendezvous, "_first_address", lambda _host: "127.0.1.1"
    )  # the address that rank 0's node finds itself
    meetings = all_meetings(meet_all(Step.of(1, 1, job=job).environs()))
    assert meetings[0].interface == "eth0"


def test_a_world_of_one_has_a_port_that_is_free_on_all_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that the program starts opens its store there on all of them."""
    with socket.create_server(("127.0.0.2", 0)) as other, socket.create_server(("", 0)) as free:
        ports = [other.getsockname()[1], free.getsockname()[1]]
        free.close()
        monkeypatch.setattr(store, "candidate_ports", lambda _key: ports)
        assert store.unused_port() == ports[1]


def test_worlds_of_one_have_separate_ports_without_a_listener() -> None:
    meetings = [rendezvous.meet(resolve({}), environ={}) for _ in range(40)]
    ports = {meeting.port for meeting in meetings}
    assert len(ports) == 40
    for _ in range(400):
        with socket.create_server(("127.0.0.1", 0)) as other:
            assert other.getsockname()[1] not in ports
    with socket.create_server(("", meetings[0].port)):
        pass
    for meeting in meetings:
        meeting.leave()


def listening_addresses() -> set[str]:
    """Return the local addresses on which this process listens, as /proc shows them."""
    inodes = {
        os.readlink(each).removeprefix("socket:[").rstrip("]")
        for each in Path("/proc/self/fd").iterdir()
        if each.is_symlink() and "socket" in os.readlink(each)
    }
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                digits = bytes.fromhex(words[1].partition(":")[0])
                found.add(".".join(str(byte) for byte in reversed(digits[-4:])) if table == "tcp" else "ipv6")
    return found


@pytest.mark.parametrize("hosts", [("n1", "n1"), NODES[2:]])
def test_the_store_of_one_machine_listens_on_the_loopback_interface_only(
    job: str, hosts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[set[str]] = []
    real = rendezvous.SignIn.wait_for_all

    def spy(signing: rendezvous.SignIn) -> None:
        seen.append(listening_addresses())
        real(signing)

    monkeypatch.setattr(rendezvous.SignIn, "wait_for_all", spy)
    step = Step.of(2, job=job, hosts=("n1",)) if hosts[0] == "n1" else Step.of(1, 1, job=job, hosts=hosts)
    all_meetings(meet_all(step.environs()))
    assert {address.partition(".")[0] for address in set.union(*seen)} == {"127"}


def test_other_nodes_must_agree_on_the_address_of_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"n1": ["10.1.0.1"], "n1-ib": ["10.2.0.1"], "debian": ["127.0.1.1"], "n2": ["10.1.0.2"]}
    monkeypatch.setattr(network, "lookup", lambda name: names.get(name) or [name])
    monkeypatch.setattr(network, "interface_with", lambda address: "eth0" if address.endswith(".0.1") else None)
    assert network.address_to_bind(["n1"]) == "10.1.0.1"
    for other in (["n1", "n1-ib"], ["debian"], ["n2"], ["n1", "127.0.0.1"]):
        assert network.address_to_bind(other) == network.ALL_ADDRESSES
    assert network.address_to_bind(["127.0.0.3"]) == "127.0.0.3"


def test_ranks_with_another_secret_do_not_meet(job: str) -> None:
    first, second = Step.of(1, 1, hosts=NODES[:2], job=job).environs()
    outcomes = meet_all([{**first, "HPC_KIT_SECRET": "a1"}, {**second, "HPC_KIT_SECRET": "b2"}], timeout=5)
    assert "another launch" in error_text(outcomes[1])
    assert all_meetings(meet_all([{**each, "HPC_KIT_SECRET": "a1"} for each in (first, second)]))


@pytest.mark.parametrize(("nnodes", "address"), [(1, "127.0.0.1"), (2, "")])
def test_the_store_of_an_mpi_launch_listens_for_all_its_nodes(nnodes: int, address: str) -> None:
    """The ranks beside rank 0 look for it at the loopback interface, and those of other nodes at other addresses."""
    world = World(
        rank=0,
        world_size=4,
        local_rank=0,
        local_world_size=4 // nnodes,
        node_rank=0,
        nnodes=nnodes,
        launcher="mpi",
        name="mpirun",
        hosts=("n2", "n3")[:nnodes],
        reach=("127.0.0.1",),
    )
    assert master_host.master_address(world, {}) == address
