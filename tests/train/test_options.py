from __future__ import annotations

from argparse import ArgumentTypeError
from contextlib import nullcontext
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest
import torch

from data import Text
from fsdp import FsdpOptions
from hpc_kit.errors import SpecError
from hpc_kit.spec.program_options import list_programs
from model import Config
from options import Options
from parameter_server import ServerOptions
from pipeline_stages import PipelineOptions
from tests.train.conftest import ROOT, TRAIN
from training import check_batch


def text_of(training: int, held_back: int) -> Text:
    return Text(torch.zeros(training), torch.zeros(held_back), files=3, checksum=0)


def test_without_arguments_defaults_apply() -> None:
    assert Options.parse(None, []) == Options()


def test_every_option_is_read() -> None:
    given = {
        "--steps": "3",
        "--global-batch": "8",
        "--accumulate": "2",
        "--sequence": "16",
        "--layers": "2",
        "--width": "32",
        "--heads": "2",
        "--lr": "0.1",
        "--warmup": "0",
        "--weight-decay": "0.0",
        "--clip": "2.0",
        "--seed": "7",
        "--data": "d",
        "--compile": "inductor",
        "--eval-windows": "9",
        "--eval-every": "5",
        "--log-every": "1",
        "--profile": "2",
        "--checkpoint": "c",
        "--checkpoint-every": "4",
        "--resume": "r",
        "--timeout": "60.0",
    }
    flags = ["--bf16", "--recompute", "--unwatched"]
    options = Options.parse(None, [*(word for pair in given.items() for word in pair), *flags])
    read = {f"--{name.replace('_', '-')}": str(value) for name, value in vars(options).items()}
    assert read == {**given, **dict.fromkeys(flags, "True")}
    assert options.model == Config(layers=2, width=32, heads=2, sequence=16)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--steps", "0"], "argument --steps: invalid count value: '0'"),
        (["--warmup", "-1"], "argument --warmup: invalid whole value: '-1'"),
        (["--lr", "0"], "argument --lr: invalid positive value: '0'"),
        (["--lr", "nan"], "argument --lr: invalid positive value: 'nan'"),
        (["--timeout", "inf"], "argument --timeout: invalid positive value: 'inf'"),
        (["--seed", "x"], "argument --seed: invalid int value: 'x'"),
        (["--width", "100", "--heads", "3"], "--heads 3 does not divide --width 100"),
        (["--checkpoint-every", "2"], "--checkpoint-every needs --checkpoint"),
        (["--step", "5"], "unrecognized arguments: --step 5"),
    ],
)
def test_wrong_use_exits_with_2_and_one_line(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        Options.parse(None, argv)
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"error: {words}")


def test_help_lists_every_option_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        Options.parse("A program.\n\n    with its own lines", ["--help"])
    words = capsys.readouterr().out
    assert "A program.\n\n    with its own lines\n" in words
    for entry in fields(Options):
        assert f"--{entry.name.replace('_', '-')} " in words
    assert "windows of text per step, over all ranks [64]" in words
    assert "None" not in words


def test_a_checkpoint_is_written_into_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPC_KIT_RUN", "/runs/ddp/7")
    assert Options.parse(None, []).checkpoint == Path("/runs/ddp/7/checkpoint")
    assert Options.parse(None, ["--checkpoint", "mine.pt"]).checkpoint == Path("mine.pt")


def test_the_layout_of_the_job_sets_missing_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPC_KIT_LAYOUT", "dp=2 pp=2 global_batch=32 micro_batches=8 heads=2 parameters=9")
    options = PipelineOptions.parse(None, [])
    assert (options.pp, options.global_batch, options.micro_batches, options.heads) == (2, 32, 8, 2)
    assert PipelineOptions.parse(None, ["--pp", "4", "--micro-batches", "16"]).pp == 4


NAMES = {
    "pp",
    "tp",
    "cp",
    "zero",
    "dp_shard",
    "dp",
    "servers",
    "steps",
    "global_batch",
    "micro_batches",
    "layers",
    "width",
}
NAMES |= {"heads", "sequence", "accumulate", "bf16", "offload", "recompute", "schedule", "stages_per_rank"}
NAMES |= {"sequence_parallel"}
"""Options that checks and plans use, so that a table must name them."""
DESCRIBED = {Path(program.file).stem: program for program in list_programs(ROOT)}


