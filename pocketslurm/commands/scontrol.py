"""The command scontrol: its words are sorted out here, what they show and change is in modules of its own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hpc_kit.errors import HostlistError
from hpc_kit.slurm.nodelist import expand, fold
from pocketslurm import listing_support
from pocketslurm.commands import scontrol_change, scontrol_suspend, scontrol_update
from pocketslurm.errors import Problem
from pocketslurm.getopt import NONE, REQUIRED, Table
from pocketslurm.listings import scontrol_show
from pocketslurm.queue import controller_start, nodes
from pocketslurm.queue.state import State
from pocketslurm.settings import VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

OPTIONS = Table(
    ("all", "a", NONE), ("details", "d", NONE), ("federation", "", NONE), ("future", "F", NONE), ("help", "h", NONE),
    ("hide", "", NONE), ("local", "", NONE), ("clusters", "M", REQUIRED, "cluster"), ("oneliner", "o", NONE),
    ("quiet", "Q", NONE), ("sibling", "", NONE), ("uid", "u", REQUIRED), ("verbose", "v", NONE), ("version", "V", NONE),
    notes=listing_support.SCONTROL,
)  # fmt: skip

COMMANDS = {
    "hold": (1, 99), "uhold": (1, 99), "release": (1, 99), "requeue": (1, 99), "requeuehold": (1, 99), "top": (1, 1),
    "update": (1, 99), "show": (1, 2), "ping": (0, 0), "version": (0, 0), "help": (0, 0), "wait_job": (1, 1),
    "write": (2, 3), "listpids": (0, 1), "completing": (0, 0), "reconfigure": (0, 0), "reboot": (0, 99),
    "suspend": (1, 99), "resume": (1, 99), "notify": (2, 99),
}  # fmt: skip
"""The commands, with the fewest and the most words that may follow."""

_LISTS = ("hostnames", "hostlist", "hostlistsorted")
_NO_REBOOT = "scontrol: error: RebootProgram isn't defined\nscontrol_reboot_nodes error: Unspecified error"
_QUIT = frozenset({"quit", "exit", "q"})
_NOT_HERE = frozenset({"create", "delete", "setdebug", "shutdown", "takeover"})
_ENOUGH = 5
"""Letters of such a name that Slurm wants to see at least: `show hostname` will do."""


def main(argv: list[str], environ: Mapping[str, str]) -> int:
    """Run the command; its exit status."""
    given, words = OPTIONS.parse(argv)
    flags = {name: value or "" for name, value in given}
    if flags.keys() & {"version", "help"}:
        print(f"slurm {VERSION}" if "version" in flags else _help())
        return 0
    return _answer(flags, words, environ) if words else _converse(flags, environ)


def _converse(flags: dict[str, str], environ: Mapping[str, str]) -> int:
    """Without a command, one a line is read; the exit status is the last one's."""
    status = 0
    while True:
        print("scontrol: ", end="", flush=True)
        line = sys.stdin.readline()
        words = line.split()
        if not line:
            print()
        if not line or (words and words[0].lower() in _QUIT):
            return status
        status = _answer(flags, words, environ) if words else status


def _answer(flags: dict[str, str], words: list[str], environ: Mapping[str, str]) -> int:
    try:
        return _scontrol(flags, words, environ)
    except scontrol_show.NotShown as error:
        print(error)
    except Problem as error:
        sys.stderr.write(error.said_by("scontrol"))
    return 1


def _scontrol(flags: dict[str, str], words: list[str], environ: Mapping[str, str]) -> int:
    typed, *rest = words
    name = _command(typed, rest)
    if "clusters" in flags:
        listing_support.check_clusters("scontrol", flags["clusters"], State.open(environ).settings)
    if name in {"version", "help"}:
        print(f"slurm {VERSION}" if name == "version" else _help())
    elif name == "reconfigure":
        return 0
    elif name == "reboot":
        raise Problem(_NO_REBOOT if rest else "Missing node list. Specify ALL|<NodeList>")
    elif name == "show":
        return _show(flags, rest, environ)
    else:
        return _act(name, rest, environ)
    return 0


def _command(typed: str, rest: list[str]) -> str:
    low = typed.lower()
    possible = [low] if low in COMMANDS else [name for name in COMMANDS if name.startswith(low)]
    if low in _NOT_HERE:
        raise Problem(f"scontrol: {low} is not supported by the embedded Slurm")
    if not possible:
        raise Problem(f"invalid keyword: {typed}")
    fewest, most = COMMANDS[possible[0]]
    if not fewest <= len(rest) <= most:
        few = "few" if len(rest) < fewest else "many"
        raise Problem(f"too {few} arguments for keyword:{typed}")
    return possible[0]


def _help() -> str:
    return f"scontrol [<OPTION>] [<COMMAND>]\n    Valid <COMMAND> values are: {', '.join(sorted(COMMANDS))}"


def _open(environ: Mapping[str, str]) -> State:
    state = State.open(environ)
    controller_start.put_in_order(state)
    return state


def _act(name: str, words: list[str], environ: Mapping[str, str]) -> int:
    state = _open(environ)
    if name == "update":
        status = scontrol_update.update(state, words)
    elif name in {"ping", "completing", "wait_job", "write", "listpids"}:
        return scontrol_show.odds(state, name, words)
    elif name == "top":
        status = scontrol_change.put_first(state, words[0])
    elif name in {"suspend", "resume"}:
        status = scontrol_suspend.suspend_or_resume(state, name, words)
    elif name == "notify":
        status = scontrol_suspend.notify(state, words)
    elif name in {"requeue", "requeuehold"}:
        status = scontrol_change.requeue(state, words, held=name == "requeuehold")
    else:
        status = scontrol_change.hold_or_release(state, name, words)
    if not status:
        controller_start.ensure(state)
    return status


def _show(flags: Mapping[str, str], words: list[str], environ: Mapping[str, str]) -> int:
    # `show job=12` is `show job 12`.
    entity, equals, value = words[0].partition("=")
    rest = [value, *words[1:]] if equals else words[1:]
    entity = entity.lower()
    lists = [name for name in _LISTS if len(entity) >= _ENOUGH and name.startswith(entity)]
    if lists:
        entity = lists[0]
        _show_hosts(entity, rest[0] if rest else environ.get("SLURM_NODELIST", ""), given=bool(rest))
        return 0
    return scontrol_show.show(_open(environ), entity, rest[0] if rest else None, flags)


def _show_hosts(entity: str, text: str, *, given: bool) -> None:
    if not text and entity == "hostnames":
        if not given:
            raise Problem("scontrol: error: host list is empty")
        return
    if not text:
        raise Problem("invalid encode argument")
    try:
        if text.startswith("/"):
            with open(text) as file:  # noqa: PTH123
                text = ",".join(file.read().replace("\n", ",").strip(",").split(","))
        hosts = expand(text)
    except (OSError, HostlistError) as error:
        what = error.what if isinstance(error, HostlistError) else error
        raise Problem(f"Invalid hostlist: {text} ({what})") from None
    if entity == "hostnames":
        print("\n".join(hosts))
    else:
        print(fold(sorted(hosts, key=nodes.natural) if entity == "hostlistsorted" else hosts))
