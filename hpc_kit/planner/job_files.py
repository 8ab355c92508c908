"""Reads the model of a job file, and writes a plan as a job file."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from hpc_kit.errors import SpecError, UnitError
from hpc_kit.planner import model_catalogue
from hpc_kit.planner.case_cells import FLAGS, PRECISION, normalize_word
from hpc_kit.planner.layout import TrainingLayout
from hpc_kit.planner.search import Plan, describe_layout
from hpc_kit.planner.target import SPELLINGS
from hpc_kit.planner.transformer import Transformer
from hpc_kit.slurm.sizes import is_gpu_item
from hpc_kit.slurm.units import UNLIMITED, format_time, parse_time
from hpc_kit.spec import load
from hpc_kit.spec.job import Job, Layout, Model, Program, Value
from hpc_kit.spec.program_options import RunProgram, can_split, find_program
from hpc_kit.spec.resources import GPU_COUNT_FIELDS, Resources

BYTE_VOCABULARY = 256
ASSUMED_VOCABULARY = 32000
"""Vocabulary of the shipped programs (bytes), and the assumed one of other programs."""
ASSUMED_SEQ_LEN, ASSUMED_BATCH = 2048, 1024
"""Assumed tokens per sequence and sequences per step of other programs."""

PLAN_MODEL = "PLAN_MODEL"
"""Variable of a job that `--write` wrote: its model, in the format of `--model`."""
PARAMETER_TOLERANCE = 0.02
"""Allowed relative difference between the parameters of the model and those in its job."""


class JobModel(Struct, frozen=True):
    """A job's model and batch; `assumed` lists missing values that were assumed."""

    model: Transformer
    global_batch: int
    seq_len: int
    assumed: str = ""


class PlannedSettings(Struct, frozen=True):
    """Further settings of a written job's plan; "" or None: unknown."""

    framework: str = ""
    precision: str = ""
    flash: bool | None = None
    offload: bool = False


def planned_settings(job: Job) -> PlannedSettings:
    """Return the settings in the variables of a written job.

    Raises:
        SpecError: A variable has an invalid value.
    """
    tables: dict[str, dict[str, Any]] = {
        "framework": SPELLINGS,
        "precision": {name: name for name in PRECISION},
        "flash": FLAGS,
        "offload": FLAGS,
    }
    settings = {}
    for name, known in tables.items():
        variable = f"PLAN_{name.upper()}"
        if text := str(job.env.get(variable, "")):
            if (word := normalize_word(text)) not in known:
                raise SpecError(
                    f"{variable} of job {job.name} is '{text}'",
                    found=f"known: {', '.join(known)}",
                    remedy="correct it in [env], or leave it out",
                )
            settings[name] = known[word]
    return PlannedSettings(**settings)


def runs_shipped_program(job: Job) -> bool:
    """Return whether a job runs a program of jobs/train, each of which splits a model in its own way."""
    programs = [word for word in job.command if word.endswith(".py")]
    return bool(programs) and Path(programs[0]).parts[-3:-1] == ("jobs", "train")


def model_of_job(job: Job, root: Path) -> JobModel | None:
    """Return the model that a job trains; None if neither `[model]` nor the command contains it.

    Raises:
        SpecError: PLAN_MODEL is not a model.
    """
    model, batch = job.model, job.layout.global_batch
    if runs_shipped_program(job):
        return _model_of_shipped_program(job, root)
    notes = [] if batch else [f"a global batch of {ASSUMED_BATCH}"]
    if PLAN_MODEL in job.env:
        found = _parse_plan_model(job)
    elif model.layers is None or model.width is None or model.heads is None:
        return None
    else:
        if model.sequence is None:
            notes.insert(0, f"{ASSUMED_SEQ_LEN} tokens a sequence")
        notes.insert(0, f"a GPT with {ASSUMED_VOCABULARY} words, an MLP of 4 x width, as many key heads as heads")
        length = model.sequence or ASSUMED_SEQ_LEN
        found = _gpt_of_job(model.layers, model.width, model.heads, length, ASSUMED_VOCABULARY)
    return JobModel(found, batch or ASSUMED_BATCH, model.sequence or found.seq_len, ", ".join(notes))


