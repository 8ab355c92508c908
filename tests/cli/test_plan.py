"""`hpc-kit plan` as a user meets it."""

from __future__ import annotations

import csv
import json
import tomllib
from pathlib import Path

import pytest

from tests.cli.conftest import Kit

LLAMA = ("plan", "--model", "llama3-8b", "--cluster", "jz", "--nodes", "4", "--global-batch", "1024")


@pytest.mark.slow
def test_the_tables_fit_80_columns(kit: Kit) -> None:
    small = ("plan", "--model", "gpt2", "--cluster", "example-gpu")
    for words in (LLAMA, small, ("plan", "hybrid_3d_4node", "--explain"), ("list",), ("doctor",)):
        lines = kit(*words, COLUMNS="80").stdout.splitlines()
        assert lines
        assert [line for line in lines if len(line) > 80] == []
    error = kit("plan", "--model", "llama3-405b", "--cluster", "example-gpu", "--nodes", "1", COLUMNS="80").stderr
    assert max(map(len, error.splitlines())) <= 80


def test_the_ranked_table(kit: Kit) -> None:
    done = kit(*LLAMA, "--explain")
    assert (done.returncode, done.stderr) == (0, "")
    for part in (
        "8,030,261,248 parameters",
        "32 x a100-80g",
        "step s",
        "tok/s of a GPU",
        "MFU",
        "bubble",
        "optim",
        "tp 16 crosses nodes of 8 GPUs",
        "the usual table",
        "GPU-hours",
        "a checkpoint 112.4 GB",
        "GFLOP a token = 6 W + 12 L h s",
        "capacity GB/s",
        "of the step; ",
        "the network of a node has 0.4 Tb/s",
        "9.4 times PCIe",
        "offload gradients and optimizer",
        "smaller model: 16 of 32 layers",
        "8 T P = 1.03e+22 operations",
    ):
        assert part in " ".join(done.stdout.split())


def test_json_contains_everything(kit: Kit) -> None:
    found = json.loads(kit(*LLAMA, "--json", "--explain").stdout)
    first = found["plans"][0]
    assert first["dp"] * first["tp"] * first["pp"] * first["cp"] == 32
    assert sum(first["time"].values()) == pytest.approx(first["step_time_s"])
    assert sum(first["memory"].values()) == pytest.approx(first["memory_gib"])
    assert found["training"]["checkpoint_bytes"] == 14 * 8030261248
    assert found["advice"]["table"] and found["rejected"] and found["explain"]
    assert {use["kind"]: use["link"] for use in found["links"]} == {"tensor": "node", "data": "network, 4 nodes"}
    assert found["alternatives"][0]["name"] == "as planned"


def test_an_offloaded_plan_is_written_with_its_option_and_planned_again(kit: Kit, project: Path) -> None:
    words = ("--model", "llama3-8b", "--cluster", "dgx-h100", "--global-batch", "64", "--offload")
    done = kit("plan", *words, "--json", "--write", "jobs/mine.toml", "--", "python", "jobs/train/fsdp.py")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["plans"][0]
    assert found["time"]["offload"] > 0 and found["memory"]["optimizer"] == 0
    job = tomllib.loads((project / "jobs" / "mine.toml").read_text())
    assert "--offload" in job["command"] and job["env"]["PLAN_OFFLOAD"] == 1
    again = json.loads(kit("plan", "mine", "--cluster", "dgx-h100", "--json").stdout)["plans"]
    assert again[0]["memory"]["optimizer"] == 0


