"""Rules for secrets: in the script, on command lines, and in the log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise

from hpc_kit.check.bash_syntax import Origin, program_of
from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.command_trace import DECLARING, TracedCommand
from hpc_kit.check.expansion import plain_path
from hpc_kit.check.launch_lines import LaunchLine
from hpc_kit.check.rules.finding import Place, Problem, rule
from hpc_kit.lazy_pattern import lazy_pattern
from hpc_kit.spec.secrets import SECRET_TEXTS, SHAPES, find_secrets, is_secret, is_secret_name

_TALKS = frozenset({"echo", "printf"})


@rule("KIT501", needs=(*SECRET_TEXTS, "netrc", "kaggle.json"))
def secrets_in_script(script: BatchScript) -> Iterator[Problem]:
    """The script contains a secret.

    Slurm keeps a copy of every batch script. `scontrol write batch_script` and the accounting of many sites show it,
    and the file often ends up in a repository. Every user of a node can read a secret on a command line (`ps`). With
    `set -x`, bash prints each line with the values of its variables: the secret is in the log (a warning). The same
    applies to `env`, which prints all variables, and to `echo "$HF_TOKEN"`.

    Fix: export it in the shell that submits (sbatch passes the environment on). Or read it in the job from a file with
    mode 0600: `export WANDB_API_KEY=$(<~/.wandb_key)`, before `set -x`.
    Documented: sbatch(1), --export; scontrol(1), "write batch_script"; bash(1), set -x.
    """
    for each in script.assignments:
        value = each.value.text
        # The form alone tells a token in `${NAME:-hf_...}`.
        is_default = each.value.has_default and SHAPES.search(value)
        if each.value.is_known and not is_default and is_secret(each.name, value):
            yield _fault(each.name, each.value, value)
    for command in script.commands:
        yield from _secrets_of_command(command)
    for option in script.directive_options:
        for item in option.value.split(",") if option.name == "export" else ():
            name, equals, value = item.partition("=")
            if equals and is_secret(name, value):
                yield _fault(name, option, value)
    # Only users with processes on the node see its command lines.
    for launch in script.training if not script.is_alone_on_nodes else ():
        yield from _secrets_shown(launch)
    yield from _secrets_of_lines(script)
    yield from _traced_secrets(script)
    yield from _printed_secrets(script)


_PRINTS_ALL = ({"env"}, {"printenv"}, {"export"}, {"export", "-p"}, {"declare"}, {"declare", "-x"}, {"set"})
_PRINTING = frozenset({"cat", "declare", "env", "export", "printenv", "set", "srun", *_TALKS})
"""Commands that may print a secret."""
_PASSES_ON = frozenset({"cat", "head", "sort", "tee"})
"""Programs behind a pipe that print what they read."""
_SECRET_FILE = lazy_pattern(
    r"(?i)(secrets?|tokens?|credentials?|(?<![a-z])(api_?)?keys?)(\.(env|sh))?\Z|\.netrc\Z|/kaggle\.json\Z"
)


def _printed_secrets(script: BatchScript) -> Iterator[Problem]:
    """Find the first command that prints a secret into the log: all variables, a value, or a file."""
    secrets: dict[str, int] = {}
    exported = {each.name for each in script.assignments if each.is_exported and not each.is_for_one_command}
    for step in script.commands:
        name = _printed_secret(step, secrets)
        if name is not None:
            what = f"{' '.join(step.texts[:1])} prints the value of {name} into the log, or into a file"
            remedy = "remove the line, or print single variables: env | grep ^SLURM_"
            yield Problem(step, what, remedy, (secrets.get(name),), certain=False)
            return
        # `HF_TOKEN=... python train.py` sets the variable for this program alone.
        own = step.written_assignments if step.name in DECLARING or not step.name else []
        names = [each.name for each in own] + (step.texts[1:] if step.name == "export" else [])
        for name in filter(is_secret_name, names):
            # The commands that print all variables print the exported ones.
            if name in exported or name in step.texts:
                secrets[name] = step.line
        if step.name == "unset":
            secrets = {name: line for name, line in secrets.items() if name not in step.texts}
        sourced = step.texts[1:2] if step.name in {"source", "."} and not step.around("subshell") else []
        if sourced and _SECRET_FILE.search(sourced[0]):
            secrets[step.texts[1]] = step.line


def _printed_secret(step: TracedCommand, secrets: Mapping[str, int]) -> str | None:
    """Return the secret that a command prints into the log, or into a file.

    Args:
        step: The command.
        secrets: The secrets that the script has set before, with their lines.
    """
    if step.name not in _PRINTING or not _shows_output(step):
        return None
    words = [text for text in step.texts[1:] if not text.startswith("-")] if step.name == "srun" else step.texts
    if set(words) in _PRINTS_ALL:
        return next(iter(secrets), None)
    if step.syntax.output is not None:
        return None  # a file with one secret is how a program gets it
    # A file `keys` is mostly a list of names if no shell reads it.
    shows = step.name == "cat" and len(words) == 2 and not re.search(r"(?i)(\A|/)keys?\Z", words[1])
    if shows and _SECRET_FILE.search(words[1]):
        return words[1]
    if step.name not in _TALKS:
        return None
    # The shell that submits passes secrets on, too. `${HF_TOKEN:+set}` and `${#HF_TOKEN}` show no value.
    variables = [part for part in step.syntax.parts if part.kind == "variable"]
    shown = [part.text for part in variables if plain_path(part.raw.strip('"')) == f"${part.text}"]
    return next((name for name in shown if name in secrets or is_secret_name(name)), None)


def _shows_output(step: TracedCommand) -> bool:
    """Tell whether the output of a command ends in the log or a file, at most through programs that only pass it on."""
    # The code of a task prints into a log as well, but mostly tests variables of its own.
    if any(place.role == "code" for place in step.position.outward()):
        return False
    if step.syntax.output is not None and step.syntax.output.raw == "/dev/null":
        return False
    return all(program_of(each) in _PASSES_ON for each in step.position.piped_to)


def _traced_secrets(script: BatchScript) -> Iterator[Problem]:
    """Find the first secret whose value `set -x` prints: where it is set, or where a command gets it."""
    traced = [step for step in script.batch_commands if "xtrace" in step.options]
    if not traced:
        return
    # A comment behind a command may tell what it reads. A comment above it may be about anything.
    code = "\n".join(line for line in script.lines if not line.lstrip().startswith("#"))
    upper = re.findall(r"\b[A-Z][A-Z0-9_]+\b", code)
    named = next((name for name in upper if is_secret_name(name) and name not in script.assigned), None)
    for step in traced:
        if named and step.name in {"source", "."} and re.search(r"(\A|/)[\w-]*\.env\Z", "".join(step.texts[1:2])):
            what = f"set -x prints the lines of {step.texts[1]} into the log, such as that of {named}"
            yield Problem(step, what, "write set +x before it", (step.options["xtrace"],), certain=False)
            return
        # An empty value hides no secret.
        names = [each.name for each in step.written_assignments if each.value.unquoted]
        names += [part.text for part in step.syntax.parts if part.kind == "variable" and not part.detail]
        name = next((name for name in names if is_secret_name(name)), None)
        if name is not None:
            what = f"set -x prints the value of {name} into the log"
            yield Problem(step, what, "write set +x before it", (step.options["xtrace"],), certain=False)
            return


_SECRET_OPTION = lazy_pattern(
    r"--(token|(\w+[-_])?((hf|hub|auth|access|api|github|wandb|user)[-_]token|api[-_]?key|password|secret))(=|\Z)"
)


def _secrets_shown(launch: LaunchLine) -> Iterator[Problem]:
    """Find secrets from a variable or a file among the arguments of the training, which `ps` shows."""
    words = launch.program.words
    for word, following in pairwise((*words, words[-1])):
        option = _SECRET_OPTION.match(word.text)
        value = word.text if "=" in word.text else following.text
        if option and re.search(r"[$`]", value):
            what = f"every user of the node can read the value of {option[0].rstrip('=')} while the program runs (ps)"
            remedy = "export it as a variable that the program reads, such as HF_TOKEN"
            yield Problem(word, what, remedy, (launch.line,), certain=False)


def _secrets_of_lines(script: BatchScript) -> Iterator[Problem]:
    """Find tokens of a known form, and lines of ~/.netrc."""
    if "password" not in script.text and not SHAPES.search(script.text):
        return
    for number, line in enumerate(script.lines, start=1):
        netrc = "password" in line and re.search(r"\bmachine\s+\S+\s+login\s+\S+\s+password\s+([^\s'\"$]{6,})", line)
        if netrc:
            yield _fault("this", Origin(number, netrc.start(1) + 1), netrc[1])
        for match in SHAPES.finditer(line):
            if number not in script.comments or not line.lstrip().startswith("#") or line.startswith("#SBATCH"):
                yield _fault("this", Origin(number, match.start() + 1), match[0])


def _secrets_of_command(command: TracedCommand) -> Iterator[Problem]:
    """Find secrets among the arguments of a command: options, URLs, headers, `curl -u NAME:PASSWORD`."""
    for name, index, value, certain in find_secrets(command.texts):
        # Variables and tokens of a known form follow below.
        is_other = not name.startswith(("-", "a URL", "a header", "the login")) or SHAPES.search(value)
        if certain and not is_other and "export" not in name and "$" not in value:
            yield _fault(f"the value of {name}" if name.startswith("-") else name, command.words[index], value)


def _fault(name: str, place: Place, value: str) -> Problem:
    what = f"{name} is a secret, and other users can read it in the script"
    remedy = "export it in the shell that submits, or read it in the job from a file with mode 0600"
    return Problem(place, what, remedy, secret=value)
