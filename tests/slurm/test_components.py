"""Components of a heterogeneous job on a command line."""

from __future__ import annotations

import pytest

from hpc_kit.slurm.components import INHERITED, component_options, effective_options, split_components
from hpc_kit.slurm.getopt import SALLOC, SBATCH, SRUN, GetoptError, ParsedOptions, parse_options


def parse(*argv: str) -> ParsedOptions:
    return parse_options(argv)[0]


def test_every_inherited_option_exists() -> None:
    assert SBATCH.keys() | SRUN.keys() | SALLOC.keys() >= INHERITED


def test_the_last_value_counts_and_a_flag_removes_its_opposite() -> None:
    assert effective_options(parse("-N2", "--requeue"), parse("-N3", "--no-requeue")) == {
        "nodes": "3",
        "no-requeue": "",
    }


def test_a_command_line_is_split_at_colons() -> None:
    components, words = split_components(["-N2", ":", "-n4", "--hold", "job.sh", ":", "x"], "sbatch")
    assert [effective_options(each) for each in components] == [{"nodes": "2"}, {"ntasks": "4", "hold": ""}]
    assert words == ["job.sh", ":", "x"]
    with pytest.raises(GetoptError, match="salloc does not take"):
        split_components(["-N2", ":", "--array=1"], "salloc")


def test_a_component_inherits_and_the_command_line_has_priority() -> None:
    blocks = [parse("--time=5", "-N1"), parse("-N2"), parse("-N3", "--time=7")]
    assert component_options(blocks, parse("--qos=low"), [parse("--account=a"), parse("--mem=1G")]) == [
        {"time": "5", "nodes": "1", "qos": "low", "account": "a"},
        {"time": "5", "nodes": "2", "qos": "low", "account": "a", "mem": "1G"},
        {"time": "7", "nodes": "3", "qos": "low", "account": "a", "mem": "1G"},
    ]
