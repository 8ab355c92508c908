"""Converts a hand-written batch script to a job file, and names the lines that a job file has no place for."""

from __future__ import annotations

import re
import shlex
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import structs

from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.programs import AGENTS, HELPER_PROGRAMS, MULTIPLIERS, PYTHON, SHELL_BUILTINS
from hpc_kit.lazy_pattern import lazy_pattern
from hpc_kit.slurm.directives import is_het_mark
from hpc_kit.slurm.units import is_number
from hpc_kit.spec.job import Job, Launch, Value
from hpc_kit.spec.launcher_command import LauncherCommand, find_launcher
from hpc_kit.spec.resources import Resources
from hpc_kit.spec.secrets import looks_secret, secret_arguments
from hpc_kit.spec.shell_code import CONTAINERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hpc_kit.check.bash_syntax import Statement
    from hpc_kit.check.command_trace import TracedAssignment, TracedCommand
    from hpc_kit.check.expansion import ExpandedText
    from hpc_kit.check.launch_lines import LaunchLine, LaunchStage
    from hpc_kit.slurm.directives import DirectiveOption

ONE_SUBMISSION = frozenset({"gid", "ignore-pbs", "parsable", "quiet", "test-only", "uid", "verbose", "wait", "wrap"})
"""Options of one submission, which have no place in a job file."""

RENDEZVOUS = frozenset({
    "GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MACHINE_RANK", "MAIN_PROCESS_IP", "MAIN_PROCESS_PORT",
    "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "RANK", "WORLD_SIZE",
})  # fmt: skip
"""Variables of the rendezvous, which the job sets itself."""

PRINTING = frozenset({
    "date", "df", "echo", "env", "free", "hostname", "id", "ls", "lscpu", "nvcc", "nvidia-smi", "printenv", "printf",
    "pwd", "rocm-smi", "scontrol", "sleep", "sync", "type", "uname", "wait", "which", "whoami",
})  # fmt: skip
"""Commands that only print, or wait."""

_SRUN_SILENT = frozenset({
    "cpus-per-task", "export", "gpus", "gpus-per-node", "gpus-per-task", "gres", "het-group", "job-name",
    "kill-on-bad-exit", "label", "nodes", "ntasks", "ntasks-per-node", "unbuffered", "wait", "mem", "partition",
    "account", "time", "overlap", "exact", "exclusive", "jobid", "output", "error", "open-mode", "verbose",
})  # fmt: skip
"""srun's options that the script of a job file sets itself, or that have a key."""

_OWN_AGENT_OPTIONS = frozenset({
    "gpu-ids", "hostfile", "include", "local-addr", "m", "machine-rank", "main-process-ip", "main-process-port",
    "master-addr", "master-port", "mixed-precision", "module", "multi-gpu", "nnodes", "no-python", "node-rank",
    "nproc-per-node", "num-gpus", "num-machines", "num-nodes", "num-processes", "rdzv-backend", "rdzv-conf",
    "rdzv-endpoint", "rdzv-id", "same-network", "standalone", "use-env",
})  # fmt: skip
"""Options of torchrun, accelerate and deepspeed that the job file replaces."""


_ITEM = lazy_pattern(r"\$\{(\w+)\[(?![@*]\]|[^]]*(?:PROCID|LOCALID|NODEID))[^]]+\]\}")
"""An item of an array with the same index in all tasks: `${LRS[$SLURM_ARRAY_TASK_ID]}`."""


_PROGRAM = lazy_pattern(r"[\w$\"'{~]")
"""Start of a program's name: no option, and no text of another language."""


class ImportNote(NamedTuple):
    """Something that the job file does not contain, with its line in the script."""

    line: int | None
    text: str


class ImportedJob(NamedTuple):
    """The job of a batch script, and notes about the rest of the script, in the order of its lines."""

    job: Job
    notes: tuple[ImportNote, ...]


def import_script(text: str, name: str, file: str | None = None) -> ImportedJob:
    """Convert a batch script to a job.

    Args:
        text: The text of the script.
        name: Name of the job if the script gives none.
        file: Name of the file of the script [default: `name`].
    """
    return _Importer(BatchScript(text, file or name), name).result()


class _Group(NamedTuple):
    """Statements of the script that share lines, from `start` to `end`."""

    start: int
    end: int
    statements: tuple[Statement, ...]


