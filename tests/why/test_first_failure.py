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


TORCHRUN = """E0102 00:14:06.822000 8800 torch/distributed/elastic/agent.py:9] failed (exitcode: 1) local_rank: 1
Traceback (most recent call last):
  File "/u/env/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/u/env/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 269, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
fit.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-02_00:14:06
  host      : n4
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 8813)
  error_file: <N/A>
============================================================
"""
DIED = """Traceback (most recent call last):
  File "/u/fit.py", line 90, in <module>
    fit()
  File "/u/fit.py", line 71, in fit
    for batch in loader:
ZeroDivisionError: division by zero
"""
EXPORT = "".join(f"{word} of the model\n" for word in ("reading", "tracing", "folding", "checking", "copying"))


@pytest.mark.parametrize(
    "report", [TORCHRUN, 9 * "a note of the site\n" + "srun: error: n4: task 1: Exited with exit code 1\n"]
)
@pytest.mark.parametrize(
    "end", ["training finished\n", "job completed successfully\n", "max_steps reached, all done\n"]
)
def test_a_script_that_goes_on_after_the_training_died_hides_a_failure(tmp_path: Path, report: str, end: str) -> None:
    log = STEPS + DIED + report + 3 * EXPORT + end
    verdict = why(tmp_path, slurm__7_log=log, sacct_txt=SACCT + "7|COMPLETED|0:0\n")
    assert "ZeroDivisionError" in verdict.cause
    assert "Slurm booked COMPLETED" in verdict.cause
    assert verdict.confidence == "likely"


@pytest.mark.parametrize(
    "log",
    [
        DIED + TORCHRUN + STEPS + "training finished\n",  # a first try
        STEPS + DIED.replace("<module>", "try_size") + 3 * EXPORT + STEPS + "training finished\n",  # a caught exception
    ],
)
def test_an_error_that_the_training_did_not_die_of_is_no_failure(tmp_path: Path, log: str) -> None:
    verdict = why(tmp_path, slurm__7_log=log, sacct_txt=SACCT + "7|COMPLETED|0:0\n")
    assert verdict.cause.startswith("did not fail")


@pytest.mark.parametrize("form", ["Retrying in {number}s [Retry {number}/5].\n", "Retry {number}: will retry in 2 s\n"])
def test_retries_of_one_library_are_not_the_failure_of_another_one(tmp_path: Path, form: str) -> None:
    retry = "MaxRetryError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded\n"
    log = "".join(retry + form.format(number=number) for number in range(1, 6)) + "using the local cache\n"
    failure = """Traceback (most recent call last):
  File "/u/fit.py", line 9, in <module>
    wandb.init(project="p")
  File "/u/env/lib/python3.11/site-packages/wandb/sdk/wandb_init.py", line 975, in init
    raise CommError(
wandb.errors.errors.CommError: Run initialization has timed out after 120.0 sec.
"""
    lost = """[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/u/fit.py", line 12, in <module>
[rank{rank}]:     dist.barrier()
[rank{rank}]: torch.distributed.DistBackendError: [{rank}] is setting up NCCL, but {store}
"""
    store = "store->get('0') got error: Failed to recv, got 0 bytes. Connection was likely closed."
    log += failure + lost.format(rank=1, store=store) + lost.format(rank=2, store=store)
    verdict = why(tmp_path, slurm__7_log=log, sacct_txt=SACCT + "7|FAILED|1:0\n")
    assert verdict.class_ == "wandb"
    assert "120.0 s" in verdict.cause
    assert verdict.rank not in {1, 2}


