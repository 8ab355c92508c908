"""Detects secrets: by the names of variables and options, by the forms of tokens, and in URLs.

Job files with secrets are refused, `check` reports them in scripts, and records omit or mask them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

MASK = "***"

_WORDS = frozenset({
    "KEY", "KEYS", "TOKEN", "SECRET", "SECRETS", "PASSWORD", "PASSWORDS", "PASSWD", "PWD", "PASS", "PASSPHRASE", "PAT",
    "CREDENTIAL", "CREDENTIALS",
})  # fmt: skip
"""Words in names that may be those of secrets. A key may also sort, and a token may be one of a text."""

_ENDS = ("APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE")
_ADDRESSES = ("DATABASE_URL", "DB_URL", "CONNECTION_STRING", "DSN")
"""Ends of names of addresses, which often contain a password."""

_PLAIN_NAMES = frozenset({"PWD", "OLDPWD"})
_SWITCH = r"(?:NO|USE|ASK|SKIP)_|.*_(?:FILE|PATH|DIR|REQUIRED)$"
"""Names about a secret, which do not contain it: `--ask-password`, `HF_TOKEN_PATH`."""

_SURE = (
    r"(?:API_?KEYS?|ACCESS_KEY|SECRET_KEY|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE|_PWD"
    r"|(?:^|_)(?:PRIVATE|SIGNING|ENCRYPTION|DEPLOY|JWT|STORAGE|ACCOUNT|OPENAI|ANTHROPIC|AZURE|AWS|STRIPE)_?KEY"
    r"|(?:^|_)(?:DB|USER|SMTP|MYSQL|REDIS|POSTGRES|PG|MONGO|LDAP|MAIL|FTP|SSH|ADMIN|ROOT|DOCKER|REGISTRY|PROXY)_?PASS"
    r"|(?:^|_)(?:API|ACCESS|AUTH|BASIC|BEARER|BOT|DEPLOY|LOGIN|PRIVATE|REFRESH|SECRET|SESSION|GH|GITHUB|GITLAB|HF|HUB"
    r"|HUGGINGFACE|WANDB|AZURE|AWS|DATABRICKS|DISCORD|DOCKER|JIRA|KAGGLE|NPM|PROXY|PYPI|SLACK|TELEGRAM|VAULT)"
    r"_?(?:TOKEN|AUTH|PAT))_?\d*$"
)
"""Ends of names that are certainly secrets."""

_PLAIN_VALUE = (
    r"(?is)|[+-]?(?=\.?\d)[\d.]+(?:e[+-]?\d+)?|yes|no|on|off|true|false|none|null"
    r"|[$`].*|(?:~|\.{0,2}/).*|.*\.(?:py|txt|json|toml|ya?ml)"
)
"""Nothing, numbers, switches, shell expansions and files."""

_PLAIN_WORD = r"[A-Za-z]{0,20}\d{0,5}|\d{1,8}|\d{1,5}[A-Za-z]{1,3}|\d+x\d+"
"""A word of a name like train_images_256x256_v1."""

SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}|sk-(?=[\w-]{0,60}[A-Za-z0-9]{16})[\w-]{30,}"
    r"|AKIA[A-Z0-9]{16}|xox[abpr]-[\w-]{20,}|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}"
    r"|(?<=wandb login )[0-9a-f]{40})"
)
"""Tokens that their form gives away."""

_PLACEHOLDER = (
    r"(?i)your|xxx|[<>*]|\.\.\.|change_?me|todo|placeholder|insert|dummy|no-key|not-needed|unused|token-abc123"
    r"|^(none|null|true|false|empty|fake|local|ollama|vllm)$"
)
_URL_LOGIN = r"(?i)(?P<head>\b[a-z][a-z0-9+.-]{0,30}://[^\s/@:'\"]*:)(?P<secret>[^\s/@'\"$]+)(?=@)"
_ASSIGNED = r"(?i)(?P<head>(?<![\w-])(?P<name>[\w-]+)[\"']?\s*[=:]\s*[\"'])(?P<secret>[^\"'\s${}]{8,})(?=[\"'])"


def looks_secret(name: str, value: str | None = None) -> bool:
    """Return whether a variable probably contains a secret; without a value, whether its name may be that of one."""
    upper = name.upper()
    if value is not None:
        if _find_url_password(value) or SHAPES.search(value):
            return True
        if upper.endswith(_ADDRESSES):
            # The address of a local file, such as sqlite:///data.db, contains no password.
            return re.search(r"@|password|pwd|key=", value, re.IGNORECASE) is not None
        value = value.strip("\"'")
        if re.fullmatch(_PLAIN_VALUE, value):
            return False
    if upper in _PLAIN_NAMES or re.match(_SWITCH, upper):
        return False
    if re.search(_SURE, upper):
        return True
    words = upper.split("_")
    if _WORDS.isdisjoint(words) and words[-1] != "AUTH" and not any(word.endswith(_ENDS) for word in words):
        return value is None and upper.endswith(_ADDRESSES)
    return value is None or (len(value) >= 16 and _is_random(value))


def may_be_secret(name: str, value: str) -> bool:
    """Return whether a variable is no certain secret only because its value is short, such as `MY_TOKEN=hunter2`."""
    value = value.strip("\"'")
    is_plain = "://" in value or re.fullmatch(_PLAIN_VALUE, value) is not None
    return looks_secret(name) and not is_plain and _is_random(value) and not looks_secret(name, value)


def _find_url_password(text: str) -> re.Match[str] | None:
    # Most texts are no URLs, and the pattern is only compiled for one that may be.
    return re.search(_URL_LOGIN, text) if "://" in text else None


def _is_random(value: str) -> bool:
    """Return whether a value contains digits, but is neither a number nor words joined by '_' or '-'."""
    words = re.split(r"[_.:-]", value)
    joined = len(words) > 1 and all(re.fullmatch(_PLAIN_WORD, word) for word in words)
    return re.search(r"\d", value) is not None and not value.isdigit() and not joined


def is_secret(name: str, value: str) -> bool:
    """Return whether a value in a script looks like a secret: no path or placeholder, and 4 characters or more."""
    if len(value) < 4 or re.search(r"[\s$]", value) or re.search(_PLACEHOLDER, value):
        return False
    # Base64 contains slashes, and so do paths. A path seldom has digits, capitals and small letters together.
    if "/" in value:
        random = re.fullmatch(r"(?=.*\d)(?=.*[a-z])(?=.*[A-Z])[A-Za-z0-9+][A-Za-z0-9+/]{31,}={0,2}", value)
        return random is not None and re.search(_SURE, name.upper()) is not None
    return looks_secret(name, value)


@lru_cache(maxsize=1024)
def is_secret_name(name: str) -> bool:
    """Return whether the name of a variable is certainly that of a secret."""
    return re.search(_SURE, name.upper()) is not None and re.match(_SWITCH, name.upper()) is None


def secret_arguments(words: Iterable[str]) -> Iterator[str]:
    """Yield the names of secrets in a command: `--api-key` of `--api-key=X`, `a URL` with a password, `a token`."""
    for name, _ in secret_words(list(words)):
        yield name


def mask_arguments(words: Iterable[str]) -> list[str]:
    """Return a command line without secrets: `--password ***`."""
    masked = list(words)
    for _, index in secret_words(masked):
        name, equals, _ = masked[index].partition("=")
        masked[index] = f"{name}={MASK}" if equals else MASK
    return [mask_text(word) for word in masked]


def secret_words(words: list[str]) -> Iterator[tuple[str, int]]:
    """Yield the name of each secret option and the index of the word with its value; `a URL`, `a token`."""
    for index, (word, following) in enumerate(zip(words, [*words[1:], "-"], strict=False)):
        name, equals, value = word.partition("=")
        if _find_url_password(word):
            yield "a URL", index
        elif SHAPES.search(word):
            yield "a token", index
        elif equals and _is_secret_option(name, value):
            yield name, index
        elif word.startswith("-") and not following.startswith("-") and _is_secret_option(word, following):
            yield word, index + 1


def _is_secret_option(option: str, value: str) -> bool:
    # `--set env.TOKEN=X` names a variable behind a dot.
    name = option.lstrip("-").rpartition(".")[2].replace("-", "_")
    # A URL is a secret only with a password, whatever the option.
    if not re.fullmatch(r"\w+", name) or re.match(r"[$/~.]|$|.*://", value) or re.search(_PLACEHOLDER, value):
        return False
    return looks_secret(name, value)


def mask_text(text: str) -> str:
    """Return a text without tokens of a known form, passwords in URLs, and random values of sure names in quotes."""
    text = re.sub(_URL_LOGIN, lambda match: f"{match['head']}{MASK}", SHAPES.sub(MASK, text))
    return re.sub(_ASSIGNED, _mask_assigned, text)


def _mask_assigned(match: re.Match[str]) -> str:
    name = match["name"].upper().replace("-", "_")
    # Code and configurations contain many names with `token`: a mask there would change the program of the record.
    secret = re.search(_SURE, name) and not re.match(_SWITCH, name) and _is_random(match["secret"])
    return f"{match['head']}{MASK}" if secret else match[0]
