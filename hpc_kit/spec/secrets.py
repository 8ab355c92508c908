"""Detects secrets: by the names of variables and options, by the forms of tokens, and in URLs.

Job files with secrets are refused, `check` reports them in scripts, and texts for others are masked.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from hpc_kit.lazy_pattern import lazy_pattern

MASK = "***"

_NAMES = (
    r"(?:(?:^|_)(?:KEYS?|PWD|PASS|PAT|CREDENTIALS?)|APIKEY|TOKEN|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE)(?:_|$)"
    r"|(?:^|_)AUTH$"
)
"""Names that may be those of secrets. A key may also sort, and a token may be one of a text."""

_SURE = (
    r"(?:API_?KEYS?|ACCESS_KEY|SECRET_KEY|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE|_PWD"
    r"|(?:^|_)(?:PRIVATE|SIGNING|ENCRYPTION|DEPLOY|JWT|STORAGE|ACCOUNT|OPENAI|ANTHROPIC|AZURE|AWS|STRIPE)_?KEY"
    r"|(?:^|_)(?:DB|USER|SMTP|MYSQL|REDIS|POSTGRES|PG|MONGO|LDAP|MAIL|FTP|SSH|ADMIN|ROOT|DOCKER|REGISTRY|PROXY)_?PASS"
    r"|(?:^|_)(?:API|ACCESS|AUTH|BASIC|BEARER|BOT|DEPLOY|LOGIN|PRIVATE|REFRESH|SECRET|SESSION|GH|GITHUB|GITLAB|HF|HUB"
    r"|HUGGINGFACE|WANDB|AZURE|AWS|DATABRICKS|DISCORD|DOCKER|JIRA|KAGGLE|NPM|PROXY|PYPI|SLACK|TELEGRAM|VAULT)"
    r"_?(?:TOKEN|AUTH|PAT))_?\d*$"
)
"""Ends of names that are certainly secrets."""

_PLAIN_NAME = (
    r"(?:OLD)?PWD$|(?:NO|USE|ASK|SKIP)_"
    r"|.*_(?:FILE|PATH|DIR|REQUIRED|BINDINGS?|COLUMN|COUNT|FIELD|FN|FRAMES?|IDS?|LEN|LENGTH|LIMIT|MAP|NAME|SIZE|TYPE|URL)$"
    r"|(?:.*_)?(?:PUBLIC|SORT|CACHE)_KEYS?$"
    r"|(?:.*_)?(?:PAD|EOS|BOS|UNK|SEP|CLS|MASK|SPECIAL|START|STOP|END|NEXT|MAX|MIN|NUM)_TOKEN$"
)
"""Names about a secret, which do not contain it: `--ask-password`, `HF_TOKEN_PATH`; keys and tokens of other kinds."""

_ADDRESSES = ("DATABASE_URL", "DB_URL", "CONNECTION_STRING", "DSN")
"""Ends of names of addresses, which often contain a password."""

_PLAIN_VALUE = (
    r"(?is)|[+-]?(?=\.?\d)[\d.]+(?:e[+-]?\d+)?|yes|no|on|off|true|false|none|null|ask|prompt"
    r"|[$`~./].*|.*\.(?:py|txt|json|toml|ya?ml|pem|pub|key)|(?-i:[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)"
)
"""Nothing, numbers, switches, shell expansions, files, and names of variables such as OPENAI_API_KEY."""

_BASE64 = r"(?=.*\d)(?=.*[a-z])(?=.*[A-Z])[A-Za-z0-9+/]{24,}"
_RELATIVE_PATH = rf"(?!{_BASE64}$)[\w.@=-]+(?:/[\w.@=-]+)+/?(?<!=)"
"""Base64 contains slashes, too. A path seldom has digits, capitals and small letters without '_', '-' and '.'."""

_PLACEHOLDER = (
    r"(?i)your|xxx|<.*>|\*{3}|\.\.\.|change_?me|todo|placeholder|insert|dummy|no-key|not-needed|unused|token-abc123"
    r"|^(none|null|true|false|empty|fake|local|ollama|vllm)$"
)

_PLAIN_WORD = r"[A-Za-z]{0,20}\d{0,5}|\d{1,8}|\d{1,5}[A-Za-z]{1,3}|\d+x\d+"
"""A word of a name like train_images_256x256_v1."""

_METHODS = (
    r"(?i)none|anonymous|any|auto|basic|bearer|cert|default|digest|kerberos|ldap|local|munge|oauth2?|password|pat"
    r"|publickey|sasl|scram|ssh|token"
)
"""Values of `--auth` that name a method."""

_LONG = 32
"""Characters of a random value that is a secret also behind an unsure name such as `key`."""

SHAPES = lazy_pattern(
    r"\b(?:hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}|sk-(?=[\w-]{0,60}[A-Za-z0-9]{16})[\w-]{30,}"
    r"|A[KS]IA[A-Z0-9]{16}|AIza[\w-]{35}|xox[abeprs]-[\w-]{20,}|npm_[A-Za-z0-9]{36}|pypi-AgE[\w-]{50,}|dckr_pat_[\w-]{20,}"
    r"|nvapi-[\w-]{40,}|gsk_[A-Za-z0-9]{40,}|[rs]k_live_[A-Za-z0-9]{20,}|hvs\.[\w-]{24,}|SG\.[\w-]{16,}\.[\w-]{16,}"
    r"|(?<![\w-])eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}|(?<=wandb login )[0-9a-f]{40})"
)
"""Tokens that their form gives away."""

_SHORTEST = 20
"""Characters of the shortest token of a known form."""

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

_URL_LOGIN = r"(?i)(?P<head>\b[a-z][a-z0-9+.-]{0,30}://[^\s/@:'\"]*:)(?P<secret>[^\s/@'\"$]+)(?=@)"
_VARIABLE = r"(?m)(?P<head>^[-+ ]?(?:export )?(?P<name>[A-Z][A-Z0-9_]*)=)(?P<secret>[^\s\"'${}()]{6,})$"
"""A line `NAME=VALUE` of a file of variables, such as .env."""
_ASSIGNED = r"(?i)(?P<head>(?<![\w-])(?P<name>[\w-]+)[\"']?\s*[=:]\s*[\"'])(?P<secret>[^\"'\s${}]{8,})(?=[\"'])"

_LOGINS = {
    "curl": r"(?:-[fgikLnsSv]*[uU] ?|--(?:proxy-)?user[ =])[^\s:]+:(?P<secret>\S+)",
    "mysql": r"-p(?P<secret>\S+)",
    "mysqldump": r"-p(?P<secret>\S+)",
    "sshpass": r"-p ?(?P<secret>[^\s-]\S*)",
    "wandb": r"(?:login|--?[\w-]+) (?P<secret>[0-9a-f]{40})",
}
"""Passwords in the options of programs whose names do not tell them: an argument, and the one behind a space."""

SECRET_TEXTS = (
    "key", "token", "secret", "pass", "credential", "authorization", "_pwd", "-pwd", "pwd=", "pwd_", "pat=",
    *(f"{dash}{name}{end}" for dash in "-_" for name in ("auth", "pat") for end in "= \t\n:_-\"'`})"),
    "database_url", "db_url", "connection_string", "dsn", "://",
    "hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "sk-", "akia", "asia", "aiza", "xox",
    "npm_", "pypi-", "dckr_pat_", "nvapi-", "gsk_", "sk_live_", "rk_live_", "hvs.", "sg.", "eyj",
    *_LOGINS,
)  # fmt: skip
"""Texts, in lower case, of which whatever contains a secret contains one: parts of names, URLs, tokens, programs."""


def looks_secret(name: str, value: str) -> bool:
    """Return whether a variable certainly contains a secret."""
    return _judge(name, value) is True


def may_be_secret(name: str, value: str) -> bool:
    """Return whether a variable is no certain secret only because of its value, such as `MY_TOKEN=hunter2`."""
    return _judge(name, value) is False


def is_secret(name: str, value: str) -> bool:
    """Return whether a value in a script is a secret: no expansion or placeholder, and 4 characters or more."""
    is_plain = len(value) < 4 or re.search(r"[\s$]", value) or re.search(_PLACEHOLDER, value)
    return not is_plain and looks_secret(name, value)


@lru_cache(maxsize=1024)
def is_secret_name(name: str) -> bool:
    """Return whether the name of a variable is certainly that of a secret."""
    return re.search(_SURE, name.upper()) is not None and re.match(_PLAIN_NAME, name.upper()) is None


@lru_cache(maxsize=1024)
def may_name_secret(name: str) -> bool:
    """Return whether the name of a variable may be that of a secret, or of an address with a password."""
    upper = name.upper()
    return upper.endswith(_ADDRESSES) or (
        re.search(rf"{_NAMES}|{_SURE}", upper) is not None and re.match(_PLAIN_NAME, upper) is None
    )


def _judge(name: str, value: str) -> bool | None:
    """Return whether a value is certainly a secret; False if it may be one, None if it is none."""
    if _find_url_password(value) or SHAPES.search(value):
        return True
    upper, value = name.upper(), value.strip("\"'")
    if not may_name_secret(upper) or re.fullmatch(_PLAIN_VALUE, value) or re.search(_PLACEHOLDER, value):
        return None
    if upper.endswith(_ADDRESSES):
        if re.search(r":[^/:@]+@|password|pwd|key=", value, re.IGNORECASE):
            return True
        # `localhost:5432` and the address of a local file, such as sqlite:///data.db, contain no password.
        return None if "://" in value or re.fullmatch(r"[\w.-]+:\d+", value) else False
    if "://" in value or re.fullmatch(_RELATIVE_PATH, value):
        return None
    if re.search(_SURE, upper) or _starts_as_token(value):
        return True
    return _judge_unsure(upper, value)


def _judge_unsure(name: str, value: str) -> bool | None:
    """Return what the value behind a name such as TOKEN or KEY is."""
    # `vit_base_patch16_224.augreg2_in1k`, dates and lists are names, and random values have long words.
    is_one = is_random(value) and re.search(r"[./:,]", value) is None
    is_long = is_one and re.search(r"[A-Za-z0-9]{16}", value) is not None
    if re.search(r"(?:^|_)KEYS?(?:_|$)", name):
        return len(value) >= _LONG if is_long else None
    if is_long:
        return True
    if re.fullmatch(r"AUTH|CREDENTIALS?|PAT|TOKEN", name):
        return None if re.fullmatch(_METHODS, value) else False
    return False if is_random(value) else None


def _find_url_password(text: str) -> re.Match[str] | None:
    # Most texts are no URLs, and the pattern is only compiled for one that may be.
    return re.search(_URL_LOGIN, text) if "://" in text else None


def _starts_as_token(value: str) -> bool:
    # `hf_llama2_7b` is a name.
    return re.fullmatch(_SHORT_FORMS, value) is not None and (value.startswith("sk-") or is_random(value))


def is_random(value: str) -> bool:
    """Return whether a value has digits, but is no number, such as `4k` or `2nd`, nor words joined by '_' or '-'."""
    if re.search(r"\d", value) is None or re.fullmatch(r"\d+|\d{1,5}[A-Za-z]{1,3}", value):
        return False
    words = re.split(r"[_.:-]", value)
    return len(words) == 1 or not all(re.fullmatch(_PLAIN_WORD, word) for word in words)


class FoundSecret(NamedTuple):
    """A secret among the words of a command."""

    name: str
    """Name of its option or variable; `a URL`, `a header`, `a token`, or `the login of` a program."""
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
        if word == found.value or not re.search(r"\s", word):
            masked[found.place] = f"{word.removesuffix(found.value)}{MASK}" if word.endswith(found.value) else word
        else:
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
    program = ""
    for index, (before, word, following) in enumerate(zip(["", *words], words, [*words[1:], "-"], strict=False)):
        if (called := word.rpartition("/")[2]) in _LOGINS and not before.startswith("--"):
            program = called
        login = re.match(_LOGINS[program], f"{word} {following}") if program else None
        if form := _find_form(word):
            yield FoundSecret(form[0], index, form[1])
        elif login and _judge("PASSWORD", login["secret"]):
            yield FoundSecret(f"the login of {program}", index + (login.end() > len(word)), login["secret"])
        elif (word.startswith("-") or "=" in word) and not _is_code(before, word):
            yield from _find_option(index, word, following)


def _is_code(before: str, word: str) -> bool:
    """Return whether a word is the code of `bash -c`, which may begin with an assignment."""
    return (
        before.startswith("-") and re.fullmatch(r"-[a-z]*c", before) is not None and re.search(r"\s", word) is not None
    )


def _find_form(word: str) -> tuple[str, str] | None:
    """Return what a secret is that its form gives away, and its value."""
    if login := _find_url_password(word):
        return "a URL", login["secret"]
    if len(word) >= _SHORTEST and (token := SHAPES.search(word)):
        return "a token", token[0]
    header = re.search(_HEADER, word) if ":" in word else None
    return ("a header", header["secret"]) if header and _judge("PASSWORD", header["secret"]) else None


def _find_option(index: int, word: str, following: str) -> Iterator[FoundSecret]:
    """Yield the secret of an assignment, or of an option; its value may be the following word."""
    option, equals, value = word.partition("=")
    if not equals and (not word.startswith("-") or following.startswith("-") or _find_form(following)):
        return
    # `--set env.TOKEN=X` names a variable behind a dot.
    name = option.lstrip("-+").rpartition(".")[2].replace("-", "_")
    certain = _judge(name, value if equals else following) if re.fullmatch(r"\w+", name) else None
    if certain is not None:
        yield FoundSecret(option, index if equals else index + 1, value if equals else following, certain)


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
    is_secret = looks_secret(name, value) and ((is_sure and is_random(value)) or _starts_as_token(value))
    return f"{match['head']}{MASK}" if is_secret else match[0]
