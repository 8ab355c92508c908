"""Components of a heterogeneous job on a command line, `a : b`, and the options that they inherit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpc_kit.slurm.getopt import ParsedOptions, parse_options

BETWEEN = ":"

INHERITED = frozenset(
    {
        "account", "acctg-freq", "begin", "chdir", "cluster-constraint", "clusters", "comment", "deadline",
        "delay-boot", "dependency", "distribution", "epilog", "error", "exclude", "export", "export-file",
        "get-user-env", "gid", "hold", "ignore-pbs", "immediate", "input", "job-name", "jobid", "kill-on-bad-exit",
        "label", "mcs-label", "mem", "msg-timeout", "nice", "no-allocate", "no-kill", "no-requeue", "open-mode",
        "output", "parsable", "priority", "profile", "prolog", "propagate", "pty", "qos", "quiet",
        "quit-on-interrupt", "reboot", "requeue", "reservation", "signal", "slurmd-debug", "task-epilog",
        "task-prolog", "test-only", "time", "time-min", "uid", "unbuffered", "verbose", "wait", "wait-all-nodes",
        "wckey",
    }
)  # fmt: skip
"""Options that a component inherits from the component before it.

Source: "heterogeneous_jobs" of Slurm 22.05.
"""


_OPPOSITES = {"requeue": "no-requeue", "no-requeue": "requeue"}


def effective_options(*groups: ParsedOptions) -> dict[str, str]:
    """Merge options by long name. The last value counts, and the value of a flag is empty."""
    found: dict[str, str] = {}
    for options in groups:
        for each in options.given:
            found[each.option.name] = each.value or ""
            # Of --requeue and --no-requeue the last one counts.
            found.pop(_OPPOSITES.get(each.option.name, ""), None)
    return found


def split_components(argv: Sequence[str], command: str) -> tuple[list[ParsedOptions], list[str]]:
    """Read the components of a command line of sbatch or salloc, and return their options and the remaining words."""
    given, words = parse_options(argv, command)
    found = [given]
    while words[:1] == [BETWEEN]:
        given, words = parse_options(words[1:], command)
        found.append(given)
    return found, words


def component_options(
    blocks: Sequence[ParsedOptions], variables: ParsedOptions, given: Sequence[ParsedOptions]
) -> list[dict[str, str]]:
    """Merge the options of each component, lowest priority first.

    `blocks` are directives. The last component of `given`, the command line, also applies to further blocks.
    """
    found: list[dict[str, str]] = []
    for number in range(max(len(blocks), len(given))):
        block = blocks[number] if number < len(blocks) else ParsedOptions(())
        own = effective_options(block, variables, given[min(number, len(given) - 1)])
        found.append(inherited_options(found[-1]) | own if found else own)
    return found


def inherited_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a component that the next component inherits."""
    return {name: value for name, value in options.items() if name in INHERITED}
