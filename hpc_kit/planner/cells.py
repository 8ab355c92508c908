"""The cells of a cases file: typed, in whichever spelling, and remembered where something had to be assumed."""

from __future__ import annotations

from collections.abc import Mapping

from hpc_kit.errors import SpecError

MOST = 10**9
"""Above this no count is one."""

ARCH = {
    "gpt": ("gpt2", "gpt3", "opt", "bloom", "gptneox"),
    "llama": ("llama2", "llama3", "llama31", "mistral", "qwen2"),
    "mpt": (),
    "nemotron": ("nemotron4",),
}
PRECISION = {
    "bf16": ("bfloat16", "bf16mixed", "ampbf16"),
    "fp16": ("float16", "half", "fp16mixed", "16mixed", "ampfp16"),
    "fp8": ("float8", "e4m3", "hybrid"),
}
GRAD_DTYPE = {"fp32": ("float32", "float"), "bf16": ("bfloat16",), "fp16": ("float16", "half")}
RECOMPUTE = {
    "none": ("false", "no", "off", "0"),
    "selective": ("core", "selectiveop"),
    "full": ("true", "yes", "on", "1", "block", "uniform"),
}
FP8_RECIPE = {"tensorwise": (), "rowwise": ()}
SCHEDULE = {"1f1b": (), "interleaved-1f1b": ("interleaved", "interleaved1f1b")}
NO_SCHEDULE = ("zb", "zerobubble", "dualpipe")
NO_PRECISION = ("32", "64", "fp4", "int")
"""Parts of the names of schedules and of formats that are not modelled."""
FRAMEWORK = {
    "megatron": ("megatronlm", "megatroncore", "mcore"),
    "megatron-deepspeed": ("deepspeed",),
    "nanotron": (),
    "nemo": ("nemo2", "nemoframework"),
    "fsdp": ("composer", "llmfoundry", "pytorchfsdp"),
    "torchtitan": (),
    "torch": ("pytorch",),
}
"""What each of these cells can say, and other spellings of it; case, `-`, `_`, `.` and blanks do not count."""

FLAGS = {
    **dict.fromkeys(("true", "yes", "t", "y", "1", "1.0", "on"), True),
    **dict.fromkeys(("false", "no", "f", "n", "0", "0.0", "off", "none"), False),
}


def plain(text: str) -> str:
    """A word without case and punctuation."""
    return "".join(char for char in text.lower() if char.isalnum())


class Cells:
    """A row's cells; `assumed` says what was taken for granted."""

    def __init__(self, row: Mapping[str, str]) -> None:
        self.row = row
        self.assumed: list[str] = []

    def text(self, name: str, default: str = "", *, say: bool = True) -> str:
        """A cell as it stands, or its default."""
        value = (self.row.get(name) or "").strip()
        if value:
            return value
        if default and say:
            self.assumed.append(f"{name} = {default}")
        return default

    def known(self, name: str, table: Mapping[str, tuple[str, ...]], default: str = "", *, say: bool = True) -> str:
        """A word of a table, whichever way it is spelled; "" where the cell is empty and there is no default.

        Raises:
            SpecError: It is none of them.
        """
        value = self.text(name, default, say=say)
        if not value:
            return ""
        for word, others in table.items():
            if plain(value) in {plain(word), *others}:
                return word
        raise SpecError(f"{name} is '{value}', none of {', '.join(table)}")

    def usual(self, name: str, table: Mapping[str, tuple[str, ...]], default: str = "") -> str:
        """As `known`, but a word that is none of them counts as an empty cell, which is said."""
        try:
            return self.known(name, table, default)
        except SpecError:
            self.assumed.append(f"{name} '{self.text(name)}' as {default or 'not given'}")
            self.row = {**self.row, name: ""}
            return default

    def schedule(self) -> str:
        """The pipeline's schedule; "": not known.

        Raises:
            SpecError: It is known, and not modelled.
        """
        value = plain(self.text("pipeline_schedule"))
        if value.startswith(NO_SCHEDULE):
            raise SpecError(f"pipeline_schedule is '{value}': zero-bubble schedules are not modelled")
        if value in {"gpipe", "afab"}:
            self.assumed.append(f"pipeline_schedule '{value}' as 1f1b")
            return "1f1b"
        return self.usual("pipeline_schedule", SCHEDULE)

    def precision(self) -> str:
        """Of the matrix products.

        Raises:
            SpecError: It is known, and not modelled.
        """
        value = plain(self.text("precision"))
        if "fp8" in value and value != "fp8":
            self.assumed.append(f"precision '{self.text('precision')}' as fp8")
            return "fp8"
        read = self.known if any(part in value for part in NO_PRECISION) else self.usual
        return read("precision", PRECISION, "bf16")

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Yes or no; what is neither is taken for the default, which is said."""
        value = self.text(name, str(default).lower())
        if value.lower() not in FLAGS:
            self.assumed.append(f"{name} '{value}' as {str(default).lower()}")
        return FLAGS.get(value.lower(), default)

    def number(self, name: str, default: float | None = None, *, say: bool = True) -> float:
        """A number from 0.

        Raises:
            SpecError: It is none, or the cell is empty and has no default.
        """
        value = self.text(name)
        if not value:
            if default is None:
                raise SpecError(f"{name} is empty", remedy="a number")
            if say:
                self.assumed.append(f"{name} = {default:g}")
            return default
        try:
            number = float(value)
        except ValueError:
            raise SpecError(f"{name} is no number", found=value, remedy="a number") from None
        if not 0 <= number < 1e18:
            raise SpecError(f"{name} is out of range", found=value, remedy="a positive number")
        return number

    def count(
        self, name: str, default: int | None = None, *, say: bool = True, least: int = 1, most: int = MOST
    ) -> int:
        """A whole number.

        Raises:
            SpecError: It is none, or out of range.
        """
        number = self.number(name, default, say=say)
        if number != int(number) or not least <= number <= most:
            raise SpecError(f"{name} is {number:g}, no whole number from {least} to {most}")
        return int(number)

    def maybe(self, name: str) -> int | None:
        """A whole number from 1; None where the cell is empty."""
        return self.count(name) if self.text(name) else None
