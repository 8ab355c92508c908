"""Rules for the files of --output and --error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.rules.finding import Problem, rule


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
        if array is None or _one_element(array.value):
            continue
        mode = part.get("open-mode")
        # sbatch reads the first letter alone, in any case.
        if mode is not None and mode.value[:1].lower() != "t":
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
    mentioned = index is not None and re.search(r"(?i)array|sbatch\s[^\n]*\s-a", script.text)
    if output is not None and index is not None and not mentioned and script.training:
        yield Problem(output, "%a is 4294967294: the job has no --array", "add --array=..., or write %j")


def _one_element(array: str) -> bool:
    """Tell whether the array has a single element: `3`, `3-3`, or a range with a step beyond its end."""
    match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?(%\d+)?", array)
    return match is not None and int(match[1]) + int(match[3] or 1) > int(match[2] or match[1])
