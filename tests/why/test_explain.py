"""`hpc_kit.runs.why`: which rank is to blame, how sure the answer is, and logs that are damaged."""

from __future__ import annotations

import gzip
import os
import re
from pathlib import Path

import pytest

from hpc_kit.run_files import FIRST_FAILURE
from hpc_kit.runs.why import explain
from hpc_kit.runs.why.report import mask_secrets, verdict_json, verdict_rows
from hpc_kit.runs.why.verdicts import Verdict

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
    assert verdict.also == ["ranks 0, 2 failed because of it (lost connection)"]


def test_all_nodes_that_cannot_start_tasks_and_all_their_victims_are_named(tmp_path: Path) -> None:
    launch = "srun: error: Task launch for StepId=8.0 failed on node {}: Invalid job credential\n"
    killed = "srun: error: n1: tasks 0-1: Killed\nsrun: error: n2: tasks 2-3: Killed\n"
    verdict = why(tmp_path, slurm__8_log=launch.format("n4") + launch.format("n3") + killed)
    assert verdict.cause == "Slurm could not start the tasks on n[3-4]: Invalid job credential"
    assert "--exclude=n[3-4]" in verdict.fix
    assert verdict.also == ["ranks 0-3 failed because of it"]


def test_ranks_that_fail_with_one_error_are_all_named(tmp_path: Path) -> None:
    for rank in range(8):
        error = f"ValueError: shard {rank} is empty" if rank % 2 else LOST
        tmp_path.joinpath(f"rank-{rank}.log").write_text(STEPS + TRACEBACK.format(error=error))
    verdict = explain([tmp_path])
    assert verdict.cause.startswith("each of ranks 1, 3, 5, 7 failed with ValueError: shard 1 is empty")
    assert (verdict.rank, verdict.ranks, verdict.confidence) == (1, [1, 3, 5, 7], "certain")
    assert verdict.also == ["ranks 0, 2, 4, 6 failed because of it (lost connection)"]


@pytest.mark.parametrize(
    ("end", "cause", "ranks"),
    [
        ("Segmentation fault", "each of ranks 4, 5, 7 on n2 crashed", [4, 5, 7]),
        # The first exit ends the remaining tasks.
        ("Exited with exit code 1", "unknown: rank 2 on n1 ended with exit code 1", [2]),
    ],
)
def test_only_the_first_of_equal_exit_codes_is_the_cause(
    tmp_path: Path, end: str, cause: str, ranks: list[int]
) -> None:
    first = "2" if "code" in end else "4,5"
    log = f"srun: error: {'n1' if first == '2' else 'n2'}: task{'s' * (first != '2')} {first}: {end}\n"
    log += f"srun: error: n2: task 7: {end}\nsrun: error: n1: tasks 0-1: Terminated\n"
    verdict = why(tmp_path, slurm_log=STEPS + log)
    assert verdict.cause.startswith(cause)
    assert verdict.ranks == ranks


def test_an_address_has_no_domain(tmp_path: Path) -> None:
    log = "srun: error: 10.0.0.2: tasks 2-3: Segmentation fault\nsrun: error: 10.0.0.1: tasks 0-1: Terminated\n"
    assert why(tmp_path, slurm_log=STEPS + log).cause.startswith("each of ranks 2, 3 on 10.0.0.2 crashed")


def test_a_command_that_a_rank_started_is_a_cause_if_nothing_else_is_found(tmp_path: Path) -> None:
    failed = TRACEBACK.format(
        error="subprocess.CalledProcessError: Command 'tar xf a' returned non-zero exit status 2."
    )
    end = "srun: error: n2: task 1: Exited with exit code 1\n"
    verdict = why(tmp_path, rank__0_log=STEPS + LOST, rank__1_log=STEPS + failed, slurm_log=end)
    assert (verdict.class_, verdict.rank) == ("failed-command", 1)
    assert "Command 'tar xf a' returned non-zero exit status 2" in verdict.cause


def test_one_exception_in_different_lines_is_not_one_error(tmp_path: Path) -> None:
    other = TRACEBACK.replace("line 9", "line 12")
    logs = {f"rank__{rank}_log": STEPS + LOST for rank in (0, 3)}
    logs |= {
        f"rank__{rank}_log": STEPS + text.format(error="AssertionError") for rank, text in ((1, TRACEBACK), (2, other))
    }
    assert why(tmp_path, **logs).ranks == [1]


def test_several_late_ranks_are_all_named(tmp_path: Path) -> None:
    log = STEPS + "RuntimeError: Ranks 2, 3 failed to pass monitoredBarrier in 60000 ms\n"
    verdict = why(tmp_path, slurm_log=log)
    assert verdict.cause.startswith("each of ranks 2, 3 is late or hangs")
    assert (verdict.rank, verdict.ranks) == (2, [2, 3])


def test_a_rank_that_is_late_is_the_cause_of_the_time_outs(tmp_path: Path) -> None:
    late = TRACEBACK.format(
        error="RuntimeError: [unbound_buffer.cc:81] Timed out waiting 8000ms for recv operation to complete"
    )
    verdict = why(
        tmp_path, rank__0_log=STEPS + late, rank__1_log=STEPS + "reading the index\n", rank__2_log=STEPS + late
    )
    assert (verdict.class_, verdict.rank) == ("late-rank", 1)
    assert "reading the index" in verdict.evidence[0].text


def test_a_log_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    run = tmp_path / "12"
    run.mkdir()
    (tmp_path / "latest").symlink_to("12")
    (run / "rank-1.log").write_text(STEPS + TRACEBACK.format(error="KeyError: 'labels'"))
    verdict = explain([tmp_path / name / "rank-1.log" for name in ("12", "latest")])
    assert [line.file for line in verdict.evidence] == [str(run / "rank-1.log")]


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


def test_a_program_that_printed_caught_exceptions_and_succeeded_has_not_failed(tmp_path: Path) -> None:
    caught = (
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    1/0\nZeroDivisionError: zero\n'
    )
    sacct = "JobID|State|ExitCode\n7|COMPLETED|0:0\n"
    verdict = why(tmp_path, rank__0_log=3 * caught + "Training finished. Final loss 0.12\n", sacct_txt=sacct)
    assert verdict.cause.startswith("did not fail")


@pytest.mark.parametrize(
    "before", ["Exception in thread Thread-1 (prefetch):", "Exception ignored in: <function A.__del__>"]
)
def test_the_line_before_a_traceback_counts_in_each_file(tmp_path: Path, before: str) -> None:
    """The line has the same shape in all logs."""
    text = f"{before}\n" + TRACEBACK.format(error="ValueError: corrupt record")
    sacct = "JobID|State|ExitCode\n7|COMPLETED|0:0\n"
    verdict = why(tmp_path, rank__0_log=STEPS + text, rank__1_log=STEPS + text, sacct_txt=sacct)
    assert verdict.cause.startswith("did not fail")


def test_if_all_ranks_with_logs_were_counted_none_of_them_is_late(tmp_path: Path) -> None:
    error = "torch.distributed.DistStoreError: Timed out after 16 seconds waiting for clients. {}/3 clients joined."
    waits = "torch.distributed.DistStoreError: wait timeout after 15000ms, keys: /default_pg/0//cpu//0/0"
    srun = "srun: error: n1: tasks 0-1: Exited with exit code 1\n"
    logs = {"rank__1_log": TRACEBACK.format(error=waits), "slurm_log": srun}
    verdict = why(tmp_path, rank__0_log=TRACEBACK.format(error=error.format(2)), **logs)
    assert verdict.class_ == "rendezvous-timeout"
    assert "2 of 3 came" in verdict.cause
    verdict = why(tmp_path, rank__0_log=TRACEBACK.format(error=error.format(1)), **logs)
    assert (verdict.class_, verdict.rank) == ("late-rank", 1)


def test_a_line_of_hpc_kit_is_not_a_line_of_the_program(tmp_path: Path) -> None:
    frames = TRACEBACK.format(
        error='  File "/src/hpc_kit/runtime/mpi/backend.py", line 205, in separated\n    f()\nValueError: no'
    )
    assert "(train.py:9, in main)" in why(tmp_path, rank__0_log=frames).cause


def test_the_last_attempt_counts_and_earlier_ones_are_named(tmp_path: Path) -> None:
    requeue = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO JOB REQUEUE ***\n"
    first, last = TRACEBACK.format(error="KeyError: 'a'"), TRACEBACK.format(error="MemoryError")
    verdict = why(tmp_path, slurm_log=STEPS + first + requeue + STEPS + last)
    assert verdict.class_ == "host-memory"
    assert verdict.earlier == ["attempt 1: the program failed with KeyError: 'a'"]


@pytest.mark.parametrize("content", [b"", b"\x00" * 5000, b"\x7fELF" + bytes(range(256)) * 9, os.urandom(5000)])
def test_empty_and_binary_logs_are_unknown(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "slurm-1.out").write_bytes(content)
    verdict = explain([tmp_path])
    assert verdict.cause.startswith("unknown: ")
    assert ("binary" in verdict.cause) == bool(content)
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
        ("GET https://s3/b?X-Amz-Signature=0a1b2c3d&part=1", "GET https://s3/b?X-Amz-Signature=***&part=1"),
        ("https://host/data?token=tok_98765", "https://host/data?token=***"),
        ("tokens/s 1024 key=value loss=2.31", "tokens/s 1024 key=value loss=2.31"),
        ("KeyError: 'labels'", "KeyError: 'labels'"),
        ("api_key: hunter2abc", "api_key: ***"),
        ("login --password hunter2", "login --password ***"),
        ("missing key: layer1.0.conv1.weight_v2a", "missing key: layer1.0.conv1.weight_v2a"),
        ("vocab token: <|reserved_special_token_10|>", "vocab token: <|reserved_special_token_10|>"),
        ("bad token: a1b2c3d4e5f6a7b8", "bad token: a1b2c3d4e5f6a7b8"),
        ("wrong password: required by 10 hosts", "wrong password: required by 10 hosts"),
        ("--a" * 30_000, "--a" * 30_000),
    ],
)
def test_secrets_are_masked(text: str, masked: str) -> None:
    assert mask_secrets(text) == masked


def test_the_document_has_exactly_its_keys_and_no_escapes(tmp_path: Path) -> None:
    verdict = why(tmp_path, slurm_log="\x1b[31m" + TRACEBACK.format(error="ValueError: \x1b[1mbad\x1b[0m\x07 shard"))
    document = verdict_json(verdict)
    assert list(document) == ["cause", "class", "rank", "host", "evidence", "traceback", "fix", "confidence", "ranks"]
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


def test_a_line_that_other_failures_print_too_is_no_proof(tmp_path: Path) -> None:
    verdict = why(tmp_path, slurm_log=TRACEBACK.format(error="json.decoder.JSONDecodeError: Expecting value"))
    assert (verdict.class_, verdict.confidence) == ("corrupt-file", "likely")


def test_the_last_exception_of_a_rank_ended_it(tmp_path: Path) -> None:
    tried, died = TRACEBACK.format(error="OSError: tried again"), TRACEBACK.format(error="ValueError: the end")
    verdict = why(tmp_path, rank__0_log=STEPS + tried + died, rank__1_log=STEPS + LOST)
    assert "ValueError: the end" in verdict.cause


def test_two_exceptions_of_unknown_ranks_leave_a_doubt(tmp_path: Path) -> None:
    both = TRACEBACK.format(error="KeyError: 'a'") + TRACEBACK.format(error="ValueError: b")
    assert why(tmp_path, slurm_log=both).confidence == "likely"


def test_an_exception_before_a_kill_is_not_the_cause(tmp_path: Path) -> None:
    caught = TRACEBACK.format(error="ValueError: bad sample") + "trying again\nloading\nreading the index\nwarm\n"
    verdict = why(tmp_path, rank__0_log=caught, slurm_log="srun: error: n1: task 0: Killed\n")
    assert (verdict.class_, verdict.rank, verdict.host) == ("killed", 0, "n1")


WATCHDOG = (
    "[rank{rank}]: [PG ID {group} PG GUID {group}({name}) Rank {rank}] Process group watchdog thread terminated with "
    "exception: [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType={operation}, "
    "NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600017 milliseconds before timing out.\n"
)


def test_an_error_that_was_skipped_before_is_no_cause_when_slurm_ends_the_job(tmp_path: Path) -> None:
    skipped = STEPS + TRACEBACK.format(error="ValueError: bad sample")
    end = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2025-01-01T08:00:00 DUE TO TIME LIMIT ***\n"
    assert why(tmp_path, slurm_log=skipped + skipped + "step 18 loss 1.00\n" + end).class_ == "time-limit"


@pytest.mark.parametrize(
    ("message", "confidence"), [("training", "likely"), ("it failed, retrying with 2 workers", "certain")]
)
def test_the_last_step_of_a_job_counts(tmp_path: Path, message: str, confidence: str) -> None:
    first = "srun: error: n1: task 0: Out Of Memory\n"
    second = TRACEBACK.format(error="FileNotFoundError: [Errno 2] No such file or directory: '/data/x.bin'")
    verdict = why(tmp_path, slurm_log=f"{first}{message}\n{second}srun: error: n1: task 0: Exited with exit code 1\n")
    assert (verdict.class_, verdict.confidence) == ("missing-file", confidence)
    assert "out of host memory" in verdict.earlier[0]


def test_a_rendezvous_of_more_ranks_than_the_script_starts(tmp_path: Path) -> None:
    script = "#!/bin/bash\n#SBATCH --ntasks=4\nexport WORLD_SIZE=8\nsrun python train.py\n"
    error = TRACEBACK.format(
        error="DistStoreError: Timed out after 601 seconds waiting for clients. 4/8 clients joined."
    )
    verdict = why(tmp_path, job_log=script, rank__0_log=error)
    assert (verdict.class_, verdict.evidence[0].text) == ("world-size", "export WORLD_SIZE=8")


def test_calls_of_different_process_groups_are_not_compared(tmp_path: Path) -> None:
    data = [WATCHDOG.format(rank=rank, group=0, name="default_pg", operation="ALLREDUCE") for rank in (0, 1)]
    tensor = [WATCHDOG.format(rank=rank, group=1, name="tensor", operation="ALLGATHER") for rank in (2, 3)]
    assert why(tmp_path, slurm_log="".join(data + tensor)).class_ == "collective-timeout"
    one = [WATCHDOG.format(rank=rank, group=0, name="default_pg", operation="ALLGATHER") for rank in (2, 3)]
    assert why(tmp_path, slurm_log="".join(data + one)).class_ == "collective-order"


def test_of_two_ranks_that_disagree_neither_is_to_blame(tmp_path: Path) -> None:
    calls = [
        WATCHDOG.format(rank=rank, group=0, name="default_pg", operation=operation)
        for rank, operation in enumerate(["ALLREDUCE", "ALLGATHER"])
    ]
    verdict = why(tmp_path, slurm_log="".join(calls))
    assert (verdict.class_, verdict.rank) == ("collective-order", None)


@pytest.mark.parametrize(
    ("files", "advice"),
    [
        (
            {
                "slurm_log": "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\n",
                "sacct_txt": "JobID|State|ReqMem|MaxRSS\n7|OUT_OF_MEMORY|1G|\n7.0|OUT_OF_MEMORY|1G|880M\n",
            },
            "--mem=2G (peak 880 MiB, limit 1 GiB)",
        ),
        (
            {"sacct_txt": "JobID|State|ReqMem|MaxRSS\n7|OUT_OF_MEMORY|4Gc|\n7.0|OUT_OF_MEMORY|4Gc|15G\n"},
            "--mem-per-cpu=6G (peak 15 GiB, limit 4 GiB)",
        ),
        (
            {"slurm_log": "slurmstepd: error: Step 7.0 exceeded memory limit (5242880 > 4194304), being killed\n"},
            "--mem=8G (peak 5 GiB, limit 4 GiB)",
        ),
    ],
)
def test_the_advice_about_memory_contains_figures(tmp_path: Path, files: dict[str, str], advice: str) -> None:
    verdict = why(tmp_path, **files)
    assert verdict.class_ == "host-memory"
    assert advice in verdict.fix


@pytest.mark.parametrize(
    ("line", "class_"),
    [
        ("slurm_script: Zeile 7: python3: Kommando nicht gefunden.", "command-not-found"),
        ("slurm_script : ligne 9 : torchrun : commande introuvable", "command-not-found"),
        ("cp: /data/x: Auf dem Gerät ist kein Speicherplatz mehr verfügbar", "disk-full"),
        ("slurm_script: 第 12 行: DATA: 未绑定的变量", "unbound-variable"),
        ("slurm_script: línea 3: error sintáctico cerca del elemento inesperado `fi'", "shell-syntax"),
    ],
)
def test_messages_in_other_languages(tmp_path: Path, line: str, class_: str) -> None:
    assert why(tmp_path, slurm_log=f"/var/spool/slurmd/job7/{line}\n").class_ == class_


def test_the_elements_of_an_array_that_ended_alike_are_counted(tmp_path: Path) -> None:
    rows = "JobID|State|ExitCode\n9_0|COMPLETED|0:0\n9_1|TIMEOUT|0:0\n9_2|TIMEOUT|0:0\n9_3|COMPLETED|0:0\n"
    verdict = why(tmp_path, sacct_txt=rows)
    assert verdict.class_ == "time-limit"
    assert "2 of 4 elements of the array ended so: 9_1, 9_2" in verdict.cause


@pytest.mark.parametrize(
    "error",
    [
        "KeyError: 'head'",
        "RuntimeError: Failed to import transformers.a because of the following error (look up):\nno x",
    ],
)
def test_one_traceback_of_each_rank_without_labels_is_an_error_of_every_rank(tmp_path: Path, error: str) -> None:
    failed = TRACEBACK.format(error=error)
    ends = "srun: error: c1: tasks 0-1: Exited with exit code 1\n"
    assert "every rank" in why(tmp_path, slurm_log=STEPS + failed + failed + ends).cause
    assert "every rank" not in why(tmp_path, slurm_log=STEPS + failed + ends).cause


def test_sizes_of_which_no_two_agree_prove_no_mismatch(tmp_path: Path) -> None:
    call = WATCHDOG.replace("NumelIn=4, NumelOut=4", "NumelIn={size}, NumelOut={size}")
    lines = [
        call.format(rank=rank, group=0, name="default_pg", operation="ALLREDUCE", size=size)
        for rank, size in enumerate([10, 20, 30])
    ]
    assert why(tmp_path, slurm_log="".join(lines)).confidence == "likely"
    lines[1] = lines[1].replace("=20,", "=10,")
    assert why(tmp_path, slurm_log="".join(lines)).confidence == "certain"


@pytest.mark.parametrize(("after", "confidence"), [("port active", "likely"), ("client reregistration", "certain")])
def test_a_link_that_came_back_is_no_certain_cause(tmp_path: Path, after: str, confidence: str) -> None:
    event = "c1:81:92 [0] NCCL WARN NET/IB : mlx5_0:1 Got async event : "
    lines = event + "port error\n" + event + after + "\n"
    call = WATCHDOG.format(rank=0, group=0, name="default_pg", operation="ALLREDUCE")
    assert why(tmp_path, slurm_log=STEPS + lines + "step 9 loss 2.1\n" + call).confidence == confidence


def test_of_the_jobs_of_a_user_the_one_that_more_tables_name_is_meant(tmp_path: Path) -> None:
    table = "JOBID PARTITION NAME USER ST TIME NODES NODELIST(REASON)\n71 gpu a u PD 0:00 2 (Priority)\n"
    record = "JobId=71 JobName=a\n   JobState=PENDING Reason=Priority Dependency=(null)\n"
    verdict = why(tmp_path, squeue_txt=table + "70 gpu b u R 1:00 1 c1\n", scontrol_txt=record)
    assert "job 71 waits" in verdict.cause


def test_of_the_jobs_of_a_user_the_one_after_which_a_log_is_named_is_meant(tmp_path: Path) -> None:
    table = (
        "JOBID PARTITION NAME USER ST TIME NODES NODELIST(REASON)\n7001 gpu a u R 9:00 1 c1\n7000 gpu b u PD 0:00 1\n"
    )
    assert "job 7001 has not ended" in why(tmp_path, squeue_txt=table, slurm__7001_log=STEPS).cause


