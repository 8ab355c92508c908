"""Short queries to a Slurm and their complete answers: refusals with their messages and exit codes.

`python -m tests.conformance.answers [--name CLUSTER]` queries the real Slurm, and writes its answers to answers.json.
Both engines must give these answers.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

from tests.cluster import Cluster, Settings
from tests.cluster.settings import visible_paths
from tests.conformance.engine import Engine, Real

RECORDED = Path(__file__).with_name("answers.json")

OPTIONS = """
--no-such-option | -N0 | -N99 | -Nx | -N2-1 | -n-1 | -n0 | -nx | -c99 | -c0 | --mem=999G | --mem=lots | --mem=-1
--gres=gpu:9 | --gres=fpga:1 | --gres=gpu:x | --gpus-per-node=9 | --gpus=99 | --gpus-per-task=1
--time=2h30 | --time=-5 | --time=90:00:00 | --time=0 | --time-min=x | --partition=nowhere | --partition=main,nowhere
--array=0-999 | --array=x | --array=3-1 | --array=0-3%0 | --array=1,1
--dependency=afterok:999999 | --dependency=sometime:1 | --dependency=afterok: | --dependency=afterok:x
--nodelist=nowhere | --nodelist=n[1-9] | --exclude=n[1-4] | --exclude=nowhere | -N3 --nodelist=n[1-4] | -w n1 -x n1
--begin=someday | --begin=2001-01-01 | --begin=now+1fortnight | --deadline=now-1hour | --deadline=someday
--signal=NOSUCH | --signal=USR1@99999 | --signal=USR1@x | --signal=B: | --signal=99
--open-mode=sideways | --distribution=random | --mail-type=SOMETIMES | --nice=1000000000000 | --nice=x | --priority=x
--mem=1G --mem-per-cpu=1G | --ntasks-per-node=99 -N1 | --ntasks-per-node=x | -N2 -n1 | -N4 -n2
--reservation=none | --chdir= | --job-name= | --output= | --exclusive=maybe
--requeue --no-requeue | --hold --parsable | --clusters=nowhere | --test-only -N9
--gres=gpu:a100:1 | --gpus=a100:1 | --gpus=3 --gpus-per-node=2 | --gpus=2 --gpus-per-task=1 -n1 | --gpus=3 -N4
--gpus=1 --gpus-per-task=2 | --gpus-per-node=1 --gpus=3 -N2 | --mem-per-gpu=1G | --gpus=x,1 | --gres=gpu:3
--licenses=matlab | --constraint=fast | --prefer=fast | --begin=2030-13-1 | --begin=now+2h
--priority=-1 | --priority=4294967294 | --nice=+5 --hold | -w n1 -n9 | -N4 -n4 -c9 | -N5 | --mem-per-cpu=17000
--kill-on-invalid-dep=maybe | --cpus-per-gpu=x | --mincpus=99 | --tmp=lots | --threads-per-core=x | --wait-all-nodes=7
""".replace("\n", " | ").split("|")

SCRIPTS = {
    "empty": "",
    "blank": "   \n\n",
    "no first line": "echo hello\n",
    "line ends of DOS": "#!/bin/bash\r\n#SBATCH -N1\r\necho\r\n",
    "an option that is none": "#!/bin/bash\n#SBATCH --no-such-option\n",
    "a time that is none": "#!/bin/bash\n#SBATCH --time=2h\n",
    "an option after the first command": "#!/bin/bash\ntrue\n#SBATCH --no-such-option\n",
    "a comment after an option": "#!/bin/bash\n#SBATCH -N1 # one node\n",
    "quotes": "#!/bin/bash\n#SBATCH --job-name='two words' --comment=\"a b\"\n",
    "an open quote": "#!/bin/bash\n#SBATCH --job-name='open\n",
    "two spaces": "#!/bin/bash\n# SBATCH --no-such-option\n##SBATCH --no-such-option\n",
    "a word too many": "#!/bin/bash\n#SBATCH --nodes 1 2\n",
}

LINES = [
    "sbatch no_such_file.sh", "sbatch .", "sbatch --wrap=true a_script.sh", "sbatch --help-me",
    "scancel 999999", "scancel x", "scancel", "scancel 1_x", "scancel --signal=NOSUCH 999999",
    "scancel --no-such-option",
    "scancel --state=SLEEPING", "scancel --state=PENDING,RUNNING", "scancel -u 99999",
    "scancel --name=none", "scancel --user=no_such_user",
    "squeue -j 999999", "squeue -j x", "squeue -t SLEEPING", "squeue --no-such-option", "squeue -h -u no_such_user",
    "squeue -h -n none", "squeue -h -p nowhere", "squeue -h -w nowhere", "squeue -h -n none -O nosuchfield",
    "squeue -S nosuch", "squeue -h -w n1,nowhere", "squeue -h -j ''", "squeue -h -t ''",
    "squeue -M nowhere",
    "scontrol show job 999999", "scontrol show job x", "scontrol requeue 999999", "scontrol hold 999999",
    "scontrol release 999999", "scontrol dance", "scontrol show dance", "scontrol update JobId=999999 TimeLimit=5",
    "scontrol show node nowhere", "scontrol show partition nowhere", "scontrol show hostnames n[1-3,7]",
    "scontrol show hostnames n[1-", "scontrol show hostlist n1,n2,n3,n7", "scontrol show hostnames a[08-11],b",
    "sacct -j 999999 -o ''",
    "sacct -o nosuchfield", "sacct --no-such-option", "sacct -nP -j 999999", "sacct -n -s SLEEPING", "sacct -S someday",
    "sacct -n --job 999999", "sacct --jobname=x", "sacct -n -j 999999 --account=x --fields=jobid", "sacct -o reqgres",
    "sacct --units=X", "sacct -n -j 999999 --units=G", "squeue -n none -o %all",
    "sinfo -p nowhere -o %all",
    "sinfo --no-such-option", "sinfo -h -p nowhere", "sinfo -h -n nowhere", "sinfo -h -t dreaming", "sinfo --version",
    "sinfo -h -t down -o '%P %D %t'", "sinfo -h -N -o %N", "sinfo -h -o '%D %l'", "sinfo -O partition,nosuch",
    "sinfo -T", "sinfo -h -o '%R %z'", "sinfo -S -P", "sinfo -s", "sinfo -Nl -n n2 -h",
    "sinfo -h -o '%P %a %l %D %t %N'", "sinfo -h -N -p main -o '%N %c %m %G %P'", "sinfo -h -p high -o %R",
    "sbatch --version", "srun --version", "squeue --version",
    "srun", "srun --no-such-option true", "srun --jobid=999999 true", "srun -n0 true", "srun -N1 -w nowhere true",
    "srun -p nowhere true", "srun --time=2h true", "srun -c99 -N1 --immediate=1 true", "srun --mpi=nosuch true",
    "srun /no/such/program", "srun sh -c 'exit 3'", "srun sh -c 'kill -KILL $$'", "srun -n2 sh -c 'exit $SLURM_PROCID'",
    "srun -l -n2 echo here", "srun -N4 -n4 sh -c 'echo $SLURM_NODEID' --label", "srun --label --output=none true",
    "srun -Q sh -c 'exit 4'", "srun --chdir=/usr pwd", "srun --export=NONE,A=b sh -c 'echo $A'",
]  # fmt: skip


def questions() -> dict[str, str]:
    """Return command lines by name. `{script}` is replaced by the path of a script."""
    found = {f"sbatch {text.strip()}": f"sbatch {text.strip()} --wrap=true" for text in OPTIONS if text.strip()}
    found |= {f"script: {name}": f"script {name}" for name in SCRIPTS}
    return found | {line: line for line in LINES}


def ask(engine: Engine, line: str) -> list[object]:
    """Return exit code, output and errors, with the job id masked. A job that was accepted is cancelled."""
    if line.startswith("srun"):
        # The answer names a node. A completing job would move the step to another node.
        engine.wait_until(lambda: engine.output_of("squeue", "-h") == "")
    if line.startswith("script "):
        path = engine.folder / "asked.sh"
        path.write_bytes(SCRIPTS[line.removeprefix("script ")].encode())
        done = engine.run("sbatch", "asked.sh")
    else:
        done = engine.run(*shlex.split(line))
    if taken := re.search(r"^Submitted batch job (\d+)|^(\d+)$", done.stdout):
        engine.run("scancel", taken[1] or taken[2])
    return [done.returncode, *map(masked, (done.stdout, done.stderr))]


def masked(text: str) -> str:
    """Remove job ids, times and messages that depend on the load of the cluster, and sort the lines of tasks."""
    text = re.sub(r"(?i)(?<=job )\d+|(?<=jobid=)\d+|^\d+$|(?<=StepId=)\d+", "ID", text)
    text = re.sub(
        r"^srun: job ID (queued and waiting for|has been allocated) resources\n", "", text, flags=re.MULTILINE
    )
    several_tasks = re.fullmatch(r"(\d(: .*)?\n)+|(slurmstepd.*\n|srun: .*\n)+", text)
    return "".join(sorted(text.splitlines(keepends=True))) if several_tasks else text


def main() -> None:
    """Record the answers of the real Slurm."""
    name = sys.argv[2] if sys.argv[1:2] == ["--name"] else "ring"
    engine = Real(Cluster(Settings(name=name, carry=visible_paths())))
    answers = {}
    for title, line in questions().items():
        print(title, file=sys.stderr, flush=True)
        answers[title] = ask(engine, line)
    RECORDED.write_text(json.dumps(answers, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
