"""Rules for the end of a job: exit status, background processes, signals."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from hpc_kit.check.bash_syntax import SimpleCommand
from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.command_trace import BlockPosition, TracedCommand
from hpc_kit.check.launch_lines import HELPER_PROGRAMS, LaunchLine
from hpc_kit.check.rules.finding import RuleFinding, RuleInput, Severity, rule
from hpc_kit.errors import HpcKitError
from hpc_kit.slurm.option_values import SIGNALS, SignalSpec, parse_signal

_KEEP = 'keep the status: srun ... || status=$?, and exit "$status" as the last line'
_SHORT = frozenset({
    "", ":", "cat", "cd", "conda", "cp", "date", "deactivate", "declare", "df", "echo", "export", "free", "hostname",
    "ls", "mkdir", "ml", "module", "mv", "nvidia-smi", "popd", "printf", "pushd", "pwd", "rm", "set", "shopt", "squeue",
    "touch", "true", "ulimit", "unset",
})  # fmt: skip
_LOOPS = {"for", "while", "until", "select", "case"}


class ExitStatusFlow(NamedTuple):
    """The way of the exit status of the last training through the batch script.

    `followers` are the commands after it. `piped_at` is its position before a `|` without pipefail, `shielded_at` its
    position before a `&&` or `||`, or behind a `!`. `background`: its statement ends in `&`. `is_certain`: it is in no
    loop.
    """

    launch: LaunchLine
    followers: tuple[TracedCommand, ...]
    piped_at: BlockPosition | None
    shielded_at: BlockPosition | None
    background: bool
    is_certain: bool

    def finding(self, what: str, remedy: str, *evidence: int, doubtful: bool = False) -> RuleFinding:
        """Return a finding at the launch line."""
        first = self.launch.stages[0].words[0]
        lines = (self.launch.command.line, *evidence)
        return RuleFinding(
            first.line, first.column, what, remedy, lines, "warning" if doubtful or not self.is_certain else None
        )


def trace_exit_status(script: BatchScript) -> ExitStatusFlow | None:
    """Trace the exit status of the last training; None if there is no training, or the way is unknown."""
    training = [launch for launch in script.launch_lines if launch.is_training and not launch.command.in_task]
    if not training or script.unread_part:
        return None
    step = training[-1].command
    places = list(step.position.outward())
    kinds = {place.compound.kind for place in places if place.compound is not None}
    if "function" in kinds or any(place.role == "condition" for place in places):
        return None
    index = next(number for number, each in enumerate(script.commands) if each is step)
    piped = [place for place in places if place.pipeline_index + 1 < len(place.pipeline.commands)]
    shielded = [
        place for place in places if place.chain_index + 1 < len(place.chain.pipelines) or place.pipeline.negated
    ]
    return ExitStatusFlow(
        training[-1],
        tuple(each for each in script.commands[index + 1 :] if _comes_after(each, step)),
        piped[0] if piped and not step.pipefail else None,
        shielded[0] if shielded else None,
        any(place.statement.background for place in places),
        not kinds & _LOOPS,
    )


def _comes_after(step: TracedCommand, launch: TracedCommand) -> bool:
    """Tell whether a command may run after the launch, rather than in another branch, a function or a task."""
    if step.in_task:
        return False
    branches = {id(place.compound): place.role for place in launch.position.outward()}
    for place in step.position.outward():
        if place is launch.position or (place.compound is not None and place.compound.kind == "function"):
            return False
        if place.compound is not None and branches.get(id(place.compound), place.role) != place.role:
            return False
    return True


def saves_status(followers: tuple[TracedCommand, ...]) -> bool:
    """Tell whether the script ends with a status that it chose: `exit "$status"`, or `exit 1` under a condition."""
    for step in followers:
        if step.name in {"exit", "return"} and len(step.words) > 1:
            text = step.words[1].text
            if not text.isdigit() or (text != "0" and _under_condition(step)):
                return True
    return False


def _under_condition(step: TracedCommand) -> bool:
    return any(
        place.chain_index > 0 or (place.compound is not None and place.compound.kind in {"if", "case"})
        for place in step.position.outward()
    )


def _last_word(followers: tuple[TracedCommand, ...]) -> TracedCommand | None:
    """Return the command whose status becomes the status of the script; None if it may be the training."""
    if saves_status(followers) or any(step.name in {"exec", "scancel"} for step in followers):
        return None
    if followers and followers[0].name == "exit" and len(followers[0].words) == 1:
        return None
    return followers[-1] if followers else None


@rule("KIT401")
def lost_status(subject: RuleInput) -> Iterator[RuleFinding]:
    """The exit status of the job is not the status of the training.

    Slurm records the status of the batch script, which is the status of its last command. With an `echo` or a copy
    after the launch line, a failed training is a COMPLETED job. Dependent jobs (afterok) then start without its
    results. `|| true` has the same effect.

    Fix: `set -e` at the top; or keep the status: `srun ... || status=$?`, with `exit "$status"` as the last line.
    Documented: slurm.schedmd.com/job_exit_code.html.
    """
    found = trace_exit_status(subject.script)
    if found is None or found.piped_at is not None:
        return
    if found.background:
        yield from _lost_behind_wait(found)
        return
    step, shield, followers = found.launch.command, found.shielded_at, found.followers
    if shield is not None:
        if shield.pipeline.negated:
            return
        behind = tuple(each for each in followers if shield.statement in [p.statement for p in each.position.outward()])
        followers = tuple(each for each in followers if each not in behind)
        if shield.chain.operators[shield.chain_index] == "||":
            if behind and all(each.name in {"true", ":", "echo", "printf"} for each in behind):
                what = f"'|| {behind[0].name}' makes a failed training a COMPLETED job"
                yield found.finding(what, _KEEP, doubtful=True)
            return
    last = _last_word(followers)
    if last is not None and (shield is not None or not step.errexit):
        assigned = f"{last.syntax.assignments[0].name}=" if last.syntax.assignments else ""
        name = last.name or assigned
        what = f"the job returns the status of '{name}' in line {last.line}, not the status of the training"
        yield found.finding(what, f"write set -e at the top; or {_KEEP}", last.line)


def _lost_behind_wait(found: ExitStatusFlow) -> Iterator[RuleFinding]:
    """Find commands that replace the status of `wait "$pid"`."""
    waits = [index for index, step in enumerate(found.followers) if step.name == "wait" and len(step.words) > 1]
    if not waits or found.followers[waits[-1]].errexit or _shielded(found.followers[waits[-1]]):
        return
    last = _last_word(found.followers[waits[-1] + 1 :])
    if last is not None:
        assigned = f"{last.syntax.assignments[0].name}=" if last.syntax.assignments else ""
        what = f"the job returns the status of '{last.name or assigned}' in line {last.line}, not the status of wait"
        yield found.finding(what, 'write wait "$pid" || status=$?, and exit "$status" as the last line', last.line)


def _shielded(step: TracedCommand) -> bool:
    """Tell whether `if`, `||` or `&&` uses the status."""
    places = list(step.position.outward())
    return any(place.role == "condition" or len(place.chain.pipelines) > 1 for place in places)


@rule("KIT402")
def bare_wait(subject: RuleInput) -> Iterator[RuleFinding]:
    """A `wait` without a process id loses the status of the training.

    `wait` without a process id always returns 0, so that a failed training is a COMPLETED job. Without any `wait`, a
    launch line that ends in `&` returns immediately, and the job ends with the batch script. The same happens to all
    but the last of several trainings if only the last one runs in the foreground.

    Fix: `srun ... & pid=$!`, then `wait "$pid"`. For several, use one `wait` each and keep the worst status.
    Documented: bash(1), wait.
    """
    found = trace_exit_status(subject.script)
    if found is not None and not found.background:
        yield from _left_behind(subject.script, found)
    if found is None or not found.background:
        return
    waits = [step for step in found.followers if step.name == "wait"]
    if not waits:
        # Whatever is not known may wait in its own way.
        if all(_is_short(step) for step in found.followers):
            what = "this runs in the background without a wait: the job ends immediately"
            yield found.finding(what, 'remove the &; or write pid=$! after it, and wait "$pid"')
        return
    if all(len(step.words) == 1 for step in waits) and not saves_status(found.followers):
        wait = waits[-1]
        what = "wait without a process id always returns 0: a failed training is COMPLETED"
        remedy = 'write pid=$! after the &, and wait "$pid"'
        many = found.launch.multiplier or found.launch.stage("ssh")
        severity: Severity | None = None if found.is_certain or many else "warning"
        yield RuleFinding(wait.line, wait.syntax.column, what, remedy, (found.launch.command.line,), severity)


def _left_behind(script: BatchScript, found: ExitStatusFlow) -> Iterator[RuleFinding]:
    """Find earlier background starts of the same program. They end when the last one does."""
    program = found.launch.program.option("file", "module")
    if program is None or any(map(_waits, script.commands)):
        return
    for launch in script.launch_lines:
        same = launch.is_training and launch.program.option("file", "module")
        if launch is found.launch or not same or same.text != program.text or launch.command.in_task:
            continue
        if any(place.statement.background for place in launch.command.position.outward()):
            first = launch.stages[0].words[0]
            last_line = found.launch.command.line
            what = f"nothing waits for this: the job ends when {program.text} in line {last_line} has ended"
            lines = (found.launch.command.line,)
            yield RuleFinding(
                first.line, first.column, what, "end each of them in &, and wait for each", lines, "warning"
            )
            return


def _waits(step: TracedCommand) -> bool:
    """Tell whether a command waits for a process: `wait`, `tail --pid`, or a loop on `kill -0`."""
    texts = [word.text for word in step.words]
    if step.name == "kill":
        return "-0" in texts and any(
            place.role == "condition" and place.compound is not None and place.compound.kind in {"while", "until"}
            for place in step.position.outward()
        )
    return step.name == "wait" or (step.name == "tail" and any(text.startswith("--pid") for text in texts))


def _is_short(step: TracedCommand) -> bool:
    """Tell whether a command ends within minutes and waits for nothing."""
    if step.name == "sleep":
        return len(step.words) == 2 and step.words[1].text.isdigit() and int(step.words[1].text) < 600
    return step.name in _SHORT


@rule("KIT403")
def lost_in_pipe(subject: RuleInput) -> Iterator[RuleFinding]:
    """A pipe loses the exit status of the training.

    A pipeline returns the status of its last command: `srun ... | tee log` returns 0 even if srun failed, and the job
    is COMPLETED.

    Fix: `set -eo pipefail` at the top; or `exit "${PIPESTATUS[0]}"`; or let srun write the file, with --output.
    Documented: bash(1), Pipelines.
    """
    found = trace_exit_status(subject.script)
    if found is None or found.piped_at is None or found.background:
        return
    behind = found.piped_at.pipeline.commands[-1]
    if any("PIPESTATUS" in line for line in subject.script.lines[behind.line - 1 :]):
        return
    name = behind.words[0].raw if isinstance(behind, SimpleCommand) and behind.words else "its last command"
    what = f"the pipe returns the status of {name}: a failed training is COMPLETED"
    yield found.finding(
        what, "write set -eo pipefail at the top; or use srun --output=FILE instead of the pipe", behind.line
    )


_HARMLESS = frozenset({17, 18, 23, 28})
"""CHLD, CONT, URG, WINCH: they do not end a shell without a trap."""


@rule("KIT411")
def unhandled_signal(subject: RuleInput) -> Iterator[RuleFinding]:
    """The batch shell does not handle the signal of --signal=B:.

    With `B:`, only the batch shell gets the signal. Without a trap the signal ends it, and with it the job. The program
    has at most KillWait (30 seconds) left. With a trap but a launch line in the foreground, bash runs the trap only
    after that line has ended, which is too late.

    Fix: remove `B:`, so that the tasks of srun get the signal. By default (proctrack/cgroup), processes that a task
    starts do not get it: end a script under srun with `exec python ...`. Or write `trap '...' USR1` in the batch
    script, with `srun ... & pid=$!` and `wait "$pid"`.
    Documented: sbatch(1), --signal; cgroup.conf(5), SignalChildrenProcesses; bash(1), SIGNALS.
    """
    script = subject.script
    sent = _signal(script)
    if sent is None or not sent.batch_shell:
        return
    value, (line, column) = script.options["signal"], script.position_of("signal")
    traps = _traps(script, sent.number)
    if not traps:
        if sent.number not in _HARMLESS:
            what = f"--signal={value} ends the batch script, which has no trap for it"
            remedy = f"use --signal={value.partition(':')[2]}, which Slurm sends to the tasks of srun; or add a trap"
            yield RuleFinding(line, column, what, remedy, (), "warning" if script.sources_files else None)
        return
    found = trace_exit_status(script)
    if found is not None and not found.background:
        what = "bash runs the trap only after this line has ended"
        step = found.launch.command
        remedy = 'end the line in &, then write pid=$! and wait "$pid"'
        yield RuleFinding(step.line, step.syntax.column, what, remedy, (line, *traps), "warning")


@rule("KIT412", "warning")
def unsent_signal(subject: RuleInput) -> Iterator[RuleFinding]:
    """A trap, or a program, waits for a signal that Slurm sends elsewhere.

    Without `B:`, Slurm sends the signal to the steps of the job (started by srun), not to the batch shell. A trap in
    the batch script never runs. A program that the batch script starts without srun gets no signal, either.

    Fix: `--signal=B:USR1@120` for a trap in the batch script. Or handle the signal in the program, and start it with
    srun.
    Documented: sbatch(1), --signal.
    """
    script = subject.script
    sent = _signal(script)
    if sent is None or sent.batch_shell:
        return
    value = script.options["signal"]
    traps = _traps(script, sent.number)
    for line in traps:
        what = f"--signal={value} does not reach the batch shell: this trap never runs"
        yield RuleFinding(line, 1, what, f"use --signal=B:{value}", (script.line_of("signal"),))
    deaf = None if traps else _without_step(script)
    if deaf is not None:
        what = f"Slurm sends --signal={value} to steps of srun, but this job has none: no program gets it"
        agent = deaf.agent
        started = f"write srun {deaf.stages[0].words[0].text} ..."
        remedy = (
            started
            if agent is None
            else f"use srun python ... with one task per GPU: {agent.kind} does not forward signals"
        )
        yield RuleFinding(*script.position_of("signal"), what, remedy, (deaf.command.line,))


def _without_step(script: BatchScript) -> LaunchLine | None:
    """Return the training of a script without steps, if all its programs are known."""
    text = "\n".join("" if line.lstrip().startswith("#") else line for line in script.lines)
    if script.sources_files or re.search(r"srun\b|mpi(run|exec)|\bssh\b", text):
        return None
    known = all(
        launch.program.kind == "python" or launch.program.name in HELPER_PROGRAMS for launch in script.launch_lines
    )
    training = [launch for launch in script.launch_lines if launch.is_training]
    return training[-1] if training and known else None


def _signal(script: BatchScript) -> SignalSpec | None:
    if "signal" not in script.options or script.is_heterogeneous or script.unread_part:
        return None
    try:
        return parse_signal(script.options["signal"])
    except HpcKitError:
        return None


def _traps(script: BatchScript, number: int) -> list[int]:
    """Return the lines with a trap of the batch shell for a signal."""
    names = {name for name, known in SIGNALS.items() if known == number} | {str(number)}
    lines = []
    for step in script.commands:
        if step.name == "trap" and not step.in_task and len(step.words) > 2 and step.words[1].text != "-":
            words = {re.sub(r"^SIG", "", word.text.upper()) for word in step.words[2:]}
            # A name in a variable may be any.
            if names & words or not all(word.is_known for word in step.words[2:]):
                lines.append(step.line)
    return lines
