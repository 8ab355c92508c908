"""A row of a cases file as a run, with what had to be taken for granted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from msgspec import Struct, structs

from hpc_kit.errors import HpcKitError, SpecError
from hpc_kit.planner import hardware
from hpc_kit.planner.constants import Rates, builtin
from hpc_kit.planner.machine import GIB, Machine
from hpc_kit.planner.memory import peak_memory
from hpc_kit.planner.model import Model
from hpc_kit.planner.run import Recompute, Run
from hpc_kit.planner.steps import step_time

PADS_VOCABULARY = frozenset({"megatron", "megatron-deepspeed", "nemo"})
OVERLAPS = frozenset({"nemo"})
"""Frameworks whose recipes overlap tensor-parallel traffic unless they say otherwise."""


class Case(Struct, frozen=True):
    """A row as a run, with what was taken for granted; without a run, why there is none."""

    case_id: str
    run: Run | None
    assumed: tuple[str, ...]
    series: str = ""


class _Cells:
    """The cells of a row, typed; remembers what had to be assumed."""

    def __init__(self, row: Mapping[str, str]) -> None:
        self.row = row
        self.assumed: list[str] = []

    def text(self, name: str, default: str = "", *, say: bool = True) -> str:
        value = (self.row.get(name) or "").strip()
        if value:
            return value
        if default and say:
            self.assumed.append(f"{name} = {default}")
        return default

    def number(self, name: str, default: float | None = None, *, say: bool = True) -> float:
        value = (self.row.get(name) or "").strip()
        if not value:
            if default is None:
                raise SpecError(f"{name} is empty", remedy="a number")
            if say:
                self.assumed.append(f"{name} = {default:g}")
            return default
        try:
            number = float(value)
        except ValueError:
            raise SpecError(f"{name} is no number", found=value, remedy="a number") from None
        if not 0 <= number < 1e18:
            raise SpecError(f"{name} is out of range", found=value, remedy="a positive number")
        return number

    def count(self, name: str, default: int | None = None, *, say: bool = True) -> int:
        number = self.number(name, default, say=say)
        if number != int(number) or (number < 1 and name != "zero_stage"):
            raise SpecError(f"{name} is no count", found=f"{number:g}", remedy="a whole number from 1")
        return int(number)

    def flag(self, name: str, *, default: bool = False) -> bool:
        return self.text(name, str(default).lower()).lower() == "true"


def case(row: Mapping[str, str]) -> Case:
    """A row as a run."""
    cells = _Cells(row)
    try:
        run = _run(cells)
    except HpcKitError as error:
        return Case(row["case_id"], None, (error.what,), row.get("series", ""))
    return Case(row["case_id"], run, tuple(cells.assumed), row.get("series", ""))


def _model(cells: _Cells) -> Model:
    arch = cells.text("arch", "llama")
    hidden = cells.count("hidden")
    # Where heads are not published they are taken to be 128 wide, as most are.
    heads = cells.count("heads", max(1, hidden // 128))
    gated, gpt = arch not in {"gpt", "mpt", "nemotron"}, arch == "gpt"
    vocab = cells.count("vocab", 51200)
    framework = cells.text("framework", say=False)
    if framework in PADS_VOCABULARY:
        multiple = 128 * cells.count("tp")
        vocab = -(-vocab // multiple) * multiple
    seq_len = cells.count("seq_len")
    return Model(
        name=cells.text("model_name", "model", say=False),
        layers=cells.count("layers"),
        hidden=hidden,
        ffn=cells.count("ffn", 4 * hidden),
        heads=heads,
        kv_heads=cells.count("kv_heads", heads, say=False),
        head_dim=hidden // heads if cells.text("heads") else 128,
        vocab=vocab,
        seq_len=seq_len,
        gated=gated,
        tied=cells.flag("tied_embeddings", default=gpt),
        biases=gpt,
        norm_biases=gpt,
        positions=seq_len if gpt else 0,
    )


def fabric_of(notes: str) -> str:
    """The kind of network, where a row's notes name it."""
    lower = notes.lower()
    if "efa" in lower.replace("default", ""):
        return "efa"
    return "omnipath" if "omni-path" in lower else "infiniband"


def _machine(cells: _Cells) -> Machine:
    gpu = hardware.gpu(cells.text("gpu"), exact=True)
    usual = hardware.network(gpu) * 8 / 1e9
    across = cells.count("gpus") > cells.count("gpus_per_node", 8)
    if not gpu.memory:
        usually = hardware.gpu(gpu.name)
        cells.assumed.append(f"fits: in the {usually.memory / GIB:g} GiB of {usually.name}")
    return Machine(
        gpu=gpu,
        gpus_per_node=cells.count("gpus_per_node", 8, say=False),
        network=cells.number("inter_node_gbps", usual, say=across) * 1e9 / 8,
        fabric=fabric_of(cells.text("notes", say=False)),
    )


def _run(cells: _Cells) -> Run:
    precision = cells.text("precision", "bf16")
    framework = cells.text("framework", "torch")
    usual = "fp16" if precision == "fp16" else "bf16" if framework == "nemo" else "fp32"
    dp, tp, pp, cp = (cells.count(name, 1) for name in ("dp", "tp", "pp", "cp"))
    batch = cells.count("global_batch")
    recompute = cells.text("recompute", "none")
    run = Run(
        model=_model(cells),
        machine=_machine(cells),
        seq_len=cells.count("seq_len"),
        global_batch=batch,
        micro_batch=cells.count("micro_batch", 1, say=False),
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        virtual_stages=cells.count("virtual_stages", 1),
        zero_stage=cells.count("zero_stage", 0),
        sequence_parallel=cells.flag("sequence_parallel") and tp > 1,
        tp_overlap=tp > 1 and cells.flag("tp_overlap", default=framework in OVERLAPS),
        recompute=cast(Recompute, recompute),
        flash=cells.flag("flash_attention", default=True),
        precision=precision,
        rowwise=cells.text("fp8_recipe", say=False) == "rowwise",
        compiled=cells.flag("torch_compile"),
        grad_bytes=4 if cells.text("grad_dtype", usual) == "fp32" else 2,
        framework=framework,
    )
    if cells.text("micro_batch"):
        return run
    chosen = fastest_micro_batch(run)
    cells.assumed.append(f"micro_batch = {chosen.micro_batch}, the fastest that fits")
    return chosen


def rates_of(run: Run) -> Rates:
    """The calibrated constants of a run."""
    return builtin(run.framework, run.machine.gpu.generation, run.machine.fabric)


def fastest_micro_batch(run: Run) -> Run:
    """The same run with the fastest micro-batch that fits, or 1."""
    share = max(1, run.global_batch // run.dp)
    options = [structs.replace(run, micro_batch=b) for b in (1, 2, 4, 8, 16) if share % b == 0]
    rates = rates_of(run)
    limit = run.machine.gpu.memory * rates.usable
    good = [one for one in options if not limit or peak_memory(one, rates).total <= limit]
    return min(good or options[:1], key=lambda one: step_time(one, rates).total)
