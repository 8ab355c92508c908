"""`srun --multi-prog`: a file that says which tasks run which program."""

from __future__ import annotations

import shlex

from pocketslurm.errors import CommandError


def read(path: str, ntasks: int | None) -> list[tuple[str, ...]]:
    """The command of each task; without a task count there are as many as the file names.

    Raises:
        Refused: The file is missing, malformed, or leaves a task without a command.
    """
    try:
        with open(path) as file:  # noqa: PTH123
            text = file.read()
    except OSError:
        raise CommandError(f"error: Could not open multi_prog config file {path}") from None
    commands: dict[int, tuple[str, ...]] = {}
    count = ntasks or 1
    lines = text.replace("\\\n", "  ").splitlines()
    for number, line in enumerate(lines, start=1):
        words = shlex.split(line, comments=False) if line.strip() and not line.lstrip().startswith("#") else []
        if not words:
            continue
        try:
            tasks = _tasks(words, count, commands, fixed=ntasks is not None)
        except CommandError as refused:
            raise CommandError(*refused.lines, f"error: Line {number} of configuration file {path} invalid") from None
        count = max([count, *(task + 1 for task in tasks)])
        for offset, task in enumerate(tasks):
            commands.setdefault(task, _filled(words[1:], task, offset))
    missing = [task for task in range(count) if task not in commands]
    if missing:
        raise CommandError(f"error: Configuration file {path} invalid, no record for task id {missing[0]}")
    return [commands[task] for task in range(count)]


def _tasks(words: list[str], count: int, taken: dict[int, tuple[str, ...]], *, fixed: bool) -> list[int]:
    """The tasks of one line."""
    if len(words) < 2:
        raise CommandError
    if words[0] == "*":
        return list(range(count))
    found: list[int] = []
    for item in words[0].split(","):
        low, dash, high = item.partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise CommandError(f"error: Invalid task range specification ({item})")
        first, last = int(low), int(high or low)
        if first > last:
            raise CommandError(f"error: Invalid task range, {first}-{last}")
        if fixed and last >= count:
            raise CommandError(f"error: Invalid task id, {last} >= ntasks")
        found += range(first, last + 1)
    twice = [task for task in found if task in taken]
    if twice:
        raise CommandError(f"error: Duplicate record for task {twice[0]}")
    return found


def _filled(words: list[str], task: int, offset: int) -> tuple[str, ...]:
    """`%t` is the task's number, `%o` its place among the tasks of its line."""
    program, *arguments = words
    return (program, *(word.replace("%t", str(task)).replace("%o", str(offset)) for word in arguments))
