"""`hpc-kit`, also as `python -m hpc_kit`."""

from __future__ import annotations

import gc
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line."""
    # Most commands load modules and end. Searching for garbage meanwhile and at the end takes a sixth of their time.
    gc.set_threshold(50_000)
    try:
        from hpc_kit.cli import main as command_line

        command_line()
    except KeyboardInterrupt:
        # Ctrl-C while the modules were still being imported: no command has started yet.
        raise SystemExit(130) from None
    finally:
        gc.freeze()


if __name__ == "__main__":
    main()
