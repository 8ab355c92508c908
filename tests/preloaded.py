"""Python processes that have imported their modules already. The imports take longer than most programs of the tests.

A server imports modules once, such as torch, and forks a process for each program. The process runs the program as
`__main__`, and ends like any interpreter. Tests of the import of torch, of torchrun and of mpirun start new
interpreters. The test's own process is not forked: it is so large that this takes as long as a new interpreter.

The server reads requests from its standard input, one JSON document a line. Its answer is a number: the process ID of a
program that it has started, or the exit code of a program that has ended.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]

FORWARDED = (signal.SIGUSR1, signal.SIGUSR2)
"""A test of torchrun sends these signals to all children of this process. They do not end the server."""

_ONE_REQUEST = Lock()  # tests start commands in several threads


class Preloaded:
    """A process, with the part of `subprocess.Popen` that the tests use."""

    def __init__(
        self,
        words: Sequence[str],
        environ: Mapping[str, str],
        folder: Path,
        output: Path,
        *,
        stdin: str = "",
        modules: tuple[str, ...] = ("torch.distributed",),
    ) -> None:
        """Start `python WORDS` in a session of its own.

        Args:
            words: `[-W error] FILE ARGUMENTS`, or `-m MODULE` or `-c CODE` in place of the file.
            environ: All variables of the process.
            folder: Its current folder.
            output: A path without an ending: the process writes to the files OUTPUT.out and OUTPUT.err.
            stdin: The text that it reads.
            modules: The modules that it has imported. Processes with the same modules share a server.
        """
        self.returncode: int | None = None
        self._ask = partial(_ask, _server(modules))
        self._files = [f"{output}.{ending}" for ending in ("out", "err")]
        files = [f"{output}.in", *self._files]
        for file, text in zip(files, (stdin, "", ""), strict=True):
            Path(file).write_text(text)
        self.pid = self._ask(words=words, environ=dict(environ), folder=str(folder), files=files)
        self._end = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        """Return the exit code, or None for a running process."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code."""
        if self.returncode is None:
            if not select.select([self._end], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self._files[0], timeout or 0)
            os.close(self._end)
            self.returncode = self._ask(ended=self.pid)
        return self.returncode

    def output(self) -> tuple[str, str]:
        """Return the output and the errors up to now."""
        out, err = (Path(file).read_text(encoding="utf-8", errors="surrogateescape") for file in self._files)
        return out, err

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end, and return the output and the errors."""
        self.wait(timeout)
        return self.output()

    def send_signal(self, number: int) -> None:
        """Send a signal to the process alone."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._end, number)

    def kill(self) -> None:
        """Kill the process and those of its session, and wait for its end."""
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.wait(60)


def run(words: Sequence[str], folder: Path, timeout: float = 120, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `python WORDS` in a folder to its end, outside of any job, and with these variables."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "HPC_KIT_"))}
    process = Preloaded(words, clean | variables, folder, folder / "process")
    try:
        out, err = process.communicate(timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(words, process.wait(), out, err)


@cache
def _server(modules: tuple[str, ...]) -> subprocess.Popen[str]:
    """Start a server, which ends with this process."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    environ.pop("PYTHONPATH", None)
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.preloaded", *modules],
        cwd=ROOT,
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

    def end() -> None:
        server.terminate()
        server.communicate()

    atexit.register(end)
    return server


def _ask(server: subprocess.Popen[str], **request: object) -> int:
    assert server.stdin is not None
    assert server.stdout is not None
    with _ONE_REQUEST:
        server.stdin.write(f"{json.dumps(request)}\n")
        server.stdin.flush()
        return int(server.stdout.readline())


def _serve(modules: Sequence[str]) -> dict[str, Any]:
    """Answer the requests. Return, in a forked process, the request to start a program."""
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # the processes share the memory of all these objects
    for number in FORWARDED:
        signal.signal(number, signal.SIG_IGN)
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        if "ended" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["ended"], 0)[1])
        elif (answer := os.fork()) == 0:
            return request
        print(answer, flush=True)
    sys.exit()


def _set_up(environ: dict[str, str], folder: str, files: list[str]) -> None:
    """Give this process the environment, the folder, the files and the module path of a new interpreter."""
    os.setsid()
    for number in FORWARDED:
        signal.signal(number, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environ)
    tempfile.tempdir = None  # depends on TMPDIR
    os.chdir(folder)
    for descriptor, file in enumerate(files):
        opened = os.open(file, os.O_WRONLY | os.O_APPEND if descriptor else os.O_RDONLY)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.path[:1] = filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))


def _run(words: list[str]) -> None:
    sys.orig_argv = [sys.executable, *words]
    if words[:2] == ["-W", "error"]:
        warnings.simplefilter("error")
        words = words[2:]
    main = sys.modules["__main__"] = ModuleType("__main__")
    if words[0] == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = words[1:]
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
    elif words[0] == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *words[2:]]
        exec(words[1], main.__dict__)
    else:
        sys.path.insert(0, str(Path(words[0]).parent))
        sys.argv, main.__file__ = words, words[0]
        exec(compile(Path(words[0]).read_bytes(), words[0], "exec"), main.__dict__)


if __name__ == "__main__":
    started = _serve(sys.argv[1:])
    _set_up(started["environ"], started["folder"], started["files"])
    _run(started["words"])