def test_an_error_of_hpc_kit_is_the_cause_and_its_remedy_is_the_fix(tmp_path: Path) -> None:
    error = (
        "hpc-kit: a server needs a worker\n  found  1 rank\n  do     2 ranks or more:\n         ntasks_per_node = 2\n"
    )
    verdict = why(tmp_path, rank__0_log=error, slurm_log="srun: error: n1: task 0: Exited with exit code 2\n")
    assert (verdict.class_, verdict.rank, verdict.confidence) == ("hpc-kit-error", 0, "certain")
    assert "a server needs a worker (1 rank)" in verdict.cause
    assert verdict.fix == "2 ranks or more: ntasks_per_node = 2"


def test_each_fact_of_an_own_error_is_a_clause_of_the_sentence(tmp_path: Path) -> None:
    facts = "  found  the step has 4 tasks\n         torchrun has 1\n"
    verdict = why(tmp_path, rank__0_log=f"hpc-kit: two launchers claim this process\n{facts}  do     choose one\n")
    assert "(the step has 4 tasks; torchrun has 1)" in verdict.cause


@pytest.mark.parametrize("space", ["", "\n"])
def test_the_advice_that_the_runtime_prints_below_a_traceback_is_the_fix(tmp_path: Path, space: str) -> None:
    error = (
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    TCPStore(host, 29909, 2)\n'
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 29909, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n"
    )
    note = "hpc-kit: the program opens a store at port 29909 (MASTER_PORT)\n  do     start it by bash -c\n"
    verdict = why(tmp_path, rank__0_log=error + space + note)
    assert (verdict.class_, verdict.fix) == ("port-in-use", "start it by bash -c")
    assert "MASTER_PORT" in why(tmp_path, rank__0_log=error + "saving\n" * 3 + note).fix


def test_the_remedy_may_be_in_the_log_of_another_rank(tmp_path: Path) -> None:
    short = "hpc-kit: MPI makes 2 worlds: no PMI; rank 1 shows the remedy\n"
    whole = "hpc-kit: MPI makes 2 worlds\n  found  no PMI\n  do     srun --mpi=pmi2\n"
    ends = "srun: error: n1: task 0: Exited with exit code 2\nsrun: error: n1: task 1: Exited with exit code 143\n"
    verdict = why(tmp_path, rank__0_log=short, rank__1_log=whole, slurm_log=ends)
    assert verdict.cause == "every rank stopped with an error of hpc-kit: MPI makes 2 worlds: no PMI"
    assert verdict.fix == "srun --mpi=pmi2"
    assert verdict.also == []


@pytest.mark.parametrize(
    "note",
    [
        "hpc-kit: gloo replaces the backend nccl, because this node has no GPU\n",
        "hpc-kit: warning: rank 0 has one CPU\n  found  1 CPU\n  do     set cpus_per_task\n",
        "hpc-kit: the job is not started again\n  found  attempt 2 ended with exit code 3\n  do     read the logs\n",
    ],
)
def test_a_note_of_hpc_kit_is_no_cause(tmp_path: Path, note: str) -> None:
    end = "srun: error: n1: task 0: Exited with exit code 3\n"
    assert why(tmp_path, rank__0_log=note + STEPS, slurm_log=end).class_ == "unknown"


COMPLETED = "JobID|State|ExitCode|NodeList\n7|COMPLETED|0:0|n1\n"


@pytest.mark.parametrize(
    ("log", "class_"),
    [
        ("slurm_script: line 9: accelerate: command not found\ndone\n", "command-not-found"),
        ("ERROR main: run failed: CUDA out of memory. Tried to allocate 2.00 GiB\nwriting the summary\n", "gpu-memory"),
        ("ERROR main: run failed\n" + TRACEBACK.format(error="KeyError: 'x'") + "bye\n", "python-exception"),
    ],
)
def test_a_completed_job_that_did_nothing_after_an_error_is_likely_failed(
    tmp_path: Path, log: str, class_: str
) -> None:
    verdict = why(tmp_path, slurm_log=log, sacct_txt=COMPLETED)
    assert (verdict.class_, verdict.confidence) == (class_, "likely")


@pytest.mark.parametrize(
    "log",
    [
        "slurm_script: line 9: nvcc: command not found\n" + STEPS,
        STEPS + "ERROR wandb: the upload failed: No space left on device\nTraining finished after 9 steps\n",
    ],
)
def test_a_completed_job_that_went_on_after_an_error_did_not_fail(tmp_path: Path, log: str) -> None:
    assert why(tmp_path, slurm_log=log, sacct_txt=COMPLETED).class_ == "no-failure"


def test_a_warning_about_a_failed_step_is_the_likely_cause_of_a_missing_value(tmp_path: Path) -> None:
    warning = "WARNING data: no index, continuing without: Unable to allocate 122. GiB for an array with shape (9, 4)\n"
    error = TRACEBACK.format(error="TypeError: object of type 'NoneType' has no len()")
    verdict = why(tmp_path, slurm_log=warning + error + "srun: error: n1: task 0: Exited with exit code 1\n")
    assert (verdict.class_, verdict.confidence) == ("host-memory", "likely")


def test_the_kernel_names_a_process_and_torchrun_its_rank(tmp_path: Path) -> None:
    entry = (
        "[{index}]:\n  time      : 2025-03-12_09:31:07\n  host      : n3\n  rank      : {rank} (local_rank: {local})\n"
    )
    entry += "  exitcode  : -9 (pid: {pid})\n"
    report = "Failures:\n" + entry.format(index=1, rank=6, local=2, pid=118302)
    report += "Root Cause (first observed failure):\n" + entry.format(index=0, rank=5, local=1, pid=118301)
    kernel = "[1.0] oom-kill:constraint=CONSTRAINT_NONE,task_memcg=/slurm/job_9/step_0/task_0,task=python,pid=118302\n"
    verdict = why(tmp_path, dmesg__n3_log=kernel, slurm_log=report)
    assert (verdict.class_, verdict.rank, verdict.host) == ("host-memory", 6, "n3")


def test_what_victims_print_after_a_node_failure_is_no_new_attempt(tmp_path: Path) -> None:
    failure = (
        "srun: error: Node failure on n4\n"
        "slurmstepd: error: *** JOB 9 ON n1 CANCELLED AT 2025-03-13T05:12:50 DUE TO NODE FAILURE ***\n"
    )
    victim = "3: ncclRemoteError: A call failed\n3: Last error:\n3: socketProgressOpt: Connection reset by peer\n"
    verdict = why(tmp_path, slurm_log=STEPS + failure + victim)
    assert (verdict.class_, verdict.host, verdict.earlier) == ("node-failure", "n4", [])


def test_the_frame_is_that_of_the_exception_which_shows_the_cause(tmp_path: Path) -> None:
    cause = TRACEBACK.format(error="OSError: [Errno 122] Disk quota exceeded")
    later = cause.replace("line 9, in main", "line 30, in save").replace(
        "OSError: [Errno 122] Disk", "RuntimeError: disk"
    )
    chain = "\nDuring handling of the above exception, another exception occurred:\n\n"
    verdict = why(tmp_path, slurm_log=cause + chain + later.replace("disk quota exceeded", "unexpected pos"))
    assert verdict.cause.endswith("(train.py:9, in main)")


XID = "NVRM: Xid (PCI:0000:8b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
OOM_KILL = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/slurm/uid_1/job_999/step_0/task_0,task=python,pid=77,uid=1\n"
    "Memory cgroup out of memory: Killed process 77 (python) total-vm:1kB, anon-rss:1kB\n"
)


@pytest.mark.parametrize(
    ("kernel", "class_"),
    [
        ("[Wed Mar 12 09:30:55 2025] " + XID, "python-exception"),
        ("Mar 12 09:30:55 n1 kernel: " + XID, "python-exception"),
        ("[Sun Mar 16 10:00:30 2025] " + XID, "gpu-xid"),
        ("".join(f"[55.1] {line}" for line in OOM_KILL.splitlines(keepends=True)), "python-exception"),
        ("".join(f"[55.1] {line.replace('999', '118')}" for line in OOM_KILL.splitlines(keepends=True)), "host-memory"),
    ],
)
def test_of_the_kernels_log_only_what_is_about_the_job_counts(tmp_path: Path, kernel: str, class_: str) -> None:
    failed = "2025-03-16 10:00:00 start\n" + TRACEBACK.format(error="KeyError: 'x'")
    end = "srun: error: n1: task 0: Exited with exit code 1\nsrun: Terminating StepId=118.0\n"
    assert why(tmp_path, dmesg__n1_log=kernel, slurm_log=failed + end).class_ == class_


@pytest.mark.parametrize(("node", "rank"), [(0, 1), (1, 5)])
def test_deepspeed_numbers_the_processes_of_its_node(tmp_path: Path, node: int, rank: int) -> None:
    log = (
        f"[launch.py:152:main] nnodes=2, num_local_procs=4, node_rank={node}\n"
        "[launch.py:325:sigkill_handler] ['python', '-u', 't.py', '--local_rank=1'] exits with return code = -11\n"
    )
    verdict = why(tmp_path, slurm_log=STEPS + log)
    assert (verdict.class_, verdict.rank) == ("segfault", rank)


@pytest.mark.parametrize(
    "line", ["Waiting for the job to complete\n", "srun: error: Timed out waiting for job step to complete\n"]
)
def test_a_sentence_about_an_end_that_has_not_come_is_no_success(tmp_path: Path, line: str) -> None:
    assert why(tmp_path, slurm_log=STEPS + line).class_ != "no-failure"


def test_a_direct_error_is_only_likely_if_another_rank_is_reported_before_it(tmp_path: Path) -> None:
    first = TRACEBACK.format(error="KeyError: 'x'")
    direct = TRACEBACK.format(error="FileNotFoundError: [Errno 2] No such file or directory: '/d/x'")
    ends = "srun: error: n1: task {}: Exited with exit code 1\nsrun: error: n1: task {}: Exited with exit code 1\n"
    verdict = why(tmp_path, rank__0_log=first, rank__1_log=direct, slurm_log=ends.format(0, 1))
    assert (verdict.class_, verdict.confidence) == ("missing-file", "likely")
    verdict = why(tmp_path, rank__0_log=first, rank__1_log=direct, slurm_log=ends.format(1, 0))
    assert (verdict.class_, verdict.confidence) == ("missing-file", "certain")


END = "srun: error: n1: task 0: Exited with exit code 1\n"


