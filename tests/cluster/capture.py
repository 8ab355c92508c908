"""Captures the environment of every process of a launch on a real cluster: `python -m tests.cluster.capture [CASE...]`.

Writes one file per case into tests/runtime/environments/, in the format {case, description, slurm_version, expect,
truth_source, ranks: [{hostname, pid, env, truth}]}.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from . import Cluster, Settings
from .cases import Case, Truth, load
from .mpis import MPIS, Mpi
from .settings import visible_paths

HERE = Path(__file__).parent
DESTINATION = HERE.parent / "runtime" / "environments"

Record = dict[str, Any]


def main() -> None:
    """Start a cluster, capture all cases or the named ones, and stop the cluster."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.capture", description=__doc__)
    parser.add_argument("cases", nargs="*", help="beginnings of case names; all without")
    wanted = parser.parse_args().cases
    interactive = {"LaunchParameters": "use_interactive_step"}
    cluster = Cluster(Settings(name="capture", accounting=False, carry=visible_paths(), slurm=interactive))
    cluster.down()
    cluster.up()
    try:
        version = cluster.run(["sinfo", "--version"], check=True).stdout.split()[1]
        for case in load():
            if not wanted or case.name.startswith(tuple(wanted)):
                write(case, capture(cluster, case), version)
    finally:
        cluster.down()


def write(case: Case, ranks: list[Record], version: str) -> None:
    """Write one file per case, in the order of the ranks."""
    name = f"{case.name}@{version.rpartition('.')[0]}"
    content = {
        "case": name,
        "description": case.description,
        "slurm_version": version,
        "expect": case.expect,
        "truth_source": case.truth.value,
        "ranks": sorted(ranks, key=lambda record: int(record["truth"]["rank"])),
    }
    DESTINATION.mkdir(parents=True, exist_ok=True)
    (DESTINATION / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    print(f"{name}: {len(ranks)} processes", flush=True)


def capture(cluster: Cluster, case: Case) -> list[Record]:
    """Launch the case, and read the files that its processes wrote."""
    folder = cluster.settings.work / case.name
    out = folder / "out"
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier capture
    out.mkdir(parents=True)
    probe = f"{sys.executable} {HERE / 'probe.py'}"
    torchrun = f"{sys.executable} -m torch.distributed.run"
    values = {"OUT": str(out), "PROBE": probe, "PROBE_FILE": str(HERE / "probe.py"), "AGENT": torchrun}
    values |= {"TASKS": f"-o {out}/%t,%n,%N {probe} --listed", "LOGLEVEL": "INFO"}
    if case.mpi:
        values |= mpi_variables(MPIS[case.mpi], out)
    exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in values.items())
    script = folder / "job.sh"
    script.write_text(f"#!/bin/bash\n{exports}\n{case.script}\n")
    done = cluster.run([*_launch(case), str(script)], cwd=folder)
    ranks = READERS[case.truth](out, case)
    if not ranks:
        logs = "\n".join(path.read_text() for path in sorted(folder.glob("*.log")) + sorted(folder.glob("*.out")))
        raise RuntimeError(f"{case.name}: nothing captured, status {done.returncode}\n{done.stderr}\n{logs}")
    return ranks


def mpi_variables(mpi: Mpi, out: Path) -> dict[str, str]:
    """Return MPIRUN, and MPIPROBE: the probe that also queries MPI."""
    if missing := mpi.missing():
        raise RuntimeError(f"MPI is not installed: {missing}")
    return {"MPIRUN": str(mpi.mpirun), "MPIPROBE": f"{mpi.python} {HERE / 'probe.py'} --mpi {out}", **mpi.variables}


def _launch(case: Case) -> list[str]:
    if case.login:
        return ["bash"]
    return ["sbatch", "--wait", *shlex.split(case.options)]


def ranks_from_files(out: Path, case: Case) -> list[Record]:
    """Read rank, node index and host from the file's name, and the local rank from slurmd's answer."""
    named = {path: path.name.split(",") for path in out.iterdir()}
    tasks = Counter(host for _, _, host in named.values())
    first = next((host for rank, _, host in named.values() if rank == "0"), "")
    ranks = []
    for path, (rank, node, host) in named.items():
        record = json.loads(path.read_text())
        listed = record.pop("listed")
        if record["hostname"] != host or listed["global"] != int(rank):
            raise RuntimeError(f"{case.name}: {path.name} was written by {record['hostname']} {listed}")
        place = (int(rank), listed["local"], int(node))
        ranks.append(finish(record, case, place, (len(named), tasks[host], len(tasks)), first))
    return ranks


