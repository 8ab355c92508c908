"""Rules for the set-up of the batch shell: modules and environments that get lost, paths, and misspelt variables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

from hpc_kit.check.bash_syntax import program_of
from hpc_kit.check.batch_script import CSH, BatchScript
from hpc_kit.check.command_trace import TracedCommand
from hpc_kit.check.launch_lines import LaunchLine
from hpc_kit.check.rules.files import READ_THERE, WRITTEN_THERE
from hpc_kit.check.rules.finding import Place, Problem, rule
from hpc_kit.check.text_edits import Edit
from hpc_kit.lazy_pattern import lazy_pattern

_MODULES = frozenset({"ml", "module"})
_SET_UP = _MODULES | {"source", ".", "conda", "mamba", "micromamba"}
"""Commands that may set up the environment of the shell."""

_LOADS = frozenset({"add", "load", "restore", "swap", "switch", "try-load", "use"})
_LOADS_NOTHING = lazy_pattern(
    r"\Z|-|av|del|describe|disable|help|is-|key|list|ls\Z|overview|purge|reset|rm\Z|save|show|spider|tablelist|un|whatis"
)
"""Further words behind `ml`, which loads any other word as a module."""


def _verb(step: TracedCommand) -> str:
    """Return the first word of a command that is no option: `load` in `module -q load cuda`."""
    return next((text for text in step.texts[1:] if not text.startswith("-")), "")


def sets_up(step: TracedCommand) -> bool:
    """Tell whether a command sets up the environment of the shell: a module, conda, or a virtual environment."""
    if step.name not in _SET_UP:
        return False
    second = _verb(step)
    if step.name in _MODULES:
        return second in _LOADS or (step.name == "ml" and not _LOADS_NOTHING.match(second))
    if step.name in {"source", "."}:
        return bool(re.search(r"activate|env|setup|conda", second))
    return second == "activate"


_SET_UP_FILE = lazy_pattern(r"(\A|/)(activate(\.sh)?|conda\.sh|load_modules\.sh|modules\.sh)\Z")


def _read_in_pipe(script: BatchScript) -> Iterator[Problem]:
    """Find a variable that `read` sets behind a pipe, and that a later line uses."""
    for step in script.batch_commands if "lastpipe" not in script.code else ():
        if step.name not in {"read", "mapfile", "readarray"} or not step.position.pipeline_index or step.compounds:
            continue
        names = [text for text in step.texts[1:] if re.fullmatch(r"[A-Za-z_]\w*", text)]
        name = next((name for name in names if _is_used(name, script.commands_after(step))), None)
        if name is not None:
            what = f"the pipe ends the effect of {step.name}: {name} stays as it was"
            yield Problem(step, what, f"write {step.name} ... < <(COMMAND)", certain=True)


def _is_used(name: str, steps: list[TracedCommand]) -> bool:
    """Tell whether commands use a variable before one of them sets it."""
    for step in steps:
        if step.reads(name) or (step.name == "export" and name in step.texts):
            return True
        if (step.name == "read" and name in step.texts) or any(each.name == name for each in step.written_assignments):
            return False
    return False


@rule("KIT125", "warning")
def lost_set_up(script: BatchScript) -> Iterator[Problem]:
    """Modules, an environment or a variable that the training does not get.

    A subshell, `( module load cuda )`, a pipe, `{ module load cuda; } | tee log`, and a child, `bash
    venv/bin/activate`, set up only themselves. `module purge` after `module load` removes what was loaded, and so does
    `conda deactivate`. `module load python` after an environment puts another Python before it. `scontrol show
    hostnames | read HOST` sets HOST in a subshell only.

    Fix: `source venv/bin/activate` without parentheses, and `module purge` as the first command.
    Documented: bash(1), Command Execution Environment; lmod.readthedocs.io.
    """
    if script.interpreter in CSH:
        return
    training = [launch for launch in script.training if not launch.command.in_task]
    if not training and script.launch_lines:
        training = [script.launch_lines[-1]]
    for step in filter(sets_up, script.batch_commands):
        if (launch := _outside(script, step, training)) is not None:
            what = f"the parentheses end the effect of {step.name} {_verb(step)}: line {launch.line} does not get it"
            lines = (launch.line, *(each.line for each in step.compounds if each.kind == "subshell"))
            yield Problem(step, what, "remove the parentheses, or put the training inside", lines)
            break
        if (launch := _behind_pipe(script, step, training)) is not None:
            what = f"the pipe ends the effect of {step.name} {_verb(step)}: each part of a pipe runs in a subshell"
            yield Problem(step, what, "remove the pipe, or write > >(tee FILE)", (launch.line,))
            break
    yield from _read_in_pipe(script)
    for launch in script.launch_lines:
        shell = launch.stages[0]
        file = shell.option("file") if shell.kind == "shell" else None
        if shell.kind == "program" and shell.words[0].text.endswith("/bin/activate"):
            file = shell.words[0]
        if file is None or not _SET_UP_FILE.search(file.text):
            continue
        later = next((each for each in training if each.line > launch.line), None)
        if later is not None:
            what = f"{shell.name} runs {file.text} in a child: this shell does not get the environment"
            yield Problem(shell, what, f"write source {file.text}", (later.line,), certain=True)
    yield from _purged(script, training)
    yield from _hidden_by_module(script, training)
    yield from _too_late(script, training)


def _too_late(script: BatchScript, training: list[LaunchLine]) -> Iterator[Problem]:
    """Find a set-up behind the only training, in a script without one before."""
    first = next(filter(sets_up, script.batch_commands), None)
    # With several programs, the set-up may be for a later one.
    if len(training) != 1 or first is None or script.launch_lines[-1] is not training[0]:
        return
    inside = training[0].command.position in first.position.outward()
    if script.is_before(training[0].command, first) and not inside and not first.is_conditional:
        what = f"the training in line {training[0].line} runs before this"
        yield Problem(first, what, "move it above the training", (training[0].line,))


def _behind_pipe(script: BatchScript, step: TracedCommand, training: list[LaunchLine]) -> LaunchLine | None:
    """Return a training after a pipe, of which a command, or a block around it, is a part."""
    keeps_last = script.interpreter in {"ksh", "zsh"} or "lastpipe" in script.code
    places = [place for place in step.position.outward() if len(place.pipeline.commands) > 1]
    pipes = {id(place.pipeline) for place in places if place.piped_to or not keeps_last}
    # A block that runs a program has its set-up for itself.
    for launch in script.launch_lines if pipes else ():
        inside = any(id(place.pipeline) in pipes for place in launch.command.position.outward())
        if inside and launch.command is not step and launch in training:
            return None
    later = (each for each in training if script.is_before(step, each.command))
    return next(later, None) if pipes else None


def _outside(script: BatchScript, step: TracedCommand, training: list[LaunchLine]) -> LaunchLine | None:
    """Return a training after a command, outside of the subshell of the command."""
    shell = step.around("subshell")
    # A subshell that runs a program has its set-up for itself.
    if shell is None or any(launch.command.compounds[:1] == [shell] for launch in script.launch_lines):
        return None
    return next((each for each in training if each.line > step.line and not each.command.is_inside(shell)), None)


def _purged(script: BatchScript, training: list[LaunchLine]) -> Iterator[Problem]:
    """Find a command that takes back modules, or an environment, before the training."""
    loaded: dict[bool, TracedCommand] = {}
    undone: dict[bool, tuple[TracedCommand, TracedCommand]] = {}
    for step in script.batch_commands:
        if step.around("subshell"):
            continue
        of_modules = step.name in _MODULES
        before = loaded.get(of_modules)
        # `module unload` after `source activate` removes on purpose what only the activation needed.
        needed = loaded.get(False) if of_modules and _verb(step) not in {"purge", "reset"} else None
        if before is not None and _takes_back(step, before):
            if needed is None or not script.is_before(before, needed):
                undone[of_modules] = step, before
        elif sets_up(step):
            loaded[of_modules] = step
            # Loaded again: the earlier purge was a clean start.
            undone.pop(of_modules, None)
    for step, before in undone.values():
        after = next((launch for launch in training if script.is_before(step, launch.command)), None)
        if after is not None and (step.position.block is before.position.block or not step.is_conditional):
            what = f"this takes back {before.name} {_verb(before)} of line {before.line}"
            remedy = f"move it above line {before.line}, or behind the training"
            yield Problem(step, what, remedy, (before.line, after.line))


_OTHER_PYTHON = lazy_pattern(r"(?i)(cray-)?(python|anaconda|miniconda|miniforge|mambaforge)\d?(/|\Z)")


def _hidden_by_module(script: BatchScript, training: list[LaunchLine]) -> Iterator[Problem]:
    """Find a module with a Python of its own, loaded behind an environment: its folder comes first in PATH."""
    active: TracedCommand | None = None
    hidden: tuple[TracedCommand, TracedCommand] | None = None
    for step in script.batch_commands:
        if step.around("subshell", "function"):
            continue
        if step.name not in _MODULES and sets_up(step):
            active, hidden = step, None
        loads = sets_up(step) and step.name in _MODULES and any(map(_OTHER_PYTHON.match, step.texts[1:]))
        if loads and active is not None and step.position.block is active.position.block:
            # The first such module is the one to move.
            hidden = hidden or (step, active)
    after = [launch for launch in training if hidden is not None and script.is_before(hidden[0], launch.command)]
    # A path to an interpreter does not depend on PATH.
    if hidden is not None and after and after[0].program.kind == "python" and "/" not in after[0].program.texts[0]:
        step, active = hidden
        what = f"the Python of this module comes before the environment of line {active.line} in PATH"
        yield Problem(step, what, f"move it above line {active.line}", (active.line, after[0].line))


def _takes_back(step: TracedCommand, loaded: TracedCommand) -> bool:
    """Tell whether a command undoes the set-up of another one."""
    verbs = [text for text in step.texts[1:] if not text.startswith("-")]
    if step.name in _MODULES and loaded.name in _MODULES:
        gone = {*verbs[1:]} if verbs[:1] in (["unload"], ["rm"], ["del"]) else set()
        return verbs[:1] in (["purge"], ["reset"]) or bool(gone & {*loaded.texts[1:]})
    if loaded.name in _MODULES:
        return False
    return step.name == "deactivate" or (step.name in {"conda", "mamba", "micromamba"} and verbs[:1] == ["deactivate"])


@rule("KIT135")
def replaced_path(script: BatchScript) -> Iterator[Problem]:
    """PATH is replaced instead of extended.

    After `export PATH=$HOME/venv/bin`, the shell finds no other program: srun, mkdir and nvidia-smi are "command not
    found". `PATH=$HOME/venv/bin:PATH` without a `$` names a folder `PATH`, and so does the `$PATH` in single quotes. In
    LD_LIBRARY_PATH, PYTHONPATH and similar lists, the same loses what modules have set (a warning).

    Fix: `export PATH=$HOME/venv/bin:$PATH`.
    Documented: bash(1), PATH.
    """
    yield from _names_of_paths(script)
    for each in script.assignments_of("PATH"):
        whole = re.search(r"PATH\b|(\A|:)(/usr)?/bin(:|/?\Z)|\$\(", each.value.text)
        later = any(launch.line > each.line for launch in script.launch_lines)
        if not each.is_for_one_command and not whole and each.value.text and later:
            what = f"PATH has only {each.value.text}: the shell does not find srun, mkdir or nvidia-smi"
            yield Problem(each.value, what, f"write PATH={each.value.text}:$PATH")


_PATHS = frozenset({
    "C_INCLUDE_PATH", "CMAKE_PREFIX_PATH", "CPATH", "CPLUS_INCLUDE_PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "MANPATH",
    "MODULEPATH", "PATH", "PKG_CONFIG_PATH", "PYTHONPATH",
})  # fmt: skip
"""Lists of folders with `:` between them."""


def _names_of_paths(script: BatchScript) -> Iterator[Problem]:
    """Find a list of folders with its own name in it, where its value was meant: `PATH=/opt/bin:PATH`."""
    for each in script.written_assignments if script.assigned & _PATHS else ():
        name, value = each.name, each.value
        if name not in _PATHS:
            continue
        plain = re.search(rf"(?:\A|:)(\{{{name}\}}|{name})(?=[:}}]|\Z)", value.unquoted)
        texts = [part.text for part in value.parts if part.kind == "text"]
        if plain is None and not any(re.search(rf"\$\{{?{name}\b", text) for text in texts):
            continue
        found = plain[1] if plain else f"${name}"
        what = f"{found} is a name here, and not the value of the variable"
        if name == "PATH":
            what = f"{what}: the shell does not find srun, mkdir or nvidia-smi"
        before = script.lines[value.line - 1].find(plain[0], value.column - 1) if plain else -1
        column = before + plain.start(1) - plain.start() + 1 if plain else 0
        # The other lists may be unset, which ends a script with set -u.
        edits = (Edit(value.line, column, found, f"${found}"),) if before >= 0 and name == "PATH" else ()
        yield Problem(
            value, what, f"write ${name}" + ("" if plain else " in double quotes"), (), name == "PATH", edits=edits
        )


@rule("KIT126", "warning")
def login_shell_in_task(script: BatchScript) -> Iterator[Problem]:
    """The tasks start a login shell after the batch shell has set up the environment.

    `bash -l` reads /etc/profile and ~/.bash_profile again. On many systems they reset PATH and the modules, so
    that the tasks run another Python than the one of the batch script.

    Fix: `srun bash -c '...'` without -l, or activate the environment inside.
    Documented: bash(1), INVOCATION.
    """
    for launch in script.training:
        shell = launch.stage("shell")
        if shell is None or launch.multiplier is None or shell.option("code") is None:
            continue
        if not any(re.fullmatch(r"-[a-z]*l[a-z]*|--login", text) for text in shell.texts[1:3]):
            continue
        before = [step for step in script.commands_before(launch.command) if not step.in_task and sets_up(step)]
        if before and not any(map(sets_up, script.commands_of(launch))):
            what = f"the login shell of each task may replace the environment of line {before[-1].line}"
            yield Problem(shell, what, "write bash -c, without -l", (before[-1].line, launch.line))


_OWN_FOLDER = lazy_pattern(
    r"(dirname|realpath|readlink)\b[^|;]*?[\"'\s]\$\{?(0|BASH_SOURCE)\b|\$\{(0|BASH_SOURCE(\[0\])?)%/\*\}"
)


@rule("KIT127", needs=("dirname", "realpath", "readlink", "%/*"))
def folder_of_the_copy(script: BatchScript) -> Iterator[Problem]:
    """The script looks for files beside itself.

    Slurm runs a copy of the script, in the spool folder of slurmd: `$(dirname "$0")` is /var/spool/slurmd/job123. The
    files of the project are not there.

    Fix: `cd "$SLURM_SUBMIT_DIR"`, which is also the folder in which the script starts; or an absolute path.
    Documented: sbatch(1), SLURM_SUBMIT_DIR.
    """
    if not script.directives.lines or re.search(r"scontrol\s+show\s+job", script.code):
        return
    for step in script.batch_commands:
        if any(compound.kind != "group" for compound in step.compounds):
            continue
        for part in step.syntax.parts:
            if part.kind in {"command", "variable"} and _OWN_FOLDER.search(part.raw):
                # `cd "$SLURM_SUBMIT_DIR" || cd "$(dirname "$0")"`
                certain = not re.search(r"SLURM_|\|\|", script.lines[part.origin.line - 1])
                what = "this is the spool folder of Slurm, with a copy of the script alone"
                yield Problem(part.origin, what, 'use "$SLURM_SUBMIT_DIR", or an absolute path', certain=certain)
                return


_OF_THIS_JOB = lazy_pattern(r"\$\{?SLURM_(JOB_?ID|ARRAY_JOB_ID)\b")
_MADE_BY_SITE = lazy_pattern(
    r"(?i)tmp|local|ssd|nvme|jobfs|slurm(?!_SUBMIT_DIR|_JOB_?ID|_ARRAY_JOB_ID)|node|spool|\bjobs?\b"
)
_CREATES_NOTHING = frozenset({
    "declare", "echo", "export", "local", "printf", "readonly", "sacct", "scontrol", "squeue", "sstat", "trap",
})  # fmt: skip


def counts_from_one(script: BatchScript) -> bool:
    """Tell whether the shell of a script is zsh, with lists that begin at 1."""
    return script.interpreter == "zsh" and re.search(r"(?i)ksh_?arrays|\bemulate\s.*\b(ba|k)?sh\b", script.code) is None


@rule("KIT141")
def bash_in_zsh(script: BatchScript) -> Iterator[Problem]:
    """A line that means something else in zsh than in bash.

    In zsh, lists begin at 1: `${HOSTS[0]}` is empty. An unquoted variable is one word there: `python train.py $ARGS`
    passes all arguments as one.

    Fix: `#!/bin/bash` in the first line; or `${HOSTS[1]}`, and `${=ARGS}` or a list.
    Documented: zsh.sourceforge.io/FAQ, "How does zsh differ from sh?".
    """
    if not counts_from_one(script):
        return
    lists = {each.name for each in script.written_assignments if each.value.elements is not None}
    if re.search(r"(?:typeset|declare|local)\s+-\w*A", script.code):
        lists = set()  # a table counts from nothing
    for part in script.parts:
        if part.kind == "variable" and part.text in lists and part.detail == "[0]":
            what = f"${{{part.text}[0]}} is empty: zsh counts from 1"
            yield Problem(part.origin, what, "write #!/bin/bash, or the index 1", (1,))
    options = {each.name for each in script.written_assignments if re.match(r"[\"']-\S+\s+\S", each.value.raw)}
    splits = re.search(r"(?i)sh_?word_?split", script.code) is not None
    for launch in script.training if not splits else ():
        for word in launch.command.syntax.words:
            name = word.raw.strip("${}")
            if name in options and word.raw.startswith("$"):
                what = f"zsh passes {word.raw} as one word, with its spaces"
                yield Problem(word, what, f"write #!/bin/bash, or ${{={name}}}", (1, launch.line))


@rule("KIT136", "warning")
def missing_folder(script: BatchScript) -> Iterator[Problem]:
    """A folder that nothing has created yet.

    A folder with the job id in its name does not exist before the job runs. `cd` fails, and a command with `>` into the
    folder does not start. `mkdir` below that line comes too late. Slurm creates no folder for `srun --output` either.
    `rsync -a /data/imagenet "$TMPDIR"` copies to $TMPDIR/imagenet, so that there is no $TMPDIR/train.

    Fix: `mkdir -p "$RUN"` above the line; `rsync -a /data/imagenet/ "$TMPDIR"`, with a `/` behind the source.
    Documented: bash(1), Redirections; srun(1), --output; rsync(1), USAGE.
    """
    yield from _folder_in_copy(script)
    if not script.is_readable or script.sources_files or script.interpreter in CSH:
        return
    steps = [step for step in script.batch_commands if not step.is_conditional]
    makers = [step for step in steps if step.name in {"cd", "mkdir", "pushd"}]
    for step in steps:
        for place, folder in _folders_of(script, step, script.launch_at(step)):
            made = _made_later(makers, step, folder) if step.name != "cd" else None
            # The script that calls one without directives may have created the folder.
            of_job = _is_of_job(folder) and script.directives.lines
            if (made is None and not of_job) or _may_exist(script, step, folder):
                continue
            what = f"nothing has created {folder} yet"
            remedy = f"move line {made.line} above this line" if made is not None else f"write mkdir -p {folder} before"
            yield Problem(place, what, remedy, (step.line, made.line if made is not None else None))
            return


def _folder_in_copy(script: BatchScript) -> Iterator[Problem]:
    """Find a training that looks for the content of a folder where a copy has put the folder itself."""
    trainings = [launch.command for launch in script.training]
    for step in script.batch_commands:
        copied = _copied_folder(script, step)
        if copied is None:
            continue
        source, target = copied
        given = [(launch, option, word.text) for launch in script.training for option, word in launch.option_values()]
        inside = {
            text[len(target) + 1 :].partition("/")[0]: launch
            for launch, option, text in given
            if text.startswith(f"{target}/")
            and READ_THERE.search(option)
            and not WRITTEN_THERE.search(option)
            and script.is_before(step, launch.command)
        }
        first = next(iter(inside), "")
        used = any(f"{target}/{source.name}" in each.text for each in script.commands_after(step))
        if not re.fullmatch(r"[\w-]+", first) or used:
            continue
        # Another command may fill the folder.
        others = [each for each in script.commands if each is not step and each not in trainings]
        paths = [text.rstrip("/") for each in others if each.name not in {"mkdir", "rm"} for text in each.texts[1:]]
        paths += [text.rstrip("/") for each in others if each.name == "mkdir" for text in each.texts if text != target]
        if not any(path == target or path.startswith(f"{target}/{first}") for path in paths):
            what = f"this copies to {target}/{source.name}: there is no {target}/{first} for line {inside[first].line}"
            yield Problem(step, what, f"write {source}/ with a slash at its end", (inside[first].line,))


def _copied_folder(script: BatchScript, step: TracedCommand) -> tuple[PurePath, str] | None:
    """Return the folder that rsync or `cp -r` copies into another one, and that one; None for any other command."""
    launch = script.launch_at(step)
    texts = launch.program.texts if launch is not None and launch.multiplier else step.texts
    paths = [text for text in texts[1:] if not text.startswith("-")]
    flags = "".join(text for text in texts[1:] if re.match(r"-\w", text))
    # With `rsync -R` and `cp -T`, the copy has another name.
    recursive = {"rsync": "[^R]*[ar][^R]*", "cp": "[^T]*[arR][^T]*"}.get(texts[0] if texts else "")
    if recursive is None or len(paths) != 2 or not re.fullmatch(recursive, flags):
        return None
    source, target = paths[0], paths[1].rstrip("/")
    made = {text.rstrip("/") for each in script.batch_commands if each.name == "mkdir" for text in each.texts[1:]}
    # Of a target that does not exist, `cp` makes the copy itself. A name with a dot is mostly that of a file.
    into = texts[0] == "rsync" or target in made or paths[1].endswith("/")
    return (PurePath(source), target) if into and re.search(r"/[\w-]+\Z", source) else None


def _folders_of(script: BatchScript, step: TracedCommand, launch: LaunchLine | None) -> Iterator[tuple[Place, str]]:
    """Yield the folders that must exist when a command starts, each with its position."""
    if step.name in {"cd", "pushd"} and len(step.words) == 2:
        yield step, step.texts[1]
    if step.syntax.output is not None:
        yield step.syntax.output, script.resolve(step.syntax.output.raw).replace('"', "").rpartition("/")[0]
    if step.name == "tee":
        yield from ((step, word.text.rpartition("/")[0]) for word in step.words[1:])
    if step.name == "cp" and step.texts[-1].endswith("/"):
        yield step, step.texts[-1].rstrip("/")
    srun = launch.stage("srun") if launch is not None else None
    output = srun.option("output", "error") if srun is not None else None
    if output is not None and "%" not in output.text.rpartition("/")[0]:
        yield step, output.text.rpartition("/")[0]


def _is_of_job(folder: str) -> bool:
    """Tell whether a path names a folder for this job alone, and one that no site creates for its jobs."""
    parts = [part for part in folder.split("/") if part not in {".", "$HOME", "${HOME}", "~"}]
    first = next((index for index, part in enumerate(parts) if _OF_THIS_JOB.search(part)), None)
    if first is None or _MADE_BY_SITE.search("/".join(parts[: first + 1])):
        return False
    user = [index for index, part in enumerate(parts[:first]) if re.search(r"\$\{?USER\b", part)]
    if not folder.startswith(("/", "$")) or folder.startswith(("$HOME", "${HOME}", "$SLURM_SUBMIT_DIR")):
        return True
    # Prologs create /scratch/$USER/$SLURM_JOB_ID, but no folder of a project.
    least = 1 if folder.startswith("$") else 3 if folder.startswith("/home/") else 4
    return first - user[0] > 1 if user else first > least


def _may_exist(script: BatchScript, step: TracedCommand, folder: str) -> bool:
    """Tell whether an earlier command names a folder, and so may create it."""
    names = [part for part in folder.split("/") if _OF_THIS_JOB.search(part)] or [folder]
    chain = [program_of(command) for pipeline in step.position.chain.pipelines for command in pipeline.commands]
    if "mkdir" in chain or "$(" in folder or folder in {"", ".", ".."}:
        return True
    # A program knows the job id, too.
    if any(launch.line < step.line and launch.program.option("file") for launch in script.launch_lines):
        return True
    for each in script.commands_before(step):
        if each.name not in _CREATES_NOTHING and any(names[0] in text for text in each.texts[1:]):
            return True
        unknown = each.name == "mkdir" and any(re.search(r"\$\(|\$\{\w+[^\w}]", text) for text in each.texts)
        if unknown or any("mkdir" in part.text for part in each.substitutions):
            return True
    return False


def _made_later(makers: list[TracedCommand], step: TracedCommand, folder: str) -> TracedCommand | None:
    """Return the command below that creates a folder for the first time."""
    for later in makers if folder else ():
        if later.line <= step.line:
            continue
        if later.name != "mkdir" and not folder.startswith(("/", "$", "~")):
            return None
        texts = [text.rstrip("/") for text in later.texts[1:]] if later.name == "mkdir" else []
        if folder in texts:
            return later
    return None
