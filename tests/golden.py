"""What is kept whole and compared whole: rendered scripts, schemas, and the pages that are made from the code.

`make golden` writes them anew; read the difference before you commit it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from hpc_kit.check.rule_docs import rule_pages
from hpc_kit.cli.job_arguments import JobRequest, render_shell
from hpc_kit.runs.why.rule_page import why_page
from hpc_kit.runs.why.rules import literal_table
from hpc_kit.script.render import render_resolved, resolve_arguments
from hpc_kit.spec.job import Job
from hpc_kit.spec.schema import schema_text
from hpc_kit.ssh.hosts import read_hosts
from tests import embedded_page, pictures, reference_pages

ROOT = Path(__file__).parents[1]
SCRIPTS = Path(__file__).parent / "script" / "golden"

PYTHON = {"cluster.python": ".venv/bin/python"}
"""Else a golden script would name the interpreter of whoever wrote it."""

PROJECT: dict[str, object] = {"resources.chdir": "/project"}
"""Else a golden standalone script would name the folder of the checkout."""

CASES: dict[str, tuple[str, str, dict[str, object], str]] = {
    "single": ("single", "local", {}, ""),
    "ddp_1node": ("ddp_1node", "local", {}, ""),
    "ddp_4node": ("ddp_4node", "local", {}, ""),
    "ddp_4node.standalone": ("ddp_4node", "local", PROJECT, "standalone"),
    "ddp_4node.simple": ("ddp_4node", "local", {}, "simple"),
    "ddp_4node.gpu": ("ddp_4node", "example-gpu", {"resources.ntasks_per_node": 4}, ""),
    "ddp_4node.array": ("ddp_4node", "slurm", {"resources.array": "0-9%2", "launch.timeout": 600}, ""),
    "ddp_torchrun": ("ddp_torchrun", "local", {}, ""),
    "ddp_torchrun.standalone": ("ddp_torchrun", "local", PROJECT, "standalone"),
    "ddp_mpirun": ("ddp_mpirun", "slurm", {}, ""),
    "ddp_mpirun.standalone": (
        "ddp_mpirun",
        "slurm",
        {"launch.mpi": "mpich", "resources.chdir": "/project"},
        "standalone",
    ),
    "ddp_mpi_backend": ("ddp_mpi_backend", "local", {}, ""),
    "ray_4node": ("ray_4node", "slurm", {}, ""),
    "ray_4node.embedded": ("ray_4node", "local", {"launch.nproc_per_node": 1}, ""),
    "plain_ddp_4node": ("plain_ddp_4node", "local", {}, ""),
    "plain_ddp_4node.standalone": ("plain_ddp_4node", "slurm", PROJECT, "standalone"),
    "pipeline_2node": ("pipeline_2node", "local", {}, ""),
    "hybrid_3d_4node": ("hybrid_3d_4node", "local", {}, ""),
    "hybrid_3d_4node.gpu": (
        "hybrid_3d_4node",
        "example-gpu",
        {"resources.nodes": 8, "resources.ntasks_per_node": 4, "layout.tp": 4, "layout.pp": 4, "layout.zero": 1},
        "",
    ),
    "hsdp_4node": ("hsdp_4node", "local", {}, ""),
    "hetjob": ("hetjob", "slurm", {}, ""),
    "hetjob.standalone": (
        "hetjob",
        "slurm",
        {
            "component": [
                {"nodes": 1, "constraint": "a100", "mem": "8G"},
                {"nodes": 2, "partition": "cpu", "gpus_per_task": 2, "command": ["python", "worker.py"]},
            ],
            "layout.global_batch": 96,
            **PROJECT,
        },
        "standalone",
    ),
    "restart": (
        "ddp_4node",
        "slurm",
        {"restart": {"lead": "2:00", "resume_args": ["--resume", "saved"], "progress": "saved"}},
        "",
    ),
    "restart.spares": ("ddp_torchrun", "slurm", {"restart.spares": 1, "restart.resume_args": ["--resume"]}, ""),
    "restart.torchrun.standalone": ("ddp_torchrun", "slurm", {"restart": {"signal": "USR2"}, **PROJECT}, "standalone"),
    "preflight": ("ddp_4node", "slurm", {"preflight": {"enabled": True}}, ""),
    "preflight.spares": ("ddp_4node", "local", {"preflight.enabled": True, "restart.spares": 1}, ""),
    "special_characters": (
        "single",
        "slurm",
        {
            "name": 'it\'s 100% "odd" #1 $HOME é',
            "resources.comment": 'a#b "c" $D',
            "env.GREETING": "it's $HOME\nand `more`",
            "setup": ["module load cuda/12.6"],
            "command": ["./my program", "--text", "a 'b' $C"],
        },
        "",
    ),
}


def render_job(job: str | Job, cluster: str, settings: Mapping[str, object], variant: str = "") -> str:
    """The script of a job of the checkout, which is left as it is: `render` would write the shell files, too."""
    flags = {variant: True} if variant else {}
    return render_resolved(resolve_arguments(job, cluster, settings, ROOT), **flags, root=ROOT)


def script(case: str) -> str:
    """The script of one case, as it is rendered now."""
    job, cluster, settings, variant = CASES[case]
    return render_job(job, cluster, {**PYTHON, **settings}, variant)


SHELL_CASES: dict[str, tuple[str, str | None, bool]] = {
    "single": ("single", None, False),
    "ddp_4node": ("ddp_4node", None, False),
    "ddp_4node.standalone": ("ddp_4node", "a,b", True),
    "ddp_4node.uneven": ("ddp_4node", "a:1,me@b:3", False),
}
"""Job, hosts, and whether the hosts do without hpc_kit, of a plain shell script."""


def shell(case: str) -> str:
    """The plain shell script of one case, as it is rendered now."""
    job, hosts, standalone = SHELL_CASES[case]
    named = read_hosts(hosts, None) if hosts else ()
    settings = tuple(f"{key}={value}" for key, value in {**PYTHON, **PROJECT}.items())
    request = JobRequest(job, (), None, settings, None, {})
    return render_shell(request, named, ROOT, standalone=standalone)[1]


def documents() -> Iterator[tuple[Path, str]]:
    """Every file that is compared whole, with its text as it is made now."""
    for case in CASES:
        yield SCRIPTS / f"{case}.sbatch", script(case)
    for case in SHELL_CASES:
        yield SCRIPTS / f"{case}.sh", shell(case)
    yield ROOT / "jobs" / "job.schema.json", schema_text("job")
    yield ROOT / "env" / "cluster.schema.json", schema_text("cluster")
    for name, page in rule_pages():
        yield ROOT / "docs" / name, page
    yield ROOT / "docs" / "why.md", why_page()
    yield ROOT / "hpc_kit/runs/why/pattern_literals.json", literal_table()
    yield embedded_page.PAGE, embedded_page.text()
    yield pictures.PAGE, pictures.page()
    yield from reference_pages.documents()


def main(*, write: bool) -> None:
    """Name the files that are out of date, and write them."""
    for path, text in documents():
        if not path.is_file() or path.read_text() != text:
            if write:
                path.write_text(text)
            print(f"{'written' if write else 'out of date:'} {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main(write=sys.argv[1:] != ["--check"])