@pytest.mark.parametrize("label", ["[rank{rank}] n{host} ", "n{host} [rank {rank}]: ", "{rank}@n{host}: "])
def test_a_label_of_rank_and_host_shows_the_place(tmp_path: Path, label: str) -> None:
    steps = [label.format(rank=rank, host=rank // 2) + f"step {step}\n" for step in range(3) for rank in range(4)]
    error = TRACEBACK.format(error="KeyError: 'labels'").splitlines()
    text = "".join(steps) + "".join(label.format(rank=3, host=1) + line + "\n" for line in error)
    verdict = why(tmp_path, train_log=text)
    assert (verdict.class_, verdict.rank, verdict.host) == ("python-exception", 3, "n1")


def test_other_words_with_a_number_after_the_rank_are_no_host(tmp_path: Path) -> None:
    steps = [f"[rank{rank}] step{step} loss 2\n" for step in range(3) for rank in range(4)]
    error = "".join(f"[rank3] {line}\n" for line in TRACEBACK.format(error="KeyError: 'labels'").splitlines())
    verdict = why(tmp_path, train_log="".join(steps) + error)
    assert (verdict.class_, verdict.rank, verdict.host) == ("python-exception", 3, None)


@pytest.mark.parametrize(
    ("file", "class_", "confidence"),
    [
        ("/env/lib/python3.11/site-packages/transformers/trainer.py", "package-version", "likely"),
        ("/home/u/model.py", "python-exception", "certain"),
    ],
)
def test_wrong_arguments_inside_a_library_are_probably_versions(
    tmp_path: Path, file: str, class_: str, confidence: str
) -> None:
    error = f"  File \"{file}\", line 3, in prepare\nTypeError: build() got an unexpected keyword argument 'depth'"
    verdict = why(tmp_path, train_log=STEPS + TRACEBACK.format(error=error) + END)
    assert (verdict.class_, verdict.confidence) == (class_, confidence)


ACTOR = TRACEBACK.format(error="ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.")
WORKER = "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: x\n"
KILLED = "(raylet) 1 Workers (tasks / actors) killed due to memory pressure (OOM)\n"


@pytest.mark.parametrize(
    ("before", "after", "class_"),
    [
        ("", WORKER, "worker-died"),
        ("", "The actor is dead because its node has died. Node Id: 3c7f\n", "node-failure"),
        (KILLED, WORKER, "host-memory"),
        ("(Actor pid=5, ip=10.7.34.1) torch.OutOfMemoryError: CUDA out of memory.\n", WORKER, "gpu-memory"),
    ],
)
def test_the_cause_behind_a_dead_actor_of_ray(tmp_path: Path, before: str, after: str, class_: str) -> None:
    verdict = why(tmp_path, train_log=STEPS + before + ACTOR + after)
    assert verdict.class_ == class_
    assert verdict.confidence == ("certain" if before else "likely")


QUERY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"


@pytest.mark.parametrize(
    ("log", "class_"),
    [
        (QUERY + STEPS + "Training finished\n", "no-failure"),
        (QUERY + STEPS + END, "unknown"),
        (QUERY + STEPS + TRACEBACK.format(error="KeyError: 'x'") + END, "python-exception"),
        (STEPS + QUERY, "slurm-unreachable"),
    ],
)
def test_a_query_of_slurm_that_failed_is_the_cause_only_if_nothing_else_is_found(
    tmp_path: Path, log: str, class_: str
) -> None:
    assert why(tmp_path, train_log=log).class_ == class_


REFUSED = "sbatch: error: Batch job submission failed: Invalid qos specification\n"
NO_SPACE = "ERROR could not save checkpoint /s/a.pt: [Errno 28] No space left on device\n"


def test_a_refusal_before_a_successful_submission_is_not_the_cause(tmp_path: Path) -> None:
    job = STEPS + TRACEBACK.format(error="KeyError: 'labels'") + END
    verdict = why(tmp_path, terminal_txt=REFUSED + "Submitted batch job 912\n", slurm__912_log=job)
    assert verdict.class_ == "python-exception"


@pytest.mark.parametrize(
    ("log", "class_"),
    [(NO_SPACE, "disk-full"), (NO_SPACE + "saved the final model to /scratch/a.pt\n", "no-failure")],
)
def test_a_completed_job_that_lost_its_last_output_is_likely_failed(tmp_path: Path, log: str, class_: str) -> None:
    verdict = why(tmp_path, slurm_log=STEPS + log + "Training finished after 9 steps\n", sacct_txt=COMPLETED)
    assert verdict.class_ == class_


def test_a_job_that_runs_again_after_a_node_failure_and_fails_otherwise(tmp_path: Path) -> None:
    ended = "slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2025-01-01T10:00:00 DUE TO NODE FAILURE, SEE ... ***\n"
    verdict = why(tmp_path, slurm_log=STEPS + ended + STEPS + TRACEBACK.format(error="KeyError: 'x'") + END)
    assert (verdict.class_, len(verdict.earlier)) == ("python-exception", 1)


def test_the_comment_of_an_administrator_explains_a_cancellation(tmp_path: Path) -> None:
    table = "JobId=71 JobName=gan\n   JobState=CANCELLED Reason=None\n   AdminComment=idle GPUs, ticket 9012\n"
    rows = "JobID|State|ExitCode|NodeList\n71|CANCELLED by 0|0:0|n1\n"
    assert "idle GPUs, ticket 9012" in why(tmp_path, job_txt=table, sacct_txt=rows, slurm__71_log=STEPS).cause


def test_the_memory_of_a_step_is_compared_with_that_of_its_job(tmp_path: Path) -> None:
    rows = "JobID|State|ExitCode|NodeList|ReqMem|MaxRSS\n7|FAILED|0:9|n1|100G|\n7.0|FAILED|0:9|n1||99.5G\n"
    verdict = why(tmp_path, slurm_log=STEPS, sacct_txt=rows)
    assert (verdict.class_, verdict.confidence) == ("host-memory", "likely")


TIMED_OUT = (
    "[rank{rank}]:[E120 11:20:13.3 ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught collective operation"
    " timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=9, NumelOut=9, Timeout(ms)=600000) ran for 600004 ms\n"
)


@pytest.mark.parametrize(("last", "class_"), [("epoch 1 step 5", "uneven-inputs"), ("epoch 1 done", "late-rank")])
def test_a_rank_that_finished_its_batches_alone_had_fewer(tmp_path: Path, last: str, class_: str) -> None:
    lines = "[rank1]: epoch 1 done\n" + "".join(f"[rank{rank}]: {last}\n" for rank in (0, 2))
    timed_out = "".join(TIMED_OUT.format(rank=rank) for rank in (0, 2))
    verdict = why(tmp_path, train_log=lines + timed_out)
    assert (verdict.class_, verdict.rank) == (class_, 1)


def test_a_file_system_that_a_late_rank_waited_for_is_named(tmp_path: Path) -> None:
    timed_out = "".join(TIMED_OUT.format(rank=rank) for rank in (0, 2))
    lost = "Mar  5 02:13:20 n2 kernel: Lustre: x-OST0011-osc: Connection to x-OST0011 was lost; waiting\n"
    lost += "Mar  5 02:25:58 n2 kernel: Lustre: x-OST0011-osc: Connection restored to 10.0.0.9\n"
    place = "rank 1 on n2: reading the data\n"
    assert "Connection to x-OST0011 was lost" in why(tmp_path, train_log=place + timed_out, kern_txt=lost).cause


CANCELLED_STEP = """srun: error: n2: task 1: Exited with exit code 7
srun: launch/slurm: _step_signal: Terminating StepId=33.0
slurmstepd: error: *** STEP 33.0 ON n1 CANCELLED AT 2026-11-26T09:04:55 ***
srun: error: n1: task 0: Killed
"""


@pytest.mark.parametrize("log", [CANCELLED_STEP, re.sub(r"slurmstepd.*\n", "", CANCELLED_STEP)])
def test_srun_kills_the_remaining_tasks_after_an_exit_code(tmp_path: Path, log: str) -> None:
    verdict = why(tmp_path, slurm_log=log)
    assert (verdict.class_, verdict.rank, verdict.host) == ("unknown", 1, "n2")


def test_a_task_that_lost_a_killed_rank_may_end_first(tmp_path: Path) -> None:
    verdict = why(tmp_path, slurm_log=CANCELLED_STEP, rank__1_log=STEPS + LOST)
    assert (verdict.class_, verdict.rank) == ("killed", 0)


KEY_ERROR = TRACEBACK.format(error="KeyError: 'labels'")
ANOTHER_CAUSE = "OSError: [Errno 28] No space left on device: '/scratch/a.pt'\n"


@pytest.mark.parametrize(
    ("files", "confidence"),
    [
        ({"rank__1_log": KEY_ERROR}, "certain"),
        ({"rank__1_log": KEY_ERROR, "rank__2_log": KEY_ERROR}, "certain"),
        ({"rank__1_log": TRACEBACK.format(error="RuntimeError: no engine. See the error above.")}, "likely"),
        ({"rank__1_log": KEY_ERROR, "rank__2_log": TRACEBACK.format(error="ZeroDivisionError")}, "likely"),
        ({"rank__1_log": KEY_ERROR, "slurm_log": "srun: error: n2: task 1: Exited with exit code 1\n"}, "certain"),
        ({"rank__1_log": KEY_ERROR, "slurm_log": "srun: error: n1: task 0: Exited with exit code 1\n"}, "likely"),
        ({"rank__1_log": KEY_ERROR, "slurm_log": "srun: error: n2: task 1: Killed\n"}, "likely"),
        ({"rank__1_log": KEY_ERROR, "sacct_txt": "JobID|State|ExitCode\n7|FAILED|1:0\n"}, "certain"),
        ({"rank__1_log": KEY_ERROR, "sacct_txt": "JobID|State|ExitCode\n7|TIMEOUT|0:0\n"}, "likely"),
        ({"rank__1_log": ANOTHER_CAUSE + "cleaning up\n" * 70 + TRACEBACK.format(error="MemoryError")}, "likely"),
        ({"rank__1_log": ANOTHER_CAUSE + STEPS * 2 + TRACEBACK.format(error="MemoryError")}, "certain"),
    ],
)
def test_evidence_against_an_answer_leaves_a_doubt(tmp_path: Path, files: dict[str, str], confidence: str) -> None:
    verdict = why(tmp_path, **files)
    assert (verdict.rank, verdict.confidence) == (1, confidence), verdict.cause


def test_an_error_in_a_file_that_may_be_of_an_earlier_attempt_leaves_a_doubt(tmp_path: Path) -> None:
    requeue = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO JOB REQUEUE ***\n"
    verdict = why(tmp_path, slurm_log=STEPS + requeue + STEPS + "Segmentation fault\n", rank__1_log=KEY_ERROR)
    assert (verdict.rank, verdict.confidence) == (1, "likely")


@pytest.mark.parametrize("nodes", ["gpu[001-01+", "n[1-,3]", "None assigned"])
def test_a_node_list_that_a_table_cut_names_no_host(tmp_path: Path, nodes: str) -> None:
    rows = f"JobID|State|ExitCode|NodeList\n7|TIMEOUT|0:0|{nodes}\n"
    verdict = why(tmp_path, sacct_txt=rows)
    assert (verdict.class_, verdict.host) == ("time-limit", None)


def test_a_damaged_report_of_srun_is_no_report(tmp_path: Path) -> None:
    assert why(tmp_path, slurm_log="srun: error: n1: tasks 0-3-: Exited with exit code 1\n").class_ == "unknown"


@pytest.mark.parametrize(
    "rows", ["7|COMPLETED|0:0\n7.0|CANCELLED by 501|0:15\n", "7   train  gpu  4  COMPLETED   0:0\n"]
)
def test_a_table_without_a_header_and_a_helper_that_the_script_ended(tmp_path: Path, rows: str) -> None:
    helper = "srun: error: n1: task 0: Terminated\n"
    assert why(tmp_path, slurm_log=STEPS + "Training finished\n" + helper, sacct_txt=rows).class_ == "no-failure"


def test_the_last_attempt_counts_even_if_no_error_is_in_it(tmp_path: Path) -> None:
    requeue = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO JOB REQUEUE ***\n"
    verdict = why(tmp_path, slurm_log=STEPS + KEY_ERROR + requeue + STEPS + "Training finished\n")
    assert verdict.class_ == "no-failure"


@pytest.mark.parametrize(
    ("nodes", "line", "host"),
    [(1, "Host: n07\n", "n07"), (2, "Host: n07\n", None), (1, "Host: n07\nHost: n08\n", None)],
)
def test_the_only_host_that_a_script_names(tmp_path: Path, nodes: int, line: str, host: str | None) -> None:
    script = {"job.sbatch": f"#!/bin/bash\n#SBATCH --nodes={nodes}\n"}
    assert why(tmp_path, slurm_log=line + STEPS + KEY_ERROR, **script).host == host


def test_the_script_has_fewer_nodes_than_torchrun_waits_for(tmp_path: Path) -> None:
    log = "I0101 1 launcher/api.py:1]   min_nodes                : 4\n"
    log += TRACEBACK.format(error="torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError")
    verdict = why(tmp_path, slurm_log=log, **{"job.sbatch": "#!/bin/bash\n#SBATCH --nodes=3\nsrun torchrun a.py\n"})
    assert "torchrun waits for 4 nodes, and the job has 3 nodes" in verdict.cause


def test_a_restart_that_the_script_announces_begins_another_attempt(tmp_path: Path) -> None:
    ended = "slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2025-01-01T10:00:00 DUE TO PREEMPTION ***\n"
    verdict = why(tmp_path, slurm_log=STEPS + ended + "== restart count: 1 on n2 ==\nresuming\n" + KEY_ERROR)
    assert verdict.class_ == "python-exception"


def test_an_error_of_a_command_after_failed_tasks_leaves_a_doubt(tmp_path: Path) -> None:
    failed = "srun: error: n1: tasks 0-3: Exited with exit code 2\n"
    assert why(tmp_path, slurm_log=failed + "evaluating\n" + KEY_ERROR).confidence == "likely"


def test_a_success_after_a_kill_leaves_a_doubt(tmp_path: Path) -> None:
    killed = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.extern. Some tasks have been OOM Killed.\n"
    assert why(tmp_path, slurm_log=STEPS + killed + "Training complete\n").confidence == "likely"


@pytest.mark.parametrize("before", ["Exception in thread Thread-1 (fill):\n", "ERROR could not build the schedule\n"])
def test_an_error_that_the_program_survived_leaves_a_doubt_about_the_next_one(tmp_path: Path, before: str) -> None:
    verdict = why(tmp_path, slurm_log=STEPS + before + TRACEBACK.format(error="ValueError: row 9") + "\n" + KEY_ERROR)
    assert verdict.confidence == "likely"


def test_the_summary_of_seff_gives_state_and_memory(tmp_path: Path) -> None:
    summary = "Job ID: 71\nCluster: c\nState: {state}\nMemory Utilized: 3.98 GB\nMemory Efficiency: 99.50% of 4.00 GB\n"
    killed = STEPS + "/var/spool/slurmd/job71/slurm_script: line 3: 4411 Killed python train.py\n"
    verdict = why(tmp_path, slurm_log=killed, seff_txt=summary.format(state="FAILED (exit code 137)"))
    assert verdict.class_ == "host-memory"
    assert "3.98G of 4.00G" in verdict.cause
    verdict = why(tmp_path, slurm_log=STEPS, seff_txt=summary.format(state="COMPLETED (exit code 0)"))
    assert verdict.class_ == "no-failure"


def test_names_of_programs_and_roles_of_torchrun_are_no_hosts(tmp_path: Path) -> None:
    failed = TRACEBACK.format(error="KeyError: 'labels'")
    verdict = why(tmp_path, fit__0_log=STEPS + LOST, fit__1_log=STEPS + failed)
    assert (verdict.rank, verdict.host) == (1, None)
    lines = [f"[trainer{rank}]:[rank{rank}]: step {step}" for step in range(3) for rank in (0, 1)]
    lines += [f"[trainer1]:[rank1]: {line}" for line in failed.splitlines()]
    (tmp_path / "roles").mkdir()
    verdict = why(tmp_path / "roles", slurm_log="\n".join(lines))
    assert (verdict.rank, verdict.host) == (1, None)


@pytest.mark.parametrize(
    "statement",
    [
        "host n07",
        "[job] OFFLINE=1 node=n07",
        "SLURMD_NODENAME=n07",
        "Job 812 on n07, started at 12:00",
        "wrapper: restart 0, node n07, batch 4",
        "Job started on n07",
    ],
)
def test_a_script_states_the_host_of_a_job_of_one_node(tmp_path: Path, statement: str) -> None:
    failed = STEPS + TRACEBACK.format(error="KeyError: 'labels'")
    assert why(tmp_path, slurm_log=f"{statement}\n{failed}").host == "n07"


@pytest.mark.parametrize("statement", ["connecting to job 812 at db01:5432", "training on imagenet1k", "node=2 task=7"])
def test_other_words_with_digits_are_no_hosts(tmp_path: Path, statement: str) -> None:
    failed = STEPS + TRACEBACK.format(error="KeyError: 'labels'")
    assert why(tmp_path, slurm_log=f"{statement}\n{failed}").host is None


def test_a_missing_file_of_a_later_command_is_the_cause_if_no_task_had_an_error(tmp_path: Path) -> None:
    missing = TRACEBACK.format(error="FileNotFoundError: [Errno 2] No such file or directory: 'out/last.pt'")
    end = "srun: error: n1: task 0: Exited with exit code 2\n--- evaluation\n"
    assert why(tmp_path, slurm_log=STEPS + end + missing).class_ == "missing-file"
    refused = "fit.py: error: argument --lr: invalid float value: 'fast'\n"
    assert why(tmp_path, slurm_log=STEPS + refused + end + missing).class_ == "arguments"


def test_a_kill_in_the_extern_step_does_not_prove_a_kill_of_the_program(tmp_path: Path) -> None:
    kill = "slurmstepd: error: Detected 1 oom_kill event in StepId=9.{}. Some of the step tasks have been OOM Killed.\n"
    assert why(tmp_path, slurm_log=STEPS + kill.format("0")).confidence == "certain"
    assert why(tmp_path, slurm_log=STEPS + kill.format("extern")).confidence == "likely"


def test_a_list_index_is_an_argument_only_in_a_line_that_reads_arguments(tmp_path: Path) -> None:
    error = TRACEBACK.replace("run()", "{source}").format(source="{}", error="IndexError: list index out of range")
    assert why(tmp_path, slurm_log=error.format("name = sys.argv[1]")).class_ == "arguments"
    assert why(tmp_path, slurm_log=error.format("name = names[1]")).class_ != "arguments"


def test_advice_to_try_again_is_no_retry_of_the_program(tmp_path: Path) -> None:
    error = "huggingface_hub.errors.LocalEntryNotFoundError: Please check your connection and try again.\n"
    assert why(tmp_path, rank__0_log=STEPS + error).class_ == "hub-access"


def test_memory_that_ucx_cannot_register_is_no_error_of_a_file_system(tmp_path: Path) -> None:
    error = "[1.5] [n1:7:0] rcache.c:534 UCX WARN failed to register region 0x56 [0x7f0..0x7f5]: Input/output error\n"
    verdict = why(tmp_path, rank__0_log=STEPS + error + error.replace("WARN", "ERROR"))
    assert (verdict.class_, verdict.confidence) == ("nccl-infiniband", "likely")


def test_an_error_that_explains_the_exception_at_the_end_is_proved(tmp_path: Path) -> None:
    unknown = 'Lmod has detected the following error: The following module(s) are unknown: "cuda/12.9"\n\n'
    verdict = why(tmp_path, slurm_log=unknown + TRACEBACK.format(error="ModuleNotFoundError: No module named 'torch'"))
    assert (verdict.class_, verdict.confidence) == ("missing-module", "certain")
    (tmp_path / "alone").mkdir()
    assert why(tmp_path / "alone", slurm_log=unknown + STEPS).confidence == "likely"


def test_an_exception_after_which_the_program_goes_on_is_no_cause(tmp_path: Path) -> None:
    survived = TRACEBACK.format(error="ModuleNotFoundError: No module named 'prometheus_client'") + "metrics disabled\n"
    done = "0: epoch 0 finished after 30 batches\n"
    steps = "".join(f"{rank}: step {step}\n" for step in range(9) for rank in (0, 1, 2))
    lost = "".join(f"{rank}: {line}\n" for rank in (1, 2) for line in LOST.splitlines())
    verdict = why(tmp_path, slurm_log=survived + steps + done + lost)
    assert (verdict.class_, verdict.rank) == ("uneven-inputs", 0)


@pytest.mark.parametrize(
    ("options", "class_"),
    # The status of a pipe is that of tee.
    [("", "python-exception"), ("set -e\n", "python-exception"), ("set -eo pipefail\n", "no-failure")],
)
def test_a_script_may_print_success_whatever_happened(tmp_path: Path, options: str, class_: str) -> None:
    script = f"#!/bin/bash\n{options}python train.py | tee run.log\necho training finished with code $?\n"
    log = STEPS + KEY_ERROR + "training finished with code 0\n"
    assert why(tmp_path, slurm_log=log, sacct_txt=COMPLETED, **{"job.sh": script}).class_ == class_


def test_a_success_that_may_follow_a_hidden_failure_is_likely(tmp_path: Path) -> None:
    finished = "training finished\n"
    assert why(tmp_path, slurm_log=STEPS + KEY_ERROR + finished, sacct_txt=COMPLETED).confidence == "likely"
    logged = "ERROR could not log\n" + KEY_ERROR
    assert why(tmp_path, slurm_log=STEPS + logged + finished, sacct_txt=COMPLETED).confidence == "certain"
    wrapped = why(tmp_path, slurm_log=finished, train_log=STEPS + logged, sacct_txt=COMPLETED)
    assert wrapped.confidence == "likely"


@pytest.mark.parametrize(("after", "class_"), [("", "python-exception"), ("step 9 loss 2.00\n", "running")])
def test_an_exception_in_a_job_that_runs_may_have_been_handled(tmp_path: Path, after: str, class_: str) -> None:
    verdict = why(tmp_path, slurm_log=STEPS + KEY_ERROR + after, squeue_txt="JOBID|ST|TIME\n7|R|1:00\n")
    assert (verdict.class_, verdict.confidence) == (class_, "certain" if class_ == "running" else "likely")


def test_the_failure_of_the_job_that_a_waiting_job_depends_on(tmp_path: Path) -> None:
    rows = "JobID|State|ExitCode|Reason\n9101|FAILED|2:0|\n9102|PENDING|0:0|DependencyNeverSatisfied\n"
    missing = "python3: can't open file '/home/u/shard.py': [Errno 2] No such file or directory\n"
    verdict = why(tmp_path, shard__9101_log=missing, sacct_txt=rows)
    assert verdict.class_ == "dependency"
    assert "the job before it: the program did not find a file: /home/u/shard.py" in verdict.cause


def test_the_question_is_about_the_job_that_waits_and_not_about_one_that_runs(tmp_path: Path) -> None:
    queue = "JOBID|ST|NODELIST(REASON)\n9102|PD|(QOSMaxGRESPerUser)\n9101|R|n1\n"
    record = "JobId=9102 JobName=x\n   JobState=PENDING Reason=QOSMaxGRESPerUser\n"
    verdict = why(tmp_path, slurm__9101_log=STEPS, squeue_txt=queue, scontrol_txt=record)
    assert verdict.class_ == "limit-reached"


def test_a_queue_of_other_jobs_does_not_give_the_state(tmp_path: Path) -> None:
    (tmp_path / "slurm-9101.out").write_text(STEPS + KEY_ERROR)
    verdict = why(tmp_path, squeue_txt="JOBID|ST|NODELIST(REASON)\n9102|R|n1\n")
    assert "has not ended" not in verdict.cause


def test_a_node_that_failed_explains_the_connections_to_it(tmp_path: Path) -> None:
    lost = (
        "n1:3:4 [2] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.7<40> with status=12\n"
    )
    verdict = why(tmp_path, slurm_log=STEPS + lost + "srun: error: Node failure on n2\n")
    assert (verdict.class_, verdict.host) == ("node-failure", "n2")


def test_a_folder_that_slurm_replaces_is_no_cause(tmp_path: Path) -> None:
    denied = "slurmstepd-n1: error: Unable to create TMPDIR [/scratch/tmp.7]: Permission denied\n"
    replaced = "slurmstepd-n1: error: Setting TMPDIR to /tmp\n"
    assert why(tmp_path, slurm_log=denied + replaced + KEY_ERROR).class_ == "python-exception"


def test_the_message_of_a_rank_that_ended_by_itself(tmp_path: Path) -> None:
    refused = "2026-11-26 15:10:24 | CRITICAL | rank1 | resume refused: vocabulary 32000 != 32128\n"
    lost = "".join(f"[rank{rank}]: {line}\n" for rank in (0, 2) for line in LOST.splitlines()[-4:])
    end = "srun: error: n1: task 1: Exited with exit code 3\n"
    verdict = why(tmp_path, slurm_log=refused + lost * 4 + end)
    assert (verdict.class_, verdict.rank) == ("error-message", 1)


def test_an_exception_without_a_rank_is_not_that_of_a_victim(tmp_path: Path) -> None:
    lost = "".join(f"{rank}: {line}\n" for rank in (1, 2) for line in (STEPS + LOST).splitlines())
    ends = "srun: error: n1: task 1: Exited with exit code 1\nsrun: error: n2: task 2: Exited with exit code 1\n"
    assert why(tmp_path, slurm_log=KEY_ERROR + lost + ends).confidence == "likely"


@pytest.mark.parametrize(
    ("rows", "log", "class_"),
    [
        ("7|FAILED|124:0\n", "got signal 15\n", "command-timeout"),
        ("7|FAILED|137:0\n", "[watchdog] no line for 600 s, kill -9 41\nline 6: 41 Killed  python t.py\n", "killed"),
    ],
)
def test_a_program_that_the_script_ended(tmp_path: Path, rows: str, log: str, class_: str) -> None:
    verdict = why(tmp_path, slurm_log=STEPS + log, sacct_txt="JobID|State|ExitCode\n" + rows)
    assert verdict.class_ == class_
    assert "nothing shows by whom" not in verdict.cause


def test_a_truncated_archive_explains_the_files_that_are_missing(tmp_path: Path) -> None:
    missing = TRACEBACK.format(error="FileNotFoundError: [Errno 2] No such file or directory: 'tmp/imgs/3.bin'")
    verdict = why(tmp_path, slurm_log="tar: Unexpected EOF in archive\n" + missing)
    assert verdict.class_ == "corrupt-file"


def test_an_exception_that_held_up_the_late_rank(tmp_path: Path) -> None:
    timed_out = "".join(TIMED_OUT.format(rank=rank) for rank in (1, 2))
    full = TRACEBACK.format(error="OSError: [Errno 28] No space left on device: '/w/a.pt'")
    failed = "".join(f"[rank0]: {line}\n" for line in full.splitlines())
    verdict = why(tmp_path, train_log=failed + "WARNING save failed on rank 0, retrying in 900 s\n" + timed_out)
    assert (verdict.class_, verdict.rank, verdict.confidence) == ("disk-full", 0, "likely")


def test_a_job_that_waits_again_after_slurm_ended_it(tmp_path: Path) -> None:
    log = STEPS + "srun: error: Node failure on n2\nsrun: error: n1: task 0: Killed\n"
    verdict = why(tmp_path, slurm_log=log, scontrol_txt="JobId=7 Name=x\n   JobState=PENDING Reason=Resources\n")
    assert (verdict.class_, verdict.earlier) == ("pending", ["attempt 1: a node of the job failed: n2"])


def test_an_argument_that_is_the_index_of_another_list(tmp_path: Path) -> None:
    error = TRACEBACK.replace("run()", "lr = GRID[int(sys.argv[1])]").format(
        error="IndexError: list index out of range"
    )
    assert why(tmp_path, slurm_log=error).class_ == "python-exception"


@pytest.mark.parametrize(
    ("first", "then", "class_"),
    [
        ("CommandNotFoundError: Your shell has not been properly configured to use 'conda activate'.\n",
         '  File "train.py", line 14\n    print(f"{x}")\n                ^\nSyntaxError: invalid syntax\n', "conda"),
        ("OpenBLAS blas_thread_init: pthread_create failed for thread 20 of 64: Resource temporarily unavailable\n",
         TRACEBACK.format(error="ImportError: numpy.core.multiarray failed to import"), "process-limit"),
    ],
)  # fmt: skip
def test_an_environment_that_is_not_there_explains_the_error_of_python(
    tmp_path: Path, first: str, then: str, class_: str
) -> None:
    assert why(tmp_path, slurm_log=first + then).class_ == class_


def test_a_task_that_ended_long_before_the_remaining_ones(tmp_path: Path) -> None:
    log = "srun: First task exited 60s ago\nsrun: StepId=5.0 tasks 0,2-3: running\nsrun: StepId=5.0 task 1: exited\n"
    log += "slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2025-11-04T11:42:00 ***\n"
    verdict = why(tmp_path, slurm_log=STEPS + log + "srun: error: n1: tasks 0,2-3: Terminated\n")
    assert (verdict.class_, verdict.rank) == ("task-ended-early", 1)


def test_a_folder_to_which_the_script_could_not_change(tmp_path: Path) -> None:
    log = "/var/spool/slurmd/job7/slurm_script: line 4: cd: /scratch/u: No such file or directory\n"
    log += "python: can't open file '/home/u/train.py': [Errno 2] No such file or directory\n"
    assert "/scratch/u" in why(tmp_path, slurm_log=log).cause


def test_a_message_before_progress_of_a_job_that_runs_is_no_failure(tmp_path: Path) -> None:
    log = STEPS + "n1:3:4 [0] NCCL WARN NET/IB : mlx5_0:1 Got async event : port error\n" + STEPS
    assert why(tmp_path, slurm_log=log, squeue_txt="JOBID|ST|TIME\n7|R|1:00\n").class_ == "running"


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("ModuleNotFoundError: No module named 'numpy'", "package numpy is not installed"),
        ("ModuleNotFoundError: No module named 'numpy.nothere'", "has no module numpy.nothere"),
        ("ModuleNotFoundError: No module named 'torch.utils'; 'torch' is not a package", "has no module torch.utils"),
        ("/usr/bin/python3: No module named numpy", "package numpy is not installed"),
        ("/usr/bin/python3: No module named numpy.nothere", "has no module numpy.nothere"),
    ],
)
def test_a_package_without_a_module_is_not_a_missing_package(tmp_path: Path, line: str, cause: str) -> None:
    verdict = why(tmp_path, log=f"{line}\n")
    assert verdict.class_ == "missing-package"
    assert cause in verdict.cause


