"""Rules for #SBATCH lines: syntax, position, contradictions, and log folders."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import pairwise
from pathlib import PurePath

from hpc_kit.check.bash_syntax import Origin, Word
from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.expansion import ExpandedText
from hpc_kit.check.launch_lines import LaunchLine
from hpc_kit.check.rules.counts import count_processes
from hpc_kit.check.rules.finding import Problem, Severity, rule
from hpc_kit.check.text_edits import Edit
from hpc_kit.errors import HpcKitError
from hpc_kit.slurm.directives import MARK, DirectiveOption, find_directive_options, suggest_fix
from hpc_kit.slurm.option_table import CPU_COUNT_OPTIONS, EXCLUSIVE_OPTIONS, SHARING_OPTIONS
from hpc_kit.slurm.partitions import JobPart, find_partition_obstacle
from hpc_kit.slurm.sizes import GPU_COUNT_OPTIONS, JobSize, count_gpus, count_gres_gpus, parse_count, size_of_job
from hpc_kit.slurm.units import format_count, parse_memory
from hpc_kit.slurm.versions import MIG_SHARED, first_release_with
from hpc_kit.spec.cluster import Cluster
from hpc_kit.spec.job_checks import find_unlisted
from hpc_kit.spec.partition_checks import partitions_of

_LOOKS_LIKE_OPTIONS = re.compile(r"(#+\w+)\s+-{1,2}[A-Za-z]")
_VARIABLE = re.compile(r"\$\{?[A-Za-z_]\w*")
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
        yield Problem(problem, error.what, remedy, (), certain, error.found)
    for number in sorted(script.comments):
        line, place = script.lines[number - 1], Origin(number)
        match = _LOOKS_LIKE_OPTIONS.match(line)
        word = match[1] if match else MARK
        # `##SBATCH` (as `# SBATCH`) usually disables a directive on purpose.
        if word.lstrip("#") != "SBATCH" and get_close_matches(word.lstrip("#").upper(), ["SBATCH"], cutoff=0.8):
            what, edits = f"Slurm reads {word} as a comment", (Edit(number, 1, word, MARK),)
            yield Problem(place, what, f"write {MARK}", certain=False, edits=edits)
        aside = re.match(r"#\s+SBATCH\s+(-\S.*)", line)
        if aside is not None and (missed := _sizes(aside[1], script)):
            what = f"Slurm reads this as a comment, and no other line gives --{min(missed)}"
            yield Problem(place, what, f"write {MARK} without a space, or ##SBATCH for a comment", certain=False)


def _misspelt_gres(script: BatchScript) -> Iterator[Problem]:
    """Find a generic resource whose name is nearly `gpu`."""
    for each in script.directive_options:
        for item in each.value.split(",") if each.name == "gres" else ():
            name = item.removeprefix("gres/").partition(":")[0]
            if name != "gpu" and get_close_matches(name.lower(), ["gpu"], cutoff=0.6):
                what = f"Slurm's name for GPUs is gpu, not {name}: sbatch refuses the job"
                yield Problem(each, what, f"write --gres=gpu{item[len(name) :]}", certain=False)


def _sizes(text: str, script: BatchScript) -> set[str]:
    """Return the size options of a commented-out line that no directive gives."""
    named = {each.name for each in find_directive_options(["#!", f"{MARK} {text}"]).options}
    return {name for same in _SIZES if same.isdisjoint(script.options) for name in same & named}


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
        spaces = re.match(rf"\s+(?={MARK}\s+-)", script.lines[number - 1])
        if spaces is not None:
            what = f"Slurm silently ignores this directive: {MARK} does not begin the line"
            edits = (Edit(number, 1, spaces[0], ""),)
            yield Problem(Origin(number), what, "remove the spaces before it", edits=edits)
    for step in script.batch_commands:
        if re.fullmatch(r"[^\w/.]?#?SBATCH", step.name) and step.texts[1:2] and step.texts[1].startswith("-"):
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
    warning).

    Fix: use Slurm's own patterns in file names (%u user, %x job name, %j job id). Or pass the option on the command
    line, `sbatch --output="$HOME/logs/%j.log" FILE`, where the shell expands it.
    Documented: sbatch(1), "filename pattern".
    """
    for each in script.directive_options:
        if each.value.startswith("~/") or _VARIABLE.search(each.value):
            what = f"--{each.name}={each.value}: Slurm expands no variables here"
            remedy = f'run sbatch --{each.name}="{each.value}" FILE, or use the patterns of Slurm (%u, %x, %j)'
            yield Problem(each, what, remedy, certain=each.name not in _HARMLESS)
    for step in script.batch_commands:
        words = step.syntax.words if step.name == "tee" else ()
        yield from _patterns([*words, *filter(None, [step.syntax.output])])
    for launch in script.training:
        # submitit replaces `%j` itself.
        if not any("submitit" in text for text in launch.program.texts[:3]):
            yield from _patterns(launch.program.words)


