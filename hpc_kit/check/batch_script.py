"""Reads any sbatch script without running it: directives, commands, launch lines, variables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import groupby, pairwise
from pathlib import PurePath
from typing import NamedTuple

from hpc_kit.check.bash_grammar import NAME
from hpc_kit.check.bash_syntax import (
    Assignment,
    CompoundCommand,
    Origin,
    Part,
    PipelineUse,
    SyntaxProblem,
    SyntaxTree,
    Word,
    parse,
    pipelines_of,
    program_of,
    with_nested_parts,
)
from hpc_kit.check.command_trace import (
    CommandTrace,
    FunctionCalls,
    TracedAssignment,
    TracedCommand,
    TracedExpression,
    variables_at,
)
from hpc_kit.check.expansion import ExpandedText, ShellVariables
from hpc_kit.check.launch_lines import LaunchLine, LaunchStage, collect_launch_lines, het_components, size_of_launch
from hpc_kit.errors import HpcKitError
from hpc_kit.lazy_pattern import lazy_pattern
from hpc_kit.slurm.directives import (
    MARK,
    DirectiveOption,
    DirectiveProblem,
    DirectiveReport,
    Directives,
    find_directive_options,
)
from hpc_kit.slurm.sizes import GPU_COUNT_OPTIONS, UNKNOWN, JobSize, size_of_job, sum_sizes
from hpc_kit.slurm.units import parse_time
from hpc_kit.slurm.versions import SlurmVersion, parse_version
from hpc_kit.spec.cluster import Cluster
from hpc_kit.spec.shell_code import SHELLS

CSH = frozenset({"csh", "tcsh"})
_MOST_LINES = 5000
_MOST_STATEMENTS = 1500

_CSH_CONTROL = (
    (r"if\s*\(.*\)\s*then", "if [ x ]; then"),
    (r"else\s+if\s*\(.*\)\s*then", "elif [ x ]; then"),
    (r"else", "else"),
    (r"endif|endsw", "fi"),
    (r"foreach\s+(\w+)\s*\((.*)\)", r"for \1 in \2; do"),
    (r"while\s*\(\s*1\s*\)", "while true; do"),
    (r"while\s*\(.*\)", "while [ x ]; do"),
    (r"end", "done"),
    # A `case` may go on with the next one, which bash does not know.
    (r"switch\s*\(.*\)", "if [ x ]; then"),
    (r"case\s.*:|default\s*:", "elif [ x ]; then"),
    (r"breaksw|@\s.*|onintr\b.*|limit\b.*|unlimit\b.*|rehash|unhash", ""),
)
"""Lines of csh that bash does not read, and lines of bash with the same structure. No rule reads csh's conditions."""
_CONTROL = tuple((lazy_pattern(rf"\s*(?:{pattern})\s*(?:#.*)?\Z"), text) for pattern, text in _CSH_CONTROL)
_ONE_LINE_IF = lazy_pattern(r"\A\s*if\s*\(.*\)\s*(?=[\w./$`])")
_SETENV = lazy_pattern(r"(^|[;&|]\s*|^\s+)setenv(\s+\w+)[ \t]")
_SET = lazy_pattern(r"(^|;)(\s*)set\s+(\w+)(\s*=\s*)(?=\S)")


def convert_csh(lines: list[str], *, flat: bool = False) -> str:
    """Convert a csh script to sh line by line; columns of commands stay. `flat`: leave out branches and loops."""

    def convert(line: str) -> str:
        if line.lstrip().startswith("#"):
            return line
        for pattern, text in _CONTROL:
            if (match := pattern.match(line)) is not None:
                return "" if flat else match.expand(text)
        line = _ONE_LINE_IF.sub(lambda match: ":".ljust(len(match[0]) - 3) + "&& ", line)
        line = _SETENV.sub(r"\1export\2=", line)
        # `set NAME = ` becomes an assignment that ends in the same column.
        return _SET.sub(lambda match: match[1] + f"{match[3]}=".rjust(len(match[0]) - len(match[1])), line)

    return "\n".join(map(convert, lines))


