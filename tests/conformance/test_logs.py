"""Names and contents of log files."""

from __future__ import annotations

import pytest

from tests.conformance.engine import Engine


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("%x-%j.log", "a name-{id}.log"),
        ("p-%5j", "p-{id:0>5}"),
        ("q-%%j", "q-%j"),
        ("r-%N-%n-%t-%s-{id}", "r-{node}-0-0-batch-{id}"),
        ("u-%u-%J", "u-root-{id}"),
        ("A-%A-%a", "A-{id}-4294967294"),
    ],
)
def test_a_batch_scripts_log_is_named(engine: Engine, pattern: str, name: str) -> None:
    pattern = pattern.replace("{id}", "%j")
    job_id = engine.submit("echo $SLURMD_NODENAME", f"--output={pattern}", "--job-name=a name", "--mem=100")
    assert engine.await_end(job_id).state == "COMPLETED"
    node = engine.show_job(job_id)["BatchHost"]
    assert engine.read_text(name.format(id=job_id, node=node)) == f"{node}\n"


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("t-%j-%t", ["t-{id}-0", "t-{id}-1", "t-{id}-2"]),
        ("n-%j-%n", ["n-{id}-0", "n-{id}-1"]),
        ("s-%j.%s", ["s-{id}.0"]),
        ("J-%J", ["J-{id}.0"]),
        ("N-%j-%N", ["N-{id}-{first}", "N-{id}-{second}"]),
    ],
)
def test_a_steps_logs_are_named(engine: Engine, pattern: str, names: list[str]) -> None:
    body = f"srun --output={pattern} echo line; scontrol show hostnames"
    job_id = engine.submit(body, "-N2", "-n3", "--output=nodes-%j", "--mem=100")
    assert engine.await_end(job_id).state == "COMPLETED"
    first, second = engine.read_text(f"nodes-{job_id}").split()
    wanted = [name.format(id=job_id, first=first, second=second) for name in names]
    prefix = wanted[0].partition(job_id)[0]
    assert sorted(path.name for path in engine.folder.glob(f"{prefix}{job_id}*")) == sorted(wanted)
    assert sum(engine.read_text(name).count("line\n") for name in wanted) == 3


def test_errors_go_to_the_output_file_by_default(engine: Engine) -> None:
    body = "echo out; echo err >&2; srun sh -c 'echo step-out; echo step-err >&2'"
    together = engine.submit(body, "--output=both-%j")
    apart = engine.submit(body, "--output=out-%j", "--error=err-%j")
    engine.await_end(together)
    engine.await_end(apart)
    assert sorted(engine.read_text(f"both-{together}").split()) == ["err", "out", "step-err", "step-out"]
    assert engine.read_text(f"out-{apart}").split() == ["out", "step-out"]
    assert engine.read_text(f"err-{apart}").split() == ["err", "step-err"]


@pytest.mark.parametrize(("mode", "text"), [("truncate", "new\n"), ("append", "old\nnew\n"), (None, "new\n")])
def test_an_existing_log_is_replaced_or_extended(engine: Engine, mode: str | None, text: str) -> None:
    (engine.folder / f"there-{mode}").write_text("old\n")
    options = [f"--open-mode={mode}"] if mode else []
    engine.await_end(engine.submit("echo new", f"--output=there-{mode}", *options))
    assert engine.read_text(f"there-{mode}") == text


def test_lines_of_tasks_are_labelled(engine: Engine) -> None:
    output = engine.run_job("srun -n3 --label sh -c 'echo mine is $SLURM_PROCID'", "-n3")
    assert sorted(output.splitlines()) == [f"{rank}: mine is {rank}" for rank in range(3)]


def test_every_task_reads_the_input_of_srun(engine: Engine) -> None:
    assert engine.run_job("echo word | srun -n2 cat", "-n2") == "word\nword\n"
    assert engine.run_job("echo word | srun -n2 --input=1 cat", "-n2") == "word\n"
    assert engine.run_job("echo word | srun -n2 --input=none cat", "-n2") == ""
