"""The names of `update_parameters`: submitit's, sbatch's, with or without `slurm_`."""

from __future__ import annotations

import inspect

import pytest
from submitit.slurm.slurm import _make_sbatch_string

from hpc_kit.errors import SpecError
from hpc_kit.submission.executor import (
    EXECUTOR_PARAMETERS,
    REFUSED_PARAMETERS,
    SUBMITIT_NAMES,
    ExecutorOptions,
    UnknownParameter,
    sort_parameters,
)


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ({"nodes": 2, "tasks_per_node": 4}, {"resources.nodes": 2, "resources.ntasks_per_node": 4}),
        ({"timeout_min": 90}, {"resources.time": 90}),
        ({"timeout_min": 0.5}, {"resources.time": 1}),
        ({"mem_gb": 4}, {"resources.mem": "4G"}),
        ({"mem_gb": 0.5}, {"resources.mem": "512M"}),
        ({"slurm_mem": "4GB"}, {"resources.mem": "4GB"}),
        ({"name": "sweep"}, {"name": "sweep", "resources.job_name": "sweep"}),
        ({"slurm_partition": "gpu", "qos": "long"}, {"resources.partition": "gpu", "resources.qos": "long"}),
        ({"slurm_time": "1-00:00:00"}, {"resources.time": "1-00:00:00"}),
        ({"exclusive": True}, {"resources.exclusive": True}),
        ({"partition": None}, {"resources.partition": None}),
        ({"setup": ["module load x"]}, {"setup": ["module load x"]}),
        (
            {"slurm_additional_parameters": {"mail-type": "END", "gres-flags": "disable-binding"}},
            {"resources.mail_type": "END", "resources.gres_flags": "disable-binding"},
        ),
    ],
)
def test_each_name_becomes_a_key_of_a_job_file(given: dict[str, object], settings: dict[str, object]) -> None:
    assert sort_parameters(given) == (settings, {})


def test_parameters_of_the_protocol_are_separated() -> None:
    given: dict[str, object] = {"slurm_array_parallelism": 4, "signal_delay_s": 30, "stderr_to_stdout": True}
    found = sort_parameters(given)
    assert found.settings == {}
    assert ExecutorOptions().updated(found.options) == ExecutorOptions(
        array_parallelism=4, signal_delay_s=30, stderr_to_stdout=True
    )


@pytest.mark.parametrize("given", [{"array_parallelism": 0}, {"signal_delay_s": "soon"}, {"stderr_to_stdout": 1}])
def test_a_wrong_value_is_named(given: dict[str, object]) -> None:
    with pytest.raises(SpecError, match=next(iter(given))):
        ExecutorOptions().updated(given)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("partitoin", "partition"),
        ("slurm_ndoes", "nodes"),
        ("timeout_mins", "timeout_min"),
        ("xyz", "a parameter of submitit"),
    ],
)
def test_an_unknown_name_suggests_near_ones(name: str, near: str) -> None:
    with pytest.raises(UnknownParameter, match=f"no parameter '{name}'") as error:
        sort_parameters({name: 1})
    assert near in str(error.value.remedy)
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize("name", sorted(REFUSED_PARAMETERS))
def test_a_parameter_without_an_effect_is_refused_with_a_remedy(name: str) -> None:
    with pytest.raises(SpecError) as error:
        sort_parameters({name: "x"})
    assert error.value.remedy == REFUSED_PARAMETERS[name]


def test_every_parameter_of_submitit_is_accepted_or_refused_with_a_reason() -> None:
    theirs = set(inspect.signature(_make_sbatch_string).parameters) - {"command", "folder", "map_count"}
    for name in sorted(theirs | SUBMITIT_NAMES.keys() | {f"slurm_{name}" for name in theirs} | EXECUTOR_PARAMETERS):
        if name.removeprefix("slurm_") in REFUSED_PARAMETERS:
            with pytest.raises(SpecError):
                sort_parameters({name: 1})
        else:
            sort_parameters({name: {} if "additional" in name else 1})
