"""Rules for commands that do not belong into a batch job, or that keep the training from running."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from hpc_kit.check.bash_syntax import (
    CompoundCommand,
    Origin,
    SimpleCommand,
    Word,
    parse,
    program_of,
    simple_commands,
    with_nested_parts,
)
from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.command_trace import DECLARING, BlockPosition, TracedCommand
from hpc_kit.check.expansion import ExpandedText
from hpc_kit.check.launch_lines import LOOPS, LaunchLine, is_known_program
from hpc_kit.check.programs import COPIES, HELPER_PROGRAMS, MAY_RUN_FOREVER
from hpc_kit.check.rules.finding import Place, Problem, rule
from hpc_kit.check.rules.rendezvous import is_for_one_rank
from hpc_kit.check.rules.steps import never_ends
from hpc_kit.check.rules.variables import sets
from hpc_kit.check.text_edits import Edit
from hpc_kit.errors import DirectiveError
from hpc_kit.lazy_pattern import lazy_pattern
from hpc_kit.slurm.getopt import parse_options
from hpc_kit.slurm.option_values import parse_dependency


@rule("KIT421", needs=("while", "until", "((", "http.server", "sglang", *MAY_RUN_FOREVER))
def endless_command(script: BatchScript) -> Iterator[Problem]:
    """A command that never ends keeps the job from going on.

    A monitor (`nvidia-smi -l 5`), a server (`tensorboard`, `ray start --block`), `tail -f` or a `while true` loop that
    nothing leaves, in the foreground, runs until the time limit of the job. The lines below it never run. In the
    background, it keeps a `wait` without a process id from returning.

    Fix: end the line in `&`, and name the training in `wait "$pid"`, or end the monitor before the `wait`. Under srun,
    add `--overlap`, so that the training gets its resources.
    Documented: bash(1), Lists; bash(1), wait.
    """
    yield from _wait_for_endless(script)
    if not script.training:
        return
    last = script.training[-1]
    for step in _endless_loops(script):
        loop = step.around(*LOOPS)
        before = script.is_before(step, last.command) and _is_on_the_way(step, last, loop=loop)
        # The training of `while true; do python train.py; done` is in the loop itself.
        if before and loop is not None and not last.command.is_inside(loop) and not step.in_background:
            what = f"the loop runs until the job ends: line {last.line} never starts"
            yield Problem(step, what, "end the loop in &, as in `done &`", (last.line,))
    for launch in script.launch_lines:
        step = launch.command
        if launch is last or step.in_background or launch.inner_command is not step:
            continue
        before = script.is_before(step, last.command) and _is_on_the_way(step, last)
        if not before or not never_ends(launch):
            continue
        what = f"{launch.program.name} runs until the job ends: line {last.line} never starts"
        remedy = "end the line in &" + (", and write srun --overlap" if launch.multiplier else "")
        # In a function, the reader also needs the lines that call it.
        function = step.around("function")
        calls = [each.line for each in script.batch_commands if function is not None and each.name == function.name]
        yield Problem(launch.stages[0], what, remedy, (last.line, *calls))


_ENDING = frozenset({"disown", "kill", "killall", "pkill", "scancel"})


def _wait_for_endless(script: BatchScript) -> Iterator[Problem]:
    """Find the first `wait` for a process in the background that never ends."""
    if not script.training:
        return  # a job that is only a server waits for it
    for step, name in _endless_in_background(script):
        wait = _first_wait(script, step)
        if wait is None:
            continue
        trained = [each.command for each in script.training if _is_own_background(each.command)]
        if len(wait.words) == 2:
            what = f"this waits for {name} in line {step.line}, which never ends"
            remedy = 'write kill "$pid" instead'
            saved = next((each for each in script.written_assignments if wait.reads(each.name)), None)
            if saved is not None and any(script.is_before(each, step) for each in trained):
                what = f"$! is the process of {name} in line {step.line}, not of the training: the wait never returns"
                lines = (step.line, trained[0].line, wait.line)
                yield Problem(saved.value, what, f"write {saved.name}=$! right behind the training", lines)
                return
        else:
            what = f"this also waits for {name} in line {step.line}, which never ends"
            remedy = 'write pid=$! after the training, and wait "$pid"; or kill the monitor before'
        yield Problem(wait, what, remedy, (step.line,))
        return


def _endless_in_background(script: BatchScript) -> Iterator[tuple[TracedCommand, str]]:
    """Yield the commands that the batch shell starts in the background and that never end, with their names."""
    for launch in script.launch_lines:
        if never_ends(launch) and _is_own_background(launch.command):
            yield launch.command, launch.program.name
    for step in _endless_loops(script):
        if _is_own_background(step):
            yield step, "the loop"


def _is_own_background(step: TracedCommand) -> bool:
    """Tell whether a command runs in the background of the batch shell itself, for which its `wait` waits."""
    behind = next((place for place in step.position.outward() if place.statement.background), None)
    if step.in_task or behind is None:
        return False
    # What a subshell starts in its own background is no process of this shell.
    return all(place.kind not in {"function", "subshell"} for place in behind.outward())


def _first_wait(script: BatchScript, step: TracedCommand) -> TracedCommand | None:
    """Return the first `wait` for all processes, or for this one, unless a command before it may end the process."""
    ids = _ids_of(script, step)
    for each in script.commands_after(step):
        # `kill -0` only asks whether the process lives.
        if each.name.rpartition("/")[2] in _ENDING and each.texts[1:2] != ["-0"]:
            return None
        if each.name != "wait" or each.is_conditional:
            continue
        is_for_all = len(each.words) == 1 and not each.in_background
        is_by_id = len(each.words) == 2 and each.syntax.words[1].raw.strip('"') in ids
        # If the last training itself is in the background, its `wait` is wanted.
        if is_for_all or (is_by_id and script.training[-1].line != step.line):
            return each
    return None


def _ids_of(script: BatchScript, step: TracedCommand) -> set[str]:
    """Return the words that stand for the process id of a command in the background: `$pid` after `pid=$!`."""
    own = next(place.statement for place in step.position.outward() if place.statement.background)
    after = script.commands_after(step)
    # The rest of a loop or of a function in the background stands before it.
    rest = itertools.dropwhile(lambda each: any(place.statement is own for place in each.position.outward()), after)
    names: list[str] = []
    for each in itertools.takewhile(lambda each: not each.in_background, rest):
        given = (given.name for given in each.written_assignments if _OWN_ID.fullmatch(given.value.raw))
        names += [name for name in given if len(script.assignments_of(name)) == 1]
        if each.name == "wait" and each.written in {"wait $!", 'wait "$!"', "wait ${!}"}:
            return {"$!", "${!}"}
    return {text for name in names for text in (f"${name}", f"${{{name}}}")}


_OWN_ID = lazy_pattern(r"\"?\$(!|\{!\})\"?")


_ALWAYS_TRUE = lazy_pattern(r"\[\[?\s+(?:1|true|\"?true\"?\s*==?\s*\"?true\"?)\s+\]?\]|\(\(\s*[1-9]\d*\s*\)\)|test 1")
_FOR_EVER = lazy_pattern(r"\bfor\s*\(\([^;()]*;\s*;[^;()]*\)\)")


def _endless_loops(script: BatchScript) -> list[TracedCommand]:
    """Return a command of each loop such as `while true` that nothing leaves: its condition, or its first command."""
    left = {id(loop) for step in script.batch_commands for loop in _left_loops(script, step)}
    found: dict[int, TracedCommand] = {}
    for step in script.batch_commands:
        place, loop = step.position, step.around(*LOOPS)
        if loop is None or id(loop) in left or id(loop) in found or place.compound is not loop:
            continue
        if _goes_on(script, loop):
            found[id(loop)] = step
    return list(found.values())


def _goes_on(script: BatchScript, loop: CompoundCommand) -> bool:
    """Tell whether the condition of a loop is always true."""
    if loop.kind == "for":
        return not loop.name and _FOR_EVER.search(script.lines[loop.line - 1]) is not None
    condition = next((block for role, block in loop.bodies if role == "condition"), ())
    chain = condition[-1].chain if condition else None
    if chain is None or len(chain.pipelines) != 1 or chain.pipelines[0].negated:
        return False
    command = chain.pipelines[0].commands[-1]
    if isinstance(command, CompoundCommand):
        return loop.kind == "while" and _ALWAYS_TRUE.fullmatch(command.expression) is not None
    if loop.kind == "until":
        return program_of(command) == "false"
    # `while sleep 30; do ...` pauses before each round.
    text = " ".join(word.raw for word in command.words)
    always = program_of(command) in {"true", ":", "sleep"} or _ALWAYS_TRUE.fullmatch(text) is not None
    return loop.kind == "while" and always


def _left_loops(script: BatchScript, step: TracedCommand) -> list[CompoundCommand]:
    """Return the loops around a command that the command may leave."""
    # `|| (echo failed; exit 1)` ends the subshell alone, unless set -e ends the shell then.
    inside = itertools.takewhile(lambda compound: compound.kind != "subshell" or step.errexit, step.compounds)
    loops = [compound for compound in inside if compound.kind in LOOPS]
    if step.name == "break":
        return loops if len(step.words) > 1 else loops[:1]
    ends = step.name in {"exit", "return"} or (step.name == "exec" and len(step.words) > 1)
    # `kill -0 "$pid"` fails when the process has ended, and a program may signal the script itself.
    ends = ends or (step.name == "kill" and (step.errexit or "$$" in step.written))
    ends = ends or any(each.name == "exit" for each in script.functions.get(step.name, ()))
    return loops if ends else []


_READS_ON = frozenset({"awk", "cat", "grep", "sed", "tee", "ts"})


def _is_on_the_way(step: TracedCommand, last: LaunchLine, *, loop: CompoundCommand | None = None) -> bool:
    """Tell whether the shell runs the command, or the loop around it, before the training, whatever happens."""
    around = {id(compound) for compound in last.command.compounds}
    places = list(step.position.outward())
    if loop is not None:
        places = places[next(number for number, place in enumerate(places, 1) if place.compound is loop) :]
    # A reader that ends, ends a loop in front of its pipe, too.
    if not all(program_of(each) in _READS_ON for place in places for each in place.piped_to):
        return False
    # `timeout 60 bash -c '...'` ends the loop in the code.
    starts = [
        place.parent.pipeline.commands[place.parent.pipeline_index]
        for place in places
        if place.role == "code" and place.parent
    ]
    if any(word.plain == "timeout" for each in starts for word in each.words):
        return False
    # The shell waits for a subshell in the foreground, too.
    kinds = {"", "function", "group", "subshell"}
    inside = all(place.kind in kinds or id(place.compound) in around for place in places)
    # A function that nothing calls may be for another script, which starts it in the background.
    return inside and _is_called(step) and all(place.chain_index == 0 for place in places)


@rule("KIT422", "warning")
def interactive_command(script: BatchScript) -> Iterator[Problem]:
    """A command for a terminal, in a batch job.

    salloc asks for a second allocation and waits in the queue, while this job holds its nodes (an error). `srun --pty`
    needs a terminal, which a batch job does not have: its shell reads an empty input and ends. `read -p` gets no
    answer. `docker run -it` ends with "the input device is not a TTY" (an error).

    Fix: srun without salloc, in the job itself; for a shell on the node, `srun --pty bash` or `salloc` on the login
    node.
    Documented: salloc(1); srun(1), --pty.
    """
    if not script.directives.lines:
        return
    for step in script.batch_commands:
        asks = step.name == "read" and re.search(r" -\w*p\b", step.text) is not None
        given = step.position.pipeline_index or step.stdin is not None or step.syntax.input is not None
        if asks and not given and not step.is_conditional:
            yield Problem(step, "nobody answers in a batch job: the variable stays empty", "read it from an option")
    for launch in script.launch_lines:
        srun, first = launch.stage("srun"), launch.stages[0]
        if first.name == "salloc":
            what = "salloc waits for another allocation, while this job holds its nodes"
            yield Problem(first, what, "write srun alone, and request the nodes for this job", certain=True)
        elif (word := _terminal_of_docker(launch)) is not None:
            what = f"docker run {word.text} needs a terminal, which a batch job does not have"
            yield Problem(word, what, "remove -t and -i", (launch.line,), certain=True)
        elif srun is not None and "pty" in srun.options and not launch.command.in_task:
            yield Problem(srun, "a batch job has no terminal for --pty", "remove --pty, or run it on the login node")


def _terminal_of_docker(launch: LaunchLine) -> ExpandedText | None:
    """Return the option of docker that asks for a terminal and an input; podman goes on without."""
    for stage in launch.stages:
        if stage.name == "docker" and {"run", "exec"} & set(stage.texts[1:3]):
            words = itertools.takewhile(
                lambda word: word.text.startswith("-") or word.text in {"run", "exec"}, stage.words[1:]
            )
            flags = [word for word in words if re.match(r"-[it]+\Z|--(tty|interactive)\Z", word.text)]
            text = "".join(word.text for word in flags)
            if "i" in text.replace("tty", "t") and "t" in text.replace("interactive", "i"):
                return flags[-1]
    return None


@rule("KIT430", needs=("getopts",))
def flag_with_value(script: BatchScript) -> Iterator[Problem]:
    """An option of `getopts` without a colon, whose value is read.

    In `getopts "m:bs:"`, the colon behind a letter says that the option has a value. Without it, OPTARG is empty, and
    `-b 64` ends the options at 64: all further ones are ignored.

    Fix: `getopts "m:b:s:"`.
    Documented: bash(1), getopts.
    """
    for step in script.batch_commands:
        loop = step.around("while", "until")
        if step.name != "getopts" or len(step.words) < 3 or not step.words[1].is_known or loop is None:
            continue
        letters, option = step.texts[1:3]
        for other in script.commands_after(step):
            before = script.lines[other.line - 1][: other.column - 1] if other.reads("OPTARG") else ""
            branch = re.search(r"(?:\A|;;|\bin)\s*\(?([A-Za-z])\)[^;]*\Z", before)
            choice = other.around("case")
            # The branches of another `case` are no options.
            is_option = choice is not None and option in choice.texts[0] and loop in other.compounds
            if branch and is_option and re.search(rf"{branch[1]}(?!:)", letters):
                what = f"getopts {letters!r} gives -{branch[1]} no value: OPTARG is empty here"
                remedy = f"write {letters.replace(branch[1], f'{branch[1]}:')!r}"
                yield Problem(step.words[1], what, remedy, (other.line,))


_WAITS_FOR_SERVER = lazy_pattern(r"\b(sleep|curl|wget|wait\w*|nc|until|while|timeout|health|ready|tail)\b")
_LOCAL_SERVER = lazy_pattern(r"localhost|127\.0\.0\.1|\[::1\]|base[-_]url|--(port|endpoint|server|host)\b")
_LOADS_MODEL = lazy_pattern(
    r"(.*/)?vllm(\.entrypoints\S*)?\Z|sglang(\.launch_server)?\Z|text-generation-launcher|ollama\Z"
)


@rule("KIT433", "warning", needs=("vllm", "sglang", "text-generation-launcher", "ollama"))
def impatient_client(script: BatchScript) -> Iterator[Problem]:
    """A client starts immediately after its server, or asks another port.

    A server for a language model loads the model for minutes before it accepts connections. A client that starts in the
    next line ends with "Connection refused". So does each request to another port than that of the server: a loop that
    waits for the server then never ends (an error).

    Fix: `until curl -sf localhost:$PORT/health; do sleep 5; done` before the client.
    Documented: docs.vllm.ai, "OpenAI-Compatible Server".
    """
    for step in script.batch_commands:
        if not step.in_background or not any(map(_LOADS_MODEL.match, step.texts[:4])):
            continue
        later = script.commands_after(step)
        yield from _other_port(script, step, later)
        after = [each for each in later if each.words and each.name not in {"trap", "echo", "export"}]
        if not after or after[0].in_background:
            continue
        between, client = "\n".join(script.lines[step.line : after[0].line - 1]), after[0].text
        if _LOCAL_SERVER.search(client) and not _WAITS_FOR_SERVER.search(f"{between}\n{client}"):
            what = f"the server of line {step.line} still loads its model when this starts: connection refused"
            remedy = "wait until the server answers: until curl -sf ...; do sleep 5; done"
            yield Problem(after[0], what, remedy, (step.line,))


_LOCAL_PORT = lazy_pattern(
    r"(?:\blocalhost|\b127\.0\.0\.1|\b0\.0\.0\.0|\[::1\]|\$\(hostname[^)]*\)|\$\{?(?:HOSTNAME|SLURMD_NODENAME)\}?|FIRST-NODE)"
    r"[:\s](\d{2,5})\b"
)


_OF_MODEL = lazy_pattern(r"/(health|ready|v1|models|generate|completions)\b|base[-_]url")


def _other_port(script: BatchScript, server: TracedCommand, later: list[TracedCommand]) -> Iterator[Problem]:
    """Find a client that asks a port of this host on which no program of the script listens."""
    launch = script.launch_at(server)
    port = launch.argument("port") if launch is not None else None
    # A service of its own has another port.
    if any(step.in_background for step in script.batch_commands if step is not server):
        return
    # A variable from outside may be any port.
    if port is None or port.has_default or not re.fullmatch(r"\d+|\$\(\(.*\)\)", port.text):
        return
    for step in later:
        given = _LOCAL_PORT.search(step.text) if step.name not in {"echo", "printf"} else None
        # Services of the node have ports of their own.
        waits = step.in_condition("while", "until") or _OF_MODEL.search(step.text)
        if given is None or given[1] == port.text or not waits:
            continue
        # Another program of the script may listen there.
        mentions = sum(len(re.findall(rf"(?<!\d){given[1]}(?!\d)", line)) for _, line in script.command_lines)
        if mentions == sum(given[1] in map(str, _LOCAL_PORT.findall(line)) for _, line in script.command_lines):
            what = f"the server of line {server.line} listens on port {port.text}, and this asks port {given[1]}"
            yield Problem(step, what, "use one variable for both", (server.line, port.line), certain=True)
            return


_OPEN = lazy_pattern(r"--[\w.]*\.token=\Z|--auth(-none)?=(none|1)\Z")


@rule("KIT508", "warning", needs=("auth", "token"))
def open_server(script: BatchScript) -> Iterator[Problem]:
    """A server for everybody who reaches the node.

    A notebook server or an editor in the browser runs commands. Without a token or a password (`--ServerApp.token=''`,
    `--auth none`) and with an address other than localhost, every user of the cluster can run commands as you, and read
    your files.

    Fix: remove the option. Jupyter then prints a random token into the log.
    Documented: jupyter-server.readthedocs.io, "Security in the Jupyter Server"; coder.com/docs/code-server.
    """
    for launch in script.launch_lines:
        address = launch.argument("ip", "bind-addr", "host", "www-address")
        if address is None or re.match(r"localhost|127\.|::1", address.text):
            continue
        # The value of --auth may be a word of its own.
        texts = launch.program.text.replace("--auth none", "--auth=none").split(" ")
        password = launch.argument("password")
        off = next((text for text in texts if _OPEN.match(text)), None)
        if off is not None and (password is None or not password.text):
            what = f"{off.strip('=')} is empty" if off.endswith("=") else off
            what = f"{what}, and the server listens on {address.text}: everybody in the network can run commands as you"
            yield Problem(launch.program, what, "remove the option, so that the server asks for its token")


_STARTERS = lazy_pattern(r"(srun|torchrun|mpirun|mpiexec|deepspeed|accelerate|python3?)\Z")


@rule("KIT423")
def unreachable_training(script: BatchScript) -> Iterator[Problem]:
    """The job ends before its training or before its last commands, or only prints the command.

    An `exit` without a condition, or an `echo` in front of the launch line, is often left behind from a test. The job
    ends within seconds, as COMPLETED. `exec srun ...` replaces the shell: a copy of the results below it never runs.
    `scontrol requeue "$SLURM_JOB_ID"` and `scancel "$SLURM_JOB_ID"` end the job, too, and its batch script with it: a
    copy behind them has KillWait seconds (30) at most (a warning).

    Fix: remove the `exit`, the `exec` or the `echo`. Requeue as the last command.
    Documented: bash(1), exit and exec; scontrol(1), requeue; slurm.conf(5), KillWait.
    """
    yield from _after_own_end(script)
    # The trainings at the top level, and in functions that the script calls, and what belongs to the end of a job.
    calls = {None, *(step.name for step in script.commands)}
    functions = [(launch.line, launch.command.around("function")) for launch in script.training]
    reached = [line for line, function in functions if (function.name if function is not None else None) in calls]
    ends = [step for step in script.batch_commands if step.name in COPIES | {"sbatch"}]
    reached += [step.line for step in ends if not step.around("function")]
    for step in script.batch_commands:
        # `exec >FILE` and `exec {lock}>FILE` only open a file.
        if step.name not in {"exit", "exec"} or re.fullmatch(r"exec( \{\w+\})?", step.text):
            continue
        # A branch, a loop, `&&` or `||` is a condition.
        if step.compounds or step.position.is_chained:
            continue
        later = next((line for line in reached if line > step.line), None)
        if later is not None and (step.name == "exec" or step.syntax.output is None):
            what = f"the script ends here: line {later} never runs"
            yield Problem(step, what, f"remove {step.name}", (later,))
            return
    yield from _only_printed(script)


_OWN_JOB = lazy_pattern(r"\$\{?SLURM_(ARRAY_)?JOB_?ID\}?(_\$\{?SLURM_ARRAY_TASK_ID\}?)?")


def _after_own_end(script: BatchScript) -> Iterator[Problem]:
    """Find a copy or a program behind the command with which a job requeues or cancels itself."""
    for step in script.batch_commands:
        requeues = step.name == "scontrol" and step.texts[1:2] in (["requeue"], ["requeuehold"])
        cancels = step.name == "scancel" and not any(text.startswith("-") for text in step.texts[1:])
        own = len(step.words) > 1 and _OWN_JOB.fullmatch(step.words[-1].text)
        if not (requeues or cancels) or not own or step.position.chain_index or step.in_background:
            continue
        for later in script.commands_after(step):
            # Behind the `fi` of the requeue, a copy is for the other jobs.
            if not any(place.block is step.position.block for place in later.position.outward()):
                continue
            if later.name in {"exit", "return"} and later.position.block is step.position.block:
                break
            launch = script.launch_at(later)
            works = later.name in COPIES or (launch is not None and launch.is_training)
            if works and later.position.statement is not step.position.statement:
                what = f"Slurm ends the job here: '{later.name}' in line {later.line} is cut off, or never runs"
                yield Problem(step, what, f"move line {later.line} above this line", (later.line,), certain=False)
                break


def _only_printed(script: BatchScript) -> Iterator[Problem]:
    """Find the `echo` of a launch line in a script that starts nothing."""
    if script.training or not script.is_readable:
        return
    # A script that starts anything prints its command on purpose, for its log.
    if any(launch.program.name not in HELPER_PROGRAMS for launch in script.launch_lines):
        return
    for step in script.commands:
        words, behind = step.words[1:], step.position.pipeline.commands[step.position.pipeline_index + 1 :]
        if step.name != "echo" or len(words) < 2 or not _STARTERS.match(words[0].text):
            continue
        if not behind and not step.syntax.output and (is_known_program(words[1]) or words[1].text.startswith("-")):
            yield Problem(step, "echo prints the command, and the job runs nothing", "remove echo")
            return


@rule("KIT424", needs=("read",))
def swallowed_input(script: BatchScript) -> Iterator[Problem]:
    """Srun or ssh in a `while read` loop reads the input of the loop.

    Both read their standard input to the end. The next `read` finds nothing, and the loop ends after its first line.

    Fix: `ssh -n ...`, `srun --input=none ...` or `srun ... </dev/null`; or read from another descriptor: `while read -u
    3 line; do ...; done 3<FILE`.
    Documented: ssh(1), -n; srun(1), --input.
    """
    for launch in script.launch_lines:
        first, step = launch.stage("srun", "ssh", "mpirun"), launch.command
        # Behind a pipe, the input is that of the pipe.
        own = step.syntax.document is not None or step.syntax.input is not None or step.position.pipeline_index > 0
        if first is None or own or step.in_background or not any(map(_reads_lines, step.position.outward())):
            continue
        quiet = "input" in first.options
        if first.name == "ssh":
            quiet = any(re.match(r"-\w*[nf]", text) for text in first.texts[:6])
        if not quiet:
            what = f"{first.name} reads the remaining lines of the loop: it ends after the first"
            option = "-n" if first.name == "ssh" else "--input=none" if first.kind == "srun" else "</dev/null"
            edits = (Edit(first.line, first.column, first.name, f"{first.name} {option}"),) if option[0] == "-" else ()
            yield Problem(first, what, f"add {option}", edits=edits)


def _reads_lines(place: BlockPosition) -> bool:
    """Tell whether a position is in the body of a loop whose condition reads a line of the standard input."""
    if place.compound is None or place.role != "body":
        return False
    conditions = [block for role, block in place.compound.bodies if role == "condition"]
    commands = [command for block in conditions for command in simple_commands(block) if command.input is None]
    reads = [command.words for command in commands if program_of(command) == "read"]
    return any(not any(re.match(r"-\w*u", word.raw) for word in words) for words in reads)


@rule("KIT138", "warning", needs=("|",))
def lost_in_subshell(script: BatchScript) -> Iterator[Problem]:
    """A variable that a pipe sets, and that the script reads behind it.

    bash runs each part of a pipe in a shell of its own. What `seq 3 | while read i; do pids+=($!); done` collects is
    gone after the loop: `wait` waits for nothing, and the job ends immediately.

    Fix: `while read i; do ...; done < <(seq 3)`.
    Documented: bash(1), Pipelines.
    """
    if "lastpipe" in script.code:
        return
    # An assignment in front of a command is for that command alone.
    setters = [step for step in script.batch_commands if not step.words or step.name in DECLARING - {"local"}]
    for step, each in [(setter, each) for setter in setters for each in setter.written_assignments]:
        # The loop or block at the end of a pipe.
        pipe = next((place for place in step.position.outward() if place.pipeline_index > 0), None)
        # Without an earlier value, the variable is mostly for the commands of the pipe alone.
        before = any(each.name == other.name and other.line < step.line for other in script.assignments)
        if pipe is None or not before:
            continue
        later = [other for other in script.batch_commands if other.line > step.line and _reads(other, each.name)]
        parts = [{id(place.pipeline) for place in other.position.outward()} for other in later]
        reader = next(
            (other for other, around in zip(later, parts, strict=True) if id(pipe.pipeline) not in around), None
        )
        between = script.code_lines[step.line : reader.line] if reader is not None else []
        # An assignment, a loop, or a command such as `read` sets the variable again.
        if reader is not None and not any(sets(each.name).search(line) for _, line in between):
            what = f"the pipe ends the effect of {each.name}=: line {reader.line} does not see it"
            remedy = "write while ...; do ...; done < <(COMMAND), without the pipe"
            yield Problem(Origin(step.line), what, remedy, (pipe.statement.line, reader.line))
            return


def _reads(step: TracedCommand, name: str) -> bool:
    parts = with_nested_parts(step.syntax.parts)
    loops = [word for compound in step.compounds if compound.kind == "for" for word in compound.texts]
    words = any(re.search(rf"\$\{{?{name}\b", word) for word in loops)
    return words or any(part.kind == "variable" and part.text == name for part in parts)


@rule("KIT425", "warning", needs=("sbatch",))
def nested_submission(script: BatchScript) -> Iterator[Problem]:
    """Sbatch inside a job: once per task, or with the environment of this job.

    Under srun, every task submits a job of its own (an error). A job that is submitted from inside a job inherits all
    SLURM_ variables that its own options do not replace: its srun then reads the CPUs and the memory of this job, and
    fails with "SLURM_MEM_PER_CPU, SLURM_MEM_PER_GPU, and SLURM_MEM_PER_NODE are mutually exclusive" or a wrong number
    of CPUs. The rule finds jobs whose code is in `--wrap` and calls srun.

    Fix: submit from the batch script, after srun; `sbatch --export=NONE`, or `env -u SLURM_CPUS_PER_TASK -u
    SLURM_MEM_PER_NODE sbatch ...`.
    Documented: sbatch(1), --export; srun(1), INPUT ENVIRONMENT VARIABLES.
    """
    for launch in script.launch_lines:
        program = launch.program
        if program.name != "sbatch" or not script.directives.lines:
            continue
        size = script.size_of(launch)
        several = launch.multiplier is not None and size.has_several_tasks
        if several and not is_for_one_rank(script, launch.inner_command):
            what = f"each of the {size.ntasks or 'several'} tasks submits a job"
            yield Problem(program, what, "submit from the batch script, after srun", (launch.line,), certain=True)
            continue
        wrap = any(re.search(r"\bsrun\b", text) and " " in text for text in program.texts)
        clean = re.search(r"\s--export=(NONE|NIL)", program.text) or launch.stages[0].name == "env"
        if launch.multiplier is None and wrap and "--wrap" in program.text and not clean:
            what = "this srun inherits the SLURM_ variables of the present job"
            yield Problem(program, what, "write sbatch --export=NONE ..., or unset SLURM_... before", (launch.line,))


_DEPENDENCY = lazy_pattern(r"(?:\s-d[\s=]*|\s--dependency[\s=]+)(\S+)")
_PARSED = lazy_pattern(r"(\$\(|`)sbatch\b[^)`]*(--parsable|\|)")


@rule("KIT429", needs=("sbatch",))
def unparsed_job_id(script: BatchScript) -> Iterator[Problem]:
    """A dependency on the message of sbatch instead of a job id, or one that does not order the jobs.

    sbatch prints `Submitted batch job 123`. With that text in --dependency, sbatch refuses the next job ("Job
    dependency problem"). It also refuses an id that is none, such as `afterok:$id[7]` for an element of an array.
    `singleton` waits for jobs of the same name and user: jobs with a name of their own run side by side (a warning).

    Fix: `id=$(sbatch --parsable FILE)`; `afterok:${id}_7` for an element;
    `afterok:$a:$b` for two jobs; one name for all jobs of a chain.
    Documented: sbatch(1), --parsable and --dependency.
    """
    yield from _malformed_dependency(script)
    yield from _unordered_jobs(script)
    # A variable may hold the option: `OPTIONS="--parsable -A project"`.
    if "sbatch" in script.functions or re.search(r"=\(?\s*[\"']?[^$\"'\n]*--parsable", script.code):
        return
    messages: dict[str, int] = {}
    for step in script.commands:
        codes = [step.written, *(part.text for part in step.substitutions)]
        for code in [text for text in codes if _submits(script, text)]:
            for dependency in _DEPENDENCY.findall(code):
                names = [first or second for first, second in re.findall(r"\$(?:(\w+)|\{(\w+)\})", dependency)]
                line = next((messages[name] for name in names if name in messages), None)
                if line is not None or (dependency.endswith(("$(sbatch", "`sbatch")) and not _PARSED.search(code)):
                    what = "the dependency is text of the message 'Submitted batch job ...', not a job id"
                    yield Problem(step, what, "write sbatch --parsable", (line,))
                    return
        for each in step.written_assignments:
            # A later assignment may take the number out of the message: `id=${message##* }`.
            messages.pop(each.name, None)
            value = each.value.parts[0] if len(each.value.parts) == 1 and each.value.elements is None else None
            if value is not None and value.kind == "command" and _is_message(script, value.text):
                messages[each.name] = value.origin.line


def _malformed_dependency(script: BatchScript) -> Iterator[Problem]:
    """Find a --dependency that sbatch refuses, whatever the job ids in its variables are."""
    for step in script.commands:
        codes: list[tuple[str, Place]] = [(step.written, step)]
        codes += [(part.text, part.origin) for part in step.substitutions]
        for code, place in codes:
            given = _DEPENDENCY.search(code) if re.match(r"\s*sbatch\s", code) else None
            text = re.sub(r"[\"']", "", given[1]) if given is not None else ""
            value = re.sub(r"(?<=[:_])\$(\w+|\{\w+\})", "1", text)
            # A variable in another place may contain anything.
            if not value.startswith("after") or "$" in value or "`" in value:
                continue
            try:
                parse_dependency(value)
            except DirectiveError:
                what = f"sbatch refuses this dependency: {text}"
                yield Problem(place, what, "write afterok:ID, afterok:ID_INDEX or afterok:ID:ID", (step.line,))


_OF_SLURM_ALONE = lazy_pattern(
    r"--(kill-on-invalid-dep|parsable|ntasks-per-node|cpus-per-task|gpus-per-(node|task)|gres|mail-(type|user)|mem-per-\w+"
    r"|nodelist|qos|cpu-bind|gpu-bind|kill-on-bad-exit)(=|\Z)|--(partition|job-name|account|reservation|constraint)="
    r"|--array=[\"']?\d|--export=(ALL|NONE)\b|--time=[\"']?[\d:-]+:\d\d|--mem=[\"']?\d+[GMT]"
)
"""Options that hardly any program has under the same name."""


@rule("KIT434", "warning", needs=("sbatch",))
def options_behind_script(script: BatchScript) -> Iterator[Problem]:
    """An option of sbatch behind the name of the script is an argument of the script.

    sbatch reads its options up to the first other word, which is the script. In `sbatch train.sh
    --dependency=afterok:$id`, the job starts immediately, and the script gets the option as `$1`. A dependency is an
    error. The rule ignores scripts that get a whole command, such as `sbatch run.sh srun --gres=gpu:1 a.out`.

    Fix: move the option in front of the name of the script.
    Documented: sbatch(1), SYNOPSIS.
    """
    for use in script.pipelines:
        for command in use.pipeline.commands:
            if not isinstance(command, SimpleCommand) or program_of(command) != "sbatch":
                continue
            late = _late_option(script, command.words[1:])
            if late is not None:
                word, file = late
                waits = word.raw.startswith(("-d", "--dep"))
                option = re.split("[= ]", word.unquoted)[0]
                what = f"{option} is an argument of {file.unquoted}, not an option of sbatch"
                remedy = f"move it in front of {file.unquoted}"
                yield Problem(word, what, remedy, (command.line,), certain=waits)


def _is_script_of_loop(script: BatchScript, file: Word) -> bool:
    """Tell whether a word is the variable of a loop over scripts: `for f in jobs/*.sbatch`."""
    loops = [loop for loop in script.compounds("for") if loop.name == file.unquoted.strip("${}")]
    return bool(loops) and all(
        re.search(r"\.(sbatch|slurm|sh|job)[\"']?\Z", text) for each in loops for text in each.texts
    )


def _late_option(script: BatchScript, words: tuple[Word, ...]) -> tuple[Word, Word] | None:
    """Return the first option of sbatch behind the script of its command line, and the script."""
    try:
        given, rest = parse_options([word.unquoted for word in words], "sbatch")
    except DirectiveError:
        return None
    index = len(words) - len(rest)
    file = words[index] if rest and not given.has("wrap") and words[index - 1].raw != "--" else None
    # A variable may contain options, or nothing.
    if file is None or file.raw.startswith(("$(", "`", "<(")):
        return None
    name = script.resolve(file.unquoted)
    plain = not name.startswith("-") and re.search(r"\w", re.sub(r"\$\{[^}]*\}|\$\w+", "", name))
    if not plain and not _is_script_of_loop(script, file):
        return None
    for number, word in enumerate(words[index + 1 :], index + 1):
        text = word.literal or ""
        if text == "--" or re.fullmatch(
            r"(\S*/)?(srun|salloc|sbatch|mpi\w+|torchrun|python\S*|bash|sh|\S+\.(py|sh))", text
        ):
            return None
        value = words[number + 1].raw if number + 1 < len(words) else ""
        depends = re.match(r"(-d|--dependency)[= ][\"']?(after|singleton|\$)", f"{word.raw} {value}")
        if depends or _OF_SLURM_ALONE.match(word.raw):
            return word, file
    return None


_NAME_OF_JOB = lazy_pattern(r"\s(?:-J\s*|--job-name[= ])(\S+)")


def _unordered_jobs(script: BatchScript) -> Iterator[Problem]:
    """Find `singleton` for the jobs of a chain that each have a name of their own."""
    for step in script.batch_commands if "singleton" in script.code else ():
        codes = [step.written, *(part.text.strip() for part in step.substitutions)]
        code = next((code for code in codes if re.match(r"sbatch\s.*\bsingleton\b", code)), "")
        name, loop = _NAME_OF_JOB.search(code), step.around(*LOOPS)
        if name is None or loop is None:
            continue
        # Jobs that differ in more than a number are no chain: another argument, variable or folder each.
        rest = _NAME_OF_JOB.sub(" ", re.sub(r"\s(?:-[oe]\s*|--(?:output|error)[= ])\S+", " ", code))
        named, changed = set(re.findall(r"\$\{?(\w+)", name[1])), script.changed_in(loop)
        parts = [part for each in step.syntax.assignments for part in each.value.parts]
        for other in script.commands_in(loop):
            is_name = other is step or named & {each.name for each in other.syntax.assignments}
            parts += () if is_name or other.name in {"echo", "printf"} or other.in_condition() else other.syntax.parts
        used = {*re.findall(r"\w+", rest), *(part.text for part in (*parts, *(step.syntax.document or ())))}
        counts = all(re.fullmatch(r"\d+|\{\d+\.\.\d+\}|\"?\$\(\s*seq\b.*", word) for word in loop.texts)
        if counts and named & changed and not used & changed:
            what = f"singleton waits for jobs of the same name, but each has its own, {name[1]}: all run side by side"
            yield Problem(step, what, "give all jobs of the chain one name", (step.line,), certain=False)


def _submits(script: BatchScript, code: str) -> bool:
    """Tell whether code is a call of sbatch, or of a function that ends in one."""
    name = code.split(None, 1)[0] if code.strip() else ""
    return name == "sbatch" or (name in script.functions and script.functions[name][-1].name == "sbatch")


def _is_message(script: BatchScript, code: str) -> bool:
    """Tell whether a `$(...)` is the message of sbatch, rather than a job id or the output of a pipe."""
    body = script.functions.get(code.split(None, 1)[0], []) if "|" not in code and code.strip() else []
    if body and body[-1].name == "sbatch" and len(body[-1].position.pipeline.commands) == 1:
        return all("--parsable" not in each.texts for each in body) and "--parsable" not in code
    # The id is the fourth word.
    other_word = r"\|\s*(cut\s.*-f\s*(?!4\b)\d+|awk\s+[\"']\{\s*print \$(?!4\b)\d+\s*\}[\"'])\s*"
    return re.match(rf"\s*sbatch\s[^|]*({other_word})?\Z", code) is not None and "--parsable" not in code


@rule("KIT426", "warning", needs=("sbatch",))
def waits_for_job(script: BatchScript) -> Iterator[Problem]:
    """A job with GPUs waits for another job.

    A loop around squeue or sacct, or `sbatch --wait`, holds the GPUs of this job idle while the other one is in the
    queue. If both need the same nodes, it waits for ever.

    Fix: end the job, and submit what follows with `sbatch --dependency=afterok:...`; or run the work here, with srun.
    Documented: sbatch(1), --dependency and --wait.
    """
    # A training in the background uses the GPUs meanwhile.
    busy = any(launch.command.in_background for launch in script.training)
    submits = any(step.name == "sbatch" or _calls(step, r"\bsbatch\b") for step in script.commands)
    if not script.size.has_gpus or busy or not submits:
        return
    for step in script.batch_commands:
        looks = step.name in {"squeue", "sacct"} or _calls(step, r"\b(squeue|sacct)\b")
        waits = step.name == "sbatch" and not {"-W", "--wait"}.isdisjoint(step.texts)
        waits = waits or _calls(step, r"\bsbatch\b[^|;]*\s(-W|--wait)\s")
        itself = "SLURM_JOB_ID" in step.written
        waits = waits or (looks and not itself and step.in_condition("while", "until"))
        if waits and not step.in_background:
            what = "the GPUs of this job are idle until the other job has ended"
            yield Problem(step, what, "write sbatch --dependency=afterok:..., and end this job")


def _calls(step: TracedCommand, pattern: str) -> bool:
    """Tell whether a `$(...)` of a command contains a pattern."""
    return any(re.search(pattern, part.text) for part in step.substitutions)


@rule("KIT427", "warning", needs=("trap",))
def replaced_shell(script: BatchScript) -> Iterator[Problem]:
    """`exec` replaces the shell that has a trap, or a second `trap` the first one.

    After `exec python train.py` there is no batch shell: the trap for EXIT or for a signal never runs, and its clean-up
    or copy is missing. A signal has one trap: a second `trap ... EXIT` does not add its commands to those of the first.

    Fix: remove `exec`. Write one trap, with one function for all commands.
    Documented: bash(1), exec and trap.
    """
    traps: list[TracedCommand] = []
    set_by: dict[str, TracedCommand] = {}
    for step in script.batch_commands:
        # A subshell inherits no trap, and a function may never be called.
        other_shell = step.around("subshell") or any(place.role == "code" for place in step.position.outward())
        if step.name == "trap" and not other_shell and _is_called(step):
            yield from _replaced_traps(script, step, set_by)
        if step.around("subshell", "function"):
            continue
        if step.name == "trap" and len(step.words) > 2:
            kept = step.trap_code not in {"", "-"} and not step.trap_signals <= {"ERR", "DEBUG", "RETURN"}
            traps = [step] if kept else []
        elif step.name == "exec" and len(step.words) > 1 and traps and not step.in_background:
            what = f"exec replaces the shell: the trap of line {traps[-1].line} never runs"
            edits = (Edit(step.line, step.column, "exec ", ""),)
            yield Problem(step, what, "remove exec", (traps[-1].line,), edits=edits)


def _is_called(step: TracedCommand) -> bool:
    """Tell whether the script itself calls each function around a command, rather than a trap or a program."""
    for place in step.position.outward():
        if place.kind == "function":
            call = place.parent.pipeline.commands[place.parent.pipeline_index] if place.parent is not None else None
            if call is None or place.compound is None or program_of(call) != place.compound.name:
                return False
    return True


def _is_of_shell(step: TracedCommand) -> bool:
    """Tell whether the batch shell itself runs a command in any case, perhaps in a function that it calls."""
    places = list(step.position.outward())
    plain = all(place.kind in {"", "group", "function"} and place.role != "code" for place in places)
    alone = not step.is_conditional and not step.in_background and all(len(p.pipeline.commands) == 1 for p in places)
    return plain and alone and _is_called(step)


def _replaced_traps(script: BatchScript, step: TracedCommand, set_by: dict[str, TracedCommand]) -> Iterator[Problem]:
    """Find a trap whose commands are lost because a later one is for the same signal. `set_by`: the trap of each."""
    # `trap "$old; ..."` may contain the commands of the first one.
    known = "trap -p" not in script.code and not re.match(r"[\"']?\$", step.trap_code)
    for name in sorted({"EXIT" if name == "0" else name for name in step.trap_signals} - {"ERR", "DEBUG", "RETURN"}):
        first = set_by.pop(name, None)
        # In a branch, only one of two traps may be set.
        if step.trap_code in {"", "-"} or not _is_of_shell(step):
            continue
        set_by[name] = step
        at_exit = set_by.get("EXIT")
        # A trap for EXIT runs after the one of a signal, too.
        kept = name != "EXIT" and at_exit is not None and first is not None and at_exit.trap_code == first.trap_code
        lost = _lost_commands(script, first, step, name) if first is not None and known and not kept else []
        if first is not None and lost:
            what = f"this replaces the trap of line {first.line} for {name}: {lost[0]} never runs"
            yield Problem(step, what, "write one trap for all commands, such as a function", (first.line,))


_REPORTS = frozenset({
    "", ":", "[", "date", "echo", "exit", "export", "local", "log", "logger", "printf", "return", "set", "sleep",
    "test", "trap", "true", "wait",
})  # fmt: skip
_BESIDE = frozenset({"conda", "date", "hostname", "mkdir", "ml", "module", "nvidia-smi"})
"""Programs that are no part of the work."""
_REPLACES = lazy_pattern(
    r"(?i)\b(replace|instead|from (now|here) on|no longer|take[s]? over|supersede|override|overwrite)"
)


def _lost_commands(script: BatchScript, first: TracedCommand, second: TracedCommand, name: str) -> list[str]:
    """Return the commands of a trap that neither the second one nor the script between both runs."""
    until_second = itertools.takewhile(lambda each: each is not second, script.commands_after(first))
    between = [each for each in until_second if _is_called(each)]
    # The trap of a signal may be for one part of the work, which has ended.
    if name != "EXIT" and any(script.launch_at(each) is not None and each.name not in _BESIDE for each in between):
        return []
    if _REPLACES.search(script.comment_at(second.line)):
        return []
    kept = [*_handler(script, second.trap_code), *(each.syntax for each in between)]
    lost = (each for each in _handler(script, first.trap_code) if program_of(each) not in _REPORTS)
    # A file that was renamed needs no clean-up.
    moved = {word.raw for each in between if each.name == "mv" for word in each.syntax.words[1:]}
    lost = (each for each in lost if moved.isdisjoint(word.raw for word in each.words))
    return [program_of(each) or each.words[0].raw for each in lost if not any(_covers(other, each) for other in kept)]


def _covers(command: SimpleCommand, other: SimpleCommand) -> bool:
    """Tell whether a command does what another one does, perhaps with more words, or with a folder around them."""
    if program_of(command) != program_of(other):
        return False
    words, wanted = ([re.sub("[\"'{}]", "", word.raw) for word in each.words[1:]] for each in (command, other))
    everything = program_of(command) == "kill" and re.search(r"jobs -\w*p| 0\Z| -\$\$", " ".join(["", *words]))
    missing = [each for each in wanted if not each.startswith("-") and each not in words]
    return bool(everything) or all(any(each.startswith(f"{word.rstrip('/')}/") for word in words) for each in missing)


def _handler(script: BatchScript, code: str) -> list[SimpleCommand]:
    """Return the commands of the code of a trap, with those of the functions that it calls."""
    waiting, seen, found = list(simple_commands(parse(code).block)), set[str](), list[SimpleCommand]()
    while waiting:
        command = waiting.pop(0)
        name = program_of(command) or ""
        if name not in script.functions:
            found += [command] if command.words else []
        elif name not in seen:
            seen.add(name)
            waiting += [each.syntax for each in script.functions[name]]
    return found