@pytest.mark.parametrize(
    ("warning", "confidence"),
    [
        ("CUDA initialization: The NVIDIA driver on your system is too old (found version 11040).", "certain"),
        (("CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display "
         "driver / cuda driver combination"), "certain"),
        ("CUDA initialization: Found no NVIDIA driver on your system.", "likely"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: No backend type associated with device type cpu",
        "ValueError: fp16 mixed precision requires a GPU (not 'cpu').",
        """RuntimeError: "addmm_impl_cpu_" not implemented for 'Half'""",
        "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False.",
        "AssertionError: this program needs a GPU",
    ],
)
def test_the_driver_is_behind_tensors_that_stayed_on_the_cpu(
    tmp_path: Path, warning: str, confidence: str, error: str
) -> None:
    log = f"0: /e/torch/cuda/__init__.py:174: UserWarning: {warning}\n0:   return torch._C._cuda_getDeviceCount() > 0\n"
    log += "0: device cpu\n" + "".join(f"0: {line}\n" for line in DIED.splitlines()[:-1]) + f"0: {error}\n"
    verdict = why(tmp_path, slurm__7_log=log, sacct_txt=SACCT + "7|FAILED|1:0\n")
    assert verdict.class_ in {"driver-too-old", "driver-mismatch", "no-gpu"}
    assert confidence == "certain" or verdict.confidence == "likely" or "deserialize" in error


def test_tensors_on_the_cpu_alone_blame_no_driver(tmp_path: Path) -> None:
    log = STEPS + DIED.replace("ZeroDivisionError: division by zero", "RuntimeError: Tensors must be CUDA and dense")
    verdict = why(tmp_path, slurm__7_log=log, sacct_txt=SACCT + "7|FAILED|1:0\n")
    assert (verdict.class_, verdict.confidence) == ("cpu-tensors", "certain")


@pytest.mark.parametrize(
    "error", ["DistStoreError: wait timeout after 900000ms, keys: /x", "DistStoreError: Socket Timeout"]
)
def test_torchrun_that_waits_for_more_nodes_than_the_job_has(tmp_path: Path, error: str) -> None:
    module = 'Lmod has detected the following error: The following module(s) are unknown: "nccl/2"\n'
    agent = "/e/lib/python3.11/site-packages/torch/distributed/elastic/agent/server/api.py"
    log = module + "I0102 13:30:00.1 99 torch/distributed/launcher/api.py:194]   min_nodes        : 3\n"
    log += f"""Traceback (most recent call last):
  File "/e/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "{agent}", line 525, in _rendezvous
    workers = self._assign_worker_ranks(
  File "{agent}", line 591, in _assign_worker_ranks
    store.get(key)
torch.distributed.{error}
srun: error: n2: task 1: Exited with exit code 1
"""
    table = "JobID|State|ExitCode|NodeList\n7|FAILED|1:0|n[1-2]\n7.batch|FAILED|1:0|n1\n"
    verdict = why(tmp_path, slurm__7_log=log, sacct_txt=table)
    assert (verdict.class_, verdict.confidence) == ("world-size", "certain")
    assert "torchrun waits for 3 nodes, and the job has 2 nodes" in verdict.cause


@pytest.mark.parametrize(
    "message",
    [
        "Couldn't reach 'wikitext' on the Hub (ConnectionError)\nUsing the latest cached version of the dataset\n",
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries\n",
    ],
)
def test_a_download_that_failed_is_not_behind_an_error_about_something_else(tmp_path: Path, message: str) -> None:
    log = message + "model built\n" + DIED.replace("ZeroDivisionError: division by zero", "ValueError: bad shard 4")
    verdict = why(tmp_path, slurm__7_log=log, sacct_txt=SACCT + "7|FAILED|1:0\n")
    assert "bad shard 4" in verdict.cause
    missing = DIED.replace("ZeroDivisionError: division by zero", "ValueError: tokenizer not found")
    verdict = why(tmp_path, slurm__7_log=message + missing, sacct_txt=SACCT + "7|FAILED|1:0\n")
    assert verdict.class_ == "hub-access"


def test_an_exception_that_a_loop_printed_several_times_is_no_certain_end(tmp_path: Path) -> None:
    log = "".join(f"trial {number}\n{DIED}" for number in range(3)) + "best trial: 2\nsearch finished\nall done\n"
    verdict = why(tmp_path, slurm__7_log=log, sacct_txt=SACCT + "7|COMPLETED|0:0\n")
    assert verdict.confidence == "likely"


@pytest.mark.parametrize("end", [DIED, "srun: error: n4: task 1: Killed\n", TORCHRUN.replace(": 1", ": -9")])
def test_a_training_without_a_step_after_its_failure_is_doubted(tmp_path: Path, end: str) -> None:
    log = STEPS + end + 5 * EXPORT + "training finished\n"
    verdict = why(tmp_path, slurm__7_log=log, sacct_txt=SACCT + "7|COMPLETED|0:0\n")
    assert verdict.cause.startswith("did not fail")
    assert "may have ended the training: no step follows it" in verdict.cause
    assert verdict.confidence == "likely"


def test_a_script_that_starts_its_program_again_without_a_word(tmp_path: Path) -> None:
    error = "RuntimeError: The server socket has failed to listen on any local network address. port: 29500, EADDRINUSE"
    again = DIED.replace("ZeroDivisionError: division by zero", error)
    verdict = why(tmp_path, slurm__7_log=STEPS + DIED + "sleeping\n" + again, sacct_txt=SACCT + "7|FAILED|1:0\n")
    assert "ZeroDivisionError" in verdict.cause
    assert verdict.confidence == "likely"


def test_all_retries_of_a_download_are_warnings(tmp_path: Path) -> None:
    retry = "MaxRetryError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded\n"
    log = "".join(f"{retry}Retrying in {number} s\n" for number in range(1, 6))
    log += "found in the cache\n" + DIED.replace("ZeroDivisionError: division by zero", "ValueError: a url is missing")
    verdict = why(tmp_path, slurm__7_log=log, sacct_txt=SACCT + "7|FAILED|1:0\n")
    assert (verdict.class_, verdict.confidence) != ("hub-access", "certain")
