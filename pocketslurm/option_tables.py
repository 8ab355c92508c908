"""Option tables of the commands that have none in `hpc_kit.slurm`, such as squeue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.slurm.getopt import GetoptError, OptionParser
from hpc_kit.slurm.option_table import Option, ValueUse
from pocketslurm.errors import UsageError
from pocketslurm.option_support import OptionNote, Support, options_help
from pocketslurm.settings import SLURM_VERSION

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

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
        self.options = {
            name: Option(name, letter or None, use, "text", frozenset(), None, tuple(" ".join(aliases).split()))
            for name, letter, use, *aliases in rows
        }

    def print_help(self, command: str, options: Collection[str]) -> bool:
        """Print what --version or --help ask for. Return False if neither is given."""
        if "version" in options:
            print(f"slurm {SLURM_VERSION}")
        elif {"help", "usage"} & set(options):
            print(options_help(f"{command} [OPTIONS...]", self.support, self.options))
        else:
            return False
        return True

    def parse(self, argv: Sequence[str]) -> tuple[list[tuple[str, str | None]], list[str]]:
        """Return names and values of the options in order, and the remaining words; both may be mixed.

        Raises:
            UsageError: An option is unknown, ambiguous or unsupported, lacks its value, or has an unexpected one.
        """
        try:
            options, others = OptionParser("", self.options.values()).parse(argv, permute=True)
        except GetoptError as error:
            raise UsageError(error.message) from None
        for each in options.given:
            support = self.support[each.option.name]
            if support.support is Support.REFUSED:
                raise UsageError(
                    f"option '--{each.option.name}' is not supported by the embedded Slurm: {support.note}"
                )
        return [(each.option.name, each.value) for each in options.given], others
