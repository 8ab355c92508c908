"""Rules for jobs that start again: requeue, chains, checkpoints, and logs that the second start overwrites."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

from hpc_kit.check.bash_syntax import Origin, SimpleCommand, Word, parse, program_of, written_files
from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.command_trace import TracedCommand
from hpc_kit.check.expansion import ExpandedText
from hpc_kit.check.launch_lines import LOOPS, LaunchLine, LaunchStage
from hpc_kit.check.programs import AUXILIARY_NAME
from hpc_kit.check.rules.files import OWN_DISK, OWN_DISK_WORDS, removed_folders
from hpc_kit.check.rules.finding import Place, Problem, rule
from hpc_kit.check.rules.job_end import trace_exit_status
from hpc_kit.check.rules.signals import duration_of_timeout, read_signal, traps_for
from hpc_kit.check.text_edits import Edit
from hpc_kit.lazy_pattern import lazy_pattern

_REQUEUES = lazy_pattern(r"\bscontrol\s+(?:-\w+\s+)*requeue\b")


def _requeues(script: BatchScript) -> Place | None:
    """Return the place where a script asks to be started again: an option, a command, or a trap."""
    option, forbidden = script.directive("requeue"), script.directive("no-requeue")
    # sbatch uses the last of two options that contradict each other.
    if forbidden is not None and (option is None or option.line < forbidden.line):
        return None
    return option or next((step for step in script.commands if _requeues_in(step)), None)


def _requeues_in(step: TracedCommand) -> bool:
    return bool(_REQUEUES.search(step.trap_code)) or (step.name == "scontrol" and "requeue" in step.texts[1:3])


@rule("KIT413", "warning", needs=("requeue",))
def truncated_log(script: BatchScript) -> Iterator[Problem]:
    """A requeued job overwrites its log.

    With --requeue, or `scontrol requeue` in the script, the second start opens a new log: the output of the first
    start, with its error, is lost. The same applies to a file of `>` or of `tee` without -a. The rule skips scripts
    that end early if their result exists, and that resume nothing: their last log has all of the work.

    Fix: `#SBATCH --open-mode=append`, `>> FILE`, `tee -a FILE`.
    Documented: sbatch(1), --open-mode; slurm.conf(5), JobFileAppend.
    """
    place = _requeues(script)
    if place is None or _skips_finished_work(script):
        return
    steps = [*filter(_redirects_shell, script.batch_commands), *(launch.inner_command for launch in script.training)]
    if script.options.get("open-mode", "truncate")[:1].lower() == "t" and not _keeps_output(script, steps):
        what = "the log is overwritten when the job starts again"
        last, mode = max((each.line for each in script.directives.lines), default=1), script.directive("open-mode")
        edits = (Edit(last + 1, 1, "", "#SBATCH --open-mode=append\n"),) if mode is None else ()
        remedy, lines = "write #SBATCH --open-mode=append", (place.line, script.line_of("output"))
        yield Problem(mode or place, what, remedy, lines, edits=edits)
    for step in steps:
        for file in overwritten_files(step):
            if not re.search(r"RESTART_COUNT|date|/dev/|\$\$", script.resolve(file.raw)):
                what = f"{file.raw} is overwritten when the job starts again"
                yield Problem(file, what, "write >> or tee -a", (step.line, place.line))


def _redirects_shell(step: TracedCommand) -> bool:
    """Tell whether a command gives the script itself another output: `exec >FILE`, but not `exec 9>FILE`."""
    outputs = [each.descriptor in {"", "1", "2"} for each in step.syntax.redirections if ">" in each.operator]
    return step.texts == ["exec"] and bool(outputs) and all(outputs)


def _keeps_output(script: BatchScript, steps: list[TracedCommand]) -> bool:
    """Tell whether the log is no loss: it is /dev/null, or a file of its own keeps the output and errors of all."""
    if {script.options.get("output", ""), script.options.get("error", "/dev/null")} == {"/dev/null"}:
        return True
    kept = {id(step) for step in steps if _appends_all(step)}
    kept |= {id(each.inner_command) for each in script.training if _appends_step(each.multiplier)}
    shell = any(id(step) in kept and not step.is_conditional for step in steps if _redirects_shell(step))
    return shell or (bool(script.training) and all(id(launch.inner_command) in kept for launch in script.training))


def _appends_all(step: TracedCommand) -> bool:
    """Tell whether all that a command prints, also as an error, goes to the end of a file."""
    redirections = [each for command in step.receivers for each in command.redirections]
    files = [each.appends for command in step.receivers for each in written_files(command)]
    return bool(files) and all(files) and any(each.takes_errors for each in redirections)


def _appends_step(srun: LaunchStage | None) -> bool:
    """Tell whether srun itself writes to the end of a file: `--output=FILE --open-mode=append`."""
    mode = srun.option("open-mode") if srun is not None and srun.option("output") is not None else None
    return mode is not None and mode.text.startswith("a")


def _skips_finished_work(script: BatchScript) -> bool:
    """Tell whether one start does all of the work, `[ -s "$OUT" ] && exit`: the log of an earlier one is worthless."""
    if not script.training or any(_RESUMES.search(launch.command.text) for launch in script.training):
        return False
    for step in script.commands_before(script.training[0].command):
        if step.name == "exit" and step.texts[1:2] in ([], ["0"]) and step.is_conditional:
            # The test is on the line of the `exit` itself, or on that of the `if` around it.
            lines = [step.line, *(compound.line for compound in step.compounds[:1])]
            if any(re.search(r"\s-[efs]\s", script.lines[number - 1]) for number in lines):
                return True
    return False


def overwritten_files(step: TracedCommand) -> list[Word]:
    """Return the files that get the output of a command, and lose what they contain."""
    files = [each for command in step.receivers for each in written_files(command)]
    return [each.name for each in files if not each.appends]


_RESUMES = lazy_pattern(
    r"resum|restart|restor|ckpt|checkpoint|latest|\blast\b|continu|reload|load|snapshot|state", re.IGNORECASE
)
_DATE = "$(date"
_STARTS_ANEW = lazy_pattern(
    r"--overwrite[-_]output[-_]dir(?!=(false|0))|--no[-_](resume|load)|--from[-_]scratch|--fresh(?![-_\w])"
    r"|[-\w.]*resume\w*=(false|no|none|never|0)\Z",
    re.IGNORECASE,
)


@rule("KIT415", "warning", needs=("requeue", "sbatch", "%1", "last", "latest", "newest", "current"))
def requeue_starts_anew(script: BatchScript) -> Iterator[Problem]:
    """A requeued job starts its training from the beginning.

    After --requeue or `scontrol requeue`, Slurm runs the script again from its first line. Without a checkpoint that
    the program loads, all work of the first start is lost. `--overwrite_output_dir` deletes the checkpoints even if
    there are some. The same applies to the jobs of a chain. A checkpoint in /tmp or $TMPDIR stays on a node that the
    next start may not get. A folder with the time of the start in its name is another one at the next start. So is one
    with the job id, if each job of a chain submits the next one. The rule finds scripts that mention neither a
    checkpoint nor a resume. Lightning needs no option: on the signal of --signal, it saves a checkpoint, requeues the
    job, and loads it.

    Fix: save checkpoints, and start with the option that loads the last one, such as `--resume auto`. Or
    `#SBATCH --no-requeue`.
    Documented: sbatch(1), --requeue.
    """
    yield from _two_names(script)
    yield from _new_folder_in_chain(script)
    place, training = _requeues(script), script.training
    again = place or _chain_of(script)
    if again is None or not training or script.sources_files or _skips_finished_work(script):
        return
    anew = next(filter(None, map(_starts_anew, training)), None)
    if anew is not None:
        start = "the second start of the job" if place else "each job of the chain"
        what = f"{anew.text}: {start} begins the training from the start"
        yield Problem(anew, what, "remove it, and load the last checkpoint", (again.line,))
    if place is None or anew is not None:
        return
    # A script that copies files may bring its checkpoint to a shared folder and back.
    copies = any(_COPIES.search(step.trap_code or step.name) for step in script.commands if step.words[1:])
    for launch in training if not copies else ():
        values = [word for option, word in launch.option_values() if _OF_CHECKPOINT.search(option)]
        local = next((word for word in values if OWN_DISK.match(word.text)), None)
        if local is not None:
            what = "this folder is local to a node, or ends with the job: the next start does not find the checkpoint"
            yield Problem(local, what, "name a folder that all nodes share", (place.line, launch.line))
            return
    for launch in training:
        saved = [word for option, word in launch.option_values() if _SAVES.search(option) and _DATE in word.text]
        loaded = [word for option, word in launch.option_values() if LOADS.search(option)]
        if saved and all(_DATE in word.text for word in loaded):
            what = "the name of this folder contains the time: the next start uses another one, without a checkpoint"
            yield Problem(saved[0], what, "write the job id, which stays the same", (place.line, launch.line))
            return
    if _mentions_no_resume(script):
        what = "the job starts again, but the script mentions no checkpoint that the program loads"
        yield Problem(place, what, "pass the option that resumes, or write --no-requeue", (training[-1].line,))


def _mentions_no_resume(script: BatchScript) -> bool:
    """Tell whether nothing in a script for Python programs speaks of a checkpoint or a resume."""
    directives = {each.line for each in script.directive_options}
    # A directive such as --job-name=resume-test says nothing about the program.
    code = [line for number, line in enumerate(script.lines, start=1) if number not in directives]
    # Another program may resume by itself, and a shell script may contain the option.
    known = all(launch.program.kind == "python" for launch in script.training)
    # The second start of another program than a training mostly has nothing to resume.
    known = known and not all(launch.is_auxiliary for launch in script.training)
    trainer = any(re.match(r"[-+]*trainer\.", text) for launch in script.training for text in launch.program.texts)
    by_itself = trainer and "signal" in script.options
    return known and not by_itself and not _RESUMES.search(_REQUEUES.sub("", "\n".join(code)))


def _starts_anew(launch: LaunchLine) -> ExpandedText | None:
    """Return the option of a training that ignores all checkpoints."""
    # The option of the checkpoint wins over --overwrite_output_dir.
    if launch.argument("resume-from-checkpoint") is not None:
        return None
    anew = next((word for word in launch.program.words if _STARTS_ANEW.match(word.text)), None)
    start = launch.argument("init-from")
    return anew or (start if start is not None and start.text == "scratch" else None)


def _chain_of(script: BatchScript) -> Place | None:
    """Return the place where a script asks for equal jobs that run one after the other: an array, or its own sbatch."""
    array = script.directive("array")
    # `--array=1-6%1`, with an index that at most the log has in its name.
    if array is not None and re.search(r"-\d+%1\Z", array.value) and "SLURM_ARRAY_TASK_ID" not in script.code:
        return array
    return next((step for step in script.batch_commands if is_next_of_chain(script, step)), None)


def _new_folder_in_chain(script: BatchScript) -> Iterator[Problem]:
    """Find a chain of jobs that resume, but whose folder of checkpoints has the job id in its name."""
    chain = [step.line for step in script.batch_commands if is_next_of_chain(script, step)]
    # A comment may tell how to submit the jobs. `afterok` is for a job that prepares something, too.
    chain += [
        number
        for number, text in script.comment_lines
        if "sbatch" in text
        and (job := re.search(r"\bsbatch\b.*\bafter(any|notok):.*", text))
        and not AUXILIARY_NAME.match(job[0])
    ]
    for launch in script.training if chain else ():
        values = list(launch.option_values())
        loaded = [word.text for option, word in values if LOADS.search(option)]
        # A path without the id of this job names the checkpoint of the job before.
        automatic = loaded and all("SLURM_JOB_ID" in text or not re.search(r"[/$]", text) for text in loaded)
        saved = [word for option, word in values if _FOLDER.search(option) and not LOADS.search(word.text)]
        # Another folder, whose name stays the same, may contain the checkpoints.
        own = saved and all("SLURM_JOB_ID" in word.text for word in saved)
        # A link may have the same name in all jobs, and a variable the id of the first one.
        if automatic and own and not re.search(r"\bln\s|:-\$\{?SLURM_JOB_ID", script.code):
            what = "the next job of the chain has another id: it looks for its checkpoints in another folder"
            yield Problem(saved[0], what, "name the folder without the job id", (launch.line, chain[0]))
            return


_FOLDER = lazy_pattern(r"(?i)ckpt|checkpoint|save|(out|output|work|run|exp|root|results?)\w*[-_.]?(dir|path|folder)")
"""An option for the folder of checkpoints."""
_NEWEST = lazy_pattern(r"(?i)(\S+)/((?:\w*[-_])?(?:last|latest|newest|current)(?:[-_]\w*)?\.\w+)\Z")
"""The name of a file for the newest checkpoint."""


def _two_names(script: BatchScript) -> Iterator[Problem]:
    """Find a test for a newest checkpoint of another name than the program gets for it."""
    saved = [
        (match, word)
        for launch in script.training
        for option, word in launch.option_values()
        if (match := _NEWEST.match(word.text)) and not LOADS.search(option)
    ]
    copies = any(step.name in {"cp", "ln", "mv", "rsync"} for step in script.commands)
    for place, path in script.tested_files if saved and not copies else ():
        match = _NEWEST.match(script.resolve(path))
        names = {each[2] for each, _ in saved if match is not None and each[1] == match[1]}
        if match is not None and names and match[2] not in names:
            what = f"the program saves {min(names)}, but the script looks for {match[2]}: it never resumes"
            lines = tuple(word.line for _, word in saved)
            yield Problem(place, what, f"write {min(names)} in both places", lines)
            return


_OF_CHECKPOINT = lazy_pattern(r"(?i)ckpt|checkpoint|save|resume|load")
_COPIES = lazy_pattern(r"\b(cp|mv|rsync|tar|rclone|scp|gsutil|s3|aws|zip|globus)\b")


def _copies_from(script: BatchScript, folder: str, last: TracedCommand | None) -> bool:
    """Tell whether a command, or a trap, may copy files out of a folder. `rsync -a data/ "$FOLDER/"` only fills it.

    `last`: a command that deletes the folder, so that later ones find nothing.
    """
    for step in script.commands if last is None else script.commands_before(last):
        if step.name in {"cp", "mv", "rsync", "scp"} and "-t" not in step.texts:
            sources = [text for text in step.texts[1:-1] if not text.startswith("-")]
            into = f"{step.texts[-1]}/".startswith(f"{folder}/")
            if not into and any(_may_be_in(script, text, folder) for text in sources):
                return True
            continue
        # `tar -C FOLDER -xf FILE` fills it, too.
        fills = step.name == "tar" and re.search(r"\A-*\w*x|\s-\w*x", " ".join(step.texts[1:]))
        if step.words[1:] and not fills and _COPIES.search(step.trap_code or step.name):
            return True
    return False


def _may_be_in(script: BatchScript, path: str, folder: str) -> bool:
    """Tell whether a path may lie in a folder, or contain it."""
    if not path.startswith(("/", "$", "~")) or path.startswith(folder) or folder.startswith(path.rstrip("/*")):
        return True
    # The script computes the value of `$NAME`, `$(ls -t FOLDER)` or the variable of a loop.
    name = re.match(r"\$\{?(\w+)", path)
    return path.startswith("$(") or (name is not None and name[1] in script.assigned | script.loop_variables)


_SAVES = lazy_pattern(
    r"ckpt|checkpoint|save|resume|load|output|out|model|weights|run|results?|exp\w*[-_.]?(dir|path|folder|root)"
    r"|(work|root)[-_]?(dir|path|folder)",
    re.IGNORECASE,
)
LOADS = lazy_pattern(r"resume|load|restore", re.IGNORECASE)
"""An option that loads a checkpoint."""


@rule("KIT416", "warning")
def deleted_checkpoint(script: BatchScript) -> Iterator[Problem]:
    """A clean-up deletes the checkpoints that the next start needs.

    `rm -rf "$CKPT"` in a trap or at the top of the script runs at every end or start of the job, also when Slurm
    preempts or requeues it: the next start finds no checkpoint. In a trap, or after the training, it also deletes the
    only copy of the result, unless a command of the script copies files.

    Fix: delete the folder only after the training has succeeded, or only files that no job needs.
    Documented: sbatch(1), --requeue; bash(1), trap.
    """
    if {"find", "rm", "trap"}.isdisjoint(script.command_names):
        return
    place = _requeues(script)
    handlers = {step.trap_code for step in script.commands} - {""}
    for step in script.batch_commands:
        before = bool(script.training) and step.line < script.training[0].line
        # A condition mostly tests whether the training has succeeded. The existence of the folder is no such test.
        if step.is_conditional and not (before and _tests_path(step)):
            continue
        in_handler = any(compound.name in handlers for compound in step.compounds)
        texts = step.texts[1:2] if _finds_checkpoints(step) else removed_folders(step)
        # A handler runs at the end, after all copies.
        last = None if step.trap_code or step.around("function", *LOOPS) else step
        for target in texts:
            folder = script.resolve(target).rstrip("/*")
            ends = (step.trap_code or not before or in_handler) and not _copies_from(script, folder, last)
            kept = _checkpoint_below(script, folder, _SAVES if place is not None or ends else LOADS)
            if kept is not None:
                what = f"this deletes {kept}: the result of the training, or the checkpoint of the next start"
                if place is not None:
                    what = f"this deletes {kept}, which the next start of the job needs"
                lines = (place.line if place is not None else None,)
                yield Problem(step, what, "delete it only after the training has succeeded", lines)
                break


def _finds_checkpoints(step: TracedCommand) -> bool:
    """Tell whether `find` deletes all files of a folder, or all checkpoints in it."""
    texts = " ".join(step.texts[2:])
    name = re.search(r"-i?name (\S+)", texts)
    deletes = step.name == "find" and re.search(r"-delete\b|\brm\b", texts)
    some = re.search(r"-([acm](time|min)|newer\w*|empty|size|not)\b|!|tmp|temp|part", texts)
    of_checkpoints = name is None or re.search(r"(pth?|ckpt|safetensors|checkpoints?)[^A-Za-z]*\Z", name[1])
    return bool(deletes and not some and of_checkpoints)


def _tests_path(step: TracedCommand) -> bool:
    """Tell whether the only condition of a command is that a file exists: `[ -d DIR ] && rm -r DIR`."""
    first = step.position.chain.pipelines[0].commands[0]
    words = [word.raw for word in first.words] if isinstance(first, SimpleCommand) else []
    return step.position.chain_index == 1 and words[:2] in (["[", "-d"], ["[", "-e"], ["test", "-d"])


def _checkpoint_below(script: BatchScript, folder: str, pattern: re.Pattern[str]) -> str | None:
    """Return the file in a folder that a training names with an option of this pattern."""
    values = [each for launch in script.training for each in launch.option_values()] if folder else []
    inside = [(option, word.text) for option, word in values if f"{word.text}/".startswith(f"{folder}/")]
    return next((path for option, path in inside if pattern.search(option)), None)


@rule("KIT417", needs=("requeue", "sbatch", "trap"))
def useless_requeue(script: BatchScript) -> Iterator[Problem]:
    """A requeue that Slurm refuses, or that never stops.

    With --no-requeue, `scontrol requeue` fails ("Requested operation is presently disabled"). A `scontrol requeue` or
    `sbatch "$0"` at the end of the script, without a condition, starts the job again also when its work is done, until
    you cancel it (a warning). A chain that submits its next job before the training, without --dependency, runs all its
    jobs side by side (a warning). `scontrol requeue $SLURM_ARRAY_JOB_ID` restarts all elements (a warning). A next job
    with `afterok:$SLURM_JOB_ID` never starts if the time limit ends this one with a status other than 0, as the `exit
    1` of a trap or the 124 of `timeout`. A counter such as `LINK=${LINK:-1}` that the script increments, but does not
    export or pass on, starts at 1 in each job of the chain (a warning).

    Fix: requeue in the trap of the signal, or only while work remains: `[ -f done ] || scontrol requeue
    "$SLURM_JOB_ID"`. Write `--dependency=afterany:$SLURM_JOB_ID` for the next job of a chain.
    Documented: sbatch(1), --no-requeue; scontrol(1), requeue.
    """
    forbidden = script.directive("no-requeue")
    allowed = script.directive("requeue")
    training = script.training
    yield from _endless_traps(script)
    yield from _unmet_chain(script)
    yield from _lost_counter(script)
    for step in script.batch_commands:
        requeue = _requeues_in(step)
        again = step.name == "sbatch" and any(_is_this_script(script, text) for text in step.texts[1:])
        if training and step.line < training[0].line and _starts_beside(script, step, again=again):
            what = "the next job of the chain starts at once, beside this one: both write the same checkpoints"
            remedy = 'write sbatch --dependency=afterok:"$SLURM_JOB_ID" ..., or submit it after the training'
            yield Problem(step, what, remedy, (training[0].line,), certain=False)
            continue
        if requeue and forbidden is not None and (allowed is None or allowed.line < forbidden.line):
            what = "Slurm refuses to requeue a job with --no-requeue"
            yield Problem(step, what, "remove #SBATCH --no-requeue", (forbidden.line,))
        elif requeue and "SLURM_ARRAY_JOB_ID" in step.text and "TASK_ID" not in step.text:
            what = "this starts all elements of the array again"
            yield Problem(step, what, "write scontrol requeue $SLURM_JOB_ID", certain=False)
        elif again and training and step.line < training[0].line and not (step.compounds or step.is_conditional):
            stops = any(each.name == "scancel" or _stops_chain(each) for each in script.commands)
            if not stops and "afternotok" not in step.text:
                what = "each job submits the next one, and nothing ends the chain"
                remedy = "write a condition before it: [ -f done ] || sbatch ...; or --dependency=afternotok:..."
                yield Problem(step, what, remedy, (training[0].line,), certain=False)
        elif step.name == "trap" or not (requeue or again):
            continue
        elif training and step.line > training[-1].line and not _may_stay_away(script, step, training[-1]):
            what = "the job starts again after each success: it never ends"
            # `python train.py || exit 1` reaches this line after a success only.
            if not step.errexit and len(training[-1].command.position.chain.pipelines) == 1:
                what = "the job starts again whatever the training returned: even a failure at its start never ends"
            remedy = 'write a condition before it, such as [ -f done ] || scontrol requeue "$SLURM_JOB_ID"'
            yield Problem(step, what, remedy, (training[-1].line,), certain=False)


_COUNTER = lazy_pattern(r"\"?\$\{(\w+):?-(\d+)\}\"?")
_NAMES_OF_JOB = lazy_pattern(r"(--(job-name|output|error|comment)[= ]|(?<![-\w])-[Joe]\s*)\S+")
"""Options of sbatch that pass nothing on to the job."""


def _lost_counter(script: BatchScript) -> Iterator[Problem]:
    """Find a chain whose jobs count from the same number: no job gets the counter of the one before."""
    submits = [step for step in script.batch_commands if step.name == "sbatch"]
    tests = [step.written for step in script.batch_commands if step.name in {"[", "test"}]
    tests += [each.text for each in script.expressions]
    for first in script.written_assignments if submits and not script.sources_files else ():
        default = _COUNTER.fullmatch(first.value.raw)
        if default is None or (default[1] != first.name and not default[1].isdigit()):
            continue
        place, total = _increment_of(script, first.name)
        chain = [step for step in submits if place is not None and _submits_next(script, step, place)]
        limited = any(re.search(rf"\b({first.name}|{total})\b", text) for text in tests)
        if place is None or not chain or not limited or _passes_on(script, chain, place, {first.name, total}):
            continue
        by_name = default[1] == first.name
        remedy = f"write export {first.name} below it" if by_name else f'write "${total}" behind the file'
        what = f"the next job does not get {first.name}: it starts at {default[2]} again, and the chain never ends"
        yield Problem(place, what, remedy, (first.value.line, chain[0].line), certain=False)


def _increment_of(script: BatchScript, name: str) -> tuple[Place | None, str]:
    """Return the place where a script adds 1 to its counter, and the variable that gets the sum."""
    sums = re.compile(rf"\"?\$\(\(\s*\$?\{{?{name}\}}?\s*\+\s*1\s*\)\)\"?|\$\(expr \"?\$\{{?{name}\}}?\"? \+ 1\)")
    for step in script.batch_commands:
        for each in step.written_assignments:
            if sums.fullmatch(each.value.raw):
                return each.value, each.name
        if step.name == "let" and re.search(rf"\b{name}(\+\+|\s*\+=)|\+\+{name}\b", step.written):
            return step, name
    counts = re.compile(rf"\(\(\s*(\+\+{name}|{name}\s*(\+\+|\+=\s*1|=\s*{name}\s*\+\s*1))\s*\)\)")
    return next((Origin(each.line) for each in script.expressions if counts.fullmatch(each.text)), None), name


def _submits_next(script: BatchScript, step: TracedCommand, place: Place) -> bool:
    """Tell whether an sbatch below the increment submits this script, or a job that waits for this one."""
    words = [word.unquoted for word in step.syntax.words[1:]]
    waits = re.search(r"\bafter(any|ok|notok):[\"']?\$\{?SLURM_JOB_?ID\b", step.written) is not None
    itself = any(_is_successor(script, word) for word in words if not word.startswith("-"))
    return step.line >= place.line and (itself or (waits and step.is_conditional))


def _passes_on(script: BatchScript, chain: list[TracedCommand], place: Place, names: set[str]) -> bool:
    """Tell whether the next job may get a counter: by the environment, an argument, a file or the user."""
    mentions = re.compile(rf"(?<!\w)({'|'.join(sorted(names))})(?!\w)")
    exported = {each.name for each in script.exported_assignments}
    exported |= {text for step in script.batch_commands if step.name in {"declare", "export"} for text in step.texts}
    read = any(step.name in {"read", "mapfile"} and names & {*step.texts} for step in script.batch_commands)
    if names & exported or read or "SLURM_JOB_NAME" in script.code or "allexport" in chain[0].options:
        return True
    # `LINK=1 sbatch chain.sh` at the first start puts the variable into the environment of all jobs.
    if any(re.search(rf"\b{name}=", text) for name in names for _, text in script.comment_lines):
        return True
    if any(mentions.search(_NAMES_OF_JOB.sub("", step.written)) for step in chain):
        return True
    given = {each.name for step in chain for each in step.syntax.assignments}
    # Whatever else reads the sum may save it.
    prints = {"echo", "printf", "[", "test", "sbatch"}
    others = [step for step in script.batch_commands if step.line > place.line and mentions.search(step.written)]
    saves = any(step.name not in prints or step.syntax.redirections or step.position.piped_to for step in others)
    several = any(len(script.assignments_of(name)) > 2 for name in names)
    return bool(names & given) or saves or several


_AFTER_THIS_JOB = lazy_pattern(r"\bafterok:[\"']?\$\{?SLURM_JOB_?ID\b")


def _unmet_chain(script: BatchScript) -> Iterator[Problem]:
    """Find a next job that starts after a success only, of a job that its time limit ends with a failure."""
    for use in script.pipelines if "afterok" in script.code and script.training else ():
        for command in use.pipeline.commands:
            is_before = program_of(command) == "sbatch" and command.line < script.training[-1].line
            if not is_before or not any(_is_successor(script, word.unquoted) for word in command.words[1:]):
                continue
            surely = _failing_end(script) or _ended_by_timeout(script)
            end = surely or _ended_by_limit(script)
            if end is not None and _AFTER_THIS_JOB.search(script.resolve(" ".join(word.raw for word in command.words))):
                what = f"{end[1]}: the next job waits for a success of this one, and never starts"
                remedy = "write --dependency=afterany:..., or end this job with exit 0"
                place = Origin(command.line, command.column if isinstance(command, SimpleCommand) else 1)
                yield Problem(place, what, remedy, (end[0],), certain=surely is not None)


def _is_successor(script: BatchScript, text: str) -> bool:
    """Tell whether a word of sbatch names this script, perhaps with the folder in which it is."""
    exists, text = script.site.exists, script.resolve(text)
    name = PurePath(text).name
    # `sbatch "$(readlink -f "$0")"`
    if _is_this_script(script, text) or re.search(r"\$\{?(0|BASH_SOURCE)\b", text):
        return True
    return (exists is None or not exists(text)) and _is_this_script(script, name)


_ENDED = lazy_pattern(
    r"(?i)\b(until|unless|when|till)\b[^.;]*\b(wall ?-?(clock|time)|limit)\b[^.;]*\b(ends?|kills?|stops?|hits?)\b"
    r"|\b(killed|ended|stopped|cut off|runs? into|hits?)\b[^.;]*\b(wall ?-?(clock|time)|time ?(limit|out))\b"
)


def _ended_by_limit(script: BatchScript) -> tuple[int, str] | None:
    """Return the line of a comment that says that the time limit ends each job, and the state; None without one."""
    own = "signal" in script.options or any(step.name in {"timeout", "trap"} for step in script.commands)
    for lines, text in script.comment_blocks if not own else ():
        if _ENDED.search(text):
            return lines[0], "a job that its time limit ends is TIMEOUT"
    return None


def _failing_end(script: BatchScript) -> tuple[int, str] | None:
    """Return the line and the status with which the trap of --signal ends the script, and leaves the next job alone."""
    signal = read_signal(script)
    for trap in traps_for(script, signal.number) if signal is not None and signal.batch_shell else ():
        handler = script.functions.get(trap.trap_code.split()[0]) if trap.trap_code.strip() else None
        plain = [step.syntax for step in handler or () if not step.is_conditional]
        commands = plain if handler is not None else _plain_commands(trap.trap_code)
        ends = [each for each in commands if program_of(each) == "exit" and len(each.words) > 1]
        code = " ".join([trap.trap_code, *(step.written for step in handler or ())])
        status = script.resolve(ends[0].words[1].unquoted) if ends else ""
        fails = re.fullmatch(r"0*[1-9]\d*|\$\(\(\s*128\s*\+.*\)\)", status)
        if fails and not re.search(r"scancel|sbatch|scontrol", code):
            line = ends[0].line if handler is not None else trap.line
            return line, f"the trap of --signal ends the job with {status}"
    return None


def _ended_by_timeout(script: BatchScript) -> tuple[int, str] | None:
    """Return the line of a `timeout` before the training whose 124 is the status of the job."""
    flow = trace_exit_status(script)
    if flow is None or flow.background or flow.piped_at or flow.shielded_at or re.search(r"\b124\b", script.code):
        return None
    given = duration_of_timeout(flow.launch)
    last = flow.followers[-1] if flow.followers else None
    passes = last is None or (last.name == "exit" and last.texts[1:2] != ["0"] and not last.is_conditional)
    if given is None or "--preserve-status" in flow.launch.command.written or not (passes or flow.errexit):
        return None
    return flow.launch.line, "timeout returns 124 when the time is up"


def _plain_commands(code: str) -> list[SimpleCommand]:
    """Return the commands of some code that run in any case."""
    chains = [statement.chain for statement in parse(code).block]
    commands = [chain.pipelines[0].commands[0] for chain in chains if len(chain.pipelines) == 1]
    return [each for each in commands if isinstance(each, SimpleCommand)]


def _endless_traps(script: BatchScript) -> Iterator[Problem]:
    """Find a trap that starts the job again whenever it ends."""
    for trap in (step for step in script.batch_commands if _starts_again_at_exit(script, step)):
        what = "the trap starts the job again at every end, even after a failure at its start: it never ends"
        yield Problem(trap, what, 'write a condition before it, such as [ -f done ] || sbatch "$0"', certain=False)


def _starts_again_at_exit(script: BatchScript, trap: TracedCommand) -> bool:
    """Tell whether a trap for EXIT starts this job again without a condition, and nothing takes the trap back."""
    if not trap.trap_signals & {"EXIT", "0"} or trap.is_conditional:
        return False
    code, handler = trap.trap_code, script.functions.get(trap.trap_code, [])
    others = [step for step in script.commands if step.name == "trap" and step.line > trap.line]
    back = any(step.texts[1:2] == ["-"] or step.trap_signals & {"EXIT", "0"} for step in others)
    # An `exit` below the trap runs it, too.
    above = [*handler, *script.commands_before(trap)]
    stops = any(step.name in {"exit", "return"} and step.is_conditional for step in above)
    stops = stops or re.search(r"(&&|\|\||\bthen)\s*(exit|return)\b", code) is not None
    if back or stops:
        return False
    always = [step for step in handler if not (step.is_conditional or step.around(*LOOPS))]
    if any(_requeues_in(step) or is_next_of_chain(script, step) for step in always):
        return True
    # Behind `||`, `&&`, `then` or `do`, a command has a condition.
    commands = [command.strip() for command in re.split(r"[;\n]", code)]
    names = [name for each in commands if each.startswith("sbatch ") for name in each.replace('"', "").split()]
    again = any(re.match(r"\$\{?(SELF|THIS)", name) or _is_this_script(script, script.resolve(name)) for name in names)
    return again or any(map(_REQUEUES.match, commands))


def _stops_chain(step: TracedCommand) -> bool:
    """Tell whether a command ends the script under a condition, perhaps the end of the work: not `cd DIR || exit`."""
    before = step.position.chain.pipelines[: step.position.chain_index]
    moves = [program_of(command) for pipeline in before for command in pipeline.commands]
    return step.name == "exit" and step.is_conditional and not (moves and set(moves) <= _SETS_UP)


_SETS_UP = {"cd", "source", ".", "module", "ml", "mkdir", "conda", "export"}


def _may_stay_away(script: BatchScript, step: TracedCommand, training: LaunchLine) -> bool:
    """Tell whether a command has a condition, or one such as `[ -f done ] && exit 0` stands before it."""
    exits = [each for each in script.commands_before(step) if each.name == "exit" and each.is_conditional]
    return bool(step.compounds) or step.is_conditional or any(each.line != training.line for each in exits)


def _is_this_script(script: BatchScript, text: str) -> bool:
    """Tell whether a word names this script, by its file or, as most users do, by the name of its job or log."""
    if re.match(r"\$\{?(0|BASH_SOURCE)\b", text) or PurePath(text).name == PurePath(script.name).name:
        return True
    # Another file of that name, or one in another folder, is another script.
    exists = script.site.exists
    if "/" in text.removeprefix("./") or (exists is not None and exists(text)):
        return False
    log = re.match(r"[A-Za-z][\w-]*?(?=[._-]*%)", PurePath(script.options.get("output", "")).name)
    names = {name.replace("-", "_") for name in (script.options.get("job-name"), log and log[0]) if name}
    path = PurePath(text)
    return path.suffix in {".sbatch", ".slurm", ".sh", ".job"} and path.stem.replace("-", "_") in names


def is_next_of_chain(script: BatchScript, step: TracedCommand) -> bool:
    """Tell whether a command submits this script again, or another one with a counter: `sbatch FILE $((N + 1))`."""
    if step.name != "sbatch":
        return False
    return _counts_on(step) or any(_is_this_script(script, text) for text in step.texts[1:])


def _counts_on(step: TracedCommand) -> bool:
    """Tell whether a command passes on a number that is one more than its own: `N=$((N+1))`, or `$((N + 1))` alone."""
    counter = re.compile(r".*\b(\w+)=\$\(\(\s*[${]*\1\b|\"?\$\(\(\s*\$?\w+\s*\+\s*1\s*\)\)\"?\Z")
    return any(counter.match(word.raw) for word in step.syntax.words)


def _starts_beside(script: BatchScript, step: TracedCommand, *, again: bool) -> bool:
    """Tell whether a command before the training submits the next job of a chain, which does not wait for this one.

    `again`: it names this script. Otherwise, a counter in --export shows the chain: `N=$((N+1))`.
    """
    if step.name != "sbatch" or step.around("function") or script.options.keys() & {"dependency", "begin"}:
        return False
    if re.search(r"\s(-d|--dependency|-b|--begin|-H|--hold)\b", step.text):
        return False
    # `[ -z "$SLURM_JOB_ID" ] && sbatch "$0" && exit` runs outside of a job.
    leaves = any(each.name == "exit" and each.position.block is step.position.block for each in script.commands)
    return (_counts_on(step) or (again and step.is_conditional)) and not leaves


_RESULTS = lazy_pattern(
    r"-*(?:\w*[-_.])?(?:(?:out|output|save|results?)(?:[-_](?:dir|path|folder))?|(?:ckpt|checkpoints?|default[-_]root)[-_]dir)\Z"
)


@rule("KIT428", "warning", needs=OWN_DISK_WORDS)
def result_left_on_node(script: BatchScript) -> Iterator[Problem]:
    """The result of the training stays on the disk of the node.

    $TMPDIR and /tmp belong to the node, and many sites empty them when the job ends. The rule finds options for
    results with such a folder, if no later command, function or trap names it.

    Fix: copy the result after the training, or in `trap '...' EXIT`: `rsync -a "$TMPDIR/out/" results/`.
    Documented: slurm.schedmd.com/job_container_tmpfs.html.
    """
    # KIT415 reports the checkpoints of a job that starts again.
    if _requeues(script) is not None or script.sources_files:
        return
    moves = [step for step in script.batch_commands if step.name == "cd"]
    for launch in script.training:
        last = next((step for step in reversed(moves) if script.is_before(step, launch.command)), None)
        inside = any(OWN_DISK.match(text) for text in (last.texts[1:2] if last is not None else ()))
        for option, word in launch.option_values():
            path = word.text
            local = OWN_DISK.match(path) or (inside and not path.startswith(("/", "$", "~", ".")))
            # What is for debugging may be lost.
            if not local or not path or re.search(r"debug|test|bench", path) or not _RESULTS.match(option):
                continue
            if _is_named_again(script, launch, path):
                continue
            what = f"{path} is on the disk of the node, and nothing copies it"
            yield Problem(word, what, "copy it after the training, or name a shared folder", (launch.line,))
            break


_LOOKS = frozenset({"df", "du", "echo", "ls", "printf", "rm", "stat", "tree", "wc"})
"""Commands that copy nothing."""


def _is_named_again(script: BatchScript, launch: LaunchLine, path: str) -> bool:
    """Tell whether a later command, a function, a trap, or a copy beside the training names a folder."""
    disk = OWN_DISK.match(path)
    names = {PurePath(path).name, *([disk[0].strip("${}")] if disk else [])}
    called = {step.name for step in script.commands}
    after = {id(step) for step in script.commands_after(launch.command)}
    for step in script.commands:
        texts = step.texts + [word.raw for word in step.syntax.words]
        texts += [script.resolve(each.value.raw) for each in step.written_assignments]
        texts += [script.resolve(word) for loop in step.compounds if loop.kind == "for" for word in loop.texts]
        # Something else may call a function without a call, such as a trap.
        uncalled = any(compound.kind == "function" and compound.name not in called for compound in step.compounds)
        late = step.trap_code or uncalled or id(step) in after or step.in_background
        uses = _copies_in_trap(script, step) if step.trap_code else step.name not in _LOOKS
        if late and uses and any(name in text for name in names for text in texts):
            return True
        if late and _COPIES.match(step.name) and any(text in {".", "*", "./"} for text in texts):
            return True
    return False


def _copies_in_trap(script: BatchScript, trap: TracedCommand) -> bool:
    """Tell whether a trap copies files, itself or with a function."""
    names = [name for name in script.functions if re.search(rf"\b{re.escape(name)}\b", trap.trap_code)]
    inside = [step.name for name in names for step in script.functions[name]]
    return _COPIES.search(trap.trap_code) is not None or any(map(_COPIES.match, inside))
