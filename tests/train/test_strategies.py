"""Every way of splitting the model trains the same one: the curve of one process, on from a checkpoint of any other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.train.ranks_of_a_run import Run
from tests.train.trained import TOLERANCE, Trained, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1600)]

SMALL = "--layers 4 --width 32 --heads 2 --sequence 16 --global-batch 16 --eval-windows 7 --lr 0.02 --log-every 4"

BF16 = 1e-3
"""The same in bfloat16, whose numbers have 8 bits: 2^-8 of a logit, averaged over the batch."""


def run(name: str, program: str, ranks: int, arguments: str = "", layout: str = "", steps: int = 6) -> Run:
    words = f"{SMALL} --steps {steps} {arguments}".split()
    return Run(name=name, program=program, ranks=ranks, arguments=words, layout=layout)


WHOLE = [
    run("ddp accumulate", "ddp", 2, "--accumulate 2"),
    run("ddp recompute", "ddp", 2, "--recompute"),
    run("ddp compile", "ddp", 2, "--compile aot_eager"),
    run("dataparallel", "dataparallel", 1),
    run("zero1", "zero1", 2, "", "zero=1"),
    run("zero1 offload", "zero1", 2, "--offload"),
    run("zero2", "fsdp", 2, "--accumulate 2", "zero=2"),
    run("zero3", "fsdp", 4, "", "zero=3"),
    run("two zero2", "fsdp", 2, "", "zero=2"),
    run("two zero3", "fsdp", 2, "", "zero=3"),
    run("fsdp offload", "fsdp", 2, "--offload"),
    run("hsdp", "fsdp", 4, "", "zero=3 dp_shard=2"),
    run("halves", "modelparallel", 2, "", "pp=2"),
    run("halves split", "modelparallel", 2, "--split-size 3"),
    run("GPipe", "pipeline", 2, "--schedule GPipe --recompute"),
    run("1F1B", "pipeline", 4, "--schedule 1F1B --balance time"),
    run("Interleaved1F1B", "pipeline", 2, "--schedule Interleaved1F1B"),
    run("InterleavedZeroBubble", "pipeline", 2, "--schedule InterleavedZeroBubble"),
    run("ZBVZeroBubble", "pipeline", 2, "--schedule ZBVZeroBubble"),
    run("tensor", "tensor", 2, "", "tp=2"),
    run("tensor sequence", "tensor", 2, "--sequence-parallel"),
    run("context", "context", 4, "", "cp=2"),
    run("pp dp", "hybrid", 4, "", "pp=2 micro_batches=2"),
    run("tp dp", "hybrid", 4, "", "tp=2 micro_batches=1"),
    run("3d", "hybrid", 8, "", "pp=2 dp=2 tp=2 micro_batches=4"),
    run("3d zero1", "hybrid", 8, "--sequence-parallel", "pp=2 tp=2 micro_batches=4 zero=1"),
    run("3d zero3", "hybrid", 8, "--schedule Interleaved1F1B", "pp=2 tp=2 micro_batches=4 zero=3"),
    run("pp 3 dp 2", "hybrid", 6, "", "pp=3 micro_batches=4"),
    run("zero bubble dp", "hybrid", 4, "--schedule InterleavedZeroBubble --recompute", "pp=2 micro_batches=4"),
    run("zero bubble tp", "hybrid", 4, "--schedule ZBVZeroBubble", "pp=2 tp=2 micro_batches=4"),
]
BY_THREE = [
    run(f"{name} of three", name, ranks, "--heads 3 --width 48", steps=3) for name, ranks in (("ddp", 1), ("tensor", 3))
]
COMPILED = [
    run("fsdp compile", "fsdp", 2, "--compile aot_eager", steps=2),
    run("tensor compile", "tensor", 2, "--compile aot_eager", steps=2),
    run("hybrid compile", "hybrid", 4, "--compile aot_eager", "tp=2 micro_batches=1", steps=2),
]
IN_BF16 = [
    run("bf16 ddp", "ddp", 2, "--bf16"),
    run("bf16 fsdp", "fsdp", 2, "--bf16"),
    run("bf16 3d", "hybrid", 8, "--bf16", "pp=2 tp=2 micro_batches=4"),
]
SAVED = [
    run("dp 4", "ddp", 4, "--checkpoint dp4", steps=5),
    run("fsdp 8", "fsdp", 8, "--checkpoint fsdp8", steps=5),
    run("pp 2", "pipeline", 2, "--checkpoint pp2", steps=5),
    run("zero2 2", "fsdp", 2, "--checkpoint zero2", "zero=2", steps=5),
    run("zero1 2", "zero1", 2, "--checkpoint zero1", steps=5),
    run("3d 8", "hybrid", 8, "--checkpoint 3d", "pp=2 tp=2 micro_batches=2 zero=1", steps=5),
]
RESUMED = [
    run("dp 4 to dp 2 tp 2", "hybrid", 4, "--resume dp4", "tp=2 micro_batches=1", steps=10),
    run("dp 4 to zero1 offload", "zero1", 2, "--offload --resume dp4", steps=10),
    run("fsdp 8 to fsdp 4", "fsdp", 4, "--resume fsdp8", steps=10),
    run("fsdp 8 to pp 2", "pipeline", 2, "--resume fsdp8 --schedule Interleaved1F1B", steps=10),
    run("pp 2 to dp 2", "ddp", 2, "--resume pp2", steps=10),
    run("zero2 2 to zero1", "zero1", 2, "--resume zero2", steps=10),
    run("zero1 2 to dp 2 tp 2", "hybrid", 4, "--resume zero1", "tp=2 micro_batches=2", steps=10),
    run("3d 8 to one", "ddp", 1, "--resume 3d", steps=10),
]
REFUSED = [
    run("heads", "tensor", 4),
    run("layers", "pipeline", 2, "--schedule Interleaved1F1B --stages-per-rank 4"),
    run("micro-batches", "pipeline", 4, "--micro-batches 2"),
    run("batch", "hybrid", 4, "--micro-batches 3", "pp=2"),
    run("accumulate", "pipeline", 2, "--accumulate 2"),
    run("world", "hybrid", 2, "--pp 4"),
    run("sequence", "context", 2, "--sequence 15"),
    run("halves of four", "modelparallel", 4),
    run("dataparallel of two", "dataparallel", 2),
    run("server alone", "parameter_server", 1),
    run("zero bubble compile", "pipeline", 2, "--compile aot_eager --schedule InterleavedZeroBubble"),
    run("another model", "pipeline", 2, "--resume dp4 --layers 6", steps=10),
]
LATE = [run("late", "ddp", 2, "--timeout 3")]
LATE[0]["rank_1"] = "hangs"
SERVED = [run("served", "parameter_server", 3, "--smooth 2")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Trained:
    one = [run("one", "ddp", 1), run("one long", "ddp", 1, steps=10)]
    runs = [*one, *WHOLE, *BY_THREE, *COMPILED, *IN_BF16, *SAVED, *RESUMED, *REFUSED, *LATE, *SERVED]
    return train(tmp_path_factory.mktemp("trained"), runs, source, timeout=1500)


def list_names(runs: list[Run]) -> list[str]:
    return [each["name"] for each in runs]


@pytest.mark.parametrize("name", list_names(WHOLE))
def test_the_loss_curve_is_that_of_one_process(trained: Trained, name: str) -> None:
    one, many = trained.result_of("one"), trained.result_of(name)
    assert one["losses"][-1] < one["losses"][0] - 0.5
    assert many["losses"] == pytest.approx(one["losses"], rel=TOLERANCE)
    assert many["norms"] == pytest.approx(one["norms"], rel=100 * TOLERANCE)
    assert many["before"] == pytest.approx(one["before"], rel=TOLERANCE)
    assert many["after"] == pytest.approx(one["after"], rel=TOLERANCE)


def test_a_degree_that_is_no_power_of_two_gives_the_same_losses(trained: Trained) -> None:
    one, three = trained.result_of("ddp of three"), trained.result_of("tensor of three")
    assert three["losses"] == pytest.approx(one["losses"], rel=TOLERANCE)
    assert three["norms"] == pytest.approx(one["norms"], rel=100 * TOLERANCE)


@pytest.mark.parametrize("name", list_names(COMPILED))
def test_compiled_layers_give_the_same_losses(trained: Trained, name: str) -> None:
    one, compiled = trained.result_of("one"), trained.result_of(name)
    assert compiled["losses"] == pytest.approx(one["losses"][:2], rel=TOLERANCE)
    assert compiled["norms"] == pytest.approx(one["norms"][:2], rel=100 * TOLERANCE)


@pytest.mark.parametrize("name", list_names(IN_BF16))
def test_mixed_precision_gives_similar_losses(trained: Trained, name: str) -> None:
    one, many = trained.result_of("one"), trained.result_of(name)
    assert many["losses"] == pytest.approx(one["losses"], rel=BF16)
    assert many["losses"] != pytest.approx(one["losses"], rel=TOLERANCE)


@pytest.mark.parametrize("name", list_names(RESUMED))
def test_a_checkpoint_of_one_layout_resumes_under_another(trained: Trained, name: str) -> None:
    unbroken, resumed = trained.result_of("one long"), trained.result_of(name)
    assert resumed["losses"] == pytest.approx(unbroken["losses"][5:], rel=TOLERANCE)
    assert resumed["norms"] == pytest.approx(unbroken["norms"][5:], rel=100 * TOLERANCE)


def test_each_stage_of_zero_shards_one_more_kind_of_state(trained: Trained) -> None:
    kept = {name: trained.result_of(name)["kept"] for name in ("one", "zero1", "zero2", "zero3", "hsdp")}
    one = kept["one"]
    assert kept["zero1"]["parameters"] == one["parameters"]
    assert kept["zero1"]["optimizer"] < 0.6 * one["optimizer"]
    for kind in ("gradients", "optimizer"):
        assert kept["zero2"][kind] < 0.6 * one[kind]
        assert kept["zero3"][kind] < 0.3 * one[kind]
        assert kept["hsdp"][kind] < 0.6 * one[kind]
    assert kept["zero3"]["parameters"] < 0.3 * one["parameters"]


def test_zero_2_and_3_print_their_difference_in_memory_and_traffic(trained: Trained) -> None:
    form = re.compile(
        r"ZeRO-(\d)  parameters (\S+) MiB on a rank between forward and backward\n"
        r"ZeRO-\1  received in a step: (\S+) MiB parameters, (\S+) MiB gradients\n"
    )
    found = [form.search(trained.output(name)) for name in ("two zero2", "two zero3")]
    (two, kept_2, gathered_2, reduced_2), (three, kept_3, gathered_3, reduced_3) = (
        [float(number) for number in match.groups()] for match in found if match
    )
    assert (two, three) == (2, 3)
    assert kept_3 < 0.6 * kept_2
    assert gathered_2 < gathered_3 <= 2 * gathered_2 + 0.01
    assert reduced_2 == reduced_3 == gathered_2


def test_hybrid_sharding_counts_the_gradients_that_replicas_exchange(trained: Trained) -> None:
    """In two replicas of two shards, a rank receives half of the gradients from its replica and half from the other."""
    received = re.compile(r"received in a step: \S+ MiB parameters, (\S+) MiB gradients\n")
    shards, hybrid = (received.search(trained.output(name)) for name in ("two zero3", "hsdp"))
    assert shards
    assert hybrid
    assert float(hybrid[1]) == pytest.approx(2 * float(shards[1]), abs=0.02)


@pytest.mark.parametrize(
    "name", ["GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "pp dp"]
)
def test_a_pipeline_prints_the_measured_bubble_beside_the_predicted_one(trained: Trained, name: str) -> None:
    line = re.search(r"\nbubble  measured (\d+)%, predicted (\d+)% if all stages take", trained.output(name))
    assert line is not None
    assert 0 < int(line[1]) < 100
    assert f"micro-batches, idle {line[2]}%" in trained.output(name)


WORDS = {
    "heads": "tp does not divide --heads\n  found  --heads 2 / tp 4\n",
    "layers": "there are fewer layers than stages\n  found  --layers 4; 2 ranks x 4 = 8 stages\n  do     --layers 8",
    "micro-batches": "--micro-batches 2, pp 4: 60% of the time idle\n  do     --micro-batches 16: 16%",
    "batch": "--global-batch 16 / (2 ranks * --micro-batches 3)\n  do     --global-batch 12 or --global-batch 18",
    "accumulate": "--accumulate 2, --micro-batches 4\n  do     --micro-batches 8 alone",
    "world": "the layout does not fill the world\n  found  pp 4 x tp 1 x dp_shard 1; 2 ranks\n",
    "sequence": "cp does not divide the windows\n  found  --sequence 15 / cp 2\n",
    "halves of four": "two halves need two ranks and two layers\n  found  4 ranks, pp 2, --layers 4\n",
    "dataparallel of two": "nn.DataParallel is one process\n  found  2 ranks",
    "server alone": "a server needs a worker\n",
    "zero bubble compile": "a zero bubble cannot run compiled layers\n",
    "another model": "is not in the checkpoint\n         it was made with --layers 4",
}


@pytest.mark.parametrize("name", list_names(REFUSED))
def test_impossible_options_stop_every_rank_before_training(trained: Trained, name: str) -> None:
    ranks = next(each["ranks"] for each in REFUSED if each["name"] == name)
    errors = [trained.error_of(name, rank) for rank in range(ranks)]
    assert any(WORDS[name] in error for error in errors)
    # A rank that still makes its groups when another has refused loses that one; where it trains, it comes to no error.
    assert all(WORDS[name] in error or "DistNetworkError" in error for error in errors), errors


def test_a_rank_later_than_the_timeout_is_a_clear_error(trained: Trained) -> None:
    error = trained.result_of("late")["error"]
    assert error.startswith("another rank did not come within the time-out\n")
    assert "waited 3 s (--timeout" in error


def test_synchronous_updates_through_a_server_equal_those_of_one_process(trained: Trained) -> None:
    assert trained.result_of("served")["losses"] == pytest.approx(trained.result_of("one")["losses"], rel=TOLERANCE)


def test_both_kinds_of_updates_reach_the_same_loss_and_print_the_time(trained: Trained) -> None:
    lines = trained.output("served").splitlines()
    steps = [number for number, line in enumerate(lines) if re.match(r"step 4/6 +loss \d\.\d\d", line)]
    begun = [lines.index(f"{kind} updates, 2 workers") for kind in ("synchronous", "asynchronous")]
    assert [begun[0], steps[0], begun[1], steps[1]] == [0, 1, 2, 3]
    form = re.compile(r"(\w+) +loss (\d\.\d\d) after \d steps, \d+\.\d s; a gradient (\d\.\d) updates late")
    both = [match.groups() for match in map(form.fullmatch, lines) if match]
    (_, loss, late), (_, other, _) = both  # of asynchronous ones it is chance whether they come late
    assert [name for name, _, _ in both] == ["synchronous", "asynchronous"]
    assert (late, other) == ("0.0", loss)
