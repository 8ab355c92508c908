"""A plain script: one process, saves when it gets SIGUSR1, and goes on from its file."""

import json
import os
import signal
import sys
import time

stop = False


def request_stop(*_):
    global stop
    stop = True


signal.signal(signal.SIGUSR1, request_stop)
first = json.load(open("state.json"))["step"] if os.path.exists("state.json") else 0
for step in range(first, 40):
    time.sleep(0.1)
    print(step, file=open("steps", "a"), flush=True)
    if stop:
        json.dump({"step": step + 1}, open("state.json", "w"))
        sys.exit(138)
