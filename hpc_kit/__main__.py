"""`hpc-kit`, also as `python -m hpc_kit`."""

from __future__ import annotations

import gc
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line."""
    # Modules are loaded and the process is gone: looking for garbage on the way and at the end is a fifth of the whole.
    gc.set_threshold(50_000)
    try:
        from hpc_kit.cli import main as command_line

        command_line()
    except SystemExit as end:
        from hpc_kit.cli.ending import leave

        leave(end.code)
        raise
    except KeyboardInterrupt:
        # Nobody was there yet to say anything of Ctrl-C, and nothing had begun.
        raise SystemExit(130) from None
    finally:
        gc.freeze()


if __name__ == "__main__":
    main()
