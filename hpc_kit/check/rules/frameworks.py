"""Rules for programs that count for themselves: Lightning, Ray, horovodrun, and the starters of other schedulers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpc_kit.check.bash_syntax import Origin, with_nested_parts
from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.expansion import ExpandedText, evaluate_sum
from hpc_kit.check.launch_lines import LaunchLine, LaunchStage, may_be_several
from hpc_kit.check.programs import HELPER_PROGRAMS
from hpc_kit.check.rules.finding import Problem, rule
from hpc_kit.lazy_pattern import lazy_pattern


@rule("KIT224", "warning", needs=("num_nodes", "num-nodes", "trainer."))
def lightning_counts(script: BatchScript) -> Iterator[Problem]:
    """Lightning's devices or num_nodes contradict the job.

    Under srun, Lightning takes one task for one device: `devices` must be the tasks per node, and `num_nodes` the nodes
    of the job. Otherwise it stops ("the number of tasks per node configured in SLURM does not match"), or waits for
    ranks that never start. For options of `trainer` this is an error, for plain `--devices` and `--num-nodes` a
    warning.

    Fix: `--ntasks-per-node` equal to `devices`, and `num_nodes=$SLURM_NNODES`.
    Documented: lightning.ai/docs/pytorch/stable/clouds/cluster_advanced.html.
    """
    for launch in script.training:
        size = script.size_of(launch)
        # Without srun, Lightning starts its processes itself, and under torchrun it takes the agent's number.
        if launch.agent is not None or launch.stage("srun") is None or not size.is_stated:
            continue
        devices, nodes = launch.argument("devices"), launch.argument("num-nodes")
        of_trainer = any(re.match(r"[-+]*trainer\.(devices|num_nodes)\b", text) for text in launch.program.texts)
        # `--devices` alone is an option of many programs.
        if nodes is None and not of_trainer:
            continue
        for name, text, count, unit, options in (
            ("devices", devices, size.tasks_per_node, "tasks per node", ("ntasks-per-node", "ntasks", "nodes")),
            ("num_nodes", nodes, size.nodes, "nodes", ("nodes",)),
        ):
            if text is None or count is None or text.number in {None, count}:
                continue
            what = f"{name}={text.number}, but the job has {count} {unit}: Lightning takes one task for one device"
            lines = (script.line_of(*options), launch.line)
            certain = of_trainer and not text.has_default
            yield Problem(text, what, f"make {name} and --{options[0]} equal", lines, certain)
            break


def _ray_start(launch: LaunchLine) -> dict[str, ExpandedText] | None:
    """Return the options of `ray start`; None for another command."""
    starts = launch.program.name == "ray" and launch.program.texts[1:2] == ["start"]
    return _options(launch.program, 2) if starts else None


def _options(program: LaunchStage, index: int) -> dict[str, ExpandedText]:
    """Return the options from a word on, up to the first word that is none. A flag has an empty value."""
    words, options = program.words, dict[str, ExpandedText]()
    while index < len(words) and words[index].text.startswith("-"):
        word = words[index]
        name, equals, value = word.text.lstrip("-").partition("=")
        following = words[index + 1] if index + 1 < len(words) else word
        takes = not equals and not following.text.startswith("-")
        shown = word.slice_of(len(word.text) - len(value), len(word.text)) if equals else word._replace(text="")
        options[name] = following if takes else shown
        index += 1 + takes
    return options


@rule("KIT225")
def ray_counts(script: BatchScript) -> Iterator[Problem]:
    """Ray has more GPUs than the node, fewer nodes than the job, or ends with its step.

    `ray start --num-gpus` only claims GPUs: workers beyond the real ones fail. With `ray start --head` alone, all
    further nodes of the job are idle. Under srun, `ray start` must have `--block`: without it, the command returns, the
    step ends, and Slurm ends Ray with it. A worker needs the `--port` of the head in its `--address`, and not that of
    the dashboard.

    Fix: `srun -N1 -n1 -w HOST ray start --address=HEAD:PORT --num-gpus=$SLURM_GPUS_ON_NODE --block &` for each further
    node.
    Documented: docs.ray.io, "Deploying on Slurm".
    """
    starts = [(launch, options) for launch in script.launch_lines if (options := _ray_start(launch)) is not None]
    if not starts:
        return
    have = script.size.gpus_per_node
    for launch, options in starts:
        text, lines = options.get("num-gpus"), (script.line_of_gpus, launch.line)
        count = text.number if text is not None else None
        if text is not None and count and have is not None and count != have:
            what = f"Ray counts {count} GPUs, but the node has {have}"
            if count < have:
                what = f"Ray counts {count} of the {have} GPUs of the node: the rest is idle"
            yield Problem(text, what, f"write --num-gpus={have}", lines, certain=count > have)
        direct = launch.command is launch.inner_command and launch.stage("srun") is not None
        unknown = any(word.is_unknown or re.match(r"\$\{?[@*]", word.text) for word in launch.program.words)
        if direct and "--block" not in launch.program.texts and not unknown:
            what = "ray start returns immediately: the step ends, and Slurm ends Ray with it"
            yield Problem(launch.program, what, "write ray start --block, and end the line in &", (launch.line,))
    heads = [launch for launch, options in starts if "head" in options]
    # In the code of a shell under srun, the tasks may decide which of them is the head.
    joined = any("address" in options or each.command is not each.inner_command for each, options in starts)
    others = [launch for launch in script.launch_lines if launch.program.name not in HELPER_PROGRAMS]
    alone = not any(each.stage("srun", "ssh", "shell", "mpirun") or each.program.kind == "program" for each in others)
    if heads and not joined and script.size.has_several_nodes and script.size.is_stated and alone:
        what = f"Ray runs on the first node only; the job has {script.size.min_nodes} nodes"
        remedy = "start ray start --address=HEAD:PORT --block on each further node, with srun"
        yield Problem(heads[0].program, what, remedy, (script.line_of("nodes"),))
    yield from _port_of_another(script, starts)
    yield from _idle_ray_nodes(script, [launch for launch, _ in starts])
    yield from _short_ray_loop(script, [launch for launch, options in starts if "address" in options])


def _port_of_another(
    script: BatchScript, starts: list[tuple[LaunchLine, dict[str, ExpandedText]]]
) -> Iterator[Problem]:
    """Find a worker of Ray, or a RAY_ADDRESS, with another port than that of the head."""
    heads = [(launch, options) for launch, options in starts if "head" in options]
    # A variable may contain more options.
    if len(heads) != 1 or script.sources_files or any(map(may_be_several, heads[0][0].program.words)):
        return
    given = heads[0][1].get("port")
    port = given.text if given is not None else "6379"
    addresses = [options["address"] for _, options in starts if "address" in options and "head" not in options]
    for address in (*addresses, *(each.value for each in script.assignments_of("RAY_ADDRESS"))):
        other = re.fullmatch(r"(?!\w+://)\S+?:(\d{2,5})", address.text)
        # A port that the script computes from the job id is not a fixed one.
        if other is None or other[1] == port or not re.fullmatch(r"\d+|\$\(\(.*\)\)", port):
            continue
        place = next((each for each in script.assignments if each.value.text == address.text), address)
        lines = (address.line, given.line if given is not None else heads[0][0].line)
        what = f"the head of Ray listens on port {port}, and this is port {other[1]}: no worker can join"
        yield Problem(place, what, f"write HEAD:{port}", lines)
        return


_LOOP = lazy_pattern(
    r"\bfor\s*\(\(\s*\w+\s*=\s*(?P<first>\d{1,6})\s*;\s*\w+\s*(?P<than><=?)\s*(?P<last>[^;]+);"
    r"|\bfor\s+\w+\s+in\s+\$\(\s*seq\s+(?P<from>\d{1,6})\s+(?P<to>[^;]+)\)\s*(;|\Z)"
)
_NODES = lazy_pattern(r"\$?\{?\b(SLURM_(JOB_NUM_NODES|NNODES))\b\}?|\$\{#\w+\[[@*]\]\}")


def _short_ray_loop(script: BatchScript, workers: list[LaunchLine]) -> Iterator[Problem]:
    """Find a loop over the further nodes of the job that starts fewer workers of Ray than there are."""
    loops = {place.compound.line for launch in workers for place in launch.command.position.outward() if place.compound}
    # A bound such as `worker_num=$((SLURM_JOB_NUM_NODES - 1))` is a number by now.
    known = {each.name: each.value.text for each in script.assignments if each.value.number is not None}
    for line in loops if len(workers) == 1 and script.size.nodes else ():
        match, nodes = _LOOP.search(script.lines[line - 1]), script.size.nodes or 0
        if match is None:
            continue
        bound = _NODES.sub(str(nodes), match["last"] or match["to"]).replace("$((", "(").replace("))", ")")
        last = evaluate_sum(re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda name: known.get(name[1], name[0]), bound))
        if last is None:
            continue
        count = last - int(match["first"] or match["from"]) + (match["than"] != "<")
        if 0 <= count < nodes - 1:
            what = f"the loop starts {count} workers of Ray, but there are {nodes - 1} further nodes: the rest is idle"
            remedy = "end it at the last index of the hosts, SLURM_NNODES - 1"
            yield Problem(Origin(line), what, remedy, (script.line_of("nodes"),), certain=False)


def _idle_ray_nodes(script: BatchScript, starts: list[LaunchLine]) -> Iterator[Problem]:
    """Find a Ray cluster with fewer nodes than the job: each `ray start` is one node, or the nodes of its srun."""
    nodes, sizes = script.size.nodes, [script.size_of(launch).nodes for launch in starts]
    known = len(starts) > 1 and not any(launch.in_loop or launch.stage("ssh", "shell") for launch in starts)
    if not known or nodes is None or not script.size.is_stated or None in sizes:
        return
    count = sum(size or 0 for size in sizes)
    if count < nodes:
        what = f"Ray runs on {count} of the {nodes} nodes of the job: the rest is idle"
        lines = (script.line_of("nodes"), *(launch.line for launch in starts))
        yield Problem(starts[-1].stages[0], what, "start ray start on each node", lines, certain=False)


@rule("KIT226", needs=("horovodrun",))
def horovodrun_counts(script: BatchScript) -> Iterator[Problem]:
    """Horovodrun starts more processes than the job has, or only knows this host.

    Without -H or --hostfile, horovodrun uses the host on which it runs, with one slot. It does not read the job of
    Slurm. With more processes than slots it stops ("Requested more processes than there are available slots").

    Fix: `srun python train.py` under an MPI or Gloo build; or `-H` with the hosts of
    `scontrol show hostnames "$SLURM_JOB_NODELIST"` and their slots.
    Documented: horovod.readthedocs.io, "Run Horovod".
    """
    alone = sum(launch.program.name == "horovodrun" for launch in script.launch_lines) == 1
    for launch in script.launch_lines:
        if launch.program.name != "horovodrun" or launch.stage("srun") is not None:
            continue
        options = _options(launch.program, 1)
        count, hosts, job = options.get("np"), options.get("H", options.get("hosts")), script.size
        number = count.number if count is not None else None
        if count is None or number is None or options.keys() & {"hostfile", "host-discovery-script"}:
            continue
        gpus = (job.gpus_per_node or 0) * (job.nodes or 0)
        slots = [int(item) for item in re.findall(r":(\d{1,6})", hosts.text)] if hosts is not None else []
        lines = (script.line_of_tasks, launch.line)
        if hosts is None and job.has_several_nodes and number > 1:
            what = f"horovodrun starts all {number} processes on this host: it does not read the nodes of the job"
            yield Problem(launch.program, what, "name the hosts with -H, or write srun python ...", lines)
        elif gpus and (number > gpus or (number < gpus and alone)):
            effect = "the rest is idle" if number < gpus else "some processes have no device"
            what = f"horovodrun starts {number} processes, but the job has {gpus} GPUs: {effect}"
            yield Problem(count, what, f"write -np {gpus}", lines, certain=number > gpus)
        elif job.is_stated and job.ntasks and not gpus and number > max(job.ntasks, job.cpus_per_task or 1):
            what = f"horovodrun starts {number} processes, but the job has {job.ntasks} tasks"
            yield Problem(count, what, f"write -np {job.ntasks}, or request more tasks", lines)
        elif slots and hosts is not None and hosts.is_known and sum(slots) < number:
            what = f"horovodrun starts {number} processes, but -H gives {sum(slots)} slots"
            yield Problem(count, what, "make -np the sum of the slots", lines)


_FOREIGN = {
    "jsrun": "LSF", "lrun": "LSF", "bsub": "LSF", "aprun": "ALPS", "qsub": "PBS or Grid Engine",
}  # fmt: skip
_FOREIGN_VARIABLE = lazy_pattern(r"(PBS_\w+|LSB_\w+|LS_SUBCWD|SGE_\w+|NSLOTS|PE_HOSTFILE|COBALT_\w+|OAR_\w+)\Z")


@rule(
    "KIT227",
    "warning",
    needs=(
        "jsrun",
        "lrun",
        "bsub",
        "aprun",
        "qsub",
        "pbs_",
        "lsb_",
        "ls_subcwd",
        "sge_",
        "nslots",
        "pe_hostfile",
        "cobalt_",
        "oar_",
    ),
)
def foreign_scheduler(script: BatchScript) -> Iterator[Problem]:
    """A command or variable of another scheduler.

    jsrun and bsub belong to LSF, aprun to ALPS, qsub to PBS and Grid Engine. Slurm sets none of their variables. The
    command is "not found", or the variable is empty, unless the site has a wrapper.

    Fix: srun for jsrun, lrun and aprun; sbatch for qsub and bsub; SLURM_SUBMIT_DIR for PBS_O_WORKDIR, SLURM_JOB_ID for
    PBS_JOBID, SLURM_ARRAY_TASK_ID for SGE_TASK_ID.
    Documented: slurm.schedmd.com/rosetta.pdf.
    """
    if not script.directives.lines:
        return
    for step in script.commands:
        scheduler = _FOREIGN.get(step.name)
        if scheduler is not None and step.name not in script.functions and not step.in_task:
            yield Problem(step, f"{step.name} is a command of {scheduler}", "write srun, or sbatch")
        for part in with_nested_parts((*step.syntax.parts, *(step.syntax.document or ()))):
            match = _FOREIGN_VARIABLE.match(part.text) if part.kind == "variable" else None
            if match is None or part.detail or part.text in script.assigned:
                continue
            if not script.tests_variable(part.text):
                what = f"Slurm does not set ${part.text}"
                yield Problem(part.origin, what, "use the variable of Slurm, such as $SLURM_SUBMIT_DIR")


_EXCLUSIVE = (
    ("fp16", "bf16"), ("load-in-4bit", "load-in-8bit"), ("train-samples", "train-iters"),
    ("train-samples", "lr-decay-iters"), ("train-iters", "lr-decay-samples"), ("train-iters", "lr-warmup-samples"),
)  # fmt: skip
"""Options of which Transformers, Megatron-LM and DeepSpeed's examples accept one."""
_OF_MEGATRON = lazy_pattern(r"micro-batch-size|lr-(decay|warmup)-|.*model-parallel-size")
_OFF = frozenset({"0", "false", "no", "none", "off"})