class _Importer:
    """Collects the parts of the job and the notes of one script."""

    def __init__(self, script: BatchScript, name: str) -> None:
        self.script = script
        self.name = name
        self.notes: list[ImportNote] = []
        self.env: dict[str, Value] = {}
        self.items: dict[str, str] = {}

    def note(self, line: int | None, text: str) -> None:
        self.notes.append(ImportNote(line, text))

    def result(self) -> ImportedJob:
        """Read the script, and return the job with the notes."""
        resources, name = self._resources()
        job = Job(name=name, description=f"imported from {self.script.name}", resources=resources)
        self._name_unread_parts()
        launch = self._chosen_launch()
        if launch is not None:
            job = self._with_command(job, launch)
        read = " ".join((*job.command, *self.items))
        setup = (*self._setup(launch, read), *(f"export {name}={item}" for item, name in self.items.items()))
        job = structs.replace(job, setup=setup, env=self.env)
        return ImportedJob(job, tuple(sorted(dict.fromkeys(self.notes), key=lambda note: note.line or 0)))

    def _resources(self) -> tuple[Resources, str]:
        values: dict[str, object] = {}
        options = self.script.components[0]
        for name, option in options.items():
            key = name.replace("-", "_")
            if name in ONE_SUBMISSION:
                self.note(option.line, f"--{name} belongs to one submission: add it to hpc-kit submit")
            elif key not in Resources.__struct_fields__:
                self.note(option.line, f"--{name} has no key in [resources]")
            elif name != "job-name":
                values |= self._option(key, option)
        self._name_lost_directives()
        if self.script.is_heterogeneous:
            mark = next(each.line for each in self.script.directives.lines if is_het_mark(each.text))
            self.note(mark, "a heterogeneous job: write a [[component]] table for each component")
        size = self.script.size
        # Without --nodes, Slurm may pack the tasks on any number of nodes. One task needs one node.
        open_count = (
            size.nodes is None and (size.ntasks or 2) > 1 and ("ntasks-per-node" not in options or "nodes" in options)
        )
        if open_count and not self.script.is_heterogeneous:
            line = self.script.line_of("nodes", "ntasks", "n")
            self.note(line, "Slurm would choose the number of nodes; a job file needs it: add nodes to [resources]")
        return msgspec.convert(values, Resources), self._job_name(options.get("job-name"))

    def _name_lost_directives(self) -> None:
        for problem in self.script.problems:
            self.note(problem.line, f"Slurm refuses this directive: {problem.error.what}")
        for late in self.script.directives.late:
            self.note(late.line, "Slurm ignores this directive, because it is below the first command")
        for foreign in self.script.directives.foreign:
            self.note(foreign.line, "a directive of another scheduler")
        known = {option.line for component in self.script.components for option in component.values()}
        refused = {problem.line for problem in self.script.problems}
        for each in self.script.directives.lines:
            if each.words and each.line not in known | refused and not is_het_mark(each.text):
                image = re.search(r"--container-image[= ](\S+)", each.text)
                advice = f"; set [environment] pyxis = '{image[1]}' in the cluster file" if image else ""
                self.note(each.line, f"an option that a later line replaces, or of a plug-in: {each.text}{advice}")

    def _job_name(self, option: DirectiveOption | None) -> str:
        if option is None:
            return self.name
        if re.fullmatch(r"[\w.+-]+", option.value):
            return option.value
        self.note(option.line, f"job name {option.value!r}: a folder of runs has letters, digits and . + - _ only")
        return self.name

    def _option(self, key: str, option: DirectiveOption) -> dict[str, object]:
        """Return one key of [resources] with a value of the right type."""
        value: object = option.value
        candidates: list[object] = [int(option.value)] if is_number(option.value) else []
        candidates += [value] if value else [True]
        for candidate in candidates:
            # `--time=090` and `--account=007` keep their spelling.
            if isinstance(candidate, int) and candidate is not True and str(candidate) != option.value:
                continue
            try:
                msgspec.convert({key: candidate}, Resources)
            except msgspec.ValidationError:
                continue
            return {key: candidate}
        self.note(option.line, f"--{option.name}={option.value}: [resources] does not accept this value")
        return {}

    def _name_unread_parts(self) -> None:
        if self.script.unread_part:
            self.note(None, f"not read: {self.script.unread_part}")
        if self.script.lines and not self.script.lines[0].startswith("#!"):
            self.note(1, "sbatch refuses the script: its first line names no interpreter, such as #!/bin/bash")
        elif self.script.interpreter is not None and not self.script.is_shell:
            is_read = bool(self.script.launch_lines)
            how = "its commands were read as those of bash" if is_read else "only its directives are imported"
            self.note(1, f"the script is for {self.script.interpreter}: {how}")

    def _chosen_launch(self) -> LaunchLine | None:
        # The program may stand in the part that was not read, so that any other one is a guess.
        is_whole = not self.script.unread_part and self.script.text.startswith("#!")
        launches = [
            each
            for each in self.script.training
            if each.is_training or (is_whole and _PROGRAM.match(each.program.words[0].text))
        ]
        tables = [
            each for each in self.script.launch_lines if any("multi-prog" in stage.options for stage in each.stages)
        ]
        if tables:
            self.note(tables[0].line, "srun --multi-prog starts several programs, and a job file starts one")
            launches = [each for each in launches if each not in tables]
        if not launches and not tables and is_whole:
            others = [each for each in self.script.launch_lines if each.program.kind in {"program", "shell"}]
            launches = [each for each in others if self._is_own_program(each)]
        if not launches:
            self.note(None, "no program was found: write command = [...] by hand")
            return None
        # In `bash -c 'setup; python train.py'`, every command counts as a program.
        same = [each for each in launches if each.command is launches[0].command]
        first = next((each for each in same if each.agent is not None or each.program.kind == "python"), launches[0])
        for other in launches:
            if other.command is not first.command:
                self.note(other.line, "a job file starts one program; this one needs a job file of its own")
        compound = next((each for each in first.command.compounds if each.kind != "group"), None)
        if compound is not None:
            what = {"function": "a function"}.get(compound.kind, f"`{compound.kind}`")
            unset = f", and nothing sets ${compound.name}" if compound.kind == "for" and compound.name else ""
            self.note(first.line, f"the program stands in {what}: the job starts it once{unset}")
        if len(first.command.position.pipeline.commands) > 1:
            self.note(first.line, "the output went into a pipe; the job writes a log for each rank")
        if file := first.command.syntax.output or first.command.syntax.appended:
            self.note(first.line, f"the output went to {file.plain}; the job writes a log for each rank")
        if first.command.in_background:
            self.note(first.line, "the program ran in the background; the job waits for it")
        return first

    def _is_own_program(self, launch: LaunchLine) -> bool:
        name = launch.program.name
        if not name.isprintable():
            return False
        first = launch.program.words[0].text
        # `cat > job.sh <<EOF` writes another script.
        writes = name in HELPER_PROGRAMS and launch.command.syntax.document is not None
        return "/" in first or (name not in SHELL_BUILTINS | PRINTING and not writes and bool(_PROGRAM.match(first)))

    def _with_command(self, job: Job, launch: LaunchLine) -> Job:
        multiplier = launch.stage(*MULTIPLIERS)
        words = self._program_words(launch, multiplier)
        if multiplier is not None and multiplier.kind == "srun":
            job = self._after_srun(job, launch, multiplier)
        texts = [word.text for word in words]
        found = find_launcher(texts) if texts else None
        if multiplier is not None and multiplier.kind == "mpirun":
            job = self._after_mpirun(job, launch, multiplier)
        if found is not None and found.kind in AGENTS and found.kind != "composer":
            job, kept = self._after_agent(job, launch, found)
            # The launcher is in front: the last words are those of the program, with their positions in the script.
            words = words[len(texts) - len(kept) :] if kept != texts else words
            words = self._starting_with_python(words, found)
        elif found is not None and found.kind == "horovodrun":
            job = structs.replace(job, launch=structs.replace(job.launch, launcher="mpirun"))
            words = words[len(texts) - len(found.program) :]
        elif multiplier is None:
            ntasks = self.script.size.ntasks or 1
            if ntasks > 1:
                what = f"the script starts the program once; the job file starts {ntasks} ranks of it"
                self.note(launch.line, what)
        command = self._words(words, launch)
        is_python = bool(command) and (bool(PYTHON.match(PurePath(command[0]).name)) or launch.program.kind == "python")
        if is_python and job.launch.launcher in {"srun", "mpirun"}:
            job = structs.replace(job, launch=structs.replace(job.launch, bootstrap=True))
        for secret in secret_arguments(command):
            self.note(launch.line, f"{secret} in the arguments looks like a secret: let the program read a variable")
        return structs.replace(job, command=command)

    def _program_words(self, launch: LaunchLine, multiplier: LaunchStage | None) -> list[ExpandedText]:
        """Return the words behind srun or mpirun; those inside of `bash -c` if it starts one program."""
        stages = list(launch.stages)
        remote = launch.stage("ssh")
        start = stages.index(multiplier) + 1 if multiplier is not None else 0
        if remote is not None:
            self.note(launch.line, f"{remote.name} started the program on each node; the job does so through srun")
            start = max(start, stages.index(remote) + 1)
        # The stages behind a `bash -c` are those of its code: the command starts there, if the code is one program.
        codes = [index for index, stage in enumerate(stages) if stage.code is not None and index >= start]
        if codes:
            more = self._more_in_code(launch)
            containers = [stage for stage in stages[start : codes[-1]] if stage.name in CONTAINERS]
            if launch.agent is None and (more or containers):
                return list(stages[start].words)
            for text in (*more, *(f"{stage.name}, around {stages[codes[-1]].name} -c" for stage in containers)):
                self.note(launch.line, f"left out, although each task ran it: {text}")
            start = codes[-1] + 1
        # `exec` belongs to the shell: srun, mpirun and torchrun find no such program.
        while start < len(stages) - 1 and stages[start].name == "exec":
            start += 1
        return list(stages[start].words) if start < len(stages) else list(launch.program.words)

    def _more_in_code(self, launch: LaunchLine) -> list[str]:
        """Return the other commands of a `bash -c` than the program, without those that set ranks."""
        inner = launch.inner_command
        steps = [step for step in self.script.commands_of(launch) if step is not inner and step.words]
        found = [" ".join(step.texts) for step in steps]
        ranks = re.compile(rf"export(?: (?:{'|'.join(RENDEZVOUS)})=\S*)+")
        return [text for text in found if not ranks.fullmatch(text)]

    def _starting_with_python(self, words: list[ExpandedText], found: LauncherCommand) -> list[ExpandedText]:
        """Return the program of torchrun with `python` before it, as a job file has it."""
        if "no-python" in found.options or not words or PYTHON.match(PurePath(words[0].text).name):
            return words
        first = words[0]._replace(text="python")
        module = [words[0]._replace(text="-m")] if found.options.keys() & {"m", "module"} else []
        return [first, *module, *words]

    def _after_srun(self, job: Job, launch: LaunchLine, srun: LaunchStage) -> Job:
        options = {name: text.text for name, text in srun.options.items()}
        if srun.error:
            self.note(launch.line, f"srun refuses its options: {srun.error.what}")
        for name in sorted(options.keys() - _SRUN_SILENT):
            value = f"={options[name]}" if options[name] else ""
            self.note(launch.line, f"srun --{name}{value} has no key: the job starts srun with its own options")
        for word in srun.words[1:]:
            if word.text.startswith("--container-image"):
                image = word.text.partition("=")[2] or "IMAGE"
                self.note(launch.line, f"a container: set [environment] pyxis = '{image}' in the cluster file")
        own, size = self.script.size, self.script.size_of(launch)
        if (own.nodes, own.ntasks) != (size.nodes, size.ntasks) and None not in {size.ntasks, own.ntasks}:
            text = f"the step has {size.ntasks} tasks, the job {own.ntasks}: the job file starts {own.ntasks} ranks"
            self.note(launch.line, text)
        job_launch = job.launch
        for key in ("output", "error"):
            if options.get(key) and "$" not in options[key]:
                job_launch = structs.replace(job_launch, **{key: options[key]})
        return structs.replace(job, launch=job_launch)

    def _after_mpirun(self, job: Job, launch: LaunchLine, mpirun: LaunchStage) -> Job:
        size, own = self.script.size_of(launch), self.script.size.ntasks
        if size.ntasks is not None and own is not None and size.ntasks != own:
            note = f"mpirun starts {size.ntasks} processes, the job {own} tasks: set ntasks in [resources]"
            self.note(launch.line, note)
        for name, text in mpirun.variables:
            self._set_variable(name, text.text, launch.line, literal=text.is_known)
        replaced = {"n", "np", "c", "x", "N", "npernode", "ppn", "hostfile", "machinefile"}
        for name in sorted(mpirun.options.keys() - replaced):
            self.note(launch.line, f"mpirun's option {name} {mpirun.options[name].text} has no key")
        mpich = mpirun.name in {"mpiexec.hydra", "mpirun.mpich"}
        return structs.replace(job, launch=Launch(launcher="mpirun", mpi="mpich" if mpich else "auto"))

    def _after_agent(self, job: Job, launch: LaunchLine, found: LauncherCommand) -> tuple[Job, list[str]]:
        """Return the job with torchrun, accelerate or deepspeed as [launch], and the words of the program."""
        size, line = self.script.size, launch.line
        nodes, each = size.nodes or 1, size.tasks_per_node or 1
        ranks = found.ranks_per_node
        if ranks is None and found.ranks is not None:
            # accelerate counts the processes of all nodes, a job file those of one node.
            ranks = max(1, found.ranks // nodes)
        if ranks is None:
            ranks = size.gpus_per_node
        if ranks is None:
            ranks = each
            self.note(line, f"the number of processes of {found.kind} is not known: set nproc_per_node in [launch]")
        program = _program_of_agent(found)
        kept = [word for name, words in found.words.items() if name not in _OWN_AGENT_OPTIONS for word in words]
        if found.prefix:
            image = next((word for word in found.prefix if word.endswith((".sif", ".simg")) or "://" in word), None)
            advice = f": set [environment] apptainer = '{image}' in the cluster file" if image else ""
            self.note(line, f"{shlex.join(found.prefix)} before {found.kind} is left out{advice}")
        own = Launch(launcher="torchrun", nproc_per_node=ranks)
        # With several agents on a node, the agents were a mistake, or each one started one rank.
        if each > 1:
            own = Launch(launcher="srun")
            self.note(line, f"{found.kind} is left out: each of the {each} tasks of a node is a rank")
            if ranks != each:
                starts = f"{found.kind} starts {ranks} processes on a node with {each} tasks"
                self.note(line, f"{starts}: the job file starts {each} ranks")
        elif found.kind == "torchrun":
            own = structs.replace(own, options=tuple(kept))
        if found.kind != "torchrun" or each > 1:
            self._name_agent_options(found, kept, line)
        precision = found.options.get("mixed-precision")
        if precision:
            self.env["ACCELERATE_MIXED_PRECISION"] = precision
        return structs.replace(job, launch=own), program

    def _name_agent_options(self, found: LauncherCommand, kept: Sequence[str], line: int) -> None:
        if found.kind != "torchrun":
            self.note(line, f"torchrun starts the ranks in place of {found.kind}")
        if kept:
            self.note(line, f"options of {found.kind} without a key: {shlex.join(kept)}")

    def _words(self, words: Sequence[ExpandedText], launch: LaunchLine) -> tuple[str, ...]:
        """Return the command. Words with variables need a shell in each task."""
        words = [word for word in words if word.text not in {"$@", '"$@"', "${@}", "$*"}]
        if all(word.is_known for word in words):
            return tuple(word.text for word in words)
        sources = self._sources(words, launch)
        shown_words = [source or word.text for word, source in zip(words, sources, strict=True) if not word.is_known]
        names = sorted({name for text in shown_words for name in _variables_in(text)})
        shown = ", ".join(f"${name}" for name in names) or "a command substitution"
        if launch.agent is not None:
            self.note(
                launch.line,
                f"{shown} is not expanded in the command of a job file: write its "
                "value, or read the variable in the program",
            )
            return tuple(word.text for word in words)
        self.note(launch.line, f"a shell in each task expands {shown}, so that `python` is the one on PATH")
        code = " ".join(
            shlex.quote(word.text) if word.is_known else _ITEM.sub(self._variable_of_item, source or _quote_open(word))
            for word, source in zip(words, sources, strict=True)
        )
        return ("bash", "-c", f"exec {code}")

    def _variable_of_item(self, item: re.Match[str]) -> str:
        """Return a variable for one item of an array: bash exports no arrays, so `setup` must read the item."""
        name = self.items.setdefault(item[0], f"{item[1]}_ITEM{len(self.items) or ''}")
        return f"${{{name}}}"

    def _sources(self, words: Sequence[ExpandedText], launch: LaunchLine) -> list[str | None]:
        """Return the words as the script has them; None where an array or an unquoted list became several words."""
        sources: dict[int, str] = {}
        for step in (launch.command, launch.inner_command):
            # Words and their sources can only be paired if no word became several.
            if len(step.words) == len(step.syntax.words):
                sources |= {id(word): syntax.raw for word, syntax in zip(step.words, step.syntax.words, strict=True)}
        return [sources.get(id(word)) for word in words]

    @cached_property
    def _groups(self) -> list[_Group]:
        """The statements of the script itself, with all lines up to the next one."""
        positions = [step.position for step in self.script.commands]
        positions += [each.position for each in self.script.assignments if each.position is not None]
        places = [list(position.outward())[-1] for position in positions]
        block = places[0].block if places else ()
        lines = sorted({statement.line for statement in block})
        ends = [following - 1 for following in (*lines[1:], len(self.script.lines) + 1)][: len(lines)]
        return [
            _Group(start, end, tuple(each for each in block if each.line == start))
            for start, end in zip(lines, ends, strict=True)
        ]

    def _setup(self, launch: LaunchLine | None, command: str) -> Iterator[str]:
        at = None if launch is None else _top_statement(launch.command).line
        before = [group for group in self._groups if at is None or group.start < at]
        kept: list[list[str]] = []
        needed = set(_variables_in(command))
        # Backwards: a line is needed if a later line, or the command, reads its variables.
        for group in reversed(before):
            lines = self._setup_lines(group, needed)
            needed |= {name for line in lines for name in _variables_in(line)}
            kept.append(lines)
        if launch is not None and at is not None:
            kept.insert(0, self._words_before(launch, at))
            for group in self._groups:
                if group.start > at:
                    self._name_later(group)
        yield from (line for lines in reversed(kept) for line in lines)

    def _words_before(self, launch: LaunchLine, line: int) -> list[str]:
        """Return `cd DIR` of the line `cd DIR && srun ...`."""
        chained = launch.command.position.chain_index > 0 or any(
            step.line == launch.line and step.column < launch.command.column for step in self.script.commands
        )
        place = launch.command.position
        # What writes to the pipe of the program is no line of its own.
        if not chained or launch.line != line or place.compound is not None or place.pipeline_index:
            return []
        return [re.sub(r"\s*(&&|;)\s*\Z", "", self.script.lines[line - 1][: launch.command.column - 1]).strip()]

    def _setup_lines(self, group: _Group, needed: set[str]) -> list[str]:
        """Return the lines of a group that belong to `setup`. Constants go to [env], and other lines are named."""
        steps = self._steps_of(group)
        assigned = self._assignments_of(group)
        if reason := self._reason_to_drop(steps, assigned):
            if reason != "quiet":
                self.note(group.start, reason)
            return []
        plain = all(not step.words or step.name == "export" for step in steps)
        if plain and assigned:
            return self._assignment_lines(group, assigned, needed)
        return self._text_of(group)

    def _text_of(self, group: _Group) -> list[str]:
        """Return the lines of a group, without comments behind it."""
        text = [line.replace("\t", "  ").rstrip() for line in self.script.lines[group.start - 1 : group.end]]
        while text and (not text[-1].strip() or text[-1].lstrip().startswith("#")):
            text.pop()
        return text

    def _uses_background(self, steps: Sequence[TracedCommand], assigned: Sequence[TracedAssignment]) -> bool:
        """Tell whether a group saves or reads the process id of a command in the background."""
        ids = {each.name for each in self.script.written_assignments if "$!" in each.value.raw}
        read = {part.text for step in steps for part in step.syntax.parts if part.kind == "variable"}
        return bool(read & (ids | {"!"}) or {each.name for each in assigned} & ids)

    def _reason_to_drop(self, steps: Sequence[TracedCommand], assigned: Sequence[TracedAssignment]) -> str | None:
        """Return the reason why a job file has no place for a line; `quiet` if the job does it anyway."""
        names = {step.name for step in steps if step.words}
        submits = names & {"sbatch", "scancel"} or any(step.texts[:2] == ["scontrol", "requeue"] for step in steps)
        starts = any(launch.is_training and launch.command in steps for launch in self.script.launch_lines)
        home: tuple[list[str], ...] = ([], ["$SLURM_SUBMIT_DIR"], ["${SLURM_SUBMIT_DIR}"])
        reasons = {
            # The note of the launch line names the other programs.
            "quiet": starts
            or ("set" in names and names <= {"set"} | PRINTING)
            or (names == {"cd"} and all(step.texts[1:] in home for step in steps)),
            "a Ray cluster: set template = 'ray', and launcher = 'ray' in [launch], as jobs/ray_4node.toml has it": any(
                "ray" in step.texts[:-1] for step in steps
            ),
            "a process in the background is left out": any(step.in_background for step in steps),
            "it needs the process in the background, which is left out": self._uses_background(steps, assigned),
            "a trap is left out: the job passes signals on to the ranks": "trap" in names,
            "the script submits or requeues jobs: see hpc-kit submit --chain, and requeue = true": bool(submits),
            "left out, because it only prints or waits": bool(names) and names <= PRINTING and not assigned,
        }
        return next((reason for reason, applies in reasons.items() if applies), None)

    def _assignment_lines(self, group: _Group, assigned: Sequence[TracedAssignment], needed: set[str]) -> list[str]:
        own = [each for each in assigned if each.name in RENDEZVOUS]
        if own and len(own) == len(assigned):
            self.note(group.start, f"the job sets {', '.join(each.name for each in own)} itself")
            return []
        # [env] has constants only: everything that bash must compute stays in `setup`.
        if all(each.is_literal for each in assigned):
            for each in assigned:
                if each.is_exported:
                    self._set_variable(each.name, each.value.text, each.line, literal=True)
            # The command runs in the tasks, where variables of the batch shell exist only if they are exported.
            local = [each for each in assigned if not each.is_exported and each.name in needed]
            return [f"export {each.name}={shlex.quote(each.value.text)}" for each in local]
        if not any(each.is_exported or each.name in needed for each in assigned):
            return []
        arrays = {item.partition("[")[0].removeprefix("${") for item in self.items}
        names = [
            each.name for each in assigned if not each.is_exported and each.name in needed and each.name not in arrays
        ]
        return [*self._text_of(group), *([f"export {' '.join(names)}"] if names else [])]

    def _set_variable(self, name: str, value: str, line: int, *, literal: bool) -> None:
        if not literal:
            self.note(line, f"{name} is not a constant: write it into setup")
        elif looks_secret(name, value):
            self.note(line, f"{name} looks like a secret: export it in the shell that submits")
        else:
            self.env[name] = value

    def _name_later(self, group: _Group) -> None:
        steps = self._steps_of(group)
        names = {step.name for step in steps if step.words}
        if names <= PRINTING | {"exit", "wait", "set"}:
            return
        if any(launch.is_training and launch.command in steps for launch in self.script.launch_lines):
            return
        first = self.script.lines[group.start - 1].strip()
        self.note(group.start, f"runs after the program, where a job file has no place: {first[:60]}")

    def _steps_of(self, group: _Group) -> list[TracedCommand]:
        return [step for each in group.statements for step in self._steps_by_statement.get(id(each), ())]

    @cached_property
    def _steps_by_statement(self) -> dict[int, list[TracedCommand]]:
        found: dict[int, list[TracedCommand]] = {}
        for step in self.script.commands:
            found.setdefault(id(_top_statement(step)), []).append(step)
        return found

    def _assignments_of(self, group: _Group) -> list[TracedAssignment]:
        return [each for one in group.statements for each in self._assignments_by_statement.get(id(one), ())]

    @cached_property
    def _assignments_by_statement(self) -> dict[int, list[TracedAssignment]]:
        found: dict[int, list[TracedAssignment]] = {}
        for each in self.script.assignments:
            if each.position is not None:
                found.setdefault(id(list(each.position.outward())[-1].statement), []).append(each)
        return found


def _program_of_agent(found: LauncherCommand) -> list[str]:
    """Return the program as torchrun has it: without `python` and `-m`, unless --no-python runs any program."""
    program = list(found.program)
    if "no-python" in found.options:
        return program
    program = program[1:] if program[:1] == ["python"] else program
    return program[1:] if program[:1] == ["-m"] else program


def _top_statement(step: TracedCommand) -> Statement:
    return list(step.position.outward())[-1].statement


def _variables_in(text: str) -> list[str]:
    return re.findall(r"\$\{?([A-Za-z_]\w*)", text)


def _quote_open(word: ExpandedText) -> str:
    """Return a word for a shell that expands its variables."""
    if word.is_unknown:
        return word.text
    return '"' + word.text.replace("\\", "\\\\").replace('"', '\\"') + '"'
