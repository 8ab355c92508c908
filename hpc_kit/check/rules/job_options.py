"""Rules of form: will sbatch take the file, and does it see every directive as it was meant?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import PurePath

from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.rules.finding import RuleFinding, RuleInput, Severity, rule
from hpc_kit.slurm.directives import MARK, DirectiveOption, find_directive_options, suggest_fix
from hpc_kit.slurm.sizes import count_gpus, count_gres_gpus
from hpc_kit.slurm.versions import MIG_SHARED, first_release_with

_LOOKS_LIKE_OPTIONS = re.compile(r"(#+\w+)\s+-{1,2}[A-Za-z]")
_VARIABLE = re.compile(r"\$\{?[A-Za-z_]\w*")
_SIZES = (
    frozenset({"nodes", "nodelist"}),
    frozenset({"ntasks", "ntasks-per-node", "ntasks-per-gpu"}),
    frozenset({"gres", "gpus", "gpus-per-node", "gpus-per-task"}),
)
"""Options that say the same of a job's size."""

_HARMLESS = frozenset({"comment", "job-name", "mail-user", "wckey"})


@rule("KIT101")
def first_release_withterpreter(subject: RuleInput) -> Iterator[RuleFinding]:
    """The first line names no interpreter.

    sbatch refuses a script that does not begin with `#!` ("This does not look like a batch script"); an empty line or
    a byte order mark in front of it is enough.

    Mend: make `#!/bin/bash` the very first line.
    Documented: sbatch(1), DESCRIPTION.
    """
    script = subject.script
    if not script.text.strip():
        yield RuleFinding(1, 1, "the script is empty", "write #!/bin/bash in the first line, and a command")
    elif not script.lines[0].startswith("#!"):
        yield RuleFinding(
            1, 1, "the first line names no interpreter: sbatch refuses it", "begin the file with #!/bin/bash"
        )


@rule("KIT102")
def line_breaks(subject: RuleInput) -> Iterator[RuleFinding]:
    r"""The file has DOS line breaks, or a NUL byte.

    sbatch refuses a script with \r\n at its line ends, as Windows editors write them.

    Mend: `dos2unix FILE`, or `sed -i 's/\r$//' FILE`.
    Documented: the message of sbatch itself.
    """
    text = subject.script.text
    marks = (("\r\n", "DOS line breaks", "sed -i 's/\\r$//' FILE"), ("\0", "a NUL byte", "tr -d '\\0' <FILE >NEW"))
    for mark, what, remedy in marks:
        if mark in text:
            line = text[: text.index(mark)].count("\n") + 1
            yield RuleFinding(line, 1, f"{what}: sbatch refuses the script", remedy)
    if "\r" in text and "\n" not in text:
        yield RuleFinding(1, 1, "line breaks of old Macs: all of it is one line", "tr '\\r' '\\n' <FILE >NEW")


@rule("KIT103")
def refused_directives(subject: RuleInput) -> Iterator[RuleFinding]:
    """A directive that sbatch does not take.

    An option that does not exist, one without its value, a value that cannot be read (a time like 2h30), or a word that
    is no option at all. sbatch refuses the script, or stops reading the line. An unknown option that resembles none is
    a warning only: it may belong to a plugin of the site.

    Mend: as the message says. An option and its value stand as `--name=value`, without spaces around the `=`.
    Documented: sbatch(1), OPTIONS.
    """
    script = subject.script
    for problem in script.problems:
        error = problem.error
        remedy, certain = suggest_fix(error)
        severity: Severity | None = None if certain else "warning"
        yield RuleFinding(problem.line, problem.column, error.what, remedy, (), severity, error.found)
    for number, line in enumerate(script.lines, start=1):
        match = _LOOKS_LIKE_OPTIONS.match(line) if number in script.comments else None
        word = match[1] if match else MARK
        # `##SBATCH` (as `# SBATCH`) is how people put a directive aside.
        if word.lstrip("#") != "SBATCH" and get_close_matches(word.lstrip("#").upper(), ["SBATCH"], cutoff=0.8):
            yield RuleFinding(number, 1, f"{word} is a comment to Slurm", f"write {MARK}", severity="warning")
        aside = re.match(r"#\s+SBATCH\s+(-\S.*)", line) if number in script.comments else None
        if aside is not None and (missed := _sizes(aside[1], script)):
            what = f"a comment to Slurm, and no other line gives --{min(missed)}"
            yield RuleFinding(
                number, 1, what, f"{MARK} without a space, or ##SBATCH where it is meant so", severity="warning"
            )