_EXCLUSIVE_OF_AGENT = {
    "deepspeed": (
        ("num-gpus", "include"), ("num-gpus", "exclude"), ("num-nodes", "include"), ("num-nodes", "exclude"),
        ("include", "exclude"),
    ),
    "accelerate": (("multi-gpu", "use-fsdp"), ("multi-gpu", "use-deepspeed"), ("use-fsdp", "use-deepspeed")),
}  # fmt: skip
"""Options of which a launcher accepts one."""


@rule(
    "KIT231",
    "warning",
    needs=("bf16", "8bit", "samples", "best", "--include", "--exclude", "multi_gpu", "multi-gpu", "fsdp"),
)
def exclusive_switches(script: BatchScript) -> Iterator[Problem]:
    """The program or its launcher gets two options of which it accepts one.

    With --fp16 and --bf16, Transformers stops with "At most one of fp16 and bf16 can be True", and Megatron-LM with an
    assertion. So does Megatron-LM if one option counts iterations and another one samples. A model is loaded in 4 or in
    8 bits, not in both. `--load_best_model_at_end` requires an evaluation at each checkpoint: the same strategy for
    both. deepspeed stops if `--include` or `--exclude` comes with `--num_gpus`, and accelerate if `--multi_gpu` comes
    with `--use_fsdp` or `--use_deepspeed` (errors).

    Fix: keep one of the two.
    Documented: huggingface.co/docs/transformers, TrainingArguments; deepspeed.readthedocs.io, "Resource Configuration".
    """
    for agent in script.agents:
        for pair in _EXCLUSIVE_OF_AGENT.get(agent.kind, ()):
            both = [word for name in pair if name in agent.options and (word := agent.word_of(name)) is not None]
            # -1 is the default of --num_gpus.
            if len(both) == 2 and "-1" not in {agent.options[name].text for name in pair}:
                what = f"{agent.kind} stops: {both[0].text} and {both[1].text} exclude each other"
                yield Problem(both[1], what, "keep one of the two", (both[0].line, agent.line), certain=True)
                break
    for launch in script.training:
        words = {word.text.partition("=")[0].lstrip("-").replace("_", "-"): word for word in launch.program.words}
        of_megatron = any(map(_OF_MEGATRON.match, words))
        for pair in _EXCLUSIVE:
            if pair == ("train-samples", "train-iters") and not of_megatron:
                continue  # other programs have both
            values = {name: text for name in pair if (text := launch.argument(name)) is not None}
            given = [name for name, text in values.items() if _is_on(text)]
            if "train-samples" in pair or "train-iters" in pair:
                given = [name for name in given if values[name].number]  # a file of samples is no count
            if len(given) == 2 and all(name in words for name in given):
                first, last = sorted((words[name] for name in given), key=lambda word: (word.line, word.column))
                what = f"{last.text} contradicts {first.text}: the program accepts one of them"
                yield Problem(last, what, "keep one of the two", (first.line, launch.line))
        yield from _strategies_of_best_model(launch)