TIME_LIMIT = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME LIMIT ***\n"


def dump(*frames: str, header: str = "Thread 0x00007f1273c79b80 (most recent call first):") -> str:
    """Return a stack in the form of faulthandler, the innermost frame first."""
    return f"Timeout (0:00:20)!\n{header}\n" + "".join(
        f'  File "/home/u/{file}", line {line} in {name}\n' for file, line, name in (each.split() for each in frames)
    )


WAITS = dump("env/lib/python3.11/site-packages/torch/autograd/graph.py 979 _engine_run_backward", "t.py 9 <module>")
READS = dump("t.py 3 read", "t.py 8 <module>")
PY_SPY_WAITS = """Process 4711: python t.py
Python v3.11.4 (/usr/bin/python3.11)

Thread 4711 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2501)
    <module> (t.py:9)
Thread 4720 (idle): "Thread-1"
    wait (threading.py:320)
    _bootstrap (threading.py:966)
"""
PY_SPY_READS = """Thread 0x7F12 (active+gil): "MainThread"
    readinto (socket.py:706)
    read (t.py:3)
    <module> (t.py:8)
"""


@pytest.mark.parametrize(
    ("waits", "reads"),
    [
        (WAITS, READS),
        # A thread of the rank, and a worker of its DataLoader, which the signal reached, too.
        (
            dump("env/lib/python3.11/threading.py 320 wait") + WAITS + dump("w.py 7 _worker_loop", "t.py 2 <module>"),
            READS.replace("Thread", "Current thread"),
        ),
        (WAITS + WAITS, READS + READS),
        (PY_SPY_WAITS, PY_SPY_READS),
        # All ranks compute, as far as Python shows, but most of them wait for the GPU in one line.
        (dump("t.py 20 step", "t.py 9 <module>"), READS),
    ],
)
def test_the_stacks_of_a_hang_show_the_late_rank_and_where_the_others_wait(
    tmp_path: Path, waits: str, reads: str
) -> None:
    logs = {f"rank__{rank}_log": STEPS + (reads if rank == 2 else waits) for rank in range(4)}
    verdict = why(tmp_path, slurm_log=TIME_LIMIT, **logs)
    assert (verdict.class_, verdict.rank) == ("late-rank", 2)
    assert "ranks 0, 1, 3 in t.py:" in verdict.cause
    assert "t.py:3, in read" in verdict.cause
    assert verdict.traceback is not None
    assert "read" in verdict.traceback


def test_a_timer_proves_a_hang_and_a_signal_may_meet_a_job_that_ends(tmp_path: Path) -> None:
    stacks = {rank: READS if rank == 2 else WAITS for rank in range(4)}
    hanging = {f"rank__{rank}_log": STEPS + stack for rank, stack in stacks.items()}
    assert why(tmp_path, slurm_log=TIME_LIMIT, **hanging).confidence == "certain"
    ended = {name: log.replace("Timeout (0:00:20)!\n", "") for name, log in hanging.items()}
    assert why(tmp_path, slurm_log=TIME_LIMIT, **ended).class_ == "time-limit"


def test_ranks_whose_stacks_change_do_not_hang(tmp_path: Path) -> None:
    logs = {f"rank__{rank}_log": WAITS + READS + (READS if rank == 2 else WAITS) for rank in range(4)}
    assert why(tmp_path, slurm_log=TIME_LIMIT, **logs).class_ == "time-limit"


def test_stacks_with_the_labels_of_srun_in_one_file(tmp_path: Path) -> None:
    stacks = [READS if rank == 2 else WAITS for rank in range(4)]
    lines = [f"{rank}: {line}\n" for rank, stack in enumerate(stacks) for line in stack.splitlines()]
    assert why(tmp_path, slurm_log="".join(lines) + TIME_LIMIT).rank == 2


@pytest.mark.parametrize(
    ("late", "others"),
    [
        (READS, WAITS + STEPS),  # the job went on
        (f"Fatal Python error: Segmentation fault\n\n{READS}", WAITS),
        (WAITS, WAITS),
        (READS, READS),
    ],
)
def test_stacks_that_show_no_late_rank_say_nothing(tmp_path: Path, late: str, others: str) -> None:
    logs = {f"rank__{rank}_log": STEPS + (late if rank == 2 else others) for rank in range(4)}
    assert why(tmp_path, slurm_log=TIME_LIMIT, **logs).class_ != "late-rank"


def test_the_stacks_of_a_part_of_the_ranks_are_no_proof(tmp_path: Path) -> None:
    verdict = why(tmp_path, slurm_log=TIME_LIMIT, rank__0_log=WAITS, rank__1_log=READS, rank__2_log=STEPS)
    assert (verdict.class_, verdict.rank, verdict.confidence) == ("late-rank", 1, "likely")


def py_spy(pid: int, *, reads: bool) -> str:
    """Return the stacks of a process as `py-spy dump --pid` prints them."""
    head, _, _ = PY_SPY_WAITS.partition("Thread 4711")
    return (head + PY_SPY_READS if reads else PY_SPY_WAITS).replace("4711", str(pid))


OTHER_STACKS = """Process 4000: /usr/bin/python /usr/bin/torchrun --nproc_per_node=4 t.py
Python v3.11.4 (/usr/bin/python3.11)

Thread 4000 (idle): "MainThread"
    _invoke_run (torch/distributed/elastic/agent/server/api.py:855)
    main (torch/distributed/run.py:892)
    <module> (torchrun:8)
Process 4001: python gpu_monitor.py
Python v3.11.4 (/usr/bin/python3.11)

Thread 4001 (idle): "MainThread"
    watch (gpu_monitor.py:12)
    <module> (gpu_monitor.py:20)
"""
PROCESSES_OF_RANKS = "".join(
    f"n1:{5000 + rank}:{5000 + rank} [{rank}] NCCL INFO comm 0x1 rank {rank} nRanks 4 nNodes 1 localRanks 4\n"
    for rank in range(4)
)


@pytest.mark.parametrize(
    ("start", "rank", "confidence", "named"),
    [
        ("", None, "likely", "process 5002 is late"),
        ("world_size=4\n", None, "certain", "process 5002 is late"),
        (PROCESSES_OF_RANKS, 2, "certain", "rank 2 on n1 is late"),
    ],
)
def test_stacks_of_processes_without_labels_are_compared(
    tmp_path: Path, start: str, rank: int | None, confidence: str, named: str
) -> None:
    stacks = OTHER_STACKS + "".join(py_spy(5000 + each, reads=each == 2) for each in range(4))
    verdict = why(tmp_path, slurm_log=start + STEPS + stacks + TIME_LIMIT)
    assert (verdict.class_, verdict.rank, verdict.confidence) == ("late-rank", rank, confidence)
    assert named in verdict.cause
    assert "t.py:3, in read" in verdict.cause
    # The program went on.
    assert why(tmp_path, slurm_log=start + STEPS + stacks + STEPS + TIME_LIMIT).class_ == "time-limit"


def test_main_threads_tell_processes_without_labels_apart(tmp_path: Path) -> None:
    stacks = [(READS if rank == 2 else WAITS).replace("7f12", f"7f{rank}2") for rank in range(4)]
    verdict = why(tmp_path, slurm_log=STEPS + "".join(stacks) + TIME_LIMIT)
    assert (verdict.class_, verdict.rank, verdict.confidence) == ("late-rank", None, "likely")
    assert "one process is late" in verdict.cause
    assert "3 processes in t.py:9" in verdict.cause
    # One process that moves from line to line does not hang.
    assert why(tmp_path, slurm_log=STEPS + WAITS + READS + WAITS + TIME_LIMIT).class_ == "time-limit"


@pytest.mark.parametrize(
    ("call", "class_", "words"),
    [
        ("barrier", "collective-order", "1 of 4 processes in barrier"),
        ("all_reduce", "time-limit", "the job stood still"),
    ],
)
def test_processes_that_all_wait_are_no_reason_for_a_longer_limit(
    tmp_path: Path, call: str, class_: str, words: str
) -> None:
    waits = [py_spy(5000 + rank, reads=False) for rank in range(4)]
    waits[0] = waits[0].replace("all_reduce", call)
    verdict = why(tmp_path, slurm_log=STEPS + "".join(waits) + TIME_LIMIT)
    assert (verdict.class_, verdict.confidence) == (class_, "likely")
    assert words in verdict.cause
    assert "ask for more time with" not in verdict.fix


def test_mpich_names_the_rank_of_an_exception_without_a_rank(tmp_path: Path) -> None:
    truncated = TRACEBACK.format(error="mpi4py.MPI.Exception: Message truncated, error stack:\nPMPI_Recv(1): failed")
    ended = "Abort(1) on node 3 (rank 3 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 1) - process 3\n"
    verdict = why(tmp_path, job_log=STEPS + truncated + ended)
    assert (verdict.class_, verdict.rank) == ("mpi-error", 3)


@pytest.mark.parametrize(
    "listing",
    [
        (
            "REASON               USER      TIMESTAMP           NODELIST\n"
            "Not responding       slurm     2026-01-02T03:04:05 n[2,9]\n"
            "bad cable            root      2026-01-01T03:04:05 n1\n"
        ),
        (
            "NodeName=n1 Arch=x86_64\n   State=IDLE ThreadsPerCore=1\n\n"
            "NodeName=n2 Arch=x86_64\n   State=DOWN*+DRAIN ThreadsPerCore=1\n   Reason=Not responding [slurm@x]\n"
        ),
        (
            "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\ngpu*         up   infinite      1  down* n2\n"
            "gpu*         up   infinite      2   idle n[1,3]\n"
        ),
    ],
)
def test_a_listing_names_the_node_of_the_job_that_failed(tmp_path: Path, listing: str) -> None:
    ended = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO NODE FAILURE ***\n"
    rows = "JobID|State|ExitCode|NodeList\n7|NODE_FAIL|1:0|n[1-3]\n"
    verdict = why(tmp_path, job_log=STEPS + ended, sacct_txt=rows, sinfo_txt=listing)
    assert (verdict.class_, verdict.host) == ("node-failure", "n2")


def test_the_reason_that_torch_warns_of_has_the_place_of_the_exception(tmp_path: Path) -> None:
    warning = (
        "cuda/__init__.py:129: UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). "
        "Error 802: system not yet initialized (Triggered internally at ../c10/cuda/CUDAFunctions.cpp:108.)\n"
    )
    failed = "".join(
        f"[rank5]: {line}\n" for line in TRACEBACK.format(error="RuntimeError: No CUDA GPUs are available").splitlines()
    )
    ended = "srun: error: n206: task 5: Exited with exit code 1\nsrun: error: n201: task 0: Exited with exit code 1\n"
    verdict = why(tmp_path, job_log=warning + failed + ended)
    assert (verdict.class_, verdict.rank, verdict.host, verdict.confidence) == ("gpu-xid", 5, "n206", "certain")


def test_if_only_victims_have_a_log_the_cause_is_unknown(tmp_path: Path) -> None:
    script = "#!/bin/bash\n#SBATCH -N 3 --ntasks-per-node=2\nsrun python t.py\n"
    logs = {f"rank__{rank}_log": STEPS + LOST for rank in (0, 1, 3)}
    (tmp_path / "job.sbatch").write_text(script)
    verdict = why(tmp_path, rank__2_log=STEPS, **logs)
    assert verdict.cause.startswith("unknown")
    assert (verdict.rank, "ranks 4, 5" in verdict.cause, "ranks 4, 5" in verdict.fix) == (None, True, True)


def test_a_task_of_an_earlier_step_does_not_give_the_rank(tmp_path: Path) -> None:
    staged = "srun: error: n3: task 2: Exited with exit code 2\n[stage] done\n"
    failed = TRACEBACK.format(error="ModuleNotFoundError: No module named 'flash_attn'")
    ended = "srun: error: n3: task 4: Exited with exit code 1\nsrun: error: n2: task 2: Exited with exit code 1\n"
    verdict = why(tmp_path, job_log=staged + failed + ended)
    assert (verdict.class_, verdict.rank, verdict.host) == ("missing-package", 4, "n3")


def test_the_log_of_a_node_contains_the_ranks_that_print_nothing(tmp_path: Path) -> None:
    logs = {f"task__{node}_log": f"[rank{4 * node}]: step 1, world_size=8\n" + LOST for node in (0, 1)}
    assert why(tmp_path, **logs).class_ == "connection-lost"


def test_a_rank_that_only_mpi_names_has_no_node(tmp_path: Path) -> None:
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node=2\nsrun ./a.out\n")
    rows = "JobID|State|ExitCode|NodeList\n7|FAILED|1:0|n[1-2]\n"
    verdict = why(tmp_path, job_log="MPI_ABORT was invoked on rank 1 in communicator X\n", sacct_txt=rows)
    assert (verdict.rank, verdict.host) == (1, None)


@pytest.mark.parametrize(("launcher", "host"), [("srun python t.py", "n2"), ("srun torchrun t.py", None)])
def test_the_node_of_a_task_follows_from_the_blocks_of_tasks(tmp_path: Path, launcher: str, host: str | None) -> None:
    (tmp_path / "job.sbatch").write_text(f"#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node=2\n{launcher}\n")
    rows = "JobID|State|ExitCode|NodeList\n7|FAILED|1:0|n[1-2]\n"
    failed = TRACEBACK.format(error="KeyError: 'a'")
    verdict = why(tmp_path, rank__0_log=STEPS, rank__1_log=STEPS, rank__2_log=failed, rank__3_log=STEPS, sacct_txt=rows)
    assert (verdict.rank, verdict.host) == (2, host)


def nccl(rank: int, text: str = "comm 0x55d rank {rank} nranks 4 cudaDev 0") -> str:
    host = "alpha" if rank < 2 else "beta"
    return f"{host}:{40 + rank}:41 [{rank % 2}] NCCL INFO {text.format(rank=rank)}\n"


NCCL_START = "Bootstrap : Using ib0:10.0.0.2<0>"
KEY_ERROR = TRACEBACK.format(error="KeyError: 'labels'")


