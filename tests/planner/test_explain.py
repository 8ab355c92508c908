"""Traffic beside the capacity of links, alternatives to splitting, offloading, and the years of one GPU."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from hpc_kit.planner import communication_time, explain, hardware, model_catalogue, step_time
from hpc_kit.planner.cases import parse_case, predict_case
from hpc_kit.planner.hardware import GIB
from hpc_kit.planner.layout import split_stages
from hpc_kit.planner.memory import peak_memory
from hpc_kit.planner.search import Plan, search_layouts
from tests.planner.runs import fitted, run, task
from tests.planner.test_case_rows import KNOWN


def plan_of(model: str, machine: str, **change: Any) -> Plan:
    layout = run(model, machine, **{"seq_len": 4096, "global_batch": 512, **change})
    constants = fitted(machine)
    return Plan(layout, peak_memory(layout, constants), step_time.step_time(layout, constants))


@pytest.mark.parametrize(
    ("kind", "degrees"),
    [
        ("tensor", {"tp": 8, "dp": 8}),
        ("tensor", {"tp": 8, "dp": 8, "recompute": "full"}),
        ("shard", {"dp": 64, "zero_stage": 3}),
        ("shard", {"dp": 16, "pp": 4, "zero_stage": 3}),
        ("data", {"dp": 64}),
        ("data", {"dp": 64, "zero_stage": 1}),
        ("data", {"dp": 64, "zero_stage": 2}),
    ],
)
def test_traffic_at_full_rate_takes_the_seconds_of_its_collectives(kind: str, degrees: dict[str, Any]) -> None:
    """The step's own seconds without any overlap and latency."""
    plain = structs.replace(
        fitted("dgx-h100"), data_overlap=0.0, zero_overlap=0.0, shard_overlap=0.0, latency=0.0, latency_network=0.0,
        zero_cost=1.0, zero_calls=0.0,
    )  # fmt: skip
    layout = run("llama3-8b", "dgx-h100", seq_len=4096, global_batch=512, **degrees)
    size, group = communication_time.traffic_per_step(layout, plain)[kind]
    seconds = size / communication_time.ring_bandwidth(layout.machine, plain, group)
    assert getattr(step_time.step_time(layout, plain), kind) == pytest.approx(seconds, rel=0.1)


def test_the_traffic_is_that_of_the_stages_whose_time_counts() -> None:
    """nanotron's first stages have more layers, because the output counts as work of the last one."""
    layout = run("llama3-8b", "dgx-h100", pp=8, dp=2, tp=4, global_batch=64, framework="nanotron")
    by_cost, by_number = fitted("dgx-h100", "nanotron"), structs.replace(fitted("dgx-h100", "nanotron"), by_cost=0.0)
    most = max(stage.layers for stage in split_stages(layout, by_cost.by_cost))
    more, less = (communication_time.traffic_per_step(layout, each)["tensor"].size for each in (by_cost, by_number))
    assert most > layout.model.layers / 8
    assert more / less == pytest.approx(most / (layout.model.layers / 8))


def test_a_ring_between_nodes_shares_the_network_of_a_node() -> None:
    plan = plan_of("llama3-8b", "dgx-h100", dp=64, zero_stage=3)
    (use,) = explain.link_uses(plan, fitted("dgx-h100"))
    assert (use.kind, use.link, use.capacity) == ("shard", "network, 8 nodes", 8 * 50e9)
    assert use.reached < use.capacity
    share, network, pcie = explain.link_sentences(plan, fitted("dgx-h100"))
    assert share.startswith("communication takes ")
    assert network.startswith("the network of a node has 3.2 Tb/s; a large collective reaches 1.")
    assert pcie.startswith("links inside a node: 450 GB/s, 7.0 times PCIe (64 GB/s)")


def test_tensor_parallelism_over_pcie_is_slower() -> None:
    plan = plan_of("llama3-8b", "dgx-a100", tp=4, dp=2)
    sentence = explain.link_sentences(plan, fitted("dgx-a100"))[-1]
    assert "300 GB/s, 9.4 times PCIe (32 GB/s); on PCIe the step takes" in sentence and "(+" in sentence
    card = hardware.find_gpu("a100-pcie-80g")
    slow = structs.replace(plan.layout, machine=structs.replace(plan.layout.machine, gpu=card))
    other = structs.replace(plan, layout=slow)
    assert not any("times PCIe" in sentence for sentence in explain.link_sentences(other, fitted("dgx-a100")))


