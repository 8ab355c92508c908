"""The launch lines of a script: which program starts which, and where each stands."""

from __future__ import annotations

from itertools import pairwise
from pathlib import PurePath
from typing import NamedTuple

from hpc_kit.check.launch import read_launch
from hpc_kit.check.shell.trace import Step, Trace
from hpc_kit.check.shell.values import Environment, Read, Text
from hpc_kit.check.stages import AGENTS, BUILTINS, HELPERS, MULTIPLIERS, Code, Stage

COUNTS = frozenset({
    "nodes", "ntasks", "ntasks-per-node", "n", "np", "npernode", "nnodes", "nproc-per-node", "num-machines",
    "num-processes", "num-gpus",
})  # fmt: skip
"""Options that say how many nodes, tasks or processes there are."""

_PREPARES = frozenset({"add", "cache", "export", "install", "lock", "pip", "python", "sync", "venv"})
"""What uv and its like do besides running a program."""

LOOPS = frozenset({"for", "while", "until", "select"})


class Launch(NamedTuple):
    """One command line of the script, as the programs that start one another.

    `step` is the batch script's own command; `line` and `column` are those of the last program, which may stand
    elsewhere (in a variable, in the code of a `bash -c`); `written` is what the batch shell expanded in here-documents.
    """

    stages: tuple[Stage, ...]
    step: Step
    inner: Step
    written: tuple[Read, ...] = ()

    @property
    def reads(self) -> tuple[Read, ...]:
        """Tasks' variables that the batch shell expands in its words, or in the file that it writes for it."""
        return (*self.written, *(read for word in (*self.step.words, *self.inner.words) for read in word.reads))

    def stage(self, *kinds: str) -> Stage | None:
        """The first stage of one of these kinds."""
        return next((stage for stage in self.stages if stage.kind in kinds), None)

    @property
    def program(self) -> Stage:
        """What is started in the end."""
        return self.stages[-1]

    @property
    def multiplier(self) -> Stage | None:
        """The srun or mpirun that starts it on the nodes."""
        return self.stage(*MULTIPLIERS)

    @property
    def agent(self) -> Stage | None:
        """The torchrun, accelerate or deepspeed in it."""
        return self.stage(*AGENTS)

    @property
    def by_default(self) -> bool:
        """A count in it may come from outside; what is known is the default alone."""
        return any(stage.options[name].default for stage in self.stages for name in COUNTS & stage.options.keys())

    @property
    def repeated(self) -> bool:
        """It stands in a loop."""
        kinds = {place.compound.kind for place in self.step.place.outward() if place.compound is not None}
        return bool(kinds & LOOPS)

    @property
    def trains(self) -> bool:
        """It does the job's work: a Python program, or whatever srun starts that is no mere helper."""
        program = self.program
        if program.kind == "wrapper" or program.name in HELPERS:
            return False
        if self.agent is not None:
            return True
        if program.name in {"uv", "pixi", "poetry"} and program.words[1:2] and program.words[1].text in _PREPARES:
            return False
        if program.kind == "python" and program.options.get("module", program.words[0]).text in {"pip", "venv"}:
            return False
        if self.multiplier is not None:
            return program.kind != "srun" and program.words[-1].text not in {"--version", "-V", "--help"}
        return program.kind == "python" and bool(program.options.keys() & {"file", "module"})


def note(
    trace: Trace,
    step: Step,
    launches: list[Launch],
    outer: tuple[Stage, ...] = (),
    root: Step | None = None,
    written: tuple[Read, ...] = (),
) -> None:
    """Note a command as a launch line; go through the code that it starts, too.

    Args:
        trace: What goes through the script.
        step: The command.
        launches: Where it is noted.
        outer: The programs that start it.
        root: The batch script's own command.
        written: What the batch shell expanded in the here-documents that hold it.
    """
    if step.name in BUILTINS or step.name.startswith(("$(", "`")):
        return
    for words in _components(step.words):
        _note(trace, step, words, launches, outer, root or step, written)


def _components(words: tuple[Text, ...]) -> list[tuple[Text, ...]]:
    """The parts of `srun --het-group=0 a : --het-group=1 b`, each as an srun of its own."""
    marks = [index for index, word in enumerate(words) if word.text == ":"]
    if words[0].text != "srun" or not marks:
        return [words]
    parts = [words[start + 1 : end] for start, end in pairwise([*marks, len(words)])]
    return [words[: marks[0]], *((words[0]._replace(pieces=part[0].pieces), *part) for part in parts if part)]


def _written(trace: Trace, stdin: Text | None, stage: Stage) -> Code | None:
    """The code of a here-document: on a shell's standard input, or in a file that the script wrote before."""
    if stage.kind not in {"shell", "program", "ssh"} or "code" in stage.options:
        return None
    file = stage.words[0] if stage.kind == "program" else stage.option("file")
    body = trace.files.get(str(PurePath(file.text))) if file is not None else None
    if body is not None:
        index = next(number for number, word in enumerate(stage.words) if word is file)
        return Code(body, stage.words[index + 1 :])
    bare = stage.kind != "program" and file is None
    return Code(stdin, remote=stage.kind == "ssh") if bare and stdin is not None else None


def _note(
    trace: Trace,
    step: Step,
    words: tuple[Text, ...],
    launches: list[Launch],
    outer: tuple[Stage, ...],
    root: Step,
    written: tuple[Read, ...],
) -> None:
    parsed = read_launch(words)
    stages = outer + parsed.stages
    task = any(stage.kind in MULTIPLIERS for stage in stages)
    for name, value in parsed.gives:
        trace.assign(name, value, task=trace.environment.task)
    code = parsed.code or _written(trace, step.stdin or root.stdin, stages[-1])
    if code is None or code.text.opaque:
        launches.append(Launch(stages, root, step, written))
        return
    written = written if parsed.code else (*written, *code.text.reads)

    def inner(trace: Trace, inside: Step) -> None:
        note(trace, inside, launches, stages, root, written)

    environment = Environment({}, task=True) if code.remote else trace.environment.child(code.arguments, task=task)
    trace.code(code.text, environment, step.place, inner)
