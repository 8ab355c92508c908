"""Which variables hold a secret, told by their names: what `[env]` refuses, records leave out and `check` finds."""

from __future__ import annotations

SECRETS = frozenset({
    "KEY", "KEYS", "TOKEN", "SECRET", "SECRETS", "PASSWORD", "PASSWORDS", "PASSWD", "PWD", "PASSPHRASE", "PAT",
    "CREDENTIAL", "CREDENTIALS",
})  # fmt: skip
"""A variable with one of these among the words of its name is taken for a secret."""

_ENDS = ("APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE")
_PLAIN_NAMES = frozenset({"PWD", "OLDPWD"})
_PLAIN_ENDS = ("_FILE", "_PATH", "_DIR")


def looks_secret(name: str, value: str | None = None) -> bool:
    """Whether a variable is likely to hold a secret: by its name; a number, or what the shell looks up, is none."""
    if value is not None and (not value.strip("\"'") or value.isdigit() or value.lstrip('"').startswith(("$", "`"))):
        return False
    upper = name.upper()
    if upper in _PLAIN_NAMES or upper.endswith(_PLAIN_ENDS):
        return False
    words = upper.split("_")
    return not SECRETS.isdisjoint(words) or any(word.endswith(_ENDS) for word in words)
