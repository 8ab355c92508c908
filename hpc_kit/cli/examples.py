"""Examples at the end of the help of each command."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "": ("hpc-kit submit ddp_4node", "hpc-kit submit -j 4x2 -- python train.py", "hpc-kit logs -f"),
    "init": ("hpc-kit init myproject", "hpc-kit init --job fsdp_4node --discover --import old.sbatch"),
    "list": ("hpc-kit list",),
    "render": (
        "hpc-kit render ddp_4node",
        "hpc-kit render ddp_4node --cluster perlmutter --set resources.nodes=2",
        "hpc-kit render -j 4x2 --standalone -- python train.py",
    ),
    "check": (
        "hpc-kit check ddp_4node",
        "hpc-kit check old.sbatch --cluster env/mine.toml",
        "hpc-kit check --explain KIT203",
    ),
    "import": ("hpc-kit import old.sbatch", "hpc-kit import old.sbatch -o jobs/mine.toml"),
    "plan": ("hpc-kit plan --model llama3-8b --cluster dgx-h100 --nodes 4", "hpc-kit plan hybrid_3d_4node --explain"),
    "submit": (
        "hpc-kit submit ddp_4node --wait",
        "hpc-kit submit -j 4x2 --time 2:00:00 -- python train.py --lr 0.1",
        "hpc-kit submit prepare train --chain",
    ),
    "launch": ("hpc-kit launch ddp_4node --hosts a,b,c,d",),
    "status": ("hpc-kit status", "hpc-kit status ddp_4node --json"),
    "watch": ("hpc-kit watch ddp_4node",),
    "why": ("hpc-kit why 12",),
    "history": ("hpc-kit history", "hpc-kit history ddp_4node --json"),
    "resubmit": ("hpc-kit resubmit 12", "hpc-kit resubmit 12 --set resources.time=8:00:00"),
    "stacks": ("hpc-kit stacks 12",),
    "logs": ("hpc-kit logs -f", "hpc-kit logs 12 --rank 3"),
    "cancel": ("hpc-kit cancel 12", "hpc-kit cancel ddp_4node"),
    "clean": ("hpc-kit clean --older-than 30d",),
    "report": ("hpc-kit report runs/ddp_4node/latest --out report.html",),
    "env": ("srun -n 4 hpc-kit env",),
    "doctor": ("hpc-kit doctor", "hpc-kit doctor ddp_4node", "srun hpc-kit doctor --in-job"),
    "cluster": ("hpc-kit cluster discover --write env/mine.toml",),
    "cluster discover": ("hpc-kit cluster discover", "hpc-kit cluster discover --write env/mine.toml"),
    "cluster exclude": ("hpc-kit cluster exclude n3 --reason 'slow network' --for 14d",),
    "cluster include": ("hpc-kit cluster include n3",),
    "cluster exclusions": ("hpc-kit cluster exclusions", "hpc-kit cluster exclusions --json"),
    "nodelist": ("hpc-kit nodelist 'n[01-04,7]'",),
    "bench": ("hpc-kit bench comm", "hpc-kit submit bench_comm"),
    "bench comm": ("srun -N 2 -n 8 hpc-kit bench comm",),
    "bench pipeline": ("hpc-kit bench pipeline",),
    "bench memory": ("hpc-kit bench memory",),
    "bench start": ("hpc-kit bench start",),
    "bench dp": ("hpc-kit bench dp",),
    "bench strategies": ("hpc-kit bench strategies --only ddp,zero3",),
    "bench compare": ("hpc-kit bench compare before.json after.json",),
    "bench plot": ("hpc-kit bench plot bench.json",),
    "schema": ("hpc-kit schema cluster",),
    "docs": ("hpc-kit docs when-it-fails",),
    "completion": ("hpc-kit completion install bash",),
    "embedded": ("hpc-kit embedded run sbatch old.sbatch",),
    "embedded path": ('export PATH="$(hpc-kit embedded path):$PATH"',),
    "embedded run": ("hpc-kit embedded run sbatch old.sbatch",),
}
"""Command lines by command, without `hpc-kit` before its name."""


def epilog(command: str) -> str | None:
    r"""Return the examples of a command as click's epilog. `\b` keeps the line breaks."""
    lines = EXAMPLES.get(command)
    return "\b\n" + "\n".join(["Examples:", *(f"  {line}" for line in lines)]) if lines else None
