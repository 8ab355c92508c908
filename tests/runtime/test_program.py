"""A program runs in this process as under `python PROGRAM`."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from hpc_kit.errors import SpecError
from hpc_kit.runtime.program import ProgramCommand

SHOW = """import sys
def step(size: int) -> None: ...
print(__name__, __file__, sys.argv, sys.path[0], __spec__ is None, step.__annotations__, sep="|")
print(__package__, type(__loader__), sorted(name for name in globals() if name.startswith("__")))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a current folder with a program, a module and a package."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "train.py").write_text(SHOW)
    (tmp_path / "tool.py").write_text(SHOW)
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text("print('app')\n")
    (tmp_path / "script").write_text(SHOW)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sub/train.py", "--lr", "0.1"], ProgramCommand("file", "sub/train.py", ("--lr", "0.1"))),
        (["-m", "tool", "x"], ProgramCommand("module", "tool", ("x",))),
        (["app"], ProgramCommand("file", "app", ())),
        (["script"], ProgramCommand("file", "script", ())),
        (["nvidia-smi", "-L"], ProgramCommand("command", "nvidia-smi", ("-L",))),
        ([sys.executable, "sub/train.py"], ProgramCommand("file", "sub/train.py", ())),
        ([sys.executable, "-u", "-m", "tool"], ProgramCommand("module", "tool", ())),
        ([sys.executable, "-c", "pass"], ProgramCommand("command", sys.executable, ("-c", "pass"))),
        (["/elsewhere/python", "x.py"], ProgramCommand("command", "/elsewhere/python", ("x.py",))),
    ],
)
@pytest.mark.usefixtures("folder")
def test_command_lines_are_read(words: list[str], expected: ProgramCommand) -> None:
    assert ProgramCommand.read(words) == expected


@pytest.mark.parametrize(
    ("words", "what"), [([], "no program is named"), (["-m"], "no program is named"), (["x.py"], "there is no x.py")]
)
@pytest.mark.usefixtures("folder")
def test_a_missing_program_is_refused(words: list[str], what: str) -> None:
    with pytest.raises(SpecError, match=f"^{what}"):
        ProgramCommand.read(words)


@pytest.mark.parametrize("words", [["sub/train.py", "--lr", "0.1"], ["-m", "tool", "x"], ["script"], ["app"]])
def test_a_program_runs_as_under_python(
    words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    ProgramCommand.read(words).run()
    seen = capfd.readouterr().out.splitlines()
    python = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True, cwd=folder)
    assert seen == python.stdout.splitlines()


@pytest.mark.parametrize("name", ["run", "app.zip", "tool.pyc", "none"])
def test_python_runs_any_file(name: str, folder: Path) -> None:
    (folder / "tool.py").write_text("import sys\nprint(__name__, sys.argv, sys.path[0])\n")
    (folder / "run").write_bytes((folder / "tool.py").read_bytes())
    (folder / "run").chmod(0o755)
    py_compile.compile(str(folder / "tool.py"), cfile="tool.pyc")
    with ZipFile("app.zip", "w") as archive:
        archive.write("run", "__main__.py")
    python = [sys.executable, name, "x"]
    started = [sys.executable, "-P", "-m", "hpc_kit.runtime", *python]
    done, plain = (subprocess.run(each, capture_output=True, text=True, cwd=folder) for each in (started, python))
    assert (done.stdout, done.returncode) == (plain.stdout, plain.returncode), done.stderr


@pytest.mark.parametrize("words", [["sub/train.py"], ["-m", "tool"], ["-m", "app"]])
def test_exit_handlers_find_the_classes_of_the_program(words: list[str], folder: Path) -> None:
    text = "import atexit, pickle\nclass State: pass\natexit.register(lambda: print(len(pickle.dumps(State()))))\n"
    for name in ("sub/train.py", "tool.py", "app/__main__.py"):
        (folder / name).write_text(text)
    started = [sys.executable, "-P", "-m", "hpc_kit.runtime", *words]
    done = subprocess.run(started, capture_output=True, text=True, cwd=folder)
    assert (done.stderr, done.stdout.strip().isdigit()) == ("", True)


SHADOWS = ("contextlib", "types", "pathlib", "socket", "torch", "hpc_kit", "msgspec")


@pytest.mark.parametrize("words", [["sub/train.py"], ["-m", "tool"], ["app"], ["-u", "sub/linked.py"]])
@pytest.mark.parametrize("environ", [{}, {"PYTHONPATH": "lib:sub"}, {"PYTHONSAFEPATH": "1"}])
def test_a_program_has_the_path_that_python_gives_it(words: list[str], environ: dict[str, str], folder: Path) -> None:
    show = "import sys; print(sys.path)\n"
    (folder / "other").mkdir()
    for name in ("sub/train.py", "tool.py", "app/__main__.py", "other/linked.py"):
        (folder / name).write_text(show)
    (folder / "sub/linked.py").symlink_to("../other/linked.py")
    environ = {**os.environ, **environ}
    python = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=folder, env=environ)
    started = [sys.executable, "-P", "-m", "hpc_kit.runtime", *words[words[0] == "-u" :]]
    runtime = subprocess.run(started, capture_output=True, text=True, cwd=folder, env=environ)
    # With PYTHONSAFEPATH, `-m tool` finds nothing in the current folder.
    assert (runtime.stdout, bool(runtime.returncode)) == (python.stdout, bool(python.returncode)), runtime.stderr


def test_files_of_the_project_do_not_replace_modules_of_python(folder: Path) -> None:
    for name in SHADOWS:
        (folder / f"{name}.py").write_text("raise SystemExit(f'{__file__} was imported')\n")
    started = [sys.executable, "-P", "-m", "hpc_kit.runtime", "sub/train.py"]
    done = subprocess.run(started, capture_output=True, text=True, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_command_replaces_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(os, "execvp", lambda name, words: taken.append((name, words)))
    ProgramCommand("command", "nvidia-smi", ("-L",)).replace_this_process()
    assert taken == [("nvidia-smi", ["nvidia-smi", "-L"])]


def test_a_missing_command_is_refused() -> None:
    with pytest.raises(SpecError, match="cannot run no-such-command"):
        ProgramCommand("command", "no-such-command", ()).replace_this_process()
