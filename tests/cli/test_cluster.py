"""`hpc-kit cluster` on the embedded Slurm."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tests.cli.conftest import Kit


def test_the_embedded_slurm_describes_itself(kit: Kit, project: Path) -> None:
    first = kit("cluster", "discover", "--write", "env/mine.toml")
    assert first.returncode == 0, first.stderr
    assert "written env/mine.toml" in first.stdout
    assert "keeps no accounts" in first.stderr
    script = kit("render", "ddp_4node", "--cluster", "mine")
    assert script.returncode == 0, script.stderr
    assert "#SBATCH --nodes=4" in script.stdout


def test_a_second_run_shows_the_changes(kit: Kit, project: Path) -> None:
    kit("cluster", "discover", "--write", "env/mine.toml")
    path = project / "env" / "mine.toml"
    path.write_text(path.read_text().replace("cpus = 8", "cpus = 6"))
    assert "kept    node.cpus: 6; sinfo has 8" in kit("cluster", "discover", "--write", "env/mine.toml").stdout
    assert "cpus = 6" in path.read_text()
    known = project / "env" / "mine.discovered.json"
    table = json.loads(known.read_text())
    table["node"]["cpus"], table["max_array_size"] = 6, 17
    known.write_text(json.dumps(table))
    path.write_text(path.read_text().replace("max_array_size = 1001", "max_array_size = 17"))
    again = kit("cluster", "discover", "--write", "env/mine.toml").stdout
    assert "-max_array_size = 17 # scontrol show config\n+max_array_size = 1001 # scontrol show config\n" in again
    assert "same" in kit("cluster", "discover", "--write", "env/mine.toml").stdout


def test_the_file_has_the_name_of_the_cluster(kit: Kit, project: Path) -> None:
    assert "written env/embedded.toml" in kit("cluster", "discover").stdout
    assert kit("render", "ddp_4node", "--cluster", "embedded").returncode == 0


def test_another_file_than_toml_is_refused(kit: Kit, project: Path) -> None:
    done = kit("cluster", "discover", "--write", "env/mine.json")
    assert done.returncode == 2
    assert "env/mine.toml" in done.stderr


def test_a_probe_that_is_refused_leaves_the_values_of_the_login_node(kit: Kit, project: Path) -> None:
    done = kit("cluster", "discover", "--write", "env/mine.toml", "--probe", "--srun=--nodes=many")
    assert done.returncode == 1
    assert "the probe did not run on a node" in done.stderr
    assert "max_array_size = 1001" in (project / "env" / "mine.toml").read_text()


@pytest.mark.slow
def test_the_probe_measures_the_links_and_plan_uses_them(kit: Kit, project: Path) -> None:
    done = kit("cluster", "discover", "--write", "env/mine.toml", "--probe")
    assert done.returncode == 0, done.stderr
    node = tomllib.loads((project / "env" / "mine.toml").read_text())["node"]
    for name in ("link", "network"):
        assert 1e-6 < node[f"{name}_alpha"] < 0.1
        assert 1e-12 < node[f"{name}_beta"] < 1e-6
    plan = kit("plan", "--model", "layers=2,hidden=64,heads=4", "--cluster", "mine", "--nodes", "2", "--seq-len", "128")
    assert "links as measured by cluster discover --probe" in plan.stdout, plan.stderr


def test_without_a_file_nothing_is_written(kit: Kit, project: Path) -> None:
    assert "# sinfo" in kit("cluster", "discover", "--write", "-").stdout
    facts = json.loads(kit("cluster", "discover", "--json").stdout)["facts"]
    assert {"key": "max_array_size", "value": 1001, "source": "scontrol show config"} in facts
    assert list((project / "env").iterdir()) == []


@pytest.mark.slow
def test_later_jobs_do_not_use_excluded_nodes(kit: Kit, project: Path, tmp_path: Path) -> None:
    state = str(tmp_path / "kept")
    (node, *_) = kit("nodelist", "127.0.0.[1-4]").stdout.split()
    done = kit("cluster", "exclude", node, "--reason", "slow disk", "--for", "2d", XDG_STATE_HOME=state)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].startswith(node)
    assert [
        each["reason"] for each in json.loads(kit("cluster", "exclusions", "--json", XDG_STATE_HOME=state).stdout)
    ] == ["slow disk"]
    program = ("--", "bash", "-c", "echo on $SLURMD_NODENAME")
    done = kit("submit", "-j", "2x1", *program, XDG_STATE_HOME=state)
    assert f"note    excluding {node} until " in done.stdout
    assert sorted(path.read_text() for path in project.glob("runs/bash/[0-9]*/rank-*.log")) == [
        "on 127.0.0.2\n",
        "on 127.0.0.3\n",
    ]
    assert kit("cluster", "include", node, XDG_STATE_HOME=state).stdout == "no node of cluster local is excluded\n"


def test_unknown_nodes_are_refused(kit: Kit, project: Path, tmp_path: Path) -> None:
    state = str(tmp_path / "kept")
    done = kit("cluster", "exclude", "n9", "--reason", "slow", XDG_STATE_HOME=state)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "hpc-kit: cluster local has no node n9")
    done = kit("cluster", "include", "n9", XDG_STATE_HOME=state)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "hpc-kit: node n9 is not excluded")