_PATTERN = re.compile(r"(?<![^/_.=-])%([jxAJ])(?=[/_.-]|\Z)")


def _patterns(words: Iterable[Word | ExpandedText]) -> Iterator[Problem]:
    """Find the first word with a pattern that only Slurm expands."""
    names = {"j": "SLURM_JOB_ID", "J": "SLURM_JOB_ID", "x": "SLURM_JOB_NAME", "A": "SLURM_ARRAY_JOB_ID"}
    for word in words:
        text = word.raw.strip("\"'") if isinstance(word, Word) else word.text
        match = _PATTERN.search(text)
        # `%Y-%j` is a format for dates.
        if match is not None and text != match[0] and not re.search("%[YymdHMS]", text):
            what = f"the shell does not expand %{match[1]}: the file is named so in each job"
            yield Problem(word, what, f"write ${names[match[1]]}", certain=False)
            return


EXCLUSIVE: tuple[tuple[frozenset[str], Severity], ...] = (
    *((group, "error") for group in EXCLUSIVE_OPTIONS),
    (SHARING_OPTIONS, "warning"),
    (CPU_COUNT_OPTIONS, "warning"),
)
"""Options that exclude each other. `error`: sbatch refuses both, or silently ignores one."""

_MIG = re.compile(r"\d+g\.\d+gb", re.IGNORECASE)

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
        groups = [(group & options.keys(), severity) for group, severity in EXCLUSIVE]
        if _differ(options.get("gpus-per-node"), options.get("gres")):
            groups.append((frozenset({"gpus-per-node", "gres"}), "warning"))
        yield from _exclusive([each for each in script.directive_options if each.component == component], groups)


def _differ(per_node: DirectiveOption | None, gres: DirectiveOption | None) -> bool:
    """Tell whether both options request GPUs per node, with different numbers. Slurm uses the larger one."""
    if per_node is None or gres is None:
        return False
    by_option, by_gres = count_gpus(per_node.value), count_gres_gpus(gres.value)
    return by_option is not None and by_gres is not None and by_option != by_gres


def _exclusive(given: list[DirectiveOption], groups: list[tuple[frozenset[str], Severity]]) -> Iterator[Problem]:
    for group, severity in groups:
        if len(group) > 1:
            places = sorted((each.line, each.column, each.name) for each in given if each.name in group)
            names = [f"--{name}" for name in dict.fromkeys(name for _, _, name in places)]
            what, remedy = f"{' and '.join(names)} exclude each other", f"keep one of {', '.join(names)}"
            place, lines = Origin(*places[-1][:2]), tuple(line for line, _, _ in places)
            yield Problem(place, what, remedy, lines, certain=severity == "error")


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
    for component, name in dict.fromkeys((each.component, each.name) for each in script.directive_options):
        places = [each for each in script.directive_options if (each.component, each.name) == (component, name)]
        if len({each.value for each in places}) > 1 and name not in _REPEATABLE:
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
    words = launch.program.words
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
        if before is not None and before[1] != value and not listed and _same_command(launch, before[0], word):
            what = f"{name} is given twice: the program uses {value} and ignores {before[1]}"
            yield Problem(word, what, "keep one of the two", (before[0].line, launch.line))
        seen[option] = (word, value, number)


def _same_command(launch: LaunchLine, *words: ExpandedText) -> bool:
    """Tell whether the command itself contains words, and no variable."""
    written = {(word.line, word.column) for word in launch.inner_command.syntax.words}
    return all((word.line, word.column) in written for word in words)


