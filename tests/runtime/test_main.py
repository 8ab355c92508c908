"""`python -m hpc_kit.runtime`, called in this process: options, logs, exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hpc_kit.run_files import claim_first_failure, read_first_failure
from hpc_kit.runtime import __main__ as main_module
from hpc_kit.runtime import joined_ranks, shutdown
from hpc_kit.runtime.__main__ import main
from tests.runtime.launches import worker


class Ended(BaseException):
    """Raised in place of the end of the process, with its exit code."""


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
    """Write a program with this text."""
    Path("train.py").write_text(text)
    return "train.py"


def exit_code_of(words: list[str]) -> int:
    """Return the exit code of a program that fails."""
    with pytest.raises(Ended) as end:
        main(words)
    code: int = end.value.args[0]
    return code


def test_a_plain_program_has_a_process_group_that_it_need_not_destroy(capsys: pytest.CaptureFixture[str]) -> None:
    text = "import torch.distributed as d; d.init_process_group('gloo'); print(d.get_world_size(), d.get_rank())"
    main([program(text)])
    assert capsys.readouterr().out == "1 0\n"
    assert not dist.is_initialized()
    assert "RANK" not in os.environ


def test_a_program_without_torch_runs(capsys: pytest.CaptureFixture[str]) -> None:
    main([program("import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'])")])
    assert capsys.readouterr().out == "0 1\n"


def test_without_torch_there_is_no_rendezvous(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main_module, "find_spec", lambda _name: None)
    main([program("from hpc_kit.runtime import joined_ranks; print(joined_ranks.current_meeting())")])
    assert capsys.readouterr().out == "None\n"


def test_a_program_that_uses_hpc_kit_joins_the_existing_group(capsys: pytest.CaptureFixture[str]) -> None:
    text = "import hpc_kit\nwith hpc_kit.distributed() as world: print(world.rank, world.world_size)"
    main([program(text)])
    assert capsys.readouterr().out == "0 1\n"
    assert joined_ranks.current_meeting() is None


def test_exit_code_0_of_the_program_is_returned(capsys: pytest.CaptureFixture[str]) -> None:
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
def test_an_exit_code_of_the_program_is_recorded(
    text: str, code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of([program(text)]) == code
    first = read_first_failure(tmp_path / "run")
    assert first is not None
    assert (first.rank, first.exit_code) == (0, code)
    assert capsys.readouterr().err.endswith(words)


def test_the_traceback_begins_in_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of([program("def step():\n    raise ValueError('bad batch')\nstep()\n")]) == 1
    assert capsys.readouterr().err == (
        "Traceback (most recent call last):\n"
        f'  File "{tmp_path}/train.py", line 3, in <module>\n'
        "    step()\n"
        f'  File "{tmp_path}/train.py", line 2, in step\n'
        "    raise ValueError('bad batch')\n"
        "ValueError: bad batch\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--backed", "gloo", "x.py"], "hpc-kit: unknown option --backed\n"),
        (["--backend"], "hpc-kit: unknown option --backend\n"),
        ([], "hpc-kit: no program is named\n"),
        (["none.py"], "hpc-kit: there is no none.py\n"),
    ],
)
def test_wrong_use_is_an_error_without_a_traceback(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert exit_code_of(words) == 2
    assert capsys.readouterr().err.startswith(message)
    assert read_first_failure(tmp_path / "run") is None, "the rank is not known yet"


def test_options_become_defaults_of_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    text = "import os; print(os.environ['HPC_KIT_BACKEND'], os.environ['HPC_KIT_TIMEOUT'])"
    main(["--backend=gloo", "--timeout", "90", program(text)])
    assert capsys.readouterr().out == "gloo 90\n"


def test_help_prints_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    assert capsys.readouterr().out.endswith("PROGRAM.py ARGS ... | -m MODULE ARGS ...\n")


def test_a_worker_of_torchrun_writes_its_log_and_uses_the_store_of_its_agent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    agent = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    variables = worker(0, agents=1, per_agent=1, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(agent.port))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "run" / "rank-0.log").write_text("first attempt\n")
    with capfd.disabled():
        out, err = os.dup(1), os.dup(2)
        try:
            main([program("import os, sys; os.write(1, b'out\\n'); os.write(2, os.environ['RANK'].encode())")])
        finally:
            for saved, stream in ((out, 1), (err, 2)):
                os.dup2(saved, stream)
                os.close(saved)
    assert (tmp_path / "run" / "rank-0.log").read_text() == "first attempt\nout\n0"


@pytest.mark.parametrize(("launcher", "code"), [("torchrun", 0), ("", 138)])
def test_a_worker_of_torchrun_that_stopped_ends_with_0_and_a_mark(
    launcher: str, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HPC_KIT_STOP_CODE", "138")
    if launcher:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "12")
    assert exit_code_of([program("raise SystemExit(138)")]) == code
    assert (tmp_path / "run" / "stopped").exists() == (code == 0)
    assert not (tmp_path / "run" / "first-failure").exists()


@pytest.mark.parametrize(("restart", "code"), [("0", 137), ("1", 3)])
def test_the_last_start_of_torchruns_workers_decides_which_rank_failed(
    restart: str, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With --max-restarts, an earlier failure has not ended the job."""
    for name, value in worker(0, agents=1, per_agent=2, TORCHELASTIC_RESTART_COUNT=restart).items():
        monkeypatch.setenv(name, value)
    claim_first_failure(tmp_path / "run", 1, "n1", 137)
    monkeypatch.setattr(main_module, "_write_own_log", lambda _: None)
    monkeypatch.setattr(main_module, "find_spec", lambda _: None)  # without torch, no rank waits for another one
    assert exit_code_of([program("raise SystemExit(3)")]) == 3
    first = read_first_failure(tmp_path / "run")
    assert first is not None
    assert first.exit_code == code


