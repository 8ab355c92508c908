"""Numbers of the user's own cluster in place of the built-in ones; the picture; the job that a plan becomes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from msgspec import structs

from hpc_kit.errors import SpecError
from hpc_kit.planner import calibration, communication_time, hardware, job_files
from hpc_kit.planner.calibration import measure_device, time_runs
from hpc_kit.planner.explain import draw_plans
from hpc_kit.planner.hardware import RankGroup
from hpc_kit.planner.job_files import job_from_plan, model_of_job
from hpc_kit.planner.search import Plan, best_by_degrees, search_layouts
from hpc_kit.planner.target import resolve_target
from hpc_kit.spec import load
from hpc_kit.spec.job import Job, Launch, Model
from hpc_kit.spec.resolve import resolve
from tests.conftest import ROOT
from tests.planner.runs import fitted, task


@pytest.mark.parametrize("hosts", [1, 2])
def test_links_inside_and_beyond_the_node(hosts: int) -> None:
    rows = [
        {"collective": "all_reduce", "ranks": 8, "bytes": size, "seconds": 1e-4 + 1.75 * size / 2e11}
        for size in (1e6, 1e8)
    ]
    found = calibration.fit_links([*rows, {"collective": "broadcast", "ranks": 8, "bytes": 1, "seconds": 9}], hosts)
    bandwidth, latency = (found.link, found.latency) if hosts == 1 else (found.network, found.latency_network)
    assert (bandwidth, latency) == pytest.approx((2e11, 5e-5))
    assert (found.nodes, found.per_node) == ((None, None) if hosts == 1 else (2, 4))
    assert calibration.fit_links(rows[:1], hosts) == calibration.Measurement()


@pytest.mark.parametrize(("cluster", "nodes", "per_node"), [("dgx-h100", 2, 8), ("dgx-h100", 4, 2), ("jz", 4, 8)])
def test_what_was_measured_is_what_is_predicted(cluster: str, nodes: int, per_node: int) -> None:
    sizes, before = (2**10, 2**20, 2**30), hardware.find_machine(cluster)
    near, far = RankGroup(8, 8, 1), RankGroup(nodes * per_node, per_node, nodes)

    def rows(group: RankGroup, start: float, speed: float) -> list[dict[str, Any]]:
        moved = 2 * (group.ranks - 1) / group.ranks
        row = {"collective": "all_reduce", "ranks": group.ranks}
        return [{**row, "bytes": size, "seconds": start + moved * size / speed} for size in sizes]

    found = calibration.fit_links(rows(near, 3e-5, 1.5e11), 1)
    found = calibration.merge_measurements(found, calibration.fit_links(rows(far, 9e-5, 3e10), nodes))
    machine, own = calibration.apply_measurement(found, before, fitted())
    for group in (near, far):
        expected = rows(group, *((3e-5, 1.5e11) if group is near else (9e-5, 3e10)))
        assert [
            communication_time.all_reduce_seconds(machine, own, group, row["bytes"]) for row in expected
        ] == pytest.approx([row["seconds"] for row in expected])


def test_ranks_on_two_hosts_are_not_inside_a_node(tmp_path: Path) -> None:
    row = {"collective": "all_reduce", "ranks": 2}
    results = [{**row, "bytes": size, "seconds": 1e-4 + size / 2e10} for size in (1e6, 1e8)]
    path = tmp_path / "comm.json"
    path.write_text(json.dumps({"results": results, "machine": {"hosts": [{"name": "n1"}, {"name": "n2"}]}}))
    found = calibration.read_comm_result(path)
    assert found.link is None and found.network == pytest.approx(2e10)
    assert (found.nodes, found.per_node) == (2, 1)


def test_of_two_backends_the_links_are_those_of_the_quicker_one() -> None:
    rows = [
        {"backend": name, "collective": "all_reduce", "ranks": 8, "bytes": size, "seconds": start + 1.75 * size / speed}
        for size in (1e6, 1e8)
        for name, start, speed in (("gloo", 1e-5, 1e9), ("nccl", 5e-5, 2e11))
    ]
    found = calibration.fit_links(rows, 1)
    assert found.link == pytest.approx(2e11) and found.latency == pytest.approx(2.5e-5)
    assert calibration.fit_links([], 1) == calibration.Measurement()


def test_measured_numbers_replace_the_built_in_ones(tmp_path: Path) -> None:
    path = tmp_path / "mine.measured.json"
    calibration.add_measurement(path, calibration.Measurement(flops=200e12, link=1e11))
    calibration.add_measurement(path, calibration.Measurement(network=5e9))
    machine, own = calibration.apply_measurement(
        calibration.read_measurement(path), hardware.find_machine("dgx-a100"), fitted()
    )
    assert machine.gpu.measured == pytest.approx(200 / 312) and machine.gpu.link == 1e11
    assert (machine.network, own.link, own.network) == (5e9, 1.0, 1.0)


@pytest.mark.parametrize(
    ("card", "gpu", "same"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-80g", True),
        ("NVIDIA A100-SXM4-80GB", "A100", True),
        ("NVIDIA A100-SXM4-80GB", "h100-80g", False),
        ("NVIDIA A100-PCIE-40GB", "a100-80g", False),
        ("NVIDIA A100-SXM4-80GB", "mine:memory=64,memory_tb=3.2,tflops=380,link=400", False),
        ("Some Card 9", "mine:memory=64,memory_tb=3.2,tflops=380,link=400", True),
        ("Some Card 9", "h100-80g", False),
        ("cpu", "cpu", True),
        ("cpu", "h100-80g", False),
        ("", "h100-80g", True),  # links alone were measured
    ],
)
def test_of_another_card_the_links_alone_are_taken(tmp_path: Path, card: str, gpu: str, same: bool) -> None:
    found = calibration.Measurement(gpu=card, flops=2e14, bandwidth=1e12, memory=6e10, link=1e11)
    kept = calibration.select_for_gpu(found, hardware.find_gpu(gpu))
    assert kept == (found if same else calibration.Measurement(link=1e11))
    path = tmp_path / "x.json"
    calibration.add_measurement(path, found)
    there = resolve_target("jz", tmp_path, framework="torch", gpu=gpu, measurement=path)
    assert (there.machine.gpu.bandwidth == 1e12) == same and there.machine.gpu.link == 1e11
    assert ("the links alone" in there.notes[-1]) != same


@pytest.mark.parametrize("text", ["", "{}", '{"results": []}', "[]"])
def test_results_that_are_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "comm.json"
    path.write_text(text)
    with pytest.raises(SpecError, match="cannot read"):
        calibration.read_comm_result(path)


def test_a_period_has_at_least_one_run_after_a_warm_up() -> None:
    calls: list[int] = []
    assert len(time_runs(lambda: calls.append(1), 0.0)) == 1
    assert len(calls) == 2


def test_each_gpu_is_waited_for_by_its_own_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a number, torch.cuda.synchronize waits for the first GPU, and the others seem to take no time."""
    small, waited = torch.ones(2, 2), set[torch.device]()
    for maker in ("randn", "empty", "empty_like"):
        monkeypatch.setattr(torch, maker, lambda *_, **__: small.clone())
    monkeypatch.setattr(torch.cuda, "synchronize", waited.add)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=80))
    found = measure_device(torch.device("cuda", 3), 0.0)
    assert waited == {torch.device("cuda", 3)}
    assert (found.gpu, found.memory) == ("GPU 3", 80.0)


