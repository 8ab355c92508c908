"""`python -m hpc_kit.runtime`, in this process: options, logs, ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import distributed as dist

from hpc_kit.run_files import read_first_failure
from hpc_kit.runtime import __main__ as main_module
from hpc_kit.runtime import process_group, shutdown
from hpc_kit.runtime.__main__ import main
from tests.runtime.launches import worker


class Ended(BaseException):
    """The process would have ended, with this code."""


@pytest.fixture(autouse=True)
def _this_process_stays_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    def exit_now(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(shutdown, "exit_rank", exit_now)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setenv("HPC_KIT_RUN", str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
    if dist.is_initialized():
        dist.destroy_process_group()


def program(text: str) -> str:
    """A program of this text."""
    Path("train.py").write_text(text)
    return "train.py"


def ended(words: list[str]) -> int:
    """The exit code of a program that fails."""
    with pytest.raises(Ended) as end:
        main(words)
    code: int = end.value.args[0]
    return code


def test_a_plain_program_finds_its_group_and_need_not_destroy_it(capsys: pytest.CaptureFixture[str]) -> None:
    text = "import torch.distributed as d; d.init_process_group('gloo'); print(d.get_world_size(), d.get_rank())"
    main([program(text)])
    assert capsys.readouterr().out == "1 0\n"
    assert not dist.is_initialized()
    assert "RANK" not in os.environ


def test_a_program_without_torch_runs_too(capsys: pytest.CaptureFixture[str]) -> None:
    main([program("import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'])")])
    assert capsys.readouterr().out == "0 1\n"


def test_without_torch_there_is_nothing_to_meet_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main_module, "find_spec", lambda _name: None)
    main([program("from hpc_kit.runtime import process_group; print(process_group.current_meeting())")])
    assert capsys.readouterr().out == "None\n"


def test_a_program_that_uses_us_is_already_met(capsys: pytest.CaptureFixture[str]) -> None:
    text = "import hpc_kit\nwith hpc_kit.distributed() as world: print(world.rank, world.world_size)"
    main([program(text)])
    assert capsys.readouterr().out == "0 1\n"
    assert process_group.current_meeting() is None


def test_the_programs_own_good_end_is_ours(capsys: pytest.CaptureFixture[str]) -> None:
    main([program("import sys; print('done'); sys.exit(0)")])
    assert capsys.readouterr().out == "done\n"


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('no data')", 1, "no data\n"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt\n"),
    ],
)
def test_its_bad_end_is_claimed_with_its_code(
    text: str, code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended([program(text)]) == code
    first = read_first_failure(tmp_path / "run")
    assert first is not None
    assert (first.rank, first.exit_code) == (0, code)
    assert capsys.readouterr().err.endswith(words)


def test_its_traceback_begins_in_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended([program("def step():\n    raise ValueError('bad batch')\nstep()\n")]) == 1
    assert capsys.readouterr().err == (
        "Traceback (most recent call last):\n"
        f'  File "{tmp_path}/train.py", line 3, in <module>\n'
        "    step()\n"
        f'  File "{tmp_path}/train.py", line 2, in step\n'
        "    raise ValueError('bad batch')\n"
        "ValueError: bad batch\n"
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--backed", "gloo", "x.py"], "hpc-kit: unknown option --backed\n"),
        (["--backend"], "hpc-kit: unknown option --backend\n"),
        ([], "hpc-kit: no program is named\n"),
        (["none.py"], "hpc-kit: there is no none.py\n"),
    ],
)
def test_wrong_use_is_told_without_traceback(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert ended(words) == 2
    assert capsys.readouterr().err.startswith(told)
    assert read_first_failure(tmp_path / "run") is None, "nobody knows the rank yet"


def test_options_are_the_programs_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    text = "import os; print(os.environ['HPC_KIT_BACKEND'], os.environ['HPC_KIT_TIMEOUT'])"
    main(["--backend=gloo", "--timeout", "90", program(text)])
    assert capsys.readouterr().out == "gloo 90\n"


def test_help_tells_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    assert capsys.readouterr().out.endswith("PROGRAM.py ARGS ... | -m MODULE ARGS ...\n")


def test_a_worker_of_torchrun_writes_its_own_log_and_takes_its_agents_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in worker(5).items():
        monkeypatch.setenv(name, value)
    (tmp_path / "run" / "rank-5.log").write_text("first attempt\n")
    with capfd.disabled():
        out, err = os.dup(1), os.dup(2)
        try:
            main([program("import os, sys; os.write(1, b'out\\n'); os.write(2, os.environ['RANK'].encode())")])
        finally:
            for saved, stream in ((out, 1), (err, 2)):
                os.dup2(saved, stream)
                os.close(saved)
    assert (tmp_path / "run" / "rank-5.log").read_text() == "first attempt\nout\n5"


def test_a_command_replaces_the_process_with_torchs_names_set(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[dict[str, str]] = []

    def execvp(_name: str, _words: list[str]) -> None:
        taken.append(dict(os.environ))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execvp", execvp)
    main(["nvidia-smi", "-L"])
    assert (taken[0]["RANK"], taken[0]["WORLD_SIZE"], taken[0]["MASTER_ADDR"]) == ("0", "1", "127.0.0.1")


def test_torchs_warnings_of_name_services_are_left_out_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "INFO")
    text = "import os; print(os.environ['TORCH_CPP_LOG_LEVEL'])"
    main([program(text)])
    monkeypatch.delenv("TORCH_CPP_LOG_LEVEL")
    main([program(text)])
    assert capsys.readouterr().out == "INFO\nERROR\n"