@rule("KIT113")
def missing_log_folders(script: BatchScript) -> Iterator[Problem]:
    """The folder of a log file does not exist.

    Slurm does not create folders for --output and --error. It accepts the job, and the job ends within a second. Before
    23.02 there is no message, only the state FAILED 0:53. `mkdir` in the script itself comes too late. The rule looks
    for the folder where sbatch and the file system exist; elsewhere it only finds names that no folder can have before
    the job runs. A relative folder is a warning, because sbatch may be called in another folder than this one. The rule
    looks for it only if a file that the script names exists here, or if the script itself creates the folder.

    Fix: create the folder before you call sbatch: `mkdir -p logs && sbatch FILE`.
    Documented: sbatch(1), --output and "filename pattern".
    """
    # Such a script creates the folder in front of its own sbatch.
    if _submits_itself(script):
        return
    start = script.options.get("chdir", "")
    for each in script.directive_options:
        folder = _folder(each.value, script.options.get("job-name")) if each.name in {"output", "error"} else None
        if folder is None or "$" in folder or folder.startswith("~"):
            continue
        path = str(PurePath(start) / folder)
        if "%" in folder:
            what = f"no folder has this name before the job runs: {folder}"
            yield Problem(each, what, "name a folder without %j, %A or %a, and use them in the file name")
        elif _is_missing(script, path, folder):
            what, remedy = f"the log folder does not exist: {path}", f"run mkdir -p {path} before sbatch"
            yield Problem(each, what, remedy, certain=path.startswith("/"))


def _is_missing(script: BatchScript, path: str, folder: str) -> bool:
    exists, start = script.site.exists, script.options.get("chdir", "")
    if exists is None or exists(path):
        return False
    if path.startswith("/"):
        return exists(_root_of(path))  # the file systems of another cluster are not seen from here
    if any(step.name == "mkdir" and folder in step.texts for step in script.commands):
        return True
    # Without any file of the script, sbatch is called in another folder than this one.
    words = {word.text for step in script.commands for word in step.words[1:] if PurePath(word.text).suffix}
    return any(exists(str(PurePath(start) / word)) for word in words if word[0] not in "-/~$")


def _root_of(path: str) -> str:
    """Return the file system, or the home folder, that contains a folder."""
    parts = PurePath(path).parts
    if len(parts) < 2:
        return path
    home = parts[1] in {"home", "users", "Users"} or len(parts) > 3
    return str(PurePath(*parts[: 3 if home else 2]))


def _submits_itself(script: BatchScript) -> bool:
    """Tell whether a person runs the script first, and it then submits itself."""
    texts = [text for step in script.commands if step.name == "sbatch" for text in step.texts]
    creates = any(step.name == "mkdir" for step in script.commands)
    return creates and any(re.match(r"\$\{?(0|BASH_SOURCE)\b", text) for text in texts)


def _folder(value: str, job_name: str | None) -> str | None:
    """Return the folder of a log file with known patterns filled in; None for the current folder."""
    folder = str(PurePath(value).parent)
    if "/" not in value or folder == ".":
        return None
    known = folder if job_name is None else re.sub(r"(?<!%)((?:%%)*)%x", lambda match: match[1] + job_name, folder)
    # %u and %N are known only at submission, and such a folder may well exist.
    return None if re.search(r"(?<!%)(?:%%)*%[uxN]", known) else known.replace("%%", "%")


@rule("KIT118", "warning")
def shared_array_logs(script: BatchScript) -> Iterator[Problem]:
    """All elements of an array write to the same log file.

    Each element truncates the file (unless --open-mode=append), so that most of the output is lost. In a job without
    --array, %a is 4294967294: the option is missing, or the name is that of another script.

    Fix: `--output=%x_%A_%a.log`. %A is the job id of the array, %a the index of the element.
    Documented: sbatch(1), "filename pattern".
    """
    yield from _names_of_no_array(script)
    for part in script.components:
        array = part.get("array")
        if array is None or _one_element(array.value) or "open-mode" in part:
            continue
        for each in [part[name] for name in ("output", "error") if name in part]:
            # `%%a` is the text `%a`. Each element has a job id (%j) of its own.
            distinct = re.search(r"%\d*[ajJ]", each.value.replace("%%", ""))
            if distinct is None and not each.value.startswith(("/dev/", "none")):
                what = f"all elements of the array write to {each.value}"
                yield Problem(each, what, "write %A_%a in the file name", (array.line,))


