"""The model that a job trains: its `[model]`, or what the command of a program of jobs/train says."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from hpc_kit.errors import SpecError
from hpc_kit.planner import model_catalogue
from hpc_kit.planner.cells import FLAGS, PRECISION, plain
from hpc_kit.planner.model import Model
from hpc_kit.planner.target import SPELLINGS
from hpc_kit.spec.job import Job

DEFAULTS = {"layers": 4, "width": 128, "heads": 4, "sequence": 64, "global-batch": 64}
"""Options of the programs in jobs/train, with their defaults."""
BYTES = 256
WORDS = 32000
"""Vocabulary of the shipped programs, and one that is taken for granted of others."""
LENGTH, BATCH = 2048, 1024
"""Tokens a sequence and sequences a step that are taken for granted of others."""


PLAN_MODEL = "PLAN_MODEL"
"""In the environment of a job that `--write` wrote: its model, as `--model` takes it."""
PLAN_FRAMEWORK, PLAN_PRECISION, PLAN_FLASH = "PLAN_FRAMEWORK", "PLAN_PRECISION", "PLAN_FLASH"
"""There, too: as the options take the first two; 1 or 0."""
CLOSE = 0.02
"""Share by which the parameters of a model's numbers may differ from those that its job says."""


class Asked(Struct, frozen=True):
    """A job's model, and its batch; `assumed`: what nobody says of them."""

    model: Model
    global_batch: int
    seq_len: int
    assumed: str = ""


class Means(Struct, frozen=True):
    """What else a written job was planned with; "" or None: it does not say."""

    framework: str = ""
    precision: str = ""
    flash: bool | None = None


def means(job: Job) -> Means:
    """What the variables of a written job say beside its model.

    Raises:
        SpecError: One of them has a value that it cannot have.
    """
    framework, precision, flash = (str(job.env.get(name, "")) for name in (PLAN_FRAMEWORK, PLAN_PRECISION, PLAN_FLASH))
    for name, value, known in (
        (PLAN_FRAMEWORK, plain(framework), SPELLINGS),
        (PLAN_PRECISION, precision, PRECISION),
        (PLAN_FLASH, flash.lower(), FLAGS),
    ):
        if value and value not in known:
            raise SpecError(
                f"{name} of job {job.name} is '{job.env[name]}'",
                found=f"known: {', '.join(known)}",
                remedy="correct it in [env], or leave it out",
            )
    return Means(SPELLINGS.get(plain(framework), ""), precision, FLAGS.get(flash.lower()))


def shipped(job: Job) -> bool:
    """Whether a job runs one of the programs of jobs/train, each of which splits a model in its own way."""
    programs = [word for word in job.command if word.endswith(".py")]
    return bool(programs) and Path(programs[0]).parts[-3:-1] == ("jobs", "train")


def asked(job: Job) -> Asked | None:
    """What a job trains; None where neither its `[model]` nor its command says.

    Raises:
        SpecError: Its PLAN_MODEL is no model.
    """
    is_shipped = shipped(job)
    told = {"layers": job.model.layers, "width": job.model.width, "heads": job.model.heads}
    if not is_shipped and PLAN_MODEL in job.env:
        model = _planned(job)
        length, batch = job.model.sequence or model.seq_len, job.layout.global_batch
        return Asked(model, batch or BATCH, length, "" if batch else f"a global batch of {BATCH}")
    if not is_shipped and None in told.values():
        return None
    told |= {"sequence": job.model.sequence, "global-batch": job.layout.global_batch}
    found = {name: told[name] or usual for name, usual in DEFAULTS.items()}
    if is_shipped:
        found |= _said(job)
        return Asked(_gpt(found, BYTES), found["global-batch"], found["sequence"])
    usual = {"sequence": LENGTH, "global-batch": BATCH}
    found |= {name: number for name, number in usual.items() if told[name] is None}
    words = {"sequence": f"{LENGTH} tokens a sequence", "global-batch": f"a global batch of {BATCH}"}
    taken = [text for name, text in words.items() if told[name] is None]
    assumed = ", ".join([f"a GPT with {WORDS} words, an MLP of 4 x width, as many key heads as heads", *taken])
    return Asked(_gpt(found, WORDS), found["global-batch"], found["sequence"], assumed)


def check(found: Asked, job: Job) -> None:
    """Whether the model is the one that the job's `[model]` tells of.

    Raises:
        SpecError: It has other numbers.
    """
    model, said = found.model, job.model
    own = {"layers": model.layers, "heads": model.heads, "width": model.hidden}
    others = [f"{name} = {number}" for name in own if (number := getattr(said, name)) not in {None, own[name]}]
    count = said.parameters
    if count is not None and abs(model.parameters / count - 1) > CLOSE:
        others.append(f"parameters = {count}")
    if others and not shipped(job):
        source = f"{PLAN_MODEL} = {job.env[PLAN_MODEL]}" if PLAN_MODEL in job.env else found.assumed
        raise SpecError(
            f"[model] of job {job.name} contradicts itself",
            found=f"{', '.join(others)}; but {model.parameters:.3g} parameters, {model.layers} layers, "
            f"{model.heads} heads, width {model.hidden} by {source}",
            remedy="--model llama3-8b, a config.json, or layers=32,hidden=4096,heads=32,...; or correct [model]",
        )


def _planned(job: Job) -> Model:
    text = str(job.env[PLAN_MODEL])
    try:
        return model_catalogue.model(text)
    except SpecError as error:
        raise SpecError(
            f"{PLAN_MODEL} of job {job.name}: {error.what}",
            found=text,
            remedy="--model llama3-8b, a config.json, or layers=32,hidden=4096,heads=32,...; or correct it in [env]",
        ) from error


def _said(job: Job) -> dict[str, int]:
    """What a shipped program's command says."""
    found: dict[str, int] = {}
    for word, following in zip(job.command, (*job.command[1:], ""), strict=True):
        name, equals, value = word.removeprefix("--").partition("=")
        text = value if equals else following
        if word.startswith("--") and name in DEFAULTS and text.isdigit():
            found[name] = int(text)
    return found


def _gpt(numbers: dict[str, int], words: int) -> Model:
    width, heads = numbers["width"], numbers["heads"]
    return Model(
        name=f"l{numbers['layers']}-h{width}",
        layers=numbers["layers"],
        hidden=width,
        ffn=4 * width,
        heads=heads,
        kv_heads=heads,
        head_dim=max(1, width // heads),
        vocab=words,
        seq_len=numbers["sequence"],
        gated=False,
        positions=numbers["sequence"],
    )
