"""Options as sbatch, srun and salloc read them: GNU's getopt_long over the table in `option_table`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import DirectiveError
from hpc_kit.slurm.kinds import check_value
from hpc_kit.slurm.option_table import OPTIONS, Option, Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["SALLOC", "SBATCH", "SRUN", "Given", "Option", "Options", "Value", "check_value", "parse_options"]

SBATCH: Mapping[str, Option] = {option.name: option for option in OPTIONS if "sbatch" in option.commands}
SRUN: Mapping[str, Option] = {option.name: option for option in OPTIONS if "srun" in option.commands}
SALLOC: Mapping[str, Option] = {option.name: option for option in OPTIONS if "salloc" in option.commands}

_TABLES = {"sbatch": SBATCH, "srun": SRUN, "salloc": SALLOC}


class Given(NamedTuple):
    """An option as it was given: its value, None where none stood there, and the word of the argv it stood in."""

    option: Option
    value: str | None
    word: int


class Options(NamedTuple):
    """The options of one command line, in their order and as often as they were given; the last one counts."""

    given: tuple[Given, ...]

    def get(self, name: str, default: str | None = None) -> str | None:
        """The last value of an option by its long name; the empty string for one given without a value."""
        values = self.all(name)
        return values[-1] if values else default

    def all(self, name: str) -> list[str]:
        """Every value of an option, in order."""
        return [each.value or "" for each in self.given if each.option.name == name]

    def has(self, name: str) -> bool:
        """Whether the option was given at all."""
        return any(each.option.name == name for each in self.given)


class _Words(NamedTuple):
    """An argv that can say in which place (`line 3`) each of its words stood."""

    argv: Sequence[str]
    command: str
    places: Sequence[str] | None

    def error(self, index: int, words: str, remedy: str) -> DirectiveError:
        """Slurm's own words, and the place."""
        place = f", {self.places[index]}" if self.places else ""
        return DirectiveError(
            f"an option that {self.command} does not take{place}", found=f"{self.command}: {words}", remedy=remedy
        )


def parse_options(
    argv: Sequence[str], command: str = "sbatch", *, places: Sequence[str] | None = None
) -> tuple[Options, list[str]]:
    """Read options as Slurm's commands do; the rest begins at the first word that is none.

    Args:
        argv: The words after the command's name.
        command: `sbatch`, `srun` or `salloc`.
        places: Where each word stood, for messages: `line 3`.

    Raises:
        DirectiveError: An option unknown, ambiguous, or with a value missing or too many, in Slurm's own words.
    """
    words = _Words(argv, command, places)
    given: list[Given] = []
    index = 0
    while index < len(argv):
        word = argv[index]
        if word == "--":
            index += 1
            break
        # What follows the first word that is no option belongs to the program, `-n` and all.
        if len(word) < 2 or not word.startswith("-"):
            break
        if word.startswith("--"):
            each = _long(words, index)
            given.append(each)
        else:
            cluster = list(_short(words, index))
            given.extend(cluster)
            each = cluster[-1]
        index = each.word + 1
    return Options(tuple(given)), list(argv[index:])


def _long(words: _Words, index: int) -> Given:
    typed, equals, text = words.argv[index][2:].partition("=")
    option = _find_long(words, index, typed)
    value = text if equals else None
    shown = f"option '--{_spelling(option, typed)}'"
    if option.value is Value.NONE and value is not None:
        raise words.error(index, f"{shown} doesn't allow an argument", f"write --{option.name}")
    if option.value is Value.REQUIRED and value is None:
        if index + 1 == len(words.argv):
            raise words.error(index, f"{shown} requires an argument", f"write --{option.name}=VALUE")
        return Given(option, words.argv[index + 1], index + 1)
    return Given(option, value, index)


def _short(words: _Words, index: int) -> Iterator[Given]:
    """The options of a word like `-vvn4`; the last takes what is left of the word, or the next one."""
    letters = words.argv[index][1:]
    by_letter = {option.short: option for option in _TABLES[words.command].values() if option.short}
    for position, letter in enumerate(letters):
        option = by_letter.get(letter)
        if option is None:
            raise words.error(index, f"invalid option -- '{letter}'", _help(words.command))
        if option.value is Value.NONE:
            yield Given(option, None, index)
            continue
        rest = letters[position + 1 :]
        if rest or option.value is Value.OPTIONAL:
            yield Given(option, rest or None, index)
        elif index + 1 < len(words.argv):
            yield Given(option, words.argv[index + 1], index + 1)
        else:
            raise words.error(index, f"option requires an argument -- '{letter}'", f"write --{option.name}=VALUE")
        return


def _find_long(words: _Words, index: int, typed: str) -> Option:
    """The option that a long name, or an unambiguous beginning of one, stands for."""
    table = _TABLES[words.command]
    if typed in table:
        return table[typed]
    spellings = {name: option for option in table.values() for name in (option.name, *option.aliases)}
    if typed in spellings:
        return spellings[typed]
    possible = {name: option for name, option in spellings.items() if name.startswith(typed)}
    # A beginning that 22.05 understands keeps its meaning, whatever later releases added.
    for among in (possible, {name: option for name, option in possible.items() if not option.since}):
        if len({option.name for option in among.values()}) == 1:
            return next(iter(among.values()))
    if not possible:
        raise _unknown(words, index, typed, list(spellings))
    names = " ".join(f"'--{name}'" for name in possible)
    raise words.error(
        index,
        f"option '{words.argv[index]}' is ambiguous; possibilities: {names}",
        "write the option's name in full",
    )


def _unknown(words: _Words, index: int, typed: str, spellings: list[str]) -> DirectiveError:
    from difflib import get_close_matches

    near = get_close_matches(typed.replace("_", "-").lower(), spellings, n=1, cutoff=0.6)
    owners = [command for command, table in _TABLES.items() if typed in table]
    equals = words.argv[index][2 + len(typed) :]
    if owners:
        remedy = f"--{typed} is an option of {' and '.join(owners)}"
    else:
        remedy = f"did you mean --{near[0]}{equals}?" if near else _help(words.command)
    return words.error(index, f"unrecognized option '{words.argv[index]}'", remedy)


def _spelling(option: Option, typed: str) -> str:
    """The name in full that getopt puts into its messages."""
    return next((name for name in (option.name, *option.aliases) if name.startswith(typed)), option.name)


def _help(command: str) -> str:
    return f"{command} --help lists its options"