def _sizes(text: str, script: BatchScript) -> set[str]:
    """What a line that was put aside says of a job's size, and no other says in its place."""
    named = {each.name for each in find_directive_options(["#!", f"{MARK} {text}"]).options}
    return {name for same in _SIZES if same.isdisjoint(script.options) for name in same & named}


@rule("KIT104")
def directives_after_command(subject: RuleInput) -> Iterator[RuleFinding]:
    """A directive that Slurm does not see.

    sbatch reads directives up to the first line that is neither a comment nor empty, and only where `#SBATCH` begins
    the line. What comes later, or is indented, is a comment: ignored in silence, and the defaults hold.

    Mend: move all #SBATCH lines to the top, above `set`, `module` and variables.
    Documented: sbatch(1), DESCRIPTION.
    """
    script = subject.script
    first = next((step.line for step in script.commands), None)
    for late in script.directives.late:
        options = late.text[len(MARK) :].lstrip().startswith("-")
        if options and (late.line in script.comments or not script.is_shell):
            what = "ignored in silence: a command stands above it"
            yield RuleFinding(late.line, 1, what, "move it above the first command", (first,))
    for number, line in enumerate(script.lines, start=1):
        if number in script.comments and re.match(rf"\s+{MARK}\s+-", line):
            yield RuleFinding(
                number, 1, f"ignored in silence: {MARK} does not begin the line", "remove the spaces before it"
            )
    for step in script.commands:
        name = step.words[0].text if step.words and not step.in_task else ""
        if re.fullmatch(r"[^\w/.]?#?SBATCH", name) and len(step.words) > 1 and step.words[1].text.startswith("-"):
            yield RuleFinding(
                step.line, step.syntax.column, f"{name} is a command to the shell", f"write {MARK}, at the top"
            )


@rule("KIT105")
def values_cut_at_hash(subject: RuleInput) -> Iterator[RuleFinding]:
    """A value that is cut at an unquoted `#`.

    In a directive, `#` begins a comment wherever it stands outside quotes, also inside a word: `--job-name=a#b` is the
    job name `a`.

    Mend: quote the value, `--job-name="a#b"`; put a space before a comment.
    Documented: seen with sbatch 22.05; `sbatch -v --test-only FILE` prints the options as read.
    """
    for directive in subject.script.directives.lines:
        cut = _cut_at(directive.text)
        if cut is not None:
            # `--time=60# one hour` loses nothing but looks.
            loses = not directive.text[cut + 1 : cut + 2].isspace() and cut + 1 < len(directive.text)
            kept = directive.text[:cut].split()[-1]
            yield RuleFinding(
                directive.line,
                cut + 1,
                f"the unquoted # cuts the value: Slurm reads {kept}",
                f'quote it: {kept.partition("=")[0]}="..."; or put a space before a comment',
                severity="error" if loses else "warning",
            )


def _cut_at(text: str) -> int | None:
    """Where a `#` inside a word ends the line."""
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
def variables_in_directives(subject: RuleInput) -> Iterator[RuleFinding]:
    """A variable in a directive.

    Slurm expands nothing in a directive: neither `$HOME` nor `$(date)` nor `~`. A log file then goes into a folder
    that is really called `$HOME`, mostly one that does not exist, and the job ends without a trace.

    Mend: Slurm's own patterns in file names (%u user, %x job name, %j job id); else options on the command line,
    `sbatch --output="$HOME/logs/%j.log" FILE`, which the shell does expand.
    Documented: sbatch(1), "filename pattern".
    """
    for each in subject.script.directive_options:
        if each.value.startswith("~/") or _VARIABLE.search(each.value):
            yield RuleFinding(
                each.line,
                each.column,
                f"--{each.name}={each.value}: Slurm expands no variables here",
                f'sbatch --{each.name}="{each.value}" FILE, or Slurm\'s own patterns (%u, %x, %j)',
                severity="warning" if each.name in _HARMLESS else None,
            )


EXCLUSIVE: tuple[tuple[frozenset[str], Severity], ...] = (
    (frozenset({"mem", "mem-per-cpu", "mem-per-gpu"}), "error"),
    (frozenset({"core-spec", "thread-spec"}), "error"),
    (frozenset({"ntasks-per-gpu", "gpus-per-task"}), "error"),
    (frozenset({"ntasks-per-gpu", "gpus-per-socket"}), "error"),
    (frozenset({"ntasks-per-gpu", "ntasks-per-node"}), "error"),
    (frozenset({"bb", "bbf"}), "error"),
    (frozenset({"requeue", "no-requeue"}), "error"),
    (frozenset({"exclusive", "oversubscribe"}), "warning"),
    (frozenset({"cpus-per-gpu", "cpus-per-task"}), "warning"),
)
"""Options of which one at most makes sense; `error`: sbatch refuses both, or takes one in silence."""

