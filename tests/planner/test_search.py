"""Every legal layout is looked at, the rest have a reason."""

from __future__ import annotations

import re
import time

import pytest
from msgspec import structs

from hpc_kit.errors import HpcKitError
from hpc_kit.planner import hardware, model_catalogue
from hpc_kit.planner.advice import AdviceRule, advise, compare_order, strategy_of
from hpc_kit.planner.constants import time_error
from hpc_kit.planner.search import PlanningTask, explain_no_fit, search_layouts
from tests.planner.runs import fitted, run, task


def test_plans_are_legal_and_sorted() -> None:
    asked = task()
    answer = search_layouts(asked, fitted("dgx-h100"))
    times = [plan.time.total for plan in answer.plans]
    assert times == sorted(times)
    for plan in answer.plans:
        one = plan.layout
        assert one.gpus == 32
        assert one.global_batch == one.dp * one.micro_batch * one.micro_batches
        assert one.model.heads % one.tp == 0 and one.tp <= 8
        assert one.zero_stage < 2 or one.pp == 1
        assert one.virtual_stages == 1 or one.micro_batches % one.pp == 0
        assert 0 < plan.utilisation < 0.9


def test_reasons_of_rejection() -> None:
    reasons = " ".join(
        one.reason for one in search_layouts(task("llama3-70b", gpus=32, global_batch=24), fitted("dgx-h100")).rejected
    )
    for part in ("crosses nodes", "does not divide a batch of 24", "does not fit by"):
        assert part in reasons


def test_every_layout_on_512_gpus_in_less_than_a_second() -> None:
    begin = time.process_time()
    answer = search_layouts(task("llama3-70b", gpus=512, global_batch=2048), fitted("dgx-h100"))
    assert answer.plans
    assert time.process_time() - begin < 1


def test_a_cluster_too_small_says_the_least_that_would_do() -> None:
    for batch in (64, 97, 256):
        asked = task("llama3-405b", gpus=8, global_batch=batch)
        error = explain_no_fit(asked, search_layouts(asked, fitted("dgx-h100")), fitted("dgx-h100"))
        assert "does not fit" in error.what
        for line in (error.remedy or "").splitlines():
            options = dict(re.findall(r"(--[a-z-]+) (\d+)", line))
            gpus, other = 8 * int(options["--nodes"]), int(options.get("--global-batch", batch))
            assert search_layouts(task("llama3-405b", gpus=gpus, global_batch=other), fitted("dgx-h100")).plans


@pytest.mark.parametrize(("gpus", "batch", "output"), [(16, 7, "--nodes 4 --global-batch 16"), (32, 256, "--nodes 24")])
def test_the_least_is_looked_for_from_the_own_nodes_on(gpus: int, batch: int, output: str) -> None:
    model = "llama3-70b" if gpus == 16 else "llama3-405b"
    asked = structs.replace(task(model, "jz-h100", gpus=gpus, global_batch=batch), seq_len=4096 if gpus == 16 else 8192)
    remedy = explain_no_fit(asked, search_layouts(asked, fitted("jz-h100")), fitted("jz-h100")).remedy or ""
    assert output in remedy and ("with a batch of 256: --nodes 32" in remedy) == (batch == 256)


def test_selective_recomputation_is_tried_where_it_saves_something() -> None:
    plain = search_layouts(task("gpt3-175b", gpus=512), fitted("dgx-h100"))
    assert {plan.layout.recompute for plan in plain.plans} == {"none", "full"}
    stored = structs.replace(task("gpt3-175b", gpus=512), flash=False)
    assert "selective" in {plan.layout.recompute for plan in search_layouts(stored, fitted("dgx-h100")).plans}
    by_operator = search_layouts(task("llama3-70b", gpus=512), fitted("dgx-h100", "torchtitan"))
    assert "selective" in {plan.layout.recompute for plan in by_operator.plans}


def test_a_sequence_of_8192_is_split_over_two_ranks_too() -> None:
    assert {plan.layout.cp for plan in search_layouts(task("llama3-8b", gpus=32), fitted("dgx-h100")).plans} >= {1, 2}


def test_8_bit_products_are_faster_where_there_are_any_and_refused_elsewhere() -> None:
    asked = structs.replace(task("llama3-70b", gpus=512), precision="fp8")
    eight = search_layouts(asked, fitted("dgx-h100")).plans[0].time.total
    assert eight < search_layouts(task("llama3-70b", gpus=512), fitted("dgx-h100")).plans[0].time.total
    older = structs.replace(asked, machine=hardware.find_machine("dgx-a100"))
    with pytest.raises(HpcKitError, match="a100-80g has no 8-bit products"):
        search_layouts(older, fitted("dgx-a100"))


def test_a_batch_that_nothing_divides() -> None:
    asked = task("llama3-8b", gpus=8, global_batch=1)
    answer = search_layouts(asked, fitted("dgx-h100"))
    assert all(plan.layout.dp == 1 for plan in answer.plans)
    asked = task("gpt2", gpus=64, global_batch=7)
    error = explain_no_fit(asked, search_layouts(asked, fitted("dgx-h100")), fitted("dgx-h100"))
    assert "legal" in error.what and "64" in (error.remedy or "")


