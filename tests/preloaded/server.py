"""The server: `python -m tests.preloaded.server SOCKET` forks a process for each stand-in, until its stdin ends."""

from __future__ import annotations

import fcntl
import gc
import io
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, TypedDict

from tests.preloaded.interpreter import LISTENING

PRELOADED = ("torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.distributed.launcher.api", "torch.optim")

PATH = [path for path in sys.path if path not in os.environ.get("PYTHONPATH", "").split(":")]
"""The import path of an interpreter without PYTHONPATH, after the folder of its program."""


class Request(TypedDict):
    words: list[str]
    environ: dict[str, str]
    folder: str
    files: list[int]
    """Numbers of the descriptors that come with the request."""


class Child(NamedTuple):
    client: socket.socket
    pidfd: int


class Server:
    """Forks processes, forwards signals to them and returns their exit statuses."""

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(100)
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, Child] = {}

    def serve(self) -> Request | None:
        """Return a request in each forked process, and None in this process after the end of its standard input."""
        self._selector.register(self._listener, selectors.EVENT_READ, self._fork)
        self._selector.register(0, selectors.EVENT_READ)
        os.write(1, LISTENING)
        while True:
            for key, _ in self._selector.select():
                if key.fd == 0:
                    for child in self._children:
                        kill(child)
                    return None
                handle: Callable[[], Request | None] = key.data
                if request := handle():
                    return request

    def _fork(self) -> Request | None:
        client, _ = self._listener.accept()
        try:
            size, files, _, _ = socket.recv_fds(client, 10, 100)
            request: Request = json.loads(client.recv(int(size), socket.MSG_WAITALL))
        except (ConnectionError, ValueError):  # the stand-in was killed before it had sent its request
            client.close()
            return None
        child = os.fork()
        if child == 0:
            os.setsid()
            client.close()
            self._close()
            place(files, request["files"])
            return request
        for number in files:
            os.close(number)
        self._children[child] = Child(client, os.pidfd_open(child))
        self._selector.register(client, selectors.EVENT_READ, partial(self._forward_signals, child))
        self._selector.register(self._children[child].pidfd, selectors.EVENT_READ, partial(self._return_status, child))
        return None

    def _forward_signals(self, child: int) -> None:
        if child not in self._children:  # it has ended at the same time
            return
        client = self._children[child].client
        try:
            numbers = client.recv(100)
        except ConnectionResetError:
            numbers = b""
        for number in numbers:
            os.kill(child, number)
        if not numbers:  # the stand-in was killed
            self._selector.unregister(client)
            kill(child)

    def _return_status(self, child: int) -> None:
        client, pidfd = self._children.pop(child)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        self._selector.unregister(pidfd)
        with suppress(KeyError):
            self._selector.unregister(client)
        with suppress(ConnectionError):
            client.sendall(b"%d\n" % status)
        client.close()
        os.close(pidfd)

    def _close(self) -> None:
        self._selector.close()
        self._listener.close()
        for client, pidfd in self._children.values():
            client.close()
            os.close(pidfd)


def kill(child: int) -> None:
    """Kill a process and its group, whose leader it is as soon as it has called `setsid`."""
    for function in (os.kill, os.killpg):
        with suppress(ProcessLookupError):
            function(child, signal.SIGKILL)


def place(files: list[int], numbers: list[int]) -> None:
    """Give open files these numbers."""
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, 1 + max(files + numbers)) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(moved, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


class PreloadedTorch(MetaPathFinder, Loader):
    """Removes torch's modules from `sys.modules`, and puts them back when a program imports torch."""

    def __init__(self) -> None:
        self._modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "torch"}
        self._spec, self._loader = self._modules["torch"].__spec__, self._modules["torch"].__loader__
        for name in self._modules:
            del sys.modules[name]
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "torch" or self._spec is None:
            return None
        spec = ModuleSpec(name, self, origin=self._spec.origin, is_package=True)
        spec.submodule_search_locations = self._spec.submodule_search_locations
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._modules["torch"]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__, module.__loader__ = self._spec, self._loader
        sys.modules.update(self._modules)
        sys.meta_path.remove(self)


def run(request: Request, executable: str) -> None:
    """Run the words of a request as an interpreter does."""
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["folder"])
    sys.executable, sys.orig_argv = executable, [executable, *request["words"]]
    words, is_safe_path = list(request["words"]), False
    while (option := words[0]) in {"-u", "-P", "-W"}:  # the options that the stand-in lets pass
        del words[0]
        if option == "-u":
            sys.stdout = io.TextIOWrapper(open(1, "wb", 0, closefd=False), write_through=True)  # noqa: SIM115
        elif option == "-P":
            is_safe_path = True
        else:
            warnings.simplefilter(words.pop(0))  # type: ignore[arg-type]
    kind = words.pop(0) if words[0] in {"-m", "-c"} else "file"
    sys.argv = words if kind == "file" else [kind, *words[1:]]
    first = os.path.realpath(os.path.dirname(words[0])) if kind == "file" else os.getcwd() if kind == "-m" else ""
    own = os.environ.get("PYTHONPATH", "")
    sys.path[:] = [*([] if is_safe_path else [first]), *(own.split(":") if own else []), *PATH]
    if kind == "file":
        runpy.run_path(words[0], run_name="__main__")
    elif kind == "-m":
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        exec(words[0], {"__name__": "__main__", "__builtins__": __builtins__})


def main(path: str) -> None:
    """Import torch, and fork processes."""
    for name in PRELOADED:
        import_module(name)
    PreloadedTorch()
    gc.freeze()  # a child that ends need not search torch for garbage
    if request := Server(path).serve():
        run(request, str(Path(path).with_name("python")))


if __name__ == "__main__":
    main(sys.argv[1])
