"""Starts the daemons in the foreground on their hosts, as children of init."""

from __future__ import annotations

import functools
import os
import secrets
import shutil
import subprocess
import time
from typing import TYPE_CHECKING

from .config import DATABASE_PORT
from .hosts import enter
from .settings import CONTROLLER, Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def as_user(user: str) -> list[str]:
    """Return the arguments that run a command as an unprivileged user."""
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]


def expected(settings: Settings) -> set[tuple[str, str]]:
    """Return the daemons that must be alive on each host."""
    wanted = {(host, "munged") for host in settings.hosts} | {(CONTROLLER, "slurmctld")}
    wanted |= {(node, "slurmd") for node in settings.node_names}
    return wanted | ({(CONTROLLER, "mariadbd"), (CONTROLLER, "slurmdbd")} if settings.accounting else set())


class Daemons:
    """Starts the daemons of one cluster, together or one by one after a test has stopped one."""

    def __init__(self, settings: Settings, holders: dict[str, int]) -> None:
        self.settings = settings
        self.holders = holders

    def start_all(self) -> None:
        """Start all daemons, in an order without waits."""
        self._munge_key()
        for host in self.settings.hosts:
            self.start_munged(host)
        if self.settings.accounting:
            self.database()
        for host in self.settings.hosts:
            self._until(functools.partial(self._munge_answers, host), f"munged on {host}")
        if self.settings.accounting:
            self.slurmdbd()
        self.slurmctld()
        for node in self.settings.node_names:
            self.slurmd(node)

    def start_munged(self, host: str) -> None:
        """Start munged, which needs its own user and directories that no other user can write."""
        place = self.settings.own_directory / "munge"
        shutil.chown(self.settings.private(host) / "munge", "munge", "munge")
        files = {"pid-file": "pid", "log-file": "munged.log", "seed-file": "seed"}
        options = [f"--{option}={place / name}" for option, name in files.items()]
        options.append(f"--socket={self.settings.munge_socket}")
        key = f"--key-file={self.settings.etc}/munge.key"
        self._start(host, "munged", [*as_user("munge"), "munged", "--foreground", key, *options])

    def database(self) -> None:
        """Start a separate database on the controller's loopback interface."""
        data = self.settings.own_directory / "mysql"
        private = self.settings.private(CONTROLLER) / "mysql"
        private.mkdir()
        shutil.chown(private, "mysql", "mysql")
        quick = ["--innodb-doublewrite=0", "--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync"]
        common = ["--no-defaults", f"--datadir={data}"]
        install = ["mariadb-install-db", *common, *quick, "--user=mysql", "--skip-test-db"]
        self.call(CONTROLLER, install)
        listen = ["--bind-address=127.0.0.1", f"--port={DATABASE_PORT}", f"--socket={data}/socket"]
        server = ["mariadbd", *common, *quick, *listen, f"--pid-file={data}/pid", "--skip-log-bin"]
        self._start(CONTROLLER, "mariadbd", [*as_user("mysql"), *server])
        account = (
            "CREATE DATABASE slurm_acct; CREATE USER slurm@'127.0.0.1' IDENTIFIED BY 'slurm'; "
            "GRANT ALL ON slurm_acct.* TO slurm@'127.0.0.1';"
        )
        client = ["mariadb", "--no-defaults", f"--socket={data}/socket"]
        self._until(lambda: self._answers(CONTROLLER, [*client, "-e", "SELECT 1"]), "mariadbd")
        self.call(CONTROLLER, [*client, "-e", account])

    def slurmdbd(self) -> None:
        """Start the accounting daemon, and register the cluster before slurmctld connects."""
        self._start(CONTROLLER, "slurmdbd", ["slurmdbd", "-D"])
        register = ["sacctmgr", "--immediate", "add", "cluster", self.settings.name]
        listed = ["sacctmgr", "--noheader", "--parsable2", "list", "cluster"]
        self._until(lambda: self._answers(CONTROLLER, listed), "slurmdbd")
        self.call(CONTROLLER, register)

    def slurmctld(self) -> None:
        """Start the controller. Its state survives a restart."""
        self._start(CONTROLLER, "slurmctld", ["slurmctld", "-D", "-f", str(self.settings.conf)])

    def slurmd(self, node: str) -> None:
        """Start the daemon of one node."""
        self._start(node, "slurmd", ["slurmd", "-D", "-N", node, "-f", str(self.settings.conf)])

    def start(self, host: str, name: str) -> None:
        """Start one daemon by its name. The database cannot be started again."""
        match name:
            case "munged":
                self.start_munged(host)
                self._until(functools.partial(self._munge_answers, host), f"munged on {host}")
            case "slurmctld":
                self.slurmctld()
            case "slurmd":
                self.slurmd(host)
            case _:
                raise ValueError(f"{name} is not started singly")

    def await_answers(self) -> None:
        """Wait until slurmctld accepts requests."""
        self._until(lambda: self._answers(CONTROLLER, ["squeue"]), "slurmctld")

    def await_ready(self) -> None:
        """Wait until every node accepts jobs and the controller is registered in the accounting."""
        self._until(self._all_idle, "all nodes idle")
        if self.settings.accounting:
            self._until(self._registered, "slurmctld known to slurmdbd")

    def call(self, host: str, argv: Sequence[str]) -> str:
        """Run a command on a host, and return its standard output."""
        line = enter(self.holders[host], argv)
        return subprocess.run(line, check=True, capture_output=True, text=True, env=self._environ()).stdout

    def _environ(self) -> dict[str, str]:
        return {"PATH": os.defpath + ":/usr/sbin:/sbin", "SLURM_CONF": str(self.settings.conf), "LANG": "C.UTF-8"}

    def _start(self, host: str, name: str, argv: Sequence[str]) -> None:
        # setsid --fork: the daemon becomes a child of init, which reaps it.
        line = ["setsid", "--fork", *enter(self.holders[host], argv)]
        with (self.settings.private(host) / f"{name}.out").open("a") as out:
            subprocess.run(
                line, check=True, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self._environ(), cwd="/"
            )

    def _answers(self, host: str, argv: Sequence[str]) -> bool:
        line = enter(self.holders[host], argv)
        return subprocess.run(line, check=False, capture_output=True, env=self._environ()).returncode == 0

    def _munge_answers(self, host: str) -> bool:
        return self._answers(host, ["munge", "--no-input", f"--socket={self.settings.munge_socket}"])

    def _all_idle(self) -> bool:
        line = enter(self.holders[CONTROLLER], ["sinfo", "--noheader", "--Node", "--format=%N %T", "--partition=main"])
        answer = subprocess.run(line, check=False, capture_output=True, text=True, env=self._environ())
        return answer.stdout.split("\n")[:-1] == [f"{node} idle" for node in self.settings.node_names]

    def _registered(self) -> bool:
        listed = ["sacctmgr", "--noheader", "--parsable2", "list", "cluster", "format=controlhost"]
        return bool(self.call(CONTROLLER, listed).strip())

    def _munge_key(self) -> None:
        key = self.settings.etc / "munge.key"
        key.touch(mode=0o400)
        key.write_bytes(secrets.token_bytes(128))
        shutil.chown(key, "munge", "munge")

    def _until(self, answers: Callable[[], bool], what: str, patience: float = 60.0) -> None:
        deadline = time.monotonic() + patience
        while not answers():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: no answer in {patience:.0f} s; see {self.settings.root}/hosts/*/*.log")
            time.sleep(0.05)
