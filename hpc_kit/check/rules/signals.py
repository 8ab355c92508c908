"""Rules of signals: does the one that Slurm sends reach anybody?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpc_kit.check.batch_script import Script
from hpc_kit.check.launched import Launch
from hpc_kit.check.rules.base import Fault, Rule, Subject, rule
from hpc_kit.check.rules.ending import fate
from hpc_kit.check.stages import HELPERS
from hpc_kit.errors import HpcKitError
from hpc_kit.slurm.option_values import SIGNALS, SignalSpec, parse_signal

_HARMLESS = frozenset({17, 18, 23, 28})
"""CHLD, CONT, URG, WINCH: a shell without a trap lives on."""


@rule("KIT411")
def untrapped_signal(subject: Subject) -> Iterator[Fault]:
    """--signal=B: reaches a batch shell that does not handle it.

    With `B:` only the batch shell gets the signal. Without a trap it ends of it, and the job with it, before its time
    limit; what the program is left is KillWait (30 seconds) at most. With a trap, but a launch line in the foreground,
    bash runs the trap only after that line has ended, which is too late.

    Mend: without `B:` the signal goes to the tasks that srun starts. By default (proctrack/cgroup) what a task starts
    in its turn does not hear it: a script that srun runs ends in `exec python ...`. Or `trap '...' USR1` in the
    batch script, with `srun ... & pid=$!` and `wait "$pid"`.
    Documented: sbatch(1), --signal; cgroup.conf(5), SignalChildrenProcesses; bash(1), SIGNALS.
    """
    script = subject.script
    sent = _signal(script)
    if sent is None or not sent.batch_shell:
        return
    value, (line, column) = script.options["signal"], script.place_of("signal")
    traps = _traps(script, sent.number)
    if not traps:
        if sent.number not in _HARMLESS:
            what = f"--signal={value} ends the batch script: it has no trap for it"
            remedy = f"--signal={value.partition(':')[2]}, which goes to srun's tasks; or a trap"
            yield Fault(line, column, what, remedy, (), "warning" if script.sources_others else None)
        return
    found = fate(script)
    if found is not None and not found.background:
        what = "bash runs the trap only when this line has ended"
        step = found.launch.step
        remedy = 'end it in &, then pid=$! and wait "$pid"'
        yield Fault(step.line, step.command.column, what, remedy, (line, *traps), "warning")


@rule("KIT412", "warning")
def unsent_signal(subject: Subject) -> Iterator[Fault]:
    """A trap, or a program, waits for a signal that goes elsewhere.

    Without `B:`, --signal goes to the job's steps (what srun started) and not to the batch shell: a trap in the batch
    script never runs. Nor does a program hear it that the batch script starts without srun.

    Mend: `--signal=B:USR1@120` for a trap in the batch script; or handle the signal in the program, and start that with
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
        yield Fault(line, 1, what, f"--signal=B:{value}", (script.line_of("signal"),))
    deaf = None if traps else _without_step(script)
    if deaf is not None:
        what = f"--signal={value} goes to what srun starts, and nothing here is: no program hears it"
        agent = deaf.agent
        started = f"srun {deaf.stages[0].words[0].text} ..."
        remedy = started if agent is None else f"srun python ..., a task for each GPU: {agent.kind} hands no signal on"
        yield Fault(*script.place_of("signal"), what, remedy, (deaf.step.line,))


def _without_step(script: Script) -> Launch | None:
    """The training of a script that has no step, as far as all of it is known."""
    text = "\n".join("" if line.lstrip().startswith("#") else line for line in script.lines)
    if script.sources_others or re.search(r"srun\b|mpi(run|exec)|\bssh\b", text):
        return None
    known = all(launch.program.kind == "python" or launch.program.name in HELPERS for launch in script.launches)
    training = [launch for launch in script.launches if launch.trains]
    return training[-1] if training and known else None


def _signal(script: Script) -> SignalSpec | None:
    if "signal" not in script.options or script.heterogeneous or script.unread:
        return None
    try:
        return parse_signal(script.options["signal"])
    except HpcKitError:
        return None


def _traps(script: Script, number: int) -> list[int]:
    """Lines with a trap of the batch shell for a signal."""
    names = {name for name, known in SIGNALS.items() if known == number} | {str(number)}
    lines = []
    for step in script.steps:
        if step.name == "trap" and not step.task and len(step.words) > 2 and step.words[1].text != "-":
            words = {re.sub(r"^SIG", "", word.text.upper()) for word in step.words[2:]}
            # A name in a variable may be any.
            if names & words or not all(word.known for word in step.words[2:]):
                lines.append(step.line)
    return lines


RULES: tuple[Rule, ...] = (untrapped_signal, unsent_signal)