@pytest.mark.parametrize(
    "files",
    [
        {"slurm.out": "3: {e}srun: error: beta: task 3: Exited with exit code 1\n"},
        {"rank-3.log": nccl(3, NCCL_START) + "{e}", "rank-0.log": LOST},
        {"rank-3.log": "hostname: beta\n{e}", "rank-0.log": LOST},
        {"job.log": "".join(map(nccl, range(4))) + "[rank3]: {e}"},
        {"job.log": "".join(f"{rank}: {nccl(rank, NCCL_START)}" for rank in range(4)) + "3: {e}"},
        {"job.log": "Rank 3/4 is running on host beta\n[rank3]: {e}"},
        # Slurm's listing proves that the words in the names are hosts.
        {
            "fit-alpha-rank0.log": LOST,
            "fit-beta-rank3.log": "{e}",
            "sacct.txt": "JobID|State|NodeList\n7|FAILED|alpha,beta\n",
        },
    ],
)
def test_any_log_may_name_the_host_of_a_rank(tmp_path: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        label = next((label for label in ("3: ", "[rank3]: ") if label + "{e}" in text), "")
        labelled = "".join(f"{label}{line}\n" for line in KEY_ERROR.splitlines())
        (tmp_path / name).write_text(text.replace(label + "{e}", labelled))
    verdict = explain([tmp_path])
    assert (verdict.rank, verdict.host) == (3, "beta")


def test_a_name_with_a_job_id_is_no_host(tmp_path: Path) -> None:
    (tmp_path / "fit-77-seed1.out").write_text(LOST)
    (tmp_path / "fit-77-seed2.out").write_text(KEY_ERROR)
    assert explain([tmp_path]).host is None


def test_the_message_of_prrte_goes_on_in_the_next_line(tmp_path: Path) -> None:
    end = "prterun noticed that process rank 3 with PID 42 on node beta exited on\nsignal 9 (Killed).\n"
    verdict = why(tmp_path, job_log=STEPS + end)
    assert (verdict.class_, verdict.rank, verdict.host) == ("killed", 3, "beta")


def test_ranks_on_several_hosts_have_no_common_host(tmp_path: Path) -> None:
    failed = TRACEBACK.format(error="OSError: [Errno 122] Disk quota exceeded: '/home/u/rank{}.pt'")
    log = "".join(f"[rank{rank}]: {line}\n" for rank in (0, 8) for line in failed.format(rank).splitlines())
    log += "[rank1]: step 1\nsrun: error: n1: task 0: Exited with exit code 1\n"
    verdict = why(tmp_path, job_log=log + "srun: error: n2: task 8: Exited with exit code 1\n")
    assert verdict.cause.startswith("each of ranks 0, 8 on n[1-2] could not write")
    assert (verdict.rank, verdict.host, verdict.ranks) == (0, None, [0, 8])


def test_an_error_behind_the_prefix_of_vllm_is_the_cause(tmp_path: Path) -> None:
    prefix = "(EngineCore_DP0 pid=6804) ERROR 10-07 12:03:21 [core.py:708] "
    failed = TRACEBACK.format(error="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB.")
    log = "".join(f"{prefix}{line}\n" for line in failed.splitlines())
    refers = TRACEBACK.format(error="RuntimeError: Engine core initialization failed. See root cause above.")
    log += "".join(f"(APIServer pid=6611) {line}\n" for line in refers.splitlines())
    assert why(tmp_path, job_log=log).class_ == "gpu-memory"


def test_a_command_that_was_not_found_kept_its_rank_from_joining(tmp_path: Path) -> None:
    waited = TRACEBACK.format(error="torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError")
    log = "2: /bin/bash: line 1: torchrun: command not found\n"
    log += "".join(f"{rank}: {line}\n" for rank in (0, 1) for line in ("starting", *waited.splitlines()))
    verdict = why(tmp_path, job_log=log + "srun: error: n1: task 0: Exited with exit code 1\n")
    assert (verdict.class_, verdict.rank, verdict.confidence) == ("command-not-found", 2, "likely")


@pytest.mark.parametrize(
    ("last", "class_"),
    [("epoch 0 finished after 1247 batches\n", "uneven-inputs"), ("step 9 loss 2.1\n", "collective-order")],
)
def test_a_rank_without_further_batches_calls_another_collective(tmp_path: Path, last: str, class_: str) -> None:
    watchdog = (
        "[rank{0}]:[E1201 20:41:00 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=16, OpType={1}, NumelIn={2}, NumelOut={2}, Timeout(ms)=1800000) ran for 1800031 ms\n"
    )
    logs = {f"rank__{rank}_log": STEPS + watchdog.format(rank, "ALLREDUCE", 65536) for rank in (0, 1)}
    logs["rank__2_log"] = STEPS + last + watchdog.format(2, "BROADCAST", 1)
    verdict = why(tmp_path, **logs)
    assert (verdict.class_, verdict.rank) == (class_, 2)


def test_a_message_without_a_label_once_for_each_rank_is_one_of_every_rank(tmp_path: Path) -> None:
    log = "Could not override 'training.lr_sheduler'.\n" * 4 + "srun: error: n1: tasks 0-1: Exited with exit code 1\n"
    verdict = why(tmp_path, job_log=log + "srun: error: n2: tasks 2-3: Exited with exit code 1\n")
    assert verdict.cause.startswith("every rank refused its arguments")
    assert verdict.ranks == [0, 1, 2, 3]


def test_a_fortran_program_names_its_ranks_in_its_logs(tmp_path: Path) -> None:
    (tmp_path / "rsl.error.0000").write_text("taskid: 0 hostname: node112\nstep 1\n")
    failed = "forrtl: severe (24): end-of-file during read, unit 27, file /scratch/ozone_31.bin\n"
    (tmp_path / "rsl.error.0031").write_text(f"taskid: 31 hostname: node113\nstep 1\n{failed}")
    (tmp_path / "job.o1").write_text("Abort(1) on node 31 (rank 31 in comm 0): application called MPI_Abort\n")
    verdict = explain([tmp_path])
    assert (verdict.class_, verdict.rank, verdict.host) == ("fortran-error", 31, "node113")


def test_a_write_error_that_a_helper_survived_does_not_explain_a_damaged_checkpoint(tmp_path: Path) -> None:
    helper = "wandb: ERROR Internal error: OSError: [Errno 122] Disk quota exceeded: '/home/u/.cache/wandb/tmp81'\n"
    damaged = TRACEBACK.format(
        error="RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"
    )
    goes_on = "wandb: WARNING artifact upload disabled for this run\n"
    assert why(tmp_path, job_log=helper + goes_on + damaged).class_ == "corrupt-file"
    assert why(tmp_path, job_log=helper + damaged).class_ == "quota"


def test_the_traceback_of_another_rank_names_the_rank_that_failed(tmp_path: Path) -> None:
    own = TRACEBACK.format(error="CheckpointException: CheckpointException ranks:dict_keys([5, 6])")
    other = TRACEBACK.format(error="OSError: [Errno 122] Disk quota exceeded").replace("last):", "last): (RANK 5)")
    log = "".join(f"[rank0]: {line}\n" for line in (own + other).splitlines())
    verdict = why(tmp_path, job_log=log)
    assert (verdict.class_, verdict.rank) == ("quota", 5)


def test_the_error_inside_a_worker_may_follow_without_the_label_of_its_rank(tmp_path: Path) -> None:
    caught = TRACEBACK.format(error="KeyError: Caught KeyError in DataLoader worker process 1.")
    log = "".join(f"[rank2]: {line}\n" for line in caught.splitlines())
    log += 'Original Traceback (most recent call last):\n  File "/home/u/collate.py", line 33, in __call__\n'
    verdict = why(tmp_path, job_log=log + "    return sample[key]\nKeyError: 'answer'\n")
    assert verdict.cause == "rank 2 failed with KeyError: 'answer' (collate.py:33, in __call__)"


def test_intel_mpi_names_the_rank_that_a_signal_ended(tmp_path: Path) -> None:
    report = "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   RANK 17 PID 220118 RUNNING AT n5\n"
    verdict = why(tmp_path, job_log=report + "=   KILLED BY SIGNAL: 4 (Illegal instruction)\n")
    assert (verdict.class_, verdict.rank, verdict.host) == ("illegal-instruction", 17, "n5")


BUSY = "srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)\n"
STALLED = "[1,0]<stderr>:Stalled ranks:\n[1,0]<stderr>:6: [horovod_allreduce.0, horovod_allreduce.1 ...]\n"
NO_NODE = "(autoscaler +5m4s) Error: No available node types can fulfill resource request {'node:10.0.0.7': 0.001}.\n"


@pytest.mark.parametrize(
    ("log", "class_"),
    [
        (BUSY * 3, "step-waits"),
        (BUSY * 3 + "srun: Step created for StepId=7.1\n", "time-limit"),
        (STEPS + BUSY + STEPS, "time-limit"),
        (STEPS + STALLED, "late-rank"),
        (STEPS + STALLED + STEPS, "time-limit"),
        (NO_NODE, "ray-resources"),
    ],
)
def test_what_a_job_waited_for_until_its_time_limit(tmp_path: Path, log: str, class_: str) -> None:
    verdict = why(tmp_path, job_log=log + TIME_LIMIT)
    assert verdict.class_ == class_
    assert verdict.rank == (6 if class_ == "late-rank" else None)


def test_progress_in_another_file_leaves_a_doubt_that_a_job_hung(tmp_path: Path) -> None:
    alone = why(tmp_path, job_err_txt=STALLED + TIME_LIMIT)
    beside = why(tmp_path, job_out_txt=STEPS)
    assert (alone.class_, alone.confidence) == ("late-rank", "certain")
    assert (beside.class_, beside.confidence) == ("late-rank", "likely")


@pytest.mark.parametrize(
    ("line", "class_"),
    [
        ("python train.py --coordinator $COORD", "world-size"),
        ("srun python train.py", "rendezvous-timeout"),
        ("./start.sh train.py", "rendezvous-timeout"),
    ],
)
def test_a_script_of_several_tasks_that_starts_one_process(tmp_path: Path, line: str, class_: str) -> None:
    script = f"#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=4\nsource /opt/conda/conda.sh\n{line}\n"
    (tmp_path / "job.sbatch").write_text(script)
    error = "jaxlib.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: PjRT_Client_Connect. Timed out"
    verdict = why(tmp_path, job_log=TRACEBACK.format(error=error))
    assert (verdict.class_, verdict.confidence) == (class_, "likely")


def test_an_mpi_error_of_a_victim_is_not_the_end_that_came_first(tmp_path: Path) -> None:
    lost = "".join(f"[rank3]: {line}\n" for line in TRACEBACK.format(error="ValueError: bad shard").splitlines())
    victims = "terminate called after throwing an instance of 'ccl::v1::exception'\n"
    victims += (
        "Abort(15) on node 1 (rank 1 in comm 0): Fatal error in internal_Waitall: Other MPI error, error stack:\n"
    )
    ended = "srun: error: n2: task 3: Exited with exit code 1\nsrun: error: n2: tasks 0-2: Aborted (core dumped)\n"
    assert why(tmp_path, job_log=lost + victims + ended).rank == 3


def test_an_interpreter_of_another_processor_explains_a_missing_package(tmp_path: Path) -> None:
    broken = "conda.sh: line 35: /opt/bin/conda: cannot execute binary file: Exec format error\n"
    missing = TRACEBACK.format(error="ModuleNotFoundError: No module named 'jax'")
    assert why(tmp_path, job_log=broken + missing).class_ == "wrong-architecture"


def test_the_name_of_a_node_may_begin_like_that_of_a_gpu(tmp_path: Path) -> None:
    failed = TRACEBACK.format(error="KeyError: 'a'")
    assert why(tmp_path, log=f"Job 7 on gpu-gh-03 (aarch64)\n{failed}").host == "gpu-gh-03"
    assert why(tmp_path, log=f"Job 7 on gpu-0\n{failed}").host is None


def test_the_driver_and_the_exception_about_one_fault_of_a_gpu(tmp_path: Path) -> None:
    kernel = "Mar  5 02:13:20 n2 kernel: NVRM: Xid (PCI:0000:3b:00): 74, pid=1203, NVLink: fatal error on link 2\n"
    error = "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution"
    failed = "".join(f"[rank2]: {line}\n" for line in TRACEBACK.format(error=error).splitlines())
    ended = "srun: error: n2: task 2: Exited with exit code 1\nsrun: error: n2: tasks 0-1: Aborted (core dumped)\n"
    verdict = why(tmp_path, job_log=failed + ended, dmesg_txt=kernel)
    assert (verdict.class_, verdict.rank, verdict.host) == ("gpu-xid", 2, "n2")


PORT = "metrics server: bind failed: [Errno 98] Address already in use\n"
EXIT = "srun: error: n1: task 1: Exited with exit code 1\n"
MANY = "".join(f"step {step} loss {3 - step / 999:.3f}\n" for step in range(300))


@pytest.mark.parametrize("error", [PORT, TRACEBACK.format(error="OSError: [Errno 98] Address already in use")])
@pytest.mark.parametrize(
    ("end", "class_"),
    [(EXIT, "unknown"), ("srun: error: n1: task 1: Killed\n", "killed"), (TRACEBACK.format(error="KeyError: 'x'"), "")],
)
def test_an_error_after_which_the_training_went_on_is_no_cause(
    tmp_path: Path, error: str, end: str, class_: str
) -> None:
    verdict = why(tmp_path, slurm_log="loading data\n" + error + MANY + end)
    assert verdict.class_ == (class_ or "python-exception")
    assert "port" not in verdict.cause


@pytest.mark.parametrize(
    "message",
    [
        "n1:221:229 [0] ibvwrap.c:66 NCCL WARN Call to ibv_open_device failed\n",
        "slurmstepd: error: Munge decode failed: Expired credential\n",
        "srun: error: Unable to create step for job 12: Requested nodes are busy\n",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed.\n",
        'Lmod has detected the following error: The following module(s) are unknown: "cuda/12"\n',
    ],
)
def test_a_message_of_the_system_after_which_the_training_went_on_is_no_cause(tmp_path: Path, message: str) -> None:
    failed = TRACEBACK.format(error="KeyError: 'labels'")
    assert "labels" in why(tmp_path, slurm_log=STEPS + message + MANY + failed).cause
    assert why(tmp_path, slurm_log=STEPS + message + MANY + EXIT).class_ == "unknown"


def test_progress_in_the_log_of_a_rank_after_an_error_in_another_file(tmp_path: Path) -> None:
    steps = "".join(f"2026-03-02 09:{minute:02d}:00 step {minute} loss 1.{minute}\n" for minute in range(40))
    error = "2026-03-02 {}:00 ERROR exporter: [Errno 98] Address already in use\n"
    files = {"rank__0_log": steps, "rank__1_log": steps}
    assert why(tmp_path, slurm_log=error.format("09:01") + EXIT, **files).class_ == "unknown"
    assert why(tmp_path, slurm_log=error.format("09:39") + EXIT, **files).class_ == "port-in-use"
    # Without times, the order of the files is unknown.
    assert why(tmp_path, slurm_log=PORT + EXIT, **files).confidence == "likely"


@pytest.mark.parametrize("ranks", [3, 16])
def test_the_rank_that_prints_no_more_had_the_error(tmp_path: Path, ranks: int) -> None:
    def steps(first: int, last: int, *without: int) -> str:
        numbers = [rank for rank in range(ranks) if rank not in without]
        return "".join(f"rank {rank} step {step} loss 1.{step}\n" for step in range(first, last) for rank in numbers)

    failed = TRACEBACK.format(error="ValueError: shard 3 is empty")
    verdict = why(tmp_path, slurm_log=steps(0, 9) + failed + steps(9, 14, 2))
    assert (verdict.class_, verdict.rank, verdict.confidence) == ("python-exception", 2, "certain")
    assert why(tmp_path, slurm_log=steps(0, 9) + failed + steps(9, 14)).class_ == "unknown"


def test_python_writes_its_buffered_output_after_the_traceback_that_ends_it(tmp_path: Path) -> None:
    failed = TRACEBACK.format(error="ValueError: shard 3 is empty")
    verdict = why(tmp_path, slurm_log=failed + STEPS * 9 + EXIT)
    assert (verdict.class_, verdict.confidence) == ("python-exception", "likely")
    assert why(tmp_path, slurm_log=failed + MANY + EXIT).class_ == "unknown"


STOP = "srun: launch/slurm: _step_signal: Terminating StepId=12.0\n"


@pytest.mark.parametrize(
    ("ends", "rank"),
    [
        ("srun: error: n1: task 1: Terminated\n{lost}srun: error: n1: task 0: Exited with exit code 1\n", 1),
        ("{lost}srun: error: n1: task 0: Exited with exit code 1\nsrun: error: n1: task 1: Terminated\n", 1),
        ("srun: error: n1: task 1: Terminated\n" + STOP + "srun: error: n1: task 0: Terminated\n", 1),
        # srun itself ended the task, after another one had failed.
        ("srun: error: n1: task 0: Exited with exit code 3\n" + STOP + "srun: error: n1: task 1: Terminated\n", None),
        (STOP + "srun: error: n1: tasks 0-1: Terminated\n", None),
    ],
)
def test_a_signal_from_outside_ended_one_rank(tmp_path: Path, ends: str, rank: int | None) -> None:
    lost = "".join(f"0: {line}\n" for line in LOST.splitlines())
    steps = "".join(f"{rank}: step {step} loss 1.{step}\n" for step in range(9) for rank in (0, 1))
    verdict = why(tmp_path, slurm_log=steps + ends.format(lost=lost))
    is_outside = (
        verdict.cause
        == f"rank {rank} on n1 was ended by SIGTERM from outside: Slurm and the launcher had no reason to send it"
    )
    assert is_outside == (rank is not None), verdict.cause


@pytest.mark.parametrize(("first", "rank"), [("-15", 1), ("1", None)])
def test_the_first_failure_that_torchrun_reports_is_a_signal_from_outside(
    tmp_path: Path, first: str, rank: int | None
) -> None:
    entry = "[{n}]:\n  host      : n1\n  rank      : {n} (local_rank: {n})\n  exitcode  : {code} (pid: 10{n})\n"
    report = "Failures:\n" + entry.format(n=0, code=-15)
    report += "Root Cause (first observed failure):\n" + entry.format(n=1, code=first) + "=" * 60 + "\n"
    verdict = why(tmp_path, slurm_log=STEPS + "train.py FAILED\n" + report + EXIT)
    assert ("from outside" in verdict.cause) == (rank is not None), verdict.cause
    assert verdict.rank == 1


def test_other_exit_codes_after_the_first_one_are_of_victims(tmp_path: Path) -> None:
    log = "srun: error: n1: task 1: Exited with exit code 3\n" + STOP
    log += "srun: error: n1: task 0: Exited with exit code 1\nsrun: error: n2: tasks 2-3: Exited with exit code 1\n"
    verdict = why(tmp_path, slurm_log=STEPS + log)
    assert verdict.cause.startswith("unknown: rank 1 on n1 ended with exit code 3")
    assert verdict.ranks == [1]


@pytest.mark.parametrize(("nodes", "host", "where"), [("n[1-2]", None, " on n[1-2]"), ("n1", "n1", " on n1")])
def test_the_hosts_of_ranks_with_one_error_follow_from_the_blocks_of_tasks(
    tmp_path: Path, nodes: str, host: str | None, where: str
) -> None:
    number = 2 if host is None else 1
    script = f"#!/bin/bash\n#SBATCH --nodes={number}\n#SBATCH --ntasks-per-node={4 // number}\nsrun python train.py\n"
    rows = f"JobID|State|ExitCode|NodeList\n12|FAILED|1:0|{nodes}\n"
    logs = {
        f"rank__{rank}_log": STEPS + (TRACEBACK.format(error="ValueError: x") if rank % 2 else LOST)
        for rank in range(4)
    }
    (tmp_path / "job.sh").write_text(script)
    verdict = why(tmp_path, sacct_txt=rows, **logs)
    assert verdict.cause.startswith(f"each of ranks 1, 3{where} failed")
    assert (verdict.host, verdict.ranks) == (host, [1, 3])


def test_only_the_last_run_of_a_requeued_job_counts(tmp_path: Path) -> None:
    """`sacct --duplicates` lists each run."""
    rows = "JobID|State|ExitCode|NodeList\n51|NODE_FAIL|0:0|n1\n51|FAILED|1:0|n2\n"
    verdict = why(tmp_path, sacct_txt=rows, run_log=TRACEBACK.format(error="KeyError: 'labels'"))
    assert (verdict.class_, verdict.host, verdict.confidence) == ("python-exception", "n2", "certain")


@pytest.mark.parametrize(("second", "differ"), [("n2", True), ("n1", False)])
def test_nodes_that_wait_at_their_own_addresses(tmp_path: Path, second: str, differ: bool) -> None:
    error = TRACEBACK.format(error="torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError")
    verdict = why(tmp_path, a_log=f"MASTER_ADDR=n1\n{error}", b_log=f"MASTER_ADDR={second}\n{error}")
    assert verdict.class_ == "rendezvous-timeout"
    assert ("another address (n1, n2)" in verdict.cause) is differ


@pytest.mark.parametrize(("allocated", "is_foreign"), [("16.31", True), ("76.02", False)])
def test_gpu_memory_that_another_library_holds(tmp_path: Path, allocated: str, is_foreign: bool) -> None:
    message = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. Including non-PyTorch memory, this"
        f" process has 78.11 GiB memory in use. Of the allocated memory {allocated} GiB is allocated by PyTorch, and"
        " 702.14 MiB is reserved by PyTorch but unallocated."
    )
    verdict = why(tmp_path, run_log=TRACEBACK.format(error=message))
    assert ("are not torch's" in verdict.cause) is is_foreign


@pytest.mark.parametrize(
    ("group", "pid", "class_", "confidence"),
    [
        ("/user.slice/user-1000.slice/app.scope", 61, "tensor-shapes", "certain"),
        ("/system.slice/slurmstepd.scope/job_9/step_0/user/task_0", 61, "host-memory", "certain"),
        ("/system.slice/slurmd.service", 1011, "host-memory", "certain"),  # the process of rank 1
    ],
)
def test_the_kernel_killed_a_process_that_is_not_of_the_job(
    tmp_path: Path, group: str, pid: int, class_: str, confidence: str
) -> None:
    kernel = (
        "[55.0] firefox invoked oom-killer: gfp_mask=0x140cca, order=0, oom_score_adj=0\n"
        f"[55.1] oom-kill:constraint=CONSTRAINT_NONE,global_oom,task_memcg={group},task=firefox,pid={pid},uid=1\n"
        f"[55.1] Out of memory: Killed process {pid} (firefox) total-vm:9kB, anon-rss:9kB\n"
    )
    error = "ValueError: Expected input batch_size (32) to match target batch_size (31)."
    log = "StepId=9.0\n" + TRACEBACK.format(error=error) + "srun: error: n1: task 0: Exited with exit code 1\n"
    if pid != 61:
        log = f"[1]:\n  host      : n1\n  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: {pid})\n"
        log = f"{STEPS}Failures:\n{log.replace('[1]', '[0]')}"
    verdict = why(tmp_path, kern_log=kernel, slurm_log=log)
    assert (verdict.class_, verdict.confidence) == (class_, confidence), verdict.cause


@pytest.mark.parametrize(
    ("option", "elapsed", "is_limit"),
    [
        ("TERM@120", "00:58:02", True),
        ("B:TERM@120", "", True),
        ("", "00:58:02", True),
        ("USR1@120", "", False),
        ("", "00:31:10", False),
        ("TERM@120", "00:31:10", False),
        ("SIGTERM@1800", "00:29:40", True),
    ],
)
def test_a_signal_that_slurm_sends_before_the_time_limit_is_not_from_outside(
    tmp_path: Path, option: str, elapsed: str, is_limit: bool
) -> None:
    signal = f"#SBATCH --signal={option}\n" if option else ""
    (tmp_path / "job.sh").write_text(f"#!/bin/bash\n#SBATCH --nodes=1\n{signal}srun python train.py\n")
    table = f"JobID|State|ExitCode|Elapsed|Timelimit\n12|FAILED|143:0|{elapsed}|01:00:00\n" if elapsed else ""
    steps = "".join(f"{rank}: step {step} loss 1.{step}\n" for step in range(9) for rank in (0, 1))
    lost = "".join(f"0: {line}\n" for line in LOST.splitlines())
    ends = f"srun: error: n1: task 1: Terminated\n{lost}srun: error: n1: task 0: Exited with exit code 1\n"
    verdict = why(tmp_path, slurm_log=steps + ends, sacct_txt=table)
    assert (verdict.class_ == "time-limit") is is_limit, verdict.cause
    assert ("from outside" in verdict.cause) is not is_limit
    assert verdict.confidence == "likely" or not is_limit


@pytest.mark.parametrize(
    ("message", "is_shadowed"),
    [
        ("/home/u/myext.so: undefined symbol: cublasLtMyHelper", False),
        ("/e/site-packages/torch/lib/libtorch_cuda.so: undefined symbol: cublasLtGetStatusString", True),
        ("/e/lib/libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4", True),
        ("/home/u/myext.so: undefined symbol: cublasLtCreate, version libcublasLt.so.12", True),
    ],
)
def test_a_symbol_of_cuda_that_a_library_of_the_program_lacks(tmp_path: Path, message: str, is_shadowed: bool) -> None:
    verdict = why(tmp_path, run_log=TRACEBACK.format(error=f"ImportError: {message}") + EXIT)
    assert ("LD_LIBRARY_PATH" in verdict.cause and verdict.confidence == "certain") is is_shadowed, verdict.cause


def test_a_silent_rank_that_crashed_is_the_culprit_and_not_another_silent_one(tmp_path: Path) -> None:
    crash = "Fatal Python error: Segmentation fault\n"
    end = "mpirun noticed that process rank 3 with PID 425 on node n2 exited on signal 11 (Segmentation fault).\n"
    ranks = "".join(f"Rank {rank}/4 on n{1 + rank // 2}\n" for rank in range(4))
    lost = "".join(f"[rank{rank}]: {line}\n" for rank in (0, 2) for line in LOST.splitlines())
    verdict = why(tmp_path, job_log=ranks + STEPS + crash + lost + end)
    assert (verdict.class_, verdict.rank, verdict.host) == ("segfault", 3, "n2")


