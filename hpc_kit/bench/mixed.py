"""AdamW in mixed precision, whose state is what the formulas of memory reckon with: torch has none of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.adamw import adamw

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT


class MixedAdamW(Optimizer):
    """Parameters and gradients in 16 bits; an fp32 copy of the parameters and two fp32 moments: 12 bytes a parameter.

    Args:
        params: As for any optimizer; of a sharded one each rank has the state of its shard.
        lr: Learning rate.
        device: Where the state lies and the update is computed; None: where the parameters are.
    """

    def __init__(self, params: ParamsT, lr: float = 1e-4, device: torch.device | None = None) -> None:
        super().__init__(params, {"lr": lr})
        self.device = device

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002 - nobody asks for a loss anew
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group["lr"])

    def _update(self, parameter: Tensor, lr: float) -> None:
        here, gradient = _local(parameter), _local(parameter.grad)
        state = self.state[parameter]
        if not state:
            master = here.to(self.device or here.device, torch.float32, copy=True)
            state.update(master=master, first=torch.zeros_like(master), second=torch.zeros_like(master))
            state["step"] = torch.zeros((), device="cpu")
        master = state["master"]
        adamw(
            [master],
            [gradient.to(master.device, torch.float32)],
            [state["first"]],
            [state["second"]],
            max_exp_avg_sqs=[],
            state_steps=[state["step"]],
            foreach=False,
            amsgrad=False,
            maximize=False,
            beta1=0.9,
            beta2=0.95,
            lr=lr,
            weight_decay=0.1,
            eps=1e-8,
        )
        here.copy_(master)


def _local(tensor: Any) -> Tensor:
    """This rank's part."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
