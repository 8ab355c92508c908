"""The answer as a page of text and as a JSON document, without secrets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpc_kit.spec.secrets import MASK, is_random, is_secret_name, looks_secret, mask_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hpc_kit.runs.why.verdicts import Verdict

TRACEBACK_LINES = 30
"""Lines of the traceback on the page; the document has all."""

_ASSIGNMENT = re.compile(
    r"(?P<head>(?<![\w-])(?:(?P<name>[A-Za-z][\w-]*)(?:=|(?P<colon>: ?))[\"']?|--(?P<option>[a-z][\w-]*) ))"
    r"(?P<value>[^\s'\",;]{6,})"
)
_BEARER = re.compile(r"(?i)(\b(?:bearer|basic) )[\w.~+/=-]{12,}")
_QUERY = re.compile(
    r"(?i)([?&](?:(?:\w+_)?token|(?:\w+_)?key|sig(?:nature)?|auth|password|x-(?:amz|goog)-(?:signature|credential"
    r"|security-token))=)[^\s&#'\"]{6,}"
)
"""A parameter of a signed URL."""


def mask_secrets(text: str) -> str:
    """Return a text without tokens, passwords in URLs, and values of variables and options that name a secret."""
    text = _QUERY.sub(rf"\g<1>{MASK}", _BEARER.sub(rf"\g<1>{MASK}", mask_text(text)))
    return _ASSIGNMENT.sub(_mask_assignment, text)


def _mask_assignment(match: re.Match[str]) -> str:
    name = (match["name"] or match["option"]).replace("-", "_")
    # `missing key: layer1.0.conv1.weight_v2a` is a text.
    is_text = match["colon"] and not (is_secret_name(name) and is_random(match["value"]))
    return f"{match['head']}{MASK}" if looks_secret(name, match["value"]) and not is_text else match[0]


def verdict_json(verdict: Verdict) -> dict[str, object]:
    """Return the answer as a JSON object."""
    proofs = [{"file": proof.file, "line": proof.line, "text": mask_secrets(proof.text)} for proof in verdict.evidence]
    return {
        "cause": mask_secrets(verdict.cause),
        "class": verdict.class_,
        "rank": verdict.rank,
        "host": verdict.host,
        "evidence": proofs,
        "traceback": mask_secrets(verdict.traceback) if verdict.traceback else None,
        "fix": mask_secrets(verdict.fix),
        "confidence": verdict.confidence,
        "ranks": verdict.ranks,
    }


def verdict_rows(verdict: Verdict, show_path: Callable[[str], str] = str) -> Iterator[tuple[str, str]]:
    """Yield the labels and texts of the page.

    Args:
        verdict: The answer.
        show_path: Returns a path as the page shows it.
    """
    uncertain = " (likely)" if verdict.confidence == "likely" and not verdict.cause.startswith("unknown") else ""
    yield "cause", mask_secrets(verdict.cause) + uncertain
    for label, proof in zip(["proof", *[""] * len(verdict.evidence)], verdict.evidence, strict=False):
        yield label, f"{show_path(proof.file)}:{proof.line}  {mask_secrets(proof.text)}"
    for text in verdict.also:
        yield "also", mask_secrets(text)
    for text in verdict.earlier:
        yield "before", mask_secrets(text)
    if verdict.traceback:
        lines = mask_secrets(verdict.traceback).splitlines()
        shown = lines if len(lines) <= TRACEBACK_LINES else [lines[0], "  ...", *lines[2 - TRACEBACK_LINES :]]
        yield from (("trace" if number == 0 else "", line) for number, line in enumerate(shown))
    yield "fix", mask_secrets(verdict.fix)