def test_an_exit_code_of_mpi_is_explained_by_the_last_line_of_its_rank(tmp_path: Path) -> None:
    log = "[rank 0] step 1\n[rank 1] step 1\n[rank 1] empty validation split, giving up\n"
    log += "  Process name: [[17231,1],1]\n  Exit code:    5\n"
    verdict = why(tmp_path, job_log=log)
    assert (verdict.class_, verdict.rank, verdict.evidence[0].line) == ("exit-code", 1, 3)
    assert (
        verdict.cause
        == "rank 1 ended with exit code 5 after it had printed: [rank 1] empty validation split, giving up"
    )


def test_without_a_reason_in_its_last_line_an_exit_code_stays_unknown(tmp_path: Path) -> None:
    log = "0: loading 40 files\n1: loading 40 files\nsrun: error: n1: task 1: Exited with exit code 3\n"
    verdict = why(tmp_path, job_log=log)
    assert (
        verdict.cause
        == "unknown: rank 1 on n1 ended with exit code 3, and no line shows why; its last line: loading 40 files"
    )


def _in_collective(rank: int, function: str, error: str) -> str:
    library = "/env/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
    frames = f'  File "/u/train.py", line {60 + rank}, in main\n  File "{library}", line 99, in {function}\n'
    text = f"Traceback (most recent call last):\n{frames}RuntimeError: {error}\n"
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


@pytest.mark.parametrize(("function", "class_"), [("broadcast", "collective-order"), ("all_reduce", "late-rank")])
def test_ranks_in_different_collectives_when_one_of_them_timed_out(tmp_path: Path, function: str, class_: str) -> None:
    closed = "[pair.cc:553] Connection closed by peer [10.77.0.12]:148"
    late = "[unbound_buffer.cc:78] Timed out waiting 25000ms for recv operation to complete"
    verdict = why(tmp_path, job_log=_in_collective(0, "all_reduce", closed) + _in_collective(1, function, late))
    assert verdict.class_ == class_
    assert ("rank 1 called broadcast" in verdict.cause) == (function == "broadcast")


@pytest.mark.parametrize(
    ("calls", "class_"),
    [(("recv", "recv"), "deadlock"), (("send", "recv"), "cancelled"), (("barrier", "all_reduce"), "collective-order")],
)
def test_stacks_before_a_cancellation_show_for_what_all_ranks_waited(
    tmp_path: Path, calls: tuple[str, str], class_: str
) -> None:
    log = ""
    for rank, call in enumerate(calls):
        library = "/env/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
        lines = [
            "Stack (most recent call first):",
            f'  File "{library}", line 9 in {call}',
            '  File "/u/pipe.py", line 43 in exchange',
            '  File "/u/pipe.py", line 57 in <module>',
        ]
        log += "".join(f"{rank}: {line}\n" for line in lines)
    cancelled = "slurmstepd-n1: error: *** JOB 17 ON n1 CANCELLED AT 2026-11-27T07:40:13 ***\n"
    steps = "".join(f"1: step {step} loss 0.{step}\n" for step in range(4))
    verdict = why(tmp_path, job_log=steps + log + cancelled)
    assert verdict.class_ == class_


@pytest.mark.parametrize(("later", "class_"), [("", "file-lock"), ("step 1 loss 2.0\n" * 20, "cancelled")])
def test_a_lock_that_was_never_free_explains_a_cancelled_job(tmp_path: Path, later: str, class_: str) -> None:
    waits = "".join(f"index/.lock is held by job 7 on n4, waiting ({5 * n} s) ...\n" for n in range(1, 8))
    cancelled = "slurmstepd-n1: error: *** JOB 17 ON n1 CANCELLED AT 2026-11-27T07:40:13 ***\n"
    verdict = why(tmp_path, job_log="fold 0\n" + waits + later + cancelled)
    assert verdict.class_ == class_


@pytest.mark.parametrize(("batches", "class_"), [((12, 10, 8), "uneven-inputs"), ((12, 12, 12), "rank-vanished")])
def test_a_rank_with_fewer_batches_leaves_the_others_behind(
    tmp_path: Path, batches: tuple[int, ...], class_: str
) -> None:
    log = "".join(f"[rank {rank}] 13 documents, {count} batches per epoch\n" for rank, count in enumerate(batches))
    log += "".join(f"[rank{rank}]: {line}\n" for rank in (0, 1) for line in LOST.splitlines())
    verdict = why(tmp_path, job_log=log)
    assert (verdict.class_, verdict.rank) == (class_, 2)


def test_a_carriage_return_in_a_value_comes_from_dos_line_ends(tmp_path: Path) -> None:
    error = TRACEBACK.format(error="FileNotFoundError: no train shards under 'data/tiles\\r'")
    assert why(tmp_path, job_log=STEPS + error).class_ == "line-endings"


def test_a_later_command_that_the_script_does_not_need_is_no_failure(tmp_path: Path) -> None:
    log = STEPS + "[n1 r0] finished\n[n2 r1] finished\n"
    log += "python: can't open file '/u/plot.py': [Errno 2] No such file or directory\nplots failed (ignored)\n"
    state = "JobId=42 JobName=net\n   JobState=COMPLETED Reason=None Dependency=(null)\n   ExitCode=0:0\n"
    verdict = why(tmp_path, job_log=log, scontrol_txt=state)
    assert (verdict.class_, verdict.confidence) == ("no-failure", "certain")


def test_a_command_after_the_end_of_the_training_says_so(tmp_path: Path) -> None:
    log = STEPS + "Training complete.\ncp: cannot create regular file '/archive/u/': No such file or directory\n"
    verdict = why(tmp_path, job_log=log, sacct_txt="JobID|State|ExitCode|NodeList\n7|FAILED|1:0|n1\n")
    assert verdict.cause == "the script did not find a file: /archive/u/; the training had finished before"


@pytest.mark.parametrize("end", ["train ended with 138", "training finished with exit code 2"])
def test_an_end_with_a_failure_is_no_success(end: str, tmp_path: Path) -> None:
    log = f"{STEPS}{end}\ncp: cannot create regular file '/archive/u/': No such file or directory\n"
    verdict = why(tmp_path, job_log=log, sacct_txt="JobID|State|ExitCode|NodeList\n7|FAILED|1:0|n1\n")
    assert "finished before" not in verdict.cause


def test_labels_with_host_and_rank_in_brackets(tmp_path: Path) -> None:
    log = "".join(f"[n{1 + rank // 2} r{rank}] started\n" for rank in range(4)) + STEPS
    log += "[n2 r3] Traceback (most recent call last):\n"
    log += '[n2 r3]   File "/u/train.py", line 9, in main\n[n2 r3] KeyError: 1\n'
    verdict = why(tmp_path, job_log=log)
    assert (verdict.rank, verdict.host) == (3, "n2")


def test_a_logged_exception_that_the_program_ignores_is_no_failure(tmp_path: Path) -> None:
    error = "2026-11-27 08:40:42 ERROR train: failed to upload metrics (ignored)\n"
    log = STEPS + error + TRACEBACK.format(error="TimeoutError: no answer in 5 s") + "step 10 loss 2.00\n"
    verdict = why(tmp_path, job_log=log, sacct_txt="JobID|State|ExitCode\n7|COMPLETED|0:0\n")
    assert verdict.class_ == "no-failure"


@pytest.mark.parametrize(
    ("later", "class_"),
    [("cp: cannot stat 'ckpt/best.pt': No such file or directory\n", "missing-file"), ("", "no-failure")],
)
def test_a_completed_script_that_went_on_in_another_folder(tmp_path: Path, later: str, class_: str) -> None:
    log = "/var/spool/slurmd/job26/slurm_script: line 12: cd: src-v2: No such file or directory\ntoy run\n"
    verdict = why(tmp_path, job_log=log + later, sacct_txt="JobID|State|ExitCode\n7|COMPLETED|0:0\n")
    assert verdict.class_ == class_


def test_the_time_limit_of_a_step_is_not_that_of_the_job(tmp_path: Path) -> None:
    log = STEPS + "slurmstepd-n3: error: *** STEP 25.1 ON n3 CANCELLED AT 2026-11-27T08:33:28 DUE TO TIME LIMIT ***\n"
    rows = "JobID|State|ExitCode|NodeList\n25|FAILED|15:0|n3\n25.1|TIMEOUT|0:15|n3\n"
    assert "the limit of the step (srun --time)" in why(tmp_path, job_log=log, sacct_txt=rows).cause


def test_a_thread_that_ended_explains_a_rank_that_hung(tmp_path: Path) -> None:
    error = "Exception in thread feeder:\n" + TRACEBACK.format(error="ValueError: invalid literal 'fg'")
    end = "slurmstepd: error: *** JOB 72 ON n1 CANCELLED AT 2026-11-27T08:56:07 ***\n"
    verdict = why(tmp_path, rank__0_log=STEPS, rank__1_log=STEPS + error, slurm_log=end)
    assert (verdict.class_, verdict.rank, verdict.confidence) == ("python-exception", 1, "likely")


def test_workers_whose_own_timer_ran_out_hang(tmp_path: Path) -> None:
    lines = [
        "Timeout (0:00:20)!",
        "Thread 0x00007f414a3f9b80 (most recent call first):",
        '  File "/u/cache.py", line 9 in get',
        '  File "/env/lib/python3.12/site-packages/torch/utils/data/_utils/fetch.py", line 54 in fetch',
        '  File "/env/lib/python3.12/site-packages/torch/utils/data/_utils/worker.py", line 374 in _worker_loop',
        '  File "/usr/lib/python3.12/multiprocessing/popen_fork.py", line 71 in _launch',
        '  File "/u/qa.py", line 13 in <module>',
    ]
    end = "slurmstepd: error: *** JOB 72 ON n1 CANCELLED AT 2026-11-27T08:56:07 ***\n"
    verdict = why(tmp_path, job_log="first batch ...\n" + "\n".join(lines) + "\n" + end)
    assert verdict.class_ == "dataloader-worker"


@pytest.mark.parametrize(("first", "class_"), [("", "terminated"), ("srun: error: n1: task 0: Killed\n", "killed")])
def test_tasks_killed_after_their_step_was_cancelled(tmp_path: Path, first: str, class_: str) -> None:
    log = STEPS + first + "slurmstepd-n1: error: *** STEP 34.0 ON n1 CANCELLED AT 2026-11-27T08:55:37 ***\n"
    log += "srun: error: n2: task 1: Killed\n"
    rows = "JobID|State|ExitCode|NodeList\n34|FAILED|9:0|n[1-2]\n34.0|CANCELLED by 0|0:9|n[1-2]\n"
    assert why(tmp_path, job_log=log, sacct_txt=rows).class_ == class_


def test_a_file_that_ulimit_cuts_is_no_full_disk(tmp_path: Path) -> None:
    first = TRACEBACK.format(error="OSError: [Errno 27] File too large")
    later = TRACEBACK.format(error="RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 8 vs 7")
    chain = "\nDuring handling of the above exception, another exception occurred:\n\n"
    assert why(tmp_path, job_log=STEPS + first + chain + later).class_ == "file-limit"


def test_a_mismatch_that_names_no_other_rank_blames_none(tmp_path: Path) -> None:
    error = "2:   what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 88 vs 44\n"
    log = "".join(f"{rank}: started\n" for rank in range(4)) + error + "srun: error: n2: task 2: Aborted\n"
    verdict = why(tmp_path, job_log=log)
    assert (verdict.class_, verdict.rank) == ("collective-shapes", None)


def test_a_lost_infiniband_peer_is_the_rank_that_failed_by_itself(tmp_path: Path) -> None:
    lost = (
        "RuntimeError: NCCL error: remote process exited or there was a network error\nncclRemoteError: a call failed\n"
    )
    lost += (
        "Last error:\nNET/IB: Got completion from peer 10.0.0.7<44706> with status=5 opcode=1 len=0 vendor err 249\n"
    )
    failed = TRACEBACK.format(error="RuntimeError: CUDA error: an illegal memory access was encountered")
    logs = {f"rank__{rank}_log": STEPS + TRACEBACK.format(error=lost) for rank in (0, 1)}
    assert why(tmp_path, **logs).class_ == "nccl-infiniband"
    verdict = why(tmp_path, **logs, rank__2_log=STEPS + failed)
    assert (verdict.class_, verdict.rank) == ("cuda-error", 2)


def test_files_that_a_full_disk_left_missing(tmp_path: Path) -> None:
    full = 'rsync: [receiver] write failed on "/local/7/b.tar": No space left on device (28)\n'
    missing = TRACEBACK.format(error="FileNotFoundError: /local/{}/c.tar")
    assert why(tmp_path, job_log=full + missing.format(7)).class_ == "disk-full"
    assert why(tmp_path, job_log=full + missing.format(8)).class_ == "missing-file"


def test_files_that_a_copy_left_missing(tmp_path: Path) -> None:
    full = "tar: train/n081.JPEG: Cannot write: Disk quota exceeded\n" * 9
    missing = TRACEBACK.format(error="FileNotFoundError: /scratch/7/train/n099.JPEG")
    verdict = why(tmp_path, job_log=full + STEPS + "[rank1]: " + missing.replace("\n", "\n[rank1]: "))
    assert (verdict.class_, verdict.rank, verdict.confidence) == ("quota", None, "likely")
    # A quota that the program itself met, and survived, left no file missing.
    (tmp_path / "job.log").write_text("OSError: [Errno 122] Disk quota exceeded\nskipping\n" + STEPS + missing)
    assert explain([tmp_path]).class_ == "missing-file"


GLOO_WAITED = TRACEBACK.format(
    error="RuntimeError: [gloo/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"
)


def test_a_rank_that_says_why_it_leaves(tmp_path: Path) -> None:
    left = "[20:00:12][rank 1] nothing to do, exiting\n"
    verdict = why(tmp_path, rank__0_log=STEPS + GLOO_WAITED, rank__1_log=left, rank__2_log=STEPS + GLOO_WAITED)
    assert (verdict.class_, verdict.rank, verdict.confidence) == ("rank-left-early", 1, "likely")
    assert verdict.cause.endswith("after it had printed: nothing to do, exiting")


@pytest.mark.parametrize("has_record", [True, False])
def test_the_watchdog_ends_a_job_with_the_exit_code_of_the_command_timeout(tmp_path: Path, has_record: bool) -> None:
    sentence = "no step has ended for 28 s after step 7: rank 0 waits in a.py:9 in f for rank 1 on n2 in a.py:8 in g"
    if has_record:
        (tmp_path / FIRST_FAILURE).write_text(f"1 n2 124 1795857406.371 {sentence}\n")
    ends = "srun: error: n2: task 1: Exited with exit code 124\nsrun: Terminating StepId=4.0\n"
    ends += "srun: error: n1: task 0: Exited with exit code 1\n"
    rows = "JobID|State|ExitCode\n4|FAILED|124:0\n"
    said = f"hpc-kit: {sentence}\n  do     read the stacks: hpc-kit stacks 4\n"
    verdict = why(tmp_path, rank__0_log=LOST, rank__1_log=said, slurm__4_log=ends, sacct_txt=rows)
    assert (verdict.class_, verdict.rank, verdict.host) == ("late-rank", 1, "n2")


def test_a_rank_that_went_on_while_the_remaining_ranks_waited(tmp_path: Path) -> None:
    start = "".join(f"{rank}: loading the data\n" for rank in range(3))
    busy = "".join(f"0: tokenized {part} of 100 files\n" for part in range(20))
    waited = "".join(f"{rank}: {line}\n" for rank in (1, 2) for line in GLOO_WAITED.splitlines())
    end = "srun: error: n1: tasks 1-2: Exited with exit code 1\nsrun: Terminating StepId=4.0\n"
    end += "slurmstepd: error: *** STEP 4.0 ON n1 CANCELLED AT 2026-05-05T08:30:20 ***\n"
    end += "srun: error: n1: task 0: Terminated\n"
    verdict = why(tmp_path, job_log=start + busy + waited + end)
    assert (verdict.class_, verdict.rank) == ("late-rank", 0)
    # Without its lines, nothing shows that it did not wait, too.
    assert why(tmp_path, job_log=start + waited + end).rank is None


def test_a_result_at_the_end_of_a_log(tmp_path: Path) -> None:
    failed = TRACEBACK.format(error="ValueError: loss is nan")
    study = "".join(f"trial {trial} failed:\n{failed}trial {trial} is skipped\n{STEPS}" for trial in range(3))
    verdict = why(tmp_path, job_log=study + "wrote study to hpo.db\n")
    assert (verdict.class_, verdict.confidence) == ("no-failure", "likely")
    # A checkpoint, a model of each epoch, and a cut line are no end.
    models = "saved model to m/1\nloss 1\nsaved model to m/2\n"
    for end in ("saved checkpoint to c/9.pt\n", models, "saved model to m"):
        (tmp_path / "job.log").write_text(study + end)
        assert explain([tmp_path]).class_ == "unknown"
    (tmp_path / "job.log").write_text(STEPS + "2025-06-20,12:22:39 | INFO | done\n")
    assert explain([tmp_path]).class_ == "no-failure"


def test_lmod_in_german(tmp_path: Path) -> None:
    text = 'Lmod hat den folgenden Fehler erkannt: Das/Die folgende(n) Modul(e) ist/sind unbekannt: "cuda/12"\n'
    verdict = why(
        tmp_path, job_log=text + "/var/spool/job1/slurm_script: Zeile 9: torchrun: Kommando nicht gefunden.\n"
    )
    assert (verdict.class_, verdict.confidence) == ("missing-module", "likely")
    assert "cuda/12" in verdict.cause


def test_agents_that_meet_a_closed_rendezvous(tmp_path: Path) -> None:
    closed = TRACEBACK.format(error="torch.distributed.elastic.rendezvous.api.RendezvousClosedError")
    verdict = why(tmp_path, job_log=closed * 2 + "srun: error: n1: task 0: Exited with exit code 1\n")
    assert (verdict.class_, verdict.confidence) == ("rendezvous", "likely")
    failed = STEPS + TRACEBACK.format(error="KeyError: 'labels'")
    assert why(tmp_path, job_log=failed + closed).class_ == "python-exception"


SCRIPT = "#!/bin/bash\n#SBATCH --nodes=1 --ntasks=2\n{line}\necho started\n"
COMPLETED_WITH_STEP = "JobID|State|ExitCode\n8|COMPLETED|0:0\n8.0|{step}|0:0\n"


def test_a_fault_of_the_script_explains_what_the_logs_leave_open(tmp_path: Path) -> None:
    loop = SCRIPT.format(line="while read -r lr; do\n  srun -n1 python one.py $lr\ndone <grid.txt")
    verdict = why(tmp_path, job_log=STEPS, sacct_txt=COMPLETED_WITH_STEP.format(step="COMPLETED"), job__sh=loop)
    assert verdict.cause.startswith("did not fail") and "line 4 of its script is wrong" in verdict.cause
    assert verdict.confidence == "likely"
    failed = TRACEBACK.format(error="KeyError: 'labels'")
    rows = "JobID|State|ExitCode\n8|FAILED|1:0\n"
    assert why(tmp_path, job_log=STEPS + failed, sacct_txt=rows).class_ == "python-exception"


def test_steps_that_a_script_leaves_behind(tmp_path: Path) -> None:
    cancelled = "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
    cancelled += "slurmstepd: error: *** STEP 8.0 ON n1 CANCELLED AT 2026-11-27T16:26:44 ***\n"
    script = SCRIPT.format(line="srun python train.py &")
    rows = COMPLETED_WITH_STEP.format(step="CANCELLED")
    verdict = why(tmp_path, job_log=STEPS + cancelled, sacct_txt=rows, job__sh=script)
    assert "in the background without a wait" in verdict.cause
    verdict = why(tmp_path, job_log=STEPS, sacct_txt=COMPLETED_WITH_STEP.format(step="COMPLETED"), job__sh=script)
    assert verdict.cause.startswith("did not fail") and "script is wrong" not in verdict.cause