def test_without_matplotlib_the_line_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SpecError, match="a plot needs matplotlib") as caught:
        draw_plans([], tmp_path / "x.png", 1.0)
    assert "hpc_kit[plot]" in str(caught.value)


@pytest.mark.slow
def test_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plans = best_by_degrees(search_layouts(task(gpus=8, global_batch=64), fitted("dgx-h100")).plans)[:3]
    draw_plans(plans, tmp_path / "x.png", 80 * 2**30)
    assert (tmp_path / "x.png").stat().st_size > 1000


@pytest.mark.parametrize("launcher", ["torchrun", "ray"])
def test_a_plan_as_a_job(launcher: Literal["torchrun", "ray"]) -> None:
    plan = search_layouts(task(gpus=16, global_batch=64), fitted("dgx-h100")).plans[0]
    base = Job(name="mine", command=("python", "train.py"), launch=Launch(launcher=launcher))
    found = job_from_plan(plan, base, "x", ROOT)
    assert (found.resources.nodes, found.resources.ntasks_per_node, found.launch.nproc_per_node) == (2, 1, 8)
    assert found.layout.size(16) == 16
    assert found.model.parameters == 8030261248
    assert found.env["PLAN_GRAD_ACCUM"] == plan.layout.micro_batches


WAYS: list[tuple[dict[str, Any], str, str]] = [
    ({}, "ddp_1node", "--bf16"),
    ({"global_batch": 32}, "ddp_1node", "--bf16 --accumulate 4"),
    ({"zero_stage": 1}, "zero1_2node", "--bf16"),
    ({"zero_stage": 3, "recompute": "full"}, "zero2_2node", "--bf16 --recompute"),
    ({"dp": 2, "cp": 4}, "context_1node", "--bf16 --accumulate 4"),
    ({"dp": 4, "tp": 2, "sequence_parallel": True}, "hybrid_3d_4node", "--bf16 --sequence-parallel"),
    ({"dp": 4, "pp": 2, "zero_stage": 1}, "hybrid_3d_4node", "--bf16"),
    (
        {"dp": 2, "pp": 4, "virtual_stages": 2},
        "hybrid_3d_4node",
        "--bf16 --schedule Interleaved1F1B --stages-per-rank 2",
    ),
]


def a_plan(**change: Any) -> Plan:
    plan = search_layouts(task("gpt2", gpus=8, global_batch=8), fitted("dgx-h100")).plans[0]
    degrees = {"dp": 8, "tp": 1, "pp": 1, "cp": 1, "virtual_stages": 1, "zero_stage": 0, "micro_batch": 1}
    return structs.replace(plan, layout=structs.replace(plan.layout, **degrees | {"recompute": "none"} | change))


