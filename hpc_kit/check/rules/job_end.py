"""Rules for the end of a job: exit status and background processes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise, takewhile
from typing import NamedTuple

from hpc_kit.check.bash_syntax import (
    Block,
    Command,
    CompoundCommand,
    Origin,
    SimpleCommand,
    Statement,
    Word,
    parse,
    program_of,
    simple_commands,
    written_files,
)
from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.command_trace import DECLARING, BlockPosition, CommandTrace, TracedCommand
from hpc_kit.check.expansion import ShellVariables, plain_path
from hpc_kit.check.launch_lines import LOOPS, LaunchLine, collect_launch_lines
from hpc_kit.check.programs import COPIES
from hpc_kit.check.rules.files import OWN_DISK, READ_THERE, WRITTEN_THERE, target_of_copy
from hpc_kit.check.rules.finding import Problem, rule
from hpc_kit.lazy_pattern import lazy_pattern

_KEEP = 'keep the status: srun ... || status=$?, and exit "$status" as the last line'
_SHORT = frozenset({
    "", ":", "cat", "cd", "conda", "cp", "curl", "date", "deactivate", "declare", "df", "disown", "echo", "export",
    "du", "free", "hostname", "ls", "mail", "mailx", "mkdir", "ml", "module", "mv", "nvidia-smi", "popd", "printf",
    "pushd", "pwd", "rm", "sacct", "seff", "set", "shopt", "squeue", "touch", "true", "ulimit", "unset", "wc",
})  # fmt: skip
_PRINTS = frozenset({"true", ":", "echo", "printf"})
"""Commands that always succeed."""


_RELIES = lazy_pattern(r"sbatch .*\bafterok:\S*SLURM_JOB_?ID|touch .*(?i:done|complete|success|finish)")
"""A command that is wrong after a failure. A job without a dependency may look by itself for the results."""


class ExitStatusFlow(NamedTuple):
    """The way of the exit status of the last training through the batch script.

    `followers` are the commands after it, and `calls` those of the functions around it. `piped_at` is its position
    before a `|` without pipefail, `shielded_at` its position before a `&&` or `||`, or behind a `!`. `background`: its
    statement ends in `&`. `is_certain`: it is in no loop. `errexit`: the shell ends if it fails.
    """

    launch: LaunchLine
    followers: tuple[TracedCommand, ...]
    calls: tuple[TracedCommand, ...]
    piped_at: BlockPosition | None
    shielded_at: BlockPosition | None
    background: bool
    is_certain: bool
    errexit: bool

    @property
    def is_relied_on(self) -> bool:
        """A later command states that the training has succeeded: a job with `afterok` on this one, or a mark."""
        return any(_RELIES.match(each.text) for each in self.followers if not each.is_conditional)

    @property
    def is_read(self) -> bool:
        """A later command reads `$?`. The pattern `?` of file names is text, and not a variable."""
        return any(each.reads("?") for each in self.followers)

    def finding(self, what: str, remedy: str, *evidence: int, certain: bool | None = None) -> Problem:
        """Return a finding at the launch line. A lost status is an error only if a later command relies on it."""
        lines = (self.launch.line, *(call.line for call in self.calls), *evidence)
        is_error = self.is_certain and self.is_relied_on if certain is None else certain
        return Problem(self.launch.stages[0], what, remedy, lines, is_error)


@lru_cache(maxsize=2)
def trace_exit_status(script: BatchScript) -> ExitStatusFlow | None:
    """Trace the exit status of the last training; None if there is no training, or the way is unknown."""
    training = [launch for launch in script.launch_lines if launch.is_training and not launch.command.in_task]
    reports = bool(training) and training[-1].is_auxiliary and not all(launch.is_auxiliary for launch in training)
    if not training or script.unread_part or reports:
        return None
    step = training[-1].command
    calls = _calls_of(script, step)
    # After `exec`, the program is the job.
    if calls is None or step.name == "exec":
        return None
    # Of each call, the positions up to the function that contains it.
    around = [list(call.position.outward()) for call in calls]
    ends = [next((n for n, place in enumerate(places, 1) if place.kind == "function"), None) for places in around]
    places = [place for positions, end in zip(around, ends, strict=True) for place in positions[:end]]
    after = [(call, each) for call in calls for each in script.commands_after(call) if _comes_after(each, call)]
    # An option at the beginning of a line is the rest of a broken one.
    followers = [each for _, each in after if not re.match(r"--?[A-Za-z]", each.name)]
    # The script itself decides what a failure means.
    if any(place.role == "condition" for place in places):
        return None
    pipefail = any(call.pipefail for call in calls)
    # Without pipefail, a pipe has the status of its last command.
    piped = (each for each in places if each.piped_to and not pipefail)
    shielded = (each for each in places if each.chain_index + 1 < len(each.chain.pipelines) or each.pipeline.negated)
    return ExitStatusFlow(
        training[-1],
        tuple(followers),
        tuple(calls[1:]),
        piped_at=next(piped, None),
        shielded_at=next(shielded, None),
        background=any(place.statement.background for place in places),
        is_certain=not any(place.kind in {*LOOPS, "case"} for place in places),
        errexit=any(call.errexit for call in calls),
    )


def _calls_of(script: BatchScript, step: TracedCommand) -> list[TracedCommand] | None:
    """Return a command, the last call of the function that contains it, the call of the caller, and so on.

    None: something else may start a function of them, such as a trap.
    """
    calls = [step]
    while (function := calls[-1].around("function")) is not None:
        mentioned = [each for each in script.commands if function.name in each.texts]
        found = [each for each in mentioned if each.name == function.name and not each.in_task]
        if not found or len(mentioned) != len(found) or len(calls) > _MOST_CALLS:
            return None
        calls.append(found[-1])
    return calls


_MOST_CALLS = 8


def _comes_after(step: TracedCommand, launch: TracedCommand) -> bool:
    """Tell whether a command may run after the launch, rather than in another branch, a function or a task."""
    if step.in_task or step.around("function") is not launch.around("function"):
        return False
    # The branches of an `if` share its compound command, and differ in their role.
    branches = {id(place.compound): place.role for place in launch.position.outward()}
    pipes = {id(place.pipeline): place.pipeline_index for place in launch.position.outward()}
    for place in step.position.outward():
        # A command behind the pipe runs at the same time.
        if place is launch.position or pipes.get(id(place.pipeline), place.pipeline_index) != place.pipeline_index:
            return False
        if place.compound is not None and branches.get(id(place.compound), place.role) != place.role:
            return False
    return True


def saves_status(followers: tuple[TracedCommand, ...]) -> bool:
    """Tell whether the script chooses its status: `exit "$status"`, `exit 1`, or a test as its last command."""
    if followers and followers[-1].name in {"[", "test"}:
        return True
    return any(step.name in {"exit", "return"} and step.texts[1:2] not in ([], ["0"]) for step in followers)


def _last_word(followers: tuple[TracedCommand, ...]) -> TracedCommand | None:
    """Return the command whose status becomes the status of the script; None if it may be the training."""
    if saves_status(followers) or any(step.name in {"exec", "scancel"} for step in followers):
        return None
    # `set +x` ends many templates of NVIDIA, for jobs of which nothing reads the status.
    followers = followers[:-1] if followers and followers[-1].name == "set" else followers
    # A bare `exit` returns the status of the command before it, which is the training.
    return None if not followers or followers[0].texts == ["exit"] else followers[-1]


@rule("KIT401", "warning")
def lost_status(script: BatchScript) -> Iterator[Problem]:
    """The exit status of the job is not the status of the training.

    Slurm records the status of the batch script, which is the status of its last command. With an `echo` or a copy
    after the launch line, a failed training is a COMPLETED job. Dependent jobs (afterok) then start without its
    results. `|| true` has the same effect, and so has `NAME=$(srun ...)` in the middle of the script. A job that ends
    with `scancel "$SLURM_JOB_ID"` is CANCELLED, also after a success. It is an error if a later command states that the
    training has succeeded: a job with `afterok` on this one, or a mark such as `touch DONE`. The rule is silent about
    `|| echo` in a loop, where one run of several may fail.

    Fix: `set -e` at the top; or keep the status: `srun ... || status=$?`, with `exit "$status"` as the last line.
    Documented: slurm.schedmd.com/job_exit_code.html.
    """
    yield from _thrown_away(script)
    yield from _captured(script)
    flow = trace_exit_status(script)
    yield from _cancelled(flow)
    if flow is None or flow.piped_at is not None:
        return
    if flow.background:
        yield from _lost_behind_wait(flow)
        return
    shield, followers = flow.shielded_at, flow.followers
    if shield is not None:
        if shield.pipeline.negated:
            return
        behind = tuple(
            each for each in followers if any(p.statement is shield.statement for p in each.position.outward())
        )
        followers = tuple(each for each in followers if each not in behind)
        name = program_of(shield.chain.pipelines[-1].commands[-1])
        files = any(each.syntax.output or each.syntax.appended for each in behind)
        prints = behind and all(each.name in _PRINTS for each in behind) and not files
        # In `train && copy || echo failed`, the status is that of the echo.
        if shield.chain.operators[shield.chain_index :] == ("&&", "||") and name in _PRINTS:
            yield flow.finding(f"'|| {name}' makes a failed training a COMPLETED job", _KEEP, certain=False)
            return
        if shield.chain.operators[shield.chain_index] == "||":
            # One run of several may fail. A message in a file is a record of the failure.
            if prints and not (flow.launch.in_loop and behind[0].name in {"echo", "printf"}):
                what = f"'|| {behind[0].name}' makes a failed training a COMPLETED job"
                yield flow.finding(what, _KEEP, certain=False)
            return
    last = _last_word(followers)
    if last is not None and (shield is not None or not flow.errexit):
        what = f"the job returns the status of '{_shown(last)}' in line {last.line}, not the status of the training"
        yield flow.finding(what, f"write set -e at the top; or {_KEEP}", last.line)


def _shown(step: TracedCommand) -> str:
    """Return the name of a command, or `NAME=` for an assignment."""
    return step.name or next((f"{each.name}=" for each in step.syntax.assignments), "")


def _cancelled(flow: ExitStatusFlow | None) -> Iterator[Problem]:
    """Find a job that cancels itself at its end."""
    for step in flow.followers if flow is not None else ():
        own = len(step.words) == 2 and step.words[1].variable in {"SLURM_JOB_ID", "SLURM_JOBID"}
        if step.name != "scancel" or not own or step.is_conditional:
            continue
        what = "every job ends as CANCELLED, also after a success: jobs that depend on it (afterok) never start"
        yield Problem(step, what, "remove scancel: Slurm ends all steps with the batch script", certain=False)


def _thrown_away(script: BatchScript) -> Iterator[Problem]:
    """Find launches under srun or an agent, before the last training, whose failure has no effect: `|| echo failed`."""
    for launch in script.training[:-1]:
        place = launch.command.position
        starts = launch.multiplier or launch.agent or (launch.is_named_training and script.training[-1].is_auxiliary)
        if not starts or launch.command.in_task or place.chain_index:
            continue
        if place.chain.operators[:1] != ("||",) or len(place.chain.pipelines) != 2:
            continue
        handler = place.chain.pipelines[1].commands[-1]
        name, is_recorded = program_of(handler), any(each.is_file for each in handler.redirections)
        if name in _PRINTS and not is_recorded and not script.has_reason(launch.line, named=True):
            what = f"'|| {name}' hides a failure: the script goes on, and the job is COMPLETED"
            yield Problem(launch.stages[0], what, f"write || {{ {name} ...; exit 1; }}", (launch.line,), certain=False)


def _captured(script: BatchScript) -> Iterator[Problem]:
    """Find a step in `NAME=$(srun ...)` whose failure has no effect."""
    for step in script.batch_commands:
        part = next((part for part in step.substitutions if _runs_training(part.text)), None)
        if part is None or step.in_condition():
            continue
        followers = script.commands_after(step)
        # The status of a plain assignment is that of the command. `export` and `echo` have a status of their own.
        plain = not step.words
        shielded = len(step.position.chain.pipelines) > 1
        read = any(each.reads("?") for each in followers[:1]) or "$?" in step.texts
        if plain and (step.errexit or shielded or read or not followers or saves_status(tuple(followers))):
            continue
        effect = "the script goes on" if plain else f"{step.name} has a status of its own"
        what = f"a failure in $(...) is lost: {effect}, and the job is COMPLETED"
        yield Problem(part.origin, what, "write NAME=$(...) || exit, without export in front", (step.line,))


def _runs_training(code: str) -> bool:
    """Tell whether code starts the work of a job under a launcher, rather than asks a node for its address."""
    if not re.search(r"\b(srun|mpirun|mpiexec|torchrun|accelerate|deepspeed)\b", code):
        return False
    launches: list[LaunchLine] = []
    trace = CommandTrace(ShellVariables({}), nested=lambda trace, step: collect_launch_lines(trace, step, launches))
    trace.block(parse(code).block)
    probes = {"nodelist", "relative", "nodefile"}
    return any(
        launch.is_training
        and not (launch.program.kind == "python" and "code" in launch.program.options)
        and not any(stage.options.keys() & probes for stage in launch.stages)
        for launch in launches
    )


def _lost_behind_wait(flow: ExitStatusFlow) -> Iterator[Problem]:
    """Find commands that replace the status of `wait "$pid"`."""
    waits = [index for index, step in enumerate(flow.followers) if step.name == "wait" and len(step.words) > 1]
    # `wait -n` returns the status of any one process.
    waits = [index for index in waits if "-n" not in flow.followers[index].texts]
    if not waits or flow.followers[waits[-1]].errexit or _shielded(flow.followers[waits[-1]]):
        return
    last = _last_word(flow.followers[waits[-1] + 1 :])
    if last is not None:
        what = f"the job returns the status of '{_shown(last)}' in line {last.line}, not the status of wait"
        yield flow.finding(what, 'write wait "$pid" || status=$?, and exit "$status" as the last line', last.line)


def _shielded(step: TracedCommand) -> bool:
    """Tell whether `if`, `||` or `&&` uses the status."""
    return step.in_condition() or step.position.is_chained


@rule("KIT402", needs=("&", "tmux", "screen", "docker", "podman", "abaqus"))
def bare_wait(script: BatchScript) -> Iterator[Problem]:
    """A `wait` without a process id loses the status of the training.

    `wait` without a process id always returns 0, so that a failed training is a COMPLETED job. Without any `wait`, a
    launch line that ends in `&` returns immediately, and the job ends with the batch script. The same happens to all
    but the last of several trainings if only the last one runs in the foreground, and to a copy in `&` at the end. A
    training whose data a `tar -xf ... &` above still unpacks begins with a part of them. A loop behind a pipe is a
    subshell, and so are parentheses: the `wait` of the script does not know the processes that start there. `wait -n`
    returns when the first of several processes has ended.

    Fix: `srun ... & pid=$!`, then `wait "$pid"`. For several, use one `wait` each and keep the worst status.
    Documented: bash(1), wait.
    """
    yield from _detached(script)
    if lost := [*_children_of_pipe(script), *_children_of_subshell(script)]:
        yield from lost
        return
    flow = trace_exit_status(script)
    yield from _unread_waits(script)
    yield from _unfinished_copies(script)
    yield from _used_too_early(script)
    yield from _last_of_loop(script)
    yield from _first_of_several(script)
    if flow is not None and not flow.background:
        yield from _left_behind(script, flow)
    if flow is None or not flow.background:
        return
    waits = [step for step in flow.followers if step.name == "wait"]
    yield from _last_of_several(flow, waits)
    if not waits:
        # Whatever is not known may wait in its own way.
        if all(_is_short(step) or step.name == "exit" for step in flow.followers):
            what = "this runs in the background without a wait: the job ends immediately"
            yield flow.finding(what, 'remove the &; or write pid=$! after it, and wait "$pid"', certain=flow.is_certain)
        return
    # `exit $?` has nothing to return but the status of a wait.
    kept = [step for step in flow.followers if step.texts != ["exit", "$?"]]
    if all(len(step.words) == 1 for step in waits) and not saves_status(tuple(kept)):
        wait = waits[-1]
        what = "wait without a process id always returns 0: a failed training is COMPLETED"
        remedy = 'write pid=$! after the &, and wait "$pid"'
        yield Problem(wait, what, remedy, (flow.launch.line,), certain=flow.is_relied_on or flow.is_read)


def _children_of_pipe(script: BatchScript) -> Iterator[Problem]:
    """Find programs that a loop at the end of a pipe starts in the background, and a `wait` behind the pipe."""
    # zsh and ksh run the last command of a pipe in the shell itself.
    loses = script.interpreter in {None, "bash", "sh"} and "lastpipe" not in script.code
    for step in [launch.command for launch in script.training if loses]:
        places = list(step.position.outward())
        # The statement in the background is inside of the pipe.
        started = next((index for index, place in enumerate(places) if place.statement.background), len(places))
        pipe = next((place for place in places[started + 1 :] if place.pipeline_index), None)
        wait = next((each for each in script.commands_after(step) if each.texts == ["wait"]), None) if pipe else None
        if pipe is None or wait is None or any(place.pipeline is pipe.pipeline for place in wait.position.outward()):
            continue
        what = f"the loop behind the pipe is a subshell: the wait in line {wait.line} does not know its processes"
        place, lines = Origin(pipe.statement.line), (step.line, wait.line)
        yield Problem(place, what, "write while ...; do ...; done < <(COMMAND), without the pipe", lines)
        return


def _children_of_subshell(script: BatchScript) -> Iterator[Problem]:
    """Find a program that parentheses start in the background, and a `wait` behind them."""
    for step in [launch.command for launch in script.training if launch.command.around("subshell")]:
        places = list(step.position.outward())
        started = next((index for index, place in enumerate(places) if place.statement.background), len(places))
        outer = next((place for place in places[started:] if place.kind == "subshell"), None)
        # A subshell that waits, or that goes on in the foreground, ends after its programs.
        waits = [each for each in script.commands_after(step) if _waits(each)]
        ends = outer is not None and any(place.statement.background for place in places[places.index(outer) + 1 :])
        if outer is None or outer.compound is None or ends or not waits or waits[0].is_inside(outer.compound):
            continue
        after = [each for each in script.commands_after(step) if each.is_inside(outer.compound)]
        if waits[0].texts == ["wait"] and all(map(_is_short, after)):
            what = f"the parentheses are a subshell: the wait in line {waits[0].line} does not know this process"
            yield Problem(step, what, "write ( ... ) & instead of ( ... & )", (outer.statement.line, waits[0].line))
            return


_WAIT_FOR_EACH = 'write pids+=("$!") after the &, and wait "$pid" || status=$? for each'


def _continues_blindly(script: BatchScript, wait: TracedCommand, later: LaunchLine) -> bool:
    """Tell whether a next training follows a `wait`, and no other command can notice a failure before it."""
    before = script.commands_before(wait)
    between = [step for step in script.commands_after(wait) if script.is_before(step, later.command)]
    checks = any(program_of(step.syntax) not in _PRINTS for step in between if step is not later.command)
    handled = any(step.name in {"kill", "scancel"} or step.texts[:1] == ["wait"] != step.texts for step in before)
    return not (checks or handled or wait.is_conditional or later.command.in_background)


def _unread_waits(script: BatchScript) -> Iterator[Problem]:
    """Find a `wait` without a process id whose status the script reads: it is always 0."""
    started = [launch for launch in script.launch_lines if launch.command.in_background]
    trains = any(launch.is_training for launch in started)
    for step in script.batch_commands if started else ():
        if step.name != "wait" or len(step.words) > 1:
            continue
        later = [launch for launch in script.launch_lines if launch.is_training and launch.line > step.line]
        if trains and step.errexit and later and _continues_blindly(script, step, later[0]):
            what = "wait without a process id always returns 0: after a failure, set -e does not end the script here"
            # The next training may need nothing of the first ones.
            yield Problem(step, what, _WAIT_FOR_EACH, (started[0].line, later[0].line), certain=False)
            return
        reads = any(each.reads("?") for each in script.commands_after(step)[:1])
        # A command behind the next `||` or `&&` may do more than print or succeed.
        behind = step.position.chain.pipelines[step.position.chain_index + 1 :]
        acts = any(program_of(each) not in _PRINTS for pipeline in behind for each in pipeline.commands)
        if reads or acts or step.in_condition("if", "while", "until"):
            what = "wait without a process id always returns 0: the script never sees a failure"
            yield Problem(step, what, _WAIT_FOR_EACH, (started[0].line,))
            return


def _unfinished_copies(script: BatchScript) -> Iterator[Problem]:
    """Find a copy in the background that nothing waits for before the end of the job."""
    if any(re.search(r"\bwait\b", step.trap_code) for step in script.batch_commands):
        return
    for step in script.batch_commands:
        if step.name not in COPIES or not step.in_background or step.around(*LOOPS):
            continue
        after = [each for each in script.commands_after(step) if not each.around("function")]
        if not any(map(_waits, after)) and all(_is_short(each) or each.name == "exit" for each in after):
            what = f"nothing waits for this {step.name}: the job ends, and Slurm ends the copy"
            yield Problem(step, what, "remove the &, or write wait as the last line")


_UNPACKERS = frozenset({"cat", "curl", "gunzip", "gzip", "lz4", "pigz", "unxz", "xz", "zcat", "zstd", "zstdcat"})
"""Programs whose output is mostly data."""


def _used_too_early(script: BatchScript) -> Iterator[Problem]:
    """Find a training that begins while a command in the background still copies or unpacks its data."""
    for step in script.batch_commands:
        if not step.in_background:
            continue
        launch = script.launch_at(step)
        texts = launch.program.texts if launch is not None and launch.multiplier else step.texts or [""]
        target = target_of_copy(texts)
        if target is None and step.name in _UNPACKERS:
            target = next((script.resolve(each.name.unquoted) for each in written_files(step.syntax)), None)
        folder = plain_path(target).rstrip("/.") if target is not None else ""
        if not re.search(r"/\w|\$\w", folder) or folder.startswith("/dev/"):
            continue
        for later in script.training:
            if not script.is_before(step, later.command) or not _reads_from(script, folder, later):
                continue
            between = [each for each in script.commands_after(step) if script.is_before(each, later.command)]
            front = [each for each in between if not each.in_background]
            waits = any(_waits(each) or each.name in {"sleep", "inotifywait"} for each in front)
            # Each pass of a loop may fetch the data of the next one.
            loop = later.command.around(*LOOPS)
            if waits or (loop is not None and step.is_inside(loop)):
                break
            what = f"nothing waits for this {texts[0]}: line {later.line} begins while {folder} is incomplete"
            certain = all(map(_is_short, front))
            yield Problem(step, what, f"write wait before line {later.line}", (later.line,), certain)
            return


def _reads_from(script: BatchScript, folder: str, launch: LaunchLine) -> bool:
    """Tell whether a training gets a folder, one in it, or, as its data, one around it."""
    if any("$!" in word.raw for word in launch.inner_command.syntax.words):
        return False
    pairs = [("", "")]
    for word in launch.program.words[1:]:
        name, equals, value = word.text.partition("=")
        pairs.append((name if equals else pairs[-1][1], value if equals else word.text))
    pairs += [(each.name, each.value.text) for each in script.exported_assignments if each.line < launch.line]
    for option, value in pairs[1:]:
        path = plain_path(value).rstrip("/")
        inside = f"{path}/".startswith(f"{folder}/") and not WRITTEN_THERE.search(option)
        around = f"{folder}/".startswith(f"{path}/") and READ_THERE.search(option)
        # $SCRATCH has much else in it, which the program may read.
        if inside or (around and (re.search(r".+/", path) or OWN_DISK.match(path))):
            return True
    return False


def _last_of_several(flow: ExitStatusFlow, waits: list[TracedCommand]) -> Iterator[Problem]:
    """Find a `wait` for several processes that returns the status of the last one alone."""
    if not waits or saves_status(flow.followers):
        return
    wait, loop = waits[-1], flow.launch.command.around(*LOOPS)
    match = re.fullmatch(r"\$\{?(\w+)\}?", wait.syntax.words[1].unquoted) if len(wait.words) == 2 else None
    # `pid=$!` in a loop keeps the last process id alone.
    if match and loop and not wait.is_inside(loop):
        name = match[1]
        inside = [step for step in flow.followers if step.is_inside(loop)]
        last = [each for step in inside for each in step.syntax.assignments if each.value.raw == "$!"]
        if any(each.name == name and not each.append and each.value.elements is None for each in last):
            what = f"${name} is the last process of the loop: the job ends with it, and ends the remaining ones"
            yield Problem(wait, what, f'collect all: {name}s+=("$!"), and wait for each', (flow.launch.line,))
            return
    several = wait.around("for") or len(wait.words) > 2
    if several and len(wait.words) > 1 and not wait.errexit and not _shielded(wait) and "-n" not in wait.texts:
        behind = takewhile(lambda each: each is not wait, reversed(flow.followers))
        if not any("$?" in part.raw for each in behind for part in each.syntax.parts):
            what = "this returns the status of the last process only: a failure of another one is lost"
            yield Problem(wait, what, 'write wait "$pid" || status=$?, and exit "$status"', (flow.launch.line,))


def _last_of_loop(script: BatchScript) -> Iterator[Problem]:
    """Find a `wait $!` behind a loop that starts a process in each round."""
    waits = [step for step in script.batch_commands if _waits(step)]
    if len(waits) != 1 or waits[0].name != "wait" or len(waits[0].words) != 2:
        return
    wait = waits[0]
    started = next((step for step in reversed(script.commands_before(wait)) if step.in_background), None)
    loop = started.around(*LOOPS) if started is not None else None
    if wait.syntax.words[1].unquoted not in {"$!", "${!}"} or started is None or loop is None or wait.is_inside(loop):
        return
    # A round that starts nothing, or that ends the loop, may leave one process.
    ends = any(step.name in {"break", "exit", "return"} and step.is_inside(loop) for step in script.batch_commands)
    if ends or started.is_conditional:
        return
    background = next(place for place in started.position.outward() if place.statement.background)
    if any(place.compound is loop for place in background.outward()):
        what = "this waits for the last process of the loop alone: the remaining ones may still run"
        yield Problem(wait, what, 'write pids+=("$!") in the loop, and wait for each', (started.line,))


def _first_of_several(script: BatchScript) -> Iterator[Problem]:
    """Find one `wait -n` for several trainings, behind which the job ends."""
    waits = [step for step in script.batch_commands if _waits(step)]
    if len(waits) != 1 or waits[0].name != "wait" or not any(re.match(r"-\w*n", text) for text in waits[0].texts):
        return
    wait = waits[0]
    started = [launch for launch in script.launch_lines if launch.command.in_background]
    several = len(started) > 1 or any(launch.in_loop for launch in started)
    # Different programs may be a training and one that runs beside it.
    alike = len({launch.file.text if launch.file else launch.program.name for launch in started}) == 1
    named = [word.raw for word in wait.syntax.words[1:] if not word.raw.startswith("-")]
    # Whoever ends the remaining ones, or looks which one has ended, wants the first one.
    ends = any(
        each.name in {"exec", "kill", "pkill", "scancel"} or "kill" in each.trap_code for each in script.commands
    )
    loose = (
        wait.around(*LOOPS, "function")
        or wait.is_conditional
        or _shielded(wait)
        or (len(named) == 1 and "@" not in named[0])
    )
    read = any(each.reads("?") for each in script.commands_after(wait)[:1])
    meant = script.has_reason(wait.line)
    if several and alike and all(launch.is_training for launch in started) and not (ends or loose or read or meant):
        what = "wait -n returns when the first of the trainings has ended: the job goes on, and its end ends the others"
        remedy = 'write wait "$pid" || status=$? for each, with pids+=("$!") behind each &'
        yield Problem(wait, what, remedy, (started[-1].line,), certain=False)


def _detached(script: BatchScript) -> Iterator[Problem]:
    """Find a program that a detached tmux, screen or container runs, or that goes to the background by itself."""
    for step in script.batch_commands:
        options = step.texts[1:]
        detached = step.name == "screen" and any(re.match(r"-\w*d\w*m|-dm", text) for text in options)
        if step.name == "tmux":
            detached = "-d" in options and not {"new", "new-session"}.isdisjoint(options)
        if step.name in {"docker", "podman"} and "run" in options[:2]:
            flags = list(takewhile(lambda text: text.startswith("-") or text == "run", options))
            detached = any(re.match(r"-[it]*d[it]*\Z|--detach\Z", text) for text in flags)
        # abaqus returns at once without `interactive`. Its other procedures, such as `abaqus fetch job=...`, do not.
        if step.name == "abaqus" and re.match(r"-|\w+=|analysis|datacheck", " ".join(options)):
            words = [text.lstrip("-") for text in options]
            detached = any(re.match(r"job\b", text) for text in words)
            detached = detached and not any(re.match(r"int|ask_delete\b|help", text) for text in words)
        if detached and all(map(_is_short, script.commands_after(step))):
            what = f"{step.name} runs the program in the background: the job ends immediately"
            remedy = "write interactive" if step.name == "abaqus" else f"write the command without {step.name}"
            yield Problem(step, what, remedy)


def _left_behind(script: BatchScript, flow: ExitStatusFlow) -> Iterator[Problem]:
    """Find earlier background starts of the same program. They end when the last one does."""
    program = flow.launch.file
    if program is None or any(map(_waits, script.commands)):
        return
    for launch in script.launch_lines:
        same = launch.is_training and launch.file
        if launch is flow.launch or not same or same.text != program.text or launch.command.in_task:
            continue
        if launch.command.in_background:
            end = flow.launch.line
            what = f"nothing waits for this: the job ends when {program.text} in line {end} has ended"
            yield Problem(launch.stages[0], what, "end each of them in &, and wait for each", (end,), certain=False)
            return


def _waits(step: TracedCommand) -> bool:
    """Tell whether a command waits for a process: `wait`, `tail --pid`, or a loop on `kill -0`."""
    if step.name == "kill":
        return "-0" in step.texts and step.in_condition("while", "until")
    return step.name == "wait" or (step.name == "tail" and any(text.startswith("--pid") for text in step.texts))


def _is_short(step: TracedCommand) -> bool:
    """Tell whether a command ends within minutes and waits for nothing."""
    if step.name == "sleep":
        return len(step.words) == 2 and (step.words[1].number or 600) < 600
    return step.name in _SHORT


_SHORT_LIVED = lazy_pattern(r"SLURM_\w*JOB_?ID|(?i:te?mp)|\$\(mktemp|cache|/dev/shm")


@rule("KIT407", "warning")
def deleted_source(script: BatchScript) -> Iterator[Problem]:
    """The source of a copy is deleted, whether the copy succeeded or not.

    `tar -cf archive.tar data ; rm -rf data` deletes the data also if the disk was full. The rule finds an `rm -r` right
    behind the command that copies its folder, and ignores folders of the job or for temporary files. `rsync --delete`
    into the folder of the job deletes everything there that is not in its source: the program, too.

    Fix: `tar -cf archive.tar data && rm -rf data`, or `set -e` at the top. For results: rsync without --delete.
    Documented: bash(1), Lists and set -e; rsync(1), --delete.
    """
    yield from _mirrored_over_project(script)
    last: dict[int, TracedCommand] = {}
    for step in script.batch_commands:
        before = last.get(id(step.position.block))
        if step.name not in _PRINTS:
            last[id(step.position.block)] = step
        if "ERR" in step.trap_signals:
            return
        if before is None or not step.removes_folders or step.errexit or step.is_conditional or _shielded(before):
            continue
        copied = _copied_paths(before)
        for word in step.syntax.words[1:]:
            target = _path_of(word)
            if target in copied and not _SHORT_LIVED.search(script.resolve(target)):
                what = f"this deletes {target} also if {before.name} in line {before.line} failed"
                yield Problem(step, what, f"write {before.name} ... && rm ..., or set -e at the top", (before.line,))
                break


_PROJECT = lazy_pattern(r"\.|~|\$\{?(?:SLURM_SUBMIT_DIR|HOME|OLDPWD)\}?")


def _mirrored_over_project(script: BatchScript) -> Iterator[Problem]:
    """Find `rsync --delete` of something into the folder from which the job was submitted, or into the home folder."""
    for step in script.batch_commands:
        if step.name != "rsync" or not any(re.match("--del(ete|$)", text) for text in step.texts):
            continue
        target = _path_of(step.syntax.words[-1]).rstrip("/")
        is_copy_of_it = any(target in _copied_paths(each) for each in script.batch_commands if each is not step)
        if _PROJECT.fullmatch(target) and not is_copy_of_it:
            what = f"this deletes everything in {target} that is not in the source: the program, too"
            yield Problem(step, what, "write rsync without --delete, or into a folder of its own", certain=True)


def _copied_paths(step: TracedCommand) -> set[str]:
    """Return the sources of a copy as they are written; members of an archive also behind the folder of `tar -C`."""
    if step.name not in COPIES:
        return set()
    words = [_path_of(word) for word in step.syntax.words[1:]]
    paths = [word for word in words if not word.startswith("-")]
    if step.name != "tar":
        return set(paths[:-1])
    folders = [after for before, after in pairwise(words) if before in {"-C", "--directory"}]
    return {*paths, *(f"{folder}/{path}" for folder in folders for path in paths if path != folder)}


def _path_of(word: Word) -> str:
    """Return a path in one way of writing it: `"${DATA:?}/raw/"` is `$DATA/raw`."""
    plain = re.sub(r"\$\{(\w+)(:?\?[^}]*)?\}", r"$\1", re.sub("[\"']", "", word.raw))
    return plain.rstrip("/*")


@rule("KIT404", "warning")
def swallowed_status(script: BatchScript) -> Iterator[Problem]:
    """An `if` or a trap replaces the exit status of the training.

    `if ! srun ...; then echo failed; fi` returns the status of the echo, and an EXIT trap with `exit 0` ends every job
    with 0: a failed training is a COMPLETED job.

    Fix: `exit 1` in the branch of the failure; `status=$?` as the first command of the trap, `exit "$status"` as the
    last.
    Documented: bash(1), if and trap; slurm.schedmd.com/job_exit_code.html.
    """
    if script.unread_part or not script.training:
        return
    for step in script.batch_commands:
        if not step.trap_code:
            continue
        handler = script.functions.get(step.trap_code, [])
        zero = bool(handler) and handler[-1].texts == ["exit", "0"]
        ends = zero or re.search(r"(^|[;&\s])exit\s+0\s*;?\s*$", step.trap_code)
        if ends and step.trap_signals & {"EXIT", "0"}:
            yield Problem(step, "the trap ends every job with 0", 'write status=$? first, and exit "$status"')
    launch = script.training[-1]
    conditions = [place for place in launch.command.position.outward() if place.role == "condition"]
    # `while ! srun ...` tries again: it handles the failure.
    if launch.command.in_task or {place.kind for place in conditions} != {"if"}:
        return
    # With an `else`, the script handles the failure. In a loop, one run of several may fail. After other work, the
    # program may be an optional last step.
    bodies = [body for place in conditions if place.compound is not None for body in place.compound.bodies]
    otherwise = [each for role, block in bodies if role == "else" for each in simple_commands(block)]
    handled = launch.in_loop or any(program_of(each) not in {"echo", "printf"} for each in otherwise)
    if handled or not all(each.command.in_condition() for each in script.training[:-1]):
        return
    rest = [each for each in script.commands_after(launch.command) if each.texts not in (["exit"], ["exit", "0"])]
    if all(map(_is_short, rest)):
        what = "the if uses the exit status: a failed training is COMPLETED"
        yield Problem(launch.stages[0], what, "write exit 1 in the branch of the failure", (launch.line,))


@rule("KIT405", needs=("$?", "${?", "pipestatus"))
def late_status(script: BatchScript) -> Iterator[Problem]:
    """`$?` is read after another command.

    `$?` is the status of the command just before it. After an `echo` or a `date`, it is theirs, which is 0: a failed
    training is a COMPLETED job. `local` and `export` have a status of their own, too: after `local out=$(convert)`, a
    test of `$?` never sees a failure of `convert`. PIPESTATUS is replaced by the next command. After `set -e`, a
    failure ends the script before the line that reads `$?`: a requeue that depends on the status never happens. In
    `if ! srun ...; then status=$?`, the status is that of the `!`, which is 0 there.

    Fix: `status=$?` in the line after the launch line; after set -e, `status=0; srun ... || status=$?`; `if srun ...;
    then :; else status=$?`; `local out; out=$(convert)` in two commands.
    Documented: bash(1), Special Parameters, PIPESTATUS and set -e.
    """
    flow = trace_exit_status(script)
    if flow is not None and flow.errexit and flow.shielded_at is None and not flow.background:
        yield from _status_after_errexit(flow)
    yield from _status_of_negation(script)
    for step in script.commands if re.search(r"\$\{?(\?|PIPESTATUS)", script.code) else ():
        before, reader = _neighbours(step.position)
        if reader is None:
            continue
        piped = bool(before) and len(before[-1].chain.pipelines[-1].commands) > 1 > step.position.pipeline_index
        between = f"'{step.name}'" if step.words else "the assignment"
        if piped and _reads(reader, "PIPESTATUS"):
            what = f"PIPESTATUS is that of {between} in line {step.line}, not of the pipe"
            remedy = "write status=${PIPESTATUS[0]} in the line after the pipe"
            yield Problem(Origin(reader.line), what, remedy, (before[-1].line, step.line))
        if not _reads(reader, "?"):
            continue
        what = f"$? is the status of {between} in line {step.line}"
        if step.name in DECLARING and step.substitutions:
            what = f"{what}, and not of the command in $(...)"
            remedy = f"write {step.name} NAME, and NAME=$(...) in a line of its own"
            yield Problem(Origin(reader.line), what, remedy, (step.line,))
        # After set -e, a status other than 0 has ended the script before the message.
        elif _is_message(step.syntax) and not step.errexit:
            earlier = (each for each in map(_plain_command, reversed(before)) if not each or not _is_message(each))
            if (meant := next(earlier, None)) is not None:
                what = f"{what}, not of the command in line {meant.line}"
                remedy = f"write status=$? in the line after line {meant.line}"
                yield Problem(Origin(reader.line), what, remedy, (meant.line, step.line))


def _is_message(command: SimpleCommand) -> bool:
    """Tell whether a command prints into the log, or succeeds in any case. `echo ... > FILE` may fail."""
    if command.assignments and not command.words:
        return not any(part.kind == "command" and not re.match(r"\s*date\b", part.text) for part in command.parts)
    return program_of(command) in _PRINTS | {"date", "sleep"} and not (command.output or command.appended)


def _plain_command(statement: Statement) -> SimpleCommand | None:
    """Return the command that gives a statement its status; None if it depends on `&&`, `||` or a block."""
    command = statement.chain.pipelines[0].commands[-1]
    plain = len(statement.chain.pipelines) == 1 and not statement.background
    return command if plain and isinstance(command, SimpleCommand) else None


def _neighbours(place: BlockPosition) -> tuple[Block, Command | None]:
    """Return the statements before a plain command, and the command right after it, also the condition of an `if`."""
    number = next(number for number, each in enumerate(place.block) if each is place.statement)
    following = place.block[number + 1 : number + 2] if _plain_command(place.statement) and not place.piped_to else ()
    command = following[0].chain.pipelines[0].commands[0] if following else None
    while isinstance(command, CompoundCommand) and command.kind == "if":
        command = command.bodies[0][1][0].chain.pipelines[0].commands[0]
    return place.block[:number], command


def _reads(command: Command, name: str) -> bool:
    """Tell whether a command, a `case` or a test uses a variable such as `$?` for more than a message."""
    if isinstance(command, CompoundCommand):
        used = [command.expression, *(command.texts[:1] if command.kind == "case" else ())]
        return any(re.search(rf"\$\{{?{re.escape(name)}", text) for text in used)
    return program_of(command) not in _PRINTS and any(part.text == name for part in command.parts)


def _status_of_negation(script: BatchScript) -> Iterator[Problem]:
    """Find `if ! COMMAND; then status=$?`, and the same with `while`."""
    for compound in (each for kind in ("if", "while") for each in script.compounds(kind)):
        for (role, condition), (_, branch) in pairwise(compound.bodies):
            if role != "condition" or not condition or not branch or not condition[-1].chain.pipelines[-1].negated:
                continue
            reader, line = branch[0].chain.pipelines[0].commands[0], condition[-1].line
            if _reads(reader, "?"):
                what = f"$? is the status of the ! in line {line}, which is 0 here, not of the command behind the !"
                yield Problem(Origin(reader.line), what, "write COMMAND || status=$?, and test the status", (line,))


def _status_after_errexit(flow: ExitStatusFlow) -> Iterator[Problem]:
    """Find `status=$?` after a training that `set -e` watches, where a later command waits for a failure."""
    first, *later = flow.followers or (None,)
    reads = first is not None and not first.words and any(each.value.raw == "$?" for each in first.syntax.assignments)
    acts = [step for step in later if step.name in {"sbatch", "scontrol", "touch"} and step.is_conditional]
    if first is not None and reads and acts:
        what = f"set -e ends the script if the training fails: line {acts[0].line} never sees another status than 0"
        yield Problem(first, what, "write status=0; COMMAND || status=$?", (flow.launch.line, acts[0].line))


@rule("KIT403", needs=("|",))
def lost_in_pipe(script: BatchScript) -> Iterator[Problem]:
    """A pipe loses the exit status of the training.

    A pipeline returns the status of its last command: `srun ... | tee log` returns 0 even if srun failed, and the job
    is COMPLETED. It is an error if the script reads that status, as in `rc=$?`, or relies on the training. `set -e`
    does not end the script either, and the next program starts without the result.

    Fix: `set -eo pipefail` at the top; or `exit "${PIPESTATUS[0]}"`; or let srun write the file, with --output.
    Documented: bash(1), Pipelines.
    """
    yield from _goes_on_after_pipe(script)
    yield from _status_of_pipe(script)
    flow = trace_exit_status(script)
    waits = any(step.name == "wait" and len(step.words) > 1 for step in flow.followers) if flow is not None else False
    if flow is None or flow.piped_at is None or (flow.background and not waits):
        return
    behind = flow.piped_at.pipeline.commands[-1]
    if any("PIPESTATUS" in line for line in script.lines[behind.line - 1 :]):
        return
    name = behind.words[0].raw if isinstance(behind, SimpleCommand) and behind.words else "its last command"
    what = f"the pipe returns the status of {name}: a failed training is COMPLETED"
    remedy = "write set -eo pipefail at the top; or use srun --output=FILE instead of the pipe"
    # Without such a reader, the only effect is the state that Slurm records.
    certain = flow.is_certain and (flow.is_relied_on or flow.is_read)
    yield flow.finding(what, remedy, behind.line, certain=certain)


def _status_of_pipe(script: BatchScript) -> Iterator[Problem]:
    """Find a training before the last one whose `$?` is the status of a pipe."""
    for launch in script.training[:-1]:
        step, place = launch.command, launch.command.position
        behind = place.piped_to
        if not behind or step.pipefail or step.in_task or len(place.chain.pipelines) > 1:
            continue
        after = script.commands_after(step)
        later = next((each for each in after if each.position.pipeline is not place.pipeline), None)
        if later is not None and later.reads("?"):
            name = program_of(behind[-1]) or "its last command"
            what = f"$? in line {later.line} is the status of {name}, and not of the training before the pipe"
            remedy = 'write set -o pipefail at the top, or read "${PIPESTATUS[0]}"'
            yield Problem(launch.stages[0], what, remedy, (step.line, behind[-1].line, later.line))


def _goes_on_after_pipe(script: BatchScript) -> Iterator[Problem]:
    """Find an earlier training whose failure `set -e` does not see, so that the next program runs anyway."""
    if "PIPESTATUS" in script.code:
        return
    for launch, later in pairwise(script.training):
        step, place = launch.command, launch.command.position
        behind = place.piped_to
        starts = launch.agent or (launch.multiplier and launch.file)
        loose = step.in_task or step.in_background or step.is_conditional or step.pipefail or not step.errexit
        if loose or not behind or not (starts or launch.is_named_training) or len(place.chain.pipelines) > 1:
            continue
        # In a loop, or after a jump back, the next training need not depend on this one.
        if launch.in_loop or later.line <= launch.line:
            continue
        what = f"set -e does not see a failure before the pipe: line {later.line} runs after a failed training"
        remedy = "write set -eo pipefail at the top"
        yield Problem(launch.stages[0], what, remedy, (step.line, later.line), certain=False)
