"""A task that sends its arguments as PMI requests over PMI_FD and prints each answer.

Only task 1 sends `1:REQUEST`. `~REQUEST` expects no answer, and `%r` is the rank. The first argument is the line
`cmd=init`: its version decides whether all requests are lines, or messages that begin with their length.
"""

import os
import sys

FD, RANK = int(os.environ["PMI_FD"]), os.environ["PMI_RANK"]


def ask(request: str) -> None:
    silent = request.startswith("~")
    text = request.removeprefix("~").replace("%r", RANK).replace("\\n", "\n").encode()
    as_line = text.startswith(b"cmd=init") or "pmi_version=1" in sys.argv[1]
    os.write(FD, text + b"\n" if as_line else b"%-6d" % len(text) + text)
    if not silent:
        print(f"{RANK} {answer(as_line=as_line)}", flush=True)


def answer(*, as_line: bool) -> str:
    """One line or message, which may come in pieces."""
    read = b""
    while not (read.endswith(b"\n") if as_line else len(read) > 5 and len(read) == 6 + int(read[:6])):
        piece = os.read(FD, 4096)
        if not piece:
            raise EOFError(read)
        read += piece
    return read.decode().rstrip()


for argument in sys.argv[1:]:
    who, colon, request = argument.partition(":")
    if not (colon and who.isdigit()):
        ask(argument)
    elif who == RANK:
        ask(request)