_MIG = re.compile(r"\d+g\.\d+gb", re.IGNORECASE)

_REPEATABLE = frozenset({"mail-type", "quiet", "verbose"})
"""Options whose values add up."""


@rule("KIT111")
def exclusive_options(subject: RuleInput) -> Iterator[RuleFinding]:
    """Options that exclude one another.

    --mem, --mem-per-cpu and --mem-per-gpu are three ways to ask for memory, and sbatch refuses two of them; the same
    holds for --ntasks-per-gpu with --gpus-per-task or --ntasks-per-node. --gpus-per-node and --gres=gpu with
    another number ask for GPUs twice (a warning). Of --requeue and --no-requeue the later one counts, in silence.

    Mend: keep one.
    Documented: sbatch(1), at each of these options.
    """
    script = subject.script
    for component, options in enumerate(script.components):
        groups = [(group & options.keys(), severity) for group, severity in EXCLUSIVE]
        if _differ(options.get("gpus-per-node"), options.get("gres")):
            groups.append((frozenset({"gpus-per-node", "gres"}), "warning"))
        yield from _exclusive([each for each in script.directive_options if each.component == component], groups)


def _differ(per_node: DirectiveOption | None, gres: DirectiveOption | None) -> bool:
    """Both ask for GPUs of a node, and for different numbers: the larger one counts, and a variable says the other."""
    if per_node is None or gres is None:
        return False
    asked, of_gres = count_gpus(per_node.value), count_gres_gpus(gres.value)
    return asked is not None and of_gres is not None and asked != of_gres


def _exclusive(given: list[DirectiveOption], groups: list[tuple[frozenset[str], Severity]]) -> Iterator[RuleFinding]:
    for group, severity in groups:
        if len(group) > 1:
            places = sorted((each.line, each.column, each.name) for each in given if each.name in group)
            names = " and ".join(f"--{name}" for name in dict.fromkeys(name for _, _, name in places))
            line, column, _ = places[-1]
            remedy = f"keep one of {names.replace(' and ', ', ')}"
            lines = tuple(place[0] for place in places)
            yield RuleFinding(line, column, f"{names} exclude one another", remedy, lines, severity)


@rule("KIT112", "warning")
def repeated_options(subject: RuleInput) -> Iterator[RuleFinding]:
    """An option that is given twice, with two values.

    The last one counts, in silence; the other is a trap for whoever edits the file next.

    Mend: keep one.
    Documented: sbatch(1), DESCRIPTION.
    """
    script = subject.script
    for component, name in dict.fromkeys((each.component, each.name) for each in script.directive_options):
        places = [each for each in script.directive_options if (each.component, each.name) == (component, name)]
        if len({each.value for each in places}) > 1 and name not in _REPEATABLE:
            last, before = places[-1], places[-2]
            what = f"--{name} is given twice: {last.value or 'the last'} counts, {before.value or 'the other'} does not"
            yield RuleFinding(last.line, last.column, what, "keep one of the two", (before.line,))


@rule("KIT113")
def missing_log_folders(subject: RuleInput) -> Iterator[RuleFinding]:
    """The folder of a log file does not exist.

    Slurm makes no folders for --output and --error. It takes the job, the job ends within a second (before 23.02
    without a word, seen as FAILED 0:53), and no file tells why. `mkdir` in the script itself comes too late.

    Mend: make the folder before sbatch runs: `mkdir -p logs && sbatch FILE`.
    Documented: sbatch(1), --output and "filename pattern".
    """
    script = subject.script
    if subject.is_folder is None or _submits_itself(script):
        return
    start = script.options.get("chdir", "")
    for each in script.directive_options:
        folder = _folder(each.value, script.options.get("job-name")) if each.name in {"output", "error"} else None
        if folder is None or "$" in folder or folder.startswith("~"):
            continue
        path = str(PurePath(start) / folder)
        if "%" in folder:
            what = f"no folder has this name before the job runs: {folder}"
            yield RuleFinding(each.line, each.column, what, "name a folder without %j, %A, %a; keep those for the file")
        elif not subject.is_folder(path):
            # Another machine's file systems are not seen from here.
            elsewhere = path.startswith("/") and not subject.is_folder(_root_of(path))
            yield RuleFinding(
                each.line,
                each.column,
                f"the log folder does not exist: {path}",
                f"mkdir -p {path}, before sbatch runs",
                severity="warning" if elsewhere else None,
            )


