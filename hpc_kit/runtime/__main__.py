"""`python -m hpc_kit.runtime PROGRAM.py ARGS`: any program as one rank among many, unchanged.

It finds torch's names (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, ...) set and rank 0's store open, so that
`init_process_group()` and the libraries above it work. A rank that fails says so before it takes anything down.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_kit.errors import HpcKitError, SpecError
from hpc_kit.run_files import LOGS_VARIABLE, RUN_VARIABLE, rank_log
from hpc_kit.runtime import first_failure, notice, on_demand, program, session, shutdown
from hpc_kit.runtime.launchers import inherited_variables
from hpc_kit.runtime.process_group import BACKEND, TIMEOUT, seconds_of
from hpc_kit.runtime.rendezvous.meeting import LAUNCHERS_WITH_STORE
from hpc_kit.runtime.report import REPORT
from hpc_kit.runtime.torch_environment import for_command, of_world

if TYPE_CHECKING:
    from types import TracebackType

    from hpc_kit.runtime.world import World

USAGE = (
    "python -m hpc_kit.runtime [--backend NAME] [--timeout SECONDS] [--report] PROGRAM.py ARGS ... | -m MODULE ARGS ..."
)

_OPTIONS = {"--backend": BACKEND, "--timeout": TIMEOUT}
_OUR_FILES = {__file__, program.__file__, "<frozen runpy>"}


def main(words: list[str]) -> None:
    """Run the program that `words` name; returns when it has ended well."""
    rank = None
    try:
        what = program.Program.read(_options(words))
        world = first_failure.resolved(os.environ)
        rank = world.rank
        _write_own_log(world)
        notice.quiet_torch()
        _run(what, world)
    except BaseException as error:  # noqa: BLE001 (whatever ends the program ends this process, with its code)
        if rank is not None:
            first_failure.claim(error, rank)
        if first_failure.exit_code(error):
            _tell(error if rank is None else first_failure.as_told(error, rank))
            first_failure.exit_now(first_failure.exit_code(error))


def _options(words: list[str]) -> list[str]:
    """Take the runtime's own options; the program's `distributed()` reads them from the environment."""
    while words and words[0].startswith("--"):
        option, given, value = words[0].partition("=")
        words = words[1:]
        if option == "--help":
            sys.stdout.write(f"{__doc__}\nusage: {USAGE}\n")
            raise SystemExit(0)
        if option == "--report" and not given:
            os.environ[REPORT] = "1"
            continue
        if option not in _OPTIONS or not (given or words):
            raise SpecError(f"unknown option {option}", remedy=USAGE)
        if not given:
            value, *words = words
        os.environ[_OPTIONS[option]] = value
    return words


def _run(what: program.Program, world: World) -> None:
    if what.kind == "command":
        notice.warn(world)
        os.environ.update(for_command(world, os.environ))
        what.replace_this_process()
    if world.launcher in LAUNCHERS_WITH_STORE or find_spec("torch") is None:
        notice.warn(world)
        exports = of_world(world, os.environ)
        met_at = {name: os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT") if os.environ.get(name)}
        taken = on_demand.of(exports, world)
        exports |= inherited_variables.mark(exports | met_at, os.environ)
        os.environ.update({name: value for name, value in exports.items() if name not in taken})
        with on_demand.offered(taken):
            _run_to_its_end(what)
    else:
        with session.met(world, seconds_of(None, os.environ), what.file, offers=True):
            _run_to_its_end(what)


def _run_to_its_end(what: program.Program) -> None:
    try:
        what.run()
    except SystemExit as stop:
        if first_failure.exit_code(stop):
            raise
    if "torch.distributed" in sys.modules:
        shutdown.destroy_process_group()
        shutdown.settle()  # the program may have destroyed it itself


def _write_own_log(world: World) -> None:
    """Under torchrun all ranks of a node share the agent's output: each gets its own log, as under srun."""
    folder = os.environ.get(LOGS_VARIABLE) or os.environ.get(RUN_VARIABLE)
    if world.launcher != "torchrun" or not folder:
        return
    log = os.open(Path(folder, rank_log(world.rank)), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(log, stream.fileno())
    os.close(log)


def _tell(error: BaseException) -> None:
    """Write what the interpreter would have written, from the program's own first line on."""
    if isinstance(error, HpcKitError):
        sys.stderr.write(f"hpc-kit: {error}\n")
    elif isinstance(error, SystemExit):
        if not isinstance(error.code, int):
            sys.stderr.write(f"{error.code}\n")
    else:
        trace = _of_program(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(trace), trace)


def _of_program(trace: TracebackType | None) -> TracebackType | None:
    start = trace
    while start is not None and start.tb_frame.f_code.co_filename in _OUR_FILES:
        start = start.tb_next
    return start or trace


if __name__ == "__main__":
    main(sys.argv[1:])
