"""The rule of files on a node's own disk."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from hpc_kit.check.batch_script import Script
from hpc_kit.check.launched import Launch
from hpc_kit.check.rules.base import Fault, Rule, Subject, rule
from hpc_kit.check.shell.trace import Step

_OWN_DISK = re.compile(r"(\$\{?(SLURM_TMPDIR|TMPDIR|LOCAL_?SCRATCH|TMP)\b\}?|/tmp|/dev/shm|/local)(?=/|\Z)")
_MOVES = frozenset({"cd", "popd", "pushd"})
_SPREADERS = frozenset({"clush", "parallel-scp", "pdcp", "pscp", "sbcast", "scp"})
_LOOKS = frozenset({"chmod", "df", "du", "ls", "mkdir", "rm", "stat", "test"})
"""What names a folder, and puts nothing into it."""


@rule("KIT212", "warning")
def one_nodes_disk(subject: Subject) -> Iterator[Fault]:
    """A node's own disk is filled on the first node only.

    The batch script runs on the first node, and $SLURM_TMPDIR, /tmp and the like are each node's own: what it
    unpacks or installs there is not there for the tasks on the other nodes.

    Mend: once a node, `srun --ntasks=$SLURM_NNODES --ntasks-per-node=1 tar -xf ...`, or sbcast; or a folder that all
    nodes share.
    Documented: sbcast(1); docs.alliancecan.ca/wiki/PyTorch, "Multi-node".
    """
    script = subject.script
    wide = [launch for launch in script.launches if launch.trains and script.geometry_of(launch).has_several_nodes]
    if not wide or not script.geometry.has_several_nodes:
        return
    entered: Step | None = None
    for step in script.steps:
        if step.task or not step.words:
            continue
        if step.name in _MOVES:
            target = _entered(step, "" if entered else None)
            # A relative folder lies in the one that was entered before.
            entered = entered if target == "" else step if target else None
        folder = _filled(step)
        launches = [each for each in wide if _follows(script, step, each)]
        launch: Launch | None = None
        if folder is not None:
            launch = next((each for each in launches if _reaches(script, folder, each)), None)
        elif entered is not None and _fills_here(step):
            folder = _plain(entered.words[1].text)
            launch = next((each for each in launches if not _leaves(script, entered, step, each.step)), None)
        if folder is not None and launch is not None and not _spread(script, folder, launch):
            yield _first_only(folder, step, launch)
            return


def _follows(script: Script, step: Step, launch: Launch) -> bool:
    """The launch comes after the step, and is not what runs the step's branch of this very script on each node."""
    calls = {name for name, body in script.functions.items() if any(each is launch.step for each in body)}
    starts = [each is not step for each in script.steps if each is step or each is launch.step or each.name in calls]
    itself = any(re.search(r"\$(\{?0|\{?BASH_SOURCE)", word.raw) for word in launch.step.command.words)
    conditional = any(place.compound is not None and place.role in {"then", "else"} for place in step.place.outward())
    return starts[-1] and not (itself and conditional)


def _reaches(script: Script, folder: str, launch: Launch) -> bool:
    """The tasks are told of the folder: on their line, by a variable, or by what the batch shell entered before."""
    texts = [word.text for word in (*launch.step.words, *launch.inner.words)]
    exported = {word.text for step in script.steps if step.name in {"declare", "export"} for word in step.words[1:]}
    known = [each for each in script.assigned if each.exported or each.name in exported]
    texts += [each.value.text for each in known if each.line < launch.step.line]
    before = [step for step in script.steps if step.name in {".", "source", *_MOVES} and step.line < launch.step.line]
    texts += [word.text for step in before for word in step.words]
    return any(_names(text, folder) for text in texts)


def _spread(script: Script, folder: str, launch: Launch) -> bool:
    """Another step fills the folder on the other nodes, too."""
    for each in script.launches:
        elsewhere = each.multiplier or each.stage("ssh") or each.program.name in _SPREADERS
        if each.step.line > launch.step.line or not elsewhere or each.program.name in _LOOKS:
            continue
        words = each.program.words if each.multiplier else each.step.words
        if not each.trains and any(_names(word.text, folder) for word in words):
            return True
    return False


def _names(text: str, folder: str) -> bool:
    return re.search(re.escape(folder) + r"(?![\w.-])", _plain(text)) is not None


def _first_only(folder: str, step: Step, launch: Launch) -> Fault:
    what = f"{folder} is the first node's own: the tasks on the other nodes find nothing there"
    remedy = f"srun --ntasks=$SLURM_NNODES --ntasks-per-node=1 {step.name} ..."
    return Fault(step.line, step.command.column, what, remedy, (launch.step.line,))


def _entered(step: Step, before: str | None) -> str | None:
    """The node's own folder in which the shell is after a `cd` or its like."""
    if step.name == "popd":
        return None
    target = _plain(step.words[1].text) if len(step.words) > 1 else "~"
    if _OWN_DISK.match(target):
        return target
    return None if target.startswith(("/", "$", "~", "-")) else before


def _fills_here(step: Step) -> bool:
    """A command that writes files into the folder in which it is run."""
    rest = [word.text for word in step.words[1:]]
    if step.name in {"cp", "rsync"}:
        return bool(rest) and not rest[-1].startswith(("/", "$", "~"))
    if step.name == "git":
        return rest[:1] == ["clone"]
    there = {"-C", "--directory", "-d"} & set(rest)
    return not there and (step.name == "unzip" or (step.name == "tar" and "x" in "".join(rest[:1])))


def _leaves(script: Script, entered: Step, first: Step, last: Step) -> bool:
    """Between the two the shell goes elsewhere; or it went there in a subshell alone."""
    between = [step for step in script.steps if first.line < step.line < last.line and step.name in _MOVES]
    inside = {id(place.compound) for place in last.place.outward()}
    alone = any(
        place.compound is not None and place.compound.kind == "subshell" and id(place.compound) not in inside
        for place in entered.place.outward()
    )
    return alone or any(_entered(step, "here") is None for step in between)


def _plain(text: str) -> str:
    return re.sub(r"\$\{(\w+)\}", r"$\1", text)


def _filled(step: Step) -> str | None:
    """The folder on a node's own disk that a command fills."""
    texts = [word.text for word in step.words]
    name, rest = step.name.rpartition("/")[2], texts[1:]
    places: list[str] = []
    if name in {"cp", "rsync"}:
        places = rest[-1:]
    elif name in {"tar", "unzip"}:
        places = [value for option, value in pairwise(rest) if option in {"-C", "--directory", "-d"}]
    elif name == "virtualenv" or rest[:2] == ["-m", "venv"] or (name, *rest[:1]) == ("uv", "venv"):
        places = rest[-1:]
    match = _OWN_DISK.match(places[-1]) if places else None
    return None if match is None else _plain(places[-1]).rstrip("/.")


RULES: tuple[Rule, ...] = (one_nodes_disk,)
