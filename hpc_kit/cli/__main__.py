"""`python -m hpc_kit.cli`: the same as `hpc-kit`, for where the script is not on PATH."""

from hpc_kit.cli import main

main()
