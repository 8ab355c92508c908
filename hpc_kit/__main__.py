"""`hpc-kit`, also as `python -m hpc_kit`."""

from __future__ import annotations

import gc
import signal


def main() -> None:
    """Run the command line, which ends the process."""
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
