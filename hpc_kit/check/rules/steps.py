"""Rules for steps: their size against the job, steps at the same time, and programs that srun cannot start."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import PurePath
from typing import NamedTuple

from hpc_kit.check.bash_syntax import Origin
from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.command_trace import TracedCommand
from hpc_kit.check.expansion import ExpandedText, plain_path
from hpc_kit.check.launch_lines import LOOPS, LaunchLine, LaunchStage, is_known_program
from hpc_kit.check.programs import SERVER_MODULES, SERVERS, SHELL_BUILTINS, runs_forever
from hpc_kit.check.rules.finding import Problem, rule
from hpc_kit.check.rules.variables import sets
from hpc_kit.lazy_pattern import lazy_pattern
from hpc_kit.slurm.sizes import GPU_COUNT_OPTIONS, GpuCounts, JobSize, parse_count, read_gpu_counts, size_of_step

_PROGRAMS_TOO = frozenset({"[", "echo", "false", "kill", "printf", "pwd", "test", "true"})
"""Builtins that are also programs."""

_STARTS_A_FILE = frozenset({"env", "nice", "nohup", "numactl", "setsid", "stdbuf", "timeout", "unbuffer"})


@rule("KIT218")
def not_a_program(script: BatchScript) -> Iterator[Problem]:
    """Srun starts something that is no program.

    srun, mpirun, nohup and timeout start files. A builtin (`source`, `cd`, `module`), a function of the script, an
    assignment, or a whole command in quotes is no file: the step ends with "No such file or directory".

    Fix: `srun bash -c 'source venv/bin/activate && python train.py'`. Export a variable before srun. Keep a command
    in an array: `CMD=(python train.py)`, then `srun "${CMD[@]}"`.
    Documented: srun(1); bash(1), SHELL BUILTIN COMMANDS.
    """
    for launch in script.launch_lines:
        for starter, stage in pairwise(launch.stages):
            if starter.kind not in {"srun", "mpirun"} and starter.name not in _STARTS_A_FILE:
                continue
            fault = _fault_of_program(script, stage)
            if fault is not None:
                what, remedy = fault
                yield Problem(stage, f"{starter.name} cannot start {what}", remedy, (launch.line,))
                break


def _fault_of_program(script: BatchScript, stage: LaunchStage) -> tuple[str, str] | None:
    first, *rest = stage.texts
    code = f"write bash -c '{first} ...' in single quotes"
    # Red Hat has files for some builtins, which show a value.
    shows = first in {"hash", "type", "umask"} or stage.texts in (["ulimit"], ["ulimit", "-a"])
    is_builtin = first in SHELL_BUILTINS and first not in _PROGRAMS_TOO and not shows
    if is_builtin or (first, *rest[:1]) == ("conda", "activate"):
        return f"{first}, a builtin or function of the shell", code
    if first in script.functions:
        return f"{first}, a function of this script", f"{code}, after export -f {first}"
    if re.match(r"[A-Za-z_]\w*=", first):
        return f"an assignment: {first}", f"write export {first} before this line, or env {first} in front of it"
    head, blank, tail = first.partition(" ")
    if blank and not rest and (is_known_program(stage.words[0]._replace(text=head)) or re.match(r"-|\S+\.py\b", tail)):
        return "a command line in quotes, which is one file name", "remove the quotes, or write bash -c '...'"
    return None


@rule("KIT219")
def code_without_quotes(script: BatchScript) -> Iterator[Problem]:
    """`bash -c` gets a command without quotes.

    `bash -c python train.py` runs `python` alone; `train.py` is only $0. Python reads an empty standard input, and the
    step ends immediately with status 0.

    Fix: `bash -c 'python train.py'`, or no bash at all.
    Documented: bash(1), -c.
    """
    for launch in script.launch_lines:
        shell = next((stage for stage in launch.stages if stage.kind == "shell" and stage.code is not None), None)
        code = shell.option("code") if shell is not None else None
        if shell is None or code is None or not code.is_known or re.search(r"\s", code.text):
            continue
        index = next(number for number, word in enumerate(shell.words) if word is code)
        following = shell.words[index + 1 : index + 2]
        if following and (re.match(r"--?[a-zA-Z]|\S+\.(py|sh)\Z", following[0].text) or is_known_program(following[0])):
            what = f"bash -c runs {code.text} alone: {following[0].text} is only its $0"
            yield Problem(code, what, f"write bash -c '{code.text} {following[0].text} ...'", (launch.line,))


@rule("KIT220", needs=("srun",))
def larger_step(script: BatchScript) -> Iterator[Problem]:
    """A step asks for more than the job has.

    srun runs within the allocation of the job. With more nodes, CPUs or GPUs than the job has, it refuses the step
    ("More processors requested than permitted", "Invalid generic resource (gres) specification"). The components of a
    heterogeneous job are counted from 0.

    Fix: request it for the job, in the #SBATCH lines; srun inherits it.
    Documented: srun(1), --nodes, --ntasks, --gres.
    """
    yield from _missing_components(script)
    job = script.size
    if not job.is_stated and not job.has_gpus:
        return
    for launch in script.launch_lines:
        srun = launch.stage("srun")
        # An srun within a step, or behind salloc, has another allocation or its own limits.
        if srun is None or srun.error or launch.command.in_task or launch.stages[0] is not srun:
            continue
        for what, name, certain in _excess(script, job, srun):
            lines = (script.line_of("nodes", "ntasks", "ntasks-per-node", "gres", "gpus-per-node", "gpus"), launch.line)
            fails = certain and not srun.options[name].has_default
            yield Problem(srun.options[name], what, f"change #SBATCH --{name}, or this step", lines, fails)
            break


def _missing_components(script: BatchScript) -> Iterator[Problem]:
    """Find a component that a heterogeneous job does not have. srun may name several steps, with `:` between them."""
    count = len(script.components)
    for step in script.commands if script.is_heterogeneous else ():
        in_options = False
        for word in step.words if step.name == "srun" else ():
            in_options = word.text in {"srun", ":"} or (in_options and word.text.startswith("-"))
            given = re.match(r"--het-group=(?:\d+-)?(\d+)\Z", word.text)
            if in_options and given is not None and int(given[1]) >= count:
                what = f"the job has the components 0 to {count - 1}, and no component {given[1]}"
                yield Problem(word, what, f"write --het-group={int(given[1]) - 1}", (step.line,))
                return


def _excess(script: BatchScript, job: JobSize, srun: LaunchStage) -> Iterator[tuple[str, str, bool]]:
    """Yield the resources of which a step asks for more than the job: the text, the option, whether it must fail."""
    options = srun.option_texts
    nodes = parse_count(options.get("nodes"))
    if nodes and job.nodes and nodes > job.nodes:
        # A script that leaves the number of nodes to the command line of sbatch may get more of them.
        stated = bool(script.options.keys() & {"nodes", "nodelist"})
        yield f"the step asks for {nodes} nodes, but the job has {job.nodes}", "nodes", stated
    gpus = read_gpu_counts(options)
    for name, count in (("gpus-per-node", gpus.per_node), ("gres", gpus.per_node)):
        if name in options and count and job.gpus_per_node and count > job.gpus_per_node:
            yield f"the step asks for {count} GPUs per node, but the job has {job.gpus_per_node}", name, True
    whole_job = job.gpus_per_node * job.nodes if job.gpus_per_node and job.nodes else None
    step = size_of_step(job, options)
    count = gpus.in_job(step.nodes or 0, step.ntasks) if gpus.per_task or gpus.total else None
    if whole_job and count and count > whole_job:
        name = "gpus-per-task" if gpus.total is None else "gpus"
        yield f"the step asks for {count} GPUs, but the job has {whole_job}", name, name in options
    total = parse_count(options.get("ntasks"))
    per_task = parse_count(options.get("cpus-per-task")) or (1 if total else None)
    have, whole = job.ntasks, script.may_have_more_cpus or "ntasks-per-gpu" in script.options
    if total and per_task and have and not whole and not options.keys() & {"overcommit", "exclusive"}:
        cpus = have * (job.cpus_per_task or 1)
        if total * per_task > cpus:
            what = f"the step asks for {total * per_task} CPUs ({total} tasks), but the job has {cpus}"
            # A node with two threads a core gives an even number of CPUs.
            yield what, "ntasks", total * per_task > 2 * cpus


@rule("KIT221", "warning")
def smaller_step(script: BatchScript) -> Iterator[Problem]:
    """The only step of a job uses fewer tasks than the job has.

    The remaining tasks, with their CPUs and GPUs, are allocated and idle for the whole job. The steps of a loop without
    `&` run one after another, and use as little.

    Fix: remove -n from srun, or request fewer tasks for the job.
    Documented: srun(1), --ntasks.
    """
    launch = script.only_training
    srun = launch.stage("srun") if launch is not None else None
    if launch is None or srun is None or srun.error or launch.agent or launch.command.in_background:
        return
    job, step = script.size, script.size_of(launch)
    count, cpus = srun.option("ntasks", "ntasks-per-node"), srun.option("cpus-per-task")
    if count is None or not job.is_stated or job.ntasks is None or step.ntasks is None:
        return
    # KIT202 reports nodes without a task.
    if job.nodes not in {None, step.nodes}:
        return
    threads = (cpus.number if cpus is not None else None) or 1
    if step.ntasks * threads < job.ntasks * (job.cpus_per_task or 1) and step.ntasks < job.ntasks:
        what = f"the step has {step.ntasks} of the {job.ntasks} tasks of the job: the rest is idle"
        if launch.in_loop:
            what = f"the steps of this loop run one after another, each with {step.ntasks} of the {job.ntasks} tasks"
        lines = (script.line_of("ntasks", "ntasks-per-node"), launch.line)
        remedy = "end the line in &, and wait behind the loop" if launch.in_loop else "remove the option from srun"
        yield Problem(count, what, f"{remedy}; or request fewer tasks", lines)


_CHANGES_FILES = {
    ("pip", "install"), ("pip3", "install"), ("conda", "install"), ("conda", "create"), ("mamba", "install"),
    ("git", "clone"), ("git", "pull"), ("npm", "install"),
}  # fmt: skip


_FILLS_FOLDERS = frozenset({"rsync", "tar", "unzip", "wget"})


@rule("KIT222", "warning")
def copies_of_a_program(script: BatchScript) -> Iterator[Problem]:
    """Srun starts a program several times that one process does.

    With N tasks, srun starts N servers, which compete for a port and for GPUs, or N `pip install`, `wget` or `tar`,
    which write the same files at the same time. So does `[ -f vocab.txt ] || srun python make_vocab.py vocab.txt`.

    Fix: start it without srun, or with `srun --ntasks=1`, or once per node: `--ntasks-per-node=1`.
    Documented: srun(1), DESCRIPTION.
    """
    for launch in script.launch_lines:
        program, size = launch.program, script.size_of(launch)
        if launch.multiplier is None or not size.has_several_tasks or not size.is_stated:
            continue
        # With a lock, one task after another does the work.
        if any(step.name == "flock" for step in script.commands_of(launch)):
            continue
        module = program.option("module")
        words = [program.name, *program.texts[1:]]
        if module is not None:
            words = [module.text, *words[words.index(module.text) + 1 :]]
        count = size.ntasks or "several"
        server = words[0] in SERVERS or (module is not None and SERVER_MODULES.match(module.text))
        # Servers on several nodes have ports of their own.
        if server and (size.tasks_per_node or 2) > 1:
            what = f"srun starts {words[0]} {count} times: one process serves all"
        elif (tuple(words[:2]) in _CHANGES_FILES or words[0] in _FILLS_FOLDERS) and (size.tasks_per_node or 1) > 1:
            what = f"srun runs {' '.join(words[:2])} {count} times in parallel, and all write the same files"
        # On several nodes or with GPUs, the program may share its work by rank without an option.
        elif not size.has_several_nodes and not size.has_gpus and (workers := _own_workers(launch)) is not None:
            what = f"srun starts this {count} times, and each starts {workers.text} workers for the same work"
        elif (path := _prepared_file(script, launch)) is not None:
            what = f"srun runs this {count} times in parallel, and all write {path}"
        elif launch.multiplier.kind == "srun" and _trains_alone(script, launch):
            what = f"Hugging Face's Trainer reads no variable of Slurm: each of {count} tasks trains alone"
            remedy = "start one launcher on each node: srun --ntasks-per-node=1 torchrun --nproc-per-node=..."
            yield Problem(program, what, remedy, (launch.line,))
            continue
        else:
            continue
        yield Problem(program, what, "write srun --ntasks=1 ..., or no srun", (launch.line,))


def _trains_alone(script: BatchScript, launch: LaunchLine) -> bool:
    """Tell whether a program of Hugging Face gets no rank, because no line sets torch's variables."""
    is_plain = launch.program.kind == "python" and launch.agent is None and launch.file is not None
    # A second program is started by the first.
    one = sum(text.endswith(".py") for text in launch.program.texts) < 2
    if not (is_plain and one and launch.trains_with_hugging_face) or script.sources_files:
        return False
    return re.search(r"RANK|WORLD_SIZE|MASTER_|PMI|PROCID|prolog", script.code) is None


