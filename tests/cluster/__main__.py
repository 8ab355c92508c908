"""Starts and stops a real Slurm of four hosts: `python -m tests.cluster up|down|status|exec ...`."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from . import cgroups
from .cluster import Cluster, ClusterError, install_packages
from .settings import CONTROLLER, Names, Settings, default_root, load, visible_paths


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    top.add_argument("--name", default="ring", help="several clusters may stand side by side under different names")
    top.add_argument("--root", type=Path, help="directory for everything of it (default: below /var/tmp)")
    commands = top.add_subparsers(dest="command", required=True)
    add_up(commands.add_parser("up", help="bring it up; installs missing Debian packages"))
    commands.add_parser("down", help="end its processes and remove its directory")
    commands.add_parser("status", help="hosts and daemons; exit status 1 when one is missing")
    execute = commands.add_parser("exec", help="run a command on the login host: exec -- CMD ...")
    execute.add_argument("--host", default=CONTROLLER, help="another host than the login host")
    execute.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- CMD")
    return top


def add_up(up: argparse.ArgumentParser) -> None:
    """Add the options of `up`: the variants of a cluster."""
    default = Settings()
    up.add_argument("--work", type=Path, default=Path(), help="the shared directory (default: ROOT/work)")
    for option in ("nodes", "cpus", "memory", "gpus", "max_array_size"):
        up.add_argument(f"--{option.replace('_', '-')}", type=int, default=getattr(default, option))
    up.add_argument("--subnet", default=default.subnet)
    up.add_argument("--no-accounting", action="store_false", dest="accounting", help="no slurmdbd, so no sacct")
    names = up.add_mutually_exclusive_group()
    for option, value, text in (
        ("--no-dns", Names.ADDRESSES, "no host name resolves"),
        ("--loopback-name", Names.LOOPBACK, "each host's own name is 127.0.1.1"),
    ):
        names.add_argument(option, action="store_const", const=value, default=Names.HOSTS, dest="names", help=text)
    carry = "a directory under /tmp that the nodes see although their /tmp is private"
    up.add_argument("--carry", type=Path, action="append", default=[], metavar="DIR", help=carry)
    up.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="slurm", help="for slurm.conf")


def settings_of(args: argparse.Namespace) -> Settings:
    """Return the settings that the command line selects."""
    return Settings(
        name=args.name,
        root=args.root or default_root(args.name),
        work=args.work,
        nodes=args.nodes,
        cpus=args.cpus,
        memory=args.memory,
        gpus=args.gpus,
        max_array_size=args.max_array_size,
        subnet=args.subnet,
        accounting=args.accounting,
        names=args.names,
        carry=visible_paths(args.carry),
        slurm=dict(line.split("=", 1) for line in args.slurm),
    )


def up(args: argparse.Namespace) -> int:
    """Start the cluster, and print how to use it."""
    began = time.monotonic()
    install_packages()
    settings = settings_of(args)
    started = Cluster(settings).up()
    took = f"up in {time.monotonic() - began:.1f} s" if started else "was up already"
    if not cgroups.available():
        print("processes are tracked by proctrack/linuxproc: this machine has no freezer of cgroup v1")
    print(f"cluster {settings.name} {took}: hosts {', '.join(settings.hosts)}; shared directory {settings.work}")
    print(f"  python -m tests.cluster --name {settings.name} exec -- sinfo")
    return 0


def load_cluster(args: argparse.Namespace) -> Cluster:
    """Return the running cluster that the command line names."""
    root = args.root or default_root(args.name)
    return Cluster(load(root) or Settings(name=args.name, root=root))


def status(args: argparse.Namespace) -> int:
    """Print one line per host."""
    cluster = load_cluster(args)
    alive = cluster.alive()
    for host, address in cluster.settings.hosts.items():
        names = sorted({member.name for member in alive if member.host == host} - {"sleep"})
        print(f"{host:<4} {address:<15} {' '.join(names) or 'down'}")
    return 0 if cluster.healthy() else 1


def execute(args: argparse.Namespace) -> int:
    """Replace this process by the command, on the chosen host."""
    command = args.argv[1:] if args.argv[:1] == ["--"] else args.argv
    if not command:
        raise ClusterError("exec needs a command: exec -- sinfo")
    cluster = load_cluster(args)
    line = cluster.argv(command, host=args.host)
    program = shutil.which(line[0]) or line[0]
    sys.stdout.flush()
    os.execve(program, line, cluster.environ())


def main() -> int:
    """Run one command."""
    args = parser().parse_args()
    try:
        match args.command:
            case "up":
                return up(args)
            case "down":
                load_cluster(args).down()
                return 0
            case "status":
                return status(args)
            case _:
                return execute(args)
    except (ClusterError, TimeoutError, ValueError, subprocess.CalledProcessError) as error:
        print(f"python -m tests.cluster: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
