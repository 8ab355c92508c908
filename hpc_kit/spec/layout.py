"""How the ranks share the work: the degree of each kind of parallelism."""

from typing import Annotated

from msgspec import Meta, Struct

Degree = Annotated[int, Meta(ge=1)]


class Layout(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Degrees of parallelism; their product must be the number of ranks."""

    dp: Annotated[Degree | None, Meta(description="Data parallel degree (default: what fills the job)")] = None
    pp: Annotated[Degree, Meta(description="Pipeline stages")] = 1
    tp: Annotated[Degree, Meta(description="Tensor parallel degree; best kept inside a node")] = 1
    cp: Annotated[Degree, Meta(description="Context parallel degree")] = 1

    def size(self, world_size: int) -> int:
        """Ranks that the layout asks for; a `dp` left out takes what the others leave of `world_size`."""
        others = self.pp * self.tp * self.cp
        return others * (self.dp if self.dp is not None else max(1, world_size // others))

    def __str__(self) -> str:
        named = [("dp", self.dp), ("pp", self.pp), ("tp", self.tp), ("cp", self.cp)]
        shown = [f"{name} {degree}" for name, degree in named if degree is not None and (degree > 1 or name == "dp")]
        return " x ".join(shown) or "dp"