def _names_of_no_array(script: BatchScript) -> Iterator[Problem]:
    """Find the index of an array in the log of a job that is none, and that says nothing of one."""
    output = script.directive("output")
    index = re.search(r"%\d*a", output.value.replace("%%", "")) if output is not None else None
    # A comment may tell how to submit the script as an array.
    mentioned = re.search(r"(?i)array|sbatch\s[^\n]*\s-a", script.text)
    if output is not None and index is not None and not mentioned and script.training:
        yield Problem(output, "%a is 4294967294: the job has no --array", "add --array=..., or write %j")


def _one_element(array: str) -> bool:
    """Tell whether the array has a single element: `3`, `3-3`, or a range with a step beyond its end."""
    match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?(%\d+)?", array)
    return match is not None and int(match[1]) + int(match[3] or 1) > int(match[2] or match[1])


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


_GPU_PARTITION = re.compile(
    r"(?:.*[-_])?(?:gpus?|a100|a[1-4]0|v100|h[12]00|l40s?|b200|gh200|mi\d{3}\w?)(?:[-_.].*|\d*)?\Z", re.IGNORECASE
)


@rule("KIT133", "warning")
def no_gpu_requested(script: BatchScript) -> Iterator[Problem]:
    """A training on GPUs in a job that asks for none.

    The partition only selects the nodes. Slurm gives a job the GPUs that it asks for, and hides the others: without
    --gpus, --gpus-per-node or --gres, torch.cuda.is_available() is False. The rule goes by the name of the partition
    and by `--device cuda` or `--use-cuda`, and ignores jobs that take whole nodes.

    Fix: `#SBATCH --gpus-per-node=1`.
    Documented: slurm.schedmd.com/gres.html.
    """
    directive = script.directive("partition")
    # Many sites give all GPUs of a node to a job that takes the whole node.
    whole = "exclusive" in script.options or script.options.get("mem") == "0"
    whole = whole or (script.counts_only_nodes and "nodes" in script.options)
    # A comment may tell how to submit the script.
    whole = whole or re.search(r"\bsbatch\s[^\n]*(--g(pus|res)|-G)", script.text) is not None
    # `--constraint=gpu` selects whole nodes where jobs get no others.
    if whole or script.is_heterogeneous or "gpu" in script.options.get("constraint", "").lower():
        return
    steps = [srun for launch in script.launch_lines if (srun := launch.stage("srun")) is not None]
    asks = any(re.match(r"gpus|gres|tres|\w+-per-gpu", name) for each in steps for name in each.options)
    asks = asks or any(re.match(r"gpus|gres|tres|\w+-per-gpu", name) for name in script.options)
    on_cpus = any(launch.on_cpus for launch in script.training)
    python = all(launch.program.kind == "python" for launch in script.training)
    if asks or on_cpus or not python:
        return
    remedy = "add #SBATCH --gpus-per-node=..., or --gres=gpu:..."
    if directive is not None and all(map(_GPU_PARTITION.match, directive.value.split(","))):
        what = f"the job asks for no GPU: the partition {directive.value} alone gives none"
        yield Problem(directive, what, remedy)
        return
    for launch in script.training:
        opens = next((word for stage in launch.stages for word in stage.words if word.text in {"--nv", "--rocm"}), None)
        if opens is not None and launch.is_named_training:
            what = f"{opens.text} gives the container the GPUs of the job, but the job asks for none"
            yield Problem(opens, what, remedy, (launch.line,))
            return
        device = launch.argument("device", "accelerator")
        flag = re.search(
            r"--((use|enable)[-_](cuda|gpu)|cuda)(?! (0|[Ff]alse|no)\b)(?= |\Z)", " ".join(launch.program.texts)
        )
        if device is None or not re.match(r"(cuda|gpu)\b", device.text):
            device = next((word for word in launch.program.words if flag and word.text == flag[0]), None)
        if device is not None:
            yield Problem(device, "the program needs a GPU, but the job asks for none", remedy, (launch.line,))


