"""Rules of the end: does the job fail when the training does?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hpc_kit.check.batch_script import Script
from hpc_kit.check.launched import Launch
from hpc_kit.check.rules.base import Fault, Rule, Severity, Subject, rule
from hpc_kit.check.shell.trace import Place, Step
from hpc_kit.check.shell.tree import Simple

_KEEP = 'srun ... || status=$?, and exit "$status" as the last line'
_SHORT = frozenset({
    "", ":", "cat", "cd", "conda", "cp", "date", "deactivate", "declare", "df", "echo", "export", "free", "hostname",
    "ls", "mkdir", "ml", "module", "mv", "nvidia-smi", "popd", "printf", "pushd", "pwd", "rm", "set", "shopt", "squeue",
    "touch", "true", "ulimit", "unset",
})  # fmt: skip
_LOOPS = {"for", "while", "until", "select", "case"}


class Fate(NamedTuple):
    """What the batch script does with the exit status of its last training.

    `followers` are the steps that come after it; `pipe`, `shield` and `background` the places where it stands before a
    `|` without pipefail, before a `&&` or `||` (or behind a `!`), in a statement with `&`; `sure`: in no loop.
    """

    launch: Launch
    followers: tuple[Step, ...]
    pipe: Place | None
    shield: Place | None
    background: bool
    sure: bool

    def fault(self, what: str, remedy: str, *evidence: int, doubtful: bool = False) -> Fault:
        """A finding at the launch line."""
        first = self.launch.stages[0].words[0]
        lines = (self.launch.step.line, *evidence)
        return Fault(first.line, first.column, what, remedy, lines, "warning" if doubtful or not self.sure else None)


def fate(script: Script) -> Fate | None:
    """That of the last training; None where there is none, or it cannot be told."""
    training = [launch for launch in script.launches if launch.trains and not launch.step.task]
    if not training or script.unread:
        return None
    step = training[-1].step
    places = list(step.place.outward())
    kinds = {place.compound.kind for place in places if place.compound is not None}
    if "function" in kinds or any(place.role == "condition" for place in places):
        return None
    index = next(number for number, each in enumerate(script.steps) if each is step)
    piped = [place for place in places if place.position + 1 < len(place.pipeline.commands)]
    shielded = [place for place in places if place.link + 1 < len(place.chain.pipelines) or place.pipeline.negated]
    return Fate(
        training[-1],
        tuple(each for each in script.steps[index + 1 :] if _comes_after(each, step)),
        piped[0] if piped and not step.pipefail else None,
        shielded[0] if shielded else None,
        any(place.statement.background for place in places),
        not kinds & _LOOPS,
    )


def _comes_after(step: Step, launch: Step) -> bool:
    """Whether a later step may follow the launch: not in the other branch of its `if`, no function, none of its own."""
    if step.task:
        return False
    branches = {id(place.compound): place.role for place in launch.place.outward()}
    for place in step.place.outward():
        if place is launch.place or (place.compound is not None and place.compound.kind == "function"):
            return False
        if place.compound is not None and branches.get(id(place.compound), place.role) != place.role:
            return False
    return True


def saves_status(followers: tuple[Step, ...]) -> bool:
    """The script ends with a status that it chose: `exit "$status"`, or `exit 1` under a condition."""
    for step in followers:
        if step.name in {"exit", "return"} and len(step.words) > 1:
            text = step.words[1].text
            if not text.isdigit() or (text != "0" and _under_condition(step)):
                return True
    return False


def _under_condition(step: Step) -> bool:
    return any(
        place.link > 0 or (place.compound is not None and place.compound.kind in {"if", "case"})
        for place in step.place.outward()
    )


def _last_word(followers: tuple[Step, ...]) -> Step | None:
    """The step whose status becomes the script's; None where that may be the training's."""
    if saves_status(followers) or any(step.name in {"exec", "scancel"} for step in followers):
        return None
    if followers and followers[0].name == "exit" and len(followers[0].words) == 1:
        return None
    return followers[-1] if followers else None


@rule("KIT401")
def lost_status(subject: Subject) -> Iterator[Fault]:
    """The job's exit status is not the training's.

    Slurm books what the batch script returns, and that is the status of its last command: with an `echo`, a copy or a
    bookkeeping command behind the launch line, a training that failed is a COMPLETED job. Dependencies (afterok) then
    start on nothing. `|| true` does the same.

    Mend: `set -e` at the top; or keep the status: `srun ... || status=$?` and `exit "$status"` as the last line.
    Documented: slurm.schedmd.com/job_exit_code.html.
    """
    found = fate(subject.script)
    if found is None or found.pipe is not None:
        return
    if found.background:
        yield from _lost_behind_wait(found)
        return
    step, shield, followers = found.launch.step, found.shield, found.followers
    if shield is not None:
        if shield.pipeline.negated:
            return
        behind = tuple(each for each in followers if shield.statement in [p.statement for p in each.place.outward()])
        followers = tuple(each for each in followers if each not in behind)
        if shield.chain.operators[shield.link] == "||":
            if behind and all(each.name in {"true", ":", "echo", "printf"} for each in behind):
                what = f"'|| {behind[0].name}' makes a failed training a COMPLETED job"
                yield found.fault(what, _KEEP, doubtful=True)
            return
    last = _last_word(followers)
    if last is not None and (shield is not None or not step.errexit):
        assigned = f"{last.command.assignments[0].name}=" if last.command.assignments else ""
        what = f"the job's exit status is that of '{last.name or assigned}' in line {last.line}, not the training's"
        yield found.fault(what, f"set -e at the top; or {_KEEP}", last.line)


def _lost_behind_wait(found: Fate) -> Iterator[Fault]:
    """`wait "$pid"` has the training's status, and what follows it another."""
    waits = [index for index, step in enumerate(found.followers) if step.name == "wait" and len(step.words) > 1]
    if not waits or found.followers[waits[-1]].errexit or _shielded(found.followers[waits[-1]]):
        return
    last = _last_word(found.followers[waits[-1] + 1 :])
    if last is not None:
        assigned = f"{last.command.assignments[0].name}=" if last.command.assignments else ""
        what = f"the job's exit status is that of '{last.name or assigned}' in line {last.line}, not that of wait"
        yield found.fault(what, 'wait "$pid" || status=$?, and exit "$status" as the last line', last.line)


