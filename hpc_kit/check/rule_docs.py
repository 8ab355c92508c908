"""The explanations of all codes, for `hpc-kit check --explain` and for docs/rules.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Protocol

from hpc_kit.check.external_checkers import CHECKERS
from hpc_kit.check.preflight import CHECKS
from hpc_kit.check.rules import RULES
from hpc_kit.errors import SpecError
from hpc_kit.errors import page as page_of_docs

_HEAD = """\
# Rules of `hpc-kit check`

`hpc-kit check` finds faults in a job or in any sbatch script before it is queued. The script is read, not run:

```console
hpc-kit check ddp_4node          # the script of a job
hpc-kit check old.sbatch         # any sbatch script; - reads standard input
hpc-kit check --explain KIT203   # the text of one rule
```

| exit status | meaning |
|---|---|
| 0 | no fault, or warnings only |
| 1 | an error; with `--strict`, also a warning |
| 2 | wrong use |

An **error** certainly makes the job fail, waste resources or give wrong results. A **warning** depends on the site, on
the release of Slurm, or on what you intended. This page is generated from the rules (`make golden`).

## All rules
"""


class ExplainedCode(Protocol):
    """Something with a code and an explanation."""

    @property
    def code(self) -> str:
        """The code."""
        ...

    @property
    def severity(self) -> str:
        """The usual severity."""
        ...

    @property
    def text(self) -> str:
        """Title, effect, reason, fix, documentation."""
        ...


def explained_codes() -> Sequence[ExplainedCode]:
    """Return all codes: rules, preflight checks, and external checkers."""
    return (*RULES, *CHECKS, *CHECKERS)


def explain(code: str) -> str:
    """Return the explanation of one code.

    Raises:
        SpecError: There is no such code. Similar codes are suggested.
    """
    wanted = code.upper()
    if re.fullmatch(r"SC\d{4}", wanted):
        return f"{wanted}: a finding of shellcheck.\n\nDocumented: www.shellcheck.net/wiki/{wanted}\n"
    by_code = {topic.code: topic for topic in explained_codes()}
    if wanted not in by_code:
        near = get_close_matches(wanted, by_code, n=3)
        raise SpecError(f"no rule {code}", remedy=" or ".join(near) or f"{page_of_docs('rules.md')} lists them")
    topic = by_code[wanted]
    title, _, rest = topic.text.partition("\n")
    rest = re.sub(r"\bdocs/([\w-]+\.md)", lambda match: page_of_docs(match[1]), rest.rstrip())
    return f"{topic.code} ({topic.severity}): {title.rstrip('.')}\n{rest}\n"


def rules_page() -> str:
    """Return the text of docs/rules.md."""
    lines = [_HEAD, "| code | usually | finds |", "|---|---|---|"]
    lines += [
        f"| [{topic.code}](#{topic.code.lower()}) | {topic.severity} | {_title(topic)} |" for topic in explained_codes()
    ]
    for topic in explained_codes():
        paragraphs = re.sub(r"(?m)^(Fix|Documented): ", r"\n**\1:** ", topic.text.partition("\n")[2].strip())
        lines += ["", f"## {topic.code}", "", f"{_title(topic)}.", "", re.sub(r"\n{3,}", "\n\n", paragraphs)]
    return "\n".join(lines) + "\n"


def _title(topic: ExplainedCode) -> str:
    return topic.text.partition("\n")[0].rstrip(".").replace("|", "\\|")