RESOLVER = lazy_pattern(r"\$\{(?:now:%|hydra[:.][a-z]|oc\.)[^${}\n]*\}")
"""An expression of Hydra or OmegaConf, `${now:%Y-%m-%d}`, which has the form of an expansion of bash."""

_NAMED_VERSION = lazy_pattern(
    r"slurm(?<!\wslurm)(?<!since slurm)(?<!before slurm)(?<!after slurm)(?<!until slurm)(?<!than slurm)(?<!from slurm)"
    r"(?:-wlm)?(?:\s+(?:version|release))?[-_ /:=]*v?(\d\d\.\d\d(?:\.\d+)?)\b"
    r"(?!\s*(?:\+|(?:or|and) (?:new|lat)er))"
)
"""A release that a script names, in lower case: `# Slurm 23.02`, `module load slurm/22.05.8`."""


_SETTING = lazy_pattern(r"\s*(?:#\s*)?(?:export\s+)?([A-Z]+)_\w+=")
"""A line that sets a variable, or no longer does. The beginning of its name mostly tells the library."""
_OUTDATED = lazy_pattern(
    r"(?i)\b(remove|delete|todo|fixme|temporar\w*|for now|solved|fixed|no longer|left ?over"
    r"|last (week|month|night|time)|yesterday|(from|on|since) (mon|tues|wednes|thurs|fri)day)\b"
)
"""Words of a comment that explains why a setting was needed once."""
_REASON = lazy_pattern(
    r"(?i)\b(because|since|so that|otherwise|on purpose|deliberate(ly)?|intention(al|ally|ed)?|by design|workaround"
    r"|used by|shared? with|(for|by) an?other|(this|our) (cluster|node|partition|site)|for (this|our) group"
    r"|admins?|administrators?|policy|prolog|reserved|harmless|without harm|best effort|may (die|fail))\b"
)
"""Words of a comment that names a reason."""


_SHARE_OF_NODE = lazy_pattern(r"ntasks|cpus|cores|mincpus|mem|gres|gpus|exclusive")
"""Options that ask for a part of a node."""

_TESTED_BY_OPTION = lazy_pattern(rf"-[zvn]\s*\"?(?:\$\{{?)?({NAME})\b")
_BEGINS_TEST = lazy_pattern(r"\[|\btest\b")
_TESTED = (
    re.compile(rf"\$\{{(?=({NAME})(?:\[[^\]]*\])?:?[-+?=])"),
    re.compile(rf"\[(?=\[?\s+\"?\$\{{?({NAME})\}}?\"?\s*(?:\]|[!=]=?\s*\"\"))"),
)
"""A variable with a default, and one that is compared with the empty text. Both may contain further ones."""


def _is_one_word(word: Word) -> bool:
    """Tell whether an element of a list is exactly one word: no pattern, no braces, no unquoted variable."""
    loose = (part for part in word.parts if not part.quoted)
    return not any(part.kind != "text" or re.search(r"[*?{\[]", part.text) for part in loose)


class Site(NamedTuple):
    """The place of submission, as far as it is known.

    Args:
        exists: Tests whether a path, relative to the folder of sbatch, exists; None: unknown.
        version: The Slurm release of the cluster; None: unknown.
        cluster: The cluster file; None: unknown.
    """

    exists: Callable[[str], bool] | None = None
    version: SlurmVersion | None = None
    cluster: Cluster | None = None