@rule("KIT115", "warning")
def shared_mig_devices(script: BatchScript) -> Iterator[Problem]:
    """MIG devices that the tasks share, or that one training cannot use together.

    Before Slurm 23.11.4, all tasks of a node silently get the same MIG device of --gpus-per-task and share its memory.
    CUDA shows a process one MIG device, the first, and NCCL connects no two of one GPU: a training with several
    processes ends with "Duplicate GPU detected".

    Fix: request them per node (`--gpus-per-node`) for independent tasks; one larger device, or whole GPUs, for a
    training.
    Documented: Slurm's release notes, 23.11.4; NVIDIA's MIG User Guide, "CUDA Visible Devices".
    """
    requests = [each for each in script.directive_options if each.name in {"gres", *GPU_COUNT_OPTIONS}]
    sliced = [each for each in requests if _MIG.search(each.value)]
    for launch in script.training if sliced else ():
        agent = launch.agent
        count = count_processes(agent) if agent is not None else None
        if agent is None and {"MASTER_ADDR", "MASTER_PORT"} & script.assigned:
            count = script.size_of(launch).tasks_per_node
        each_device = agent.option("nproc-per-node") if agent is not None else None
        if each_device is not None and each_device.text in {"gpu", "auto"}:
            count = parse_count(sliced[0].value.rpartition(":")[2])
        if (count or 1) > 1:
            what = f"{count} processes train together on MIG devices, which NCCL cannot connect"
            remedy, lines = "request one larger device, or whole GPUs", (sliced[0].line, launch.line)
            yield Problem(agent or launch.program, what, remedy, lines)
    for each in sliced if MIG_SHARED.holds(script.slurm_version) is not False else ():
        if each.name == "gpus-per-task":
            what = f"{MIG_SHARED.releases}, all tasks of a node get the same MIG device: {each.value}"
            yield Problem(each, what, "use --gpus-per-node with all devices of a node")


_HOURS = frozenset({12, 24, 36, 48, 72, 96, 120, 168})
_SHORT_TIME = re.compile(r"0?[1-4]:00|0?0:\d\d")
_RATHER_HOURS = re.compile(r"0?[68]:00|1[68]:00")
_BRIEF = re.compile(
    r"(?i)test|debug|short|quick|smoke|dev|express|minute|\bmin\b|bench|tutorial|course|exercise|lecture|demo|example|toy"
    r"|mnist|hello|sanity|profil|warm|\bchecks?\b|\blimit[-_]|max[-_]?(steps|iters)[= ]\d{1,3}\b|epochs?[= ]\d\b"
)
_LONG_WORK = re.compile(r"(?i)train|tun(e|ing)|sft|dpo|distil")
_UNITS = re.compile(
    r"(?i)\b\d*\s*(h|hrs?|hours?|d|days?)\b|\b(one|two|three|four|five|six|eight|ten|twelve)\s+(hours?|days?)"
)


@rule("KIT122", "warning")
def minutes_for_hours(script: BatchScript) -> Iterator[Problem]:
    """A time limit in minutes that was surely meant in hours.

    `--time=24` is 24 minutes, and `--time=24:00` is 24 minutes and no seconds. Slurm ends the job then. A comment that
    speaks of hours or days settles what was meant. `--time=0` asks for no limit: in a partition with a limit, the job
    waits for ever.

    Fix: `--time=24:00:00`, or `--time=1-0` for a day.
    Documented: sbatch(1), --time.
    """
    for each in [each for each in script.directive_options if each.name == "time"]:
        match = re.fullmatch(r"(\d{1,3})(?::(\d\d))?", each.value)
        if re.fullmatch(r"[0:-]+", each.value):
            what = f"--time={each.value} asks for no limit: in a partition with a limit, the job never starts"
            yield Problem(each, what, "write a time limit, or remove the line for the default of the partition")
        elif match is not None:
            minutes, seconds = int(match[1]), match[2] or "00"
            comment = script.lines[each.line - 1].partition(" #")[2]
            meant = bool(_UNITS.search(comment)) and "min" not in comment
            short = _SHORT_TIME.fullmatch(each.value) or (_RATHER_HOURS.fullmatch(each.value) and _is_long(script))
            shown = format_count(minutes, "minute") if minutes else f"{seconds} seconds"
            if meant or (minutes in _HOURS and seconds == "00" and minutes != 120):
                what = f"--time={each.value} is {shown}" + (f" and {seconds} seconds" if seconds != "00" else "")
                yield Problem(each, what, f"write --time={match[1]}:{seconds}:00 for hours")
            elif script.training and short:
                what, remedy = f"--time={each.value} is {shown}", f"write --time={each.value}:00 for hours and minutes"
                yield Problem(each, what, remedy)