_PREPARES = lazy_pattern(r"(?i)(build|create|convert|download|fetch|index|make|pack|prep|tokeni[sz]|vocab)")


def _own_workers(launch: LaunchLine) -> ExpandedText | None:
    """Return the number of processes that a program of preparation starts itself."""
    file, workers = launch.file, launch.argument("workers", "num-workers", "num-proc")
    by_rank = any(re.search(r"(?i)rank|shard|world|PROCID|ARRAY_TASK|mpi", text) for text in launch.program.texts)
    prepares = file is not None and _PREPARES.search(PurePath(file.text).name)
    return workers if workers is not None and prepares and not by_rank and (workers.number or 0) > 1 else None


def _prepared_file(script: BatchScript, launch: LaunchLine) -> str | None:
    """Return the file that a program prepares if it is missing: `[ -f FILE ] || srun python prepare.py --out FILE`."""
    file = launch.file
    by_rank = any(re.search(r"(?i)rank|shard|world|PROCID|mpi", text) for text in launch.program.texts)
    if file is None or by_rank or not _PREPARES.search(PurePath(file.text).name):
        return None
    tests = "\n".join(script.condition_lines(launch.command))
    words = [word.unquoted for word in launch.inner_command.syntax.words]
    tested = (word for word in words if re.search(rf"-[defs]\s+[\"']?{re.escape(word)}(?![\w/])", tests))
    return next((word for word in tested if not word.startswith("-")), None)


