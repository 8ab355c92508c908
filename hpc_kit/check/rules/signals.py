"""Rules for signals and time limits: what reaches the program before Slurm ends the job."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from hpc_kit.check.bash_syntax import program_of
from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.command_trace import TracedCommand
from hpc_kit.check.expansion import ExpandedText
from hpc_kit.check.launch_lines import LaunchLine
from hpc_kit.check.programs import HELPER_PROGRAMS
from hpc_kit.check.rules.finding import Problem, rule
from hpc_kit.check.rules.job_end import trace_exit_status
from hpc_kit.errors import HpcKitError
from hpc_kit.lazy_pattern import lazy_pattern
from hpc_kit.slurm.option_values import SIGNALS, SignalSpec, parse_signal

_SHORTEST_LEAD = 30
"""Seconds. Slurm looks at the time limit about once in this time."""


_HARMLESS = frozenset({17, 18, 23, 28})
"""CHLD, CONT, URG, WINCH: they do not end a shell without a trap."""


@rule("KIT411", needs=("trap", "--si"))
def unhandled_signal(script: BatchScript) -> Iterator[Problem]:
    """The batch shell does not handle the signal of --signal=B:.

    With `B:`, only the batch shell gets the signal. Without a trap the signal ends it, and with it the job. The program
    has at most KillWait (30 seconds) left. With a trap but a launch line in the foreground, bash runs the trap only
    after that line has ended, which is too late.

    No trap runs at SIGKILL or SIGSTOP. In double quotes, the shell expands the variables of the trap when it reads the
    line: `trap "kill $pid" USR1` above `pid=$!` kills nothing.

    Fix: remove `B:`, so that the tasks of srun get the signal. By default (proctrack/cgroup), processes that a task
    starts do not get it: end a script under srun with `exec python ...`. Or write `trap '...' USR1` in the batch
    script, with `srun ... & pid=$!` and `wait "$pid"`.
    Documented: sbatch(1), --signal; cgroup.conf(5), SignalChildrenProcesses; bash(1), SIGNALS.
    """
    for step in script.commands:
        if step.trap_signals & {"KILL", "STOP", "9", "19"}:
            yield Problem(step, "no trap runs at SIGKILL or SIGSTOP", "write a trap for TERM, which Slurm sends first")
        yield from _expanded_too_early(script, step)
    directive, signal = script.directive("signal"), read_signal(script)
    if directive is None or signal is None or not signal.batch_shell:
        return
    traps = traps_for(script, signal.number)
    flow = trace_exit_status(script)
    # After `exec`, the program is the process that gets the signal.
    replaced = [launch.command for launch in script.training if not launch.command.in_background]
    if not traps and signal.number not in _HARMLESS and not any(step.name == "exec" for step in replaced):
        what = f"--signal={directive.value} ends the batch script, which has no trap for it"
        to_tasks = directive.value.partition(":")[2]
        remedy = f"use --signal={to_tasks}, which Slurm sends to the tasks of srun; or add a trap"
        yield Problem(directive, what, remedy, certain=not script.sources_files)
    elif traps and flow is not None and not flow.background:
        what = "bash runs the trap only after this line has ended"
        remedy = 'end the line in &, then write pid=$! and wait "$pid"'
        yield Problem(
            flow.launch.command, what, remedy, (directive.line, *(trap.line for trap in traps)), certain=False
        )


_FROM_OUTSIDE = lazy_pattern(
    r"(SLURM|CUDA|PBS)_|(\w+_)?(TMP|TEMP|SCRATCH|WORK|HOME|USER|PROJECT|LOCAL|STORE|PATH)(_?DIR)?\Z|(LOGNAME|(OLD)?PWD|HOSTNAME)\Z"
)
"""Variables that Slurm, the login or the site sets."""


def _expanded_too_early(script: BatchScript, step: TracedCommand) -> Iterator[Problem]:
    """Find a variable in the double quotes of a trap that only a later line sets."""
    for part in step.syntax.words[1].parts if step.trap_code and not step.around("function") else ():
        later = script.assignments_of(part.text) if part.kind == "variable" else []
        # `TMPDIR=/dev/shm python ...` is for one command, and the trap means the value from outside.
        lines = [each.line for each in later if not each.is_for_one_command]
        known = _FROM_OUTSIDE.match(part.text) and not any(each.value.text == "$!" for each in later)
        if lines and not known and min(lines) > step.line and not part.detail:
            what = f"${part.text} is expanded now, and not when the trap runs: line {min(lines)} has not set it yet"
            yield Problem(part.origin, what, "write the trap in single quotes", (min(lines),))
            return


@rule("KIT412", "warning")
def unsent_signal(script: BatchScript) -> Iterator[Problem]:
    """A trap, or a program, waits for a signal that is sent elsewhere.

    Without `B:`, Slurm sends the signal to the steps of the job (started by srun), not to the batch shell. A trap in
    the batch script never runs. A program that the batch script starts without srun gets no signal, either.

    `kill` takes the id of a process, and `scancel` that of a job (an error): `kill -USR1 "$SLURM_JOB_ID"` signals
    nothing, or a process of that number.

    Fix: `--signal=B:USR1@120` for a trap in the batch script. Or handle the signal in the program, and start it with
    srun. `scancel --signal=USR1 "$SLURM_JOB_ID"` signals the steps of a job.
    Documented: sbatch(1), --signal; scancel(1).
    """
    yield from _confused_ids(script)
    directive, signal = script.directive("signal"), read_signal(script)
    if directive is None or signal is None or signal.batch_shell:
        return
    value = directive.value
    traps = traps_for(script, signal.number)
    for trap in traps:
        what = f"--signal={value} does not reach the batch shell: this trap never runs"
        yield Problem(trap, what, f"use --signal=B:{value}", (directive.line,))
    launch = None if traps else _without_step(script)
    if launch is not None:
        what = f"Slurm sends --signal={value} to steps of srun, but this job has none: no program gets it"
        remedy = f"write srun {launch.stages[0].words[0].text} ..."
        if launch.agent is not None:
            remedy = f"use srun python ... with one task per GPU: {launch.agent.kind} does not forward signals"
        yield Problem(directive, what, remedy, (launch.line,))


_JOB_ID = r"\$\{?SLURM_(?:ARRAY_)?JOB_?ID\b"
_KILLS_JOB = lazy_pattern(rf"(?:^|[;&|{{(\n])\s*kill\s(?:-\w+\s+)*[\"']?{_JOB_ID}")


def _confused_ids(script: BatchScript) -> Iterator[Problem]:
    """Find the id of a job where a process is meant, and the id of a process where a job is meant."""
    for step in script.commands:
        last = step.words[-1] if len(step.words) > 1 else None
        of_job = last is not None and re.match(rf"{_JOB_ID}|\$\((sbatch|squeue)\b", last.text)
        signal = next((text for text in step.texts[1:] if text.startswith("-")), "")
        if (step.name in {"kill", "wait"} and of_job) or _KILLS_JOB.search(step.trap_code):
            name = "wait" if step.name == "wait" else "kill"
            remedy = f"write scancel {f'--signal={signal[1:]} ' if re.match('-[A-Z]', signal) else ''}..."
            remedy = 'write wait "$pid", with pid=$! behind the &' if name == "wait" else remedy
            yield Problem(step, f"{name} takes the id of a process, and this is the id of a job", remedy, certain=True)
        elif step.name == "scancel" and last is not None and last.text == "$!":
            what = "scancel takes the id of a job, and this is the id of a process"
            yield Problem(step, what, 'write kill "$pid"', certain=True)


def _without_step(script: BatchScript) -> LaunchLine | None:
    """Return the training of a script without steps, if all its programs are known."""
    # A sourced file, or code that is not read, may start the step.
    if script.sources_files or re.search(r"srun\b|mpi(run|exec)|\bssh\b", script.code):
        return None
    programs = [launch.program for launch in script.launch_lines]
    known = all(program.kind == "python" or program.name in HELPER_PROGRAMS for program in programs)
    return script.training[-1] if script.training and known else None


def read_signal(script: BatchScript) -> SignalSpec | None:
    """Return the value of --signal; None if there is none that can be read."""
    if "signal" not in script.options or script.is_heterogeneous or script.unread_part:
        return None
    try:
        return parse_signal(script.options["signal"])
    except HpcKitError:
        return None


def _names_of(number: int) -> set[str]:
    return {name for name, known in SIGNALS.items() if known == number}


def traps_for(script: BatchScript, number: int) -> list[TracedCommand]:
    """Return the traps of the batch shell for a signal."""
    names = _names_of(number) | {str(number)}
    traps = [step for step in script.batch_commands if step.name == "trap" and step.trap_code != "-"]
    # A name in a variable may be any.
    return [each for each in traps if names & each.trap_signals or not all(word.is_known for word in each.words[2:])]


@rule("KIT414")
def signal_lead(script: BatchScript) -> Iterator[Problem]:
    """The signal of --signal comes at a useless time.

    Slurm sends it the given number of seconds before the time limit. If the limit is shorter, the signal comes within
    the first minute, and the job saves and ends before it has done anything (an error). A few seconds are too short to
    save: Slurm itself may be that late. More than half of the limit is lost time.

    Fix: `--signal=USR1@300`, or `lead = 300` in [restart] of a job file: as long as the program needs to save, and a
    minute more.
    Documented: sbatch(1), --signal.
    """
    signal, time, directive = read_signal(script), script.directive("time"), script.directive("signal")
    if signal is None or directive is None:
        return
    limit = script.time_limit or 0
    lines = (time.line if time is not None else None,)
    # A job file with [restart] sets the variable, and its signal.
    is_job_file = "HPC_KIT_RESTART_LEAD" in script.assigned
    shorter = "a shorter lead in [restart]" if is_job_file else "fewer seconds"
    if 0 < limit <= signal.seconds:
        what = f"the signal comes {signal.seconds} s before the limit, which is {limit} s"
        yield Problem(directive, what, f"use a longer time, or {shorter}", lines)
    elif 0 < limit < 2 * signal.seconds:
        what = f"the signal comes {signal.seconds} s before the limit of {limit} s: more than half of the job is left"
        yield Problem(directive, what, f"use a longer time, or {shorter}", lines, certain=False)
    elif (needed := _time_to_save(script)) is not None and needed[0] > signal.seconds:
        what = (
            f"the signal comes {signal.seconds} s before the limit, but to save takes {needed[0]} s, as a comment says"
        )
        yield Problem(directive, what, f"write @{needed[0] + 60} or more", needed[1], certain=False)
    elif signal.seconds < _SHORTEST_LEAD:
        what = f"{signal.seconds} s before the limit is too short to save a checkpoint"
        longer = "set lead = 120 or more in [restart]" if is_job_file else "write @120 or more"
        yield Problem(directive, what, longer, lines, certain=False)


_SAVING = lazy_pattern(r"(?i)\b(sav(e|es|ing)|writ(e|es|ing)|checkpoints?|dump(s|ing)?|flush(es|ing)?)\b")
_DURATION = lazy_pattern(
    r"(?i)(?<![-\d:.])(\d{1,3})\s*(s|secs?|seconds?|min|mins|minutes?)\b"
    r"(?!\s*(before|ahead|earl|prior|lead))"
)

_REPEATED = lazy_pattern(r"(?i)\b(ago|after|apart|each|every|interval|mark|once|one in|per)\b")
"""Words for the time between two checkpoints, or of one."""


def _time_to_save(script: BatchScript) -> tuple[int, tuple[int, ...]] | None:
    """Return the seconds that a comment gives for saving a checkpoint, and the lines of the comment."""
    for block, text in script.comment_blocks:
        for sentence in re.split(r"[.;!]\s", text):
            match = _DURATION.search(sentence) if _SAVING.search(sentence) and not _REPEATED.search(sentence) else None
            if match is not None:
                return int(match[1]) * (1 if match[2].lower().startswith("s") else 60), block
    return None


@rule("KIT418", "warning", needs=("wait",))
def interrupted_wait(script: BatchScript) -> Iterator[Problem]:
    """`wait` returns as soon as a trap has run.

    bash leaves `wait` when a signal with a trap arrives, runs the trap, and goes on. If the trap only forwards the
    signal, the script then ends, and Slurm ends the program before it has saved its checkpoint.

    Fix: wait again in the trap: `trap 'kill -USR1 "$pid"; wait "$pid"' USR1`. Or `while kill -0 "$pid"; do wait "$pid";
    done`.
    Documented: bash(1), SIGNALS.
    """
    signal, flow = read_signal(script), trace_exit_status(script)
    if signal is None or not signal.batch_shell or flow is None or not flow.background:
        return
    waits = [step for step in flow.followers if step.name == "wait"]
    # A second wait, or one in a loop, waits again after the trap. So does a `sleep`, or a `tail --pid`.
    if (
        len(waits) != 1
        or waits[0].compounds
        or any(step.name in {"sleep", "tail", "kill"} for step in script.commands_after(waits[0]))
    ):
        return
    name = min(_names_of(signal.number))
    for trap in traps_for(script, signal.number):
        inside = script.functions.get(trap.trap_code.strip(), [])
        code = "\n".join([trap.trap_code, *(each.text for each in inside)])
        if re.search(r"\b(kill|touch)\b", code) and not re.search(r"\b(wait|requeue|sbatch|sleep|tail|exit)\b", code):
            what = f"wait returns when the trap for {name} has run, and the script ends before the program"
            yield Problem(waits[0], what, 'write wait "$pid" in the trap, too', (trap.line, flow.launch.line))
            return


_FORWARDED = frozenset({"TERM", "INT", "HUP", "QUIT"})


@rule("KIT419", "warning", needs=("$!", "--si"))
def swallowed_signal(script: BatchScript) -> Iterator[Problem]:
    """A launcher or a shell swallows the signal of --signal.

    Slurm sends the signal to the tasks of srun. torchrun, accelerate and deepspeed do not pass USR1 and USR2 on to
    their processes: the signal ends the launcher. A shell with further commands after the program gets the signal
    itself, too. Behind `srun ... | tee log &`, `$!` is the process of tee, and `kill -USR1 "$pid"` ends tee alone.

    Fix: `srun python train.py` with one task per GPU; `exec python train.py` as the last command of a shell. Or a trap
    in the batch script (`--signal=B:USR1@300`) that leaves a file for the program.
    Documented: sbatch(1), --signal; pytorch.org/docs/stable/elastic/run.html.
    """
    yield from _killed_end_of_pipe(script)
    signal, directive = read_signal(script), script.directive("signal")
    if signal is None or directive is None or signal.batch_shell:
        return
    names = _names_of(signal.number)
    for launch in script.training:
        # Without B:, Slurm signals the tasks of steps only, so that a program without srun gets nothing.
        if launch.stages[0].kind != "srun" or traps_for(script, signal.number):
            continue
        shell = launch.stage("shell")
        if launch.agent is not None and names.isdisjoint(_FORWARDED):
            what = f"{launch.agent.kind} does not pass {min(names)} on to its processes: the signal ends it"
            remedy = "write srun python ... with one task per GPU, or --signal=B: with a trap"
            yield Problem(launch.agent, what, remedy, (directive.line,))
        elif shell is not None and launch.agent is None and _goes_on(script, launch):
            what = f"the shell gets {min(names)} and not the program: further commands follow the program"
            yield Problem(launch.stages[0], what, "end the code of the shell in exec python ...", (directive.line,))


def _killed_end_of_pipe(script: BatchScript) -> Iterator[Problem]:
    """Find a signal for `$!` behind `srun ... | tee log &`: it goes to tee."""
    saving = [(step, each) for step in script.commands for each in step.written_assignments if each.value.raw == "$!"]
    for launch in script.training if saving else ():
        behind = launch.command.position.piped_to
        # `$!` is the process id of the last command of a pipe.
        if not behind or not launch.command.in_background:
            continue
        saved = next((each for step, each in saving if script.is_before(launch.command, step)), None)
        if saved is None:
            continue
        uses = re.compile(rf"\bkill\b(?!\s+-0).*\$\{{?{saved.name}\b")
        kill = next((step for step in script.batch_commands if uses.search(step.trap_code or step.written)), None)
        if kill is not None:
            name = program_of(behind[-1]) or "the last command"
            what = f"$! is the process of {name}: the signal does not reach the training"
            remedy = "write srun ... > >(tee -a FILE) 2>&1 &, without a pipe"
            yield Problem(saved.value, what, remedy, (launch.line, kill.line))


def _goes_on(script: BatchScript, launch: LaunchLine) -> bool:
    """Tell whether the shell of a task runs further commands after the program, and traps nothing."""
    inside = script.commands_of(launch)
    traps = any(step.name == "trap" for step in inside)
    return not traps and any(script.is_before(launch.inner_command, step) for step in inside)


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@rule("KIT431", "warning", needs=("timeout", "exit", "stop", "limit", "max"))
def late_timeout(script: BatchScript) -> Iterator[Problem]:
    """`timeout`, or the program's own limit, ends the training too late or too early.

    If Slurm ends the job first, what the script does after the training, such as a copy, never happens. A program that
    is to save and stop by itself, such as Lightning with `max_time`, is killed before. A number without a unit is in
    seconds: `timeout 1430` in a job of 24 hours was surely meant in minutes. timeout takes one number with one unit:
    with `3h50m` it starts nothing (an error).

    Fix: some minutes less than --time, such as `timeout 1430m` in a job of 24 hours.
    Documented: timeout(1); sbatch(1), --time.
    """
    limit, training = max(script.time_limit or 0, 0), script.training
    for launch in script.launch_lines:
        given = duration_of_timeout(launch)
        match = _DURATION_OF_TIMEOUT.fullmatch(given.text) if given is not None else None
        if given is not None and match is None and given.is_known and re.match(r"\d", given.text):
            what = f"timeout refuses {given.text}, and starts nothing: it takes one number with one unit"
            yield Problem(given, what, "write it in minutes, such as 230m", (launch.line,), certain=True)
        if given is None or match is None or id(launch) not in map(id, training):
            continue
        seconds = float(match[1]) * _UNITS[match[2] or "s"]
        follows = [step for step in script.commands_after(launch.command) if step.name not in {"echo", "exit", "date"}]
        if 0 < limit <= seconds and follows and not launch.command.in_background:
            what = f"Slurm ends the job first, after {limit} s: line {follows[-1].line} never runs"
            yield Problem(given, what, "give timeout some minutes less than --time", (script.line_of("time"),))
        # The number of minutes, or of hours, that would be most of the job. A test before the training may be short.
        unit = next((unit for unit in "mh" if 0.8 * limit <= seconds * _UNITS[unit] <= limit), None)
        if limit and unit and not match[2] and len(training) == 1 and not launch.is_auxiliary:
            what = f"timeout takes {given.text} for seconds, and the job has {limit // _UNITS[unit]} {unit}"
            yield Problem(given, what, f"write the unit: {given.text}{unit}", (launch.line, script.line_of("time")))
    for launch in training if limit > 0 else ():
        for option, word in launch.option_values():
            own = _own_limit(option, word.text)
            # KIT122 reports a limit in minutes that was meant in hours.
            if own is not None and limit <= own < 20 * limit:
                what = f"Slurm ends the job first, after {limit} s: the program never stops by itself, after {own} s"
                yield Problem(word, what, "make it some minutes less than --time", (script.line_of("time"),))


_DURATION_OF_TIMEOUT = lazy_pattern(r"(\d+(?:\.\d*)?|\.\d+)([smhd]?)")


def duration_of_timeout(launch: LaunchLine) -> ExpandedText | None:
    """Return the duration of the `timeout` of a launch line, the word in front of its program."""
    pairs = ((stage, following) for stage, following in pairwise(launch.stages) if stage.name == "timeout")
    return next((stage.words[-1 - len(following.words)] for stage, following in pairs), None)


_OWN_LIMIT = lazy_pattern(
    r"[-+]*(?:\w+\.)*(?:(?:exit[-_]duration[-_]in|exit[-_]after|stop[-_]after|(?:time|wall|run)[-_]?(?:time)?[-_]?limit"
    r"|max(?:[-_](?:run|wall|train|training))?(?:[-_]?(?:time|duration))?(?:[-_]in)?)"
    r"[-_](?P<unit>hour|min|minute|sec|second)s?|(?P<clock>max[-_]time))\Z"
)
"""An option of the program for its own time: --exit-duration-in-mins of Megatron, max_time of Lightning."""


def _own_limit(option: str, value: str) -> int | None:
    """Return the seconds after which the option of a program ends it; None for any other option."""
    match = _OWN_LIMIT.match(option)
    if match is None:
        return None
    if match["clock"]:
        # Lightning writes DD:HH:MM:SS.
        parts = re.fullmatch(r"(\d{1,3}):(\d{1,3}):(\d{1,3}):(\d{1,3})", value)
        days, hours, minutes, seconds = map(int, parts.groups()) if parts else (0, 0, 0, 0)
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds if parts else None
    return int(float(value) * _UNITS[match["unit"][0]]) if re.fullmatch(r"\d{1,7}(\.\d+)?", value) else None
