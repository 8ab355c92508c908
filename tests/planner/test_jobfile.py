"""The job that a plan becomes: what it asks of the cluster, how long it may take, and what it says of its model."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from hpc_kit.errors import SpecError
from hpc_kit.planner import hardware, job_files, model_catalogue
from hpc_kit.planner.job_files import job_from_plan
from hpc_kit.planner.search import Plan, search_layouts
from hpc_kit.spec import load
from hpc_kit.spec.job import Job, Launch, Layout, Model
from hpc_kit.spec.resources import Resources
from tests.conftest import ROOT
from tests.planner.runs import fitted, task

OWN = Job(name="mine", command=("python", "train.py"))


@pytest.fixture(scope="module")
def plan() -> Plan:
    return search_layouts(task(gpus=16, global_batch=64), fitted("dgx-h100")).plans[0]


@pytest.mark.parametrize(
    ("launcher", "base", "asked"),
    [
        ("srun", {}, {"gpus_per_task": 1}),
        ("srun", {"gpus_per_task": "a100:1"}, {"gpus_per_task": "a100:1"}),
        ("srun", {"gpus_per_node": 2, "partition": "gpu"}, {"gpus_per_task": 1, "partition": "gpu"}),
        ("srun", {"gres": "gpu:h100:4,nvme:1"}, {"gpus_per_task": "h100:1", "gres": "nvme:1"}),
        ("torchrun", {}, {"gpus_per_node": 8}),
        ("torchrun", {"gpus_per_node": "a100:2"}, {"gpus_per_node": "a100:8"}),
    ],
)
def test_each_rank_has_a_gpu(plan: Plan, launcher: Any, base: dict[str, Any], asked: dict[str, Any]) -> None:
    found = job_from_plan(
        plan, structs.replace(OWN, launch=Launch(launcher=launcher), resources=Resources(**base)), "x", ROOT
    )
    ranks: dict[str, Any] = {"nodes": 2, "ntasks_per_node": 1 if launcher == "torchrun" else 8}
    assert found.resources == Resources(**ranks, **asked)


def test_on_processors_no_gpu_is_asked_for(plan: Plan) -> None:
    machine = structs.replace(plan.layout.machine, gpu=hardware.find_gpu("cpu"))
    found = job_from_plan(structs.replace(plan, layout=structs.replace(plan.layout, machine=machine)), OWN, "x", ROOT)
    assert found.resources == Resources(nodes=2, ntasks_per_node=8)


@pytest.mark.parametrize(
    ("given", "step", "limit"),
    [
        ("00:10:00", 34.72, "00:40:00"),  # 30 steps take 17.4 min, twice that and 5 min
        ("00:10:00", 4000.0, "2-18:45:00"),
        ("1:00:00", 34.72, "1:00:00"),
        ("UNLIMITED", 34.72, "UNLIMITED"),
        (None, 34.72, "00:40:00"),
    ],
)
def test_the_limit_is_enough_for_the_steps(plan: Plan, given: str | None, step: float, limit: str) -> None:
    rest = plan.time.total - plan.time.compute
    slower = structs.replace(plan, time=structs.replace(plan.time, compute=step - rest))
    base = structs.replace(OWN, resources=Resources(time=given))
    assert job_from_plan(slower, base, "x", ROOT, steps=30).resources.time == limit
    assert job_from_plan(slower, base, "x", ROOT).resources.time == given


def test_the_steps_of_a_shipped_program() -> None:
    base = load.load_job("ddp_1node", root=ROOT)
    assert job_files.training_steps(base, ROOT) == 60
    assert job_files.training_steps(structs.replace(base, command=(*base.command, "--steps=7")), ROOT) == 7
    assert job_files.training_steps(structs.replace(base, command=base.command[:2]), ROOT) == 60  # the program's own
    assert job_files.training_steps(OWN, ROOT) is None


def test_a_shipped_program_says_which_model_it_trains(plan: Plan) -> None:
    found = job_from_plan(plan, load.load_job("ddp_1node", root=ROOT), "x", ROOT)
    assert found.model.parameters == pytest.approx(6.48e9, rel=1e-3)
    assert found.description.startswith("a GPT of 256 words of the size of llama3-8b, 6.48e+09 parameters")
    assert job_files.PLAN_MODEL not in found.env
    again = job_files.model_of_job(found, ROOT)
    assert again is not None and again.model.parameters == found.model.parameters


@pytest.mark.parametrize("name", model_catalogue.model_names())
def test_a_written_job_says_the_model_that_was_planned(plan: Plan, name: str) -> None:
    model = model_catalogue.model_by_name(name)
    other = structs.replace(model, name="own")  # as from a config.json
    for one in (model, other):
        written = job_from_plan(
            structs.replace(plan, layout=structs.replace(plan.layout, model=one, seq_len=512)), OWN, "x", ROOT
        )
        found = job_files.model_of_job(written, ROOT)
        assert found is not None
        assert (structs.replace(found.model, name=one.name), found.assumed) == (one, "")
        assert (found.seq_len, found.global_batch) == (512, 64)
        job_files.check_job_model(found, written)


def test_a_written_job_says_framework_precision_and_attention(plan: Plan) -> None:
    change: dict[str, Any] = {
        "framework": "nemo",
        "precision": "fp8",
        "flash": False,
        "tp": 2,
        "sequence_parallel": True,
    }
    written = job_from_plan(structs.replace(plan, layout=structs.replace(plan.layout, **change)), OWN, "x", ROOT)
    assert job_files.planned_settings(written) == job_files.PlannedSettings("nemo", "fp8", flash=False)
    assert written.env["PLAN_SEQUENCE_PARALLEL"] == 1
    assert job_files.planned_settings(job_from_plan(plan, OWN, "x", ROOT)) == job_files.PlannedSettings(
        "torch", "bf16", flash=True
    )
    assert job_files.planned_settings(OWN) == job_files.PlannedSettings()
    assert (
        job_files.planned_settings(structs.replace(OWN, env={"PLAN_FRAMEWORK": "Megatron-LM"})).framework == "megatron"
    )


@pytest.mark.parametrize("name", ["PLAN_FRAMEWORK", "PLAN_PRECISION", "PLAN_FLASH"])
def test_a_variable_that_means_nothing_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match=f"{name} of job mine is 'perhaps'"):
        job_files.planned_settings(structs.replace(OWN, env={name: "perhaps"}))


SAID = Model(layers=32, width=4096, heads=32, sequence=8192)


@pytest.mark.parametrize(
    "change",
    [
        {"model": structs.replace(SAID, parameters=8030261248)},
        {"model": structs.replace(SAID, layers=16), "env": {"PLAN_MODEL": "llama3-8b"}},
    ],
)
def test_a_job_whose_model_contradicts_itself(change: dict[str, Any]) -> None:
    own = structs.replace(OWN, layout=Layout(global_batch=64), **change)
    found = job_files.model_of_job(own, ROOT)
    assert found is not None
    with pytest.raises(SpecError, match="job mine contradicts itself") as caught:
        job_files.check_job_model(found, own)
    assert "--model" in str(caught.value)


def test_what_is_close_is_no_contradiction() -> None:
    own = structs.replace(OWN, model=structs.replace(SAID, parameters=6_800_000_000))
    found = job_files.model_of_job(own, ROOT)
    assert found is not None and "as many key heads as heads, a global batch of 1024" in found.assumed
    job_files.check_job_model(found, own)
