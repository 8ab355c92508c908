"""Variables that would have the last word over a script: which of them sbatch does not get to see."""

from __future__ import annotations

import pytest

from hpc_kit.slurm.command_environment import SBATCH_VARIABLES, drop_overriding_variables
from hpc_kit.slurm.getopt import SBATCH
from tests.slurm.oracle import sbatch_defined_options

SCRIPT = "#!/bin/bash\n#SBATCH --time=10 --mem-per-cpu=2G\n#SBATCH --requeue\ntrue\n"


def list_dropped(script: str = SCRIPT, **environ: str) -> set[str]:
    kept, notes = drop_overriding_variables(environ, script)
    assert len(notes) == len(environ) - len(kept)
    return set(environ) - set(kept)


@pytest.mark.parametrize(
    ("name", "dropped"),
    [
        ("SBATCH_TIMELIMIT", True),
        ("SBATCH_MEM_PER_NODE", True),
        ("SBATCH_NO_REQUEUE", True),
        ("SBATCH_ARRAY_INX", True),
        ("SBATCH_ERROR", True),
        ("SBATCH_WAIT", True),
        ("SBATCH_ACCOUNT", False),
        ("SBATCH_GPUS", False),
        ("SLURM_CLUSTERS", False),
        ("PATH", False),
    ],
)
def test_a_variable_may_add_to_a_script_and_contradict_nothing(name: str, dropped: bool) -> None:
    assert list_dropped(**{name: "x"}) == ({name} if dropped else set())


GPUS = "#!/bin/bash\n#SBATCH --gpus-per-node=4 --cpus-per-task=8\ntrue\n"
GRES = "#!/bin/bash\n#SBATCH --gres=gpu:a100:4\ntrue\n"
CORES = "#!/bin/bash\n#SBATCH --ntasks-per-core=1\ntrue\n"


@pytest.mark.parametrize(
    ("script", "variables", "dropped"),
    [
        (GPUS, {"SBATCH_GRES": "gpu:1"}, True),
        (GPUS, {"SBATCH_GRES": "lustre:1,gres/gpu:a100:1"}, True),
        (GPUS, {"SBATCH_GRES": "craynetwork:1"}, False),
        (GPUS, {"SBATCH_CPUS_PER_GPU": "4"}, True),
        (GPUS, {"SBATCH_HINT": "nomultithread"}, False),
        (GRES, {"SBATCH_GPUS_PER_NODE": "1"}, True),
        (GRES.replace("gpu:a100", "fast"), {"SBATCH_GPUS_PER_NODE": "1"}, False),
        (GPUS, {"SBATCH_TRES_PER_TASK": "cpu:16"}, True),
        (GPUS, {"SBATCH_TRES_PER_TASK": "gres/gpu=1"}, True),
        (GPUS, {"SBATCH_TRES_PER_TASK": "gres/gpu:a100:1,license/x:1"}, True),
        (GPUS, {"SBATCH_TRES_PER_TASK": "license/x:1"}, False),
        (GRES, {"SBATCH_TRES_PER_TASK": "cpu:16"}, False),
        (GRES, {"SBATCH_SEGMENT_SIZE": "4"}, False),
        (CORES, {"SBATCH_HINT": "nomultithread"}, True),
        (CORES, {"SLURM_HINT": "nomultithread"}, True),
        (CORES, {"SBATCH_THREADS_PER_CORE": "1"}, False),
        (CORES.replace("ntasks-per-core=1", "hint=memory_bound"), {"SBATCH_THREADS_PER_CORE": "1"}, True),
    ],
)
def test_another_spelling_of_an_option_is_a_contradiction_too(
    script: str, variables: dict[str, str], dropped: bool
) -> None:
    assert list_dropped(script, **variables) == (set(variables) if dropped else set())


@pytest.mark.parametrize("name", ["SBATCH_HINT", "SLURM_HINT", "SBATCH_THREADS_PER_CORE"])
@pytest.mark.parametrize(
    ("options", "dropped"),
    [
        ("--gpus-per-node=2", True),
        ("--gres=gpu:1", True),
        ("--gpus-per-node=2 --cpus-per-task=4", False),
        ("--gpus=2 --cpus-per-gpu=4", False),
        ("--gres=lustre:1", False),
    ],
)
def test_threads_of_cores_do_not_go_with_cpus_by_gpu(name: str, options: str, dropped: bool) -> None:
    """Seen on 22.05 with DefCpuPerGPU: the job is refused, or held for good."""
    assert list_dropped(f"#!/bin/bash\n#SBATCH {options}\ntrue\n", **{name: "1"}) == ({name} if dropped else set())


def test_a_component_of_a_heterogeneous_job_counts_too() -> None:
    script = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH hetjob\n#SBATCH --partition=gpu\n"
    assert list_dropped(script, SBATCH_PARTITION="debug") == {"SBATCH_PARTITION"}


def test_a_script_that_sbatch_refuses_has_no_contradictions() -> None:
    assert list_dropped("#!/bin/bash\n#SBATCH --no-such-option\n", SBATCH_PARTITION="debug") == set()


def test_each_variable_belongs_to_an_option() -> None:
    assert set(SBATCH_VARIABLES.values()) <= set(SBATCH)


@pytest.mark.oracle("sbatch")
def test_sbatch_accepts_gpus_and_cpus_in_two_spellings_at_once() -> None:
    variables = {"SBATCH_GRES": "gpu:1", "SBATCH_CPUS_PER_GPU": "4"}
    options = sbatch_defined_options(GPUS, variables=variables)
    assert (options["gres"], options["gpus-per-node"]) == ("gres:gpu:1", "4")
    assert (options["cpus-per-gpu"], options["cpus-per-task"]) == ("4", "8")
    kept, _ = drop_overriding_variables(variables, GPUS)
    assert kept == {}


@pytest.mark.oracle("sbatch")
def test_sbatch_gives_priority_to_the_variable() -> None:
    script = "#!/bin/bash\n#SBATCH --partition=main\ntrue\n"
    for variables, partition in (({"SBATCH_PARTITION": "debug"}, "debug"), ({}, "main")):
        assert sbatch_defined_options(script, variables=variables)["partition"] == partition
