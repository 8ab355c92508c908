"""Rules of secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpc_kit.check.rules.base import Fault, Rule, Subject, rule
from hpc_kit.spec.secrets import looks_secret

_SURE = re.compile(
    r"API_?KEY|ACCESS_KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|_PWD"
    r"|(?:API|ACCESS|AUTH|BOT|GH|GITHUB|GITLAB|HF|HUB|HUGGINGFACE|WANDB)_TOKEN",
    re.IGNORECASE,
)
"""What of a name leaves no doubt; a KEY or TOKEN may also be one to sort by, or one of a text."""

_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}|sk-[A-Za-z0-9_-]{30,}"
    r"|AKIA[A-Z0-9]{16}|xox[abpr]-[\w-]{20,}|(?<=wandb login )[0-9a-f]{40})"
)
_PLACEHOLDER = re.compile(
    r"your|xxx|[<>*]|\.\.\.|change_?me|todo|placeholder|insert|^(none|null|true|false)$", re.IGNORECASE
)


@rule("KIT501")
def written_secrets(subject: Subject) -> Iterator[Fault]:
    """A secret is written into the script.

    Slurm keeps a copy of every batch script, `scontrol write batch_script` and many sites' accounting show it, and the
    file itself tends to end in a repository. A secret on a command line can be read by everybody on the node (`ps`).

    Mend: export it in the shell that submits (sbatch takes the environment along), or read it in the job from a file
    of mode 0600: `export WANDB_API_KEY=$(<~/.wandb_key)`.
    Documented: sbatch(1), --export; scontrol(1), "write batch_script".
    """
    script = subject.script
    for each in script.assigned:
        value = each.value.text
        if each.literal and _is_secret(each.name, value):
            yield _fault(each.name, each.value.line, each.value.column, value)
    for number, line in enumerate(script.lines, start=1):
        for match in _SHAPES.finditer(line):
            if number not in script.comments or not line.lstrip().startswith("#"):
                yield _fault("this", number, match.start() + 1, match[0])


def _is_secret(name: str, value: str) -> bool:
    """Neither number, path, nor placeholder; and long and odd enough where the name alone tells little."""
    if not looks_secret(name) or re.search(r"[\s/$]", value) or _PLACEHOLDER.search(value):
        return False
    if _SURE.search(name):
        return len(value) >= 4
    return len(value) >= 16 and bool(re.search(r"\d", value)) and not value.isdigit()


def _fault(name: str, line: int, column: int, value: str) -> Fault:
    what = f"{name} is a secret, readable by others in the script"
    remedy = "export it in the shell that submits, or read it in the job from a file of mode 0600"
    return Fault(line, column, what, remedy, secret=value)


RULES: tuple[Rule, ...] = (written_secrets,)