def _is_long(script: BatchScript) -> bool:
    """Tell whether the last program is a training by its name, and nothing says that it is a short one."""
    words = [text for launch in script.training[-1:] for text in launch.program.texts[:4] if text[:2] != "--"]
    return any(map(_LONG_WORK.search, words)) and not _BRIEF.search(script.text)


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
        named = re.search(rf"--{each.name}=(\s|\Z)", script.lines[each.line - 1])
        if named and not each.value and each.name in _NEEDS_VALUE:
            certain = each.name in {"partition", "nodelist", "qos", "account", "constraint", "array"}
            yield Problem(each, f"--{each.name}= has no value", "write the value, or remove the line", certain=certain)


_NEEDS_VALUE = frozenset({
    "account", "array", "constraint", "dependency", "error", "exclude", "job-name", "mail-user", "nodelist", "output",
    "partition", "qos", "reservation",
})  # fmt: skip


@rule("KIT123", "warning")
def unlikely_memory(script: BatchScript) -> Iterator[Problem]:
    """An amount of memory that was surely not meant.

    `--mem=16` asks for 16 MiB. A Python program does not even start with so little: Slurm ends it as out of memory.
    `--mem-per-cpu=160G` with 24 CPUs asks for 3.75 TiB, which nearly no node has. No node has the 62 TiB of
    `--mem=64000G` either.

    Fix: write the unit, `--mem=16G`. `--mem=0` is all memory of the node. For the memory of the whole job on a node,
    write --mem.
    Documented: sbatch(1), --mem, --mem-per-cpu, --mem-per-gpu.
    """
    # CUDA alone takes some hundreds of MiB.
    least = 1000 if script.size.has_gpus else 200
    for each in script.directive_options if script.training or script.size.has_gpus else ():
        bound = 200 if each.name == "mem-per-cpu" else least
        if each.name not in {"mem", "mem-per-cpu", "mem-per-gpu"} or not (amount := _memory(each.value)):
            continue
        gpus = (script.size.gpus_per_node or 1) if each.name == "mem" else 1
        if amount < bound:
            what = f"--{each.name}={each.value} is {amount} MiB"
            yield Problem(each, what, f"write --{each.name}={each.value.rstrip('MKmk')}G")
        elif amount < bound * gpus:
            what = f"--mem={each.value} is {amount // gpus} MiB for the process of each GPU"
            yield Problem(each, what, "write the memory of the whole node", (script.line_of_gpus,))
    if not script.is_heterogeneous:
        yield from _beyond_every_node(script)


_MOST_MEMORY = 16 * 1024**2
_MOST_MEMORY_WITH_GPUS = 3 * 1024**2
"""MiB. Nodes with eight GPUs mostly have up to 2 TiB. A few nodes without GPUs have 12 TiB."""


