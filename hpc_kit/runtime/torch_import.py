"""Imports torch without its warnings, and calls a function as soon as the program has imported torch.

A program without torch needs no process group, and importing torch takes seconds. Python has no event for an import, so
a finder on `sys.meta_path` watches for torch, and is removed by its first import.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.util import find_spec
from typing import TYPE_CHECKING

from hpc_kit.errors import HpcKitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"


def require_torch() -> None:
    """Raise an error with a remedy if torch is not installed.

    Raises:
        HpcKitError: This interpreter has no torch.
    """
    if find_spec("torch") is None:
        raise HpcKitError(
            "there is no torch for this Python",
            found=f"{sys.executable} on {socket.gethostname()}",
            remedy=f"{sys.executable} -m pip install torch; or python = '/path/to/python' in the cluster file",
        )


def import_torch_quietly() -> None:
    """Import torch without the warnings of its C++ code; see `quiet_torch_import`."""
    with quiet_torch_import():
        import torch  # noqa: F401


@contextmanager
def quiet_torch_import() -> Iterator[None]:
    """Import torch without the warnings of its C++ code, unless TORCH_CPP_LOG_LEVEL is set. Errors stay visible.

    Without a name service torch would warn about every connection of a healthy training. The variable counts at the
    import only, and processes that this one starts get torch's messages, because they may not meet through hpc_kit.
    """
    if _LOG_LEVEL in os.environ:
        yield
        return
    os.environ[_LOG_LEVEL] = "ERROR"
    try:
        yield
    finally:
        os.environ.pop(_LOG_LEVEL, None)


@contextmanager
def after_torch_import(action: Callable[[], None]) -> Iterator[None]:
    """Call `action` once when torch is imported inside the `with` block; immediately if torch is imported already.

    Processes that the program forks do not call it.
    """
    if "torch" in sys.modules:
        action()
        yield
        return
    finder = _TorchFinder(action)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        finder.remove()


class _TorchFinder(MetaPathFinder):
    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._process = os.getpid()
        self._searching = False

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the interface of a finder
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return torch's own spec with a loader that calls the action."""
        if fullname != "torch" or self._searching or os.getpid() != self._process:
            return None
        self._searching = True  # the remaining finders find torch
        try:
            spec = find_spec(fullname)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            spec.loader = _TorchLoader(spec.loader, self)
        return spec

    def remove(self) -> None:
        """Stop watching."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def finish(self) -> None:
        """Stop watching, and call the action."""
        self.remove()
        self._action()


class _TorchLoader(Loader):
    def __init__(self, loader: Loader, finder: _TorchFinder) -> None:
        self._loader = loader
        self._finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module as torch's own loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run torch with its own loader, then the action."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        with quiet_torch_import():
            self._loader.exec_module(module)
        self._finder.finish()
