"""Common parts of the bench commands: options, progress, result files, and the end by Ctrl-C."""

from __future__ import annotations

import datetime as dt
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_kit.cli.output import INTERRUPTED, short_path
from hpc_kit.cli.terminal import echo
from hpc_kit.errors import JobFailed, RecordError, SpecError, explain_file_errors
from hpc_kit.run_files import RUN_VARIABLE, write_whole

if TYPE_CHECKING:
    from hpc_kit.bench.recorder import Recorder
    from hpc_kit.bench.results import BenchResult, Column


def parse_names(_context: object, parameter: click.Parameter, text: str) -> tuple[str, ...]:
    """Parse names separated by commas.

    Raises:
        click.BadParameter: The value contains no name, and the default contains one.
    """
    names = tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
    if not names and parameter.default:
        raise click.BadParameter("the value contains no name")
    return names


def parse_numbers(context: object, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """Parse positive numbers separated by commas.

    Raises:
        click.BadParameter: One of them is not a positive number.
    """
    words = parse_names(context, parameter, text)
    if wrong := [word for word in words if not (word.isascii() and word.isdigit() and int(word))]:
        raise click.BadParameter(f"{wrong[0]!r} is not a positive number; write 1,3,5")
    return tuple(map(int, words))


def run_bench(
    bench: str,
    title: str,
    columns: Mapping[str, Column],
    parameters: Mapping[str, object],
    measure: Callable[[Recorder], None],
    *,
    out: Path | None,
    as_json: bool,
) -> int:
    """Run a benchmark, print its progress to stderr, and write its results. In a step, only rank 0 writes.

    `measure` adds rows. After Ctrl-C or a failed rank, the rows so far are printed and written. Return the exit status:
    0, or 130 after Ctrl-C.

    Raises:
        RecordError: The folder is not writable.
        JobFailed: A rank failed, or nothing could be measured.
    """
    from hpc_kit.bench.recorder import FileRecorder
    from hpc_kit.runtime.launchers import resolve

    prints = resolve(os.environ).is_main
    folder = _output_folder(bench, out, as_json=as_json) if prints else None
    recorder = FileRecorder(
        bench,
        title=title,
        columns=columns,
        parameters=parameters,
        command=["hpc-kit", *sys.argv[1:]],
        save=lambda document: _write_result(document, folder),
        print_progress=(lambda text: echo(f"bench   {text}", err=True)) if prints else lambda _: None,
    )
    interrupted = False
    try:
        measure(recorder)
    except KeyboardInterrupt:
        interrupted = True
    except (JobFailed, RecordError) as error:
        if isinstance(error, RecordError):
            folder = None  # The files are no longer writable, but the rows can still be printed.
        if prints and recorder.rows:
            _print_result(recorder.close(interrupted=True), folder, as_json=as_json)
        raise
    if prints:
        _print_result(recorder.close(interrupted=interrupted), folder, as_json=as_json)
        if not interrupted and not recorder.rows:
            raise JobFailed("nothing could be measured", remedy="read the notes above")
    return INTERRUPTED if interrupted else 0


def _output_folder(bench: str, out: Path | None, *, as_json: bool) -> Path | None:
    # `report` finds the results of a job in the folder of its run.
    if out is None and RUN_VARIABLE in os.environ:
        out = Path(os.environ[RUN_VARIABLE])
    # The document on stdout is complete, so files are only written on request.
    if out is None and as_json:
        return None
    if out is None:
        from hpc_kit.spec.default_cluster import default_cluster_name
        from hpc_kit.spec.load import load_cluster

        runs = load_cluster(default_cluster_name(Path.cwd(), os.environ), root=Path.cwd()).runs
        out = Path(runs, f"bench_{bench}", f"{dt.datetime.now():%Y%m%d-%H%M%S}")  # noqa: DTZ005 - the reader's own clock
    with explain_file_errors(RecordError, f"cannot make {out}", "write to another folder: --out FOLDER"):
        out.mkdir(parents=True, exist_ok=True)
    return out


def _write_result(document: BenchResult, folder: Path | None) -> None:
    from hpc_kit.bench.results import encode_result

    if folder is not None:
        _write_result_file(folder / f"bench_{document.bench}.json", encode_result(document))


def _write_result_file(path: Path, data: bytes) -> None:
    with explain_file_errors(RecordError, f"cannot write {path}", "free some space there"):
        write_whole(path, data, 0o644)


def _print_result(document: BenchResult, folder: Path | None, *, as_json: bool) -> None:
    from hpc_kit.bench import plots
    from hpc_kit.bench.markdown_report import render_result
    from hpc_kit.bench.results import encode_result

    if folder is not None:
        report = folder / f"bench_{document.bench}.md"
        # Write the report before the plots, which take seconds: a job at its time limit may be killed.
        _write_result_file(report, render_result(document).encode())
        pictures = []
        try:
            pictures = plots.draw_files(document, folder)
        except SpecError as error:  # there is no matplotlib
            echo(f"bench   no plots: {error.what}: {error.found}; {error.remedy}", err=True)
        text = render_result(document, [path.name for path in pictures if path.suffix == ".png"])
        _write_result_file(report, text.encode())
        files = f"bench_{document.bench}.{{json,md}}" + (f", {len(pictures)} pictures" if pictures else "")
        echo(f"bench   {short_path(folder)}/{files}", err=True)
    echo(encode_result(document).decode() if as_json else render_result(document), nl=False)
