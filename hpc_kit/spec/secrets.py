"""Detects variables with secrets by their names. `[env]` refuses them, records omit them, `check` reports them."""

from __future__ import annotations

SECRETS = frozenset({
    "KEY", "KEYS", "TOKEN", "SECRET", "SECRETS", "PASSWORD", "PASSWORDS", "PASSWD", "PWD", "PASSPHRASE", "PAT",
    "CREDENTIAL", "CREDENTIALS",
})  # fmt: skip
"""Words in the names of secret variables."""

_ENDS = ("APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE")
_PLAIN_NAMES = frozenset({"PWD", "OLDPWD"})
_PLAIN_ENDS = ("_FILE", "_PATH", "_DIR")


def looks_secret(name: str, value: str | None = None) -> bool:
    """Return whether a variable probably contains a secret. Numbers and shell expansions are no secrets."""
    if value is not None and (not value.strip("\"'") or value.isdigit() or value.lstrip('"').startswith(("$", "`"))):
        return False
    upper = name.upper()
    if upper in _PLAIN_NAMES or upper.endswith(_PLAIN_ENDS):
        return False
    words = upper.split("_")
    return not SECRETS.isdisjoint(words) or any(word.endswith(_ENDS) for word in words)
