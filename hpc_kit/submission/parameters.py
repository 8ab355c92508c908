"""The names that `Executor.update_parameters` takes, and what they are in a job file."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec
from msgspec import Struct, structs

from hpc_kit.errors import SpecError
from hpc_kit.spec.resources import Count, Number, Resources

GENERIC = {
    "name": "job_name",
    "timeout_min": "time",
    "mem_gb": "mem",
    "tasks_per_node": "ntasks_per_node",
}
"""submitit's words for what every scheduler has; the others are sbatch's own."""

OWN = {"additional_parameters", "array_parallelism", "setup", "signal_delay_s", "stderr_to_stdout"}

REFUSED = {
    "array": "map_array and batch() make arrays",
    "error": "job.paths names the logs; stderr_to_stdout=True puts both into one",
    "num_gpus": "gpus_per_node",
    "open_mode": "logs are appended to: a job that is requeued keeps what it has said",
    "output": "job.paths names the logs, in the executor's folder",
    "signal": "signal_delay_s: seconds before the end; the signal is submitit's",
    "srun_args": "srun's line is the template's; variables work: set={'env.SLURM_CPU_BIND': 'none'}",
    "teardown": "the job's exit status would be the teardown's; put it at the end of the function",
    "use_srun": "ranks are started by srun; a job of one rank: nodes=1, tasks_per_node=1",
}
"""Parameters of submitit and options of sbatch that mean nothing here, and what to do instead."""


class UnknownParameter(SpecError, ValueError):
    """No such parameter; a `ValueError` too, as submitit's."""


class Extras(Struct, frozen=True, kw_only=True):
    """What the protocol of pickled functions has beside the job."""

    array_parallelism: Count = 256
    signal_delay_s: Number | None = None
    stderr_to_stdout: bool = False

    def updated(self, given: dict[str, object]) -> Extras:
        """With other values.

        Raises:
            SpecError: One is of a wrong type or range.
        """
        try:
            return msgspec.convert({**structs.asdict(self), **given}, Extras)
        except msgspec.ValidationError as error:
            raise SpecError(
                "wrong value for an Executor", found=f"{given}: {error}", remedy=f"as in {Extras()}"
            ) from None


class Parameters(NamedTuple):
    """Values for a job file, by dotted key, and the rest."""

    settings: dict[str, object]
    extras: dict[str, object]


def parameters(given: dict[str, object]) -> Parameters:
    """Sort the arguments of `update_parameters`.

    Args:
        given: By any of three names: submitit's (`timeout_min`), sbatch's (`time`), either with `slurm_` before it.

    Raises:
        UnknownParameter: There is no such name; near ones are named.
        SpecError: It has no meaning here.
    """
    settings: dict[str, object] = {}
    extras: dict[str, object] = {}
    for asked, value in given.items():
        name = asked.removeprefix("slurm_").replace("-", "_")
        name = GENERIC.get(name, name)
        if name in REFUSED:
            raise SpecError(f"{asked} is not for an Executor", found=f"{asked}={value!r}", remedy=REFUSED[name])
        if name == "additional_parameters":
            inner = parameters(dict(value) if isinstance(value, dict) else {"additional_parameters": value})
            settings |= inner.settings
            extras |= inner.extras
        elif name == "setup":
            settings["setup"] = list(value) if isinstance(value, list | tuple) else [] if value is None else [value]
        elif name in OWN:
            extras[name] = value
        elif name in Resources.__struct_fields__:
            settings |= _setting(asked.removeprefix("slurm_"), name, value)
        else:
            raise _unknown(asked, name, value)
    return Parameters(settings, extras)


def _setting(asked: str, name: str, value: object) -> dict[str, object]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if asked == "mem_gb":
            value = f"{math.ceil(value * 1024)}M" if value != int(value) else f"{int(value)}G"
        elif name == "time":
            value = math.ceil(value)
    if name == "job_name":
        # The run folder bears the name, too.
        return {"name": value, "resources.job_name": value}
    return {f"resources.{name}": value}


def _unknown(asked: str, name: str, value: object) -> UnknownParameter:
    from difflib import get_close_matches

    known = sorted({*Resources.__struct_fields__, *GENERIC, *OWN} - REFUSED.keys())
    near = get_close_matches(name, known, n=3, cutoff=0.6)
    return UnknownParameter(
        f"no parameter '{asked}'",
        found=f"{asked}={value!r}",
        remedy=" or ".join(near) if near else f"one of {', '.join(known)}",
    )