def single_rank(out: Path, case: Case) -> list[Record]:
    """Describe a single process, regardless of its variables."""
    record = json.loads((out / "one").read_text())
    return [finish(record, case, (0, 0, 0), (1, 1, 1), record["hostname"])]


def ranks_from_labels(out: Path, case: Case) -> list[Record]:
    """Read the rank from srun's label, and derive local rank and node from the order of the ranks."""
    lines = [line.split(": ", 1) for line in (out / "labels").read_text().splitlines()]
    files = [name for _, name in sorted((int(label), name) for label, name in lines)]
    records = [json.loads((out / name).read_text()) for name in files]
    hosts = [record["hostname"] for record in records]
    nodes = list(dict.fromkeys(hosts))
    ranks = []
    for rank, (record, host) in enumerate(zip(records, hosts, strict=True)):
        place = (rank, hosts[:rank].count(host), nodes.index(host))
        ranks.append(finish(record, case, place, (len(hosts), hosts.count(host), len(nodes)), hosts[0]))
    return ranks


def ranks_from_mpi(out: Path, case: Case) -> list[Record]:
    """Read all values from MPI."""
    ranks = []
    for path in out.glob("*.json"):
        record = json.loads(path.read_text())
        world = record.pop("mpi")
        hosts = world["hosts"]
        nodes = list(dict.fromkeys(hosts))
        place = (world["rank"], world["local"], nodes.index(record["hostname"]))
        ranks.append(finish(record, case, place, (world["size"], world["local_size"], len(nodes)), hosts[0]))
        ranks[-1]["library"] = world["library"]
    if ranks and len(ranks) != ranks[0]["truth"]["world_size"]:
        raise RuntimeError(f"{case.name}: {len(ranks)} processes in a world of {ranks[0]['truth']['world_size']}")
    return ranks


def ranks_from_agents(out: Path, case: Case) -> list[Record]:
    """Read group rank and global ranks from each agent's log, and the local rank from the worker's log directory."""
    agents = [(path.name.partition("-")[2], path.read_text()) for path in out.glob("agent-*")]
    groups = {host: int(_logged("group_rank", text)) for host, text in agents}
    totals = {host: json.loads(_logged("global_ranks", text)) for host, text in agents}
    first = next(host for host, group in groups.items() if group == 0)
    address = _logged("master_addr", agents[0][1])
    ranks = []
    for host, group in groups.items():
        for path in (out / f"workers-{host}").glob("*/attempt_0/*/stdout.log"):
            record, local = json.loads(path.read_text()), int(path.parent.name)
            sizes = (sum(map(len, totals.values())), len(totals[host]), len(groups))
            ranks.append(finish(record, case, (totals[host][local], local, group), sizes, first))
            ranks[-1]["truth"]["master_addr"] = address
    return ranks


def _logged(word: str, text: str) -> str:
    found = re.search(rf"\b{word}=(.*)", text)
    if found is None:
        raise RuntimeError(f"no {word} in torchrun's log:\n{text}")
    return found[1].strip()


READERS = {
    Truth.FILES: ranks_from_files,
    Truth.ONE: single_rank,
    Truth.LABELS: ranks_from_labels,
    Truth.AGENTS: ranks_from_agents,
}
READERS[Truth.MPI] = ranks_from_mpi


def finish(record: Record, case: Case, place: tuple[int, int, int], sizes: tuple[int, int, int], first: str) -> Record:
    """Scrub the environment, and add the expected values."""
    rank, local, node = place
    world, local_world, nodes = sizes
    record["env"] = {name: scrub(value) for name, value in sorted(record["env"].items())}
    record["truth"] = {
        "rank": rank,
        "local_rank": local,
        "world_size": world,
        "local_world_size": local_world,
        "node_rank": node,
        "nnodes": nodes,
        "first_host": first,
        "launcher": case.launcher,
    }
    return record


def scrub(value: str) -> str:
    """Return the environment with absolute paths of this machine cut to their last part."""
    return re.sub(r"(?<![\w/:.])/(?:[\w.+@~-]+/)+", "/SCRUBBED/", value)


if __name__ == "__main__":
    main()
