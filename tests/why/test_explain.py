"""`hpc_kit.runs.why`: which rank is to blame, how sure the answer is, and logs that are damaged."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from hpc_kit.runs.why import explain
from hpc_kit.runs.why.answers import Verdict
from hpc_kit.runs.why.report import mask_secrets, verdict_json, verdict_rows

TRACEBACK = """Traceback (most recent call last):
  File "/home/u/train.py", line 9, in main
    run()
{error}
"""
LOST = TRACEBACK.format(
    error="RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:5512"
)
STEPS = "".join(f"step {step} loss {3 - step / 10:.2f}\n" for step in range(9))


def why(folder: Path, **files: str) -> Verdict:
    for name, text in files.items():
        folder.joinpath(name.replace("__", "-").replace("_log", ".log").replace("_txt", ".txt")).write_text(text)
    return explain([folder])


def test_the_culprit_and_not_a_victim(tmp_path: Path) -> None:
    failed = TRACEBACK.format(error="KeyError: 'labels'")
    verdict = why(tmp_path, rank__0_log=STEPS + LOST, rank__1_log=STEPS + failed, rank__2_log=STEPS + LOST)
    assert (verdict.class_, verdict.rank, verdict.confidence) == ("python-exception", 1, "certain")
    assert verdict.traceback is not None and "KeyError" in verdict.traceback
    assert verdict.also == ["ranks 0, 2 fell with it (lost connection)"]


def test_a_rank_that_is_late_is_the_cause_of_the_time_outs(tmp_path: Path) -> None:
    late = TRACEBACK.format(
        error="RuntimeError: [unbound_buffer.cc:81] Timed out waiting 8000ms for recv operation to complete"
    )
    verdict = why(
        tmp_path, rank__0_log=STEPS + late, rank__1_log=STEPS + "reading the index\n", rank__2_log=STEPS + late
    )
    assert (verdict.class_, verdict.rank) == ("late-rank", 1)
    assert "reading the index" in verdict.evidence[0].text


def test_only_lost_connections_are_not_a_certain_cause(tmp_path: Path) -> None:
    verdict = why(tmp_path, rank__0_log=LOST, rank__1_log=LOST)
    assert verdict.confidence == "likely"


def test_an_exception_that_the_program_survived_is_no_failure(tmp_path: Path) -> None:
    caught = (
        STEPS + TRACEBACK.format(error="OSError: [Errno 28] No space left on device") + STEPS + "Training complete\n"
    )
    verdict = why(tmp_path, slurm_log=caught)
    assert verdict.cause.startswith("did not fail")


def test_the_same_exception_at_the_end_is_a_failure(tmp_path: Path) -> None:
    verdict = why(tmp_path, slurm_log=STEPS + TRACEBACK.format(error="OSError: [Errno 28] No space left on device"))
    assert verdict.class_ == "disk-full"


def test_a_job_booked_completed_whose_training_failed_is_failed(tmp_path: Path) -> None:
    sacct = "JobID|State|ExitCode\n7|COMPLETED|0:0\n"
    verdict = why(tmp_path, slurm_log=STEPS + TRACEBACK.format(error="ValueError: bad shard"), sacct_txt=sacct)
    assert verdict.class_ == "python-exception"
    assert "hid the exit status" in verdict.cause


def test_the_last_attempt_counts_and_earlier_ones_are_named(tmp_path: Path) -> None:
    requeue = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO JOB REQUEUE ***\n"
    first, last = TRACEBACK.format(error="KeyError: 'a'"), TRACEBACK.format(error="MemoryError")
    verdict = why(tmp_path, slurm_log=STEPS + first + requeue + STEPS + last)
    assert verdict.class_ == "host-memory"
    assert verdict.earlier == ["attempt 1: the program failed with KeyError: 'a'"]


@pytest.mark.parametrize("content", [b"", b"\x00" * 5000, b"\x7fELF" + bytes(range(256)) * 9])
def test_empty_and_binary_logs_are_unknown(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "slurm-1.out").write_bytes(content)
    verdict = explain([tmp_path])
    assert verdict.cause.startswith("unknown")
    assert verdict.traceback is None


def test_a_log_cut_in_a_traceback_is_unknown(tmp_path: Path) -> None:
    verdict = why(tmp_path, slurm_log=STEPS + TRACEBACK.split("run()", maxsplit=1)[0])
    assert verdict.cause.startswith("unknown")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_other_encodings(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.log").write_bytes(TRACEBACK.format(error="KeyError: 'ü'").encode(encoding))
    assert explain([tmp_path]).class_ == "python-exception"


def test_compressed_logs(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.log.gz", "wt") as file:
        file.write(STEPS + TRACEBACK.format(error="KeyError: 'a'"))
    assert explain([tmp_path]).class_ == "python-exception"


def test_dos_line_ends_of_a_log_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes((STEPS + TRACEBACK.format(error="KeyError: 'a'")).replace("\n", "\r\n").encode())
    verdict = explain([tmp_path])
    assert (verdict.class_, verdict.evidence[0].line) == ("python-exception", 13)


def test_a_traceback_behind_a_progress_bar(tmp_path: Path) -> None:
    bar = "".join(f"\r {done}%|###   | {done}/100 [00:01<00:10]" for done in range(40))
    verdict = why(tmp_path, slurm_log=bar + TRACEBACK.format(error="KeyError: 'a'"))
    assert verdict.class_ == "python-exception"


def test_a_waiting_job_says_what_to_do(tmp_path: Path) -> None:
    listing = (
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)\n"
        "                12       gpu    train      mia PD       0:00      4 (Priority)\n"
    )
    verdict = why(tmp_path, squeue_txt=listing)
    assert verdict.cause.startswith("did not fail: job 12 waits")
    assert "squeue --start" in verdict.fix


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("token=hf_abcdefghijklmnopqrstuvwxyzABCDEFGH", "token=***"),
        ("WANDB_API_KEY=0123456789abcdef0123456789abcdef", "WANDB_API_KEY=***"),
        ("git clone https://mia:geheim12@host/x.git", "git clone https://mia:***@host/x.git"),
        ("Authorization: Bearer abcdefghijklmnop123456", "Authorization: Bearer ***"),
        ("tokens/s 1024 key=value loss=2.31", "tokens/s 1024 key=value loss=2.31"),
        ("KeyError: 'labels'", "KeyError: 'labels'"),
    ],
)
def test_secrets_are_masked(text: str, masked: str) -> None:
    assert mask_secrets(text) == masked


def test_the_document_has_exactly_its_keys_and_no_escapes(tmp_path: Path) -> None:
    verdict = why(tmp_path, slurm_log="\x1b[31m" + TRACEBACK.format(error="ValueError: \x1b[1mbad\x1b[0m\x07 shard"))
    document = verdict_json(verdict)
    assert list(document) == ["cause", "class", "rank", "host", "evidence", "traceback", "fix", "confidence"]
    assert "\x1b" not in str(document) and "\x07" not in str(document)
    assert [label for label, _ in verdict_rows(verdict)][:2] == ["cause", "proof"]


def test_a_message_before_progress_is_no_cause(tmp_path: Path) -> None:
    verdict = why(tmp_path, slurm_log="cache /scratch/x does not exist, creating it\n" + STEPS)
    assert verdict.class_ == "unknown"


def test_lines_of_remaining_ranks_do_not_make_an_error_handled(tmp_path: Path) -> None:
    failed = "".join(f"[rank2]: {line}\n" for line in TRACEBACK.format(error="KeyError: 'a'").splitlines())
    steps = "".join(f"[rank{rank}]: step {{}} loss 2.0\n" for rank in (0, 1, 3))
    verdict = why(tmp_path, slurm_log=steps.format(1, 1, 1) + failed + steps.format(2, 2, 2))
    assert (verdict.class_, verdict.rank) == ("python-exception", 2)


def test_a_step_that_failed_behind_a_completed_job_is_reported(tmp_path: Path) -> None:
    verdict = why(tmp_path, sacct_txt="JobID|State|ExitCode\n5|COMPLETED|0:0\n5.0|FAILED|1:0\n")
    assert verdict.cause.startswith("unknown: step 5.0 is FAILED")


def test_a_repeated_message_is_read_a_limited_number_of_times(tmp_path: Path) -> None:
    refused = "".join(
        f"WARNING connect to 10.0.0.1:29500: Connection refused, attempt {number}\n" for number in range(20_000)
    )
    verdict = why(tmp_path, slurm_log=refused + TRACEBACK.format(error="KeyError: 'a'"))
    assert verdict.class_ == "python-exception"


def test_the_record_of_the_first_failure_in_a_run_folder_decides(tmp_path: Path) -> None:
    failed = TRACEBACK.format(error="KeyError: 'a'")
    (tmp_path / "first-failure").write_text("1 n2 1 1700000000.0\n")
    verdict = why(tmp_path, rank__0_log=failed, rank__1_log=failed)
    assert (verdict.rank, verdict.host) == (1, "n2")