@pytest.mark.parametrize(
    ("gpu", "times"), [("p100", "80 GB/s, 5.0"), ("v100-32g", "150 GB/s, 9.4"), ("h100", "450 GB/s, 7.0")]
)
def test_the_links_of_four_gpus_are_compared_with_pcie(gpu: str, times: str) -> None:
    """The first NVLink was five times as fast as PCIe."""
    plan = plan_of("gpt2-xl", "dgx-a100", dp=4)
    machine = structs.replace(plan.layout.machine, gpu=hardware.find_gpu(gpu), gpus_per_node=4)
    four = structs.replace(plan, layout=structs.replace(plan.layout, machine=machine))
    assert f"links inside a node: {times} times PCIe" in explain.link_sentences(four, fitted("dgx-a100"))[-1]


def test_every_alternative_needs_less_memory_on_one_gpu() -> None:
    asked = structs.replace(task(gpus=8, global_batch=64), seq_len=2048)
    plan = search_layouts(asked, fitted("dgx-h100")).plans[0]
    planned, *changed = explain.alternatives(plan, fitted("dgx-h100"))
    assert planned.memory == plan.memory.total and planned.seconds == pytest.approx(plan.time.total)
    assert [each.name.partition(":")[0] for each in changed] == [
        "smaller batch",
        "smaller model",
        "recompute all activations",
        "offload gradients and optimizer",
    ]
    assert all(each.single_memory < planned.single_memory and each.memory < planned.memory for each in changed)
    batch, model, recompute, offload = changed
    assert model.seconds < planned.seconds < min(batch.seconds, recompute.seconds, offload.seconds)


def test_offloading_brings_13_billion_parameters_onto_one_v100() -> None:
    """ZeRO-Offload (arXiv 2101.06840): 13 billion parameters on one V100 with 32 GB; 1.4 billion without."""
    card = hardware.find_gpu("v100-32g")
    constants = fitted("dgx-a100")
    sizes = {}
    for name in ("llama2-13b", "gpt2-xl"):
        layout = structs.replace(
            run(name, global_batch=1, seq_len=1024, recompute="full", precision="fp16"),
            machine=structs.replace(hardware.find_machine("dgx-a100"), gpu=card, gpus_per_node=1),
        )
        offloaded = structs.replace(layout, offload=True)
        sizes[name] = [peak_memory(each, constants).total / GIB for each in (layout, offloaded)]
    assert sizes["llama2-13b"][0] > 200 and sizes["llama2-13b"][1] < 31.7
    assert sizes["gpt2-xl"][0] < 31.7


def test_the_host_updates_the_parameters_of_all_gpus_of_a_node() -> None:
    layout = run("llama3-8b", "dgx-a100", seq_len=4096, global_batch=64, dp=8, zero_stage=2, micro_batch=8)
    time = step_time.step_time(structs.replace(layout, offload=True), fitted())
    parameters = layout.model.parameters
    update = 28 * parameters / 100e9
    copies = 2 * 2 * parameters / 8 / (0.8 * 32e9)
    assert time.optimizer == 0.0
    assert update < time.offload < update + copies
    assert step_time.step_time(layout, fitted()).offload == 0.0


def test_a_cases_file_may_offload() -> None:
    plain, offloaded = (predict_case(parse_case({**KNOWN, "cpu_offload": word})) for word in ("false", "true"))
    assert plain.step_time is not None and offloaded.step_time is not None
    assert plain.memory_gib is not None and offloaded.memory_gib is not None
    assert offloaded.memory_gib < plain.memory_gib and offloaded.step_time > plain.step_time


def test_gpt3_takes_288_years_of_a_v100_at_46_tera_operations() -> None:
    """arXiv 2104.04473: 8 T P operations with T = 300e9 and P = 175e9; 37 % of the data sheet's 125 TFLOP/s."""
    years = 8 * 300e9 * 175e9 / 46.2e12 / explain.SECONDS_PER_YEAR
    assert years == pytest.approx(288, rel=2e-3)
    card = hardware.find_gpu("v100-32g")
    plan = plan_of("gpt3-175b", "dgx-a100", tp=8, pp=8, dp=8, seq_len=2048)
    machine = structs.replace(plan.layout.machine, gpu=card)
    plan = structs.replace(plan, layout=structs.replace(plan.layout, machine=machine, precision="fp16"))
    sentence = explain.single_gpu_years(plan, fitted(), 300e9)
    assert sentence.startswith("8 T P = 4.1")
    assert "one v100-32g takes 106 years at its data sheet's 125 TFLOP/s" in sentence
    assert model_catalogue.model_by_name("gpt3-175b").parameters == pytest.approx(175e9, rel=0.01)
