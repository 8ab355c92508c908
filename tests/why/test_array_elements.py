"""`hpc_kit.runs.why.array_elements`: the elements of a job array are separate jobs, and their indices are no ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_kit.runs.why import explain
from hpc_kit.runs.why.array_elements import explain_elements

STEPS = "".join(f"step {step} loss {3 - step / 10:.2f}\n" for step in range(9))
DONE = STEPS + "Training finished\n"
TRACEBACK = 'Traceback (most recent call last):\n  File "/home/u/train.py", line 9, in main\n    run()\n{}\n'
KEY = STEPS + TRACEBACK.format("KeyError: 'labels'")
FULL = STEPS + TRACEBACK.format("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
LOST = STEPS + TRACEBACK.format("RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.7]:5512")
SCRIPT = "#!/bin/bash\n#SBATCH --array=0-3\npython train.py\n"
TABLE = "JobID|State|ExitCode\n12_0|COMPLETED|0:0\n12_1|FAILED|1:0\n12_2|TIMEOUT|0:0\n12_3|FAILED|1:0\n"
NAMES = {"0": DONE, "1": KEY, "2": FULL, "3": KEY}


def write(folder: Path, files: dict[str, str]) -> list[Path]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return [folder]


def groups(folder: Path, files: dict[str, str]) -> list[tuple[list[str], str, int | None]]:
    found = explain_elements(write(folder, files))
    return [(ids, verdict.class_, verdict.rank) for ids, verdict in found]


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("slurm-12_{}.out", {}),
        ("12_{}_0_log.err", {}),
        ("sweep_12_{}.out", {}),
        ("12_{}.log", {"sacct.txt": TABLE}),
        ("sweep-12-{}.out", {"job.sbatch": SCRIPT}),
        ("12_{}/train.log", {}),
    ],
)
def test_names_of_files_give_the_elements(tmp_path: Path, name: str, more: dict[str, str]) -> None:
    files = {name.format(index): text for index, text in NAMES.items()}
    rank = 0 if "_log" in name else None
    assert groups(tmp_path, files | more) == [
        (["12_1", "12_3"], "python-exception", rank),
        (["12_2"], "gpu-memory", rank),
        (["12_0"], "no-failure", None),
    ]


@pytest.mark.parametrize(
    ("script", "name"),
    [("#SBATCH -a 0-3 -o logs/fold%a.log", "fold{}.log"), ("python t.py > out/${SLURM_ARRAY_TASK_ID}.txt", "{}.txt")],
)
def test_names_that_a_script_gives_to_the_files_of_elements(tmp_path: Path, script: str, name: str) -> None:
    files = {name.format(index): text for index, text in NAMES.items()}
    found = groups(tmp_path, files | {"job.sh": f"#!/bin/bash\n#SBATCH --array=0-3\n{script}\n"})
    assert [ids for ids, _, _ in found] == [["_1", "_3"], ["_2"], ["_0"]]


def test_a_folder_of_an_element_in_a_script_names_no_file(tmp_path: Path) -> None:
    script = "#!/bin/bash\n#SBATCH --array=0-3\n#SBATCH -o logs/%a/train.log\n"
    assert groups(tmp_path, {"job.sh": script, "train.log": KEY}) == [([], "python-exception", None)]


def test_two_jobs_of_submitit_are_separate_jobs(tmp_path: Path) -> None:
    files = {"6248_0_log.err": STEPS, "6248_0_log.out": "INFO - Job completed successfully\n", "6257_0_log.err": KEY}
    assert groups(tmp_path, files) == [(["6257"], "python-exception", 0), (["6248"], "no-failure", None)]
    assert explain([tmp_path]).cause.endswith("1 of 2 jobs ended so: 6257")


def test_one_answer_names_the_failed_elements_of_the_most_common_cause(tmp_path: Path) -> None:
    verdict = explain(write(tmp_path, {f"slurm-12_{index}.out": text for index, text in NAMES.items()}))
    assert verdict.cause.endswith("; 2 of 4 elements of the array ended so: 12_1, 12_3")
    assert verdict.also[0].startswith("12_2 (1): the program ran out of GPU memory")
    assert verdict.also[1].startswith("12_0 (1): did not fail")


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("fit-12-{}.out", {}),
        ("rank-{}.log", {"job.sbatch": SCRIPT}),
        ("12_{}_log.err", {}),
        ("12_{}.log", {"job.sbatch": "#!/bin/bash\nsrun --output=%j_%t.log python train.py\n"}),
    ],
)
def test_other_numbers_are_ranks(tmp_path: Path, name: str, more: dict[str, str]) -> None:
    files = {name.format(rank): text for rank, text in enumerate([LOST, KEY, LOST])}
    assert groups(tmp_path, files | more) == [([], "python-exception", 1)]


def test_files_whose_numbers_are_the_ranks_that_they_name_are_of_ranks(tmp_path: Path) -> None:
    texts = [f"rank {rank} of 3 started\n{text}" for rank, text in enumerate([LOST, KEY, LOST])]
    files = {f"train_5120_{rank}.out": text for rank, text in enumerate(texts)}
    assert groups(tmp_path, files) == [([], "python-exception", 1)]


def test_ranks_within_an_element(tmp_path: Path) -> None:
    files = {f"12_{index}_{rank}_log.out": DONE for index in range(3) for rank in range(2)}
    files |= {"12_1_0_log.out": LOST, "12_1_1_log.out": KEY}
    assert groups(tmp_path, files) == [(["12_1"], "python-exception", 1), (["12_0", "12_2"], "no-failure", None)]


def test_an_element_without_a_log_is_judged_by_its_state(tmp_path: Path) -> None:
    found = groups(tmp_path, {"sacct.txt": TABLE, "slurm-12_3.out": KEY})
    assert found == [
        (["12_3"], "python-exception", None),
        (["12_2"], "time-limit", None),
        (["12_1"], "unknown", None),
        (["12_0"], "no-failure", None),
    ]


def test_the_logs_of_some_elements(tmp_path: Path) -> None:
    found = groups(tmp_path, {"sacct.txt": TABLE.replace("12_", "7_"), "7_1.log": KEY, "7_3.log": FULL})
    assert [ids for ids, _, _ in found] == [["7_1"], ["7_3"], ["7_2"], ["7_0"]]


def test_a_log_without_an_index_is_of_an_element_that_failed(tmp_path: Path) -> None:
    (ids, verdict), *_ = explain_elements(write(tmp_path, {"sacct.txt": TABLE, "train.log": KEY}))
    assert (ids, verdict.class_, verdict.confidence) == (["12_3"], "python-exception", "likely")


def test_a_message_of_the_kernel_counts_for_each_element(tmp_path: Path) -> None:
    kill = "[Mon Nov  3 10:00:00 2025] Memory cgroup out of memory: Killed process 41 (python) {}\n"
    killed = STEPS + "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0.\n"
    files = {"dmesg-n01.txt": kill.format("anon-rss:8000kB"), "slurm-12_0.out": killed, "slurm-12_1.out": DONE}
    assert groups(tmp_path, files)[0][:2] == (["12_0"], "host-memory")


def test_other_jobs_of_the_queue_are_no_elements(tmp_path: Path) -> None:
    queue = "JOBID|STATE|REASON\n77_4|RUNNING|None\n77_[5-9]|PENDING|Priority\n9120|FAILED|NonZeroExitCode\n"
    assert groups(tmp_path, {"squeue.txt": queue, "slurm-9120.out": KEY}) == [([], "python-exception", None)]


def test_the_record_of_scontrol_and_raw_ids_name_the_element(tmp_path: Path) -> None:
    record = "JobId=15 ArrayJobId=12 ArrayTaskId=3 JobName=x\n   JobState=FAILED Reason=None ExitCode=1:0\n"
    table = "JobID|JobIDRaw|State|ExitCode\n12_3|15|FAILED|1:0\n12_4|16|COMPLETED|0:0\n"
    found = groups(tmp_path, {"show.txt": record, "sacct.txt": table, "slurm-12_3.out": KEY, "slurm-12_4.out": DONE})
    assert found == [(["12_3"], "python-exception", None), (["12_4"], "no-failure", None)]
