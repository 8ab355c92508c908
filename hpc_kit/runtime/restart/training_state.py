"""The state of a training as tensors with names, which torch.distributed.checkpoint writes and fills.

The names are those of the whole model, so they do not depend on how ranks divide the model. Objects that are no tensors
become tensors of bytes:

    model.layers.0.weight                          a parameter or buffer of the object `model`
    model.layers.0._extra_state:object             a value of the module that is no tensor
    optimizer.state.model.layers.0.weight.exp_avg  a tensor of the optimizer's state of that parameter
    optimizer.values.model.layers.0.weight         the rest of its state
    optimizer.group.model.layers.0.weight          the options of its group of parameters
    sampler.rank-3                                 the state of another object on rank 3
    _random.rank-3                                 the random numbers of rank 3
"""

from __future__ import annotations

import io
import random
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from hpc_kit.errors import SpecError

RANDOM = "_random"
"""Name of the state of the random numbers."""

OBJECT = ":object"
"""Ending of the name of an encoded value of a module."""

_IMPLEMENTATION = {"params", "param_names", "fused", "foreach", "capturable", "differentiable"}
"""Keys of a group of parameters that are no part of the state: they choose how an optimizer computes."""


@runtime_checkable
class Stateful(Protocol):
    """An object with a state, such as a scheduler, a sampler or a GradScaler."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> object:
        """Take over a state."""


class Shape(NamedTuple):
    """Size and type of a saved tensor."""

    size: torch.Size
    dtype: torch.dtype


class TrainingState:
    """The objects of a training on this rank.

    Args:
        objects: By name: modules or lists of modules (the stages of a pipeline), optimizers of their parameters, and
            other objects with `state_dict` and `load_state_dict`.
        rank: This rank.

    Raises:
        SpecError: An object has no state, two stages have a parameter of the same name, or an optimizer has a parameter
            of none of the modules.
    """

    def __init__(self, objects: Mapping[str, object], rank: int) -> None:
        self.rank = rank
        self.modules: dict[str, list[nn.Module]] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self.others: dict[str, Stateful] = {}
        for name, value in objects.items():
            if stages := _as_modules(value):
                self.modules[name] = stages
            elif isinstance(value, Optimizer):
                self.optimizers[name] = value
            elif isinstance(value, Stateful):
                self.others[name] = value
            else:
                raise SpecError(
                    f"{name} has no state that can be saved",
                    found=f"{name}={value!r:.80}",
                    remedy="pass modules, optimizers, and objects with state_dict and load_state_dict",
                )
        self._names: dict[Tensor, str] = {
            parameter: f"{name}.{plain_name(own)}"
            for name, stages in self.modules.items()
            for stage in stages
            for own, parameter in stage.named_parameters()
        }
        self._module_tensors()  # refuses two parameters of one name
        for name, optimizer in self.optimizers.items():
            if any(parameter not in self._names for group in optimizer.param_groups for parameter in group["params"]):
                raise SpecError(
                    f"{name} has a parameter of no module",
                    found=f"modules: {', '.join(self.modules) or 'none'}",
                    remedy="pass all modules of its parameters; split the model over the ranks before you make it",
                )

    def collect(self) -> dict[str, Tensor]:
        """Return the tensors of this rank: the tensors of the modules themselves, no copies."""
        state = self._module_tensors()
        for name, optimizer in self.optimizers.items():
            state |= optimizer_tensors(name, _inner(optimizer).state, optimizer.param_groups, self._names)
        for name, other in self.others.items():
            state[f"{name}.rank-{self.rank}"] = encode(other.state_dict())
        state[f"{RANDOM}.rank-{self.rank}"] = encode(_random_state())
        return state

    def digests(self, state: Mapping[str, Tensor]) -> dict[str, int]:
        """Return a checksum of the state of each object that is neither a module nor an optimizer."""
        own = {name: state[f"{name}.rank-{self.rank}"] for name in self.others}
        return {name: zlib.crc32(value.numpy().tobytes()) for name, value in own.items()}

    def compare(self, saved: Mapping[str, Shape]) -> tuple[str, int]:
        """Compare the modules with those of a checkpoint.

        Returns:
            A description of the first difference, and the tensors that this rank has, as bits in the order of
            `names_of`.
        """
        own, names = self._module_tensors(), self.names_of(saved)
        for name, value in own.items():
            if name not in saved:
                return f"{name} is not in the checkpoint", 0
            if saved[name].size != value.shape and not name.endswith(OBJECT):
                return f"{name} is {_size(saved[name].size)} in the checkpoint, {_size(value.shape)} here", 0
        for name in [*self.optimizers, *self.others]:
            if not any(key.startswith(f"{name}.") for key in saved):
                return f"the checkpoint has no state of {name}", 0
        return "", sum(1 << number for number, name in enumerate(names) if name in own)

    def names_of(self, saved: Mapping[str, Shape]) -> list[str]:
        """Return the saved tensors of the modules, sorted."""
        return sorted(key for key in saved if key.partition(".")[0] in self.modules)

    def targets(self, saved: Mapping[str, Shape], *, is_same_layout: bool, shared: set[str]) -> dict[str, Tensor]:
        """Return the tensors of this rank that a checkpoint fills; `shared` names objects of equal state on all ranks.

        Raises:
            SpecError: An object had its own state on each rank, and the number of ranks has changed.
        """
        state = self._module_tensors()
        state |= {name: _empty(saved[name]) for name in state if name.endswith(OBJECT)}
        for name, optimizer in self.optimizers.items():
            state |= self._optimizer_targets(name, optimizer, saved)
        for name in self.others:
            if not is_same_layout and name not in shared:
                raise SpecError(
                    f"the state of {name} cannot be given to another number of ranks",
                    found=f"each rank had its own state of {name}",
                    remedy=f"resume with the same number of ranks, or call restore() without {name}",
                )
            source = f"{name}.rank-{self.rank if is_same_layout else 0}"
            state[source] = _empty(saved[source])
        own_random = f"{RANDOM}.rank-{self.rank}"
        if is_same_layout and own_random in saved:
            state[own_random] = _empty(saved[own_random])
        return state

    def apply(self, state: Mapping[str, Tensor]) -> None:
        """Hand the filled targets over to the objects. The random numbers come last."""
        for name, stages in self.modules.items():
            for stage in stages:
                values = {}
                for key, value in stage.state_dict().items():
                    filled = state[_full_name(name, key, value)]
                    values[key] = filled if isinstance(value, Tensor) else decode(filled)
                stage.load_state_dict(values)
        for name, optimizer in self.optimizers.items():
            self._apply_options(name, optimizer, state)
        for name, other in self.others.items():
            source = next(key for key in state if key.startswith(f"{name}.rank-"))
            other.load_state_dict(decode(state[source]))
        if (own_random := state.get(f"{RANDOM}.rank-{self.rank}")) is not None:
            _set_random_state(decode(own_random))

    def _module_tensors(self) -> dict[str, Tensor]:
        state: dict[str, Tensor] = {}
        for name, stages in self.modules.items():
            for stage in stages:
                tensors = module_tensors(name, stage.state_dict())
                if twice := next((key for key in tensors if key in state), None):
                    raise SpecError(
                        f"two modules of {name} have a parameter of the same name",
                        found=twice.removeprefix(f"{name}."),
                        remedy="give each stage the names that its parameters have in the whole model",
                    )
                state |= tensors
        return state

    def _optimizer_targets(self, name: str, optimizer: Optimizer, saved: Mapping[str, Shape]) -> dict[str, Tensor]:
        prefix, keys = f"{name}.state.", defaultdict[str, list[str]](list)
        for entry in saved:
            if entry.startswith(prefix):
                own, _, key = entry.removeprefix(prefix).rpartition(".")
                keys[own].append(key)
        inner, targets = _inner(optimizer), dict[str, Tensor]()
        for group in inner.param_groups:
            # As torch's own load_state_dict: only these optimizers count their steps on the device.
            is_on_device = bool(group.get("fused") or group.get("capturable"))
            for parameter in group["params"]:
                own, state = self._names[parameter], inner.state[parameter]
                for key in keys[own]:
                    shape = saved[f"{prefix}{own}.{key}"]
                    if not isinstance(state.get(key), Tensor) or state[key].shape != shape.size:
                        on_host = key == "step" and not is_on_device
                        state[key] = _new_state(parameter, shape, torch.device("cpu") if on_host else parameter.device)
                    targets[f"{prefix}{own}.{key}"] = state[key]
        for group in optimizer.param_groups:
            names = (self._names[parameter] for parameter in group["params"])
            entries = (f"{name}.{kind}.{own}" for own in names for kind in ("values", "group"))
            targets |= {entry: _empty(saved[entry]) for entry in entries if entry in saved}
        return targets

    def _apply_options(self, name: str, optimizer: Optimizer, state: Mapping[str, Tensor]) -> None:
        for parameter in (each for group in _inner(optimizer).param_groups for each in group["params"]):
            if (rest := state.get(f"{name}.values.{self._names[parameter]}")) is not None:
                _inner(optimizer).state[parameter].update(decode(rest))
        for group in optimizer.param_groups:
            entries = [state.get(f"{name}.group.{self._names[parameter]}") for parameter in group["params"]]
            known = [entry for entry in entries if entry is not None]
            if any(not torch.equal(entry, known[0]) for entry in known):
                raise SpecError(
                    f"{name} has other groups of parameters than the checkpoint",
                    found="parameters of one group had different options",
                    remedy="make the same groups as the training that saved the checkpoint",
                )
            for key, value in decode(known[0]).items() if known else ():
                if isinstance(group.get(key), Tensor):
                    group[key].copy_(value)
                elif key not in _IMPLEMENTATION:
                    group[key] = value


def optimizer_tensors(
    name: str,
    state: Mapping[Any, Mapping[str, Any]],
    groups: Iterable[Mapping[str, Any]],
    names: Mapping[Any, str],
    ignored: AbstractSet[str] = frozenset(_IMPLEMENTATION),
) -> dict[str, Tensor]:
    """Return the state of an optimizer and the options of its groups; `names` are those of its parameters."""
    found: dict[str, Tensor] = {}
    for parameter, values in state.items():
        tensors = {key: value for key, value in values.items() if isinstance(value, Tensor)}
        found |= {f"{name}.state.{names[parameter]}.{key}": value.detach() for key, value in tensors.items()}
        if rest := {key: value for key, value in values.items() if key not in tensors}:
            found[f"{name}.values.{names[parameter]}"] = encode(rest)
    for group in groups:
        options = encode({key: value for key, value in group.items() if key not in ignored})
        found |= {f"{name}.group.{names[parameter]}": options for parameter in group["params"]}
    return found


def module_tensors(name: str, state: Mapping[str, object]) -> dict[str, Tensor]:
    """Return the tensors of a module's state dictionary, by their full names."""
    return {
        _full_name(name, key, value): value.detach() if isinstance(value, Tensor) else encode(value)
        for key, value in state.items()
    }


