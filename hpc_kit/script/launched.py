"""The launch lines of a script: which program starts which, and where each stands."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from hpc_kit.script.launch import read_launch
from hpc_kit.script.shell.trace import Step, Trace
from hpc_kit.script.shell.values import Environment, Text
from hpc_kit.script.stages import AGENTS, BUILTINS, HELPERS, MULTIPLIERS, Stage

LOOPS = frozenset({"for", "while", "until", "select"})


class Launch(NamedTuple):
    """One command line of the script, as the programs that start one another.

    `step` is the batch script's own command; `line` and `column` are those of the last program, which may stand
    elsewhere (in a variable, in the code of a `bash -c`).
    """

    stages: tuple[Stage, ...]
    step: Step
    inner: Step

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
        if program.kind == "python" and program.options.get("module", program.words[0]).text in {"pip", "venv"}:
            return False
        if self.multiplier is not None:
            return program.kind != "srun" and program.words[-1].text not in {"--version", "-V", "--help"}
        return program.kind == "python" and bool(program.options.keys() & {"file", "module"})


def note(
    trace: Trace, step: Step, launches: list[Launch], outer: tuple[Stage, ...] = (), root: Step | None = None
) -> None:
    """Note a command as a launch line; go through the code that it starts, too.

    Args:
        trace: What goes through the script.
        step: The command.
        launches: Where it is noted.
        outer: The programs that start it.
        root: The batch script's own command.
    """
    if step.name in BUILTINS or step.name.startswith(("$(", "`")):
        return
    for words in _components(step.words):
        _note(trace, step, words, launches, outer, root or step)


def _components(words: tuple[Text, ...]) -> list[tuple[Text, ...]]:
    """The parts of `srun --het-group=0 a : --het-group=1 b`, each as an srun of its own."""
    marks = [index for index, word in enumerate(words) if word.text == ":"]
    if words[0].text != "srun" or not marks:
        return [words]
    parts = [words[start + 1 : end] for start, end in pairwise([*marks, len(words)])]
    return [words[: marks[0]], *((words[0]._replace(pieces=part[0].pieces), *part) for part in parts if part)]


def _note(
    trace: Trace,
    step: Step,
    words: tuple[Text, ...],
    launches: list[Launch],
    outer: tuple[Stage, ...],
    root: Step,
) -> None:
    parsed = read_launch(words)
    stages = outer + parsed.stages
    task = any(stage.kind in MULTIPLIERS for stage in stages)
    for name, value in parsed.gives:
        trace.assign(name, value, task=trace.environment.task)
    if parsed.code is None or parsed.code.text.opaque:
        launches.append(Launch(stages, root, step))
        return

    def inner(trace: Trace, inside: Step) -> None:
        note(trace, inside, launches, stages, root)

    code = parsed.code
    environment = Environment({}, task=True) if code.remote else trace.environment.child(code.arguments, task=task)
    trace.code(code.text, environment, step.place, inner)
