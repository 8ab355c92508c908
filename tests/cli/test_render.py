"""The command line as a user meets it: what it prints, what it refuses, and with which status."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import golden
from tests.cli.conftest import Kit
from tests.conftest import ROOT


def test_render_prints_the_golden_script(kit: Kit) -> None:
    done = kit("render", "ddp_4node", "--cluster", "local", "--set", "cluster.python=.venv/bin/python")
    assert (done.returncode, done.stdout) == (0, golden.script("ddp_4node"))
    assert done.stderr == "hpc-kit: ignoring --gpus-per-task=1 because cluster 'local' has no GPUs\n"


def test_the_command_in_the_header_reproduces_the_script(kit: Kit) -> None:
    import shlex

    words = [
        "-j",
        "2x3",
        "--time",
        "1:00:00",
        "--set",
        "env.A=a b",
        "--cluster",
        "local",
        "--",
        "python",
        "t.py",
        "a b",
    ]
    first = kit("render", *words).stdout
    again = next(line for line in first.splitlines() if line.startswith("# again "))
    assert kit(*shlex.split(again.removeprefix("# again"))[1:]).stdout == first


def test_a_program_without_a_job_file_is_rendered(kit: Kit) -> None:
    done = kit("render", "-j=4x2", "--cluster", "slurm", "--", "python", "train.py", "--steps", "100")
    lines = done.stdout.splitlines()
    assert {"#SBATCH --nodes=4", "#SBATCH --ntasks=8", "#SBATCH --ntasks-per-node=2", "#SBATCH --job-name=train"} <= {
        *lines
    }
    assert f"  {shlex.quote(sys.executable)} -P -m hpc_kit.runtime train.py --steps 100 || status=$?" in lines
    assert "hetjob" not in done.stdout


@pytest.mark.parametrize(
    ("program", "name", "line"),
    [
        (["train.py"], "train", "{python} -P -m hpc_kit.runtime train.py"),
        (["python", "-m", "pkg.train"], "pkg.train", "{python} -P -m hpc_kit.runtime -m pkg.train"),
        (["python", "-u", "train.py"], "train", "{python} -P -m hpc_kit.runtime {python} -u train.py"),
        (["python", "train"], "train", "{python} -P -m hpc_kit.runtime {python} train"),
        (["./bin/go", "x"], "go", "{python} -P -m hpc_kit.runtime ./bin/go x"),
    ],
)
def test_programs_of_every_kind_are_rendered(kit: Kit, program: list[str], name: str, line: str) -> None:
    out = kit("render", "-j", "1x2", "--cluster", "slurm", "--", *program).stdout
    assert f"#SBATCH --job-name={name}" in out.splitlines()
    assert f"  {line.format(python=shlex.quote(sys.executable))} || status=$?" in out.splitlines()


def test_every_sbatch_option_is_accepted(kit: Kit) -> None:
    done = kit("render", "single", "--cluster", "slurm", "--time", "2:00:00", "-p", "gpu", "--requeue", "--qos=high")
    assert {"#SBATCH --time=2:00:00", "#SBATCH --partition=gpu", "#SBATCH --requeue", "#SBATCH --qos=high"} <= {
        *done.stdout.splitlines()
    }


def test_words_after_two_dashes_are_added_to_the_command(kit: Kit) -> None:
    out = kit("render", "single", "--cluster", "slurm", "--", "--steps", "9").stdout
    assert "jobs/train/ddp.py --steps 60 --steps 9 || status=$?" in out


def test_save_keeps_the_job_as_a_file_that_renders_the_same(kit: Kit, project: Path) -> None:
    first = kit("render", "-j", "2x2", "--cluster", "local", "--save", "jobs/train.toml", "--", "python", "t.py")
    assert first.returncode == 0, first.stderr
    assert "gpus" not in (project / "jobs" / "train.toml").read_text()
    second = kit("render", "t", "--cluster", "local")
    assert second.returncode == 2
    (project / "jobs" / "train.toml").rename(project / "jobs" / "t.toml")
    second = kit("render", "t", "--cluster", "local")
    assert _without_header(second.stdout) == _without_header(first.stdout)
    assert kit("render", "-j", "2x2", "--save", "jobs/t.toml", "--", "python", "t.py").returncode == 2


def _without_header(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("# ")]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["rendr"], "no command 'rendr'\n  do     hpc-kit render"),
        (["render", "ddp_4nod"], "no job file 'ddp_4nod'"),
        (["render", "single", "--tmie", "3"], "--tmie"),
        (["render", "single", "--time", "2h30"], "2h30"),
        (["render", "single", "--set", "resources.ndoes=2"], "do     write --set resources.nodes=2"),
        (["render", "single", "--set", "resource.nodes=2"], "do     write --set resources.nodes=2"),
        (["render", "single", "--set", "nonsense"], "--set nonsense sets nothing"),
        (["render", "-j", "8", "--", "python", "t.py"], "-j 8 is not of the form NODESxRANKS"),
        (["render"], "neither a job nor a program"),
        (["render", "-j", "2x2", "t.py"], "do     write the program after --:  hpc-kit submit -j 4x2 -- python t.py"),
        (["submit", "bash", "t.py"], "do     write a program after --:  hpc-kit submit -j 4x2 -- bash t.py"),
        (["render", "./t.py"], "'./t.py' is a program, and no job file"),
        (["render", "bash"], "'bash' is a program, and no job file"),
        (["render", "single", "--cluster", "locl"], "no cluster file 'locl'"),
        (["launch", "--hosts", "a"], "do     hpc-kit launch ddp_4node"),
        (["launch", "single", "--hosts", "a", "--connect-timeout", "0"], "--connect-timeout"),
        (
            ["launch", "-j", "1x1", "--hosts", "a", "--export=NOT_SET_HERE", "--", "true"],
            "NOT_SET_HERE is not set here",
        ),
        (["nodelist", "n[1-"], "n[1-"),
        (["env", "--environ", "missing.json"], "cannot read missing.json"),
    ],
)
def test_wrong_use_is_a_few_lines_without_a_traceback(kit: Kit, words: list[str], expected: str) -> None:
    done = kit(*words)
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 4
    assert done.stdout == ""


def test_help_imports_no_command(kit: Kit) -> None:
    done = kit("--help")
    assert done.returncode == 0
    assert "submit" in done.stdout


@pytest.mark.parametrize("name", ["list", "render", "check", "plan", "submit", "status", "logs", "cancel", "env"])
def test_every_command_has_help(kit: Kit, name: str) -> None:
    done = kit(name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\" not in done.stdout


def test_nodelist_prints_one_host_per_line_and_folds_them(kit: Kit) -> None:
    assert kit("nodelist", "n[1-3,7]").stdout == "n1\nn2\nn3\nn7\n"
    assert json.loads(kit("nodelist", "--json", "n[1-2]").stdout) == ["n1", "n2"]
    assert kit("nodelist", "--fold", "n1,n2 n3").stdout == "n[1-3]\n"
    assert kit("nodelist", "--fold", "n[1-2,5], n6").stdout == "n[1-2,5-6]\n"
    assert kit("nodelist", "").stdout == ""


def test_no_column_of_the_list_runs_into_the_next(kit: Kit, project: Path) -> None:
    (project / "jobs" / f"{'long' * 10}.toml").write_text(f'description = "{"wide " * 20}end"\ncommand = ["true"]\n')
    text = kit("list").stdout
    assert f"  {'long' * 10}  wide wide" in text
    assert f"{'wide ' * 20}end (jobs/{'long' * 10}.toml)" in " ".join(text.split())


def test_a_broken_link_does_not_hide_the_other_jobs(kit: Kit, project: Path) -> None:
    (project / "jobs").mkdir(exist_ok=True)
    (project / "jobs" / "gone.toml").symlink_to("nowhere.toml")
    done = kit("list", "--json")
    assert done.returncode == 0, done.stderr
    jobs = {entry["name"]: entry["description"] for entry in json.loads(done.stdout)["jobs"]}
    assert "cannot be read" in jobs["gone"]
    assert "ddp_4node" in jobs


def test_list_shows_jobs_clusters_and_templates(kit: Kit, project: Path) -> None:
    (project / "jobs" / "mine.toml").write_text('description = "my own"\n')
    (project / "jobs" / "broken.toml").write_text("= 3\n")
    listed = json.loads(kit("list", "--json").stdout)
    assert {"name": "mine", "description": "my own", "file": "jobs/mine.toml"} in listed["jobs"]
    assert {"ddp_4node", "broken"} <= {entry["name"] for entry in listed["jobs"]}
    assert "local" in {entry["name"] for entry in listed["clusters"]}
    assert "DistributedDataParallel, 8 ranks on 4 nodes" in kit("list").stdout


def test_a_reader_that_leaves_early_is_no_error(project: Path) -> None:
    line = f"{shlex.quote(sys.executable)} -m hpc_kit nodelist 'n[1-100000]' | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, cwd=project, timeout=60
    )
    assert (done.stdout, done.stderr) == ("n1\n", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_output_that_cannot_be_written_is_an_error_without_a_traceback(project: Path) -> None:
    line = f"{shlex.quote(sys.executable)} -m hpc_kit render ddp_4node --cluster local >/dev/full"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=project, timeout=60)
    assert done.returncode == 1
    assert "hpc-kit: cannot write the output\n  found  No space left on device\n" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_command_prints_the_help(kit: Kit) -> None:
    done = kit()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == kit("--help").stdout


def test_schema_is_the_shipped_one(kit: Kit) -> None:
    assert kit("schema").stdout == (ROOT / "jobs" / "job.schema.json").read_text()
    assert kit("schema", "cluster").stdout == (ROOT / "env" / "cluster.schema.json").read_text()


def test_a_project_that_cannot_be_written_to_is_rendered_all_the_same(kit: Kit, project: Path) -> None:
    (project / "runs").write_text("a file in place of the folder, as root may write everywhere")
    done = kit("render", "ddp_4node")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("#!/bin/bash")
    assert "cannot write the shell files of the script" in done.stderr
    assert "--standalone" in done.stderr


def test_a_batch_script_as_a_program_is_refused(kit: Kit, project: Path) -> None:
    """As the program of another job it would be run without its own directives."""
    (project / "train.sh").write_text("#!/bin/bash\n#SBATCH --nodes=2\nsrun python t.py\n")
    done = kit("submit", "train.sh")
    assert done.returncode == 2
    assert "'train.sh' is a batch script, and no job file" in done.stderr
    assert "hpc-kit embedded run sbatch train.sh" in done.stderr


def test_a_folder_whose_logs_slurm_cannot_write_is_refused_and_the_fix_works(kit: Kit, project: Path) -> None:
    folder = project / "a%j"
    folder.mkdir()
    words = ["render", "-j", "1x1", "--cluster", "local"]
    done = kit(*words, "--", "true", cwd=folder)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2,
        (
            "  do     use another folder, or write the logs elsewhere: runs = '/path' in the cluster file, "
            "or --set cluster.runs=/path"
        ),
    )
    assert kit(*words, "--set", f"cluster.runs={project}/runs", "--", "true", cwd=folder).returncode == 0
