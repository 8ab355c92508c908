"""Option tables of the commands that have none in `hpc_kit.slurm`, such as squeue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.slurm.getopt import GetoptError, OptionParser
from hpc_kit.slurm.option_table import Option, ValueUse
from pocketslurm.errors import UsageError
from pocketslurm.option_support import OptionNote, Support

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NONE, REQUIRED, OPTIONAL = ValueUse


class Table:
    """The options of one command.

    Args:
        rows: A row for each option: its long name, letter (or an empty string), use of a value, and other long names.
        notes: What happens to the options that do not simply work.
    """

    def __init__(
        self,
        *rows: tuple[str, str, ValueUse] | tuple[str, str, ValueUse, str],
        notes: Mapping[str, OptionNote] | None = None,
    ) -> None:
        self.support = {row[0]: (notes or {}).get(row[0], OptionNote(Support.WORKS)) for row in rows}
        self._options = {
            name: Option(name, letter or None, use, "text", frozenset(), None, tuple(" ".join(aliases).split()))
            for name, letter, use, *aliases in rows
        }

    def spelled(self, name: str) -> str:
        """Return an option as a manual writes it: `-j, --jobs=VALUE`."""
        option = self._options[name]
        value = {NONE: "", REQUIRED: "=VALUE", OPTIONAL: "[=VALUE]"}[option.value]
        return f"{f'-{option.short}, ' if option.short else ''}--{name}{value}"

    def parse(self, argv: Sequence[str]) -> tuple[list[tuple[str, str | None]], list[str]]:
        """Return names and values of the options in order, and the remaining words; both may be mixed.

        Raises:
            UsageError: An option is unknown, ambiguous or unsupported, lacks its value, or has an unexpected one.
        """
        try:
            options, others = OptionParser("", self._options.values()).parse(argv, permute=True)
        except GetoptError as error:
            raise UsageError(error.message) from None
        for each in options.given:
            support = self.support[each.option.name]
            if support.support is Support.REFUSED:
                raise UsageError(
                    f"option '--{each.option.name}' is not supported by the embedded Slurm: {support.note}"
                )
        return [(each.option.name, each.value) for each in options.given], others