@rule("KIT223", "warning", needs=("srun",))
def blocking_steps(script: BatchScript) -> Iterator[Problem]:
    """Two steps at the same time need the same resources.

    A step takes all resources of the job on its nodes, unless its line says less: all GPUs without an option for GPUs.
    The next step waits for it ("Step creation temporarily disabled, retrying"). Steps in the background then run one
    after another; behind a server or monitor, the training never starts (an error). If the cluster allocates memory
    (CR_Core_Memory, as most do), a step without an option for memory also takes all memory of --mem.

    Fix: `srun --overlap ...` for a monitor; `srun --exact -n 1 -c 8 --gpus=1 --mem=30G ... &` for steps that share a
    node; `-w HOST` for one step on each node.
    Documented: srun(1), --exact, --overlap and --gres; Slurm release notes 20.11; slurm.conf(5), SelectTypeParameters.
    """
    job = script.size
    # With SLURM_STEP_GRES=none, steps are meant to share the job.
    shared = any(each.value.text == "none" for each in script.assignments_of("SLURM_STEP_GRES"))
    if script.is_heterogeneous or job.nodes is None or shared:
        return
    running: dict[_Claim, LaunchLine] = {}
    for step in script.batch_commands:
        if step.name == "wait":
            running = {}
        launch = script.launch_at(step)
        srun = launch.stage("srun") if launch is not None else None
        if launch is None or srun is None or launch.stages[0] is not srun or srun.error or srun.may_hide_options:
            continue
        forever, claim = never_ends(launch), _claim_of(script, launch, srun)
        if claim is None or not (launch.is_training or forever):
            continue
        blocker = next(((other, used) for held, other in running.items() if (used := held.blocks(claim, job))), None)
        if blocker is not None:
            other, used = blocker
            endless = never_ends(other)
            effect = "it never ends, so that this step never starts" if endless else "this one waits for it"
            remedy = "write srun --overlap for a monitor, or srun --exact with CPUs, GPUs and memory for each step"
            certain = endless and used != _MEMORY
            yield Problem(srun, f"the step in line {other.line} has {used}: {effect}", remedy, (other.line,), certain)
        if step.in_background:
            again = calls_at_once(script, step) if not launch.in_loop else not waits_inside_loop(script, step)
            if again and (used := claim.blocks(claim, job)):
                what = f"each of these steps has {used}: they run one after another"
                yield Problem(srun, what, "write srun --exact with the CPUs, GPUs and memory of one step")
            # The first step with these resources is the one that holds them.
            running.setdefault(claim, launch)


