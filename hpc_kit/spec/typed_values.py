"""From tables to typed, frozen values; what does not fit is named with file, key, value and the edit to make."""

from __future__ import annotations

from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Struct

from hpc_kit.errors import SpecError
from hpc_kit.spec.toml_documents import Document, Table, toml_value

T = TypeVar("T", bound=Struct)


def convert(document: Document, kind: type[T]) -> T:
    """The typed value of a table.

    Raises:
        SpecError: An unknown key (with near matches), or a value of a wrong type or range.
    """
    try:
        return msgspec.convert(document.data, kind)
    except msgspec.ValidationError as error:
        _refuse_unknown(document, document.data, kind, "")
        raise _wrong_value(document, kind, str(error)) from None


def coerce(text: str, kind: type[Struct], key: str) -> object:
    """A value from the command line: TOML where that is what the key takes, else the text itself.

    So `--set resources.nodes=2` is a number, `--set resources.comment=2` a text, and `--set env.LR=1e5` stays `1e5`.
    """
    import tomllib

    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    if not isinstance(value, str | int | float | list | dict):
        return text
    expected = _field_type(kind, key)
    if not _takes(value, expected):
        return text
    respelt = isinstance(value, int | float) and not isinstance(value, bool) and str(value) != text
    return text if respelt and _takes(text, expected) else value


def _takes(value: object, expected: Any) -> bool:
    try:
        msgspec.convert(value, expected)
    except msgspec.ValidationError:
        return False
    return True


def _field_type(kind: type[Struct], key: str) -> Any:
    annotation: Any = kind
    for name in key.split("."):
        inner = _struct_of(annotation)
        if inner is None:
            annotation = _values_of(annotation)
            continue
        types = {field.name: field.type for field in msgspec.structs.fields(inner)}
        if name not in types:
            return Any
        annotation = types[name]
    return annotation


def _values_of(annotation: Any) -> Any:
    """What a free table holds."""
    tables = (part for part in (annotation, *get_args(annotation)) if get_origin(part) is dict)
    return next((get_args(table)[1] for table in tables), Any)


def _struct_of(annotation: Any) -> type[Struct] | None:
    """The table that a field holds, or a list of them; not those of a free table's values."""
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return annotation
    parts = () if get_origin(annotation) is dict else get_args(annotation)
    return next((found for part in parts if (found := _struct_of(part))), None)


def _refuse_unknown(document: Document, table: Table, kind: type[Struct], prefix: str) -> None:
    fields = kind.__struct_fields__
    for name, value in table.items():
        if name not in fields:
            raise _unknown(document, kind, prefix, name, value)
        inner = _struct_of(_field_type(kind, name))
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict) and inner:
                _refuse_unknown(document, each, inner, f"{prefix}{name}.")


def _unknown(document: Document, kind: type[Struct], prefix: str, name: str, value: object) -> SpecError:
    from difflib import get_close_matches

    fields = list(kind.__struct_fields__)
    spelt = name.replace("-", "_")
    homes = [field.name for field in msgspec.structs.fields(kind) if spelt in _fields_of(field.type)]
    near = [spelt] if spelt in fields else [] if homes else get_close_matches(spelt, fields, n=3, cutoff=0.6)
    table = prefix.rstrip(".")
    place = document.where(prefix + name)
    remedy = " or ".join(near)
    if not near:
        remedy = f"it belongs under [{homes[0]}]" if homes else _one_of(fields)
    return SpecError(
        f"unknown key '{name}' in {place}",
        found=f"[{table}] {name} = {toml_value(value)}" if table else f"{name} = {toml_value(value)}",
        remedy=remedy,
    )


def _one_of(names: list[str]) -> str:
    most = 16
    return (
        f"one of {', '.join(names)}" if len(names) <= most else f"one of the {len(names)} that `hpc-kit schema` lists"
    )


def _fields_of(annotation: Any) -> tuple[str, ...]:
    inner = _struct_of(annotation)
    return inner.__struct_fields__ if inner else ()


_WORDS = {
    "`int`": "a whole number",
    "int": "a whole number",
    "float": "a number",
    "str": "text in quotes",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


def _wrong_value(document: Document, kind: type[Struct], message: str) -> SpecError:
    fault, _, path = message.partition(" - at `$")
    path = path.strip(".`")
    import re

    key = re.sub(r"\[(\d+|\.\.\.)\]", "", path)
    value: Any = document.data
    for name, index in re.findall(r"([^.\[\]]+)(?:\[(\d+)\])?", path):
        value = value.get(name) if isinstance(value, dict) else value
        # Of a list of tables one is meant; of any other list the whole is shown.
        if index and isinstance(value, list) and isinstance(value[int(index)], dict):
            value = value[int(index)]
    if isinstance(value, dict) and path.endswith("[...]"):
        key, value = _culprit(key, value, _field_type(kind, key))
    name = key.rpartition(".")[2]
    remedy = _expected(fault) or " or ".join(_choices(_field_type(kind, key)))
    if remedy == _WORDS["array"] and isinstance(value, str):
        remedy = f"a list: {name} = {toml_value(value.split() if name == 'command' else [value])}"
    return SpecError(
        f"wrong value for {key or 'the file'} in {document.where(key)}",
        found=f"{name} = {toml_value(value)}",
        remedy=remedy,
    )


def _culprit(key: str, table: Table, annotation: Any) -> tuple[str, object]:
    """The first value of a free table that does not fit; msgspec does not name its key."""
    for name, value in table.items():
        try:
            msgspec.convert({name: value}, annotation)
        except msgspec.ValidationError:
            return f"{key}.{name}", value
    return key, table


def _choices(annotation: Any) -> list[str]:
    """The values that a `Literal` names, also one inside a union or an Annotated."""
    inner = get_args(annotation)
    if get_origin(annotation) is Literal:
        return [toml_value(value) for value in inner]
    return [choice for part in inner for choice in _choices(part)]


def _expected(fault: str) -> str:
    """What would be right, in words: "Expected `int | null`, got `str`" becomes "a whole number"."""
    import re

    if match := re.match(r"Expected `([\w |]+)`(?: (>=|<=|>|<) (-?\d+))?", fault):
        kinds = [_WORDS.get(kind, kind) for kind in match[1].split(" | ") if kind != "null"]
        limit = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}.get(match[2] or "", "")
        return " or ".join(kinds) + (f", {limit} {match[3]}" if limit else "")
    return "" if fault.startswith("Invalid enum value") else fault
