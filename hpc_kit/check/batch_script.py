"""Reads any sbatch script, ours or hand-written, without running it: directives, commands, launch lines, variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import PurePath

from hpc_kit.check.geometry import het_groups, step_geometry
from hpc_kit.check.launched import Launch, note
from hpc_kit.check.shell.csh import CSH, as_sh
from hpc_kit.check.shell.parse import Parsed, parse
from hpc_kit.check.shell.trace import Assigned, Step, Trace, seed
from hpc_kit.check.shell.values import Environment
from hpc_kit.check.stages import SHELLS, Stage
from hpc_kit.slurm.directives import (
    DirectiveOption,
    DirectiveProblem,
    DirectiveReport,
    Directives,
    find_directive_options,
)
from hpc_kit.slurm.sizes import UNKNOWN, JobSize, size_of_job, sum_sizes


class Script:
    """A batch script that was read.

    Args:
        text: Its text.
        name: How messages call it.
    """

    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self.name = name
        self.lines = text.replace("\r\n", "\n").split("\n")

    @cached_property
    def interpreter(self) -> str | None:
        """The interpreter's name, without folder; None where the first line names none."""
        words = self.lines[0].removeprefix("#!").split() if self.lines[0].startswith("#!") else []
        if words and PurePath(words[0]).name == "env":
            words = [word for word in words[1:] if not word.startswith("-")]
        return PurePath(words[0]).name if words else None

    @property
    def is_shell(self) -> bool:
        """It is shell, as far as is known."""
        return self.interpreter is None or self.interpreter in SHELLS

    @cached_property
    def _read(self) -> DirectiveReport:
        return find_directive_options(self.lines)

    @property
    def directives(self) -> Directives:
        """Its #SBATCH lines."""
        return self._read.directives

    @property
    def problems(self) -> tuple[DirectiveProblem, ...]:
        """Directives that Slurm would not take."""
        return self._read.problems

    @property
    def given(self) -> tuple[DirectiveOption, ...]:
        """Each option of the directives, in order."""
        return self._read.options

    @property
    def heterogeneous(self) -> bool:
        """A `#SBATCH hetjob` parts it: there is no one number of nodes."""
        return len(self.directives.components()) > 1

    @cached_property
    def options(self) -> dict[str, str]:
        """The last value of each option; the empty string for one without."""
        return {each.name: each.value for each in self.given}

    def line_of(self, *names: str, launch: Launch | None = None) -> int | None:
        """The line that gives one of these options (the last one, which counts), to a launch line's component."""
        parts = range(len(self.parts)) if launch is None else self.components_of(launch)
        given = [each.line for each in self.given if each.name in names and each.component in parts]
        return given[-1] if given else None

    def place_of(self, name: str) -> tuple[int, int]:
        """Line and column of the last directive that gives an option."""
        return next(((each.line, each.column) for each in reversed(self.given) if each.name == name), (0, 0))

    @cached_property
    def parts(self) -> tuple[dict[str, DirectiveOption], ...]:
        """The last of each option, by component: one, unless the job is heterogeneous."""
        parts: list[dict[str, DirectiveOption]] = [{} for _ in self.directives.components()]
        for each in self.given:
            parts[each.component][each.name] = each
        return tuple(parts)

    def components_of(self, launch: Launch) -> list[int]:
        """The components on which a launch line starts: the first one, unless it says --het-group."""
        groups = het_groups(launch.stage("srun"))
        return [index for index in range(len(self.parts)) if groups is None or index in groups]

    @cached_property
    def geometry(self) -> JobSize:
        """How many nodes and tasks it asks for."""
        return UNKNOWN if self.heterogeneous else size_of_job(self.options)

    def geometry_of(self, launch: Launch) -> JobSize:
        """How many nodes and tasks a launch line gets."""
        if self.heterogeneous:
            jobs = [size_of_job(values(self.parts[index])) for index in self.components_of(launch)]
            counts = [step_geometry(job, launch.multiplier) for job in jobs]
            return sum_sizes(counts) if launch.stage("srun") else UNKNOWN
        remote = launch.stage("ssh")
        if remote is None:
            return step_geometry(self.geometry, launch.multiplier)
        # Hosts are mostly those of the job, one after the other.
        return self.geometry.once_per_node() if launch.repeated or remote.name != "ssh" else UNKNOWN

    @cached_property
    def _parsed(self) -> Parsed:
        if self.interpreter in CSH:
            return parse(as_sh(self.lines))
        return parse("\n".join(self.lines) if self.is_shell else "")

    @property
    def comments(self) -> frozenset[int]:
        """Lines with a comment of the shell; text of here-documents and quotes is none."""
        return self._parsed.comments

    @cached_property
    def _trace(self) -> tuple[Trace, tuple[Launch, ...]]:
        launches: list[Launch] = []
        trace = Trace(
            Environment(seed(self.geometry.variables(), 1)),
            errexit=bool(re.match(r"#!\S+\s+-\w*e", self.lines[0])),
            nested=lambda trace, step: note(trace, step, launches),
        )
        trace.block(self._parsed.block)
        return trace, tuple(launches)

    @property
    def steps(self) -> list[Step]:
        """Every command, in order; those in the code of a `bash -c` too."""
        return self._trace[0].steps

    @cached_property
    def functions(self) -> dict[str, list[Step]]:
        """The shell functions that it defines, each with the commands in it."""
        found: dict[str, list[Step]] = {}
        for step in self.steps:
            for place in step.place.outward():
                if place.compound is not None and place.compound.kind == "function":
                    found.setdefault(place.compound.name, []).append(step)
        return found

    @property
    def assigned(self) -> list[Assigned]:
        """Every variable that is given a value, in order."""
        return self._trace[0].assigned

    def tells(self, agent: Stage, option: str) -> bool:
        """The environment gives torchrun an option that its line does not: PET_NNODES is --nnodes."""
        name = "PET_" + option.upper().replace("-", "_")
        told = any(each.name == name for each in self.assigned)
        return told and agent.kind == "torchrun" and option not in agent.options

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Every command that starts a program, as a launch line."""
        return self._trace[1]

    def is_cut(self, launch: Launch) -> bool:
        """The next command is an option: the line was meant to go on."""
        index = next(number for number, step in enumerate(self.steps) if step is launch.inner)
        return index + 1 < len(self.steps) and bool(re.match(r"--?[A-Za-z]", self.steps[index + 1].name))

    @property
    def sources_others(self) -> bool:
        """It reads other files of shell in, beside the usual set-up of an environment: what they set is not known."""
        usual = re.compile(r"(activate|conda\.sh|bashrc|bash_profile|profile|modules?\.sh|lmod.*|init/bash)\Z")
        return any(
            step.name in {".", "source"} and len(step.words) > 1 and not usual.search(step.words[1].text)
            for step in self.steps
            if not step.task
        )

    @property
    def readable(self) -> bool:
        """All its commands are known, though perhaps not in which order they run."""
        return (self.is_shell or self.interpreter in CSH) and self._parsed.trouble is None

    @property
    def unread(self) -> str | None:
        """What of it could not be read."""
        if self.interpreter in CSH:
            return f"how it ends: it is for {self.interpreter}"
        if not self.is_shell:
            return f"the shell's rules: it is for {self.interpreter}"
        trouble = self._parsed.trouble
        return f"what follows line {trouble.line}: {trouble.what}" if trouble else None


def values(options: Mapping[str, DirectiveOption]) -> dict[str, str]:
    """The values of options by name."""
    return {name: each.value for name, each in options.items()}


def read_script(text: str, name: str = "script") -> Script:
    """DirectiveReport a batch script; nothing of it is run, and nothing in it is an error here.

    Args:
        text: The script.
        name: How messages call it.
    """
    return Script(text, name)