_MEMORY = "all memory of --mem, if the cluster allocates memory"


class _Claim(NamedTuple):
    """The nodes of a step.

    `host`: the host that its line names, if any. `exact`: it takes only these CPUs and GPUs of the job, rather than all
    of its nodes. `whole_memory`: it takes all memory of the job on its nodes.
    """

    nodes: int
    exact: bool
    whole_memory: bool
    cpus: int
    gpus: int
    host: str

    def blocks(self, other: _Claim, job: JobSize) -> str:
        """Return the resources that keep another step waiting for this one; an empty string if both can run."""
        if self.host != other.host:
            return ""  # perhaps on different nodes
        on_one_node, all_of_node = self.nodes + other.nodes > (job.nodes or 0), "all resources of the node"
        ntasks, nodes = (job.tasks_per_node, 1) if self.host else (job.ntasks, job.nodes)
        on_one_node = on_one_node or bool(self.host)
        if not (self.exact and other.exact):
            return all_of_node if on_one_node else ""
        # Slurm allocates both threads of a core.
        each = (job.cpus_per_task or 1) + (job.cpus_per_task or 1) % 2
        cpus, gpus = (ntasks or 0) * each, (job.gpus_per_node or 0) * (nodes or 0)
        if 0 < cpus < self.cpus + other.cpus:
            return all_of_node
        if 0 < gpus < self.gpus + other.gpus:
            return f"all GPUs of the {'node' if self.host else 'job'}" if self.gpus == gpus else all_of_node
        return _MEMORY if on_one_node and (self.whole_memory or other.whole_memory) else ""


