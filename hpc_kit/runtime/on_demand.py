"""torch's names for a process that is alone: there for who takes them, and not for who asks whether it was launched.

Programs that start processes of their own (Lightning, with `devices=2`) do so where LOCAL_RANK is not set, and wait for
processes that nobody starts where it is. What insists, by `os.environ["RANK"]` or by env://, gets a world of one.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hpc_kit.runtime.world import World

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
"""By these programs see that they were launched; an address alone says nothing."""


class _Environ(os._Environ[str]):  # noqa: SLF001 (the class of os.environ has no other name)
    """`os.environ` while some variables are there for `os.environ[name]` only: not by `in`, get, or for a child."""

    on_demand: dict[str, str]

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name) if name in self else self.on_demand[name]

    def __contains__(self, name: object) -> bool:
        try:
            super().__getitem__(name)  # type: ignore[index]
        except KeyError:
            return False
        return True

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401 (this is get)

    def __delitem__(self, name: str) -> None:
        if self.on_demand.pop(name, None) is None or name in self:
            super().__delitem__(name)


def of(variables: Mapping[str, str], world: World) -> dict[str, str]:
    """Those of `variables` that tell of a launch, where nobody has launched this process; what is set is set anew."""
    alone = world.launcher == "single"
    return {name: value for name, value in variables.items() if alone and name in NAMES and name not in os.environ}


@contextmanager
def offered(variables: Mapping[str, str]) -> Iterator[None]:
    """`os.environ` with these variables, which are not set, for who takes them; at the end they are not set."""
    if not variables:
        yield
        return
    environ: Any = os.environ
    kind = type(environ)
    environ.__class__, environ.on_demand = _Environ, dict(variables)
    try:
        with _env_url_takes_them():
            yield
    finally:
        environ.__class__ = kind
        for name in variables:
            environ.pop(name, None)


def reveal() -> None:
    """Set them: the process has joined a world of one, and a library may ask for its place there."""
    if isinstance(os.environ, _Environ):
        os.environ.update(os.environ.on_demand)


@contextmanager
def _env_url_takes_them() -> Iterator[None]:
    """Set them where torch is asked for a group by env:// and told neither rank nor size."""
    if find_spec("torch") is None:
        yield
        return
    # By its name it is a function of torch.distributed; and register_rendezvous_handler replaces none.
    handlers = import_module("torch.distributed.rendezvous")._rendezvous_handlers  # noqa: SLF001
    handler = handlers["env"]

    def taking(url: str, **kwargs: Any) -> Any:
        if "rank=" not in url or "world_size=" not in url:
            reveal()
        return handler(url, **kwargs)

    handlers["env"] = taking
    try:
        yield
    finally:
        handlers["env"] = handler