def _full_name(name: str, key: str, value: object) -> str:
    return f"{name}.{plain_name(key)}" + ("" if isinstance(value, Tensor) else OBJECT)


def encode(value: object) -> Tensor:
    """Return an object as a tensor of bytes."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)


def decode(data: Tensor) -> Any:
    """Return the object of `encode`. As with every pickle, reading it can run code."""
    return torch.load(io.BytesIO(data.numpy().tobytes()), map_location="cpu", weights_only=False)


def _as_modules(value: object) -> list[nn.Module]:
    """Return the modules inside of wrappers that change the names of parameters; empty if it is no module."""
    values = list(value) if isinstance(value, list | tuple) else [value]
    modules = [unwrap(each) for each in values if isinstance(each, nn.Module)]
    return modules if len(modules) == len(values) else []


def unwrap(module: nn.Module) -> nn.Module:
    """Return the module inside of DistributedDataParallel, DataParallel and torch.compile."""
    while True:
        if isinstance(module, DistributedDataParallel | DataParallel):
            module = module.module
        elif "_orig_mod" in dict(module.named_children()):  # torch.compile
            module = module.get_submodule("_orig_mod")
        else:
            return module


def plain_name(name: str) -> str:
    """Return the name that a parameter has without torch.compile."""
    return name.replace("_orig_mod.", "")


def _inner(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer with the state: ZeroRedundancyOptimizer has another one for this rank's share."""
    inner = getattr(optimizer, "optim", optimizer)
    return inner if isinstance(inner, Optimizer) else optimizer


def _new_state(parameter: Tensor, shape: Shape, device: torch.device) -> Tensor:
    if shape.size == parameter.shape and shape.size:
        return torch.zeros_like(parameter.detach(), dtype=shape.dtype)
    return torch.zeros(shape.size, dtype=shape.dtype, device=device)


def _empty(shape: Shape) -> Tensor:
    return torch.empty(shape.size, dtype=shape.dtype)


def _size(size: torch.Size) -> str:
    return "x".join(map(str, size)) or "a number"


ACCELERATORS: dict[str, Any] = {"cuda": torch.cuda, "xpu": torch.xpu}
"""Modules of the devices that have random numbers of their own."""


def _random_state() -> dict[str, Any]:
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if numpy := sys.modules.get("numpy"):
        state["numpy"] = numpy.random.get_state()
    for name, module in ACCELERATORS.items():
        if module.is_available() and module.is_initialized():
            state[name] = module.get_rng_state()
    return state


def _set_random_state(state: Mapping[str, Any]) -> None:
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "numpy" in state and (numpy := sys.modules.get("numpy")):
        numpy.random.set_state(state["numpy"])
    for name, module in ACCELERATORS.items():
        if name in state and module.is_available():
            module.set_rng_state(state[name])