def _model_of_shipped_program(job: Job, root: Path) -> JobModel | None:
    """Return the GPT on bytes that a program of jobs/train trains.

    Its numbers are those of the command, then of the job, then the program's defaults.
    """
    run = find_job_program(job, root)
    if run.program is None:
        return None
    layout, model = structs.asdict(job.layout), structs.asdict(job.model)
    of_command = {name: int(text) for name, text in run.values.items() if text.isdecimal()}
    numbers = {
        name: of_command.get(name) or model.get(name) or layout.get(name) or default
        for name, default in run.program.defaults.items()
    }
    length = numbers["sequence"]
    gpt = _gpt_of_job(numbers["layers"], numbers["width"], numbers["heads"], length, BYTE_VOCABULARY)
    return JobModel(gpt, numbers["global_batch"], length)


def check_job_model(found: JobModel, job: Job) -> None:
    """Check that the model matches the job's `[model]`.

    Raises:
        SpecError: The numbers differ.
    """
    model, of_job = found.model, job.model
    own = {"layers": model.layers, "heads": model.heads, "width": model.hidden}
    others = [f"{name} = {number}" for name in own if (number := getattr(of_job, name)) not in {None, own[name]}]
    count = of_job.parameters
    if count is not None and abs(model.parameters / count - 1) > PARAMETER_TOLERANCE:
        others.append(f"parameters = {count}")
    if others and not runs_shipped_program(job):
        source = f"{PLAN_MODEL} = {job.env[PLAN_MODEL]}" if PLAN_MODEL in job.env else found.assumed
        raise SpecError(
            f"[model] of job {job.name} contradicts itself",
            found=f"{', '.join(others)}; but {model.parameters:.3g} parameters, {model.layers} layers, "
            f"{model.heads} heads, width {model.hidden} by {source}",
            remedy="--model llama3-8b, a config.json, or layers=32,hidden=4096,heads=32,...; or correct [model]",
        )


def _parse_plan_model(job: Job) -> Transformer:
    text = str(job.env[PLAN_MODEL])
    try:
        return model_catalogue.parse_model(text)
    except SpecError as error:
        raise SpecError(
            f"{PLAN_MODEL} of job {job.name}: {error.what}",
            found=text,
            remedy="--model llama3-8b, a config.json, or layers=32,hidden=4096,heads=32,...; or correct it in [env]",
        ) from error


