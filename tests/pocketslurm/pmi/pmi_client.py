"""A task that says what its arguments, requests of PMI, are answered with over PMI_FD.

`1:REQUEST` is for task 1 alone, `~REQUEST` is one without an answer, `%r` the rank. Arguments begin with the line of
`cmd=init`, which says whether the others are lines or messages behind their length.
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
