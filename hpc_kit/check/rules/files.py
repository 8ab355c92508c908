"""Rules for files and folders: disks of the nodes, permissions, and clean-ups that remove too much."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from hpc_kit.check.bash_syntax import written_files
from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.command_trace import TracedCommand
from hpc_kit.check.expansion import plain_path
from hpc_kit.check.launch_lines import LOOPS, LaunchLine
from hpc_kit.check.programs import COPIES, MULTIPLIERS, REMOTE
from hpc_kit.check.rules.finding import Problem, rule
from hpc_kit.check.rules.variables import set_variables
from hpc_kit.lazy_pattern import lazy_pattern

OWN_DISK = lazy_pattern(
    r"(\$\{?(SLURM_TMPDIR|TMPDIR|TMP|JOBFS|SNIC_TMP|L_?SCRATCH|LOCAL_?(DISK|SCRATCH|TMP)(_?DIR)?)\b\}?"
    r"|(/mnt)?/(tmp|dev/shm|(scratch[-_])?(local|local_?scratch|lscratch)([-_]?(disk|nvme|scratch|ssd|tmp)|\d)?))"
    r"(?=/|\Z)"
)
"""A folder on the disk of the node, by the names that sites use."""
OWN_DISK_WORDS = ("tmp", "jobfs", "scratch", "local", "shm")
"""Texts of which the name of such a folder has one."""
_MEETS = lazy_pattern(r"(?i)dist|init|rdzv|rendezvous|sync")
"""An option for the place where ranks meet: --init-method, --dist-url."""
_MOVES = frozenset({"cd", "popd", "pushd"})
_SPREADERS = frozenset({"clush", "parallel-scp", "pdcp", "pscp", "sbcast", "scp"})
_LOOKS = frozenset({"chmod", "df", "du", "ls", "mkdir", "rm", "stat", "test"})
"""Programs that name a folder without filling it."""


@rule("KIT212", "warning", needs=OWN_DISK_WORDS)
def first_node_files(script: BatchScript) -> Iterator[Problem]:
    """The script fills a node-local folder on the first node only.

    The batch script runs on the first node. $SLURM_TMPDIR, /tmp and similar folders are local to each node: the tasks
    on the further nodes do not see what the script unpacks or installs there. With `--init-method file:///tmp/sync`,
    the ranks of different nodes never meet.

    Fix: run the command once per node, `srun --ntasks=$SLURM_NNODES --ntasks-per-node=1 tar -xf ...`, or use sbcast, or
    a folder that all nodes share.
    Documented: sbcast(1); docs.alliancecan.ca/wiki/PyTorch, "Multi-node".
    """
    wide = [launch for launch in script.training if script.size_of(launch).has_several_nodes]
    if not wide or not script.size.has_several_nodes:
        return
    for option, word in [each for launch in wide for each in launch.option_values()]:
        meeting = re.search(r"(?:\A|=)file://(/\S+)", word.text)
        if meeting is not None and OWN_DISK.match(meeting[1]) and _MEETS.search(option):
            what = f"each node has its own {meeting[1]}: the ranks of different nodes never meet"
            yield Problem(word, what, "name a file in a folder that all nodes share", (script.line_of("nodes"),))
    entered: TracedCommand | None = None
    for step in script.batch_commands:
        if step.name in _MOVES:
            target = _entered(step, "" if entered else None)
            # A relative folder lies in the one that was entered before.
            entered = entered if target == "" else step if target else None
        folder = _filled(script, step)
        if folder is not None:
            using = (each for each in wide if _reaches(script, folder, each))
        elif entered is not None and _fills_here(step):
            folder, last = plain_path(entered.words[1].text), entered
            # The tasks of srun start in the current folder of the batch shell.
            using = (each for each in wide if not _leaves(script, last, step, each.command))
        elif (path := _written_file(script, step)) is not None:
            folder = path
            using = (each for each in wide if any(_names(word.text, path) for word in each.program.words))
        else:
            continue
        launch = next((each for each in using if _follows(script, step, each)), None)
        if launch is not None and not _spread(script, folder, launch):
            what = f"{folder} is local to the first node: tasks on the remaining nodes do not see these files"
            remedy = f"run it once per node: srun --ntasks=$SLURM_NNODES --ntasks-per-node=1 {step.name} ..."
            yield Problem(step, what, remedy, (launch.line,))
            return


def _written_file(script: BatchScript, step: TracedCommand) -> str | None:
    """Return the node-local file that a command of the batch shell writes, or that a server gets."""
    served = step.texts[1:] if step.in_background and step.name != "srun" else []
    paths = [plain_path(script.resolve(file.name.unquoted)) for file in written_files(step.syntax)]
    paths += [plain_path(text.rpartition("=")[2]) for text in served]
    return next((path for path in paths if (disk := OWN_DISK.match(path)) and len(path) > disk.end() + 1), None)


def _follows(script: BatchScript, step: TracedCommand, launch: LaunchLine) -> bool:
    """Tell whether the launch runs after the command, and does not run the same script again on each node."""
    calls = {name for name, body in script.functions.items() if any(each is launch.command for each in body)}
    starts = [each for each in script.commands if each is launch.command or each.name in calls]
    itself = any(re.search(r"\$(\{?0|\{?BASH_SOURCE)", word.raw) for word in launch.command.syntax.words)
    conditional = any(place.role in {"then", "else"} for place in step.position.outward())
    return script.is_before(step, starts[-1]) and not (itself and conditional)


def _reaches(script: BatchScript, folder: str, launch: LaunchLine) -> bool:
    """Tell whether the tasks use the folder: on their line, in a variable, or as the current folder."""
    words = (*launch.command.words, *launch.inner_command.words)
    texts = [word.text for word in words]
    texts += [each.value.text for each in script.exported_assignments if each.line < launch.line]
    if _gets_parent(script, folder, launch):
        return True
    before = [step for step in script.commands if step.name in {".", "source", *_MOVES} and step.line < launch.line]
    texts += [word.text for step in before for word in step.words]
    return any(_names(text, folder) for text in texts)


WRITTEN_THERE = lazy_pattern(r"(?i)out|save|log|ckpt|checkpoint|tmp|temp|cache|work|scratch|result|chdir|venv|env")
READ_THERE = lazy_pattern(r"(?i)data|train|input|src|source|shards|images?")
"""Words in an option or variable for a folder of results or temporary files, and for one with data."""


def _gets_parent(script: BatchScript, folder: str, launch: LaunchLine) -> bool:
    """Tell whether the program gets a folder around the filled one, to read from it: /tmp/job7 for /tmp/job7/train."""
    parents = _parents(folder)
    if not parents:
        return False
    before = ""
    for word in (*launch.command.words, *launch.inner_command.words):
        name, equals, value = word.text.partition("=")
        option = name if equals else before
        if plain_path(value if equals else word.text).rstrip("/") in parents and not WRITTEN_THERE.search(option):
            return True
        before = word.text if word.text.startswith("-") else ""
    exported = (
        each for each in script.exported_assignments if each.line < launch.line and READ_THERE.search(each.name)
    )
    return any(plain_path(each.value.text).rstrip("/") in parents for each in exported)


def _parents(folder: str) -> set[str]:
    """Return the folders around a node-local one, up to a folder of the job; /tmp itself belongs to all jobs."""
    disk = OWN_DISK.match(folder)
    root = disk.end() if disk is not None else len(folder)
    parts = folder[root:].strip("/").split("/")
    found = {folder[:root] + "/" + "/".join(parts[:count]) for count in range(1, len(parts))}
    return found | ({folder[:root]} if folder.startswith("$") and len(folder) > root else set())


def _spread(script: BatchScript, folder: str, launch: LaunchLine) -> bool:
    """Tell whether another step fills the folder on the further nodes, too."""
    for each in script.launch_lines:
        elsewhere = each.multiplier or each.stage("ssh") or each.program.name in _SPREADERS
        if each.command.line > launch.line or not elsewhere or each.program.name in _LOOKS:
            continue
        words = each.program.words if each.multiplier else each.command.words
        around = {folder, *_parents(folder)}
        if not each.is_training and any(_names(word.text, path) for word in words for path in around):
            return True
    return False


def _names(text: str, folder: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(folder)}(?![\w.-])", plain_path(text)) is not None


def _entered(step: TracedCommand, before: str | None) -> str | None:
    """Return the node-local folder that is current after a `cd` or similar command."""
    if step.name == "popd":
        return None
    target = plain_path(step.words[1].text) if len(step.words) > 1 else "~"
    if OWN_DISK.match(target):
        return target
    return None if target.startswith(("/", "$", "~", "-")) else before


def _fills_here(step: TracedCommand) -> bool:
    """Tell whether a command writes files to the current folder."""
    rest = step.texts[1:]
    if step.name in {"cp", "rsync"}:
        return bool(rest) and not rest[-1].startswith(("/", "$", "~"))
    if step.name == "git":
        return rest[:1] == ["clone"]
    there = {"-C", "--directory", "-d"} & set(rest)
    return not there and (step.name == "unzip" or (step.name == "tar" and "x" in "".join(rest[:1])))


def _leaves(script: BatchScript, entered: TracedCommand, first: TracedCommand, last: TracedCommand) -> bool:
    """Tell whether the shell changes the folder between two commands, or entered it only in a subshell."""
    between = [step for step in script.commands if first.line < step.line < last.line and step.name in _MOVES]
    subshell = entered.around("subshell")
    alone = subshell is not None and not last.is_inside(subshell)
    return alone or any(_entered(step, "here") is None for step in between)


def _filled(script: BatchScript, step: TracedCommand) -> str | None:
    """Return the node-local folder that a command fills."""
    # `mktemp -p DIR` and `mktemp DIR/XXXX` may make a folder that all nodes share.
    pattern = _OF_THIS_NODE if re.search(r"mktemp( -[dqt]+)*\)", script.code) else OWN_DISK
    place = target_of_copy(step.texts or [""])
    return plain_path(place).rstrip("/.") if place is not None and pattern.match(place) else None


def target_of_copy(words: list[str]) -> str | None:
    """Return the file or folder that a command fills: one that copies, unpacks, or downloads."""
    # `find ... -exec cp {} DIR`, `... | xargs cp -t DIR`, but `... | xargs -I{} ssh {} cp ...` fills other nodes, too
    if words[0] in {"find", "parallel", "xargs"}:
        starts = (index for index, text in enumerate(words) if text in {*COPIES, *MULTIPLIERS, *REMOTE})
        words = words[next(starts, 0) :]
    name, rest = words[0].rpartition("/")[2], words[1:]
    places: list[str] = []
    if name in COPIES - {"gzip", "pigz", "tar", "zip"}:
        targets = [after for before, after in pairwise(rest) if before in {"-t", "--target-directory"}]
        places = targets or [text for text in rest if not re.match(r"(\{\}|[+;]|\d+[A-Z]?)\Z|-", text)][-1:]
    elif name in {"tar", "unzip"}:
        places = _option_values(rest, r"-\w*[Cd]|--(directory|one-top-level)", r"-C|-d|--(?:directory|one-top-level)=")
    elif name in {"7z", "7za", "bsdtar", "curl", "hf", "huggingface-cli", "wget"}:
        places = _option_values(rest, "-[CPOo]|--(local-dir|output)", "-o|-P|--(?:local-dir|output|directory-prefix)=")
    elif (name, *rest[:1]) in {("git", "clone"), ("uv", "venv")} or name == "virtualenv" or rest[:2] == ["-m", "venv"]:
        places = rest[-1:]
    packs = name == "tar" and re.match(r"-?\w*[crtu]\w*\Z|--(create|list|append|update)", rest[0] if rest else "")
    return places[-1] if places and not packs else None


def _option_values(words: list[str], option: str, prefix: str) -> list[str]:
    """Return the values behind an option, and those in one word with it behind a prefix."""
    behind = [value for word, value in pairwise(words) if re.fullmatch(option, word)]
    return behind + [match[1] for word in words if (match := re.match(f"(?:{prefix})(.+)", word))]


_OF_THIS_NODE = lazy_pattern(rf"{OWN_DISK.pattern}|\$\(mktemp(-d|\.\.\.)?\)(?=/|\Z)")
"""A folder of the node, or one with a random name in /tmp."""

_KEEPS_LAST = lazy_pattern(r"(?i)last|latest|newest|current|best|status|state|progress|pid|heartbeat")


@rule("KIT144", "warning")
def last_line_only(script: BatchScript) -> Iterator[Problem]:
    """A `>` in a loop empties the file in each pass, so that only the last line remains.

    A file of hosts then contains the last node alone: the launcher leaves all further nodes idle (an error). The rule
    finds a list that a program gets after the loop.

    Fix: `>>` in the loop, and an empty file before; or one `>` behind `done`.
    Documented: bash(1), Redirections.
    """
    for step in script.batch_commands:
        output, loop = step.syntax.output, step.around(*LOOPS)
        if step.name not in {"echo", "printf"} or output is None or loop is None or step.is_conditional:
            continue
        changing = script.changed_in(loop)
        path = plain_path(script.resolve(output.unquoted))
        is_fixed = not changing & output.variables and not re.search(r"\$\(|/dev/|\$RANDOM", path)
        if not changing & step.syntax.variables or not is_fixed or _KEEPS_LAST.search(path):
            continue
        # Another command of the loop may name the file, or end the loop.
        others = [each for each in script.commands_in(loop) if each is not step]
        if any(each.name in {"break", "exit"} or any(_names(text, path) for text in each.texts) for each in others):
            continue
        for launch in script.launch_lines:
            outside = launch.line > step.line and not launch.command.is_inside(loop)
            if outside and any(_names(text, path) for text in launch.command.texts):
                what = f"each pass of the loop empties {path}: only its last line remains"
                hosts = re.search(r"(?i)host|machine|node", path) is not None
                yield Problem(step, what, "write >>, and remove the file before the loop", (launch.line,), hosts)
                break


_FOR_ALL = lazy_pattern(r"0?[0-7]?[0-7]{2}[2367]\Z|(?:\w*[oa]|)\+\w*w\w*(?:,|\Z)|(?:.*,)?[ugoa]*[oa][ugoa]*=\w*w")


@rule("KIT511", "warning", needs=("chmod", "umask"))
def writable_for_all(script: BatchScript) -> Iterator[Problem]:
    """Files that every user of the cluster may change or delete.

    `chmod -R 777` lets each user replace the data, the checkpoints and the code that the next job runs. The same
    applies to `chmod o+w` and to `umask 000`. The rule ignores folders of the node, such as /tmp, and lines with a
    comment that names a reason.

    Fix: share with your group: `chmod -R g+rwX DIR`, or `setfacl`; `chmod -R a+rX DIR` lets everybody read.
    Documented: chmod(1); acl(5).
    """
    for step in script.commands:
        words = [text for text in step.texts[1:] if not re.match(r"-[A-Za-z-]", text)]
        on_node = all(OWN_DISK.match(text) or script.resolve(text).startswith("$(mktemp") for text in words[1:])
        if script.has_reason(step.line, named=True):
            continue
        chmod = step.name == "chmod" and len(words) > 1 and not on_node and _FOR_ALL.match(words[0])
        # Without a letter in front, the umask applies to the `+w`.
        if chmod and not words[0].startswith("+"):
            what = f"chmod {words[0]} lets every user change and delete these files"
            yield Problem(step, what, "write chmod -R g+rwX for your group", (step.line,))
        elif step.name == "umask" and words[:1] in (["000"], ["0000"], ["0"]):
            what = "umask 000 lets every user change all files of the job"
            yield Problem(step, what, "write umask 007 or umask 022", (step.line,))


@rule("KIT503", "warning", needs=("rm ", "rm\t", "find", "kill", "scancel"))
def harm_to_other_jobs(script: BatchScript) -> Iterator[Problem]:
    """A clean-up that hits other jobs on the node.

    `pkill python` and `killall` end all matching processes of the user on the node, also those of other jobs.
    `rm -rf /tmp/*` removes the files of other jobs. `rm -rf $DIR/*` removes /* if the variable is empty: the rule finds
    variables that the script does not set. `rm -rf` of a cache or a folder that a whole group shares removes files that
    other jobs read at this moment. Elements of an array may run on the same node: the first one that removes a folder
    of all of them takes it from the rest.

    Fix: end the processes of this job by their id (`kill "$pid"`), and remove a folder of this job, such as
    `/tmp/$SLURM_JOB_ID`. Slurm itself ends all processes of a job at its end.
    Documented: scancel(1).
    """
    alone = script.is_alone_on_nodes
    at_once = not (alone or script.options.get("array", "%1").endswith("%1"))
    for step in script.batch_commands if at_once else ():
        removed = ((text, script.resolve(text)) for text in removed_folders(step))
        path = next((text for text, at in removed if _OF_NODE.match(at) and not differs_between_elements(at)), None)
        if path is not None:
            what = f"the first element of the array to end removes {path}, which others on the node use"
            yield Problem(step, what, "write $SLURM_JOB_ID in the name of the folder", (script.line_of("array"),))
    for step in (each for each in script.commands if each.trap_code):
        match = re.search(r"\b((?:pkill|killall)\b[^;&|]*)|\bscancel (-u|--user|--me)", step.trap_code)
        if match is not None and not (match[1] and (alone or _ends_own(match[1].split()))):
            what = f"{match[0].split()[0]} also ends processes or jobs that are not of this job"
            yield Problem(step, what, 'end processes by their id: kill "$pid"')
    for launch in script.launch_lines:
        words = launch.program.texts
        if launch.program.name == "scancel" and _cancels_all(words):
            what = "scancel ends all jobs of the user, not this one alone"
            yield Problem(launch.program, what, 'write scancel "$SLURM_JOB_ID"')
        recursive = launch.program.name == "rm" and re.search(r"\s-\w*[rR]", launch.program.text)
        used = next((text for text in words[1:] if _is_shared(script, text)), None) if recursive else None
        if used is not None:
            what = f"other jobs may read {used} at this moment"
            yield Problem(launch.program, what, "remove the line, or delete a folder of this job only")
        if alone:
            continue
        if launch.program.name in {"pkill", "killall"} and not _ends_own(words):
            what = f"{launch.program.name} also ends processes of other jobs on the node"
            yield Problem(launch.program, what, 'end processes by their id: kill "$pid"')
        yield from _removals(script, launch, words)


_SAME_FOR_ALL = lazy_pattern(
    r"\$\{?(SLURM_ARRAY_JOB_ID|SLURM_JOB_NAME|SLURM_SUBMIT_DIR|USER|LOGNAME|UID|PWD"
    r"|(?!\w*(FAST|SSD|NVME|LOCAL|NODE|JOB|RUN|TASK|TE?MP))(\w+_)?(HOME|WORK|SCRATCH|PROJECT|STORE))\b\}?"
)


def differs_between_elements(text: str) -> bool:
    """Tell whether a path may differ between the elements of an array."""
    return re.search(r"[$`]", _SAME_FOR_ALL.sub("", text)) is not None


_OF_NODE = lazy_pattern(r"/(tmp|dev/shm|local_?scratch|lscratch)/[^/*]")
_REMOVES = lazy_pattern(r"\brm\s+(?:-\w+\s+)*-\w*[rR]\w*\s+(?:-\w+\s+)*[\"']?([^\s;&|\"']+)")


def removed_folders(step: TracedCommand) -> list[str]:
    """Return the arguments of an `rm -r`, or those in the code of a trap."""
    if step.removes_folders:
        return [text for text in step.texts[1:] if not text.startswith("-")]
    return _REMOVES.findall(step.trap_code)


def _ends_own(words: list[str]) -> bool:
    """Tell whether pkill ends processes of this job alone: the children of a process, a session, or the job id."""
    selects = any(re.match(r"-[Pgs]|--(parent|pgroup|session)\b", text) for text in words[1:])
    return selects or any(re.search(r"SLURM_JOB_?ID", text) for text in words)


def _removals(script: BatchScript, launch: LaunchLine, words: list[str]) -> Iterator[Problem]:
    """Find an rm or find that removes files of other jobs, or all files if something before it failed."""
    removes = launch.program.name == "rm" or (launch.program.name == "find" and {"-delete", "rm"} & set(words))
    if removes and any(map(_SHARED_FOLDER.match, words[1:])):
        what = "this removes files of other jobs on the node"
        yield Problem(launch.program, what, "remove a folder of this job only, such as /tmp/$SLURM_JOB_ID")
    here = launch.program.name == "rm" and {"*", "./*"} & set(words)
    for cd in script.commands_before(launch.command)[-1:] if here else ():
        if cd.name == "cd" and not cd.errexit and len(cd.position.chain.pipelines) == 1:
            what = f"if the cd in line {cd.line} fails, this removes the files of the present folder"
            yield Problem(launch.program, what, "write cd ... || exit, or set -e at the top", (cd.line,))
    for text in words[1:] if launch.program.name == "rm" and re.search(r"\s-\w*[rR]", " ".join(words)) else ():
        whole = re.fullmatch(r"\$\{?(\w+)\}?/\*?", text)
        # Slurm and its prologs set the variables of node-local folders.
        known = whole and (whole[1] in set_variables(script) or whole[1].startswith("SLURM_") or OWN_DISK.match(text))
        known = known or (whole and script.tests_variable(whole[1]))
        if whole and not known and "nounset" not in launch.command.options:
            what = f"if ${whole[1]} is empty, this removes /*: the script does not set it"
            yield Problem(launch.program, what, f"write ${{{whole[1]}:?}}, which stops the script then")


_SHARED_FOLDER = lazy_pattern(
    r"/(tmp|var/tmp|dev/shm|local|scratch|localscratch)(/\*|/(\$\{?USER\}?|ray|torch\S*\*)(/\*)?)?/?\Z"
)


_CACHES = (
    "HF_DATASETS_CACHE", "HF_HOME", "HF_HUB_CACHE", "TORCH_HOME", "TRANSFORMERS_CACHE", "WEBDATASET_CACHE",
)  # fmt: skip
"""Variables for folders that libraries fill once for all jobs."""


def _is_shared(script: BatchScript, path: str) -> bool:
    """Tell whether other jobs use a folder: one that is named after a group, or a cache without the job id."""
    if _OF_GROUP.match(path):
        return True
    caches = [each.value.text for each in script.assignments_of(*_CACHES)] if path.startswith("/") else []
    own = OWN_DISK.match(path) or re.search(r"(?i)job_?id|array|tmp|\$\(|\$\$", path)
    return not own and any(f"{each}/".startswith(f"{path.rstrip('/')}/") for each in caches)


_OF_GROUP = lazy_pattern(
    r"(?!.*(USER|HOME|JOB_?ID|~|/home/|\$\())(/|\$).*/(shared|common|public|group|team)"
    r"(/[\w.-]*(cache|conda|data|envs?|hf|hub|huggingface|models?|tmp|wheels)[\w.-]*)*(/\*)?/?\Z"
)
"""A folder that is named after a group of users, or a cache or data in it."""


def _cancels_all(words: list[str]) -> bool:
    selects = any(re.match(r"-(n|j|t|p)|--(name|jobname|state|partition)", text) for text in words)
    users = any(re.match(r"(-\w*u|--user|--me)", text) for text in words)
    return users and not selects and not any(text.isdigit() or "JOB" in text for text in words[1:])