def _is_on(value: ExpandedText) -> bool:
    """Tell whether the value of a switch is certainly no `false`. A value from outside may be one."""
    return value.is_known and not value.has_default and value.text.lower() not in _OFF


def _strategies_of_best_model(launch: LaunchLine) -> Iterator[Problem]:
    """Find Transformers' --load_best_model_at_end with evaluations at other times than checkpoints."""
    best, of_trainer = launch.argument("load-best-model-at-end"), launch.argument("per-device-train-batch-size")
    if best is None or of_trainer is None or not _is_on(best):
        return
    evaluated, saved = launch.argument("eval-strategy", "evaluation-strategy"), launch.argument("save-strategy")
    pair = [evaluated.text if evaluated is not None else "no", saved.text if saved is not None else "steps"]
    words = launch.program.words
    hidden = any(word.is_unknown or word.text.endswith((".json", ".yaml")) for word in words)
    place = next(word for word in words if word.text.lstrip("-").replace("-", "_").startswith("load_best_model_at_end"))
    if pair[0] != pair[1] and not any("$" in text for text in pair) and not hidden:
        what = (
            f"the best model needs an evaluation at each checkpoint: eval_strategy={pair[0]}, save_strategy={pair[1]}"
        )
        yield Problem(place, what, "make --eval_strategy and --save_strategy equal", (launch.line,))
    every, saves = launch.argument("eval-steps"), launch.argument("save-steps")
    numbers = (every.number, saves.number) if every is not None and saves is not None else (None, None)
    if pair == ["steps", "steps"] and saves is not None and numbers[0] and numbers[1] and numbers[1] % numbers[0]:
        what = f"{numbers[1]} save steps are no multiple of {numbers[0]} evaluation steps, as the best model needs"
        yield Problem(saves, what, "make --save_steps a multiple of --eval_steps", (launch.line,))