def test_the_first_plan_is_written_as_a_job_that_renders_with_its_layout(kit: Kit, project: Path) -> None:
    words = ("--model", "gpt2", "--cluster", "local", "--nodes", "2", "--gpus-per-node", "2", "--global-batch", "16")
    done = kit("plan", *words, "--write", "jobs/mine.toml", "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    assert "submit with: hpc-kit submit jobs/mine.toml" in done.stderr
    job = tomllib.loads((project / "jobs" / "mine.toml").read_text())
    degrees = {"dp": 1, "tp": 1, "pp": 1, "cp": 1} | job["layout"]
    assert (job["model"]["layers"], job["layout"]["global_batch"]) == (12, 16)
    assert degrees["dp"] * degrees["tp"] * degrees["pp"] * degrees["cp"] == 4
    assert job["env"]["PLAN_GLOBAL_BATCH"] == 16
    (project / "train.py").write_text("print('trained')\n")
    script = kit("render", "mine", "--cluster", "local").stdout
    assert "#SBATCH --nodes=2" in script and "train.py" in script and "PLAN_MICRO_BATCH" in script
    again = kit("plan", *words, "--write", "jobs/mine.toml", "--", "python", "train.py")
    assert again.returncode == 2 and "exists" in again.stderr


def test_any_program_becomes_the_command_of_the_written_job(kit: Kit, project: Path) -> None:
    words = ("--model", "gpt2", "--cluster", "dgx-h100", "--global-batch", "16", "--write", "jobs/mine.toml")
    done = kit("plan", *words, "--", "./train")
    assert done.returncode == 0, done.stderr
    assert tomllib.loads((project / "jobs" / "mine.toml").read_text())["command"] == ["./train"]


def test_if_no_program_supports_the_first_plan_another_is_written_with_a_note(kit: Kit, project: Path) -> None:
    words = ("--model", "llama3-70b", "--cluster", "jz-h100", "--nodes", "32", "--framework", "torchtitan")
    done = kit("plan", *words, "--json", "--write", "jobs/mine.toml")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["plans"][0]["cp"] == 2  # with tp and pp, which none of them does
    assert "no program of jobs/train supports the first layout, dp 4, tp 4, pp 4, cp 2" in done.stderr
    assert "the first supported one is number" in done.stderr and "s a step" in done.stderr
    job = tomllib.loads((project / "jobs" / "mine.toml").read_text())
    assert "cp" not in job["layout"] and "--sequence-parallel" in job["command"]
    script = kit("render", "mine", "--cluster", "slurm")
    assert script.returncode == 0, script.stderr
    none = kit("plan", "--model", "gpt2", "--cluster", "dgx-h100", "--precision", "fp8", "--write", "jobs/more.toml")
    assert none.returncode == 2 and "no program of jobs/train supports any" in none.stderr
    assert not (project / "jobs" / "more.toml").exists()


def test_the_model_is_read_from_the_job(kit: Kit) -> None:
    found = json.loads(kit("plan", "ddp_4node", "--cluster", "local", "--json").stdout)
    assert found["model"]["name"] == "l4-h128" and found["gpus"] == 8 and found["global_batch"] == 64


def test_a_cases_file_is_planned(kit: Kit, project: Path) -> None:
    from tests.planner.test_cases import ROW

    with (project / "cases.csv").open("w", newline="") as file:
        out = csv.DictWriter(file, ROW)
        out.writeheader()
        out.writerows([ROW, {**ROW, "case_id": "two", "gpu": "abacus"}])
    done = kit("plan", "--cases", "cases.csv", "--output", "predictions.csv")
    assert done.returncode == 0 and "1 of 2 runs predicted" in done.stdout
    assert "two: not predicted: no GPU 'abacus'" in done.stderr
    assert (project / "predictions.csv").read_text().startswith("case_id,step_time_s,peak_memory_gib,fits\none,")


def test_measured_links_replace_the_built_in_ones(kit: Kit, project: Path) -> None:
    rows = [
        # A hundredth of the bandwidth in the cluster file.
        {"backend": "nccl", "collective": "all_reduce", "ranks": 16, "bytes": size, "seconds": size / 2e9 + 1e-4}
        for size in (1e6, 1e8)
    ]
    hosts = [{"name": "n1"}, {"name": "n2"}]
    (project / "comm.json").write_text(json.dumps({"results": rows, "machine": {"hosts": hosts}}))
    profile = 'slurm = "system"\n[node]\ngpu = "a100-80g"\ngpus = 8\nnetwork = 1600\n'
    (project / "env" / "mine.toml").write_text(profile)
    plan = ("plan", "--model", "llama3-8b", "--cluster", "mine", "--nodes", "2", "--json")
    before = json.loads(kit(*plan).stdout)
    done = kit("plan", "calibrate", "--cluster", "mine", "--comm", "comm.json")
    assert done.returncode == 0, done.stderr
    kept = json.loads((project / "env" / "mine.measured.json").read_text())
    assert kept["network"] == pytest.approx(2e9 * 2 * 15 / 16)
    after = json.loads(kit(*plan).stdout)
    assert any("mine.measured.json" in note for note in after["notes"])
    assert after["plans"][0]["step_time_s"] > before["plans"][0]["step_time_s"]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("--model", "lama3-8b", "--cluster", "jz"), ("no model 'lama3-8b'", "--model llama3-8b")),
        (("--model", "gpt2", "--cluster", "jzz"), ("no cluster file 'jzz'", "or a machine: jz")),
        (("--model", "gpt2", "--cluster", "jz", "--gpu", "h10"), ("no GPU 'h10'", "h100-80g", "memory_tb")),
        (("--model", "gpt2", "--cluster", "slurm"), ("does not say what its GPUs are", "--gpu")),
        (("--cluster", "jz"), ("which model?", "--model llama3-8b")),
        (("--model", "gpt2", "--cluster", "jz", "--network", "-1"), ("--network is out of range",)),
        (("--model", "gpt2", "--cluster", "jz", "--tokens", "-1"), ("must be positive",)),
        (("--cases", "x.csv"), ("--cases and --output go together",)),
        (("--cases", "x.csv", "--output", "y.csv"), ("cannot read x.csv",)),
        (("--model", "gpt2", "--cluster", "jz", "--measured", "x.json"), ("cannot read x.json", "plan calibrate")),
        (("--model", "gpt2", "--cluster", "jz", "--precision", "fp8"), ("a100-80g has no 8-bit products", "bf16")),
        (("--model", "gpt2", "--cluster", "jz", "--precision", "fp4"), ("fp4", "bf16")),
        (("--model", "gpt2", "--cluster", "jz", "--framework", "tensorflaw"), ("no framework 'tensorflaw'",)),
    ],
)
def test_wrong_use_is_one_clear_error(kit: Kit, words: tuple[str, ...], parts: tuple[str, ...]) -> None:
    done = kit("plan", *words)
    assert done.returncode == 2 and done.stdout == ""
    for part in parts:
        assert part in done.stderr


def test_a_cluster_too_small(kit: Kit) -> None:
    done = kit("plan", "--model", "llama3-405b", "--cluster", "jz", "--nodes", "1")
    assert done.returncode == 1
    assert "does not fit on 8 x a100-80g" in done.stderr and "--nodes" in done.stderr
