"""A Trainer of transformers without a signal handler, which resumes from its newest checkpoint."""

import os
import sys
import time

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x=None, labels=None):
        return {"loss": self.layer(x).pow(2).mean()}


class Log(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        time.sleep(float(os.environ.get("SECONDS_A_STEP", "0.1")))
        if state.is_world_process_zero:
            print(state.global_step - 1, file=open("steps", "a"), flush=True)


arguments = TrainingArguments(
    output_dir="saved", max_steps=40, save_steps=10, per_device_train_batch_size=1, use_cpu=True, report_to=[],
    disable_tqdm=True, remove_unused_columns=False, logging_strategy="no",
)  # fmt: skip
data = [{"x": torch.ones(4)} for _ in range(200)]
trainer = Trainer(model=Model(), args=arguments, train_dataset=data, callbacks=[Log()])
trainer.train(resume_from_checkpoint="--resume" in sys.argv)
