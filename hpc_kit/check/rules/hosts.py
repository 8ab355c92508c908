"""Rules of what all tasks must agree on: the first host's name, the port, and the meeting's id."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpc_kit.check.batch_script import Script
from hpc_kit.check.launched import Launch
from hpc_kit.check.rules.base import Fault, Rule, Severity, Subject, rule
from hpc_kit.check.shell.trace import Step
from hpc_kit.check.shell.values import Text
from hpc_kit.check.shell.words import Assignment, as_assignment

_FIRST = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
_HOST = re.compile(
    r"(\w+_)?(MASTER|MAIN|HEAD|FIRST|LEADER|ROOT|RDZV|COORDINATOR)(_?(ADDR|ADDRESS|NODE|HOST|IP|NAME|ENDPOINT))*\Z"
)
_LIST = r"\$\{?SLURM_(?:JOB_)?NODELIST\b"
_SENT = rf"(\$\(|`)\s*(echo|printf)\b[^|\[\]]*{_LIST}[^|\[\]]*\|\s*"
"""The list, handed to a program that knows nothing of its brackets."""
_WHOLE = re.compile(rf"[\"']?{_LIST}\}}?[\"']?(:\S*)?\Z")
_AT_COMMA = re.compile(rf"\$\{{SLURM_(?:JOB_)?NODELIST%%?,\*\}}|{_SENT}(cut\s[^|\[\]]*-d\W*,|awk\s+-F\W*,)")
_BY_COLUMN = re.compile(rf"\$\{{SLURM_(?:JOB_)?NODELIST:\s*\d|{_SENT}(cut\s+-[bc]|head\s+-c)")
_DRAWN = re.compile(r"\bRANDOM\b|\bshuf\b|/dev/urandom|\buuidgen\b|\.bind\(\(")
_RANK = re.compile(r"PROCID|LOCALID|NODEID|RANK|hostname|HOSTNAME")
_SAME = ("rdzv-id", "rdzv-endpoint", "master-port", "main-process-port")


@rule("KIT305")
def cut_hosts(subject: Subject) -> Iterator[Fault]:
    """The first host's name is cut out of the node list.

    Slurm writes the list short, `gpu[01-04,07]`: what stands before the first comma is `gpu[01-04`, no host's name, and
    one cut by columns (a warning) holds for one site, and one number of nodes. The list as a whole is none either.

    Mend: `MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)`.
    Documented: sbatch(1), SLURM_JOB_NODELIST; scontrol(1), "show hostnames".
    """
    script = subject.script
    if not script.geometry.has_several_nodes:
        return
    for each in _assignments(script):
        text = each.value.raw
        if not _HOST.match(each.name.upper()) or "scontrol" in text or _written_out(script, text):
            continue
        by_column, whole = _BY_COLUMN.search(text), _WHOLE.match(text)
        cut = by_column or _AT_COMMA.search(text)
        if cut or (whole and not _taken_apart(script, each.name)):
            what = "cut by columns out of the node list" if by_column else "no host's name: the node list is gpu[01-04]"
            # What a program behind makes of the piece is not known.
            doubtful = by_column or (cut and "|" in text[cut.end() :])
            severity: Severity | None = "warning" if doubtful else None
            place = (each.value.line, each.value.column)
            yield Fault(*place, what, f"{each.name}={_FIRST}", (script.line_of("nodes"),), severity)


def _written_out(script: Script, text: str) -> bool:
    """The script has given the list that is read here a value of its own, which need not be Slurm's short form."""
    name = re.search(_LIST, text)
    own = [each for each in script.assigned if name and each.name == name[0].strip("${")]
    return any(not re.search(r"NODELIST", each.value.text) for each in own)


def _taken_apart(script: Script, name: str) -> bool:
    """The variable holds a list for the program that writes it out, and no host's name."""
    reads = re.compile(rf"\b(scontrol|nodeset|hostlist|cluset)\b.*\$\{{?{name}\b")
    return any(reads.search(line) for line in script.lines if not line.lstrip().startswith("#"))


def _assignments(script: Script) -> Iterator[Assignment]:
    """Those of the script as they are written."""
    for step in script.steps:
        yield from step.command.assignments
        if step.name in {"export", "declare", "local", "readonly"}:
            yield from filter(None, map(as_assignment, step.command.words[1:]))


@rule("KIT306")
def drawn_apart(subject: Subject) -> Iterator[Fault]:
    """Each task draws a port, or the meeting's id, for itself.

    `$RANDOM`, `shuf` or a free port that is looked for in the task is another number in each: they never meet. On the
    launch line itself, and in double quotes, the batch shell draws, once, and all get the same.

    Mend: draw it in the batch script, before srun: `export MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))`; as id,
    `--rdzv-id=$SLURM_JOB_ID`.
    Documented: pytorch.org/docs/stable/elastic/run.html, --rdzv-id; bash(1), RANDOM.
    """
    script = subject.script
    wide = [launch for launch in script.launches if _several(launch) and script.geometry_of(launch).has_several_tasks]
    texts = [each.value for each in script.assigned if each.task and each.name == "MASTER_PORT"] if wide else []
    texts += [text for launch in wide for text in _agreed(launch)]
    places = _drawn_by_tasks(script)
    for text in texts:
        if any((piece.origin.line, piece.origin.column) in places for piece in text.pieces):
            what = "drawn by each task for itself: no two have the same"
            yield Fault(text.line, text.column, what, "draw it once, in the batch script; or take $SLURM_JOB_ID")


def _drawn_by_tasks(script: Script) -> set[tuple[int, int]]:
    """Places of the expansions by which a task draws, and not the batch shell that wrote its code."""
    drawn: set[tuple[int, int]] = set()
    seeded = any(each.name == "RANDOM" and each.task for each in script.assigned)
    for step in script.steps:
        if not step.task or _one_rank(script, step):
            continue
        words = (*step.command.words, *(assignment.value for assignment in step.command.assignments))
        for part in (part for word in words for part in word.parts if part.kind != "text"):
            match = _DRAWN.search(part.raw)
            # What an outer shell has expanded is nowhere written as the task's shell reads it.
            if match is None or not part.origin.exact or "--random-source" in part.raw:
                continue
            if not (seeded and match[0] == "RANDOM"):
                drawn.add((part.origin.line, part.origin.column))
    return drawn


def _one_rank(script: Script, step: Step) -> bool:
    """A condition on its rank stands before it: one task alone draws, and may tell the others."""
    firsts = [
        place.compound.line if place.compound is not None else place.statement.line
        for place in step.place.outward()
        if place.link or (place.compound is not None and place.compound.kind in {"if", "case"})
    ]
    between = script.lines[min(firsts) - 1 : step.line] if firsts else []
    return any(_RANK.search(line) for line in between)


def _several(launch: Launch) -> bool:
    return launch.multiplier is not None and launch.inner.task


def _agreed(launch: Launch) -> list[Text]:
    """What the agents must be told alike."""
    agent = launch.agent
    if agent is None or "standalone" in agent.options:
        return []
    return [agent.options[name] for name in _SAME if name in agent.options]


RULES: tuple[Rule, ...] = (cut_hosts, drawn_apart)