_ONE_HOST = lazy_pattern(r"[\w.-]+\Z|\$\{?([A-Za-z_]\w*)(?:\[\d+\])?\}?\Z")


def _claim_of(script: BatchScript, launch: LaunchLine, srun: LaunchStage) -> _Claim | None:
    """Return the resources of a step; None if it shares them, or says where it runs."""
    host = srun.option_texts.get("nodelist", "")
    # In a loop or a function, the host is another one each time, and so is that of a variable which changes.
    one = _ONE_HOST.match(host)
    changes = one is not None and one[1] and sum(1 for line in script.code.split("\n") if sets(one[1]).search(line)) > 1
    several = host and (one is None or changes or launch.command.around("function", *LOOPS))
    if several or srun.options.keys() & {"overlap", "relative", "exclude", "nodefile", "het-group"}:
        return None
    options, size = srun.option_texts, script.size_of(launch)
    gpus, nodes = read_gpu_counts(options), size.nodes or script.size.nodes or 1
    given = bool(options.keys() & {"gres", *GPU_COUNT_OPTIONS})
    # A step without an option inherits --gpus-per-task, or all GPUs that the job has on its nodes.
    per_task = read_gpu_counts(script.options).per_task
    inherited = GpuCounts(per_task=per_task) if per_task else GpuCounts(per_node=script.size.gpus_per_node)
    taken = (gpus if given else inherited).in_job(nodes, size.ntasks)
    # A step inherits --mem, which is all memory of the job on the node.
    own_memory = options.keys() & {"mem", "mem-per-cpu", "mem-per-gpu"} or script.options.get("mem", "0") == "0"
    # -c implies --exact.
    exact = bool(options.keys() & {"exact", "exclusive", "cpus-per-task"})
    ntasks = (size.ntasks or 1) if size.is_stated else 1
    cpus = 0 if script.may_have_more_cpus else ntasks * (parse_count(options.get("cpus-per-task")) or 1)
    return _Claim(nodes, exact, not own_memory, cpus, taken or 0, host)


