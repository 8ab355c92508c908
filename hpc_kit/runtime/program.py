"""Runs a user's program in this process like `python PROGRAM` or `python -m MODULE`."""

from __future__ import annotations

import builtins
import os
import runpy
import shutil
import sys
from dataclasses import dataclass
from importlib.abc import FileLoader, InspectLoader
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from importlib.util import find_spec
from pathlib import Path
from pkgutil import get_importer
from types import CodeType, ModuleType
from typing import TYPE_CHECKING
from zipimport import zipimporter

from hpc_kit.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

_HARMLESS = {"-u"}
"""Options of the interpreter that need no new process."""


@dataclass(frozen=True)
class ProgramCommand:
    """A program and its arguments."""

    kind: str
    """"file", "module", or "command" for anything that is not Python code for this interpreter."""
    name: str
    arguments: tuple[str, ...]

    @classmethod
    def read(cls, words: Sequence[str]) -> ProgramCommand:
        """Parse the words after `python -m hpc_kit.runtime`: PROGRAM.py ARGS, -m MODULE ARGS, or any command.

        Raises:
            SpecError: There is no program, or its file is missing.
        """
        given, words = words, _strip_own_python(words)
        if words[:1] == ["-m"] and len(words) > 1:
            return cls("module", words[1], tuple(words[2:]))
        if not words or words[0] == "-m":
            raise SpecError("no program is named", remedy="python -m hpc_kit.runtime PROGRAM.py, or -m MODULE")
        name, *arguments = words
        path = Path(name)
        is_python = path.suffix in {".py", ".pyz"} or (path / "__main__.py").is_file() or len(words) < len(given)
        # A file that is not executable is meant for the interpreter, as for torchrun.
        if is_python or (path.is_file() and not os.access(path, os.X_OK)):
            if not path.exists():
                raise SpecError(f"there is no {name}", found=f"in {Path.cwd()}", remedy="the path of the program")
            return cls("file", name, tuple(arguments))
        return cls("command", name, tuple(arguments))

    @property
    def file(self) -> Path | None:
        """The file of the program; None for a command or a module."""
        return Path(self.name) if self.kind == "file" else None

    @property
    def is_torchrun(self) -> bool:
        """True if the program is torchrun, by its own name or as a module of torch."""
        return self.name in {"torch.distributed.run", "torch.distributed.launch"} or Path(self.name).name == "torchrun"

    def as_process(self) -> ProgramCommand:
        """Return the command that runs this program in a process of its own."""
        if self.kind == "command":
            return self
        module = ("-m",) if self.kind == "module" else ()
        return ProgramCommand("command", sys.executable, (*module, self.name, *self.arguments))

    def run(self) -> None:
        """Run the program as `__main__`. Its exceptions propagate."""
        sys.argv = [self.name, *self.arguments]
        if self.kind == "module":
            _set_first_folder(Path.cwd())
            _run_module(self.name)
            return
        path = Path(self.name).absolute()
        if path.is_dir():
            _set_first_folder(None)
            sys.path.insert(0, str(path))  # also with PYTHONSAFEPATH
            _run_file(path / "__main__.py")
        elif isinstance(archive := get_importer(str(path)), zipimporter):
            _set_first_folder(None)
            sys.path.insert(0, str(path))
            file, spec = archive.get_filename("__main__"), archive.find_spec("__main__")
            _run_main(archive.get_code("__main__"), archive, __file__=file, __package__="", __spec__=spec)
        else:
            _set_first_folder(path.resolve().parent)
            _run_file(path)

    def replace_this_process(self) -> None:
        """Replace this process by the command.

        Raises:
            SpecError: The command does not exist.
        """
        try:
            os.execvp(self.name, [self.name, *self.arguments])  # noqa: S606
        except OSError as error:
            raise SpecError(
                f"cannot run {self.name}", found=error.strerror, remedy="the path of a program, or a command on PATH"
            ) from error


def _set_first_folder(folder: Path | None) -> None:
    """Replace the folder that Python has put first into sys.path for this process, by that of the program."""
    if not sys.flags.safe_path:
        del sys.path[0]
    if folder is not None and not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, str(folder))


def _run_module(name: str) -> None:
    """Run a module like `python -m`."""
    spec = find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = find_spec(f"{name}.__main__")
    loader = None if spec is None else spec.loader
    if spec is None or not isinstance(loader, InspectLoader) or (code := loader.get_code(spec.name)) is None:
        runpy.run_module(name, run_name="__main__", alter_sys=True)  # raises the error for a module that cannot run
        return
    sys.argv[0] = spec.origin or name
    _run_main(code, loader, __file__=spec.origin, __cached__=spec.cached, __package__=spec.parent, __spec__=spec)


def _run_file(path: Path) -> None:
    loader: FileLoader = SourceFileLoader("__main__", str(path))
    code: CodeType | None
    if path.suffix == ".pyc":
        loader = SourcelessFileLoader("__main__", str(path))
        code = loader.get_code("__main__")
        assert code is not None  # noqa: S101 (only packages and extension modules have none)
    else:
        code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    _run_main(code, loader, __file__=str(path), __cached__=None)


def _run_main(code: CodeType, loader: object, **attributes: object) -> None:
    """Run code as a `__main__` that pickle, multiprocessing and exit handlers find; runpy would restore the old one."""
    main = ModuleType("__main__")
    main.__dict__.update(attributes, __loader__=loader, __builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    exec(code, main.__dict__)  # noqa: S102 (this is what it is for)


def _strip_own_python(words: Sequence[str]) -> list[str]:
    """Remove a leading `python` that is this interpreter, so that failures of the program are recorded here."""
    interpreter, *rest = words or [""]
    executable = shutil.which(interpreter) if Path(interpreter).name.startswith("python") else None
    if executable is None or Path(executable).absolute().parent != Path(sys.executable).absolute().parent:
        return list(words)
    while rest and rest[0] in _HARMLESS:
        rest = rest[1:]
    return rest if rest and (rest[0] == "-m" or not rest[0].startswith("-")) else list(words)
