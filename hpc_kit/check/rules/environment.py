"""Rules for the environment of the job: conda, the kind of shell, exported variables, settings for libraries."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile

from hpc_kit.check.bash_syntax import Origin
from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.command_trace import DECLARING, TracedCommand
from hpc_kit.check.expansion import ExpandedText
from hpc_kit.check.launch_lines import LaunchLine, LaunchStage
from hpc_kit.check.programs import HELPER_PROGRAMS, SHELL_BUILTINS, WRAPPERS
from hpc_kit.check.rules.finding import Place, Problem, rule
from hpc_kit.check.rules.rendezvous import removal
from hpc_kit.check.text_edits import Edit
from hpc_kit.lazy_pattern import lazy_pattern
from hpc_kit.slurm.directives import LONG_DASHES, DirectiveOption
from hpc_kit.spec.shell_code import CONTAINERS

_CONDA = frozenset({"conda", "mamba", "micromamba"})
_DEFINES_CONDA = frozenset({".", "source", "eval", "module", "ml", "spack", "use"})
_WITHOUT_CONDA = lazy_pattern(
    r"(load|add|purge|list|use|unload|rm|restore|reset|-\S*|(cuda|cudnn|nccl|gcc|gnu|nvhpc|intel|oneapi|openmpi|mpich|cmake"
    r"|git|rocm|slurm|apptainer|singularity)(/\S*)?)\Z",
    re.IGNORECASE,
)
"""Words of a `module` command that surely brings no conda."""
_LOGIN = lazy_pattern(r"#!\s*\S+.*\s(-\w*[li]\w*|--login)\b")
_QUOTES = "\u2018\u2019\u201c\u201d"
_TYPOGRAPHIC = lazy_pattern(rf"[{LONG_DASHES}][{LONG_DASHES}-]?\w|-[{LONG_DASHES}]\w|(?:\w+=)?[{_QUOTES}]")
_TALKS = frozenset({"echo", "printf"})
_SEARCHES = frozenset({"[", "awk", "find", "git", "grep", "sed", "test", "tr"})
_KNOWN = (HELPER_PROGRAMS | SHELL_BUILTINS | WRAPPERS.keys() | CONTAINERS) - _SEARCHES
"""Programs for which a long dash or a curly quote is certainly a mistake."""


@rule("KIT109", "warning", needs=("conda", "mamba"))
def conda_without_init(script: BatchScript) -> Iterator[Problem]:
    """`conda activate` in a shell without conda's set-up.

    `conda` is a shell function, and a batch script is no login shell. Without the set-up, the command ends with "Run
    'conda init' before 'conda activate'", and the script continues with another Python. `conda init` changes ~/.bashrc
    for future shells only, and `conda shell.bash ...` only prints code to evaluate. A shell that srun or the script
    starts, `srun bash -c 'conda activate pt && python train.py'`, does not inherit the function either, unless `export
    -f` exports it with all functions that it calls.

    Fix: put `eval "$(conda shell.bash hook)"` or `source .../etc/profile.d/conda.sh` before it. Or use `conda run -n
    NAME python ...`, or the interpreter of the environment, `.../envs/NAME/bin/python`.
    Documented: docs.conda.io, "conda init"; bash(1), INVOCATION.
    """
    login = _LOGIN.match(script.lines[0]) is not None
    learnt = login or not script.is_shell or "BASH_ENV" in script.options.get("export", "")
    starts_other = (launch for launch in script.launch_lines if any(map(_has_own_functions, launch.stages)))
    elsewhere = {id(step) for launch in starts_other for step in script.commands_of(launch)}
    for step in script.batch_commands:
        # A function of that name passes its arguments on: `conda() { micromamba "$@"; }`.
        own = step.name in script.functions or any(compound.name in _CONDA for compound in step.compounds)
        if own or id(step) in elsewhere:
            continue
        texts = step.texts
        name, verb, *_ = [*(texts[1:] if step.name in {"builtin", "command"} else texts), "", ""]
        # An unknown module may bring conda and its set-up.
        without = name in {"ml", "module"} and all(map(_WITHOUT_CONDA.match, texts[1:]))
        learnt = learnt or (name in _DEFINES_CONDA and not without) or any("BASH_ENV" in text for text in texts)
        printing = name in _CONDA and verb.startswith("shell.")
        if printing and step.syntax.output is None and not step.position.piped_to:
            what = f"{name} {verb} only prints shell code"
        elif name in _CONDA and verb == "activate" and not learnt:
            what = f"{name} activate needs a set-up that this shell does not have"
        else:
            continue
        yield Problem(step, what, f"write {_hook_of(name)} before {name} activate")
        # One missing set-up explains all further activations.
        if not printing:
            return
    yield from _conda_in_child(script)


def _hook_of(program: str) -> str:
    """Return the command that defines the function `conda` or `mamba` in a shell."""
    return f'eval "$({program} {"shell.bash hook" if program == "conda" else "shell hook --shell bash"})"'


def _conda_in_child(script: BatchScript) -> Iterator[Problem]:
    """Find `conda activate` in the code of a child shell, which does not get the functions of this one."""
    if not script.is_shell or _exports_functions(script):
        return
    groups: dict[int, list[LaunchLine]] = {}
    for launch in script.launch_lines:
        groups.setdefault(id(launch.command), []).append(launch)
    for launches in groups.values():
        first = _first_activation(script, launches[0])
        if first is not None and _starts_plain_shell(script, [stage for each in launches for stage in each.stages]):
            what = f"{first.name} activate needs a set-up: the new shell does not have the function of the batch shell"
            yield Problem(first, what, f"write {_hook_of(first.name)} before it, inside", (launches[0].line,))
            return


def _exports_functions(script: BatchScript) -> bool:
    """Tell whether a child shell may get functions: the script exports them, or a module does."""
    exports = re.search(r"(export|declare|typeset)\s+-\w*[fF]|set\s+-\w*a\b|set -o allexport|BASH_ENV", script.code)
    return exports is not None or any(
        step.name in {"module", "ml"} and re.search("(?i)conda|mamba|forge|python", step.text)
        for step in script.batch_commands
    )


def _first_activation(script: BatchScript, launch: LaunchLine) -> TracedCommand | None:
    """Return the `conda activate` in the code of a launch line, if nothing before it in that code defines `conda`."""
    for step in script.commands_of(launch):
        if step.name in _DEFINES_CONDA or step.name in script.functions:
            return None
        if step.name in _CONDA and step.texts[1:2] == ["activate"]:
            return step
    return None


def _starts_plain_shell(script: BatchScript, stages: list[LaunchStage]) -> bool:
    """Tell whether a line starts a shell on this system that reads no file of the user."""
    remote = any(
        stage.name in CONTAINERS - _CONDA or stage.kind == "ssh" or re.search("--container-|--image", stage.text)
        for stage in stages
    )
    shells = [stage for stage in stages if stage.kind == "shell"]
    reading = re.compile(r"\s(-\w*[li]\w*|--login|--init-file|--rcfile)(?=\s|\Z)")
    plain = shells or _runs_own_file(script, stages)
    return bool(plain) and not remote and not any(reading.search(_before_code(each)) for each in shells)


def _runs_own_file(script: BatchScript, stages: list[LaunchStage]) -> bool:
    """Tell whether a launch starts a file of the script for a shell that is no login shell."""
    bodies = (script.file_written_to(stage.words[0].text) for stage in stages if stage.kind == "program")
    return any(body is not None and re.match(r"#!.*sh\s*\n", body.text) for body in bodies)


def _before_code(shell: LaunchStage) -> str:
    """Return the options of a shell, in front of its code or file."""
    code = shell.option("code", "file")
    return " ".join(word.text for word in takewhile(lambda word: word is not code, shell.words))


def _has_own_functions(stage: LaunchStage) -> bool:
    """Tell whether a stage starts a shell that does not get the functions of the batch shell."""
    return stage.kind in {"shell", "ssh"} or stage.name in CONTAINERS - _CONDA


@rule("KIT110")
def typographic_characters(script: BatchScript) -> Iterator[Problem]:
    """A dash or a quote of a word processor or web page.

    A long dash (U+2013) starts no option, and a curly quote quotes nothing. Both look right but are ordinary letters,
    so that the program gets them as an argument. In the first line, the shell takes the dash for a file name. The
    finding is a warning if the program may want the character: an unknown program, or one that searches for text.

    Fix: type `-`, `"` and `'` instead.
    Documented: bash(1), QUOTING.
    """
    if script.text.isascii():
        return
    match = re.search(rf"\s[{LONG_DASHES}]", script.lines[0])
    if script.lines[0].startswith("#!") and match is not None:
        yield _typed(Origin(1, match.start() + 2), script.lines[0][match.end() - 1])
    started = [each for each in script.launch_lines if each.multiplier or each.agent or each.program.kind != "program"]
    starts = {id(step) for each in started for step in (each.command, each.inner_command)}
    for step in script.commands:
        if step.name in _TALKS or _only_talks(script, step.name):
            continue
        # Slurm, launchers and usual tools have no use for such a letter.
        known = step.name.rpartition("/")[2] in _KNOWN
        sure = known or id(step) in starts
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
        if "=" in directive.value and _passes_little(directive.value):
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
            if export is not None and "=" in export.text and _passes_little(export.text):
                what = f"--export={export.text} passes on nothing else: the job has none of your variables"
                yield Problem(export, what, f"write --export=ALL,{export.text}", (launch.line,), certain=False)


def _passes_little(export: str) -> bool:
    """Tell whether a value of --export names single variables alone. A variable may expand to ALL or to a list."""
    names = {item.partition("=")[0].upper() for item in export.split(",")}
    return names.isdisjoint({"ALL", "NIL", "NONE", "PATH"}) and not any("$" in name for name in names)


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
    else:
        if _passes_little(export.text):
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


_BASH_ONLY = lazy_pattern(
    r"\s*(?:(?:if|while|until|elif)\s+)?"
    r"(\[\[\s|source\s|declare\s|\w+=\(|\w+\+=|function\s+\w+\s*(?:\(\))?\s*\{|pushd\s|set\s+-\w*o\s+pipefail|\(\()"
)
_BASH_INSIDE = lazy_pattern(r"(\[ [^\]]+ ==(?= )|<<<|&>|\$\{\w+(?:\^|,|//|:\d|\[)|\s<\(|\{\d+\.\.\d+\}|\$RANDOM\b)")
_IN_SH = lazy_pattern(r"(?:\A|[;&|]\s*)(source|declare|pushd|\[\[)\s")


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


_SYSTEM_FILE = lazy_pattern(r"(~|\$\{?HOME\}?)/\.(bashrc|bash_profile|profile)\Z|/etc/(bashrc|profile|bash\.bashrc)\Z")


@rule("KIT124", "warning")
def conda_with_nounset(script: BatchScript) -> Iterator[Problem]:
    """`conda activate` or ~/.bashrc after `set -u`.

    Scripts that conda runs at activation, such as those of its compilers, read variables that are not set, and so do
    ~/.bashrc and /etc/bashrc. With `set -u` the job ends there ("BASHRCSOURCED: unbound variable").

    Fix: `set +u` before the activation, and `set -u` after it.
    Documented: bash(1), set -u; conda/conda issue 8186 is one of many.
    """
    for step in script.batch_commands:
        if "nounset" not in step.options:
            continue
        texts = step.texts
        sourced = " ".join(texts[1:]) if step.name in {"source", "."} else ""
        # The `activate` of a venv gets no name of an environment.
        conda = re.match(r"activate(?=\s|\Z)|\S*(conda|mamba|forge)\S*/bin/activate\b|\S+/bin/activate \S", sourced)
        activates = texts[:2] in (["conda", "activate"], ["mamba", "activate"])
        if activates or conda or _SYSTEM_FILE.match(sourced):
            what = f"{' '.join(texts[:2])} under set -u: it may read an unset variable"
            yield Problem(step, what, "write set +u before it, and set -u after it", (step.options["nounset"],))
            return


_SLOW_SETTINGS = {
    "CUDA_LAUNCH_BLOCKING": ("1", "waits for each kernel"),
    "HIP_LAUNCH_BLOCKING": ("1", "waits for each kernel"),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL", "checks every collective on all ranks"),
    "NCCL_DEBUG": ("TRACE", "prints a line for every call of NCCL"),
    "NCCL_DEBUG_SUBSYS": ("ALL", "prints every part of NCCL"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": ("1", "asks CUDA for memory at each allocation"),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": ("0", "lets ranks wait for a failed one until the time limit"),
    "NCCL_ASYNC_ERROR_HANDLING": ("0", "lets ranks wait for a failed one until the time limit"),
}
_DEBUG_OPTIONS = {
    "fast-dev-run": (r"(?!false\Z|0\Z)[^$]*", "ends the training after one batch"),
    "overfit-batches": (r"(?!0(?:\.0*)?\Z)[\d.]+", "trains on a few batches alone"),
    "detect-anomaly": (r"(?!false\Z|0\Z|none\Z|null\Z)[^$]*", "checks every gradient, which takes long"),
    "limit-train-batches": (r"1?\d", "ends each epoch after a few batches"),
}
"""Options of trainers, each with a pattern for the values that are meant for debugging."""
_DEBUGGING_TIME = 3600
"""Seconds. A shorter job is for debugging."""
_DEBUGGERS = frozenset({"pdb", "ipdb", "debugpy", "pudb"})


@rule(
    "KIT312",
    "warning",
    needs=(
        "launch_blocking",
        "distributed_debug",
        "nccl_debug",
        "memory_caching",
        "error_handling",
        "fast",
        "overfit",
        "anomaly",
        "limit",
        "pdb",
        "debugpy",
        "pudb",
    ),
)
def debug_settings(script: BatchScript) -> Iterator[Problem]:
    """A setting for debugging that slows training down, or keeps it from training.

    CUDA_LAUNCH_BLOCKING=1 makes each kernel wait for the one before it. TORCH_DISTRIBUTED_DEBUG=DETAIL compares every
    collective between the ranks. NCCL_DEBUG=TRACE fills the log. Lightning's fast_dev_run ends after one batch;
    overfit_batches, detect_anomaly and a few limit_train_batches are for debugging, too. A debugger waits for input
    that a batch job does not have (an error). The rule ignores settings with a comment that gives the reason, settings
    in a branch, and jobs of at most an hour.

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
        module = launch.program.option("module")
        for name, (value, effect) in _DEBUG_OPTIONS.items():
            text = launch.argument(name) if not brief or name == "fast-dev-run" else None
            if text is not None and re.fullmatch(value, text.text, re.IGNORECASE):
                yield Problem(text, f"{name.replace('-', '_')} {effect}", remedy, (launch.line,))
        waits = "--wait-for-client" in launch.program.texts
        if module is not None and module.text in _DEBUGGERS and (waits or module.text != "debugpy"):
            what = f"{module.text} waits for a person: the job does nothing until its time limit"
            yield Problem(module, what, "start the program without a debugger", (launch.line,), certain=True)


_DOWNLOADS = lazy_pattern(
    r"(?:\S*/)?(?:huggingface-cli|hf)\s+(?:repo\s+)?(?:download|upload)|huggingface_hub\b.*\bdownload|\bsnapshot_download\b"
)
_OFFLINE = frozenset({"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"})
_ON = frozenset({"1", "true", "yes", "on"})


@rule("KIT510", "warning", needs=("offline",))
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
        text = step.text
        if step.name == "unset":
            offline = {name: line for name, line in offline.items() if name not in step.texts}
        elif step.name in DECLARING or not step.words:
            # A branch may choose it for a case in which nothing is downloaded.
            lasting = step.name == "export" and not (step.is_conditional or step.around("subshell", "function"))
            switched = {name: step.line for name, each in own.items() if each.value.unquoted.lower() in _ON}
            offline = {name: line for name, line in offline.items() if name not in own} | (switched if lasting else {})
        elif offline and not own and _DOWNLOADS.match(text) and not re.search(r"OFFLINE=|\senv -[iu]", f" {text}"):
            name, line = next(iter(offline.items()))
            what = f"{name} is set: the download sends no request, and fails unless the cache has all"
            yield Problem(step, what, f"write {name}=0 in front of it, or set {name} after it", (line,))
            return