def _beyond_every_node(script: BatchScript) -> Iterator[Problem]:
    """Find a request for more memory than a node has."""
    size, partition = script.size, script.options.get("partition", "")
    if re.search(r"(?i)mem|fat|large|big|huge|himem|smp", partition + script.options.get("constraint", "")):
        return
    cpus = (size.cpus_per_task or 1) * (size.tasks_per_node or 1)
    for name, count, unit in (
        ("mem", 1, ""),
        ("mem-per-cpu", cpus, "CPUs"),
        ("mem-per-gpu", size.gpus_per_node, "GPUs"),
    ):
        each = script.directive(name)
        amount = _memory(each.value) if each is not None else None
        if each is None or amount is None or count is None:
            continue
        if amount * count > (_MOST_MEMORY_WITH_GPUS if size.has_gpus else _MOST_MEMORY):
            total = f"{amount * count / 1024**2:.3g} TiB"
            what, remedy = f"--mem={each.value} is {total}", "write the unit that you mean"
            if unit:
                what = f"{each.value} for each of {count} {unit} is {total} on a node"
                remedy = f"write --mem={each.value} for all of them"
            lines = (script.line_of("cpus-per-task"), script.line_of("ntasks-per-node", "ntasks"))
            yield Problem(each, what, remedy, lines if name == "mem-per-cpu" else ())
            return


_GPU_MODEL = re.compile(
    r"(?i)(?:gpu[-_]?)?(a(?:10|16|30|40|100|800)|v100s?|[hb](?:20|100|200|300|800)|l(?:4|40s?)|gh200|gb[23]00|mi\d{3}x?"
    r"|p(?:4|40|100)|k[48]0|t4|rtx[-_]?\w*\d\w*|titan\w*)"
)


@rule("KIT140")
def contradicting_features(script: BatchScript) -> Iterator[Problem]:
    """--constraint asks for nodes with two models of GPU.

    A comma and an `&` mean that a node must have both features. Nodes have one model of GPU, so that no node fits: the
    job is refused, or waits for ever.

    Fix: `--constraint="a100|h100"`.
    Documented: sbatch(1), --constraint.
    """
    for each in [each for each in script.directive_options if each.name == "constraint"]:
        # In brackets, the features are those of different nodes.
        for group in each.value.split("|") if not re.search(r"[\[(*]", each.value) else ():
            found = filter(None, (_GPU_MODEL.fullmatch(feature.strip()) for feature in re.split("[,&]", group)))
            models = list({match[1].lower(): match[1] for match in found}.values())
            # l40 may be the family of l40s.
            if any(not second.lower().startswith(first.lower()) for first, second in pairwise(sorted(models))):
                what = f"no node has the GPUs {' and '.join(models)} at the same time"
                yield Problem(each, what, f'write --constraint="{"|".join(models)}" for one of them')
        request = script.directive("gres") or script.directive("gpus-per-node") or script.directive("gpus")
        typed = re.fullmatch(r"(?:gpu:)?([A-Za-z][^:,]*):\d+", request.value) if request is not None else None
        pair = [_GPU_MODEL.fullmatch(text) for text in (typed[1] if typed else "", each.value)]
        names = sorted(match[1].lower() for match in pair if match)
        if request is not None and len(names) == 2 and not names[1].startswith(names[0]):
            what = f"no node has the GPUs {' and '.join(names)} at the same time"
            yield Problem(each, what, "remove the constraint, or the model of the GPUs", (request.line,), certain=False)


