"""What `hpc-kit plan` takes and refuses: job or model, program, cluster, calibration and batch."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tests.cli.conftest import Kit

SMALL = ("plan", "--model", "gpt2", "--cluster", "dgx-h100", "--nodes", "2", "--global-batch", "512")
MINE = 'slurm = "system"\n[node]\ngpu = "h100-80g"\ngpus = 8\nnetwork = 3200\n'


def test_a_written_job_of_a_program_requests_gpus_and_can_be_planned_again(kit: Kit, project: Path) -> None:
    (project / "env" / "mine.toml").write_text(MINE)
    (project / "train.py").write_text("print('trained')\n")
    model = ("--model", "llama3-8b", *SMALL[3:])
    done = kit("plan", *model, "--json", "--write", "jobs/own.toml", "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    assert "1.61e+11 tokens take" in done.stderr and "the cluster's limit" in done.stderr
    assert "hpc-kit submit jobs/own.toml jobs/own.toml --chain=afterany" in done.stderr
    script = kit("render", "own", "--cluster", "mine").stdout
    assert "#SBATCH --gpus-per-node=8" in script and "#SBATCH --ntasks-per-node=8" in script
    first, again = json.loads(done.stdout), json.loads(kit("plan", "own", "--cluster", "mine", "--json").stdout)
    assert again["model"] == first["model"] and again["plans"] == first["plans"] and again["notes"] == []
    job = (project / "jobs" / "own.toml").read_text().replace("llama3-8b", "llama2-13b")
    (project / "jobs" / "other.toml").write_text(job)
    other = kit("plan", "other", "--cluster", "mine")
    assert other.returncode == 2 and "contradicts itself" in other.stderr and "--model" in other.stderr
    (project / "jobs" / "none.toml").write_text(job.replace('"llama2-13b"', '"lama"'))
    none = kit("plan", "none", "--cluster", "mine")
    assert none.returncode == 2 and "PLAN_MODEL of job own: no model 'lama'" in none.stderr
    said = kit("plan", "none", "--cluster", "mine", "--model", "llama3-8b", "--json")
    assert json.loads(said.stdout)["plans"] == first["plans"]


def test_a_written_job_keeps_framework_precision_and_attention(kit: Kit) -> None:
    said = ("--framework", "Megatron-LM", "--precision", "fp8", "--no-flash")
    first = kit(*SMALL, *said, "--json", "--write", "jobs/own.toml", "--", "python", "train.py")
    again = kit("plan", "own", "--cluster", "dgx-h100", "--json")
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert json.loads(again.stdout)["plans"] == json.loads(first.stdout)["plans"]
    other = json.loads(kit("plan", "own", "--cluster", "dgx-h100", "--json", "--flash").stdout)
    assert other["plans"] != json.loads(first.stdout)["plans"]


@pytest.mark.parametrize(
    ("name", "same"), [("deepspeed", "megatron-deepspeed"), ("composer", "fsdp"), ("llm-foundry", "fsdp")]
)
def test_framework_names_of_a_cases_file_are_accepted(kit: Kit, name: str, same: str) -> None:
    found = [kit(*SMALL, "--json", "--framework", word) for word in (name, same)]
    assert found[0].returncode == 0 and found[0].stdout == found[1].stdout, found[0].stderr


def test_a_written_job_of_a_shipped_program_has_a_time_limit_for_its_steps(kit: Kit, project: Path) -> None:
    done = kit("plan", "--model", "llama3-8b", *SMALL[3:], "--write", "jobs/mine.toml")
    assert done.returncode == 0, done.stderr
    assert "a byte-level GPT of 6.48e+09 parameters" in done.stderr and "and not llama3-8b" in done.stderr
    job = tomllib.loads((project / "jobs" / "mine.toml").read_text())
    assert job["resources"]["time"] > "00:30:00" and job["resources"]["time"] in done.stderr
    assert "256 words" in job["description"] and job["model"]["parameters"] < 6.5e9


@pytest.mark.parametrize("program", [(), ("--", "python", "train.py")])
def test_a_safe_layout_is_written_if_it_costs_little(kit: Kit, project: Path, program: tuple[str, ...]) -> None:
    slow = ("plan", "--model", "llama3-8b", "--cluster", "jz", "--nodes", "4", "--global-batch", "1024")
    done = kit(*slow, "--json", "--write", "jobs/safe.toml", *program)
    found = json.loads(done.stdout)
    first, safe = found["plans"][0], found["with_room"]
    assert first["step_time_s"] < safe["step_time_s"] < 1.03 * first["step_time_s"]
    job = tomllib.loads((project / "jobs" / "safe.toml").read_text())
    assert (job["layout"]["dp"], job["layout"]["tp"]) == (safe["dp"], safe["tp"]) != (first["dp"], first["tp"])
    assert "and may not fit; the fastest with a margin: dp 16, tp 2" in done.stderr
    assert "the layout with a margin is written" in done.stderr


def test_the_first_layout_is_written_with_a_warning_if_the_safe_one_costs_more(kit: Kit, project: Path) -> None:
    large = ("plan", "--model", "llama3-70b", "--cluster", "jz-h100", "--nodes", "32", "--framework", "torchtitan")
    done = kit(*large, "--json", "--write", "jobs/first.toml", "--", "python", "train.py")
    found = json.loads(done.stdout)
    first, safe = found["plans"][0], found["with_room"]
    assert safe["step_time_s"] > 1.03 * first["step_time_s"]
    job = tomllib.loads((project / "jobs" / "first.toml").read_text())
    assert (job["layout"]["dp"], job["layout"]["pp"]) == (first["dp"], first["pp"])
    assert "warning: the first layout needs 94%" in done.stderr
    assert "the layout without a margin is written" in done.stderr


def test_the_named_shipped_program_is_written(kit: Kit, project: Path) -> None:
    program = ("--", "python", "jobs/train/fsdp.py", "--steps", "5")
    done = kit(*SMALL, "--write", "jobs/mine.toml", *program)
    assert done.returncode == 0, done.stderr
    job = tomllib.loads((project / "jobs" / "mine.toml").read_text())
    assert job["command"][1:4] == ["jobs/train/fsdp.py", "--steps", "5"] and "covers 5 steps" in done.stderr
    done = kit(*SMALL, "--precision", "fp16", "--write", "jobs/more.toml", *program)
    assert done.returncode == 2 and "jobs/train/fsdp.py supports none of these layouts" in done.stderr
    done = kit("plan", "zero2_2node", "--cluster", "dgx-h100", "--write", "jobs/again.toml")
    assert done.returncode == 0 and "it runs the program of job zero2_2node" in done.stderr, done.stderr
    assert "byte-level GPT" not in done.stderr
    other = ("--", "python", "train/main.py")  # nothing of ours, whatever its folder is called
    own = kit(*SMALL, "--write", "jobs/own.toml", *other)
    assert own.returncode == 0 and "--chain" not in own.stderr  # minutes
    assert tomllib.loads((project / "jobs" / "own.toml").read_text())["command"] == ["python", "train/main.py"]


def test_assumptions_about_a_job_are_listed(kit: Kit, project: Path) -> None:
    (project / "jobs").mkdir(exist_ok=True)
    text = 'command = ["python", "x.py"]\n[model]\nlayers = 12\nwidth = 768\nheads = 12\n'
    (project / "jobs" / "bare.toml").write_text(text)
    done = kit("plan", "bare", "--cluster", "dgx-h100")
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "assumed: a GPT with 32000 words" in text and "--model sets it" in text


def test_rejected_layouts_are_shown_by_reason(kit: Kit) -> None:
    done = kit("plan", "--model", "llama3-70b", "--cluster", "jz", "--nodes", "2", "--global-batch", "1021")
    assert done.returncode == 0, done.stderr
    rejected = done.stdout.partition("rejected")[2].partition("the usual table")[0]
    assert rejected.count("does not fit by") == 3
    assert "does not divide a batch of 1021 (and" in rejected and "crosses nodes of 8 GPUs" in rejected


def test_a_model_is_planned_without_a_cluster(kit: Kit) -> None:
    done = kit("plan", "--model", "llama3-8b", HPC_KIT_CLUSTER="")
    assert done.returncode == 1
    assert "no cluster is named" in done.stderr and "--cluster jz" in done.stderr and "--nodes" not in done.stderr
    assert "note    no cluster is named" in kit("plan", "--model", "gpt2").stdout


def test_the_sequence_length_of_a_long_model_is_assumed_with_a_note(kit: Kit, project: Path) -> None:
    numbers = {"hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12, "vocab_size": 32000}
    (project / "config.json").write_text(json.dumps({**numbers, "max_position_embeddings": 131072}))
    long = ("plan", "--model", "config.json", *SMALL[3:])
    assert "8192 tokens a sequence are assumed; the model reads 131072" in kit(*long).stdout
    said = kit(*long, "--seq-len", "16384").stdout
    assert "16384 tokens a sequence" in said and "assumed; the model" not in said


def test_a_gpu_without_bf16_is_planned_with_fp16(kit: Kit) -> None:
    assert "note    fp16, for v100-32g has no bf16" in kit(*SMALL, "--gpu", "v100-32g").stdout


def test_cases_are_named_and_never_overwritten(kit: Kit, project: Path) -> None:
    from tests.planner.test_cases import ROW

    rows = [ROW, {**ROW, "case_id": "two", "gpu": "a100"}]
    text = "\n".join([";".join(ROW), *(";".join(row.values()) for row in rows)])
    (project / "a.csv").write_text(text)
    done = kit("plan", "--cases", "a.csv", "--output", "b.csv")
    assert done.returncode == 0 and "assumed in 1 of 2 runs: fits: in the" in done.stderr
    assert "(two)" in done.stderr
    done = kit("plan", "--cases", "a.csv", "--output", "./jobs/../a.csv")
    assert done.returncode == 2 and "is the file of --cases" in done.stderr
    assert (project / "a.csv").read_text() == text


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("ddp_4node", "--", "python", "other.py"), ("a program after --, but job ddp_4node", "python other.py")),
        ((*SMALL[1:], "--write", "x.tml"), ("cannot be a job file", "--write x.tml.toml")),
        ((*SMALL[1:], "--write", "there.toml"), ("there.toml exists", "another name for --write")),
        ((*SMALL[1:], "--tokens", "0"), ("--tokens and --storage must be positive",)),
        ((*SMALL[1:], "--comm", "x.json"), ("--comm belongs to plan calibrate",)),
        ((*SMALL[1:], "--framework", "nanatron"), ("no framework 'nanatron'", "do     --framework nanotron")),
        (("calibrate", "--cluster", "jz"), ("jz is a machine by its data sheet", "env/jz.toml", 'gpu = "a100-80g"')),
        (("calibrate", "--cluster", "jzz"), ("no cluster file 'jzz'",)),
        (("calibrate", "--nodes", "2", "--no-flash"), ("calibrate does not take --nodes, --flash", "--comm")),
        (("--cases", "a.csv", "--output", "b.csv", "--gpu", "x"), ("--cases does not take --gpu",)),
        (("ddp_4node", "--cases", "a.csv", "--output", "b.csv"), ("not job ddp_4node",)),
    ],
)
def test_options_without_an_effect_are_refused(
    kit: Kit, project: Path, words: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    (project / "there.toml").touch()
    done = kit("plan", *words)
    assert done.returncode == 2 and done.stdout == ""
    for part in parts:
        assert part in done.stderr