def test_a_command_replaces_the_process_with_torch_variables_set(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[dict[str, str]] = []

    def execvp(_name: str, _words: list[str]) -> None:
        taken.append(dict(os.environ))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execvp", execvp)
    main(["nvidia-smi", "-L"])
    assert (taken[0]["RANK"], taken[0]["WORLD_SIZE"], taken[0]["MASTER_ADDR"]) == ("0", "1", "127.0.0.1")


def test_processes_that_the_program_starts_get_torchs_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    main([program("import os; print('TORCH_CPP_LOG_LEVEL' in os.environ)")])
    assert capsys.readouterr().out == "False\n"


NCCL = "import torch.distributed as d; d.init_process_group('nccl'); print(d.get_backend()); d.destroy_process_group()"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_nccl_is_refused_with_the_fix(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of([program(NCCL)]) == 2
    assert capsys.readouterr().err == (
        "hpc-kit: the program asks for the backend nccl, and this node has no GPU\n"
        "  found  backend 'nccl'\n"
        "  do     --set launch.backend=gloo, which makes `python -m hpc_kit.runtime` replace it; or run on GPUs\n"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_the_backend_of_the_job_replaces_nccl(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--backend", "gloo", program(NCCL)])
    found = capsys.readouterr()
    assert (found.out, found.err) == (
        "gloo\n",
        "hpc-kit: gloo replaces the backend nccl, because this node has no GPU\n",
    )


SPAWNED = """
import sys
import torch.distributed as dist
import torch.multiprocessing as mp

def train(rank, file):
    dist.init_process_group("nccl", init_method=f"file://{file}", rank=rank, world_size=1)
    print(dist.get_backend(), flush=True)
    dist.destroy_process_group()

if __name__ == "__main__":
    method, file = sys.argv[1:]
    if method == "torch":
        mp.spawn(train, (file,), nprocs=1)
    else:
        process = mp.get_context(method).Process(target=train, args=(0, file))
        process.start()
        process.join()
"""


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("method", ["torch", "spawn", "forkserver", "fork"])
def test_the_backend_replaces_nccl_in_processes_that_the_program_starts(
    method: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    main(["--backend", "gloo", program(SPAWNED), method, str(tmp_path / "store")])
    found = capfd.readouterr()
    assert found.out == "gloo\n"
    assert "hpc-kit: gloo replaces the backend nccl, because this node has no GPU\n" in found.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize(
    "call", ["torch.cuda.set_device(0)", "torch.ones(1).cuda()", "local = 3 % torch.cuda.device_count()"]
)
def test_a_program_that_needs_a_gpu_gets_the_error_that_there_is_none(
    call: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of([program(f"import torch; {call}")]) == 1
    assert "hpc-kit: the program needs a GPU, and this process has none\n" in capsys.readouterr().err


def test_a_hook_of_the_program_that_fails_does_not_hide_the_error(capfd: pytest.CaptureFixture[str]) -> None:
    hook = "import sys\n\ndef hook(*error):\n    raise KeyError('WEBHOOK')\n\nsys.excepthook = hook\n"
    text = hook + "raise ValueError('bad batch')\n"
    assert exit_code_of([program(text)]) == 1
    errors = capfd.readouterr().err
    assert errors.index("Error in sys.excepthook:") < errors.index("Original exception was:")
    assert errors.count("bad batch") == 2  # the message and its line of code
    assert "hpc_kit" not in errors
    assert errors.rstrip().endswith("ValueError: bad batch")