class BatchScript:
    """A batch script. Reading runs nothing, and a fault in the script raises no exception.

    `lines` are the first 5000 lines of a longer script.

    Args:
        text: The text of the script.
        name: Name of the script in messages.
        site: The place of submission.
    """

    def __init__(self, text: str, name: str = "script", site: Site = Site()) -> None:  # noqa: B008 - immutable
        self.text = text
        self.name = name
        self.site = site
        lines = text.replace("\r\n", "\n").split("\n")
        self.is_cut = len(lines) > _MOST_LINES
        self.lines = lines[:_MOST_LINES]

    @cached_property
    def _folded_text(self) -> str:
        """The text in lower case, without the marks of directives, which contain the name of sbatch."""
        return self.text.replace(MARK, "").lower()

    def contained(self, texts: Iterable[str]) -> frozenset[str]:
        """Return those of some texts, in lower case, that the script contains, in whatever case and place."""
        return frozenset(filter(self._folded_text.__contains__, texts))

    @cached_property
    def interpreter(self) -> str | None:
        """The name of the interpreter, without its folder; None if the first line names none."""
        words = self.lines[0].removeprefix("#!").split() if self.lines[0].startswith("#!") else []
        if words and PurePath(words[0]).name == "env":
            words = [word for word in words[1:] if not word.startswith("-")]
        return PurePath(words[0]).name if words else None

    @property
    def is_shell(self) -> bool:
        """True if the script is for a shell that this module can read, or names no interpreter."""
        return self.interpreter is None or self.interpreter in SHELLS

    @cached_property
    def slurm_version(self) -> SlurmVersion | None:
        """The release of Slurm at the place of submission, or else the one that a comment or module names."""
        named = _NAMED_VERSION.search(self._folded_text) if self.site.version is None else None
        return parse_version(named[1]) if named else self.site.version

    @cached_property
    def _read(self) -> DirectiveReport:
        return find_directive_options(self.lines)

    @property
    def directives(self) -> Directives:
        """The #SBATCH lines."""
        return self._read.directives

    @property
    def problems(self) -> tuple[DirectiveProblem, ...]:
        """The directives that sbatch would refuse."""
        return self._read.problems

    @cached_property
    def directive_options(self) -> tuple[DirectiveOption, ...]:
        """The options of all directives, in order."""
        return self._read.options

    @cached_property
    def is_heterogeneous(self) -> bool:
        """True if `#SBATCH hetjob` splits the job into components."""
        return len(self.directives.components()) > 1

    @cached_property
    def options(self) -> dict[str, str]:
        """The last value of each option; an empty string for an option without a value."""
        return {each.name: each.value for each in self.directive_options}

    @property
    def line_of_gpus(self) -> int | None:
        """The line of the last option that requests GPUs."""
        return self.line_of("gres", *GPU_COUNT_OPTIONS)

    @property
    def line_of_tasks(self) -> int | None:
        """The line of the last option that gives the number of tasks or nodes."""
        return self.line_of("ntasks", "ntasks-per-node", "nodes")

    def line_of(self, *names: str, launch: LaunchLine | None = None) -> int | None:
        """Return the line of the last of these options, for the components of a launch line if given."""
        parts = range(len(self.components)) if launch is None else self.components_of(launch)
        lines = [each.line for each in self.directive_options if each.name in names and each.component in parts]
        return lines[-1] if lines else None

    @cached_property
    def _last_directives(self) -> dict[str, DirectiveOption]:
        return {each.name: each for each in self.directive_options}

    def directive(self, name: str) -> DirectiveOption | None:
        """Return the last directive that gives an option."""
        return self._last_directives.get(name)

    @cached_property
    def components(self) -> tuple[dict[str, DirectiveOption], ...]:
        """The last of each option, by component. A job that is not heterogeneous has one component."""
        parts: list[dict[str, DirectiveOption]] = [{} for _ in self.directives.components()]
        for each in self.directive_options:
            parts[each.component][each.name] = each
        return tuple(parts)

    def components_of(self, launch: LaunchLine) -> list[int]:
        """Return the components of a launch line: the first one, unless it has --het-group."""
        groups = het_components(launch.stage("srun"))
        return [index for index in range(len(self.components)) if groups is None or index in groups]

    @cached_property
    def size(self) -> JobSize:
        """The size that the job requests."""
        return UNKNOWN if self.is_heterogeneous else size_of_job(self.options)

    @cached_property
    def counts_only_nodes(self) -> bool:
        """True if the job asks for no share of a node: no tasks, CPUs, memory or GPUs."""
        return not any(map(_SHARE_OF_NODE.match, self.options))

    @property
    def is_alone_on_nodes(self) -> bool:
        """True if no other job can run on the nodes of this one, which has asked for all of each, or for its memory."""
        return "exclusive" in self.options or self.options.get("mem") == "0"

    @property
    def may_have_more_cpus(self) -> bool:
        """True if the job may have more CPUs on a node than its tasks ask for."""
        return self.counts_only_nodes or not self.options.keys().isdisjoint({"exclusive", "cpus-per-gpu", "mincpus"})

    @cached_property
    def time_limit(self) -> int | None:
        """The time limit in seconds, negative for no limit; None if it is unknown."""
        try:
            return parse_time(self.options["time"])
        except (KeyError, HpcKitError):
            return None

    @cached_property
    def _sizes(self) -> dict[int, JobSize]:
        return {id(launch): self._size_of(launch) for launch in self.launch_lines}

    def size_of(self, launch: LaunchLine) -> JobSize:
        """Return the size of a launch line."""
        return self._sizes[id(launch)]

    def _size_of(self, launch: LaunchLine) -> JobSize:
        if self.is_heterogeneous:
            components = [self.components[index] for index in self.components_of(launch)]
            jobs = [size_of_job({name: each.value for name, each in options.items()}) for options in components]
            sizes = [size_of_launch(job, launch.multiplier) for job in jobs]
            return sum_sizes(sizes) if launch.stage("srun") else UNKNOWN
        remote = launch.stage("ssh")
        if remote is None:
            return size_of_launch(self.size, launch.multiplier)
        # Such a loop mostly goes over the hosts of the job.
        return self.size.once_per_node() if launch.in_loop or remote.name != "ssh" else UNKNOWN

    @cached_property
    def _parsed(self) -> SyntaxTree:
        if self.interpreter in CSH:
            tree = parse(convert_csh(self.lines))
            return tree if tree.problem is None else parse(convert_csh(self.lines, flat=True))
        text = "\n".join(self.lines) if self.is_shell else ""
        tree = parse(text)
        if tree.problem is not None and RESOLVER.search(text):
            # The grammar cannot read them, and bash itself complains only when it expands them.
            tree = parse(RESOLVER.sub(lambda match: re.sub(r"[^${}\w]", "_", match[0]), text))
        block, problem = tree.block, tree.problem
        # Rules compare commands with each other, so that the time grows with the square of their number.
        if len(block) > _MOST_STATEMENTS:
            problem = SyntaxProblem(
                block[_MOST_STATEMENTS].line, f"the script has more than {_MOST_STATEMENTS} commands"
            )
        elif problem is None and self.is_cut and self.is_shell:
            problem = SyntaxProblem(_MOST_LINES + 1, f"the script has more than {_MOST_LINES} lines")
        return SyntaxTree(block[:_MOST_STATEMENTS], tree.comments, problem)

    @property
    def comments(self) -> Mapping[int, int]:
        """The columns of the comments of the shell, by line. Text of here-documents and quotes does not count."""
        return self._parsed.comments

    @cached_property
    def comment_lines(self) -> list[tuple[int, str]]:
        """The comments with their lines."""
        return [(number, self.lines[number - 1][column - 1 :]) for number, column in sorted(self.comments.items())]

    @cached_property
    def comment_blocks(self) -> list[tuple[tuple[int, ...], str]]:
        """The comments on lines of their own: the lines of each, and its text as one line."""
        lines = [number for number in sorted(self.comments) if self.lines[number - 1].lstrip().startswith("#")]
        groups = (tuple(n for _, n in group) for _, group in groupby(enumerate(lines), lambda pair: pair[1] - pair[0]))
        return [(block, " ".join(self.lines[number - 1].lstrip(" #") for number in block)) for block in groups]

    def has_reason(self, line: int, *, named: bool = False) -> bool:
        """Tell whether a comment at a line gives a reason: in the line, or above the settings to which it belongs.

        A comment that speaks of the past, or asks to remove the line, gives none. `named`: the comment must name the
        reason, unless it stands behind the command. Most comments above a command only describe the command.
        """
        text = self.comment_at(line)
        # `# NCCL` is a heading.
        heading = line not in self.comments and len(re.findall(r"[A-Za-z]{2,}", text)) < 2
        is_named = not named or line in self.comments or _REASON.search(text) is not None
        return not heading and not _OUTDATED.search(text) and is_named

    def comment_at(self, line: int) -> str:
        """Return the comment behind a line, or else the one above the command or the settings."""
        if line in self.comments:
            return self.lines[line - 1][self.comments[line] :]
        above, library = line - 1, _SETTING.match(self.lines[line - 1])
        while above > 0 and self.lines[above - 1].endswith("\\"):
            above -= 1
        # One comment may stand above all settings of a library. The comment behind a setting is for that one.
        while above > 0 and library is not None and (other := _SETTING.match(self.lines[above - 1])):
            if other[1] != library[1] or "# " in self.lines[above - 1].lstrip(" #"):
                break
            above -= 1
        text = ""
        while above > 0 and re.match(r"\s*#(?!SBATCH|!|\s*(export\s+)?\w+=)", self.lines[above - 1]):
            text = f"{self.lines[above - 1]}\n{text}"
            above -= 1
        return text

    @cached_property
    def _trace(self) -> tuple[CommandTrace, tuple[LaunchLine, ...]]:
        trace, launches = self._trace_with(None)
        # The second trace knows how each function is called.
        return self._trace_with(trace.calls) if trace.has_functions else (trace, launches)

    def _trace_with(self, calls: Mapping[str, FunctionCalls] | None) -> tuple[CommandTrace, tuple[LaunchLine, ...]]:
        launches: list[LaunchLine] = []
        sizes = variables_at(self._size_variables(), 1)
        trace = CommandTrace(
            ShellVariables(sizes, exported=sizes),
            options=flags[1] if (flags := re.match(r"#!\S+\s+-(\w+)", self.lines[0])) else "",
            nested=lambda trace, step: collect_launch_lines(trace, step, launches),
            calls=calls,
        )
        trace.block(self._parsed.block)
        return trace, tuple(launches)

    def _size_variables(self) -> dict[str, str]:
        """Return the variables with sizes that Slurm sets in the batch shell."""
        sizes = self.size.variables()
        if sizes and self.options.get("gpus", "").isdigit():
            sizes["SLURM_GPUS"] = self.options["gpus"]
        # `--gpus-per-node=a100:4` sets SLURM_GPUS_PER_NODE to `a100:4`.
        typed = {f"SLURM_{name.upper().replace('-', '_')}": self.options.get(name, "") for name in GPU_COUNT_OPTIONS}
        return sizes | {name: value for name, value in typed.items() if ":" in value}

    def file_written_to(self, path: str) -> ExpandedText | None:
        """Return the text of a file that `cat` writes from a here-document; None if the script writes no such file."""
        return self._trace[0].files.get(str(PurePath(path)))

    @cached_property
    def commands(self) -> list[TracedCommand]:
        """Every command, in order, including those in the code of a `bash -c`."""
        return self._trace[0].commands

    @cached_property
    def command_names(self) -> frozenset[str]:
        """The programs and builtins of all commands."""
        return frozenset(step.name for step in self.commands)

    @cached_property
    def batch_commands(self) -> list[TracedCommand]:
        """The commands of the batch shell itself, in order."""
        return [step for step in self.commands if not step.in_task]

    def commands_of(self, launch: LaunchLine) -> list[TracedCommand]:
        """Return the commands of the shell code that a launch line starts."""
        return [step for step in self._commands_at[id(launch.command.position)] if step is not launch.command]

    @cached_property
    def _commands_at(self) -> dict[int, list[TracedCommand]]:
        """The commands at each position and in the shell code that starts there."""
        found: dict[int, list[TracedCommand]] = {}
        for step in self.commands:
            for place in step.position.outward():
                found.setdefault(id(place), []).append(step)
        return found

    def launches_of(self, assignment: TracedAssignment) -> list[LaunchLine]:
        """Return the launch lines whose shell code, or whose command line, makes an assignment."""
        if assignment.position is None:
            number = assignment.number - 1
            return [launch for launch in self.launch_lines if self._numbers.get(id(launch.inner_command)) == number]
        around = list(assignment.position.outward())
        return [launch for launch in self.launch_lines if launch.command.position in around]

    def condition_lines(self, step: TracedCommand) -> list[str]:
        """Return the lines with the conditions of a command: of the `if` and `case` around it, and before its `&&`."""
        numbers: set[int] = set()
        for place in step.position.outward():
            if place.compound is not None and place.kind in {"if", "case"}:
                bodies = [block for role, block in place.compound.bodies if role != "condition" and block]
                first = min((block[0].line for block in bodies), default=step.line)
                numbers |= {*range(place.compound.line, first + 1)}
            before = [each for pipeline in place.chain.pipelines[: place.chain_index] for each in pipeline.commands]
            # `python train.py && sbatch next.sh` tests nothing.
            numbers |= {each.line for each in before if program_of(each) in {None, "[", "test", "grep"}}
        return [self.lines[number - 1] for number in sorted(numbers)]

    @property
    def expressions(self) -> list[TracedExpression]:
        """Every `[[ ... ]]` and `((...))`, in order."""
        return self._trace[0].expressions

    @property
    def tested_files(self) -> Iterator[tuple[Origin, str]]:
        """The paths of tests such as `[ -f PATH ]`, without quotes, with their places."""
        for step in self.commands:
            for before, word in pairwise(step.syntax.words if step.name in {"[", "test"} else ()):
                if before.raw in {"-e", "-f", "-r", "-s"}:
                    yield Origin(word.line, word.column), word.unquoted
        for each in self.expressions:
            for match in re.finditer(r"\s-[efrs]\s+[\"']?([^\s\"'\])]+)", each.text if each.text[0] == "[" else ""):
                yield Origin(each.line), match[1]

    @cached_property
    def pipelines(self) -> list[PipelineUse]:
        """Every pipeline, also those in `$(...)`, in compound commands, and in the code of a `bash -c`."""
        places = [place for step in self.commands for place in step.position.outward()]
        blocks = {id(place.block): place.block for place in places if place.parent is None or place.role == "code"}
        return [use for block in blocks.values() for use in pipelines_of(block)]

    @cached_property
    def parts(self) -> list[Part]:
        """The parts of all words and of all values of assignments."""
        return [part for step in self.commands for part in step.syntax.parts]

    @cached_property
    def nested_parts(self) -> list[tuple[TracedCommand, Part]]:
        """The parts of all words and values with their commands, and behind each `$(...)` the parts inside."""
        return [(step, part) for step in self.commands for part in with_nested_parts(step.syntax.parts)]

    def commands_in(self, compound: CompoundCommand) -> list[TracedCommand]:
        """Return the commands of a compound command."""
        return self._commands_in.get(id(compound), [])

    @cached_property
    def _commands_in(self) -> dict[int, list[TracedCommand]]:
        """The commands of each compound command."""
        found: dict[int, list[TracedCommand]] = {}
        for step in self.commands:
            for compound in {id(each) for each in step.compounds}:
                found.setdefault(compound, []).append(step)
        return found

    def compounds(self, kind: str) -> list[CompoundCommand]:
        """Return all compound commands of a kind that contain a command."""
        found = {id(each): each for step in self.commands for each in step.compounds if each.kind == kind}
        return list(found.values())

    def changed_in(self, loop: CompoundCommand) -> set[str]:
        """Return the variables that have another value in each pass of a loop."""
        inside = self.commands_in(loop)
        last = max((step.line for step in inside), default=loop.line)
        # `((rank++))` is no command of the trace.
        found = re.findall(
            r"(?<![\w-])(\w+)(?:\+\+|[-+*]?=)|\+\+(\w+)", "\n".join(self.lines[loop.line - 1 : last + 1])
        )
        read = {text for step in inside if step.name == "read" for text in step.texts[1:]}
        return {name for pair in found for name in pair if name} | {loop.name} | read

    @cached_property
    def functions(self) -> dict[str, list[TracedCommand]]:
        """The shell functions of the script, each with its commands."""
        found: dict[str, list[TracedCommand]] = {}
        for step in self.commands:
            for compound in step.compounds:
                if compound.kind == "function":
                    found.setdefault(compound.name, []).append(step)
        return found

    @cached_property
    def loop_variables(self) -> frozenset[str]:
        """The variables of the `for` loops."""
        return frozenset(loop.name for loop in self.compounds("for"))

    @cached_property
    def _numbers(self) -> dict[int, int]:
        return {id(step): number for number, step in enumerate(self.commands)}

    def commands_before(self, step: TracedCommand) -> list[TracedCommand]:
        """Return the commands above a command."""
        return self.commands[: self._numbers[id(step)]]

    def commands_after(self, step: TracedCommand) -> list[TracedCommand]:
        """Return the commands below a command."""
        return self.commands[self._numbers[id(step)] + 1 :]

    @cached_property
    def moves(self) -> list[TracedCommand]:
        """Every `cd FOLDER` and `pushd FOLDER`, in order."""
        return [step for step in self.commands if step.name in {"cd", "pushd"} and len(step.words) > 1]

    def is_before(self, step: TracedCommand, other: TracedCommand) -> bool:
        """Tell whether a command is above another one."""
        return self._numbers[id(step)] < self._numbers[id(other)]

    @property
    def assignments(self) -> list[TracedAssignment]:
        """Every assignment to a variable, in order."""
        return self._trace[0].assignments

    @cached_property
    def written_assignments(self) -> tuple[Assignment, ...]:
        """Every assignment as it is written, before any expansion."""
        return tuple(each for step in self.commands for each in step.written_assignments)

    @cached_property
    def exported_assignments(self) -> list[TracedAssignment]:
        """The assignments that programs see, also by an `export NAME` below them."""
        exports = [step for step in self.commands if step.name in {"declare", "export"}]
        names = {text for step in exports for text in step.texts[1:] if text.isidentifier()}
        return [each for each in self.assignments if each.is_exported or each.name in names]

    @cached_property
    def list_lengths(self) -> dict[str, int]:
        """The number of elements of the lists that the script sets once, each element as exactly one word."""
        counts = Counter(each.name for each in self.written_assignments)
        counts.update(text.partition("[")[0] for step in self.commands if step.name == "unset" for text in step.texts)
        once = (each for each in self.written_assignments if counts[each.name] == 1)
        lists = {each.name: each.value.elements for each in once if not (each.append or each.indexed)}
        return {name: len(words) for name, words in lists.items() if words and all(map(_is_one_word, words))}

    def assignments_of(self, *names: str) -> list[TracedAssignment]:
        """Return the assignments to some variables, in order."""
        if len(names) == 1:
            return self._assignments_to.get(names[0], [])
        return [each for each in self.assignments if each.name in names] if self.assigned.intersection(names) else []

    @cached_property
    def _assignments_to(self) -> dict[str, list[TracedAssignment]]:
        """The assignments to each variable."""
        found: dict[str, list[TracedAssignment]] = {}
        for each in self.assignments:
            found.setdefault(each.name, []).append(each)
        return found

    @cached_property
    def assigned(self) -> frozenset[str]:
        """The names of all variables that the script sets."""
        return frozenset(each.name for each in self.assignments)

    def changes(self, name: str) -> bool:
        """Tell whether the script sets or unsets a variable."""
        return name in self.assigned or any(step.name == "unset" and name in step.texts for step in self.commands)

    def tests_variable(self, name: str) -> bool:
        """Tell whether the script tests if a variable is set, or has a default for it anywhere."""
        return name in self._tested_variables

    @cached_property
    def _tested_variables(self) -> frozenset[str]:
        found = {match[1] for pattern in _TESTED for match in pattern.finditer(self.code)}
        # A test stands in brackets, or behind `test`.
        for match in _TESTED_BY_OPTION.finditer(self.code):
            before = re.split(r"[\]\n]", self.code[: match.start()])[-1]
            found |= {match[1]} if _BEGINS_TEST.search(before) else set()
        return frozenset(found)

    def resolve(self, text: str) -> str:
        """Replace variables by their values, if the script sets them once."""

        def value(match: re.Match[str]) -> str:
            values = [each.value.text for each in self.assignments_of(match[1])]
            return values[0] if len(values) == 1 else match[0]

        return re.sub(r"\$\{?(\w+)\}?", value, text)

    def sets_torchrun_option(self, agent: LaunchStage, option: str) -> bool:
        """Tell whether a variable sets an option that torchrun's line does not have: PET_NNODES for --nnodes."""
        name = "PET_" + option.upper().replace("-", "_")
        return name in self.assigned and agent.kind == "torchrun" and option not in agent.options

    @cached_property
    def launch_lines(self) -> tuple[LaunchLine, ...]:
        """Every command that starts a program, as a launch line."""
        return self._trace[1]

    def launch_at(self, step: TracedCommand) -> LaunchLine | None:
        """Return the last launch line that a command of the batch script starts."""
        return self._launches.get(id(step))

    @cached_property
    def _launches(self) -> dict[int, LaunchLine]:
        return {id(launch.command): launch for launch in self.launch_lines}

    @cached_property
    def training(self) -> list[LaunchLine]:
        """The launch lines that do the work of the job. Without a training, these are the programs of unknown name."""
        training = [launch for launch in self.launch_lines if launch.is_training]
        return training or [launch for launch in self.launch_lines if launch.is_other_work]

    @property
    def only_training(self) -> LaunchLine | None:
        """The launch line that does the work of the job, if it is the only one."""
        return self.training[0] if len(self.training) == 1 else None

    @property
    def agents(self) -> list[LaunchStage]:
        """The agents that do the work of the job."""
        return [launch.agent for launch in self.training if launch.agent is not None]

    @cached_property
    def code(self) -> str:
        """The text with empty lines instead of comments."""
        return "\n".join(line for _, line in self.code_lines)

    @cached_property
    def code_lines(self) -> list[tuple[int, str]]:
        """The lines with their numbers, without comments."""
        return [
            (number, "" if line.lstrip().startswith("#") else line[: self.comments.get(number, len(line) + 1) - 1])
            for number, line in enumerate(self.lines, start=1)
        ]

    @cached_property
    def command_lines(self) -> list[tuple[int, str]]:
        """The lines of commands: those of code, but empty for messages and for here-documents that are no code."""
        commands, data = {step.line for step in self.commands}, set[int]()
        for step in self.commands:
            document = [part for part in step.syntax.document or () if part.origin.exact]
            if document:
                last = document[-1].origin.line + document[-1].raw.count("\n")
                span = range(document[0].origin.line, last + 1)
                data.update(span if commands.isdisjoint(span[:-1]) else ())
            if step.name in {"echo", "logger", "printf"} and step.position.chain_index == 0:
                data.update(word.line for word in step.syntax.words)
        return [(number, "" if number in data else line) for number, line in self.code_lines]

    def is_cut_short(self, launch: LaunchLine) -> bool:
        """Tell whether the next command is an option, so that the line was meant to continue."""
        return any(re.match(r"--?[A-Za-z]", step.name) for step in self.commands_after(launch.inner_command)[:1])

    @cached_property
    def sources_files(self) -> bool:
        """True if the script sources files with unknown variables, except the usual set-up of an environment."""
        usual = re.compile(r"(activate|conda\.sh|bashrc|bash_profile|profile|modules?\.sh|lmod.*|init/bash)\Z")
        return any(
            step.name in {".", "source"} and len(step.words) > 1 and not usual.search(step.words[1].text)
            for step in self.batch_commands
        )

    @property
    def is_readable(self) -> bool:
        """True if all commands are known, though perhaps not their order."""
        return (self.is_shell or self.interpreter in CSH) and self._parsed.problem is None

    @property
    def unread_from(self) -> int | None:
        """The first line that could not be read; None if there is none."""
        return self._parsed.problem.line if self._parsed.problem is not None else None

    @property
    def unread_part(self) -> str | None:
        """The part of the script that could not be read, and the reason; None if there is none."""
        if self.interpreter in CSH:
            return f"the exit status: the script is for {self.interpreter}"
        if not self.is_shell:
            return f"the rules of the shell: the script is for {self.interpreter}"
        problem = self._parsed.problem
        return f"the text from line {problem.line} on: {problem.what}" if problem else None
