"""Scripts that went on after the first failure or started it again, and jobs that did the wrong thing."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_kit.runs.why.rules import match_line
from tests.why.test_explain import STEPS, why

PORT = """Traceback (most recent call last):
  File "/opt/bin/torchrun", line 33, in <module>
    sys.exit(main())
  File "/opt/lib/python3.10/site-packages/torch/distributed/run.py", line 901, in main
    run(args)
torch.distributed.DistNetworkError: The server socket has failed to bind to [::]:29500 (errno: 98 - Address in use).
"""
MISSING = """Traceback (most recent call last):
  File "/home/u/export.py", line 9, in <module>
    torch.load("out/best.pth")
FileNotFoundError: [Errno 2] No such file or directory: 'out/best.pth'
"""
OPTIONAL = """Traceback (most recent call last):
  File "/home/u/prefetch.py", line 3, in <module>
    fetch()
PermissionError: [Errno 13] Permission denied: '/cache'
"""
SACCT = "JobID|State|ExitCode\n"


def test_a_command_that_misses_the_output_of_a_failed_launcher_is_a_consequence(tmp_path: Path) -> None:
    verdict = why(tmp_path, slurm_log=PORT + "training finished with status 1, exporting\n" + MISSING)
    assert verdict.class_ == "port-in-use"


def test_an_optional_command_that_failed_before_the_training_is_no_cause(tmp_path: Path) -> None:
    verdict = why(tmp_path, slurm_log=OPTIONAL + STEPS * 3 + MISSING)
    assert verdict.class_ == "missing-file"


def test_without_a_launcher_an_earlier_failure_only_makes_a_missing_file_likely(tmp_path: Path) -> None:
    verdict = why(tmp_path, slurm_log=OPTIONAL.replace("PermissionError: [Errno 13]", "KeyError:") + MISSING)
    assert verdict.confidence == "likely"


FAILED_STEP = "[run.sh] attempt 1 of 3\n" + MISSING + "srun: error: n1: task 0: Exited with exit code 1\n"


@pytest.mark.parametrize(("again", "cause"), [("COMPLETED", "did not fail"), ("FAILED", "")])
def test_the_last_step_of_a_program_that_a_script_started_again_decides(tmp_path: Path, again: str, cause: str) -> None:
    log = FAILED_STEP + "[run.sh] attempt 2 of 3\n" + STEPS * 3
    rows = f"{SACCT}7123|COMPLETED|0:0\n7123.0|FAILED|1:0\n7123.1|{again}|{int(again == 'FAILED')}:0\n"
    verdict = why(tmp_path, slurm_log=log, sacct_txt=rows)
    assert verdict.cause.startswith("did not fail") == bool(cause)
    assert "attempt 1" in verdict.earlier[0]


def test_a_later_step_that_is_no_new_try_hides_no_failure(tmp_path: Path) -> None:
    rows = f"{SACCT}7123|COMPLETED|0:0\n7123.0|FAILED|1:0\n7123.1|COMPLETED|0:0\n"
    log = FAILED_STEP.removeprefix("[run.sh] attempt 1 of 3\n") + "eval acc 0.1\n"
    assert not why(tmp_path, slurm_log=log, sacct_txt=rows).cause.startswith("did not fail")


@pytest.mark.parametrize(
    "line",
    [
        "rank 0 / world_size 1 | cuda:0",
        "world size: 1",
        "Initializing distributed: RANK 0, WORLD 1",
        "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/1",
        "Num processes: 1",
    ],
)
@pytest.mark.parametrize(("labels", "lone"), [((0, 1, 2, 3), True), ((0, 0, 0, 0), False)])
def test_tasks_of_one_step_that_are_all_rank_0(tmp_path: Path, line: str, labels: tuple[int, ...], lone: bool) -> None:
    log = "".join(f"{label}: {text}" for text in (line + "\n", *STEPS.splitlines(keepends=True)) for label in labels)
    verdict = why(tmp_path, slurm_log=log, sacct_txt=f"{SACCT}7123|COMPLETED|0:0\n")
    assert ("4 tasks of a step ran alone" in verdict.cause) == lone
    assert verdict.confidence == ("likely" if lone else "certain")


@pytest.mark.parametrize(
    ("line", "loaded"),
    [
        ("320 missing keys, 320 unexpected keys", False),
        ("2 missing keys, 2 unexpected keys", True),
        ("missing keys: 12 | unexpected keys: 120", True),
        ("Unexpected keys (head.weight, head.bias) found while loading pretrained weights.", True),
        ("Unexpected keys (module.stem.weight) found while loading pretrained weights.", False),
        ("loaded 0/320 keys", False),
        (
            (
                "Some weights of BertForX were not initialized from the model checkpoint at b "
                "and are newly initialized: ['classifier.bias', 'classifier.weight']"
            ),
            True,
        ),
        (
            (
                "Some weights of BertModel were not initialized from the model checkpoint at b "
                "and are newly initialized: ['embeddings.x', 'encoder.layer.0.attention.self.query.weight']"
            ),
            False,
        ),
    ],
)
def test_only_a_checkpoint_without_any_fitting_key_was_not_loaded(line: str, loaded: bool) -> None:
    assert any(match.rule.class_ == "checkpoint-mismatch" for match in match_line(line)) != loaded
