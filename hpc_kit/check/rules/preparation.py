"""Rules of what goes before the launch: the environment, and words as they were typed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpc_kit.check.batch_script import Script
from hpc_kit.check.rules.base import Fault, Rule, Subject, rule
from hpc_kit.check.shell.trace import Step
from hpc_kit.check.stages import BUILTINS, CONTAINERS, HELPERS, WRAPPERS
from hpc_kit.slurm.directives import LONG_DASHES

_CONDA = frozenset({"conda", "mamba", "micromamba"})
_DEFINES_CONDA = frozenset({".", "source", "eval", "module", "ml", "spack", "use"})
_LOGIN = re.compile(r"#!\s*\S+.*\s(-\w*[li]\w*|--login)\b")
_QUOTES = "\u2018\u2019\u201c\u201d"
_TYPOGRAPHIC = re.compile(rf"[{LONG_DASHES}][{LONG_DASHES}-]?\w|-[{LONG_DASHES}]\w|(?:\w+=)?[{_QUOTES}]")
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


RULES: tuple[Rule, ...] = (lost_conda, typographic_characters)
