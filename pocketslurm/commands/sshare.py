"""The command sshare: prints the shares of an empty accounting database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pocketslurm.errors import CommandError
from pocketslurm.getopt import NONE, REQUIRED, Table
from pocketslurm.listings.columns import print_table
from pocketslurm.settings import SLURM_VERSION, load_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OPTIONS = Table(
    ("accounts", "A", REQUIRED), ("all", "a", NONE), ("format", "o", REQUIRED), ("helpformat", "e", NONE),
    ("long", "l", NONE), ("clusters", "M", REQUIRED, "cluster"), ("noheader", "n", NONE), ("parsable", "p", NONE),
    ("parsable2", "P", NONE), ("users", "u", REQUIRED), ("Users", "U", NONE), ("help", "h", NONE),
    ("usage", "", NONE), ("verbose", "v", NONE), ("version", "V", NONE),
)  # fmt: skip

_FIELDS = {
    "Account": -20, "User": 10, "RawShares": 10, "NormShares": 11, "RawUsage": 11, "NormUsage": 11, "EffectvUsage": 13,
    "FairShare": 10, "LevelFS": 10, "GrpTRESMins": 30, "TRESRunMins": 30, "Cluster": 10, "ID": 6, "Partition": 12,
    "GrpTRESRaw": 30,
}  # fmt: skip
_SHOWN = ("Account", "User", "RawShares", "NormShares", "RawUsage", "EffectvUsage", "FairShare")
_LONG = (*_SHOWN[:5], "NormUsage", *_SHOWN[5:], "LevelFS", "GrpTRESMins", "TRESRunMins")


def main(argv: list[str], environ: Mapping[str, str]) -> int:
    """Run the command; its exit status."""
    given, _ = OPTIONS.parse(argv)
    flags = {name: value or "" for name, value in given}
    if flags.keys() & {"version", "help", "usage", "helpformat"}:
        print(f"slurm {SLURM_VERSION}" if "version" in flags else "\n".join(sorted(_FIELDS)))
        return 0
    print_table(_columns(flags), _rows(flags, load_settings(environ).cluster), flags)
    return 0


def _columns(flags: Mapping[str, str]) -> Sequence[tuple[str, int]]:
    if not flags.get("format"):
        return [(name, _FIELDS[name]) for name in (_LONG if "long" in flags else _SHOWN)]
    found = []
    for item in filter(None, flags["format"].split(",")):
        typed, _, width = item.partition("%")
        name = next((name for name in _FIELDS if name.lower().startswith(typed.lower())), None)
        if name is None:
            raise CommandError(f'error: Invalid field requested: "{typed}"')
        found.append((name, int(width) if width.lstrip("-").isdecimal() else _FIELDS[name]))
    return found


def _rows(flags: Mapping[str, str], cluster: str) -> Sequence[Mapping[str, str]]:
    """Return the row of the account root, unless the options select users or other accounts."""
    others = "Users" in flags or "root" not in (flags.get("accounts") or "root").split(",")
    return [] if others else [{"Account": "root", "RawUsage": "0", "EffectvUsage": "0.000000", "Cluster": cluster}]
