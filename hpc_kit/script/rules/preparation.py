"""Rules of what goes before the launch: the environment, and files on a node's own disk."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from hpc_kit.script.directive_lines import LONG_DASHES
from hpc_kit.script.launched import Launch
from hpc_kit.script.reader import Script
from hpc_kit.script.rules.base import Fault, Rule, Subject, rule
from hpc_kit.script.shell.trace import Step
from hpc_kit.script.stages import BUILTINS, CONTAINERS, HELPERS, WRAPPERS

_CONDA = frozenset({"conda", "mamba", "micromamba"})
_DEFINES_CONDA = frozenset({".", "source", "eval", "module", "ml", "spack", "use"})
_LOGIN = re.compile(r"#!\s*\S+.*\s(-\w*[li]\w*|--login)\b")
_QUOTES = "\u2018\u2019\u201c\u201d"
_TYPOGRAPHIC = re.compile(rf"[{LONG_DASHES}][{LONG_DASHES}-]?\w|-[{LONG_DASHES}]\w|(?:\w+=)?[{_QUOTES}]")
_OWN_DISK = re.compile(r"(\$\{?(SLURM_TMPDIR|TMPDIR|LOCAL_?SCRATCH|TMP)\b\}?|/tmp|/dev/shm|/local)(?=/|\Z)")
_TALKS = frozenset({"echo", "printf"})
_KNOWN = (HELPERS | BUILTINS | WRAPPERS.keys() | CONTAINERS) - {"[", "awk", "find", "git", "grep", "sed", "test", "tr"}
"""Programs that take a long dash or a curly quote for no text that they search for, or keep for people."""


@rule("KIT109", "warning")
def lost_conda(subject: Subject) -> Iterator[Fault]:
    """`conda activate` where no shell has learnt it.

    It is a function of the shell, and a batch script is no login shell: without conda's set-up it ends with "Run
    'conda init' before 'conda activate'", and the script goes on with another Python. `conda init` writes to ~/.bashrc,
    for shells to come, and `conda shell.bash ...` only prints what is to be evaluated.

    Mend: `eval "$(conda shell.bash hook)"` or `source .../etc/profile.d/conda.sh` in front of it; or
    `conda run -n NAME python ...`, or the environment's own `.../envs/NAME/bin/python`.
    Documented: docs.conda.io, "conda init"; bash(1), INVOCATION.
    """
    script = subject.script
    learnt = (
        not script.is_shell or bool(_LOGIN.match(script.lines[0])) or "BASH_ENV" in script.options.get("export", "")
    )
    for step in script.steps:
        if step.task or step.name in script.functions or _in_login_shell(script, step):
            continue
        texts = [word.text for word in step.words]
        name, verb, *_ = [*(texts[1:] if step.name in {"builtin", "command"} else texts), "", ""]
        learnt = learnt or name in _DEFINES_CONDA or any("BASH_ENV" in text for text in texts)
        printing = name in _CONDA and verb.startswith("shell.")
        if printing and not _taken_up(step):
            what = f"{name} {verb} prints shell code, and changes nothing"
        elif name in _CONDA and verb == "activate" and not learnt:
            what = f"{name} activate, and nothing above tells this shell of it"
        else:
            continue
        hook = "conda shell.bash hook" if name == "conda" else f"{name} shell hook --shell bash"
        yield Fault(step.line, step.command.column, what, f'eval "$({hook})", and then {name} activate')
        if not printing:
            return


def _in_login_shell(script: Script, step: Step) -> bool:
    """It stands in the code of a `bash -l`, which reads what `conda init` wrote."""
    inside = [launch for launch in script.launches if launch.inner is step]
    shells = (stage for launch in inside for stage in launch.stages if stage.kind == "shell")
    return any(_LOGIN.match("#!" + " ".join(word.text for word in stage.words)) for stage in shells)


def _taken_up(step: Step) -> bool:
    """Its output goes into a file or a pipe."""
    return step.command.output is not None or step.place.position + 1 < len(step.place.pipeline.commands)


@rule("KIT110")
def typographic_characters(subject: Subject) -> Iterator[Fault]:
    """A dash or a quote as word processors and web pages set it.

    A long dash (U+2013) begins no option, and a curly quote quotes nothing: both look right and are ordinary letters,
    so that the program takes them for its first argument. In the first line, the shell takes it for a file. It is a
    warning where the program may want them as they are: one that is not known, or that searches for text.

    Mend: type `-`, `"` and `'` anew.
    Documented: bash(1), QUOTING.
    """
    script = subject.script
    match = re.search(rf"\s[{LONG_DASHES}]", script.lines[0])
    if script.lines[0].startswith("#!") and match is not None:
        yield _typed(1, match.start() + 2, script.lines[0][match.end() - 1])
    started = [each for each in script.launches if each.multiplier or each.agent or each.program.kind != "program"]
    for step in script.steps:
        if step.name in _TALKS or _only_talks(script, step.name):
            continue
        sure = step.name.rpartition("/")[2] in _KNOWN or any(
            step is each.step or step is each.inner for each in started
        )
        for word in step.command.words:
            for part in word.parts[:1]:
                found = _TYPOGRAPHIC.match(part.text) if part.kind == "text" and not part.quoted else None
                if found is not None:
                    letter = next(each for each in found[0] if each in LONG_DASHES + _QUOTES)
                    yield _typed(word.line, word.column, letter)._replace(severity=None if sure else "warning")


def _only_talks(script: Script, name: str) -> bool:
    """A function of the script that writes what it is given for people to read."""
    return name in script.functions and all(
        step.name in {*_TALKS, "", "date", "local"} for step in script.functions[name]
    )


def _typed(line: int, column: int, letter: str) -> Fault:
    plain = "-" if letter in LONG_DASHES else "'" if letter in _QUOTES[:2] else '"'
    return Fault(line, column, f"{letter} is no {plain}, and nothing to the shell", f"type {plain} instead")


@rule("KIT212", "warning")
def one_nodes_disk(subject: Subject) -> Iterator[Fault]:
    """A node's own disk is filled on the first node only.

    The batch script runs on the first node, and $SLURM_TMPDIR, /tmp and the like are each node's own: what it
    unpacks or installs there is not there for the tasks on the other nodes.

    Mend: once a node, `srun --ntasks=$SLURM_NNODES --ntasks-per-node=1 tar -xf ...`, or sbcast; or a folder that all
    nodes share.
    Documented: sbcast(1); docs.alliancecan.ca/wiki/PyTorch, "Multi-node".
    """
    script = subject.script
    wide = [launch for launch in script.launches if launch.trains and script.geometry_of(launch).several_nodes]
    if not wide or not script.geometry.several_nodes:
        return
    filled: dict[str, Step] = {}
    inside: str | None = None
    for step in script.steps:
        if step.task or not step.words:
            continue
        if step.name == "cd":
            inside = _entered(step, inside)
        folder = _filled(step)
        if folder is not None:
            filled.setdefault(folder, step)
        elif inside is not None and _fills_here(step):
            launch = next((each for each in wide if each.step.line > step.line), None)
            if launch is not None and not _leaves(script, step, launch.step):
                yield _first_only(inside, step, launch)
                return
    for folder, step in filled.items():
        mentions = [text for each in script.steps if each is not step for text in (word.text for word in each.words)]
        mentions += [each.value.text for each in script.assigned if each.line > step.line]
        if any(_plain(text).find(folder) >= 0 for text in mentions):
            yield _first_only(folder, step, wide[0])


def _first_only(folder: str, step: Step, launch: Launch) -> Fault:
    what = f"{folder} is the first node's own: the tasks on the other nodes find nothing there"
    remedy = f"srun --ntasks=$SLURM_NNODES --ntasks-per-node=1 {step.name} ..."
    return Fault(step.line, step.command.column, what, remedy, (launch.step.line,))


def _entered(step: Step, before: str | None) -> str | None:
    """The node's own folder in which the shell is after a `cd`."""
    target = _plain(step.words[1].text) if len(step.words) > 1 else "~"
    if _OWN_DISK.match(target):
        return target
    return None if target.startswith(("/", "$", "~", "-")) else before


