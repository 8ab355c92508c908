"""`hpc-kit cluster` on the embedded Slurm."""

from __future__ import annotations

import json
from pathlib import Path

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


def test_without_write_nothing_is_written(kit: Kit, project: Path) -> None:
    assert "# sinfo" in kit("cluster", "discover").stdout
    facts = json.loads(kit("cluster", "discover", "--json").stdout)["facts"]
    assert {"key": "max_array_size", "value": 1001, "source": "scontrol show config"} in facts
    assert list((project / "env").iterdir()) == []


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
