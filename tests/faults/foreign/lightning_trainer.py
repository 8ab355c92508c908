"""A Lightning Trainer, which saves and requeues by itself when it gets SIGUSR1."""

import os
import time

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        time.sleep(float(os.environ.get("SECONDS_A_STEP", "0.1")))
        if self.global_rank == 0:
            print(self.global_step, file=open("steps", "a"), flush=True)
        return self.layer(batch[0]).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


if __name__ == "__main__":
    data = DataLoader(TensorDataset(torch.ones(80, 4)), batch_size=1)
    trainer = L.Trainer(
        max_steps=40,
        accelerator="cpu",
        devices=2,
        logger=False,
        enable_progress_bar=False,
        default_root_dir="lightning",
        callbacks=[ModelCheckpoint("saved", every_n_train_steps=5)],
    )
    trainer.fit(Model(), data)