def _fills_here(step: Step) -> bool:
    """A command that writes files into the folder in which it is run."""
    rest = [word.text for word in step.words[1:]]
    if step.name in {"cp", "rsync"}:
        return bool(rest) and not rest[-1].startswith(("/", "$", "~"))
    if step.name == "git":
        return rest[:1] == ["clone"]
    there = {"-C", "--directory", "-d"} & set(rest)
    return not there and (step.name == "unzip" or (step.name == "tar" and "x" in "".join(rest[:1])))


def _leaves(script: Script, first: Step, last: Step) -> bool:
    """Between the two the shell goes elsewhere."""
    between = [step for step in script.steps if first.line < step.line < last.line and step.name == "cd"]
    return any(_entered(step, "here") is None for step in between)


def _plain(text: str) -> str:
    return re.sub(r"\$\{(\w+)\}", r"$\1", text)


def _filled(step: Step) -> str | None:
    """The folder on a node's own disk that a command fills."""
    texts = [word.text for word in step.words]
    name, rest = step.name.rpartition("/")[2], texts[1:]
    places: list[str] = []
    if name in {"cp", "rsync"}:
        places = rest[-1:]
    elif name in {"tar", "unzip"}:
        places = [value for option, value in pairwise(rest) if option in {"-C", "--directory", "-d"}]
    elif name == "virtualenv" or rest[:2] == ["-m", "venv"] or (name, *rest[:1]) == ("uv", "venv"):
        places = rest[-1:]
    match = _OWN_DISK.match(places[-1]) if places else None
    return None if match is None else _plain(places[-1]).rstrip("/.")


RULES: tuple[Rule, ...] = (lost_conda, typographic_characters, one_nodes_disk)
