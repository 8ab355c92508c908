"""Rules of options: those that exclude one another, that are said twice, counts that do not fit, log folders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

from hpc_kit.check.batch_script import Script
from hpc_kit.check.rules.base import Fault, Rule, Severity, Subject, rule
from hpc_kit.slurm.directives import DirectiveOption
from hpc_kit.slurm.sizes import count_gpus, count_gres_gpus
from hpc_kit.slurm.versions import MIG_SHARED, first_release_with

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
def exclusive_options(subject: Subject) -> Iterator[Fault]:
    """Options that exclude one another.

    --mem, --mem-per-cpu and --mem-per-gpu are three ways to ask for memory, and sbatch refuses two of them; the same
    holds for --ntasks-per-gpu with --gpus-per-task or --ntasks-per-node. --gpus-per-node and --gres=gpu with
    another number ask for GPUs twice (a warning). Of --requeue and --no-requeue the later one counts, in silence.

    Mend: keep one.
    Documented: sbatch(1), at each of these options.
    """
    script = subject.script
    for component, options in enumerate(script.parts):
        groups = [(group & options.keys(), severity) for group, severity in EXCLUSIVE]
        if _differ(options.get("gpus-per-node"), options.get("gres")):
            groups.append((frozenset({"gpus-per-node", "gres"}), "warning"))
        yield from _exclusive([each for each in script.given if each.component == component], groups)


def _differ(per_node: DirectiveOption | None, gres: DirectiveOption | None) -> bool:
    """Both ask for GPUs of a node, and for different numbers: the larger one counts, and a variable says the other."""
    if per_node is None or gres is None:
        return False
    asked, of_gres = count_gpus(per_node.value), count_gres_gpus(gres.value)
    return asked is not None and of_gres is not None and asked != of_gres


def _exclusive(given: list[DirectiveOption], groups: list[tuple[frozenset[str], Severity]]) -> Iterator[Fault]:
    for group, severity in groups:
        if len(group) > 1:
            places = sorted((each.line, each.column, each.name) for each in given if each.name in group)
            names = " and ".join(f"--{name}" for name in dict.fromkeys(name for _, _, name in places))
            line, column, _ = places[-1]
            remedy = f"keep one of {names.replace(' and ', ', ')}"
            lines = tuple(place[0] for place in places)
            yield Fault(line, column, f"{names} exclude one another", remedy, lines, severity)


@rule("KIT112", "warning")
def repeated_options(subject: Subject) -> Iterator[Fault]:
    """An option that is given twice, with two values.

    The last one counts, in silence; the other is a trap for whoever edits the file next.

    Mend: keep one.
    Documented: sbatch(1), DESCRIPTION.
    """
    script = subject.script
    for component, name in dict.fromkeys((each.component, each.name) for each in script.given):
        places = [each for each in script.given if (each.component, each.name) == (component, name)]
        if len({each.value for each in places}) > 1 and name not in _REPEATABLE:
            last, before = places[-1], places[-2]
            what = f"--{name} is given twice: {last.value or 'the last'} counts, {before.value or 'the other'} does not"
            yield Fault(last.line, last.column, what, "keep one of the two", (before.line,))


@rule("KIT113")
def log_folders(subject: Subject) -> Iterator[Fault]:
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
    for each in script.given:
        folder = _folder(each.value, script.options.get("job-name")) if each.name in {"output", "error"} else None
        if folder is None or "$" in folder or folder.startswith("~"):
            continue
        path = str(PurePath(start) / folder)
        if "%" in folder:
            what = f"no folder has this name before the job runs: {folder}"
            yield Fault(each.line, each.column, what, "name a folder without %j, %A, %a; keep those for the file")
        elif not subject.is_folder(path):
            # Another machine's file systems are not seen from here.
            elsewhere = path.startswith("/") and not subject.is_folder(_root_of(path))
            yield Fault(
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


def _submits_itself(script: Script) -> bool:
    """It is run by hand first, makes its folders, and hands itself to sbatch."""
    texts = [word.text for step in script.steps if step.name == "sbatch" for word in step.words]
    return any(re.match(r"\$\{?(0|BASH_SOURCE)\b", text) for text in texts) and any(
        step.name == "mkdir" for step in script.steps
    )


def _folder(value: str, job_name: str | None) -> str | None:
    """The folder of a log file, with what is known of Slurm's patterns put in; None: the current one."""
    folder = str(PurePath(value).parent)
    if "/" not in value or folder == ".":
        return None
    known = folder if job_name is None else re.sub(r"(?<!%)((?:%%)*)%x", lambda match: match[1] + job_name, folder)
    return None if re.search(r"(?<!%)(?:%%)*%[uxN]", known) else known.replace("%%", "%") if "%%" in known else known


@rule("KIT118", "warning")
def shared_logs(subject: Subject) -> Iterator[Fault]:
    """All elements of an array write one log file.

    Each begins the file anew (unless --open-mode=append), and they write over one another: of most nothing is left.

    Mend: `--output=%x_%A_%a.log`: %A is the array's job id, %a the element's number.
    Documented: sbatch(1), "filename pattern".
    """
    for part in subject.script.parts:
        array = part.get("array")
        if array is None or _one_element(array.value) or "open-mode" in part:
            continue
        for each in [part[name] for name in ("output", "error") if name in part]:
            own = re.search(r"%\d*[ajJ]", each.value.replace("%%", ""))
            if own is None and not each.value.startswith(("/dev/", "none")):
                what = f"all elements of the array write into {each.value}"
                yield Fault(each.line, each.column, what, "%A_%a in the file's name", (array.line,))


def _one_element(array: str) -> bool:
    """The array has a single element: `3`, `3-3`, or a range whose step goes beyond its end."""
    match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?(%\d+)?", array)
    return match is not None and int(match[1]) + int(match[3] or 1) > int(match[2] or match[1])


@rule("KIT114")
def newer_options(subject: Subject) -> Iterator[Fault]:
    """An option, or a value, that this release of Slurm does not have.

    sbatch refuses the script, or, in a cluster of several releases, a node does. The release is that of `slurm_version`
    in the cluster file, else what `sinfo --version` says here; where neither is known, nothing is found.

    Mend: leave the option out, or submit where the release has it.
    Documented: Slurm's release notes; hpc_kit/slurm/versions.py and option_table.py hold the tables.
    """
    if subject.version is None:
        return
    for each in subject.script.given:
        since = first_release_with(subject.version, each.name, each.parsed.option.since, each.value)
        if since is not None:
            shown = f"--{each.name}" + ("" if each.parsed.option.since else f"={each.value}")
            what = f"{shown} came with Slurm {since}, and this is {subject.version}"
            yield Fault(each.line, each.column, what, f"leave {shown} out")


@rule("KIT115", "warning")
def shared_mig_devices(subject: Subject) -> Iterator[Fault]:
    """--gpus-per-task with MIG devices.

    Before Slurm 23.11.4 all tasks of a node get the same MIG device, and share its memory without a word.

    Mend: ask for them by node: `--gpus-per-node`.
    Documented: Slurm's release notes, 23.11.4.
    """
    asked = [each for each in subject.script.given if each.name == "gpus-per-task" and _MIG.search(each.value)]
    for each in asked if MIG_SHARED.holds(subject.version) is not False else ():
        what = f"{MIG_SHARED.releases}, all tasks of a node get the same MIG device: {each.value}"
        yield Fault(each.line, each.column, what, "--gpus-per-node, with a node's devices together")


RULES: tuple[Rule, ...] = (
    exclusive_options,
    repeated_options,
    log_folders,
    shared_logs,
    newer_options,
    shared_mig_devices,
)
