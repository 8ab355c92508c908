"""The explanations of all codes, for `hpc-kit check --explain` and for the pages in docs/rules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Protocol

from hpc_kit.check.external_checkers import CHECKERS
from hpc_kit.check.prerequisites import CHECKS
from hpc_kit.check.rules import RULES
from hpc_kit.check.rules.ignored import IGNORE_COMMENTS
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

A comment `# kit: ignore[KIT302] REASON` silences a rule, at the end of the line or in a line above. Several codes stand
between the brackets with commas.

```console
hpc-kit check --diff old.sbatch              # the mechanical edits, as a diff
hpc-kit check --fix old.sbatch               # the same, and write them
hpc-kit check --format github jobs/*.sbatch  # or sarif, json
```

The repository contains a hook for [pre-commit](https://pre-commit.com) and a GitHub Action:

```yaml
repos:                                  # .pre-commit-config.yaml
  - repo: https://github.com/OWNER/hpc_kit
    rev: main
    hooks: [{id: hpc-kit-check}]
```

```yaml
steps:                                  # .github/workflows/check.yml
  - uses: actions/checkout@v4
  - uses: OWNER/hpc_kit@main
    with: {files: "jobs/*.sbatch"}
```
"""

_GROUPS = (
    ("Directives, shell and environment", "KIT100", "KIT199"),
    ("Launch lines, counts and arrays", "KIT200", "KIT299"),
    ("Rendezvous, network and GPUs", "KIT300", "KIT399"),
    ("Exit status, signals and restarts", "KIT400", "KIT499"),
    ("Secrets, other jobs and containers", "KIT500", "KIT599"),
    ("The job and its files", "KIT600", "KIT699"),
    ("Other checkers", "KIT900", "SCnnnn"),
)


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


def example_of(code: str) -> tuple[str, str]:
    """Return a script with the fault of a rule, and one without any fault."""
    example = _examples()[code]
    return example["bad"], example["good"]


@cache
def _examples() -> dict[str, dict[str, str]]:
    import tomllib

    return tomllib.loads(files("hpc_kit.check.rules").joinpath("examples.toml").read_text(encoding="utf-8"))


def explained_codes() -> Sequence[ExplainedCode]:
    """Return all codes: comments that silence rules, rules, checks of prerequisites, and external checkers."""
    return (IGNORE_COMMENTS, *RULES, *CHECKS, *CHECKERS)


def explain(code: str) -> str:
    """Return the explanation of one code.

    Raises:
        SpecError: There is no such code. A number without its letters is suggested with them.
    """
    wanted = code.upper()
    if re.fullmatch(r"SC\d{4}", wanted):
        return f"{wanted}: a finding of shellcheck.\n\nDocumented: www.shellcheck.net/wiki/{wanted}\n"
    by_code = {topic.code: topic for topic in explained_codes()}
    if wanted not in by_code:
        # A number that no rule has is no misspelling of another number.
        complete = [f"KIT{number}" for number in re.findall(r"\d{3}", wanted) if not wanted.startswith("KIT")]
        starts = [each for each in by_code if re.match(r"KIT\d", wanted) and each.startswith(wanted)]
        known = [each for each in complete if each in by_code] or starts[:3]
        raise SpecError(
            f"no rule {code}",
            found=f"the rules are {min(by_code)} to {max(each for each in by_code if each[-1].isdigit())}, with gaps",
            remedy=f"did you mean {' or '.join(known)}?" if known else "hpc-kit docs rules lists all rules",
        )
    topic = by_code[wanted]
    title, _, rest = topic.text.partition("\n")
    rest = re.sub(r"\bdocs/([\w-]+\.md)", lambda match: page_of_docs(match[1]), rest.rstrip())
    return f"{topic.code} ({topic.severity}): {title.rstrip('.')}\n{rest}\n"


def rule_pages() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of docs/rules.md, which lists all codes, and of a page for each code."""
    lines = [_HEAD]
    for title, first, last in _GROUPS:
        topics = [topic for topic in explained_codes() if first <= topic.code <= last]
        lines += ["", f"## {title}", "", "| code | usually | finds |", "|---|---|---|"]
        lines += [f"| [{topic.code}](rules/{topic.code}.md) | {topic.severity} | {_title(topic)} |" for topic in topics]
    yield "rules.md", "\n".join(lines) + "\n"
    for topic in explained_codes():
        yield f"rules/{topic.code}.md", _page_of(topic)


def _page_of(topic: ExplainedCode) -> str:
    body = topic.text.partition("\n")[2].strip()
    # The page lies in a folder of its own, and its links start there.
    body = re.sub(r"\bdocs/([\w-]+\.md)", r"[\1](../\1)", body)
    paragraphs = re.sub(r"(?m)^(Fix|Documented): ", r"\n**\1:** ", body)
    lines = [
        f"# {topic.code}: {_title(topic)}",
        "",
        f"Usually: {topic.severity}. [All rules](../rules.md)",
        "",
        paragraphs,
    ]
    if topic.code in _examples():
        bad, good = example_of(topic.code)
        lines += ["", "## Example", "", "With the fault:", "", _block(bad), "", "Without it:", "", _block(good)]
    if topic.code.startswith("KIT") and topic.code < "KIT9":
        comment = f"# kit: ignore[{topic.code}] REASON"
        lines += ["", f"`{comment}` at the end of the line, or in a line above it, silences the rule there."]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def _block(script: str) -> str:
    # The example of line breaks contains some.
    text = script.replace("\r", "\\r").replace("\0", "\\0").rstrip("\n")
    return f"```bash\n{text}\n```" if text else "(an empty file)"


def _title(topic: ExplainedCode) -> str:
    return topic.text.partition("\n")[0].rstrip(".").replace("|", "\\|")
