"""The commands of PMI-1.1 and PMI-2.0, answered as Slurm's plug-in mpi/pmi2 answers them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pocketslurm.pmi.protocol import PMI1, PMI2, PmiReply, versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pocketslurm.pmi.key_values import KeyValueSpace
    from pocketslurm.pmi.protocol import Connection, PmiRequest

    Answers = Iterator[tuple[int, PmiReply]]
    Answer = Callable[[KeyValueSpace, int, Mapping[str, str]], Answers]


class Abort(Exception):
    """A task ends the step."""


class Finished(Exception):
    """A task has finalized; `reply` is the last reply to it."""

    def __init__(self, reply: PmiReply) -> None:
        super().__init__()
        self.reply = reply


class Unanswered(Exception):
    """A request that Slurm reports on stderr; `reply` is the reply to the task, if there is one."""

    def __init__(self, complaint: str, reply: PmiReply | None = None) -> None:
        super().__init__(complaint)
        self.reply = reply


def handshake(connection: Connection, request: PmiRequest) -> PmiReply:
    """Return the answer to a task's first line.

    Raises:
        Unanswered: The version is none that is known here.
    """
    values = versions(request.text)
    # The reply needs a version also if the line has none.
    major, minor = values or PMI2
    code, complaint = 0, ""
    if not values:
        code, complaint = 1, f"invalid PMI1 init command: `{request.text}'"
    elif values not in {PMI1, PMI2}:
        code, complaint = -1, f"unsupported PMI version: {major}.{minor}"
    reply = PmiReply("response_to_init", {"rc": code, "pmi_version": major, "pmi_subversion": minor})
    if complaint:
        raise Unanswered(complaint, reply)
    connection.version = values
    return reply


def answer(space: KeyValueSpace, connection: Connection, task: int, request: PmiRequest) -> Answers:
    """Return the replies by task.

    Raises:
        Abort: A task aborts the step.
        Finished: The task has finalized.
        Unanswered: The command is unknown.
    """
    table, name = (_TWO, "pmi2") if connection.version == PMI2 else (_ONE, "pmi1")
    if request.command in _UNSUPPORTED:
        complaint = _NO_SPAWN if "spawn" in request.command else f"{name} request of '{request.command}' not supported"
        raise Unanswered(complaint, _UNSUPPORTED[request.command])
    if request.command not in table:
        raise Unanswered(f"invalid {name} command received: '{request.command}'")
    return table[request.command](space, task, request.values)


def _tells(command: str, values: Callable[[KeyValueSpace], Mapping[str, object]]) -> Answer:
    """Return the answer of a command that only asks for values."""

    def tell(space: KeyValueSpace, task: int, _: Mapping[str, str]) -> Answers:
        yield task, PmiReply(command, {"rc": 0, **values(space)})

    return tell


def _abort(_: KeyValueSpace, __: int, values: Mapping[str, str]) -> Answers:
    """Abort the step. PMI-2 can also end a part of a step, which has no effect here."""
    if values.get("isworld", "TRUE").upper() == "TRUE":
        raise Abort
    yield from ()


def _puts(command: str) -> Answer:
    def put(space: KeyValueSpace, task: int, values: Mapping[str, str]) -> Answers:
        space.put(values.get("key", ""), values.get("value", ""))
        yield task, PmiReply(command, {"rc": 0})

    return put


def _waits(command: str) -> Answer:
    def wait(space: KeyValueSpace, task: int, _: Mapping[str, str]) -> Answers:
        yield from ((each, PmiReply(command, {"rc": 0})) for each in space.barrier(task))

    return wait


def _ends(command: str) -> Answer:
    def end(_: KeyValueSpace, __: int, ___: Mapping[str, str]) -> Answers:
        raise Finished(PmiReply(command, {"rc": 0}))

    return end


# PMI-1.1


def _get(space: KeyValueSpace, task: int, values: Mapping[str, str]) -> Answers:
    value = space.values.get(values.get("key", ""))
    yield task, PmiReply("get_result", {"rc": 1} if value is None else {"rc": 0, "value": value})


_NO_SPAWN = "spawn failed: the embedded Slurm starts no tasks for MPI_Comm_spawn"
_UNSUPPORTED = {
    **dict.fromkeys(("create_kvs", "destroy_kvs", "getbyidx", "job-connect", "job-disconnect")),
    "mcmd=spawn": PmiReply("spawn_result", {"rc": 1}),
    "spawn": PmiReply("spawn-response", {"rc": 14, "errmsg": _NO_SPAWN}),
    "ring": PmiReply("ring-response", {"rc": 1}),
    **{f"{verb}_name": PmiReply(f"{verb}_result", {"info": "fail"}) for verb in ("publish", "unpublish", "lookup")},
    **{f"name-{verb}": PmiReply(f"name-{verb}-response", {"rc": 1}) for verb in ("publish", "unpublish", "lookup")},
}
"""Commands of programs that connect to each other or start others, and of MVAPICH's rings, with the replies."""

