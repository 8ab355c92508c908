"""The commands of PMI-1.1 and PMI-2.0, answered as Slurm's plug-in mpi/pmi2 answers them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pocketslurm.pmi.key_values import Link
from pocketslurm.pmi.protocol import PMI1, PMI2, PmiReply, ProtocolError, versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pocketslurm.pmi.key_values import KeyValueSpace
    from pocketslurm.pmi.protocol import Connection, PmiRequest

    Answers = Iterator[tuple[int, PmiReply]]
    Answer = Callable[[KeyValueSpace, int, Mapping[str, str]], Answers]

_NO_SPAWN = "spawn failed: the embedded Slurm starts no tasks for MPI_Comm_spawn"


class Abort(Exception):
    """A task ends the step."""


class Finished(Exception):
    """A task has taken its leave; `reply` is the last word to it."""

    def __init__(self, reply: PmiReply) -> None:
        super().__init__()
        self.reply = reply


class Unanswered(Exception):
    """Slurm has a complaint for stderr, and none for the task; or both."""

    def __init__(self, complaint: str, reply: PmiReply | None = None) -> None:
        super().__init__(complaint)
        self.reply = reply


def handshake(wire: Connection, request: PmiRequest) -> PmiReply:
    """Return the answer to a task's first line.

    Raises:
        Unanswered: The version is none that is known here.
    """
    asked = versions(request.text)
    major, minor = asked or PMI2
    wire.version = asked if asked in {PMI1, PMI2} else None
    code = 0 if wire.version else -1 if asked else 1
    reply = PmiReply("response_to_init", {"rc": code, "pmi_version": major, "pmi_subversion": minor})
    if not asked:
        raise Unanswered(f"invalid PMI1 init command: `{request.text}'", reply)
    if not wire.version:
        raise Unanswered(f"unsupported PMI version: {major}.{minor}", reply)
    return reply


def answer(board: KeyValueSpace, wire: Connection, task: int, request: PmiRequest) -> Answers:
    """Return the replies by task.

    Raises:
        Abort: A task aborts the step.
        Finished: The task has finalized.
        Unanswered: The command is unknown.
    """
    table, name = (_TWO, "pmi2") if wire.version == PMI2 else (_ONE, "pmi1")
    if request.command in _UNSUPPORTED:
        raise Unanswered(f"PMI1 request of '{request.command}' not supported")
    if request.command not in table:
        raise Unanswered(f"invalid {name} command received: '{request.command}'")
    return table[request.command](board, task, request.values)


def _tells(command: str, values: Callable[[KeyValueSpace], Mapping[str, object]]) -> Answer:
    """Return the answer of a command that only asks for values."""

    def tell(board: KeyValueSpace, task: int, _: Mapping[str, str]) -> Answers:
        yield task, PmiReply(command, {"rc": 0, **values(board)})

    return tell


def _abort(_: KeyValueSpace, __: int, asked: Mapping[str, str]) -> Answers:
    """Abort the step. PMI-2 can also end a part of a step, which has no effect here."""
    if asked.get("isworld", "TRUE").upper() == "TRUE":
        raise Abort
    yield from ()


# PMI-1.1


def _put(board: KeyValueSpace, task: int, asked: Mapping[str, str]) -> Answers:
    board.put(asked.get("key", ""), asked.get("value", ""))
    yield task, PmiReply("put_result", {"rc": 0})


def _get(board: KeyValueSpace, task: int, asked: Mapping[str, str]) -> Answers:
    value = board.values.get(asked.get("key", ""))
    yield task, PmiReply("get_result", {"rc": 1} if value is None else {"rc": 0, "value": value})


def _barrier(board: KeyValueSpace, task: int, _: Mapping[str, str]) -> Answers:
    yield from ((each, PmiReply("barrier_out", {"rc": 0})) for each in board.barrier(task))


def _finalize(_: KeyValueSpace, __: int, ___: Mapping[str, str]) -> Answers:
    raise Finished(PmiReply("finalize_ack", {"rc": 0}))


def _publish(board: KeyValueSpace, task: int, asked: Mapping[str, str]) -> Answers:
    board.names[asked.get("service", "")] = asked.get("port", "")
    yield task, PmiReply("publish_result", {"info": "ok"})


def _unpublish(board: KeyValueSpace, task: int, asked: Mapping[str, str]) -> Answers:
    board.names.pop(asked.get("service", ""), None)
    yield task, PmiReply("unpublish_result", {"info": "ok"})


def _lookup(board: KeyValueSpace, task: int, asked: Mapping[str, str]) -> Answers:
    port = board.names.get(asked.get("service", ""))
    yield task, PmiReply("lookup_result", {"info": "fail"} if port is None else {"info": "ok", "port": port})


def _spawn(_: KeyValueSpace, __: int, asked: Mapping[str, str]) -> Answers:
    if asked.get("spawnssofar") == asked.get("totspawns"):
        raise Unanswered(_NO_SPAWN, PmiReply("spawn_result", {"rc": 1}))
    yield from ()


_UNSUPPORTED = {"create_kvs", "destroy_kvs", "getbyidx"}

_ONE: dict[str, Answer] = {
    "get_maxes": _tells("maxes", lambda _: {"kvsname_max": 256, "keylen_max": 64, "vallen_max": 1024}),
    "get_universe_size": _tells("universe_size", lambda board: {"size": board.size}),
    "get_appnum": _tells("appnum", lambda _: {"appnum": -1}),
    "get_my_kvsname": _tells("my_kvsname", lambda board: {"kvsname": board.name}),
    "put": _put,
    "get": _get,
    "barrier_in": _barrier,
    "publish_name": _publish,
    "unpublish_name": _unpublish,
    "lookup_name": _lookup,
    "mcmd=spawn": _spawn,
    "abort": _abort,
    "finalize": _finalize,
}


# PMI-2.0


def _found(value: object) -> dict[str, object]:
    return {"rc": 0, "found": "FALSE"} if value is None else {"rc": 0, "found": "TRUE", "value": value}


def _full_init(board: KeyValueSpace, task: int, asked: Mapping[str, str]) -> Answers:
    complete = all(name in asked for name in ("pmijobid", "pmirank", "threaded"))
    values = {"rc": 0 if complete else 3, "pmi-version": 2, "pmi-subversion": 0, "rank": task, "size": board.size}
    yield task, PmiReply("fullinit-response", {**values, "appnum": -1, "debugged": "FALSE", "pmiverbose": "FALSE"})


def _kvs_put(board: KeyValueSpace, task: int, asked: Mapping[str, str]) -> Answers:
    board.put(asked.get("key", ""), asked.get("value", ""))
    yield task, PmiReply("kvs-put-response", {"rc": 0})


def _kvs_get(board: KeyValueSpace, task: int, asked: Mapping[str, str]) -> Answers:
    yield task, PmiReply("kvs-get-response", _found(board.values.get(asked.get("key", ""))))


def _kvs_fence(board: KeyValueSpace, task: int, _: Mapping[str, str]) -> Answers:
    yield from ((each, PmiReply("kvs-fence-response", {"rc": 0})) for each in board.barrier(task))


def _ring(board: KeyValueSpace, task: int, asked: Mapping[str, str]) -> Answers:
    number = asked.get("ring-count") or "0"
    if not re.fullmatch("-?[0-9]{1,9}", number):
        raise ProtocolError(f"invalid ring-count: {number!r}")
    link = Link(int(number), asked.get("ring-left", ""), asked.get("ring-right", ""))
    for each, (count, left, right) in board.link(task, link).items():
        yield each, PmiReply("ring-response", {"rc": 0, "ring-count": count, "ring-left": left, "ring-right": right})


def _job_attribute(board: KeyValueSpace, task: int, asked: Mapping[str, str]) -> Answers:
    key = asked.get("key", "")
    value = str(board.size) if key == "universeSize" else board.values.get(key) if key.startswith("PMI_") else None
    yield task, PmiReply("info-getjobattr-response", _found(value))


def _node_attribute(board: KeyValueSpace, task: int, asked: Mapping[str, str]) -> Answers:
    wait = asked.get("wait", "").upper() == "TRUE"
    value = board.attribute(task, asked.get("key", ""), wait=wait)
    if value is not None or not wait:
        yield task, PmiReply("info-getnodeattr-response", _found(value))


def _describe(board: KeyValueSpace, task: int, asked: Mapping[str, str]) -> Answers:
    key, value = asked.get("key", ""), asked.get("value", "")
    yield from (
        (each, PmiReply("info-getnodeattr-response", _found(value))) for each in board.describe(task, key, value)
    )
    yield task, PmiReply("info-putnodeattr-response", {"rc": 0})


def _name_publish(board: KeyValueSpace, task: int, asked: Mapping[str, str]) -> Answers:
    board.names[asked.get("name", "")] = asked.get("port", "")
    yield task, PmiReply("name-publish-response", {"rc": 0})


def _name_unpublish(board: KeyValueSpace, task: int, asked: Mapping[str, str]) -> Answers:
    board.names.pop(asked.get("name", ""), None)
    yield task, PmiReply("name-unpublish-response", {"rc": 0})


def _name_lookup(board: KeyValueSpace, task: int, asked: Mapping[str, str]) -> Answers:
    port = board.names.get(asked.get("name", ""))
    yield task, PmiReply("name-lookup-response", {"rc": 1} if port is None else {"rc": 0, "value": port})


def _spawn2(_: KeyValueSpace, __: int, ___: Mapping[str, str]) -> Answers:
    raise Unanswered(_NO_SPAWN, PmiReply("spawn-response", {"rc": 14, "errmsg": _NO_SPAWN}))


def _connect(_: KeyValueSpace, __: int, ___: Mapping[str, str]) -> Answers:
    raise Unanswered("job connect not implemented for now")


def _finalize2(_: KeyValueSpace, __: int, ___: Mapping[str, str]) -> Answers:
    raise Finished(PmiReply("finalize-response", {"rc": 0}))


_TWO: dict[str, Answer] = {
    "fullinit": _full_init,
    "job-getid": _tells("job-getid-response", lambda board: {"jobid": board.name}),
    "job-connect": _connect,
    "job-disconnect": _connect,
    "kvs-put": _kvs_put,
    "kvs-get": _kvs_get,
    "kvs-fence": _kvs_fence,
    "ring": _ring,
    "info-getjobattr": _job_attribute,
    "info-getnodeattr": _node_attribute,
    "info-putnodeattr": _describe,
    "name-publish": _name_publish,
    "name-unpublish": _name_unpublish,
    "name-lookup": _name_lookup,
    "spawn": _spawn2,
    "abort": _abort,
    "finalize": _finalize2,
}
