"""Detects secrets: by the names of variables and options, by the forms of tokens, and in URLs.

Job files with secrets are refused, `check` reports them in scripts, and records omit or mask them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

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
_SWITCH = (
    r"(?:NO|USE|ASK|SKIP)_"
    r"|.*_(?:FILE|PATH|DIR|REQUIRED|BINDINGS?|COLUMN|COUNT|FIELD|FN|ID|IDS|LEN|LENGTH|LIMIT|MAP|NAME|SIZE|TYPE|URL)$"
)
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
    r"|A[KS]IA[A-Z0-9]{16}|AIza[\w-]{35}|xox[abeprs]-[\w-]{20,}|npm_[A-Za-z0-9]{36}|pypi-AgE[\w-]{50,}|dckr_pat_[\w-]{20,}"
    r"|nvapi-[\w-]{40,}|gsk_[A-Za-z0-9]{40,}|[rs]k_live_[A-Za-z0-9]{20,}|hvs\.[\w-]{24,}|SG\.[\w-]{16,}\.[\w-]{16,}"
    r"|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}|(?<=wandb login )[0-9a-f]{40})"
)
"""Tokens that their form gives away."""

_SHORT_FORMS = (
    r"(?:hf_|gh[pousr]_|github_pat_|glpat-|sk-|A[KS]IA|AIza|xox[abeprs]-|npm_|pypi-|dckr_pat_|nvapi-|gsk_|[rs]k_live_|hvs\.)"
    r"(?=[\w-]*\d)[\w-]{6,}"
)
"""Tokens that may be too short for `SHAPES`: the name of their variable decides."""

_PRIVATE_KEY = r"(?s)(?P<head>-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?=-----END|\Z)"
_HEADER = (
    r"(?i)(?P<head>\b(?:(?:proxy-)?authorization:\s*(?:basic|bearer|token)|(?:x-)?(?:api-key|auth-token)\s*:|private-token:)\s+)"
    r"(?P<secret>[\w.~+/=-]{6,})"
)
"""A header of HTTP with a token or a password."""

_ALONE = frozenset({"AUTH", "CREDENTIAL", "CREDENTIALS", "PAT", "TOKEN"})
"""Names that may be those of secrets, whatever their value."""

_METHODS = (
    r"(?i)none|anonymous|any|auto|basic|bearer|cert|default|digest|kerberos|ldap|local|munge|oauth2?|password|pat"
    r"|publickey|sasl|scram|ssh|token"
)
"""Values of `--auth` that name a method."""

_LONG = 32
"""Characters of a random value, in a text, that is a secret also behind an unsure name such as `key`."""

_PLACEHOLDER = (
    r"(?i)your|xxx|[<>*]|\.\.\.|change_?me|todo|placeholder|insert|dummy|no-key|not-needed|unused|token-abc123"
    r"|^(none|null|true|false|empty|fake|local|ollama|vllm)$"
)
_URL_LOGIN = r"(?i)(?P<head>\b[a-z][a-z0-9+.-]{0,30}://[^\s/@:'\"]*:)(?P<secret>[^\s/@'\"$]+)(?=@)"
_VARIABLE = r"(?m)(?P<head>^[-+ ]?(?:export )?(?P<name>[A-Z][A-Z0-9_]*)=)(?P<secret>[^\s\"'${}()]{6,})$"
"""A line `NAME=VALUE` of a file of variables, such as .env."""
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
        if _starts_as_token(value) and not _WORDS.isdisjoint(upper.split("_")):
            return True
    if upper in _PLAIN_NAMES or re.match(_SWITCH, upper):
        return False
    if re.search(_SURE, upper):
        return True
    words = upper.split("_")
    if _WORDS.isdisjoint(words) and words[-1] != "AUTH" and not any(word.endswith(_ENDS) for word in words):
        return value is None and upper.endswith(_ADDRESSES)
    return value is None or (len(value) >= 16 and _is_random(value))


def may_be_secret(name: str, value: str) -> bool:
    """Return whether a variable is no certain secret only because of its value, such as `MY_TOKEN=hunter2`."""
    value = value.strip("\"'")
    if "://" in value or re.fullmatch(_PLAIN_VALUE, value) or not looks_secret(name) or looks_secret(name, value):
        return False
    upper = name.upper()
    if upper in _ALONE:
        return re.fullmatch(_METHODS, value) is None
    # `localhost:5432` needs no password.
    return _is_random(value) if not upper.endswith(_ADDRESSES) else re.fullmatch(r"[\w.-]+:\d+", value) is None


def _find_url_password(text: str) -> re.Match[str] | None:
    # Most texts are no URLs, and the pattern is only compiled for one that may be.
    return re.search(_URL_LOGIN, text) if "://" in text else None


def _starts_as_token(value: str) -> bool:
    # `hf_llama2_7b` is a name.
    return re.fullmatch(_SHORT_FORMS, value) is not None and (value.startswith("sk-") or _is_random(value))


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


class FoundSecret(NamedTuple):
    """A secret among the words of a command."""

    name: str
    """Name of its option or variable; `a URL`, `a header` or `a token`."""
    place: int
    """Index of the word that contains the value."""
    value: str
    certain: bool = True
    """False if only the name is that of a secret."""


def secret_arguments(words: Iterable[str]) -> Iterator[str]:
    """Yield the names of certain secrets in a command: `--api-key` of `--api-key=X`, `a URL` with a password."""
    yield from (found.name for found in _find_in_code(list(words)) if found.certain)


def doubtful_arguments(words: Iterable[str]) -> Iterator[str]:
    """Yield the names of the arguments that may be secrets: `--auth` of `--auth X`."""
    yield from (found.name for found in _find_in_code(list(words)) if not found.certain)


def mask_arguments(words: Iterable[str]) -> list[str]:
    """Return a command line without secrets, and without what may be one: `--password ***`."""
    masked = list(words)
    for found in _find_in_code(masked):
        word = masked[found.place]
        if word == found.value:
            masked[found.place] = MASK
        elif word == f"{found.name}={found.value}":
            masked[found.place] = f"{found.name}={MASK}"
        elif any(character.isspace() for character in word):
            assigned = rf"({re.escape(found.name)}[=\s]\s*['\"]?){re.escape(found.value)}"
            masked[found.place], count = re.subn(assigned, lambda match: f"{match[1]}{MASK}", word)
            if not count and MASK not in mask_text(word):
                masked[found.place] = MASK
    return [mask_text(word) for word in masked]


def _find_in_code(words: Sequence[str]) -> Iterator[FoundSecret]:
    """Yield the secrets of a command, and those in its shell code, such as `bash -c 'TOKEN=X python train.py'`."""
    yield from find_secrets(words)
    for index, word in enumerate(words):
        try:
            inner = shlex.split(word.replace(";", " ; ")) if any(map(str.isspace, word)) else []
        except ValueError:  # no shell code
            inner = word.split()
        if len(inner) > 1:
            yield from (found._replace(place=index) for found in _find_in_code(inner))


def find_secrets(words: Sequence[str]) -> Iterator[FoundSecret]:
    """Yield the secrets in the options and assignments of a command."""
    for index, (word, following) in enumerate(zip(words, [*words[1:], "-"], strict=False)):
        name, equals, value = word.partition("=")
        if login := _find_url_password(word):
            yield FoundSecret("a URL", index, login["secret"])
        elif token := SHAPES.search(word):
            yield FoundSecret("a token", index, token[0])
        elif header := re.search(_HEADER, word):
            yield FoundSecret("a header", index, header["secret"])
        elif index and re.fullmatch(r"-[a-z]*c", words[index - 1]):
            continue  # shell code, which may begin with an assignment
        elif equals and (certain := _judge_option(name, value)) is not None:
            yield FoundSecret(name, index, value, certain)
        elif word.startswith("-") and not equals and not following.startswith("-"):
            certain = _judge_option(word, following)
            if certain is not None:
                yield FoundSecret(word, index + 1, following, certain)


def _judge_option(option: str, value: str) -> bool | None:
    """Return whether the value of an option is certainly a secret; None if it is none."""
    # `--set env.TOKEN=X` names a variable behind a dot.
    name = option.lstrip("-").rpartition(".")[2].replace("-", "_")
    # A URL is a secret only with a password, whatever the option.
    if not re.fullmatch(r"\w+", name) or re.match(r"[$/~.]|$|.*://", value) or re.search(_PLACEHOLDER, value):
        return None
    if looks_secret(name, value):
        return True
    # `--key loss1` is often the name of a column, and `--pad-token x01` part of a vocabulary.
    is_plain = not name.isupper() and name.upper().endswith(("KEY", "KEYS", "_TOKEN"))
    return False if may_be_secret(name, value) and not is_plain else None


def mask_text(text: str) -> str:
    """Return a text without tokens of a known form, passwords in URLs, and random values of sure names in quotes."""
    text = SHAPES.sub(MASK, text)
    for pattern in (_URL_LOGIN, _PRIVATE_KEY, _HEADER):
        text = re.sub(pattern, lambda match: f"{match['head']}{MASK}", text)
    for pattern in (_ASSIGNED, _VARIABLE):
        text = re.sub(pattern, _mask_assigned, text)
    return text


def _mask_assigned(match: re.Match[str]) -> str:
    name = match["name"].upper().replace("-", "_")
    # Code and configurations contain many names with `token`: a mask there would change the program of the record.
    value = match["secret"]
    is_sure = re.search(_SURE, name) is not None or len(value) >= _LONG
    is_secret = looks_secret(name, value) and ((is_sure and _is_random(value)) or _starts_as_token(value))
    return f"{match['head']}{MASK}" if is_secret else match[0]