_OF_HYDRA = lazy_pattern(r"\+{0,2}hydra[./]|--config-(name|path|dir)\b|\+\+?\w[\w.@/]*=")
_SWEEP = lazy_pattern(r"\+{0,2}[A-Za-z][\w.@/]*=[^\[{(\"'$\s,]+(,[^\[\]{}()\"'\s,]+)+\Z")


@rule("KIT233")
def sweep_without_multirun(script: BatchScript) -> Iterator[Problem]:
    """Several values for one setting of Hydra, without --multirun.

    `optim.lr=1e-4,3e-4` is a sweep. Without --multirun, Hydra stops with "Ambiguous value for argument". The rule finds
    programs with other settings that only Hydra has, such as `hydra.run.dir=...`.

    Fix: `python train.py --multirun optim.lr=1e-4,3e-4`; for one list, `'optim.lr=[1e-4,3e-4]'`.
    Documented: hydra.cc/docs/tutorials/basic/running_your_app/multi-run.
    """
    for launch in script.training:
        words = launch.program.words
        # `python -m MODULE` is no --multirun.
        first = next((n for n, word in enumerate(words) if word is launch.file), 0)
        arguments = words[first + 1 :]
        texts = [word.text for word in arguments]
        multirun = {"-m", "--multirun"} & set(texts) or any("hydra.mode=" in text for text in texts)
        is_open = any(text.startswith("$") for text in texts)  # "$@" may contain --multirun
        if multirun or is_open or not any(map(_OF_HYDRA.match, texts)) or launch.program.kind != "python":
            continue
        sweep = next((word for word in arguments if _SWEEP.match(word.text) and "\\," not in word.text), None)
        if sweep is not None:
            what = f"{sweep.text} is a sweep: without --multirun, Hydra stops"
            yield Problem(sweep, what, "write --multirun in front of the settings", (launch.line,))