def never_ends(launch: LaunchLine) -> bool:
    """Tell whether a launch line runs until something ends it."""
    shell = launch.stage("shell")
    endless = shell is not None and shell.code is not None and _ENDLESS_LOOP.search(shell.code.text.text)
    limited = any(stage.name == "timeout" for stage in launch.stages)
    return not limited and (bool(endless) or runs_forever(launch.program.texts))


_ENDLESS_LOOP = lazy_pattern(r"\bwhile\s+(true|:|sleep\s|\[ 1 \])|\bfor\s*\(\(\s*;\s*;\s*\)\)")


def calls_at_once(script: BatchScript, step: TracedCommand) -> bool:
    """Tell whether the function around a command is called again before anything waits."""
    function = step.around("function")
    if function is None or any(each.name == "wait" for each in script.functions[function.name]):
        return False
    names = [each.name for each in script.batch_commands if each.name in {function.name, "wait"}]
    return (function.name, function.name) in pairwise(names)


def waits_inside_loop(script: BatchScript, step: TracedCommand) -> bool:
    """Tell whether the loop around a command waits in its body, itself or in a program that gets the process."""
    inside = [other for other in script.commands if any(map(other.is_inside, step.compounds))]
    gets = any(other.words and part.raw == "$!" for other in inside for part in other.syntax.parts)
    return gets or any(other.name == "wait" for other in inside)


_RECORD = lazy_pattern(r"\s*(\*|[\d$]\S*)\s+\S")


@rule("KIT232", needs=("--mu",))
def tasks_without_program(script: BatchScript) -> Iterator[Problem]:
    """The file of --multi-prog does not fit the number of tasks.

    Each task needs a record, and tasks count from 0. srun refuses a file without one for each of them ("no record for
    task id 7"). The rule reads a file that the script itself writes.

    Fix: `1-7 python actor.py` for the tasks 1 to 7 of eight, or `*` for all further tasks.
    Documented: srun(1), MULTIPLE PROGRAM CONFIGURATION.
    """
    for launch in script.launch_lines:
        srun, tasks = launch.stage("srun"), script.size_of(launch).ntasks
        body = script.file_written_to(launch.program.texts[0]) if srun is not None else None
        if srun is None or body is None or not tasks or "multi-prog" not in srun.options:
            continue
        if _is_changed(script, launch):
            continue
        records = [
            (number, match[1]) for number, line in enumerate(body.text.split("\n")) if (match := _RECORD.match(line))
        ]
        ranks = [rank for _, text in records for rank in _ranks_of(text, tasks)]
        missing = sorted(set(range(tasks)) - set(ranks))
        beyond = sorted(set(ranks) - set(range(tasks)))
        if records and "$" not in "".join(text for _, text in records) and (missing or beyond):
            fault = f"no program for task {missing[0]}" if missing else f"there is no task {beyond[0]}"
            what = f"{fault}: the step has {tasks} tasks, 0 to {tasks - 1}"
            place, lines = (
                Origin(body.line + records[-1][0]),
                (script.line_of("ntasks", "ntasks-per-node"), launch.line),
            )
            yield Problem(place, what, "make the records and --ntasks agree", lines, certain=bool(missing))


def _is_changed(script: BatchScript, launch: LaunchLine) -> bool:
    """Tell whether a further command may change the file of --multi-prog: one that names it, or its variable."""
    path = launch.program.texts[0]
    written = (word.unquoted for word in launch.inner_command.syntax.words)
    name = next((text for text in written if script.resolve(text) == path), path).removeprefix("./")
    removed = any(step.name == "rm" and path in step.texts for step in script.commands)
    return plain_path(script.code).count(plain_path(name)) > 2 + removed


def _ranks_of(text: str, tasks: int) -> list[int]:
    """Return the tasks of a record of --multi-prog: `0`, `1-6`, `2,4`, or `*` for all."""
    if text == "*":
        return list(range(tasks))
    spans = [re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", item) for item in text.split(",")]
    return [rank for span in spans if span for rank in range(int(span[1]), int(span[2] or span[1]) + 1)]