def _gpt_of_job(layers: int, width: int, heads: int, seq_len: int, vocab: int) -> Transformer:
    return Transformer(
        name=f"l{layers}-h{width}",
        layers=layers,
        hidden=width,
        ffn=4 * width,
        heads=heads,
        kv_heads=heads,
        head_dim=max(1, width // heads),
        vocab=vocab,
        seq_len=seq_len,
        gated=False,
        positions=seq_len,
    )


TIME_MARGIN = 2.0
"""Factor between the predicted time and the written limit: an overrun loses the job, a long limit little."""
START_SECONDS = 300.0
"""Seconds of a written time limit for the start and end of a job."""


def job_from_plan(plan: Plan, base: Job, name: str, root: Path, *, steps: int | None = None) -> Job:
    """Return the job of a plan, based on the job whose program it runs.

    Variables PLAN_* contain everything that `[layout]` and `[model]` cannot express. The number of steps determines the
    time limit; without it, the job keeps the limit of its base.
    """
    layout = plan.layout
    per_node = min(layout.gpus, layout.machine.gpus_per_node)
    agents = base.launch.starts_agents
    resources = structs.replace(
        base.resources,
        nodes=layout.gpus // per_node,
        ntasks=None,
        ntasks_per_node=1 if agents else per_node,
        job_name=None,
    )
    if layout.machine.gpu.generation != "cpu":
        resources = _with_gpu_options(resources, per_node, agents=agents)
    if steps is not None:
        resources = structs.replace(resources, time=_limit_with_margin(resources.time, steps * plan.time.total))
    found = structs.replace(
        base,
        name=name,
        description=f"{layout.model.name} on {layout.gpus} {layout.machine.gpu.name}: {describe_layout(layout)}",
        resources=resources,
        layout=_layout_table(layout),
        model=Model(
            layers=layout.model.layers,
            heads=layout.model.heads,
            width=layout.model.hidden,
            sequence=layout.seq_len,
            parameters=layout.model.parameters,
        ),
        launch=structs.replace(base.launch, nproc_per_node=per_node) if agents else base.launch,
        env={**base.env, **_plan_variables(layout)},
    )
    return _describe_trained_model(found, layout, root) if runs_shipped_program(base) else found


def _describe_trained_model(found: Job, layout: TrainingLayout, root: Path) -> Job:
    """Describe the model that a shipped program really trains, a GPT on bytes of the same size."""
    own = model_of_job(found, root)
    if own is None or own.model.parameters == layout.model.parameters:
        return found
    count = own.model.parameters
    env = {key: value for key, value in found.env.items() if key != PLAN_MODEL}
    return structs.replace(
        found,
        description=f"a GPT of {own.model.vocab} words of the size of {layout.model.name}, {count:.3g} parameters, "
        f"on {layout.gpus} {layout.machine.gpu.name}: {describe_layout(layout)}",
        model=structs.replace(found.model, parameters=count),
        env=env,
    )


def _layout_table(layout: TrainingLayout) -> Layout:
    return Layout(
        dp=layout.dp,
        pp=layout.pp,
        tp=layout.tp,
        cp=layout.cp,
        zero=layout.zero_stage,
        global_batch=layout.global_batch,
        micro_batches=layout.micro_batches if layout.micro_batches > 1 else None,
    )


def _plan_variables(layout: TrainingLayout) -> dict[str, Value]:
    return {
        PLAN_MODEL: model_catalogue.format_model(layout.model),
        "PLAN_MICRO_BATCH": layout.micro_batch,
        "PLAN_GRAD_ACCUM": layout.micro_batches,
        "PLAN_GLOBAL_BATCH": layout.global_batch,
        "PLAN_SEQ_LEN": layout.seq_len,
        "PLAN_ZERO_STAGE": layout.zero_stage,
        "PLAN_VIRTUAL_STAGES": layout.virtual_stages,
        "PLAN_RECOMPUTE": layout.recompute,
        "PLAN_SEQUENCE_PARALLEL": int(layout.sequence_parallel),
        "PLAN_FRAMEWORK": layout.framework,
        "PLAN_PRECISION": layout.precision,
        "PLAN_FLASH": int(layout.flash),
        **({"PLAN_OFFLOAD": 1} if layout.offload else {}),
    }


def _with_gpu_options(resources: Resources, per_node: int, *, agents: bool) -> Resources:
    """Replace the base's number of GPUs by one for each rank, of the same kind."""
    entries = (resources.gres or "").split(",")
    gpu_counts = [str(value) for name in sorted(GPU_COUNT_FIELDS) if (value := getattr(resources, name)) is not None]
    gpu_counts += [entry.partition(":")[2] for entry in entries if is_gpu_item(entry)]
    kind = next((f"{word.partition(':')[0]}:" for word in gpu_counts if ":" in word), "")
    counts: dict[str, Any] = {**dict.fromkeys(GPU_COUNT_FIELDS), "ntasks_per_gpu": None}
    counts["gres"] = ",".join(entry for entry in entries if not is_gpu_item(entry)) or None
    name, number = ("gpus_per_node", per_node) if agents else ("gpus_per_task", 1)
    counts[name] = f"{kind}{number}" if kind else number
    return structs.replace(resources, **counts)


def _limit_with_margin(given: str | int | None, seconds: float) -> str | int:
    """Return the limit in whole minutes, or the base's own limit if that is longer."""
    # sbatch understands 0 as no limit.
    needed = 60 * -(-int(TIME_MARGIN * seconds + START_SECONDS) // 60)
    with suppress(UnitError):
        if given is not None and (own := parse_time(str(given))) in {UNLIMITED, 0, max(own, needed)}:
            return given
    return format_time(needed)


BASE_JOBS = ("ddp_1node", "zero1_2node", "zero2_2node", "context_1node", "hybrid_3d_4node")
"""Jobs whose programs are tried, simplest first."""


class SupportedPlan(Struct, frozen=True):
    """A plan that a program supports, and its place among the plans, from 1."""

    plan: Plan
    base: Job
    """The job of the program, with the options of the plan in its command."""
    rank: int


def first_supported(
    plans: Iterable[Plan], root: Path, own: Job | None = None, *, only: bool = False
) -> SupportedPlan | None:
    """Return the first plan that a program supports, or None.

    The job `own` is tried before the shipped ones, or alone with `only`. If it runs a program of the user, it supports
    every plan, because nothing is known about that program.
    """
    if own is not None and not runs_shipped_program(own):
        return next((SupportedPlan(plan, own, 1) for plan in plans), None)
    bases = [load.load_job(name, root=root) for name in BASE_JOBS]
    if own is not None and only:
        bases = [own]
    elif own is not None and not own.component and {base.command[1] for base in bases} & {*own.command}:
        bases = [own, *(base for base in bases if base.name != own.name)]
    programs = [find_job_program(base, root).program for base in bases]
    for rank, plan in enumerate(plans, start=1):
        for base, program in zip(bases, programs, strict=True):
            if program and (options := layout_options(plan.layout, program)) is not None:
                return SupportedPlan(plan, structs.replace(base, command=(*base.command, *options)), rank)
    return None


def find_job_program(base: Job, root: Path) -> RunProgram:
    """Return the program of a job with its description."""
    return find_program(base.command, base.program, root, root)


def training_steps(base: Job, root: Path) -> int | None:
    """Return the number of steps that a job trains; None if unknown."""
    run = find_job_program(base, root)
    if (steps := run.values.get("steps", "")).isdecimal():
        return int(steps)
    return run.program.defaults.get("steps") if run.program else None


def layout_options(layout: TrainingLayout, program: Program) -> tuple[str, ...] | None:
    """Return the options with which a program uses a layout; None if it cannot."""
    if layout.precision in {"fp16", "fp8"} or layout.recompute == "selective":
        return None  # no shipped program supports these
    degrees = {"dp": layout.dp, "tp": layout.tp, "pp": layout.pp, "cp": layout.cp, "zero": layout.zero_stage}
    # Options by name: whether the layout needs them, and their values.
    wanted: dict[str, tuple[bool, tuple[str, ...]]] = {
        "bf16": (layout.machine.gpu.generation != "cpu", ()),
        "recompute": (layout.recompute == "full", ()),
        "offload": (layout.offload, ()),
        "sequence_parallel": (layout.sequence_parallel, ()),
        "schedule": (layout.virtual_stages > 1, ("Interleaved1F1B",)),
        "stages_per_rank": (layout.virtual_stages > 1, (str(layout.virtual_stages),)),
        "accumulate": (layout.micro_batches > 1 and "micro_batches" not in program.names, (str(layout.micro_batches),)),
    }
    needed = {name: value for name, (is_needed, value) in wanted.items() if is_needed}
    if not can_split(program, degrees) or not needed.keys() <= program.names:
        return None
    return tuple(word for name, value in needed.items() for word in (f"--{name.replace('_', '-')}", *value))
