"""A script with accelerate and without a signal handler: it saves every ten steps, and resumes with --resume."""

import os
import sys
import time

import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
first = 0
if "--resume" in sys.argv:
    first = max(int(name) for name in os.listdir("saved") if name.isdigit())
    accelerator.load_state(f"saved/{first}")
for step in range(first, 40):
    time.sleep(float(os.environ.get("SECONDS_A_STEP", "0.1")))
    optimizer.zero_grad()
    accelerator.backward(model(torch.ones(2, 4)).pow(2).mean())
    optimizer.step()
    if accelerator.is_main_process:
        print(step, file=open("steps", "a"), flush=True)
    if (step + 1) % 10 == 0:
        accelerator.save_state(f"saved/{step + 1}")