def _root_of(path: str) -> str:
    """The file system, or the home, in which a folder lies."""
    parts = PurePath(path).parts
    if len(parts) < 2:
        return path
    home = parts[1] in {"home", "users", "Users"} or len(parts) > 3
    return str(PurePath(*parts[: 3 if home else 2]))


def _submits_itself(script: BatchScript) -> bool:
    """It is run by hand first, makes its folders, and hands itself to sbatch."""
    texts = [word.text for step in script.commands if step.name == "sbatch" for word in step.words]
    return any(re.match(r"\$\{?(0|BASH_SOURCE)\b", text) for text in texts) and any(
        step.name == "mkdir" for step in script.commands
    )


def _folder(value: str, job_name: str | None) -> str | None:
    """The folder of a log file, with what is known of Slurm's patterns put in; None: the current one."""
    folder = str(PurePath(value).parent)
    if "/" not in value or folder == ".":
        return None
    known = folder if job_name is None else re.sub(r"(?<!%)((?:%%)*)%x", lambda match: match[1] + job_name, folder)
    return None if re.search(r"(?<!%)(?:%%)*%[uxN]", known) else known.replace("%%", "%") if "%%" in known else known


@rule("KIT118", "warning")
def shared_array_logs(subject: RuleInput) -> Iterator[RuleFinding]:
    """All elements of an array write one log file.

    Each begins the file anew (unless --open-mode=append), and they write over one another: of most nothing is left.

    Mend: `--output=%x_%A_%a.log`: %A is the array's job id, %a the element's number.
    Documented: sbatch(1), "filename pattern".
    """
    for part in subject.script.components:
        array = part.get("array")
        if array is None or _one_element(array.value) or "open-mode" in part:
            continue
        for each in [part[name] for name in ("output", "error") if name in part]:
            own = re.search(r"%\d*[ajJ]", each.value.replace("%%", ""))
            if own is None and not each.value.startswith(("/dev/", "none")):
                what = f"all elements of the array write into {each.value}"
                yield RuleFinding(each.line, each.column, what, "%A_%a in the file's name", (array.line,))


def _one_element(array: str) -> bool:
    """The array has a single element: `3`, `3-3`, or a range whose step goes beyond its end."""
    match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?(%\d+)?", array)
    return match is not None and int(match[1]) + int(match[3] or 1) > int(match[2] or match[1])


@rule("KIT114")
def options_too_new(subject: RuleInput) -> Iterator[RuleFinding]:
    """An option, or a value, that this release of Slurm does not have.

    sbatch refuses the script, or, in a cluster of several releases, a node does. The release is that of `slurm_version`
    in the cluster file, else what `sinfo --version` says here; where neither is known, nothing is found.

    Mend: leave the option out, or submit where the release has it.
    Documented: Slurm's release notes; hpc_kit/slurm/versions.py and option_table.py hold the tables.
    """
    if subject.version is None:
        return
    for each in subject.script.directive_options:
        since = first_release_with(subject.version, each.name, each.parsed.option.since, each.value)
        if since is not None:
            shown = f"--{each.name}" + ("" if each.parsed.option.since else f"={each.value}")
            what = f"{shown} came with Slurm {since}, and this is {subject.version}"
            yield RuleFinding(each.line, each.column, what, f"leave {shown} out")


@rule("KIT115", "warning")
def shared_mig_devices(subject: RuleInput) -> Iterator[RuleFinding]:
    """--gpus-per-task with MIG devices.

    Before Slurm 23.11.4 all tasks of a node get the same MIG device, and share its memory without a word.

    Mend: ask for them by node: `--gpus-per-node`.
    Documented: Slurm's release notes, 23.11.4.
    """
    asked = [
        each for each in subject.script.directive_options if each.name == "gpus-per-task" and _MIG.search(each.value)
    ]
    for each in asked if MIG_SHARED.holds(subject.version) is not False else ():
        what = f"{MIG_SHARED.releases}, all tasks of a node get the same MIG device: {each.value}"
        yield RuleFinding(each.line, each.column, what, "--gpus-per-node, with a node's devices sum_sizes")
