"""Every SLURM_* variable of the embedded Slurm's shells and tasks, held against those captured on a real Slurm 22.05.

The launches are those of tests/cluster/cases.toml, the captures those under tests/runtime/environments.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.cases import Case, Truth, load
from tests.pocketslurm.conftest import Slurm

CAPTURES = Path(__file__).parents[2] / "runtime" / "environments"

MISSING_HERE = {
    "SLURM_CONF": "there is no slurm.conf",
    "SLURM_WORKING_CLUSTER": "the address of a slurmctld, which there is none of",
    "SLURM_MEM_PER_CPU": "that cluster has DefMemPerCPU=1000",
    "SLURM_JOB_ACCOUNT": "there is no accounting to give a default account",
    "SLURM_JOB_QOS": "there is no accounting to give a default quality of service",
}
"""Variables of the real cluster that the embedded one does not set."""

OWN_VALUE = {
    "SLURM_ARRAY_JOB_ID", "SLURM_CLUSTER_NAME", "SLURM_HOSTFILE", "SLURM_JOBID", "SLURM_JOB_GID", "SLURM_JOB_ID",
    "SLURM_JOB_PARTITION", "SLURM_JOB_UID", "SLURM_JOB_USER", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_SRUN_COMM_HOST",
    "SLURM_SRUN_COMM_PORT", "SLURM_STEP_LAUNCHER_PORT", "SLURM_SUBMIT_DIR", "SLURM_SUBMIT_HOST", "SLURM_TASK_PID",
    "SLURM_PRIO_PROCESS", "SLURM_UMASK",
}  # fmt: skip
"""Variables whose value depends on the machine or the job."""

GROUP = re.compile(r"_(HET|PACK)_GROUP_\d+$")
"""End of the names of variables about one component of a heterogeneous job."""

LAUNCHER_PREFIXES = ("SLURM", "SRUN", "SBATCH", "PMI_RANK", "PMI_SIZE")
MORE_LAUNCHER_NAMES = {"HOSTNAME", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES"}
EXCLUDED = (
    "pmix", "salloc", "interactive", "torchrun", "_pty", "cray", "multi_prog", "arbitrary", "mpmd_colon", "submitit",
    "sbatch_in_single", "preserve", "jobid", "relative", "srun_in_",
)  # fmt: skip
CASES = [case for case in load() if case.mpi is None and not any(word in case.name for word in EXCLUDED)]


def launcher_variables(environ: dict[str, str]) -> dict[str, str]:
    """Return the variables that a launcher sets, without those that are known to differ."""
    names = {name for name in environ if name.startswith(LAUNCHER_PREFIXES) or name in MORE_LAUNCHER_NAMES}
    kept = {name: GROUP.sub("", name) for name in sorted(names) if GROUP.sub("", name) not in MISSING_HERE}
    return {name: "any" if plain in OWN_VALUE else environ[name] for name, plain in kept.items()}


def captured_environments(case: Case) -> dict[str, dict[str, str]]:
    """Return the environments of a real Slurm by the name of the file that the case writes."""
    found = json.loads((CAPTURES / f"{case.name}@22.05.json").read_text())["ranks"]
    return {
        "one" if case.truth is Truth.ONE else str(rank["truth"]["rank"]): launcher_variables(rank["env"])
        for rank in found
    }


def case_script(case: Case, out: Path) -> str:
    """Return the script of a case, whose processes write their environments to a folder."""
    side = out.with_suffix(".d")
    side.mkdir()
    task = side / "python"  # the name of the real program, which becomes the name of the step
    task.write_text(f"#!/bin/sh\n/usr/bin/env -0 > {out}/$SLURM_PROCID\n")
    task.chmod(0o755)
    text = case.script.replace("$OUT.", f"{side}/out.").replace("$OUT", str(out)).replace("sleep 60", "sleep 600")
    text = text.replace(f'$PROBE --into "{out}"', str(task))
    return text.replace("$TASKS", str(task)).replace("$PROBE", "/usr/bin/env -0")


def read_environments(out: Path) -> dict[str, dict[str, str]]:
    """Return the environments that the processes of a case have written, by the name of the file."""
    return {
        path.name: launcher_variables(dict(pair.split("=", 1) for pair in path.read_text().split("\0") if "=" in pair))
        for path in out.iterdir()
        if path.name != "labels"  # output of the real tasks
    }


def run_cases(slurm: Slurm) -> dict[str, Path]:
    """Run all cases, those with GPUs one after another, and return the folder of each."""
    folders: dict[str, Path] = {}
    for wave in ([case for case in CASES if case.name != "29_gpu_per_task"], CASES):
        jobs = [start_case(slurm, case, folders) for case in wave if case.name not in folders]
        for job in jobs:
            slurm.ended(job) if job else None
    return folders


def start_case(slurm: Slurm, case: Case, folders: dict[str, Path]) -> int:
    """Start a case and return its job id, or 0 if the case makes no job of its own."""
    out = folders[case.name] = slurm.folder / case.name
    out.mkdir()
    text = case_script(case, out)
    if case.login:
        subprocess.run(["sh", "-c", text], env=slurm.environ, cwd=slurm.folder, check=True, timeout=60)
        return 0
    return slurm.submit(text, "--output=%A_%a.log", *case.options.split())


# One test, because the cases run together, and each process of a test ring would run all of them.
@pytest.mark.slow
def test_variables_equal_those_of_a_real_slurm(make_slurm: Callable[..., Slurm]) -> None:
    folders = run_cases(make_slurm(cpus=512))
    for case in CASES:
        assert read_environments(folders[case.name]) == captured_environments(case), case.name


def test_every_case_of_the_real_cluster_is_compared_or_excluded_by_name() -> None:
    assert len(CASES) >= 19