@rule("KIT132")
def beyond_the_cluster(script: BatchScript) -> Iterator[Problem]:
    """The job asks for more than the cluster, its partition or one of its nodes has.

    sbatch refuses it ("Requested node configuration is not available", "Invalid job array specification"), or the job
    waits for ever. The sizes are those of the cluster file, of its [partition.NAME] or else of [node]: `hpc-kit check
    --cluster NAME FILE`. A partition, account or QOS that the file does not list is a warning. Without a file, the rule
    only compares an array with Slurm's default MaxArraySize, 1001, which most sites raise or keep (a warning), and
    ignores one whose indexes are all larger.

    Fix: fewer tasks, CPUs, GPUs, memory or time, or another partition. For a long array, let each element do several
    pieces of work.
    Documented: sbatch(1), --ntasks-per-node, --cpus-per-task, --mem; slurm.conf(5), MaxArraySize; docs/cluster-keys.md.
    """
    cluster = script.site.cluster
    yield from _large_array(script, cluster)
    if cluster is None:
        return
    for part in script.components:
        options = {name: each.value for name, each in part.items()}
        size = size_of_job(options)
        node = cluster.for_partition(options.get("partition")).node
        if options.keys().isdisjoint({"clusters", "reservation"}):
            yield from _beyond_partition(script, cluster, part, size)
        if "clusters" not in options:
            yield from _unlisted(cluster, part, options)
        tasks = size.tasks_per_node or (-(-size.ntasks // size.nodes) if size.ntasks and size.nodes else 1)
        cpus = tasks * (size.cpus_per_task or 1)
        memory = _memory(options.get("mem")) or (_memory(options.get("mem-per-cpu")) or 0) * cpus
        most = _memory(str(node.mem)) if node.mem is not None else None
        for count, limit, unit, names in (
            (cpus, node.cpus, "CPUs", ("cpus-per-task", "ntasks-per-node", "ntasks")),
            (size.gpus_per_node or 0, node.gpus, "GPUs", ("gpus-per-node", "gres", "gpus-per-task", "gpus")),
            (memory, most, "MiB of memory", ("mem", "mem-per-cpu")),
        ):
            place = next((part[name] for name in names if name in part), None)
            # The embedded Slurm ignores GPUs. A partition without GPUs never starts the job.
            lacks = limit == 0 and "partition" in options and cluster.slurm != "embedded"
            if place is not None and limit is not None and count > limit and (limit or lacks):
                what = f"{count} {unit} per node, but a node has {limit or 'none'}"
                remedy = f"use at most {limit} {unit} per node" if limit else "use a partition that has some"
                yield Problem(place, what, remedy, (script.line_of("nodes"), script.line_of("partition")))


def _unlisted(cluster: Cluster, part: Mapping[str, DirectiveOption], options: Mapping[str, str]) -> Iterator[Problem]:
    """Find a partition, account or QOS that the cluster file does not list."""
    doubts = list(find_unlisted(cluster, options.get("partition"), options.get("account"), options.get("qos")))
    known = tuple(cluster.partition)
    names = options.get("partition", "").split(",") if known else []
    doubts += [("partition", name, known) for name in names if name and name not in known]
    for option, value, listed in doubts:
        near = get_close_matches(value, listed, n=1)
        what = f"--{option}={value} is not in the file of cluster '{cluster.name}'"
        remedy = f"write {near[0]}" if near else f"use one of {', '.join(listed)}; or add it to the file"
        yield Problem(part[option], what, remedy, certain=False)


def _large_array(script: BatchScript, cluster: Cluster | None) -> Iterator[Problem]:
    array, known = script.directive("array"), cluster.max_array_size if cluster is not None else None
    indexes = re.findall(r"\d{1,9}", re.sub(r"[:%]\d+", "", array.value)) if array is not None else []
    most = max(map(int, indexes), default=0)
    # Indexes such as years are chosen where the limit is larger.
    if known is None and min(map(int, indexes), default=0) >= _MAX_ARRAY_SIZE:
        return
    if array is not None and most >= (known or _MAX_ARRAY_SIZE):
        what = f"index {most}, but {'' if known else 'by default, '}MaxArraySize is {known or _MAX_ARRAY_SIZE}"
        remedy = f"keep every index below {known or _MAX_ARRAY_SIZE}: let each element do several pieces of work"
        yield Problem(array, what, remedy, certain=known is not None)


_MAX_ARRAY_SIZE = 1001
"""Slurm's default MaxArraySize."""


def _beyond_partition(
    script: BatchScript, cluster: Cluster, part: Mapping[str, DirectiveOption], size: JobSize
) -> Iterator[Problem]:
    """Find a job that its partition can never start."""
    named = part.get("partition")
    # KIT132 compares the CPUs of a node by itself.
    job = JobPart(named.value if named is not None else None, size.nodes or size.min_nodes, 1, script.time_limit)
    obstacle = find_partition_obstacle(job, partitions_of(cluster), has_qos="qos" in part)
    place = part.get("time") if obstacle is not None and "--time" in obstacle[1] else part.get("nodes", named)
    if obstacle is not None and place is not None:
        where, found, remedy = obstacle
        yield Problem(place, f"{where} never starts this job: {found}", remedy, (named.line if named else None,))


def _memory(text: str | None) -> int | None:
    """Return a size of memory in MiB."""
    try:
        return parse_memory(text) if text else None
    except HpcKitError:
        return None
