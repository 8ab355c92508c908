"""`hpc-kit`, also as `python -m hpc_kit`."""

from __future__ import annotations

import gc
import os
import signal
import sys


def _open_closed_streams() -> None:
    """Open /dev/null for each standard stream that is closed (`hpc-kit status >&-`).

    Without it, the next file that the process opens would get the number of the stream, and the output of programs.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)  # noqa: FBT003 - the function has no keywords
    os.close(descriptor)
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


def main() -> None:
    """Run the command line, which ends the process."""
    _open_closed_streams()
    # Most commands load modules and end. Searching for garbage meanwhile and at the end takes a sixth of their time.
    gc.set_threshold(50_000)
    # While the modules are imported, and after the last line of output, Ctrl-C ends the process without a traceback.
    # A process that ignores Ctrl-C (started in the background, or by nohup) still does.
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from hpc_kit.cli import main as command_line

    try:
        if is_default:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        command_line()
    finally:
        if is_default:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        gc.freeze()


if __name__ == "__main__":
    main()
