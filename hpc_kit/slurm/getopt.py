"""Reads options as GNU getopt_long does: the commands of Slurm share this parser, each with its own table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from hpc_kit.errors import DirectiveError
from hpc_kit.slurm.option_table import OPTIONS, Option, ValueUse

SBATCH: Mapping[str, Option] = {option.name: option for option in OPTIONS if "sbatch" in option.commands}
SRUN: Mapping[str, Option] = {option.name: option for option in OPTIONS if "srun" in option.commands}
SALLOC: Mapping[str, Option] = {option.name: option for option in OPTIONS if "salloc" in option.commands}

_TABLES = {"sbatch": SBATCH, "srun": SRUN, "salloc": SALLOC}


class ParsedOption(NamedTuple):
    """One option of a command line.

    Attributes:
        option: Its row of the table.
        value: Its value; None if the command line gives none.
        word: Index of the word that contains the value, or of the option's own word.
    """

    option: Option
    value: str | None
    word: int


class ParsedOptions(NamedTuple):
    """The options of one command line in their order. If an option is repeated, the last one counts."""

    given: tuple[ParsedOption, ...]

    def get(self, name: str, default: str | None = None) -> str | None:
        """Return the last value of an option by its long name; the empty string for an option without value."""
        values = self.all(name)
        return values[-1] if values else default

    def all(self, name: str) -> list[str]:
        """Return every value of an option, in order."""
        return [each.value or "" for each in self.given if each.option.name == name]

    @property
    def names(self) -> frozenset[str]:
        """The long names of the options."""
        return frozenset(each.option.name for each in self.given)

    def has(self, name: str) -> bool:
        """Return whether the command line contains the option."""
        return name in self.names


class GetoptError(DirectiveError):
    """An option that getopt_long refuses.

    Attributes:
        message: The message of getopt_long, without the name of the command.
        word: Index of the refused word.
        parsed: The options before that word.
    """

    def __init__(self, command: str, message: str, remedy: str, word: int) -> None:
        super().__init__(f"an option that {command} does not take", found=f"{command}: {message}", remedy=remedy)
        self.message = message
        self.word = word
        self.parsed = ParsedOptions(())


def parse_options(argv: Sequence[str], command: str = "sbatch") -> tuple[ParsedOptions, list[str]]:
    """Read the options of sbatch, srun or salloc, and return them with the remaining words.

    Raises:
        GetoptError: An option is unknown or ambiguous, lacks its value, or has one that it does not take.
    """
    return _parser_of(command).parse(argv)


@cache
def _parser_of(command: str) -> OptionParser:
    return OptionParser(command, _TABLES[command].values())


class OptionParser:
    """The options of one command."""

    def __init__(self, command: str, options: Iterable[Option]) -> None:
        self._command = command
        options = tuple(options)
        self._by_spelling = {name: option for option in options for name in (option.name, *option.aliases)}
        self._by_letter = {option.short: option for option in options if option.short}

    def parse(self, argv: Sequence[str], *, permute: bool = False) -> tuple[ParsedOptions, list[str]]:
        """Read a command line, and return its options and the remaining words.

        `permute`: also read options behind words that are no options. Otherwise the first such word ends the options:
        srun passes it and everything after it, also `-n`, to the program.
        """
        given: list[ParsedOption] = []
        others: list[str] = []
        index = 0
        try:
            while index < len(argv):
                word = argv[index]
                if word == "--":
                    index += 1
                    break
                # A lone "-" is no option: programs read standard input with it.
                if len(word) < 2 or not word.startswith("-"):
                    if not permute:
                        break
                    others.append(word)
                    index += 1
                    continue
                given.extend(
                    [self._parse_long(argv, index)] if word.startswith("--") else list(self._short(argv, index))
                )
                # The value of the last option may have been the next word.
                index = given[-1].word + 1
        except GetoptError as error:
            error.parsed = ParsedOptions(tuple(given))
            raise
        return ParsedOptions(tuple(given)), [*others, *argv[index:]]

    def _parse_long(self, argv: Sequence[str], index: int) -> ParsedOption:
        typed, equals, text = argv[index][2:].partition("=")
        option, spelling = self._find(argv[index], typed, index)
        if option.value is ValueUse.NONE and equals:
            raise self._error(index, f"option '--{spelling}' doesn't allow an argument", f"write --{option.name}")
        if option.value is ValueUse.REQUIRED and not equals:
            if index + 1 == len(argv):
                message = f"option '--{spelling}' requires an argument"
                raise self._error(index, message, f"write --{option.name}=VALUE")
            return ParsedOption(option, argv[index + 1], index + 1)
        return ParsedOption(option, text if equals else None, index)

    def _short(self, argv: Sequence[str], index: int) -> Iterator[ParsedOption]:
        """Yield the options of a word such as `-vvn4`. The last one takes the rest of the word or the next word."""
        letters = argv[index][1:]
        for position, letter in enumerate(letters, start=1):
            option = self._by_letter.get(letter)
            if option is None:
                raise self._error(index, f"invalid option -- '{letter}'", self._help())
            if option.value is ValueUse.NONE:
                yield ParsedOption(option, None, index)
                continue
            rest = letters[position:]
            if rest or option.value is ValueUse.OPTIONAL:
                yield ParsedOption(option, rest or None, index)
            elif index + 1 < len(argv):
                yield ParsedOption(option, argv[index + 1], index + 1)
            else:
                message = f"option requires an argument -- '{letter}'"
                raise self._error(index, message, f"write --{option.name}=VALUE")
            return

    def _find(self, word: str, typed: str, index: int) -> tuple[Option, str]:
        """Return the option that a long name or its unambiguous beginning stands for, and its full spelling."""
        if typed in self._by_spelling:
            return self._by_spelling[typed], typed
        possible = {name: option for name, option in self._by_spelling.items() if name.startswith(typed)}
        # A beginning that 22.05 understands keeps its meaning, whatever later releases added.
        for among in (possible, {name: option for name, option in possible.items() if not option.since}):
            if len({option.name for option in among.values()}) == 1:
                spelling, option = next(iter(among.items()))
                return option, spelling
        if not possible:
            raise self._unknown(word, typed, index)
        names = " ".join(f"'--{name}'" for name in possible)
        message = f"option '{word}' is ambiguous; possibilities: {names}"
        raise self._error(index, message, "write the option's name in full")

    def _unknown(self, word: str, typed: str, index: int) -> GetoptError:
        from difflib import get_close_matches

        near = get_close_matches(typed.replace("_", "-").lower(), list(self._by_spelling), n=1, cutoff=0.6)
        owners = [command for command, table in _TABLES.items() if typed in table]
        remedy = f"did you mean --{near[0]}{word[2 + len(typed) :]}?" if near else self._help()
        if owners:
            remedy = f"--{typed} is an option of {' and '.join(owners)}"
        return self._error(index, f"unrecognized option '{word}'", remedy)

    def _error(self, index: int, message: str, remedy: str) -> GetoptError:
        return GetoptError(self._command, message, remedy, index)

    def _help(self) -> str:
        return f"{self._command} --help lists its options"