def test_a_host_that_ranks_look_for_until_the_end(tmp_path: Path) -> None:
    line = "[W1127 16:3{}:35.054 socket.cpp:764] [c10d] The IPv6 network addresses of (gone, 29624) cannot be retrieved"
    line += " (gai error: -2 - Name or service not known).\n"
    end = "slurmstepd: error: *** JOB 23 ON n1 CANCELLED AT 2026-11-27T16:42:32 ***\n"
    rows = "JobID|State|ExitCode\n23|CANCELLED by 20117|0:0\n"
    tries = "".join(line.format(minute) for minute in range(8))
    assert why(tmp_path, job_log=tries + end, sacct_txt=rows).class_ == "name-resolution"
    # A healthy start prints some of them, too.
    assert why(tmp_path, job_log=line.format(0) * 8 + end, sacct_txt=rows).class_ == "cancelled"
    assert why(tmp_path, job_log=tries + STEPS + end, sacct_txt=rows).class_ == "cancelled"


def test_an_environment_variable_that_no_one_exports(tmp_path: Path) -> None:
    frames = '  File "/home/u/train.py", line 9, in main\n    root = os.environ["DATA"]\n  File "{}", line 679, in {}\n'
    start, end = "Traceback (most recent call last):\n", "KeyError: 'DATA'\n"
    verdict = why(tmp_path, job_log=start + frames.format("<frozen os>", "__getitem__") + end)
    assert (verdict.class_, "no environment variable DATA" in verdict.cause) == ("unbound-variable", True)
    verdict = why(tmp_path, job_log=start + frames.format("/home/u/table.py", "__getitem__") + end)
    assert verdict.class_ == "python-exception"


def test_a_loader_without_batches(tmp_path: Path) -> None:
    log = "rank 0: 0 batches per epoch\nepoch 0 loss 0.0\ndone\n"
    rows = COMPLETED_WITH_STEP.format(step="COMPLETED")
    assert why(tmp_path, job_log=log, sacct_txt=rows).class_ == "no-training"
    assert why(tmp_path, job_log="10 batches per epoch\nepoch 0 loss 0.1\n", sacct_txt=rows).class_ == "no-failure"


TIMED_OUT_CALL = (
    "[rank{rank}]:[E0123 10:34:16.8 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn={size}, NumelOut={size}, Timeout(ms)=600000) ran for "
    "600011 milliseconds before timing out.\n"
)


def test_a_rank_in_the_text_counts_more_than_torchruns_local_label(tmp_path: Path) -> None:
    log = "[default0]:step 1 loss 2.0\n[default0]:  what():  [PG 0 (default_pg) Rank 12] Process group watchdog thread "
    log += "terminated with exception: CUDA error: uncorrectable ECC error encountered\n"
    verdict = why(tmp_path, job_log=log)
    assert (verdict.class_, verdict.ranks) == ("gpu-ecc", [12])


def test_the_lowest_ranks_exist_even_if_they_print_nothing(tmp_path: Path) -> None:
    log = "".join(TIMED_OUT_CALL.format(rank=rank, number=1, size=1) for rank in range(1, 8))
    verdict = why(tmp_path, job_log=log)
    assert (verdict.class_, verdict.rank, verdict.confidence) == ("late-rank", 0, "likely")
    log = "".join(TIMED_OUT_CALL.format(rank=rank, number=1, size=1) for rank in range(8, 16))
    assert why(tmp_path, job_log=log).class_ == "collective-timeout"  # that of the other node is missing


def test_a_rank_that_validates_while_the_remaining_ones_train(tmp_path: Path) -> None:
    step = "2025-04-22 18:2{}:00 rank={} step={} loss=1.5\n"
    for rank in range(4):
        log = "".join(step.format(number, rank, number) for number in range(8))
        log += "2025-04-22 18:29:00 rank=3 finished after 8 steps, entering validation\n" if rank == 3 else ""
        log += TIMED_OUT_CALL.format(rank=rank, number=9, size=2 if rank == 3 else 65536)
        tmp_path.joinpath(f"rank-{rank}.log").write_text(log)
    verdict = explain([tmp_path])
    assert (verdict.class_, verdict.rank) == ("uneven-inputs", 3)


def test_a_line_of_an_epoch_behind_many_losses_that_are_nan_is_no_finite_loss(tmp_path: Path) -> None:
    epochs = [
        "".join(f"step {step} loss {loss}\n" for step in range(60)) + f"epoch {number} done, saved last.pt\n"
        for number, loss in enumerate(["2.1", "nan", "nan"])
    ]
    assert why(tmp_path, job_log="".join(epochs) + "wrote sample.wav\n", sacct_txt=COMPLETED).class_ == "nan"
    epochs.append("".join(f"step {step} loss 2.1\n" for step in range(10)))
    assert why(tmp_path, job_log="".join(epochs), sacct_txt=COMPLETED).class_ == "no-failure"


@pytest.mark.parametrize(("end", "class_"), [("val loss: nan\ndone.\n", "nan"), ("step 9 loss 2.1\n", "no-failure")])
def test_a_loss_that_stays_nan_to_the_end_of_a_completed_job(tmp_path: Path, end: str, class_: str) -> None:
    log = STEPS + "".join(f"step {step} loss nan\n" for step in range(9, 20)) + end
    assert why(tmp_path, job_log=log, sacct_txt=COMPLETED_WITH_STEP.format(step="COMPLETED")).class_ == class_


def test_a_success_that_is_reported_after_all_ranks_failed_is_that_of_the_script(tmp_path: Path) -> None:
    failed = "".join(
        f"[rank{rank}]: {line}\n"
        for rank in range(2)
        for line in TRACEBACK.format(error="KeyError: 'labels'").splitlines()
    )
    end = "srun: error: n1: tasks 0-1: Exited with exit code 1\ntraining finished Tue Jul  8\n"
    rows = COMPLETED_WITH_STEP.format(step="FAILED")
    assert why(tmp_path, job_log=failed + end, sacct_txt=rows).class_ == "python-exception"
    # A second try succeeded.
    again = end.replace("train", "retry\nstep 1 loss 2.0\nstep 2 loss 1.0\ntrain")
    assert why(tmp_path, job_log=failed + again, sacct_txt=rows).class_ == "no-failure"
    again = end.replace("train", "[rank0]: train")
    assert why(tmp_path, job_log=failed + again, sacct_txt=rows).class_ == "no-failure"
    assert (
        why(tmp_path, job_log=failed + end.replace("train", STEPS * 3 + "train"), sacct_txt=rows).class_ == "no-failure"
    )


def test_nodes_that_each_wait_at_themselves(tmp_path: Path) -> None:
    alone = TRACEBACK.format(
        error="torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 1/2 clients joined."
    )
    end = "srun: error: n{}: task {}: Exited with exit code 1\n"
    both = why(tmp_path, job_log=alone * 2 + end.format(1, 0) + end.format(2, 1))
    assert "2 processes each took their own host for that of rank 0" in both.cause
    assert "own host" not in why(tmp_path, job_log=alone + end.format(1, 0)).cause


def test_a_list_of_flags_is_no_refused_argument(tmp_path: Path) -> None:
    end = "srun: error: n1: task 0: Exited with exit code 1\n"
    assert why(tmp_path, job_log=f"flags:\n  flag --lr=0.1\n{STEPS}{end}").class_ != "arguments"


def test_the_records_of_a_run_are_no_logs(tmp_path: Path) -> None:
    tmp_path.joinpath("slurm-1.out").write_text("step 1\nsrun: error: n1: task 0: Exited with exit code 3\n")
    tmp_path.joinpath("record.json").write_text('{\n "error": "RuntimeError: CUDA out of memory"\n}\n')
    verdict = explain(tmp_path.iterdir())
    assert verdict.cause.startswith("unknown: rank 0 on n1 ended with exit code 3")
    assert "}" not in verdict.cause


@pytest.mark.parametrize(
    ("last", "words"),
    [
        ("heads must divide the width", "after it had printed: heads must divide the width"),
        ("this model needs a tokenizer", "no line shows why; its last line: this model needs a tokenizer"),
        ("srun: Terminating StepId=88.0", "no line shows why"),
    ],
)
def test_the_line_above_an_exit_code_if_no_line_names_a_rank(tmp_path: Path, last: str, words: str) -> None:
    verdict = why(tmp_path, job_log=f"{STEPS}{last}\nsrun: error: n1: task 5: Exited with exit code 1\n")
    assert verdict.cause.endswith(f"rank 5 on n1 ended with exit code 1{' ' if 'after' in words else ', and '}{words}")


DAMAGED = TRACEBACK.format(
    error="RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"
)
NO_QUOTA = TRACEBACK.format(error="OSError: [Errno 122] Disk quota exceeded")


@pytest.mark.parametrize(
    ("before", "class_"),
    [
        (f"could not save step 9, training goes on\n{NO_QUOTA}", "quota"),
        ("ERROR: could not save checkpoint: [Errno 28] No space left on device\n", "disk-full"),
        # A cache of a helper, a thread and a file that was read are not the checkpoint.
        ("wandb: ERROR Internal error: OSError: [Errno 122] Disk quota exceeded: '/home/u/.cache/x'\n", "corrupt-file"),
        (f"Exception in thread uploader:\n{NO_QUOTA}", "corrupt-file"),
        (TRACEBACK.format(error="OSError: [Errno 116] Stale file handle"), "corrupt-file"),
    ],
)
@pytest.mark.parametrize("restart", ["", "trainer restarts\n", "=== attempt 2\n"])
def test_a_write_error_that_the_program_survived_left_a_damaged_checkpoint(
    tmp_path: Path, before: str, class_: str, restart: str
) -> None:
    verdict = why(tmp_path, job_log=STEPS + before + STEPS + restart + DAMAGED)
    assert verdict.class_ == class_
    assert verdict.confidence == "likely" or class_ == "corrupt-file"


@pytest.mark.parametrize(
    ("keys", "class_"),
    [
        ("missing_keys=['a.weight', 'a.bias'], unexpected_keys=['module.a.weight', 'module.a.bias']", "prefix"),
        ("missing_keys=['model.a.weight'], unexpected_keys=['a.weight']", "prefix"),
        # Another head, and weights that are left out on purpose.
        ("missing_keys=['head.weight', 'head.bias'], unexpected_keys=[]", "did not fail"),
        ("missing_keys=['head.weight'], unexpected_keys=['fc.weight']", "did not fail"),
        ("missing_keys=[], unexpected_keys=['ema.a.weight']", "did not fail"),
        ("missing_keys=['a.weight'], unexpected_keys=['module.a.weight'])\n<All keys matched successfully>", "did not"),
    ],
)
def test_a_checkpoint_of_which_no_key_was_loaded(tmp_path: Path, keys: str, class_: str) -> None:
    log = f"{STEPS}load_state_dict: _IncompatibleKeys({keys})\n{STEPS.replace('loss', 'acc')}"
    verdict = why(tmp_path, job_log=log, sacct_txt=COMPLETED)
    assert class_ in verdict.cause
    assert verdict.confidence == ("likely" if class_ == "prefix" else "certain")


def test_the_agent_whose_rendezvous_timed_out_closed_it_for_the_others(tmp_path: Path) -> None:
    errors = "torch.distributed.elastic.rendezvous.api.Rendezvous{}Error"
    log = "".join(f"{rank}: starts\n{rank}: waits\n" for rank in (0, 1))
    for rank, error in enumerate(("Closed", "Timeout")):
        log += "".join(f"{rank}: {line}\n" for line in TRACEBACK.format(error=errors.format(error)).splitlines())
    verdict = why(tmp_path, job_log=log)
    assert (verdict.class_, verdict.rank) == ("rendezvous-timeout", None)
    assert "did not join" not in verdict.cause
    assert why(tmp_path, job_log=log.replace("Timeout", "Closed")).class_ == "rendezvous"


def test_words_in_paths_are_no_progress(tmp_path: Path) -> None:
    warning = "[W0707 08:0{}:03.5 socket.cpp:764] [c10d] The IPv6 network addresses of (kiz0l, 29500) cannot be "
    warning = "".join(
        f"{warning.format(each)}retrieved (gai error: -2 - Name or service not known).\n" for each in "123"
    )
    frames = "".join(f"frame #{each}: _start + 0x2{each} (0x55d in /home/u/envs/train/bin/python)\n" for each in "123")
    error = (
        "torch.distributed.DistNetworkError: The client socket has timed out after 9000ms while trying to connect to "
    )
    verdict = why(tmp_path, job_log=warning + frames * 3 + TRACEBACK.format(error=f"{error}(kiz0l, 29500)."))
    assert verdict.class_ == "name-resolution"
    # Steps are progress: the name was resolved later.
    steps = "step 1 of /home/u/envs/train/run\nstep 2 of /home/u/envs/train/run\n" * 3
    log = steps + warning + steps * 2 + TRACEBACK.format(error=f"{error}(kiz0l, 29500).")
    assert why(tmp_path, job_log=log).class_ == "unreachable-host"


def test_the_last_words_of_a_rank_that_left(tmp_path: Path) -> None:
    last = "index_1.json not found, exiting\n"
    verdict = why(tmp_path, rank__0_log=STEPS + LOST, rank__1_log=STEPS + last, rank__2_log=STEPS + LOST)
    assert (verdict.class_, verdict.rank) == ("rank-vanished", 1)
    assert verdict.cause == "rank 1 ended after it had printed: index_1.json not found, exiting"
    verdict = why(tmp_path, rank__1_log=STEPS)
    assert verdict.cause.startswith("rank 1 ended without a message")


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        ("2026-01-30 07:55:46 | INFO | nmt | rank 2 waits for the lock /c/x.lock (held by pid 7 on s02)", 2),
        ("INFO:root:rank 2 waits for the lock /c/x.lock (held by pid 7 on s02)", 2),
        ("2026-01-30 07:55:46 - INFO - data - rank 2: the lock /c/x.lock is held by pid 7", 2),
        # The rank of the sentence is not the one that prints it.
        ("2026-01-30 07:55:46 | INFO | nmt | lock /c/x.lock is held by rank 2", None),
        ("INFO lost rank 2, the lock /c/x.lock is held by it", None),
    ],
)
def test_the_rank_behind_the_fields_of_a_logger(tmp_path: Path, text: str, rank: int | None) -> None:
    verdict = why(tmp_path, job_log=f"{STEPS}{text}\n{TIME_LIMIT}")
    assert (verdict.class_, verdict.rank) == ("file-lock", rank)


NODES = "JobID|State|ExitCode|NodeList\n7|FAILED|1:0|{}\n"


@pytest.mark.parametrize(
    ("prefix", "nodes", "rank"),
    [
        ("[default3]:", "n1", 3),
        ("[default3]:", "n[1-2]", None),
        ("[default3]:[rank7]: ", "n[1-2]", 7),
        ("1: [default3]:", "n[1-2]", None),
        ("1: [default3]:[rank7]: ", "n[1-2]", 7),
        ("0: [default3]:", "n1", 3),
        ("1: ", "n[1-2]", 1),  # without torchrun, the label of srun is the rank
    ],
)
def test_the_label_of_torchrun_is_a_rank_on_one_node_only(
    tmp_path: Path, prefix: str, nodes: str, rank: int | None
) -> None:
    number, colon, _ = prefix.partition(": ")
    label = f"{number}: " if colon and number.isdigit() else ""
    local = "[default{}]:" if "default" in prefix else ""
    others = [f"{0 if label and each % 2 else label[:1]}{label[1:]}{local.format(each % 4)}" for each in range(8)]
    others = others if nodes != "n1" else [f"{label}{local.format(each % 4)}" for each in range(8)]
    log = "".join(f"{other}{line}\n" for line in STEPS.splitlines() for other in others)
    log += "".join(f"{prefix}{line}\n" for line in KEY_ERROR.splitlines())
    log += f"srun: error: n{2 if label[:1] == '1' else 1}: task {label[:1] or 0}: Exited with exit code 1\n"
    verdict = why(tmp_path, job_log=log, sacct_txt=NODES.format(nodes))
    assert (verdict.class_, verdict.rank) == ("python-exception", rank)
    assert verdict.host == (f"n{2 if label[:1] == '1' else 1}" if rank != 7 else verdict.host)


def test_a_loss_that_is_nan_for_a_part_of_the_data(tmp_path: Path) -> None:
    of_class = "val loss nan for class 7\nval loss nan for class 9\n"
    assert why(tmp_path, job_log=STEPS + of_class, sacct_txt=COMPLETED).class_ == "no-failure"
    of_all = "step 10 loss nan lr 0.1\nstep 11 loss nan lr 0.1\n"
    assert why(tmp_path, job_log=STEPS + of_all, sacct_txt=COMPLETED).class_ == "nan"


def test_a_second_try_of_one_process_is_no_second_store(tmp_path: Path) -> None:
    alone = TRACEBACK.format(
        error="torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined."
    )
    ends = "srun: error: n1: task 0: Exited with exit code 1\nsrun: error: n2: task 1: Exited with exit code 1\n"
    assert "own host" not in why(tmp_path, job_log=f"{alone}connects again\n{alone}{ends}").cause
    assert "own host" not in why(tmp_path, job_log=alone * 3 + ends).cause


@pytest.mark.parametrize(
    ("bus", "rank", "host"), [("c3", 22, "n3"), ("b1", 21, "n3"), ("44", None, "n3")]
)  # the GPU 44 is on no node
def test_the_gpu_of_an_xid_is_that_of_its_bus_and_not_of_the_rank_that_prints_it(
    tmp_path: Path, bus: str, rank: int | None, host: str
) -> None:
    start = (
        "{rank}: n{node}:91{rank}:91{rank} [5] NCCL INFO comm 0x55d31 rank {rank} nranks 32 nvmlDev 5 busId {bus}000\n"
    )
    places = ((21, 3, "b1"), (22, 3, "c3"), (13, 2, "b1"), (14, 2, "c3"))
    log = "".join(start.format(rank=rank, node=node, bus=address) for rank, node, address in places)
    log += f"21: [2026-01-05 02:48:33] [healthd] kernel: NVRM: Xid (PCI:0000:{bus}:00): 79, pid=9121, name=python, x\n"
    log += "srun: error: n3: tasks 21-22: Aborted\n"
    verdict = why(tmp_path, job_log=log)
    assert (verdict.class_, verdict.rank, verdict.host) == ("gpu-xid", rank, host)


@pytest.mark.parametrize(
    ("last", "limit", "elapsed", "hung"),
    [
        ("02:00:00", "2026-01-02T09:00:00", "", "07:00:00"),
        ("02:00:00", "", "08:00:00", "07:00:00"),
        # The program worked for longer than it was silent, or was silent for a few minutes only.
        ("06:00:00", "2026-01-02T09:00:00", "", ""),
        ("01:05:00", "2026-01-02T01:25:00", "", ""),
        ("06:00:00", "", "08:00:00", ""),
    ],
)
def test_a_time_limit_after_a_long_silence_may_be_that_of_a_hang(
    tmp_path: Path, last: str, limit: str, elapsed: str, hung: str
) -> None:
    hour, rest = int(last[:2]), last[2:]
    times = ["01:00:00", "01:01:00", "01:02:00", f"{hour:02}{rest}"]
    log = "".join(f"2026-01-02 {time} INFO step {step} loss 2.{step}\n" for step, time in enumerate(times))
    log += TIME_LIMIT.replace("2026-01-02T03:04:05", limit) if limit else ""
    files = {"sacct_txt": f"JobID|State|ExitCode|Elapsed\n7|TIMEOUT|0:0|{elapsed}\n"} if elapsed else {}
    verdict = why(tmp_path, job_log=log, **files)
    assert (verdict.class_, verdict.confidence) == ("time-limit", "likely" if hung else "certain")
    assert ("it may have hung" in verdict.cause) == bool(hung)
    assert hung in verdict.cause
    assert ("ask for more time with" in verdict.fix) != bool(hung)


@pytest.mark.parametrize(
    ("step", "end", "elapsed", "is_still"),
    [
        (60, "23:05:00", "", True),
        (60, "23:05:00", "23:05:00", True),
        (60, "", "23:05:00", True),
        # The limit came in the middle of the work. In the next two, the clock of the program is that of another zone.
        (60, "20:00:30", "20:00:30", False),
        (60, "22:00:30", "", False),
        (60, "22:00:30", "20:00:30", False),
        # One line an hour, or output that Python had kept.
        (3600, "20:59:00", "", False),
        (60, "21:07:00", "cut", False),
    ],
)
def test_a_job_that_stood_still_needs_no_longer_limit(
    tmp_path: Path, step: int, end: str, elapsed: str, is_still: bool
) -> None:
    moments = range(0, 20 * 3600, step)
    log = "".join(
        f"2026-01-02 {each // 3600:02}:{each // 60 % 60:02}:00 INFO step {each // step} loss 2.1\n" for each in moments
    )
    log += "2026-01-02 20:00:00 INFO ste" if elapsed == "cut" else ""
    log += TIME_LIMIT.replace("2026-01-02T03:04:05", f"2026-01-02T{end}") if end else ""
    table = f"JobID|State|ExitCode|Elapsed\n7|TIMEOUT|0:0|{elapsed}\n"
    verdict = why(tmp_path, job_log=log, **({"sacct_txt": table} if elapsed not in {"", "cut"} else {}))
    assert ("stood still since Jan 02 19:59:00" in verdict.cause) == is_still
    assert ("ask for more time with" in verdict.fix) != is_still
    assert verdict.confidence == ("likely" if is_still else "certain")