def test_the_usual_table_for_a_model_that_fits_one_gpu() -> None:
    asked = task("gpt2", gpus=8, global_batch=512)
    answer = search_layouts(asked, fitted("dgx-h100"))
    advice = advise(asked, fitted("dgx-h100"), answer.plans)
    assert advice.rule.strategies == ("DDP", "ZeRO")
    assert advice.agrees and advice.text.startswith("the numbers agree: ")
    assert strategy_of(run("gpt2", global_batch=8, tp=2, pp=2)) == "PP + TP + DP"


def test_a_reversed_order_is_a_disagreement_with_its_reasons() -> None:
    machine = structs.replace(hardware.find_machine("dgx-a100"), gpus_per_node=4)
    asked = PlanningTask(
        model=model_catalogue.model_by_name("llama3-8b"), machine=machine, gpus=4, global_batch=64, seq_len=2048
    )
    advice = advise(asked, fitted("dgx-a100"), search_layouts(asked, fitted("dgx-a100")).plans)
    assert advice.rule.strategies == ("PP", "ZeRO", "TP")
    assert advice.compared.order == ("TP", "ZeRO", "PP")
    assert not advice.agrees
    assert advice.text == "the numbers disagree: by time TP, then ZeRO, then PP"
    assert [sentence.partition(" takes ")[0] for sentence in advice.differences] == ["TP", "TP"]
    assert all("less than the +-" in sentence and "): its " in sentence for sentence in advice.differences)


RULE = AdviceRule("a situation", ("A", "B", "C"))


@pytest.mark.parametrize(
    ("seconds", "reversed_pairs", "verdict"),
    [
        ({"A": 1, "B": 2, "C": 3}, (), "yes"),
        ({"A": 1, "B": 3, "C": 2}, (("C", "B"),), "no"),  # behind the first choice
        ({"A": 1.0, "B": 1.0, "C": 3}, (), "cannot be told"),
        ({"A": 1.0, "B": 1.0, "C": 0.5}, (("C", "A"), ("C", "B")), "no"),
        ({"A": 1, "C": 2, "other": 0.1}, (), "yes"),
    ],
)
def test_the_whole_order_of_a_rule_is_compared(
    seconds: dict[str, float], reversed_pairs: tuple[tuple[str, str], ...], verdict: str
) -> None:
    found = compare_order(RULE, seconds, lambda one, other: seconds[one] == seconds[other])
    assert (found.reversed_pairs, found.verdict) == (reversed_pairs, verdict)
    free = compare_order(RULE._replace(is_ordered=False), seconds, lambda _one, _other: False)
    assert (free.order, free.reversed_pairs, free.verdict) == (found.order, (), "no order")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("lama3-8b", ("no model 'lama3-8b'", "llama3-8b", "layers=")),
        ("layers=32", ("lacks hidden, heads",)),
        ("layers=32,hidden=4096,heads=30", ("30 heads do not divide",)),
        ("layers=32,hidden=4096,heads=32,kv_heads=5", ("5 kv_heads do not divide",)),
        ("layers=x,hidden=4096,heads=32", ("no whole number",)),
        ("layers=0,hidden=4096,heads=32", ("out of range",)),
        ("depth=3", ("no number 'depth'",)),
        ("nowhere/config.json", ("cannot read",)),
    ],
)
def test_a_model_that_cannot_be(text: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(HpcKitError) as caught:
        model_catalogue.parse_model(text)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("h10", "no GPU 'h10'"),
        ("mine:memory=80", "lacks memory_tb"),
        ("mine:memory=x", "cannot read"),
        ("mine:memory=-1,memory_tb=1,tflops=1,link=1", "cannot read"),
    ],
)
def test_a_gpu_that_cannot_be(text: str, part: str) -> None:
    with pytest.raises(HpcKitError, match=part):
        hardware.find_gpu(text)


def test_a_gpu_by_its_numbers() -> None:
    card = hardware.find_gpu("mine:memory=64,memory_tb=3.2,tflops=380,link=400")
    assert (card.memory, card.flops) == (64 * 2**30, 380e12)
    assert hardware.find_gpu("a100").name == "a100-80g" and hardware.find_gpu("H100").name == "h100-80g"


def test_a_card_of_a_measured_generation_that_is_another_chip_is_less_sure() -> None:
    one = search_layouts(task(gpus=8, global_batch=64), fitted("dgx-h100")).plans[0].layout
    there = {
        name: structs.replace(one.machine, gpu=hardware.find_gpu(name)) for name in ("h100-80g", "h20-96g", "h200")
    }
    errors = {name: time_error(structs.replace(one, machine=machine)) for name, machine in there.items()}
    assert errors["h100-80g"] == errors["h200"]
    assert errors["h20-96g"][0] > errors["h100-80g"][0]
    assert "h20-96g was not among the measured GPUs" in errors["h20-96g"][1]
