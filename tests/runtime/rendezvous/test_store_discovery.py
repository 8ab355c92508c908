"""Rank 0 announces the port of its store, and other ranks distinguish it from foreign programs."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from hpc_kit.runtime.rendezvous import network, store_discovery

TOKEN = "hpc_kit/0123"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    found = network.listen(0, network.ALL_ADDRESSES)
    assert found is not None
    with found:
        yield found


def test_the_port_of_the_store_is_sent_to_holders_of_the_token(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    with store_discovery.announce(listener, TOKEN, 4711, 4):
        answers = [store_discovery.query("127.0.0.1", [port], TOKEN, 5) for _ in range(3)]
        assert [answer.port for answer in answers if isinstance(answer, store_discovery.StoreAnswer)] == [4711] * 3
        assert store_discovery.query("127.0.0.2", [port], "hpc_kit/9999", 5) == {port: "another launch"}
    assert store_discovery.query("127.0.0.1", [port], TOKEN, 5) == {port: "Connection refused"}
    for answer in answers:
        assert isinstance(answer, store_discovery.StoreAnswer)
        answer.notification.close()


def open_calls(port: int, number: int) -> list[socket.socket]:
    """Open this number of connections, and return them."""
    answers = [store_discovery.query("127.0.0.1", [port], TOKEN, 5) for _ in range(number)]
    found = [answer.notification for answer in answers if isinstance(answer, store_discovery.StoreAnswer)]
    assert len(found) == number
    for notification in found:
        notification.settimeout(20)
    return found


def test_the_end_of_discovery_notifies_all_callers(listener: socket.socket) -> None:
    with store_discovery.announce(listener, TOKEN, 4711, 3):
        early, late = open_calls(listener.getsockname()[1], 2)
        late.setblocking(False)
        with pytest.raises(BlockingIOError):
            late.recv(1)
    late.settimeout(20)
    with early, late:
        assert (early.recv(1), late.recv(1)) == (b"", b"")


def test_the_final_message_reaches_all_callers(listener: socket.socket) -> None:
    with store_discovery.announce(listener, TOKEN, 4711, 3) as notify:
        early, late = open_calls(listener.getsockname()[1], 2)
        notify("all are here")
        with early, late:
            assert early.makefile().read() == late.makefile().read() == "all are here\n"


def test_at_the_limit_of_open_files_the_oldest_call_ends(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_discovery, "_pending_connections", lambda _ranks: 1)
    with store_discovery.announce(listener, TOKEN, 4711, 3):
        first, second = open_calls(listener.getsockname()[1], 2)
        with first, second:
            assert first.recv(1) == b""
            second.setblocking(False)
            with pytest.raises(BlockingIOError):
                second.recv(1)


def test_a_program_with_another_answer_is_skipped() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def talk() -> None:
            caller, _ = other.accept()
            with caller:
                caller.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        thread = threading.Thread(target=talk)
        thread.start()
        assert store_discovery.query("127.0.0.1", [port := other.getsockname()[1]], TOKEN, 5) == {
            port: "another program"
        }
        thread.join()


def test_a_silent_program_is_skipped_after_a_moment() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert store_discovery.query("127.0.0.1", [port := silent.getsockname()[1]], TOKEN, 0.05) == {port: "no answer"}


@pytest.mark.parametrize(("wanted", "after"), [(220, 300), (1200, 1200), (10_200, 2000)])
def test_the_limit_of_open_files_is_raised_for_many_ranks(wanted: int, after: int) -> None:
    """The soft limit rises as far as the hard limit allows, and never falls."""
    code = f"""
import resource
from hpc_kit.runtime.rendezvous import store_discovery
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 2000))
store_discovery.raise_file_limit({wanted})
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.split() == [str(after), "2000"]


def test_the_token_is_not_sent(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    with store_discovery.announce(listener, TOKEN, 4711, 2), socket.create_connection(("127.0.0.1", port)) as call:
        output = call.recv(200).decode()
    proof, number = output.split()
    assert (number, TOKEN in output, proof.startswith("hpc_kit/")) == ("4711", False, True)
    # A process that repeats the proof cannot name another port.
    with socket.create_server(("127.0.0.1", 0)) as false:
        answers: list[object] = []
        other = false.getsockname()[1]
        asking = threading.Thread(target=lambda: answers.append(store_discovery.query("127.0.0.1", [other], TOKEN, 5)))
        asking.start()
        with false.accept()[0] as caller:
            caller.sendall(f"{proof} 4712\n".encode())
            asking.join()
    assert answers == [{other: "another launch"}]