@pytest.mark.parametrize(("change", "name", "words"), WAYS)
def test_the_program_for_each_way_is_told_what_a_layout_does_not_say(
    change: dict[str, Any], name: str, words: str
) -> None:
    plan = a_plan(**change)
    found = job_files.first_supported([plan], ROOT)
    assert found is not None and (found.base.name, found.rank) == (name, 1)
    assert " ".join(found.base.command).endswith(words)
    written = load.load(job_from_plan(plan, found.base, "x", ROOT), "slurm", root=ROOT)
    assert resolve(written, root=ROOT).job.layout.size(8) == 8


@pytest.mark.parametrize(
    "change",
    [
        {"dp": 1, "tp": 4, "cp": 2},
        {"dp": 2, "pp": 2, "cp": 2},
        {"dp": 4, "tp": 2, "zero_stage": 2},
        {"dp": 4, "cp": 2, "zero_stage": 1},
        {"precision": "fp8"},
        {"recompute": "selective"},
    ],
)
def test_what_no_program_can_do_is_passed_over(change: dict[str, Any]) -> None:
    assert job_files.first_supported([a_plan(**change)], ROOT) is None
    found = job_files.first_supported([a_plan(**change), a_plan(dp=2, pp=4)], ROOT)
    assert found is not None and (found.rank, found.plan.layout.pp) == (2, 4)


@pytest.mark.parametrize(
    ("own", "found"),
    [
        ("hsdp_4node", "hsdp_4node"),
        ("ddp_4node", "zero2_2node"),
        ("hetjob", "zero2_2node"),
        ("async_4node", "zero2_2node"),
    ],
)
def test_a_job_is_asked_first_where_its_program_is_one_of_them(own: str, found: str) -> None:
    plan = a_plan(zero_stage=3)
    base = load.load_job(own, root=ROOT)
    first = job_files.first_supported([plan], ROOT, base)
    assert first is not None and first.base.name == found
    of_one = job_files.first_supported([plan], ROOT, base, only=True)
    assert (of_one is None) == (own != found)


def test_components_are_never_a_plan() -> None:
    first = job_files.first_supported([a_plan()], ROOT, load.load_job("hetjob", root=ROOT))
    assert first is not None and first.base.name == "ddp_1node"


def test_what_a_job_trains() -> None:
    own = Job(name="mine", command=("python", "train.py"))
    assert model_of_job(own, ROOT) is None
    output = model_of_job(structs.replace(own, model=Model(layers=2, width=64, heads=4)), ROOT)
    assert output is not None and (output.model.hidden, output.seq_len) == (64, 2048)
    assert "32000 words" in output.assumed and "2048 tokens a sequence" in output.assumed
    shipped = model_of_job(Job(name="s", command=("python", "jobs/train/ddp.py", "--layers=6", "--width", "256")), ROOT)
    assert shipped is not None and (shipped.model.layers, shipped.model.hidden, shipped.model.vocab) == (6, 256, 256)


def test_the_links_of_a_cluster_file_replace_those_of_the_data_sheet(tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    links = "link_alpha = 1e-5\nlink_beta = 4e-12\nnetwork_alpha = 3e-5\nnetwork_beta = 1e-10\n"
    (tmp_path / "env/mine.toml").write_text(f'[node]\ngpus = 8\ngpu = "h100"\n{links}')
    machine, fitted, notes = structs.astuple(resolve_target("mine", tmp_path, framework="torch"))
    assert (machine.gpu.link, fitted.link, fitted.latency) == (pytest.approx(2.5e11), 1.0, 1e-5)
    assert (machine.network, fitted.network) == (pytest.approx(1e10), 1.0)
    assert fitted.latency_network == pytest.approx(2e-5)
    assert [note for note in notes if "network a GPU are assumed" in note] == []
    # The user's own numbers, and those of a calibration, have priority.
    own = resolve_target("mine", tmp_path, framework="torch", network=800)
    assert own.machine.network == 1e11
    calibration.add_measurement(tmp_path / "env/mine.measured.json", calibration.Measurement(network=5e9))
    assert resolve_target("mine", tmp_path, framework="torch").machine.network == 5e9
    (tmp_path / "env/mine.measured.json").unlink()
    assert resolve_target("mine", tmp_path, framework="torch", gpu="a100-80g").machine.gpu.link == 3e11


@pytest.mark.parametrize(
    ("table", "fabric"), [("gpus = 0\ncpus = 8", "ethernet"), ('gpus = 8\ngpu = "h100"', "infiniband")]
)
def test_a_cluster_file_without_a_fabric_has_the_usual_one(tmp_path: Path, table: str, fabric: str) -> None:
    (tmp_path / "env").mkdir()
    (tmp_path / "env/mine.toml").write_text(f"[node]\n{table}\n")
    assert resolve_target("mine", tmp_path, framework="torch").machine.fabric == fabric
    (tmp_path / "env/mine.toml").write_text(f'[node]\n{table}\nfabric = "efa"\n')
    assert resolve_target("mine", tmp_path, framework="torch").machine.fabric == "efa"