_ONE: dict[str, Answer] = {
    "get_maxes": _tells("maxes", lambda _: {"kvsname_max": 256, "keylen_max": 64, "vallen_max": 1024}),
    "get_universe_size": _tells("universe_size", lambda space: {"size": space.size}),
    "get_appnum": _tells("appnum", lambda _: {"appnum": -1}),
    "get_my_kvsname": _tells("my_kvsname", lambda space: {"kvsname": space.name}),
    "put": _puts("put_result"),
    "get": _get,
    "barrier_in": _waits("barrier_out"),
    "abort": _abort,
    "finalize": _ends("finalize_ack"),
}


# PMI-2.0


def _value_fields(value: object) -> dict[str, object]:
    return {"rc": 0, "found": "FALSE"} if value is None else {"rc": 0, "found": "TRUE", "value": value}


def _full_init(space: KeyValueSpace, task: int, values: Mapping[str, str]) -> Answers:
    complete = all(name in values for name in ("pmijobid", "pmirank", "threaded"))
    result = {"rc": 0 if complete else 3, "pmi-version": 2, "pmi-subversion": 0, "rank": task, "size": space.size}
    yield task, PmiReply("fullinit-response", {**result, "appnum": -1, "debugged": "FALSE", "pmiverbose": "FALSE"})


def _kvs_get(space: KeyValueSpace, task: int, values: Mapping[str, str]) -> Answers:
    yield task, PmiReply("kvs-get-response", _value_fields(space.values.get(values.get("key", ""))))


def _job_attribute(space: KeyValueSpace, task: int, values: Mapping[str, str]) -> Answers:
    key = values.get("key", "")
    value = space.values.get(key) if key.startswith("PMI_") else None
    value = str(space.size) if key == "universeSize" else value
    yield task, PmiReply("info-getjobattr-response", _value_fields(value))


def _node_attribute(space: KeyValueSpace, task: int, values: Mapping[str, str]) -> Answers:
    wait = values.get("wait", "").upper() == "TRUE"
    value = space.attribute(task, values.get("key", ""), wait=wait)
    if value is not None or not wait:
        yield task, PmiReply("info-getnodeattr-response", _value_fields(value))


def _describe(space: KeyValueSpace, task: int, values: Mapping[str, str]) -> Answers:
    key, value = values.get("key", ""), values.get("value", "")
    yield from (
        (each, PmiReply("info-getnodeattr-response", _value_fields(value))) for each in space.describe(task, key, value)
    )
    yield task, PmiReply("info-putnodeattr-response", {"rc": 0})


_TWO: dict[str, Answer] = {
    "fullinit": _full_init,
    "job-getid": _tells("job-getid-response", lambda space: {"jobid": space.name}),
    "kvs-put": _puts("kvs-put-response"),
    "kvs-get": _kvs_get,
    "kvs-fence": _waits("kvs-fence-response"),
    "info-getjobattr": _job_attribute,
    "info-getnodeattr": _node_attribute,
    "info-putnodeattr": _describe,
    "abort": _abort,
    "finalize": _ends("finalize-response"),
}
