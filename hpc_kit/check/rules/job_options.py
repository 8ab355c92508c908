"""Rules for #SBATCH lines: syntax, position, values and contradictions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from itertools import pairwise
from pathlib import PurePath

from hpc_kit.check.bash_syntax import Origin, Word, program_of, written_files
from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.expansion import ExpandedText
from hpc_kit.check.launch_lines import LaunchLine
from hpc_kit.check.rules.finding import Problem, Severity, rule
from hpc_kit.check.text_edits import Edit
from hpc_kit.lazy_pattern import lazy_pattern
from hpc_kit.slurm.directives import LONG_DASHES, MARK, DirectiveOption, find_directive_options, suggest_fix
from hpc_kit.slurm.option_table import CPU_COUNT_OPTIONS, EXCLUSIVE_OPTIONS, SHARING_OPTIONS
from hpc_kit.slurm.sizes import GPU_COUNT_OPTIONS, count_gpus, count_gres_gpus
from hpc_kit.slurm.versions import first_release_with

_LOOKS_LIKE_OPTIONS = lazy_pattern(r"(#+\w+)\s+-{1,2}[A-Za-z]")
_LONG_DASH = lazy_pattern(rf"(-?[{LONG_DASHES}][{LONG_DASHES}-]?)(?:([A-Za-z])(?![A-Za-z])|[A-Za-z])")
"""An option behind a long dash. Word processors make one of the two dashes of a long option, too."""
_INDENTED = lazy_pattern(rf"\s+(?={MARK}\s+-)")
_VARIABLE = lazy_pattern(r"\$\{?[A-Za-z_]\w*")
_SIZES = (
    frozenset({"nodes", "nodelist"}),
    frozenset({"ntasks", "ntasks-per-node", "ntasks-per-gpu"}),
    frozenset({"gres", *GPU_COUNT_OPTIONS}),
)
"""Groups of options that set the same size."""

_HARMLESS = frozenset({"comment", "job-name", "mail-user", "wckey"})


@rule("KIT101")
def missing_interpreter(script: BatchScript) -> Iterator[Problem]:
    """The first line names no interpreter, or one that the system does not find.

    sbatch refuses a script that does not begin with `#!` ("This does not look like a batch script"). An empty line or a
    byte order mark before it is enough. A path without a leading `/` leads nowhere, and Linux hands all words behind
    `env` over as one: `#!/usr/bin/env bash -e` looks for a program of that name.

    Fix: make `#!/bin/bash` the very first line.
    Documented: sbatch(1), DESCRIPTION; execve(2), Interpreter scripts.
    """
    if not script.text.strip():
        yield Problem(Origin(), "the script is empty", "write #!/bin/bash in the first line, and a command")
    elif not script.lines[0].startswith("#!"):
        what, remedy = "the first line names no interpreter: sbatch refuses it", "begin the file with #!/bin/bash"
        edits = (Edit(1, 1, "", "#!/bin/bash\n"),) if script.lines[0].startswith("#SBATCH") else ()
        yield Problem(Origin(), what, remedy, edits=edits)
        return
    words = script.lines[0].removeprefix("#!").split() if script.lines else []
    if words and not words[0].startswith("/"):
        what = "the path of the interpreter does not begin with /: the job ends with 'bad interpreter'"
        yield Problem(Origin(), what, f"write #!/bin/{PurePath(words[0]).name}")
    elif len(words) > 2 and PurePath(words[0]).name == "env" and not words[1].startswith("-"):
        what = f"env gets '{' '.join(words[1:])}' as the name of one program"
        yield Problem(Origin(), what, f"write #!/bin/{words[1]} {' '.join(words[2:])}, or env -S")


@rule("KIT102")
def line_breaks(script: BatchScript) -> Iterator[Problem]:
    r"""The file has DOS line breaks, or a NUL byte.

    sbatch refuses a script whose lines end in \r\n, as Windows editors write them.

    Fix: `dos2unix FILE`, or `sed -i 's/\r$//' FILE`.
    Documented: the message of sbatch itself.
    """
    text = script.text
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.endswith("\r")]
    edits = tuple(Edit(number, len(line), "\r\n", "\n") for number, line in lines)
    for mark, what, remedy in (
        ("\r\n", "DOS line breaks", "run sed -i 's/\\r$//' FILE"),
        ("\0", "a NUL byte", "run tr -d '\\0' <FILE >NEW"),
    ):
        if mark in text:
            place = Origin(text[: text.index(mark)].count("\n") + 1)
            yield Problem(place, f"{what}: sbatch refuses the script", remedy, edits=edits if mark == "\r\n" else ())
    if "\r" in text and "\n" not in text:
        yield Problem(Origin(), "line breaks of old Macs: the whole file is one line", "run tr '\\r' '\\n' <FILE >NEW")


@rule("KIT103")
def refused_directives(script: BatchScript) -> Iterator[Problem]:
    """A directive that sbatch does not accept.

    The option does not exist, its value is missing or invalid (a time like 2h30), or a word is no option at all. The
    generic resource of GPUs is called gpu (a warning for `--gres=gpus:1`). sbatch refuses the script, or stops reading
    the line. An unknown option that resembles no known one is only a warning: it may belong to a plugin of the site.

    Fix: follow the message. Write an option and its value as `--name=value`, without spaces around the `=`.
    Documented: sbatch(1), OPTIONS.
    """
    yield from _misspelt_gres(script)
    for problem in script.problems:
        error = problem.error
        remedy, certain = suggest_fix(error)
        option = _LONG_DASH.match(script.lines[problem.line - 1], problem.column - 1)
        edits = (Edit(problem.line, problem.column, option[1], "-" if option[2] else "--"),) if option else ()
        yield Problem(problem, error.what, remedy, (), certain, error.found, edits=edits)
    for number in sorted(script.comments):
        line = script.lines[number - 1]
        match = _LOOKS_LIKE_OPTIONS.match(line)
        word = match[1] if match else MARK
        # `##SBATCH` (as `# SBATCH`) usually disables a directive on purpose.
        if word.lstrip("#") != "SBATCH" and get_close_matches(word.lstrip("#").upper(), ["SBATCH"], cutoff=0.8):
            what, edits = f"Slurm reads {word} as a comment", (Edit(number, 1, word, MARK),)
            yield Problem(Origin(number), what, f"write {MARK}", certain=False, edits=edits)
        aside = re.match(r"#\s+SBATCH\s+(-\S.*)", line) if "SBATCH" in line else None
        if aside is not None and (missed := _sizes(aside[1], script)):
            what = f"Slurm reads this as a comment, and no other line gives --{min(missed)}"
            remedy = f"write {MARK} without a space, or ##SBATCH for a comment"
            yield Problem(Origin(number), what, remedy, certain=False)


def _misspelt_gres(script: BatchScript) -> Iterator[Problem]:
    """Find a generic resource whose name is nearly `gpu`."""
    for each in script.directive_options:
        for item in each.value.split(",") if each.name == "gres" else ():
            name = item.removeprefix("gres/").partition(":")[0]
            if name != "gpu" and get_close_matches(name.lower(), ["gpu"], cutoff=0.6):
                what = f"Slurm's name for GPUs is gpu, not {name}: sbatch refuses the job"
                yield Problem(each, what, f"write --gres=gpu{item[len(name) :]}", certain=False)


def _sizes(text: str, script: BatchScript) -> set[str]:
    """Return the size options of a commented-out line that no directive gives. No job needs certain nodes."""
    named = {each.name for each in find_directive_options(["#!", f"{MARK} {text}"]).options}
    return {name for same in _SIZES if same.isdisjoint(script.options) for name in same & named} - {"nodelist"}


@rule("KIT104")
def directives_after_command(script: BatchScript) -> Iterator[Problem]:
    """Slurm ignores a directive because of its position.

    sbatch reads directives up to the first line that is neither a comment nor empty, and only where `#SBATCH` begins
    the line. Later or indented ones are comments: Slurm ignores them silently and uses the defaults.

    Fix: move all #SBATCH lines to the top, above `set`, `module` and variables.
    Documented: sbatch(1), DESCRIPTION.
    """
    first = next((step.line for step in script.commands), None)
    for late in script.directives.late:
        options = late.text[len(MARK) :].lstrip().startswith("-")
        if options and (late.line in script.comments or not script.is_shell):
            what, edits = "Slurm silently ignores this directive: a command precedes it", _move(script, late.line)
            yield Problem(Origin(late.line), what, "move it above the first command", (first,), edits=edits)
    for number in sorted(script.comments):
        spaces = _INDENTED.match(script.lines[number - 1])
        if spaces is not None:
            what = f"Slurm silently ignores this directive: {MARK} does not begin the line"
            yield Problem(Origin(number), what, "remove the spaces before it", edits=(Edit(number, 1, spaces[0], ""),))
    for step in script.batch_commands:
        if (
            "SBATCH" in step.name
            and re.fullmatch(r"[^\w/.]?#?SBATCH", step.name)
            and step.texts[1:2]
            and step.texts[1].startswith("-")
        ):
            yield Problem(step, f"the shell runs {step.name} as a command", f"write {MARK} at the top")


@rule("KIT105", "warning")
def values_cut_at_hash(script: BatchScript) -> Iterator[Problem]:
    """An unquoted `#` cuts a value short.

    In a directive, `#` begins a comment anywhere outside quotes, even inside a word: `--job-name=a#b` sets the job name
    `a`.

    Fix: quote the value, `--job-name="a#b"`; put a space before a comment.
    Documented: seen with sbatch 22.05; `sbatch -v --test-only FILE` prints the options as sbatch reads them.
    """
    for directive in script.directives.lines:
        cut = _cut_at(directive.text)
        if cut is not None:
            kept = directive.text[:cut].split()[-1]
            what = f"the unquoted # cuts the value: Slurm reads {kept}"
            remedy = f'quote it: {kept.partition("=")[0]}="..."; or put a space before a comment'
            yield Problem(Origin(directive.line, cut + 1), what, remedy)


def _move(script: BatchScript, line: int) -> tuple[Edit, ...]:
    """Return the edits that move a directive behind the last one that Slurm reads."""
    last = max((each.line for each in script.directives.lines), default=1)
    here = script.lines[line - 1] + "\n"
    return (Edit(line, 1, here, ""), Edit(last + 1, 1, "", here))


def _cut_at(text: str) -> int | None:
    """Return the position of a `#` that ends the line inside a word."""
    if "#" not in text[len(MARK) :]:
        return None
    quote, index = "", len(MARK)
    while index < len(text):
        letter = text[index]
        if letter == "\\":
            index += 1
        elif letter == quote:
            quote = ""
        elif not quote and letter in "'\"":
            quote = letter
        elif not quote and letter == "#":
            return index if not text[index - 1].isspace() and index > len(MARK) else None
        index += 1
    return None


@rule("KIT106")
def variables_in_directives(script: BatchScript) -> Iterator[Problem]:
    """A directive contains a variable, or a command a file name pattern of Slurm.

    Slurm expands nothing in a directive: neither `$HOME` nor `$(date)` nor `~`. The log file then goes to a folder that
    is literally named `$HOME`. That folder usually does not exist, and the job ends without a log. The shell in turn
    does not know the patterns of Slurm: `python train.py > %x-%j.log` writes a file of this name, in each job (a
    warning). With `> scores_%a.txt`, all elements of an array empty one file (an error).

    Fix: use Slurm's own patterns in file names (%u user, %x job name, %j job id). Or pass the option on the command
    line, `sbatch --output="$HOME/logs/%j.log" FILE`, where the shell expands it.
    Documented: sbatch(1), "filename pattern".
    """
    for each in script.directive_options:
        if each.value.startswith("~/") or _VARIABLE.search(each.value):
            what = f"--{each.name}={each.value}: Slurm expands no variables here"
            remedy = f'run sbatch --{each.name}="{each.value}" FILE, or use the patterns of Slurm (%u, %x, %j)'
            yield Problem(each, what, remedy, certain=each.name not in _HARMLESS)
    for command in (each for use in script.pipelines for each in use.pipeline.commands):
        files = list(written_files(command))
        emptied = [each.name for each in files if not each.appends] if "array" in script.options else []
        folders = command.words if program_of(command) in {"cd", "mkdir"} else ()
        yield from _patterns(script, [*folders, *(each.name for each in files)], emptied)
    for launch in script.training:
        # submitit replaces `%j` itself.
        if not any("submitit" in text for text in launch.program.texts[:3]):
            yield from _patterns(script, launch.program.words)


_PATTERN = lazy_pattern(r"(?<![^/_.=-])%([ajxAJ])(?=[/_.-]|\Z)")
_REPLACES = lazy_pattern(r"\$\{\w+[/%#]")
"""An expansion such as `${LOG//%a/$ID}`, which may replace the pattern."""
_NAMES = {
    "a": "SLURM_ARRAY_TASK_ID", "j": "SLURM_JOB_ID", "J": "SLURM_JOB_ID", "x": "SLURM_JOB_NAME",
    "A": "SLURM_ARRAY_JOB_ID",
}  # fmt: skip


def _patterns(
    script: BatchScript, words: Iterable[Word | ExpandedText], emptied: Sequence[Word] = ()
) -> Iterator[Problem]:
    """Find the first word with a pattern that only Slurm expands. `emptied`: files that each array element empties."""
    for word in words:
        written = word.unquoted if isinstance(word, Word) else word.text
        if _REPLACES.search(written):
            continue
        text = script.resolve(written) if isinstance(word, Word) else written
        match = _PATTERN.search(text) if "%" in text else None
        # `%Y-%j` is a format for dates.
        if match is not None and text != match[0] and not re.search("%[YymdHMSbBeFT]", text):
            index = "%a" in text and word in emptied
            what = f"the shell does not expand {'%a' if index else match[0]}: the file is named so in each job"
            if index:
                what = f"{what}, and all elements of the array empty it"
            yield Problem(word, what, f"write ${_NAMES['a' if index else match[1]]}", certain=index)
            return


EXCLUSIVE: tuple[tuple[frozenset[str], Severity], ...] = (
    *((group, "error") for group in EXCLUSIVE_OPTIONS),
    (SHARING_OPTIONS, "warning"),
    (CPU_COUNT_OPTIONS, "warning"),
)
"""Options that exclude each other. `error`: sbatch refuses both, or silently ignores one."""

_REPEATABLE = frozenset({"mail-type", "quiet", "verbose"})
"""Options whose values add up."""


@rule("KIT111")
def exclusive_options(script: BatchScript) -> Iterator[Problem]:
    """Two options exclude each other.

    --mem, --mem-per-cpu and --mem-per-gpu are three ways to request memory, and sbatch accepts only one. The same
    applies to --ntasks-per-gpu with --gpus-per-task or --ntasks-per-node. --gpus-per-node and --gres=gpu with different
    numbers request GPUs twice (a warning). Of --requeue and --no-requeue, Slurm silently uses the later one.

    Fix: keep one.
    Documented: sbatch(1), at each of these options.
    """
    # Each component of a heterogeneous job is checked by sbatch on its own.
    for component, options in enumerate(script.components):
        groups = [(both, severity) for group, severity in EXCLUSIVE if len(both := group & options.keys()) > 1]
        if _differ(options.get("gpus-per-node"), options.get("gres")):
            groups.append((frozenset({"gpus-per-node", "gres"}), "warning"))
        given = [each for each in script.directive_options if each.component == component]
        for group, severity in groups:
            places = [each for each in given if each.name in group]
            names = ", ".join(dict.fromkeys(f"--{each.name}" for each in places))
            what, lines = f"{names.replace(', ', ' and ')} exclude each other", tuple(each.line for each in places)
            yield from (Problem(each, what, f"keep one of {names}", lines, severity == "error") for each in places[-1:])


def _differ(per_node: DirectiveOption | None, gres: DirectiveOption | None) -> bool:
    """Tell whether both options request GPUs per node, with different numbers. Slurm uses the larger one."""
    if per_node is None or gres is None:
        return False
    by_option, by_gres = count_gpus(per_node.value), count_gres_gpus(gres.value)
    return by_option is not None and by_gres is not None and by_option != by_gres


@rule("KIT112", "warning")
def repeated_options(script: BatchScript) -> Iterator[Problem]:
    """An option is given twice with different values.

    Slurm silently uses the last one, and so does Python's argparse for an option of the program, such as `--lr`. The
    other value misleads the next person who edits the file.

    Fix: keep one.
    Documented: sbatch(1), DESCRIPTION; docs.python.org/3/library/argparse.html.
    """
    for launch in script.training:
        yield from _repeated_setting(launch)
    given: dict[tuple[int, str], list[DirectiveOption]] = {}
    for each in script.directive_options:
        given.setdefault((each.component, each.name), []).append(each)
    for (_, name), places in given.items():
        if len(places) > 1 and len({each.value for each in places}) > 1 and name not in _REPEATABLE:
            last, before = places[-1], places[-2]
            used, ignored = last.value or "the last", before.value or "the first"
            what = f"--{name} is given twice: Slurm uses {used} and ignores {ignored}"
            yield Problem(last, what, "keep one of the two", (before.line,))


_SETTINGS = frozenset({
    "batch-size", "epochs", "gradient-accumulation-steps", "learning-rate", "lr", "max-steps", "num-train-epochs",
    "output-dir", "per-device-train-batch-size", "seed", "weight-decay",
})  # fmt: skip
"""Options of programs that have one value."""


def _repeated_setting(launch: LaunchLine) -> Iterator[Problem]:
    """Find an option of the program with two different values on the launch line itself."""
    seen: dict[str, tuple[ExpandedText, str, int]] = {}
    words, written = launch.program.words, {(word.line, word.column) for word in launch.inner_command.syntax.words}
    for number, (word, following) in enumerate(pairwise((*words, words[-1]))):
        name, equals, value = word.text.partition("=")
        value = value if equals else following.text
        option = name.removeprefix("--").replace("_", "-")
        if not word.text.startswith("--") or option not in _SETTINGS or word.has_default:
            continue
        before = seen.get(option)
        # `--seed 1 --seed 2` is a list for a program whose options append.
        listed = before is not None and number - before[2] == (1 if equals else 2)
        # `"${COMMON[@]}" --lr 2` replaces a value of the list on purpose.
        places = {(each.line, each.column) for each in (word, before[0])} if before is not None else set()
        if before is not None and before[1] != value and not listed and places <= written:
            what = f"{name} is given twice: the program uses {value} and ignores {before[1]}"
            yield Problem(word, what, "keep one of the two", (before[0].line, launch.line))
        seen[option] = (word, value, number)


@rule("KIT114")
def options_too_new(script: BatchScript) -> Iterator[Problem]:
    """This release of Slurm does not have an option, or a value of it.

    sbatch refuses the script. In a cluster with several releases, a node may refuse it. The release is `slurm_version`
    of the cluster file, or else the answer of `sinfo --version`. Without either, this rule finds nothing.

    Fix: remove the option, or submit to a cluster whose release has it.
    Documented: Slurm's release notes; hpc_kit/slurm/versions.py and option_table.py contain the tables.
    """
    if script.site.version is None:
        return
    for each in script.directive_options:
        since = first_release_with(script.site.version, each.name, each.parsed.option.since, each.value)
        if since is not None:
            shown = f"--{each.name}" + ("" if each.parsed.option.since else f"={each.value}")
            what = f"{shown} came with Slurm {since}, but this is {script.site.version}"
            yield Problem(each, what, f"remove {shown}")


@rule("KIT130")
def job_that_does_not_run(script: BatchScript) -> Iterator[Problem]:
    """An option with which sbatch submits no job, or a job that waits for a person.

    With `--test-only`, sbatch checks the script and submits nothing. With `--hold`, the job waits until somebody calls
    `scontrol release` (a warning).

    Fix: remove the line.
    Documented: sbatch(1), --test-only and --hold.
    """
    for each in script.directive_options:
        if each.name in {"test-only", "hold"}:
            effect = "submits no job" if each.name == "test-only" else "the job waits for scontrol release"
            yield Problem(each, f"--{each.name}: {effect}", "remove it", certain=each.name == "test-only")


@rule("KIT131")
def empty_values(script: BatchScript) -> Iterator[Problem]:
    """An option without its value.

    `--partition=` names a partition with an empty name, which sbatch refuses. A variable was surely meant to fill it
    in, but Slurm expands none in directives.

    Fix: write the value, or remove the line. On the command line, `sbatch --partition="$PARTITION" FILE`.
    Documented: sbatch(1), OPTIONS.
    """
    for each in script.directive_options:
        if each.value or each.name not in _NEEDS_VALUE:
            continue
        if re.search(rf"--{each.name}=(\s|\Z)", script.lines[each.line - 1]):
            certain = each.name in {"partition", "nodelist", "qos", "account", "constraint", "array"}
            yield Problem(each, f"--{each.name}= has no value", "write the value, or remove the line", certain=certain)


_NEEDS_VALUE = frozenset({
    "account", "array", "constraint", "dependency", "error", "exclude", "job-name", "mail-user", "nodelist", "output",
    "partition", "qos", "reservation",
})  # fmt: skip
