"""`hpc-kit`, also as `python -m hpc_kit`."""

from __future__ import annotations

from typing import NoReturn


def main() -> NoReturn:
    """Run the command line."""
    try:
        from hpc_kit.cli import main as command_line

        command_line()
    except KeyboardInterrupt:
        # Ctrl-C while the modules were still being imported: no command has started yet.
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
