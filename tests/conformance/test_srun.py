"""Steps: distribution of tasks, their variables, and the sharing of a job by several steps."""

from __future__ import annotations

import pytest

from tests.conformance.engine import Engine

TELL = "sh -c 'echo $SLURM_PROCID:$SLURM_NODEID:$SLURM_LOCALID'"


def places(text: str) -> dict[int, tuple[int, int]]:
    """Return node and local rank of each rank."""
    found = (tuple(map(int, line.split(":"))) for line in text.split())
    return {rank: (node, local) for rank, node, local in sorted(found)}


@pytest.mark.parametrize(
    ("job", "step", "nodes"),
    [
        ("-N2 -n4", "", "0001"),
        ("-N2 -n4", "--distribution=block", "0001"),
        ("-N2 -n4", "--distribution=cyclic", "0100"),
        ("-N2 -n5 --cpus-per-task=2", "--distribution=cyclic", "01010"),
        ("-N2 -n8", "--distribution=plane=2", "00100000"),
        ("-N2 -n8", "--distribution=plane=3", "00010000"),
        ("-N3 -n7 --ntasks-per-node=3", "", "0001122"),
        ("-N4 -n4", "", "0123"),
        ("-N4 --ntasks-per-node=2", "-N2", ""),
        ("-N4 --ntasks-per-node=2", "-N2 --ntasks=2", "01"),
        ("-N4 --ntasks-per-node=2", "--ntasks-per-node=1", "00112233"),
        ("-N4 --ntasks-per-node=2", "-n3", "012"),
        ("-N4 --ntasks-per-node=2", "-n5 --distribution=block", "00123"),
        ("-N2 -n16", "-c4", ""),
        ("-n1 -c8", "-n4 -c2", "0000"),
    ],
)
def test_tasks_are_distributed_over_nodes(engine: Engine, job: str, step: str, nodes: str) -> None:
    """`nodes` contains the node index of each rank, and is empty if the step is refused."""
    found = places(engine.run_job(f"srun {step} {TELL} 2>/dev/null || true", *job.split(), "--mem=200"))
    assert "".join(str(node) for node, _ in found.values()) == nodes
    for node in set(nodes):
        locals_ = [local for at, local in found.values() if str(at) == node]
        assert locals_ == list(range(len(locals_)))


@pytest.mark.parametrize(
    ("step", "chosen"),
    [
        ("-N1 -n1 -w {2}", "2"),
        ("-N2 -n2 --exclude={0}", "12"),
        ("-N2 -n2 --relative=2", "23"),
        ("-N1 -n1 -r 3", "3"),
        ("-N2 -n2 --nodelist={1},{3}", "13"),
    ],
)
def test_a_step_chooses_its_nodes(engine: Engine, step: str, chosen: str) -> None:
    nodes = "nodes=($(scontrol show hostnames))"
    for index in range(4):
        step = step.replace(f"{{{index}}}", f"${{nodes[{index}]}}")
    output = engine.run_job(
        f"{nodes}\necho ${{nodes[@]}}\nsrun {step} sh -c 'echo $SLURMD_NODENAME'", "-N4", "--mem=200"
    )
    first, *rest = output.splitlines()
    names = first.split()
    assert sorted(rest) == [names[int(index)] for index in chosen]


def test_steps_are_numbered(engine: Engine) -> None:
    tell = "sh -c 'echo $SLURM_STEP_ID $SLURM_STEPID'"
    assert engine.run_job(f"srun {tell}; srun {tell}; echo ${{SLURM_STEP_ID-none}}") == "0 0\n1 1\nnone\n"


def test_steps_run_side_by_side(engine: Engine) -> None:
    step = "srun -n1 --exact --mem=100 sh -c 'sleep 1; echo "
    assert sorted(engine.run_job(f"{step}one' & {step}two' & wait", "-n2", "--mem=200").split()) == ["one", "two"]


def test_a_step_waits_for_the_cpus_of_another(engine: Engine) -> None:
    body = "srun -n1 sh -c 'sleep 2; echo first' & sleep 0.7; srun -n1 echo second; wait"
    output = engine.run_job(f"{{ {body}; }} 2>/dev/null", "-n1", "--mem=200")
    assert output.split() == ["first", "second"]


def test_a_step_that_overlaps_does_not_wait(engine: Engine) -> None:
    body = "srun -n1 --overlap sh -c 'sleep 3; echo first' & sleep 0.7; srun -n1 --overlap echo second; wait"
    assert engine.run_job(body, "-n1", "--mem=200").split() == ["second", "first"]


@pytest.mark.parametrize(
    ("options", "step", "output"),
    [
        ("", "", "yes outer"),
        ("--export=NONE", "", "no none"),
        ("--export=ALL,KIT_B=own", "", "yes own"),
        ("--export=KIT_A", "", "yes none"),
        ("", "--export=ALL,KIT_C=step", "yes outer"),
        ("", "--export=KIT_B=step", "no step"),
    ],
)
def test_variables_are_passed_to_tasks(engine: Engine, options: str, step: str, output: str) -> None:
    body = f"srun {step} /bin/sh -c 'echo ${{KIT_A-no}} ${{KIT_B-none}}'"
    job_id = engine.output_of(
        "sbatch",
        "--parsable",
        *options.split(),
        "--output=handed-%j",
        f"--wrap={body}",
        env={"KIT_A": "yes", "KIT_B": "outer"},
    ).strip()
    engine.await_end(job_id)
    assert engine.read_text(f"handed-{job_id}") == f"{output}\n"


def test_gpus_are_numbered_for_their_tasks(engine: Engine) -> None:
    tell = "sh -c 'echo $SLURM_PROCID $CUDA_VISIBLE_DEVICES'"
    assert engine.run_job(f"srun {tell}", "--gres=gpu:2", "--mem=200") == "0 0,1\n"
    assert engine.run_job(f"srun {tell}", "--gres=gpu:1", "--mem=200").startswith("0 0\n")
    each = engine.run_job(f"srun --gpus-per-task=1 {tell}", "-n2", "-N1", "--gpus-per-task=1", "--mem=200")
    assert sorted(each.splitlines()) == ["0 0", "1 1"]
