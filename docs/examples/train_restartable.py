"""Train a small network on several ranks."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hpc_kit

STEPS = 400
BATCH = 32


def main() -> None:
    with hpc_kit.distributed() as world:
        torch.manual_seed(world.rank)
        inputs = torch.linspace(-3, 3, 1000, device=world.device)[:, None]
        targets = inputs.sin()

        network = nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
        model = DistributedDataParallel(network.to(world.device), device_ids=world.device_ids)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

        saver = hpc_kit.Checkpointer("checkpoints", every=50)
        first = saver.restore(model=model, optimizer=optimizer, scheduler=scheduler)
        for step in range(first, STEPS):
            choice = torch.randint(len(inputs), (BATCH,))
            loss = nn.functional.mse_loss(model(inputs[choice]), targets[choice])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            if world.is_main:
                print(f"step {step} loss {loss.item()}", flush=True)
            if saver.step(step):
                break

        if world.is_main:
            error = (network(inputs) - targets).abs().max()
            print(f"largest error {error.item()}")


if __name__ == "__main__":
    main()
