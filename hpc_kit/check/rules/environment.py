"""Rules for the environment of the job: conda, typographic characters, node-local files, secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise, takewhile

from hpc_kit.check.bash_syntax import Origin, SimpleCommand, program_of
from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.command_trace import DECLARING, TracedCommand
from hpc_kit.check.edits import Edit
from hpc_kit.check.expansion import ExpandedText
from hpc_kit.check.launch_lines import LaunchLine, LaunchStage
from hpc_kit.check.programs import HELPER_PROGRAMS, SHELL_BUILTINS, WRAPPERS
from hpc_kit.check.rules.finding import Place, Problem, rule
from hpc_kit.check.rules.rendezvous import removal
from hpc_kit.check.rules.set_up import set_variables
from hpc_kit.slurm.directives import LONG_DASHES, DirectiveOption
from hpc_kit.spec.secrets import SHAPES, is_secret, is_secret_name, secret_words
from hpc_kit.spec.shell_code import CONTAINERS

_CONDA = frozenset({"conda", "mamba", "micromamba"})
_DEFINES_CONDA = frozenset({".", "source", "eval", "module", "ml", "spack", "use"})
_WITHOUT_CONDA = re.compile(
    r"(load|add|purge|list|use|unload|rm|restore|reset|-\S*|(cuda|cudnn|nccl|gcc|gnu|nvhpc|intel|oneapi|openmpi|mpich|cmake"
    r"|git|rocm|slurm|apptainer|singularity)(/\S*)?)\Z",
    re.IGNORECASE,
)
"""Words of a `module` command that surely brings no conda."""
_LOGIN = re.compile(r"#!\s*\S+.*\s(-\w*[li]\w*|--login)\b")
_QUOTES = "\u2018\u2019\u201c\u201d"
_TYPOGRAPHIC = re.compile(rf"[{LONG_DASHES}][{LONG_DASHES}-]?\w|-[{LONG_DASHES}]\w|(?:\w+=)?[{_QUOTES}]")
_TALKS = frozenset({"echo", "printf"})
_SEARCHES = frozenset({"[", "awk", "find", "git", "grep", "sed", "test", "tr"})
_KNOWN = (HELPER_PROGRAMS | SHELL_BUILTINS | WRAPPERS.keys() | CONTAINERS) - _SEARCHES
"""Programs for which a long dash or a curly quote is certainly a mistake."""


@rule("KIT109", "warning")
def conda_without_init(script: BatchScript) -> Iterator[Problem]:
    """`conda activate` in a shell without conda's set-up.

    `conda` is a shell function, and a batch script is no login shell. Without the set-up, the command ends with "Run
    'conda init' before 'conda activate'", and the script continues with another Python. `conda init` changes ~/.bashrc
    for future shells only, and `conda shell.bash ...` only prints code to evaluate.

    Fix: put `eval "$(conda shell.bash hook)"` or `source .../etc/profile.d/conda.sh` before it. Or use `conda run -n
    NAME python ...`, or the interpreter of the environment, `.../envs/NAME/bin/python`.
    Documented: docs.conda.io, "conda init"; bash(1), INVOCATION.
    """
    login = _LOGIN.match(script.lines[0]) is not None
    learnt = login or not script.is_shell or "BASH_ENV" in script.options.get("export", "")
    for step in script.batch_commands:
        # A function of that name passes its arguments on: `conda() { micromamba "$@"; }`.
        own = step.name in script.functions or any(compound.name in _CONDA for compound in step.compounds)
        if own or _in_login_shell(script, step):
            continue
        texts = step.texts
        name, verb, *_ = [*(texts[1:] if step.name in {"builtin", "command"} else texts), "", ""]
        # An unknown module may bring conda and its set-up.
        without = name in {"ml", "module"} and all(map(_WITHOUT_CONDA.match, texts[1:]))
        learnt = learnt or (name in _DEFINES_CONDA and not without) or any("BASH_ENV" in text for text in texts)
        printing = name in _CONDA and verb.startswith("shell.")
        if printing and not _taken_up(step):
            what = f"{name} {verb} only prints shell code"
        elif name in _CONDA and verb == "activate" and not learnt:
            what = f"{name} activate needs a set-up that this shell does not have"
        else:
            continue
        hook = "conda shell.bash hook" if name == "conda" else f"{name} shell hook --shell bash"
        yield Problem(step, what, f'write eval "$({hook})" before {name} activate')
        # One missing set-up explains all further activations.
        if not printing:
            return


def _in_login_shell(script: BatchScript, step: TracedCommand) -> bool:
    """Tell whether the command runs in a `bash -l`, which reads the result of `conda init`."""
    inside = [launch for launch in script.launch_lines if launch.inner_command is step]
    shells = (stage for launch in inside for stage in launch.stages if stage.kind == "shell")
    return any(_LOGIN.match("#!" + " ".join(stage.texts)) for stage in shells)


def _taken_up(step: TracedCommand) -> bool:
    """Tell whether the output of a command goes to a file or a pipe."""
    return step.syntax.output is not None or step.position.pipeline_index + 1 < len(step.position.pipeline.commands)


@rule("KIT110")
def typographic_characters(script: BatchScript) -> Iterator[Problem]:
    """A dash or a quote of a word processor or web page.

    A long dash (U+2013) starts no option, and a curly quote quotes nothing. Both look right but are ordinary letters,
    so that the program gets them as an argument. In the first line, the shell takes the dash for a file name. The
    finding is a warning if the program may want the character: an unknown program, or one that searches for text.

    Fix: type `-`, `"` and `'` instead.
    Documented: bash(1), QUOTING.
    """
    match = re.search(rf"\s[{LONG_DASHES}]", script.lines[0])
    if script.lines[0].startswith("#!") and match is not None:
        yield _typed(Origin(1, match.start() + 2), script.lines[0][match.end() - 1])
    started = [each for each in script.launch_lines if each.multiplier or each.agent or each.program.kind != "program"]
    for step in script.commands:
        if step.name in _TALKS or _only_talks(script, step.name):
            continue
        # Slurm, launchers and usual tools have no use for such a letter.
        known = step.name.rpartition("/")[2] in _KNOWN
        sure = known or any(step is each.command or step is each.inner_command for each in started)
        for word in step.syntax.words:
            for part in word.parts[:1]:
                found = _TYPOGRAPHIC.match(part.text) if part.kind == "text" and not part.quoted else None
                if found is not None:
                    letter = next(each for each in found[0] if each in LONG_DASHES + _QUOTES)
                    yield _typed(word, letter)._replace(certain=sure)


def _only_talks(script: BatchScript, name: str) -> bool:
    """Tell whether a function of the script only prints its arguments."""
    steps = script.functions.get(name, [])
    return bool(steps) and all(step.name in {*_TALKS, "", "date", "local"} for step in steps)


def _typed(place: Place, letter: str) -> Problem:
    plain = "-" if letter in LONG_DASHES else "'" if letter in _QUOTES[:2] else '"'
    # A pair of quotes must change together, but only the first one is known here.
    edits = (Edit(place.line, place.column, letter, plain),) if letter not in _QUOTES else ()
    what = f"{letter} is not {plain}, and the shell treats it as a letter"
    return Problem(place, what, f"type {plain} instead", edits=edits)


OWN_DISK = re.compile(
    r"(\$\{?(SLURM_TMPDIR|TMPDIR|TMP|JOBFS|SNIC_TMP|L_?SCRATCH|LOCAL_?(DISK|SCRATCH|TMP)(_?DIR)?)\b\}?"
    r"|(/mnt)?/(tmp|dev/shm|([\w.-]*[-_])?(local|local_?scratch|lscratch|nvme|ssd)([-_]?(disk|nvme|scratch|ssd|tmp)|\d)?))"
    r"(?=/|\Z)"
)
"""A folder on the disk of the node, by the names that sites use."""
_MEETS = re.compile(r"(?i)dist|init|rdzv|rendezvous|sync")
"""An option for the place where ranks meet: --init-method, --dist-url."""
_MOVES = frozenset({"cd", "popd", "pushd"})
_SPREADERS = frozenset({"clush", "parallel-scp", "pdcp", "pscp", "sbcast", "scp"})
_LOOKS = frozenset({"chmod", "df", "du", "ls", "mkdir", "rm", "stat", "test"})
"""Programs that name a folder without filling it."""


@rule("KIT212", "warning")
def first_node_files(script: BatchScript) -> Iterator[Problem]:
    """The script fills a node-local folder on the first node only.

    The batch script runs on the first node. $SLURM_TMPDIR, /tmp and similar folders are local to each node: the tasks
    on the further nodes do not see what the script unpacks or installs there. With `--init-method file:///tmp/sync`,
    the ranks of different nodes never meet.

    Fix: run the command once per node, `srun --ntasks=$SLURM_NNODES --ntasks-per-node=1 tar -xf ...`, or use sbcast, or
    a folder that all nodes share.
    Documented: sbcast(1); docs.alliancecan.ca/wiki/PyTorch, "Multi-node".
    """
    wide = [launch for launch in script.training if script.size_of(launch).has_several_nodes]
    if not wide or not script.size.has_several_nodes:
        return
    for option, word in [each for launch in wide for each in launch.option_values()]:
        meeting = re.search(r"(?:\A|=)file://(/\S+)", word.text)
        if meeting is not None and OWN_DISK.match(meeting[1]) and _MEETS.search(option):
            what = f"each node has its own {meeting[1]}: the ranks of different nodes never meet"
            yield Problem(word, what, "name a file in a folder that all nodes share", (script.line_of("nodes"),))
    entered: TracedCommand | None = None
    for step in script.batch_commands:
        if step.name in _MOVES:
            target = _entered(step, "" if entered else None)
            # A relative folder lies in the one that was entered before.
            entered = entered if target == "" else step if target else None
        folder = _filled(step)
        if folder is not None:
            using = (each for each in wide if _reaches(script, folder, each))
        elif entered is not None and _fills_here(step):
            folder, last = _plain(entered.words[1].text), entered
            # The tasks of srun start in the current folder of the batch shell.
            using = (each for each in wide if not _leaves(script, last, step, each.command))
        elif (path := _written_file(script, step)) is not None:
            folder = path
            using = (each for each in wide if any(_names(word.text, path) for word in each.program.words))
        else:
            continue
        launch = next((each for each in using if _follows(script, step, each)), None)
        if launch is not None and not _spread(script, folder, launch):
            what = f"{folder} is local to the first node: tasks on the remaining nodes do not see these files"
            remedy = f"run it once per node: srun --ntasks=$SLURM_NNODES --ntasks-per-node=1 {step.name} ..."
            yield Problem(step, what, remedy, (launch.line,))
            return


def _written_file(script: BatchScript, step: TracedCommand) -> str | None:
    """Return the node-local file that a command of the batch shell writes with `>`, or that a server gets."""
    output = step.syntax.output
    path = _plain(script.resolve(output.raw.strip("\"'"))) if output is not None else ""
    served = step.texts[1:] if step.in_background and step.name != "srun" else []
    paths = [path, *(_plain(text.rpartition("=")[2]) for text in served)]
    return next((path for path in paths if (disk := OWN_DISK.match(path)) and len(path) > disk.end() + 1), None)


def _follows(script: BatchScript, step: TracedCommand, launch: LaunchLine) -> bool:
    """Tell whether the launch runs after the command, and does not run the same script again on each node."""
    calls = {name for name, body in script.functions.items() if any(each is launch.command for each in body)}
    starts = [each for each in script.commands if each is launch.command or each.name in calls]
    itself = any(re.search(r"\$(\{?0|\{?BASH_SOURCE)", word.raw) for word in launch.command.syntax.words)
    conditional = any(place.role in {"then", "else"} for place in step.position.outward())
    return script.is_before(step, starts[-1]) and not (itself and conditional)


def _reaches(script: BatchScript, folder: str, launch: LaunchLine) -> bool:
    """Tell whether the tasks use the folder: on their line, in a variable, or as the current folder."""
    texts = [word.text for word in (*launch.command.words, *launch.inner_command.words)]
    exported = {word.text for step in script.commands if step.name in {"declare", "export"} for word in step.words[1:]}
    known = [each for each in script.assignments if each.is_exported or each.name in exported]
    texts += [each.value.text for each in known if each.line < launch.line]
    before = [step for step in script.commands if step.name in {".", "source", *_MOVES} and step.line < launch.line]
    texts += [word.text for step in before for word in step.words]
    return any(_names(text, folder) for text in texts)


def _spread(script: BatchScript, folder: str, launch: LaunchLine) -> bool:
    """Tell whether another step fills the folder on the further nodes, too."""
    for each in script.launch_lines:
        elsewhere = each.multiplier or each.stage("ssh") or each.program.name in _SPREADERS
        if each.command.line > launch.line or not elsewhere or each.program.name in _LOOKS:
            continue
        words = each.program.words if each.multiplier else each.command.words
        if not each.is_training and any(_names(word.text, folder) for word in words):
            return True
    return False


def _names(text: str, folder: str) -> bool:
    return re.search(re.escape(folder) + r"(?![\w.-])", _plain(text)) is not None


def _entered(step: TracedCommand, before: str | None) -> str | None:
    """Return the node-local folder that is current after a `cd` or similar command."""
    if step.name == "popd":
        return None
    target = _plain(step.words[1].text) if len(step.words) > 1 else "~"
    if OWN_DISK.match(target):
        return target
    return None if target.startswith(("/", "$", "~", "-")) else before


def _fills_here(step: TracedCommand) -> bool:
    """Tell whether a command writes files to the current folder."""
    rest = step.texts[1:]
    if step.name in {"cp", "rsync"}:
        return bool(rest) and not rest[-1].startswith(("/", "$", "~"))
    if step.name == "git":
        return rest[:1] == ["clone"]
    there = {"-C", "--directory", "-d"} & set(rest)
    return not there and (step.name == "unzip" or (step.name == "tar" and "x" in "".join(rest[:1])))


def _leaves(script: BatchScript, entered: TracedCommand, first: TracedCommand, last: TracedCommand) -> bool:
    """Tell whether the shell changes the folder between two commands, or entered it only in a subshell."""
    between = [step for step in script.commands if first.line < step.line < last.line and step.name in _MOVES]
    subshell = entered.around("subshell")
    alone = subshell is not None and not any(subshell is each for each in last.compounds)
    return alone or any(_entered(step, "here") is None for step in between)


def _plain(text: str) -> str:
    return re.sub(r"\$\{(\w+)\}", r"$\1", text)


def _filled(step: TracedCommand) -> str | None:
    """Return the node-local folder that a command fills."""
    name, rest = step.name.rpartition("/")[2], step.texts[1:]
    places: list[str] = []
    if name in {"cp", "rsync"}:
        places = rest[-1:]
    elif name in {"tar", "unzip"}:
        places = [value for option, value in pairwise(rest) if option in {"-C", "--directory", "-d"}]
    elif name == "virtualenv" or rest[:2] == ["-m", "venv"] or (name, *rest[:1]) == ("uv", "venv"):
        places = rest[-1:]
    match = OWN_DISK.match(places[-1]) if places else None
    return None if match is None else _plain(places[-1]).rstrip("/.")


_SETS_UP = frozenset({".", "conda", "mamba", "micromamba", "ml", "module", "source", "spack"})


@rule("KIT502")
def environment_without_export(script: BatchScript) -> Iterator[Problem]:
    """The tasks of srun do not get the environment of the batch script.

    With `--export=NONE`, sbatch sets SLURM_EXPORT_ENV=NONE, and srun passes nothing on: neither modules nor conda nor
    exported variables reach the tasks. `srun --export=NAME=value` without ALL passes on nothing else, not even PATH (a
    warning). A value with a comma ends there: `--export=ALL,GPUS=0,1` sets GPUS to 0.

    Fix: `srun --export=ALL ...`, or `export SLURM_EXPORT_ENV=ALL` at the top. Export a value with commas before srun.
    Documented: sbatch(1) and srun(1), --export.
    """
    directive = script.directive("export")
    if directive is not None:
        yield from _cut_export(directive)
        names = {item.partition("=")[0].upper() for item in directive.value.split(",")}
        if "=" in directive.value and names.isdisjoint({"ALL", "NIL", "NONE", "PATH"}):
            what = f"--export={directive.value} passes on nothing else: the job has none of your variables"
            yield Problem(directive, what, f"write --export=ALL,{directive.value}", certain=False)
    for launch in script.training:
        srun = launch.stage("srun")
        if srun is None or srun.may_hide_options or srun.error is not None:
            continue
        yield from _step_without_export(script, launch, srun)
    for launch in script.launch_lines:
        if launch.program.name == "sbatch":
            export = launch.argument("export")
            yield from _cut_values(script, launch, export) if export is not None else ()


def _step_without_export(script: BatchScript, launch: LaunchLine, srun: LaunchStage) -> Iterator[Problem]:
    """Find a step that gets less of the environment than its program needs."""
    directive = script.directive("export")
    export = srun.options.get("export")
    if export is not None and export.text.upper() in {"NONE", "NIL"} and _sets_up_before(script, launch):
        what = f"--export={export.text}: the tasks get no variable of this script"
        yield Problem(export, what, "write srun --export=ALL ...", (launch.line,))
    elif export is None:
        if directive is None or directive.value.upper() not in {"NONE", "NIL"}:
            return
        if not script.changes("SLURM_EXPORT_ENV") and _sets_up_before(script, launch):
            what = f"--export={directive.value}: the tasks get no variable of this script"
            yield Problem(srun, what, "write srun --export=ALL ...", (directive.line, launch.line))
    # A variable may expand to ALL or to a list of names.
    elif not any("$" in item.partition("=")[0] for item in export.text.split(",")):
        names = {item.partition("=")[0].upper() for item in export.text.split(",")}
        if names.isdisjoint({"ALL", "NIL", "NONE", "PATH"}):
            what = f"--export={export.text} passes on nothing else: the tasks have no PATH"
            yield Problem(export, what, f"write --export=ALL,{export.text}", certain=False)
        yield from _cut_values(script, launch, export)


def _cut_values(script: BatchScript, launch: LaunchLine, export: ExpandedText) -> Iterator[Problem]:
    """Find a value with a comma in the --export of a command."""
    cut = [item for item in export.text.split(",")[1:] if re.fullmatch(r"[a-z0-9.:/_-]+", item)]
    if cut and "=" in export.text and cut[0] not in script.assigned:
        what = f"--export ends a value at the comma: {cut[0]!r} is taken for a variable"
        remedy = "export the variable before this line, and write --export=ALL"
        yield Problem(export, what, remedy, (launch.line,), certain=False)


def _sets_up_before(script: BatchScript, launch: LaunchLine) -> bool:
    """Tell whether the batch shell sets up an environment for a launch line whose tasks do not set up their own."""
    shell = launch.stage("shell")
    options = takewhile(lambda text: text.startswith("-"), shell.texts[1:] if shell is not None else ())
    if "get-user-env" in script.options or any(re.match(r"--login|-\w*l", text) for text in options):
        return False
    if any(step.name in _SETS_UP and step.in_task for step in script.commands_of(launch)):
        return False
    before = script.commands_before(launch.command)
    exported = any(each.is_exported and not each.in_task and each.number <= len(before) for each in script.assignments)
    return exported or any(step.name in _SETS_UP and not step.in_task for step in before)


def _cut_export(export: DirectiveOption) -> Iterator[Problem]:
    """Find a value with a comma."""
    items = export.value.split(",")
    valued = next((index for index, item in enumerate(items) if "=" in item), len(items))
    for index, item in enumerate(items):
        # Beside ALL, a name without a value has no purpose. Variables usually have names in capitals.
        is_rest = "ALL" in items and index > valued and "=" not in item and item != item.upper()
        if item and (is_rest or not re.match(r"[A-Za-z_]\w*(=|\Z)", item)):
            what = f"--export ends a value at the comma: {item!r} is no variable"
            yield Problem(export, what, "export the variable in the shell, and write --export=ALL")
            return


_BASH_ONLY = re.compile(
    r"\s*(?:(?:if|while|until|elif)\s+)?"
    r"(\[\[\s|source\s|declare\s|\w+=\(|\w+\+=|function\s+\w+\s*(?:\(\))?\s*\{|pushd\s|set\s+-\w*o\s+pipefail|\(\()"
)
_BASH_INSIDE = re.compile(r"(\[ [^\]]+ ==(?= )|<<<|&>|\$\{\w+(?:\^|,|//|:\d|\[)|\s<\(|\{\d+\.\.\d+\}|\$RANDOM\b)")
_IN_SH = re.compile(r"(?:\A|[;&|]\s*)(source|declare|pushd|\[\[)\s")


@rule("KIT121", "warning")
def bash_in_sh(script: BatchScript) -> Iterator[Problem]:
    """Syntax of bash in a script for /bin/sh.

    On Debian and Ubuntu, /bin/sh is dash, which knows neither `[[ ]]` nor arrays, `source` or `+=`. It prints "not
    found" and continues, or stops there. On other systems /bin/sh is bash.

    Fix: make `#!/bin/bash` the first line.
    Documented: dash(1).
    """
    yield from _bash_in_code(script)
    if script.interpreter not in {"sh", "dash"} or script.unread_part:
        return
    # Lines of commands; the text of a here-document is none.
    steps = script.batch_commands
    starts = {each.line for each in steps} | {each.line for step in steps for each in step.compounds}
    for number, line in script.code_lines:
        match = _BASH_ONLY.match(line)
        if match is None and number in starts:
            match = _BASH_INSIDE.search(re.sub(r"'[^']*'", "", line))
        if match is not None and (number in starts or match[1].startswith(("function", "(("))):
            what = f"{match[1].strip()} is syntax of bash, but this script is for {script.interpreter}"
            edits = (Edit(1, 1, script.lines[0], "#!/bin/bash"),)
            yield Problem(Origin(number, match.start(1) + 1), what, "write #!/bin/bash in the first line", edits=edits)
            return


def _bash_in_code(script: BatchScript) -> Iterator[Problem]:
    """Find syntax of bash in the code of `sh -c`."""
    for launch in script.launch_lines:
        for shell in launch.stages:
            code = shell.option("code") if shell.name in {"sh", "dash"} else None
            match = _IN_SH.search(code.text) if code is not None else None
            if match is not None:
                what = f"{match[1]} is syntax of bash, but this code is for {shell.name}"
                yield Problem(shell, what, f"write bash -c instead of {shell.name} -c", (launch.line,))


_SYSTEM_FILE = re.compile(r"(~|\$\{?HOME\}?)/\.(bashrc|bash_profile|profile)\Z|/etc/(bashrc|profile|bash\.bashrc)\Z")


@rule("KIT124", "warning")
def conda_with_nounset(script: BatchScript) -> Iterator[Problem]:
    """`conda activate` or ~/.bashrc after `set -u`.

    Scripts that conda runs at activation, such as those of its compilers, read variables that are not set, and so do
    ~/.bashrc and /etc/bashrc. With `set -u` the job ends there ("BASHRCSOURCED: unbound variable").

    Fix: `set +u` before the activation, and `set -u` after it.
    Documented: bash(1), set -u; conda/conda issue 8186 is one of many.
    """
    for step in script.batch_commands:
        texts = step.texts
        activates = texts[:2] in (["conda", "activate"], ["mamba", "activate"], ["source", "activate"])
        file = step.name in {"source", "."} and len(texts) > 1 and _SYSTEM_FILE.match(texts[1])
        if (activates or file) and "nounset" in step.options:
            what = f"{' '.join(texts[:2])} under set -u: it may read an unset variable"
            yield Problem(step, what, "write set +u before it, and set -u after it", (step.options["nounset"],))
            return


_SLOW_SETTINGS = {
    "CUDA_LAUNCH_BLOCKING": ("1", "waits for each kernel"),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL", "checks every collective on all ranks"),
    "NCCL_DEBUG": ("TRACE", "prints a line for every call of NCCL"),
    "NCCL_DEBUG_SUBSYS": ("ALL", "prints every part of NCCL"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": ("1", "asks CUDA for memory at each allocation"),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": ("0", "lets ranks wait for a failed one until the time limit"),
    "NCCL_ASYNC_ERROR_HANDLING": ("0", "lets ranks wait for a failed one until the time limit"),
}
_DEBUGGING_TIME = 3600
"""Seconds. A shorter job is for debugging."""
_DEBUGGERS = frozenset({"pdb", "ipdb", "debugpy", "pudb"})


@rule("KIT312", "warning")
def debug_settings(script: BatchScript) -> Iterator[Problem]:
    """A setting for debugging that slows training down, or keeps it from training.

    CUDA_LAUNCH_BLOCKING=1 makes each kernel wait for the one before it. TORCH_DISTRIBUTED_DEBUG=DETAIL compares every
    collective between the ranks. NCCL_DEBUG=TRACE fills the log. Lightning's fast_dev_run ends after one batch. A
    debugger waits for input that a batch job does not have (an error). The rule ignores settings with a comment that
    gives the reason, settings in a branch, and jobs of at most an hour.

    Fix: remove the line when the fault is found.
    Documented: pytorch.org/docs/stable/distributed.html, "Debugging torch.distributed applications".
    """
    brief = 0 < (script.time_limit or 0) <= _DEBUGGING_TIME
    remedy = "remove it after debugging"
    for each in script.assignments_of(*_SLOW_SETTINGS) if not brief else ():
        # A value from outside, a branch or a comment shows a deliberate choice.
        value, effect = _SLOW_SETTINGS[each.name]
        chosen = each.value.has_default or each.is_conditional or script.has_reason(each.line)
        if each.value.text.upper() == value and not chosen:
            what, edits = f"{each.name}={each.value.text} {effect}", removal(script, each)
            yield Problem(each.value, what, remedy, edits=edits)
    for launch in script.training:
        fast, module = launch.argument("fast-dev-run"), launch.program.option("module")
        if fast is not None and fast.text.lower() not in {"false", "0"} and fast.is_known:
            yield Problem(fast, "fast_dev_run ends the training after one batch", remedy, (launch.line,))
        waits = "--wait-for-client" in launch.program.texts
        if module is not None and module.text in _DEBUGGERS and (waits or module.text != "debugpy"):
            what = f"{module.text} waits for a person: the job does nothing until its time limit"
            yield Problem(module, what, "start the program without a debugger", (launch.line,), certain=True)


_FOR_ALL = re.compile(r"0?[0-7]?[0-7]{2}[2367]\Z|(?:\w*[oa]|)\+\w*w\w*(?:,|\Z)|(?:.*,)?[ugoa]*[oa][ugoa]*=\w*w")


@rule("KIT511", "warning")
def writable_for_all(script: BatchScript) -> Iterator[Problem]:
    """Files that every user of the cluster may change or delete.

    `chmod -R 777` lets each user replace the data, the checkpoints and the code that the next job runs. The same
    applies to `chmod o+w` and to `umask 000`. The rule ignores folders of the node, such as /tmp, and lines with a
    comment that names a reason.

    Fix: share with your group: `chmod -R g+rwX DIR`, or `setfacl`; `chmod -R a+rX DIR` lets everybody read.
    Documented: chmod(1); acl(5).
    """
    for step in script.commands:
        words = [text for text in step.texts[1:] if not re.match(r"-[A-Za-z-]", text)]
        on_node = bool(words[1:]) and all(_is_on_node(script, text) for text in words[1:])
        if script.has_reason(step.line, named=True):
            continue
        chmod = step.name == "chmod" and len(words) > 1 and not on_node and _FOR_ALL.match(words[0])
        # Without a letter in front, the umask applies to the `+w`.
        if chmod and not words[0].startswith("+"):
            what = f"chmod {words[0]} lets every user change and delete these files"
            yield Problem(step, what, "write chmod -R g+rwX for your group", (step.line,))
        elif step.name == "umask" and words[:1] in (["000"], ["0000"], ["0"]):
            what = "umask 000 lets every user change all files of the job"
            yield Problem(step, what, "write umask 007 or umask 022", (step.line,))


def _is_on_node(script: BatchScript, path: str) -> bool:
    """Tell whether a path is on the disk of the node, or in a folder of mktemp."""
    return OWN_DISK.match(path) is not None or script.resolve(path).startswith("$(mktemp")


_DOWNLOADS = re.compile(
    r"(?:\S*/)?(?:huggingface-cli|hf)\s+(?:repo\s+)?(?:download|upload)|huggingface_hub\b.*\bdownload|\bsnapshot_download\b"
)
_OFFLINE = frozenset({"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"})
_ON = frozenset({"1", "true", "yes", "on"})


@rule("KIT510", "warning")
def download_while_offline(script: BatchScript) -> Iterator[Problem]:
    """A download from Hugging Face after HF_HUB_OFFLINE=1.

    With HF_HUB_OFFLINE=1, huggingface_hub sends no request at all: `hf download` of a repository that is not in the
    cache ends with OfflineModeIsEnabled. The variable applies to all commands below it.

    Fix: `HF_HUB_OFFLINE=0 hf download ...`, or set the variable after the download.
    Documented: huggingface.co/docs/huggingface_hub, "Environment variables".
    """
    offline: dict[str, int] = {}
    for step in script.batch_commands:
        own = {each.name: each for each in step.written_assignments if each.name in _OFFLINE}
        text = " ".join(step.texts)
        if step.name == "unset":
            offline = {name: line for name, line in offline.items() if name not in step.texts}
        elif step.name in DECLARING or not step.words:
            for name, each in own.items():
                offline.pop(name, None)
                # A branch may choose it for a case in which nothing is downloaded.
                if (
                    each.value.raw.strip("\"'").lower() in _ON
                    and step.name == "export"
                    and not (step.is_conditional or step.around("subshell", "function"))
                ):
                    offline[name] = step.line
        elif offline and not own and _DOWNLOADS.match(text) and not re.search(r"OFFLINE=|\senv -[iu]", f" {text}"):
            name, line = next(iter(offline.items()))
            what = f"{name} is set: the download sends no request, and fails unless the cache has all"
            yield Problem(step, what, f"write {name}=0 in front of it, or set {name} after it", (line,))
            return


@rule("KIT503", "warning")
def harm_to_other_jobs(script: BatchScript) -> Iterator[Problem]:
    """A clean-up that hits other jobs on the node.

    `pkill python` and `killall` end all matching processes of the user on the node, also those of other jobs.
    `rm -rf /tmp/*` removes the files of other jobs. `rm -rf $DIR/*` removes /* if the variable is empty: the rule finds
    variables that the script does not set.

    Fix: end the processes of this job by their id (`kill "$pid"`), and remove a folder of this job, such as
    `/tmp/$SLURM_JOB_ID`. Slurm itself ends all processes of a job at its end.
    Documented: scancel(1).
    """
    # On an exclusive node, there are no other jobs.
    alone = "exclusive" in script.options
    for step in script.commands:
        match = re.search(r"\b((?:pkill|killall)\b[^;&|]*)|\bscancel (-u|--user|--me)", step.trap_code)
        if match is not None and not (match[1] and (alone or _ends_own(match[1].split()))):
            what = f"{match[0].split()[0]} also ends processes or jobs that are not of this job"
            yield Problem(step, what, 'end processes by their id: kill "$pid"')
    for launch in script.launch_lines:
        words = launch.program.texts
        if launch.program.name == "scancel" and _cancels_all(words):
            what = "scancel ends all jobs of the user, not this one alone"
            yield Problem(launch.program, what, 'write scancel "$SLURM_JOB_ID"')
        if alone:
            continue
        if launch.program.name in {"pkill", "killall"} and not _ends_own(words):
            what = f"{launch.program.name} also ends processes of other jobs on the node"
            yield Problem(launch.program, what, 'end processes by their id: kill "$pid"')
        yield from _removals(script, launch, words)


def _ends_own(words: list[str]) -> bool:
    """Tell whether pkill ends processes of this job alone: the children of a process, a session, or the job id."""
    selects = any(re.match(r"-[Pgs]|--(parent|pgroup|session)\b", text) for text in words[1:])
    return selects or any(re.search(r"SLURM_JOB_?ID", text) for text in words)


def _removals(script: BatchScript, launch: LaunchLine, words: list[str]) -> Iterator[Problem]:
    """Find an rm or find that removes files of other jobs, or all files if something before it failed."""
    if launch.program.name in {"rm", "find"} and _hits_others(words):
        what = "this removes files of other jobs on the node"
        yield Problem(launch.program, what, "remove a folder of this job only, such as /tmp/$SLURM_JOB_ID")
    cd = _unsafe_folder(script, launch) if launch.program.name == "rm" and {"*", "./*"} & set(words) else None
    if cd is not None:
        what = f"if the cd in line {cd.line} fails, this removes the files of the present folder"
        yield Problem(launch.program, what, "write cd ... || exit, or set -e at the top", (cd.line,))
    for text in words[1:] if launch.program.name == "rm" and re.search(r"\s-\w*[rR]", " ".join(words)) else ():
        whole = re.fullmatch(r"\$\{?(\w+)\}?/\*?", text)
        # Slurm and its prologs set the variables of node-local folders.
        known = whole and (whole[1] in set_variables(script) or whole[1].startswith("SLURM_") or OWN_DISK.match(text))
        known = known or (whole and script.tests_variable(whole[1]))
        if whole and not known and "nounset" not in launch.command.options:
            what = f"if ${whole[1]} is empty, this removes /*: the script does not set it"
            yield Problem(launch.program, what, f"write ${{{whole[1]}:?}}, which stops the script then")


_SHARED_FOLDER = re.compile(
    r"/(tmp|var/tmp|dev/shm|local|scratch|localscratch)(/\*|/(\$\{?USER\}?|ray|torch\S*\*)(/\*)?)?/?\Z"
)


def _hits_others(words: list[str]) -> bool:
    """Tell whether rm or find removes files in a folder that all jobs of a node share."""
    if words[0].endswith("find") and "-delete" not in words and "rm" not in words:
        return False
    return any(_SHARED_FOLDER.match(text) for text in words[1:])


def _unsafe_folder(script: BatchScript, launch: LaunchLine) -> TracedCommand | None:
    """Return the `cd` right before a command that runs even if the `cd` fails."""
    step = next(reversed(script.commands_before(launch.command)), None)
    if step is None or step.name != "cd" or step.errexit or len(step.position.chain.pipelines) > 1:
        return None
    return step


def _cancels_all(words: list[str]) -> bool:
    selects = any(re.match(r"-(n|j|t|p)|--(name|jobname|state|partition)", text) for text in words)
    users = any(re.match(r"(-\w*u|--user|--me)", text) for text in words)
    return users and not selects and not any(text.isdigit() or "JOB" in text for text in words[1:])


@rule("KIT501")
def secrets_in_script(script: BatchScript) -> Iterator[Problem]:
    """The script contains a secret.

    Slurm keeps a copy of every batch script. `scontrol write batch_script` and the accounting of many sites show it,
    and the file often ends up in a repository. Every user of a node can read a secret on a command line (`ps`). With
    `set -x`, bash prints each line with the values of its variables: the secret is in the log (a warning). The same
    applies to `env`, which prints all variables, and to `echo "$HF_TOKEN"`.

    Fix: export it in the shell that submits (sbatch passes the environment on). Or read it in the job from a file with
    mode 0600: `export WANDB_API_KEY=$(<~/.wandb_key)`, before `set -x`.
    Documented: sbatch(1), --export; scontrol(1), "write batch_script"; bash(1), set -x.
    """
    for each in script.assignments:
        value = each.value.text
        # The form alone tells a token in `${NAME:-hf_...}`.
        is_default = each.value.has_default and SHAPES.search(value)
        if each.value.is_known and not is_default and is_secret(each.name, value):
            yield _fault(each.name, each.value, value)
    for command in script.commands:
        yield from _secrets_of_command(command)
    for option in script.directive_options:
        for item in option.value.split(",") if option.name == "export" else ():
            name, equals, value = item.partition("=")
            if equals and is_secret(name, value):
                yield _fault(name, option, value)
    # Only users with processes on the node see its command lines.
    for launch in script.training if "exclusive" not in script.options else ():
        yield from _secrets_shown(launch)
    yield from _secrets_of_lines(script)
    yield from _traced_secrets(script)
    yield from _printed_secrets(script)


_PRINTS_ALL = ({"env"}, {"printenv"}, {"export"}, {"export", "-p"}, {"declare"}, {"declare", "-x"}, {"set"})
_PASSES_ON = frozenset({"cat", "head", "sort", "tee"})
"""Programs behind a pipe that print what they read."""
_SECRET_FILE = re.compile(r"(?i)(secrets?|tokens?|credentials?|api_?keys?)(\.(env|sh))?\Z|\.netrc\Z|/kaggle\.json\Z")


def _printed_secrets(script: BatchScript) -> Iterator[Problem]:
    """Find the first command that prints a secret into the log: all variables, a value, or a file."""
    secrets: dict[str, int] = {}
    exported = {each.name for each in script.assignments if each.is_exported and not each.is_for_one_command}
    for step in script.commands:
        name = _printed_secret(step, secrets)
        if name is not None:
            what = f"{' '.join(step.texts[:1])} prints the value of {name} into the log, or into a file"
            remedy = "remove the line, or print single variables: env | grep ^SLURM_"
            yield Problem(step, what, remedy, (secrets.get(name),), certain=False)
            return
        # `HF_TOKEN=... python train.py` sets the variable for this program alone.
        own = step.written_assignments if step.name in {"", *DECLARING} else []
        names = [each.name for each in own] + (step.texts[1:] if step.name == "export" else [])
        # The commands that print all variables print the exported ones.
        secrets |= {name: step.line for name in names if is_secret_name(name) and name in exported | {*step.texts}}
        if step.name == "unset":
            secrets = {name: line for name, line in secrets.items() if name not in step.texts}
        if step.name in {"source", "."} and _SECRET_FILE.search(" ".join(step.texts[1:2])):
            secrets[step.texts[1]] = step.line


def _printed_secret(step: TracedCommand, secrets: Mapping[str, int]) -> str | None:
    """Return the secret that a command prints into the log, or into a file.

    Args:
        step: The command.
        secrets: The secrets that the script has set before, with their lines.
    """
    if not _shows_output(step):
        return None
    words = [text for text in step.texts[1:] if not text.startswith("-")] if step.name == "srun" else step.texts
    if set(words) in _PRINTS_ALL:
        return next(iter(secrets), None)
    if step.syntax.output is not None:
        return None  # a file with one secret is how a program gets it
    if step.name == "cat" and len(words) == 2 and _SECRET_FILE.search(words[1]):
        return words[1]
    if step.name not in _TALKS:
        return None
    # The shell that submits passes secrets on, too. `${HF_TOKEN:+set}` and `${#HF_TOKEN}` show no value.
    variables = [part for part in step.syntax.parts if part.kind == "variable"]
    shown = [part.text for part in variables if part.raw.strip('"') in _plain_uses(part.text)]
    return next((name for name in shown if name in secrets or is_secret_name(name)), None)


def _shows_output(step: TracedCommand) -> bool:
    """Tell whether the output of a command ends in the log or a file, at most through programs that only pass it on."""
    # The code of a task prints into a log as well, but mostly tests variables of its own.
    if any(place.role == "code" for place in step.position.outward()):
        return False
    output = step.syntax.output
    if output is not None and output.raw == "/dev/null":
        return False
    behind = step.position.pipeline.commands[step.position.pipeline_index + 1 :]
    return all(isinstance(each, SimpleCommand) and program_of(each) in _PASSES_ON for each in behind)


def _plain_uses(name: str) -> tuple[str, str]:
    return f"${name}", f"${{{name}}}"


def _traced_secrets(script: BatchScript) -> Iterator[Problem]:
    """Find the first secret whose value `set -x` prints: where it is set, or where a command gets it."""
    for step in [step for step in script.batch_commands if "xtrace" in step.options]:
        # An empty value hides no secret.
        names = [each.name for each in step.written_assignments if each.value.raw.strip("\"'")]
        names += [part.text for part in step.syntax.parts if part.kind == "variable" and not part.detail]
        name = next((name for name in names if is_secret_name(name)), None)
        if name is not None:
            what = f"set -x prints the value of {name} into the log"
            yield Problem(step, what, "write set +x before it", (step.options["xtrace"],), certain=False)
            return


_SECRET_OPTION = re.compile(
    r"--(token|(\w+[-_])?((hf|hub|auth|access|api|github|wandb|user)[-_]token|api[-_]?key|password|secret))(=|\Z)"
)


def _secrets_shown(launch: LaunchLine) -> Iterator[Problem]:
    """Find secrets from a variable or a file among the arguments of the training, which `ps` shows."""
    words = launch.program.words
    for word, following in pairwise((*words, words[-1])):
        option = _SECRET_OPTION.match(word.text)
        value = word.text if "=" in word.text else following.text
        if option and re.search(r"[$`]", value):
            what = f"every user of the node can read the value of {option[0].rstrip('=')} while the program runs (ps)"
            remedy = "export it as a variable that the program reads, such as HF_TOKEN"
            yield Problem(word, what, remedy, (launch.line,), certain=False)


def _secrets_of_lines(script: BatchScript) -> Iterator[Problem]:
    """Find tokens of a known form, and lines of ~/.netrc."""
    for number, line in enumerate(script.lines, start=1):
        netrc = re.search(r"\bmachine\s+\S+\s+login\s+\S+\s+password\s+([^\s'\"$]{6,})", line)
        if netrc is not None:
            yield _fault("this", Origin(number, netrc.start(1) + 1), netrc[1])
        for match in SHAPES.finditer(line):
            if number not in script.comments or not line.lstrip().startswith("#") or line.startswith("#SBATCH"):
                yield _fault("this", Origin(number, match.start() + 1), match[0])


def _secrets_of_command(command: TracedCommand) -> Iterator[Problem]:
    """Find secrets among the arguments of a command: options, URLs, `curl -u NAME:PASSWORD`, headers with a token."""
    for name, index in secret_words(command.texts):
        value = command.texts[index].rpartition("=")[2]
        # Variables and tokens of a known form follow below.
        if not (name.startswith("-") or name == "a URL") or SHAPES.search(value) or "export" in name:
            continue
        yield _fault(f"the value of {name}" if name.startswith("-") else name, command.words[index], value)
    for word in command.words[1:] if command.name in {"mysql", "mysqldump", "sshpass"} else ():
        password = re.fullmatch(r"-p([^\s$]{4,})", word.text)
        if password is not None:
            yield _fault("this", word, password[1])
    for word, following in pairwise(command.words if command.name == "curl" else ()):
        pair = word.text in {"-u", "--user"} and re.fullmatch(r"[^\s:$]+:([^\s$]{4,})", following.text)
        header = re.match(r"(?:Authorization:\s*\w+|PRIVATE-TOKEN:)\s+([\w.-]{16,})\Z", following.text)
        match = pair or (header if word.text in {"-H", "--header"} else None)
        if match:
            yield _fault("this", following, match[1])


def _fault(name: str, place: Place, value: str) -> Problem:
    what = f"{name} is a secret, and other users can read it in the script"
    remedy = "export it in the shell that submits, or read it in the job from a file with mode 0600"
    return Problem(place, what, remedy, secret=value)