def _shielded(step: Step) -> bool:
    """Its status is looked at: by `if`, `||` or `&&`."""
    places = list(step.place.outward())
    return any(place.role == "condition" or len(place.chain.pipelines) > 1 for place in places)


@rule("KIT402")
def bare_wait(subject: Subject) -> Iterator[Fault]:
    """A bare `wait` forgets how the training ended.

    `wait` without a process id returns 0, whatever became of the children: a failed training is a COMPLETED job. And a
    launch line that ends in `&` with no `wait` at all ends at once: the job is over when the batch script is. So is one
    of several trainings that ends in `&`, when the last one, which does not, is over.

    Mend: `srun ... & pid=$!`, then `wait "$pid"`; for several, one `wait` each, keeping the worst status.
    Documented: bash(1), wait.
    """
    found = fate(subject.script)
    if found is not None and not found.background:
        yield from _left_behind(subject.script, found)
    if found is None or not found.background:
        return
    waits = [step for step in found.followers if step.name == "wait"]
    if not waits:
        # Whatever is not known may wait in its own way.
        if all(_is_short(step) for step in found.followers):
            what = "started in the background and not waited for: the job ends at once"
            yield found.fault(what, 'remove the &; or pid=$! behind it, and wait "$pid"')
        return
    if all(len(step.words) == 1 for step in waits) and not saves_status(found.followers):
        wait = waits[-1]
        what = "wait without a process id returns 0 whatever happened: a failed training is COMPLETED"
        remedy = 'pid=$! behind the &, and wait "$pid"'
        many = found.launch.multiplier or found.launch.stage("ssh")
        severity: Severity | None = None if found.sure or many else "warning"
        yield Fault(wait.line, wait.command.column, what, remedy, (found.launch.step.line,), severity)


def _left_behind(script: Script, found: Fate) -> Iterator[Fault]:
    """Earlier starts of the same program, in the background: they end when the last one does."""
    program = found.launch.program.option("file", "module")
    if program is None or any(map(_waits, script.steps)):
        return
    for launch in script.launches:
        same = launch.trains and launch.program.option("file", "module")
        if launch is found.launch or not same or same.text != program.text or launch.step.task:
            continue
        if any(place.statement.background for place in launch.step.place.outward()):
            first = launch.stages[0].words[0]
            what = f"not waited for: the job ends when {program.text} in line {found.launch.step.line} has ended"
            lines = (found.launch.step.line,)
            yield Fault(first.line, first.column, what, "& behind each of them, and a wait for each", lines, "warning")
            return


def _waits(step: Step) -> bool:
    """By `wait`, or for a process id: `tail --pid`, or a loop on `kill -0`."""
    texts = [word.text for word in step.words]
    if step.name == "kill":
        return "-0" in texts and any(
            place.role == "condition" and place.compound is not None and place.compound.kind in {"while", "until"}
            for place in step.place.outward()
        )
    return step.name == "wait" or (step.name == "tail" and any(text.startswith("--pid") for text in texts))


def _is_short(step: Step) -> bool:
    """It ends within minutes, and waits for nobody."""
    if step.name == "sleep":
        return len(step.words) == 2 and step.words[1].text.isdigit() and int(step.words[1].text) < 600
    return step.name in _SHORT


@rule("KIT403")
def lost_in_pipe(subject: Subject) -> Iterator[Fault]:
    """The training's exit status is lost in a pipe.

    A pipeline ends with the status of its last command: `srun ... | tee log` is 0 whatever srun was, and the job is
    COMPLETED.

    Mend: `set -eo pipefail` at the top; or `exit "${PIPESTATUS[0]}"`; or let srun write the file, with --output.
    Documented: bash(1), Pipelines.
    """
    found = fate(subject.script)
    if found is None or found.pipe is None or found.background:
        return
    behind = found.pipe.pipeline.commands[-1]
    if any("PIPESTATUS" in line for line in subject.script.lines[behind.line - 1 :]):
        return
    name = behind.words[0].raw if isinstance(behind, Simple) and behind.words else "its last command"
    what = f"the status of the pipe is that of {name}: a failed training is COMPLETED"
    yield found.fault(what, "set -eo pipefail at the top; or srun --output=FILE instead of the pipe", behind.line)


RULES: tuple[Rule, ...] = (lost_status, bare_wait, lost_in_pipe)