@pytest.mark.parametrize(
    ("words", "confidence"),
    [
        ("[stage 1/3] done\n[stage 2/3] done\nPipeline finished successfully\n", "likely"),
        (STEPS + "training finished successfully\n", "certain"),
    ],
)
def test_a_report_of_success_after_an_exception_is_doubtful(tmp_path: Path, words: str, confidence: str) -> None:
    before = "" if confidence == "certain" else "[stage 0/3] done\n"
    verdict = why(tmp_path, job_log=f"{before}{STEPS}{KEY_ERROR}{words.replace('Pipeline', 'Training pipeline')}")
    assert (verdict.class_, verdict.confidence) == ("no-failure", confidence)


@pytest.mark.parametrize(
    ("before", "frame", "class_"),
    [
        ("", "<module>", "python-exception"),
        # The program caught it in a function, or had finished before.
        ("", "main", "no-failure"),
        ("training finished\n", "<module>", "no-failure"),
    ],
)
@pytest.mark.parametrize("state", ["", COMPLETED])
def test_a_script_that_reports_success_after_its_program_ended_with_an_exception(
    tmp_path: Path, before: str, frame: str, class_: str, state: str
) -> None:
    error = (
        f'Traceback (most recent call last):\n  File "/u/train.py", line 9, in {frame}\n    x = rows[k]\nKeyError: 2\n'
    )
    log = STEPS + before + error + "exported model.onnx\nauc 0.81\nTraining pipeline finished successfully\n"
    verdict = why(tmp_path, job_log=log, **({"sacct_txt": state} if state else {}))
    assert (verdict.class_, verdict.confidence) == (class_, "likely")


REPORT_OF_NODE = """============================================================
Root Cause (first observed failure):
[0]:
  time      : 2024-07-01_14:30:57
  host      : n2
  rank      : 6 (local_rank: 2)
  exitcode  : 1 (pid: 120)
============================================================
"""


@pytest.mark.parametrize(
    ("before", "after", "rank", "host"),
    [
        ("", "", 2, None),
        ("", REPORT_OF_NODE, 6, "n2"),
        ("WORLD_SIZE=8\n", "", None, None),
        ("", "srun: error: n2: task 1: Exited with exit code 1\n", None, "n2"),
    ],
)
def test_the_number_of_a_process_on_its_node_is_no_rank_if_there_are_several_nodes(
    tmp_path: Path, before: str, after: str, rank: int | None, host: str | None
) -> None:
    steps = "".join(f"[default{local}]:step {step} loss 2.{step}\n" for step in range(3) for local in range(4))
    error = "".join(f"[default2]:{line}\n" for line in KEY_ERROR.splitlines())
    verdict = why(tmp_path, job_log=before + steps + error + after)
    assert (verdict.class_, verdict.rank, verdict.host) == ("python-exception", rank, host)


def test_the_message_in_a_cut_last_line_may_go_on(tmp_path: Path) -> None:
    assert why(tmp_path, job_log=STEPS + KEY_ERROR).confidence == "certain"
    assert why(tmp_path, job_log=(STEPS + KEY_ERROR).rstrip("\n")[:-3]).confidence == "likely"


def test_a_missing_command_far_from_the_end_is_doubtful(tmp_path: Path) -> None:
    missing = "/var/spool/slurmd/job7/slurm_script: line 5: nvidia-smi: command not found\n"
    rows = "JobID|State|ExitCode|NodeList\n7|FAILED|127:0|n1\n"
    assert why(tmp_path, job_log="starts\n" + missing, sacct_txt=rows).confidence == "certain"
    words = "".join(f"{word} is loaded\n" for word in "abcdefghijklmnopqrstuvwxyz")
    assert why(tmp_path, job_log="starts\n" + missing + words, sacct_txt=rows).confidence == "likely"


def test_a_server_that_is_not_reached_is_not_the_first_rank(tmp_path: Path) -> None:
    error = "(MaxRetryError(\"HTTPSConnectionPool(host='h.co', port=443): Max retries exceeded with url: /m (Caused by "
    error += "NewConnectionError('[Errno 101] Network is unreachable'))\"))\n"
    assert why(tmp_path, job_log="starts\n" + error).class_ == "hub-access"
    assert why(tmp_path, job_log="starts\nOSError: [Errno 101] Network is unreachable\n").class_ == "unreachable-host"


def test_the_exceptions_that_a_broken_gpu_causes_are_those_of_victims(tmp_path: Path) -> None:
    log = "[rank: 0] starts\n[rank: 1] starts\n"
    log += TRACEBACK.format(error="torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered")
    for rank in (0, 1):
        log += TRACEBACK.format(
            error=f"torch.distributed.DistBackendError: NCCL communicator was aborted on rank {rank}."
        )
    log += "srun: error: n1: task 1: Exited with exit code 1\n"
    assert (why(tmp_path, job_log=log).class_, why(tmp_path, job_log=log).rank) == ("gpu-ecc", None)
    # The message of a library is repeated by the exception of its rank.
    log = "ncclInternalError: Internal check failed.\nCUDA error: uncorrectable ECC error encountered\n"
    log += f"[rank: 1] {TRACEBACK.format(error='torch.distributed.DistBackendError: NCCL error in: x.cpp:9').strip()}\n"
    log += "srun: error: n1: task 1: Exited with exit code 1\n"
    assert why(tmp_path, job_log=log).rank == 1


@pytest.mark.parametrize(
    ("ends", "class_"),
    [
        ("{abort}{kill}", "late-rank"),  # srun ended the rank for which the others had waited
        ("{kill}{abort}", "killed"),
    ],
)
def test_a_rank_that_was_killed_after_the_others_had_waited_for_it(tmp_path: Path, ends: str, class_: str) -> None:
    log = "".join(f"{rank}: step {step} loss 2.{step}\n" for step in range(5) for rank in range(4))
    log += "0: saving step 5\n" + "".join(
        f"{rank}: {TIMED_OUT_CALL.format(rank=rank, number=9, size=4)}" for rank in (1, 2, 3)
    )
    abort = "srun: error: n1: tasks 1-3: Aborted\n"
    log += ends.format(abort=abort, kill="srun: error: n1: task 0: Killed\n")
    verdict = why(tmp_path, job_log=log)
    assert (verdict.class_, verdict.rank) == (class_, 0)


@pytest.mark.parametrize(
    ("keys", "class_"),
    [
        ("'module.bert.embeddings.weight', 'module.classifier.bias'", "checkpoint-mismatch"),
        ("'cls.predictions.bias', 'cls.seq_relationship.weight'", "no-failure"),
    ],
)
def test_weights_that_transformers_does_not_use(tmp_path: Path, keys: str, class_: str) -> None:
    log = f"Some weights of the model checkpoint at out were not used when initializing BertModel: [{keys}]\n{STEPS}"
    assert why(tmp_path, job_log=log, sacct_txt=COMPLETED).class_ == class_


def test_data_that_is_damaged_is_no_checkpoint_that_was_not_saved(tmp_path: Path) -> None:
    not_saved = "ERROR: failed to save checkpoint: [Errno 122] Disk quota exceeded: '/home/u/ck/3.pt'\n"
    data = TRACEBACK.format(error="OSError: image file is truncated (12 bytes not processed)")
    assert why(tmp_path, job_log=STEPS + not_saved + STEPS + data).class_ == "corrupt-file"


@pytest.mark.parametrize("label", ["2026-02-01T10:00:12 {}: ", "[2026-02-01 10:00:12] {}: ", "{}: "])
def test_labels_behind_the_time_that_a_pipe_adds(tmp_path: Path, label: str) -> None:
    log = "".join(f"{label.format(rank)}step {step} loss 2.{step}\n" for step in range(5) for rank in range(3))
    for rank, error in ((0, LOST), (1, KEY_ERROR), (2, LOST)):
        log += "".join(f"{label.format(rank)}{line}\n" for line in error.splitlines())
    verdict = why(tmp_path, job_log=log)
    assert (verdict.class_, verdict.rank, verdict.confidence) == ("python-exception", 1, "certain")


REPORT = """Failures:
[1]:
  time      : 2026-06-30_22:47:35
  host      : n1
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 921)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-06-30_22:47:31
  host      : n1
  rank      : 2 (local_rank: 2)
  exitcode  : 3 (pid: 923)
"""


def test_a_cut_report_of_torchrun_does_not_show_the_first_failure(tmp_path: Path) -> None:
    verdict = why(tmp_path, job_log=STEPS + REPORT)
    assert (verdict.class_, verdict.rank) == ("unknown", 2)
    verdict = why(tmp_path, job_log=STEPS + REPORT.partition("Root")[0])
    assert (verdict.class_, verdict.rank) == ("unknown", None)
    # SIGTERM from outside is the first failure of a complete report.
    alone = REPORT.partition("Failures")[1] + REPORT[REPORT.index(":") :].replace(": 3 (", ": -15 (")
    assert why(tmp_path, job_log=STEPS + alone).class_ == "terminated"


@pytest.mark.parametrize(
    ("error", "class_", "certain"),
    [
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "gpu-ecc", True),
        ("RuntimeError: CUDA error: uncorrectable ECC e", "cuda-error", False),
        ("KeyError: Caught KeyError in DataLoader worker process 0.", "python-exception", False),
    ],
)
def test_a_message_that_a_cut_log_does_not_contain_completely(
    tmp_path: Path, error: str, class_: str, certain: bool
) -> None:
    end = "\n" if certain or "worker" in error else ""
    verdict = why(tmp_path, job_log=STEPS + TRACEBACK.format(error=error).rstrip("\n") + end)
    assert (verdict.class_, verdict.confidence) == (class_, "certain" if certain else "likely")


def test_a_hook_that_ends_the_process_with_exit_code_9_sends_no_signal(tmp_path: Path) -> None:
    end = "srun: error: n1: task 0: Exited with exit code 9\n"
    rows = "JobID|State|ExitCode|NodeList\n7|FAILED|9:0|n1\n"
    verdict = why(tmp_path, job_log=STEPS + KEY_ERROR + end, sacct_txt=rows)
    assert (verdict.class_, verdict.rank, verdict.confidence) == ("python-exception", 0, "certain")
    assert why(tmp_path, job_log=STEPS + end, sacct_txt=rows).class_ == "unknown"


def test_a_device_that_nccl_cannot_open_is_not_the_cause(tmp_path: Path) -> None:
    opening = "g1:51:61 [0] misc/ibvwrap.cc:97 NCCL WARN Call to ibv_open_device failed\n"
    opening += "g1:51:61 [0] NCCL INFO NET/IB : Unable to open device mlx5_bond_0\n"
    api = "torch.distributed.elastic.rendezvous.api"
    late = TRACEBACK.format(error=f"{api}.RendezvousTimeoutError")
    lost = TRACEBACK.format(error=f"{api}.RendezvousConnectionError: The connection to the C10d store has failed.")
    ends = "".join(f"srun: error: g{node}: task {node - 1}: Exited with exit code 1\n" for node in (1, 2))
    assert why(tmp_path, job_log=opening + late + lost + ends).class_ == "rendezvous-timeout"
    assert why(tmp_path, job_log=opening.replace("open_device", "reg_mr")).class_ == "nccl-infiniband"


def test_a_rank_that_ended_with_another_line_is_named_if_the_job_stood_still(tmp_path: Path) -> None:
    steps = "".join(
        f"{rank}: 2025-01-02 10:{minute:02}:00 epoch 1 step {minute}\n" for minute in range(30) for rank in range(3)
    )
    ends = "0: 2025-01-02 10:30:01 validating on rank 0\n"
    ends += "".join(f"{rank}: 2025-01-02 10:30:02 epoch 2 begins\n" for rank in (1, 2))
    limit = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2025-01-02T20:00:00 DUE TO TIME LIMIT ***\n"
    verdict = why(tmp_path, slurm__7_log=steps + ends + limit)
    assert (verdict.rank, verdict.confidence) == (0, "likely")
    assert "rank 0 ended with 'validating on rank 0', and ranks 1, 2 with 'epoch 2 begins'" in verdict.cause


def test_silent_ranks_are_not_odd_if_the_job_stood_still(tmp_path: Path) -> None:
    starts = "".join(f"{rank}: 2025-01-02 09:00:00 model ready\n" for rank in range(3))
    steps = "".join(f"0: 2025-01-02 10:{minute:02}:00 epoch 1 step {minute}\n" for minute in range(30))
    limit = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2025-01-02T20:00:00 DUE TO TIME LIMIT ***\n"
    verdict = why(tmp_path, slurm__7_log=starts + steps + limit)
    assert "stood still" in verdict.cause
    assert (verdict.rank, "last lines differ" in verdict.cause) == (None, False)


def test_a_rank_is_late_with_the_last_output_before_the_others_gave_up(tmp_path: Path) -> None:
    output = STEPS + "[main] generating samples\r 10%|#  | 1/9\r 50%|## | 5/9\n"
    wait = (
        "[rank{0}]:[E802 02:06:43.4 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600007 milliseconds\n"
    )
    verdict = why(tmp_path, slurm__7_log=output + "".join(wait.format(rank) for rank in (1, 2, 3)))
    assert (verdict.class_, verdict.rank, verdict.confidence) == ("late-rank", 0, "likely")
    assert "the last output before:  50%|## | 5/9" in verdict.cause.replace("before: 50", "before:  50")


def test_the_restarts_that_each_rank_prints_are_one_attempt(tmp_path: Path) -> None:
    begins = "".join(f"[rank{rank}] start, restart {{0}}, pid {{0}}{rank}\n" for rank in range(4))
    crash = "Fatal Python error: Segmentation fault\n"
    damaged = TRACEBACK.format(
        error="RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"
    )
    log = begins.format(0) + STEPS + crash + begins.format(1) + damaged + begins.format(2) + damaged
    verdict = why(tmp_path, slurm__7_log=log)
    assert verdict.class_ == "corrupt-file"
    assert [text.partition(":")[0] for text in verdict.earlier] == ["attempt 1", "attempt 2"]
    assert verdict.cause.endswith("; it may be from attempt 1: the program crashed with a segmentation fault")


def test_an_exception_after_a_line_of_information_was_not_logged(tmp_path: Path) -> None:
    done = "2025-10-01 20:10:00 | INFO | train | done training in 7790.2 seconds\n[3/3] evaluation\n"
    error = "FileNotFoundError: Dataset not found: test2"
    log = f"{STEPS}{done}2025-10-01 20:10:01 | INFO | generate | loading the model\n{TRACEBACK.format(error=error)}"
    verdict = why(tmp_path, slurm__7_log=log)
    assert verdict.class_ == "missing-file"
    assert verdict.cause.endswith("; the training had finished before")


@pytest.mark.parametrize(("file", "class_"), [("/home/s/hf_token", "permission"), ("/home/s/data.txt", "hub-access")])
def test_a_token_that_the_script_cannot_read_is_why_a_server_refuses(tmp_path: Path, file: str, class_: str) -> None:
    refused = TRACEBACK.format(error="requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://h")
    verdict = why(tmp_path, slurm__7_log=f"cat: {file}: Permission denied\nstart\n{refused}")
    assert verdict.class_ == class_


@pytest.mark.parametrize(("elapsed", "class_"), [("00:01:33", "no-training"), ("05:00:00", "no-failure")])
def test_a_short_job_of_lightning_that_ended_after_its_restore_trained_nothing(
    tmp_path: Path, elapsed: str, class_: str
) -> None:
    log = "Restored all states from the checkpoint at /s/last.ckpt\n`Trainer.fit` stopped: `max_epochs=40` reached.\n"
    log += "all done\n"
    verdict = why(tmp_path, slurm__7_log=log, sacct_txt=f"JobID|State|ExitCode|Elapsed\n7|COMPLETED|0:0|{elapsed}\n")
    assert (verdict.class_, verdict.confidence == "likely") == (class_, class_ == "no-training")


def test_a_command_after_the_last_attempt_is_no_part_of_its_exception(tmp_path: Path) -> None:
    error = "ValueError: loaded state dict has a different number of parameter groups"
    attempts = "".join(
        f"== attempt {number}/3 ==\nloading\n{TRACEBACK.format(error=error)}attempt {number} ended with status 1\n"
        for number in (1, 2, 3)
    )
    notice = "slack: curl: (6) Could not resolve host: hooks.example.org\ngiving up after 3 attempts\n"
    verdict = why(tmp_path, slurm__7_log=attempts + notice)
    assert verdict.class_ == "checkpoint-mismatch"


def test_data_that_the_script_could_not_unpack_are_damaged_later(tmp_path: Path) -> None:
    unpacking = "tar: ./clips/9.mp4: Cannot write: No space left on device\n"
    error = "RuntimeError: Could not open input file: /local/7/clips/9.mp4 Invalid data found when processing input"
    verdict = why(tmp_path, slurm__7_log=unpacking + STEPS + TRACEBACK.format(error=error))
    assert (verdict.class_, verdict.evidence[0].text) == ("disk-full", unpacking.strip())
    (tmp_path / "alone").mkdir()
    assert why(tmp_path / "alone", slurm__7_log=STEPS + TRACEBACK.format(error=error)).class_ == "corrupt-file"


@pytest.mark.parametrize(
    ("line", "class_"),
    [
        ("CondaError: Run 'conda init' before 'conda activate'", "conda"),
        ("slurm_script: line 9: conda: command not found", "missing-module"),
    ],
)
def test_conda_itself_may_have_come_with_a_module(tmp_path: Path, line: str, class_: str) -> None:
    log = "slurm_script: line 8: module: command not found\n" + line + "\n"
    verdict = why(tmp_path, slurm__7_log=log + TRACEBACK.format(error="ModuleNotFoundError: No module named 'torch'"))
    assert verdict.class_ == class_


@pytest.mark.parametrize(("tasks", "class_"), [(4, "world-size"), (2, "no-failure")])
def test_without_labels_the_script_tells_how_many_tasks_ran_alone(tmp_path: Path, tasks: int, class_: str) -> None:
    (tmp_path / "job.sbatch").write_text(f"#!/bin/bash\n#SBATCH --ntasks={tasks}\nsrun python train.py\n")
    log = "".join(f"[14:02:11] world_size=1 rank=0 device=cuda:0 pid=4120{task}\n" for task in range(4)) + STEPS
    verdict = why(tmp_path, slurm__7_log=log, sacct_txt="JobID|State|ExitCode\n7|COMPLETED|0:0\n")
    assert verdict.class_ == class_


def test_the_own_log_of_a_rank_shows_no_output_of_the_late_one(tmp_path: Path) -> None:
    wait = (
        "[E802 02:06:43.4 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600007 milliseconds\n"
    )
    for rank in (1, 2, 3):
        (tmp_path / f"rank-{rank}.log").write_text(STEPS + wait.format(rank))
    assert "the last output before" not in explain([tmp_path]).cause


def test_a_rank_that_srun_killed_after_the_first_exit_is_no_culprit(tmp_path: Path) -> None:
    """Rank 1 lost its connection to rank 2, which had left, and rank 0 did not end at SIGTERM."""
    log = """\
srun: error: n2: task 2: Exited with exit code 17
srun: launch/slurm: _step_signal: Terminating StepId=7.0
slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-02T10:00:00 ***
srun: error: n1: task 1: Exited with exit code 1
srun: error: n1: task 0: Killed
"""
    lost = "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.2]:52371\n"
    lost = f'Traceback (most recent call last):\n  File "/p/t.py", line 5, in <module>\n    loss.backward()\n{lost}'
    verdict = why(tmp_path, slurm_log=log, rank__0_log=STEPS, rank__1_log=STEPS + lost, rank__2_log=STEPS)
    assert (verdict.rank, verdict.class_) == (2, "unknown")
    assert "exit code 17" in verdict.cause