def test_every_program_with_options_is_described() -> None:
    with_options = {path.stem for path in TRAIN.glob("*.py") if "Options.parse(" in path.read_text()}
    assert set(DESCRIBED) == with_options - {"options"}


@pytest.mark.filterwarnings("ignore:`torch.jit")  # torch.distributed.optim uses a deprecated function
@pytest.mark.parametrize("name", sorted({*DESCRIBED} - {"horovod_ddp"}))
def test_the_option_table_of_a_job_agrees_with_its_program(name: str) -> None:
    module, program = import_module(name), DESCRIBED[name]
    kinds = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, Options)]
    options = {entry.name: entry for entry in fields(max(kinds, key=lambda kind: len(fields(kind))))}
    assert program.names == NAMES & options.keys()
    assert program.defaults == {option: options[option].default for option in program.defaults}
    assert {options[option].default for option in program.all_ranks} <= {None}
    for option, values in program.only.items():
        for number in range(5):
            with nullcontext() if number in values else pytest.raises(ArgumentTypeError):
                options[option].metadata["parse"](str(number))
    limited = {option for option in program.names if "among" in options[option].metadata["parse"].__qualname__}
    assert limited == set(program.only)


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("tp=2 cp=2", "this program does not split by cp 2, tp 2, which the job's [layout] asks for"),
        ("zero=1", "this program does not split by zero 1, which the job's [layout] asks for"),
        ("global_batch=0", "argument --global-batch: invalid count value: '0'"),
    ],
)
def test_a_layout_that_the_program_does_not_support_is_refused(
    layout: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HPC_KIT_LAYOUT", layout)
    with pytest.raises(SystemExit) as caught:
        Options.parse(None, [])
    assert caught.value.code == 2
    assert sorted(capsys.readouterr().err.splitlines()[-1].partition("error: ")[2]) == sorted(words)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--schedule", "2F2B"], "argument --schedule: '2F2B' is none of GPipe, 1F1B, Interleaved1F1B"),
        (["--zero", "1"], "argument --zero: '1' is none of 2, 3"),
    ],
)
def test_an_unknown_choice_is_refused(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    kind = PipelineOptions if "--schedule" in argv else FsdpOptions
    with pytest.raises(SystemExit):
        kind.parse(None, argv)
    assert words in capsys.readouterr().err
    assert PipelineOptions.parse(None, ["--schedule", "gpipe"]).schedule == "GPipe"


def test_a_valid_batch_is_accepted() -> None:
    check_batch(Options(global_batch=24, accumulate=3, sequence=4), text_of(4 * 24 + 1, 5), ranks=8)


@pytest.mark.parametrize(
    ("global_batch", "remedy"), [(60, "--global-batch 48 or --global-batch 64"), (5, "--global-batch 16")]
)
def test_a_global_batch_that_does_not_divide_is_refused(global_batch: int, remedy: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_batch(Options(global_batch=global_batch, accumulate=2), text_of(10**6, 10**6), ranks=8)
    assert str(caught.value) == (
        "the global batch cannot be divided among the ranks\n"
        f"  found  --global-batch {global_batch} / (8 ranks * --accumulate 2)\n"
        f"  do     {remedy}"
    )


def test_a_text_shorter_than_a_batch_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        check_batch(Options(global_batch=24, sequence=4), text_of(4 * 24, 5), ranks=8)
    assert str(caught.value) == (
        "the text is shorter than one batch\n"
        "  found  3 files, 101 bytes, crc 00000000: 23 windows of --sequence 4\n"
        "         --global-batch 24\n"
        "  do     a smaller --global-batch or --sequence, or --data with more text"
    )


def test_a_text_without_held_back_files_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        check_batch(Options(global_batch=8, sequence=4), text_of(100, 4), ranks=8)
    assert str(caught.value) == (
        "no text is held back for the evaluation\n"
        "  found  3 files, 104 bytes, crc 00000000, 4 of them held back; --sequence 4\n"
        "  do     a smaller --sequence, or --data with more files"
    )


def test_an_option_that_a_program_does_not_support_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HPC_KIT_RUN", "/runs/1")  # a checkpoint of the run is nothing that the user asked for
    assert ServerOptions.parse(None, ["--steps", "3"]).steps == 3
    with pytest.raises(SystemExit):
        ServerOptions.parse(None, ["--checkpoint", "mine"])
    assert "error: unrecognized arguments: --checkpoint mine" in capsys.readouterr().err
