"""Converts TOML tables to typed, frozen structs, and explains values that do not fit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Struct

from hpc_kit.errors import SpecError
from hpc_kit.spec.toml_documents import Document, Table, format_toml_value

T = TypeVar("T", bound=Struct)


def convert(document: Document, kind: type[T]) -> T:
    """Convert a document to a struct.

    Raises:
        SpecError: A key is unknown (the message has similar keys), or a value has a wrong type or range.
    """
    try:
        return msgspec.convert(document.data, kind)
    except msgspec.ValidationError as error:
        # msgspec only reports the first error. An unknown key explains more than a wrong value.
        _refuse_unknown(document, document.data, kind, "")
        raise _wrong_value(document, kind, str(error)) from None


def coerce(text: str, kind: type[Struct], key: str) -> object:
    """Convert a text of the command line to a value.

    The text is read as TOML if the key accepts such a value; otherwise it stays text. So `--set resources.nodes=2` is a
    number, `--set resources.comment=2` is text, and `--set env.LR=1e5` stays `1e5`.
    """
    import tomllib

    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    if not isinstance(value, str | int | float | list | dict):
        return text
    expected = _field_type(kind, key)
    if not _accepts(value, expected):
        # The error is then about the value as it was meant.
        return text if _accepts(text, expected) else value
    # 1e5 and 1_000 are numbers in TOML, but text must keep its spelling.
    is_respelled = isinstance(value, int | float) and not isinstance(value, bool) and str(value) != text
    return text if is_respelled and _accepts(text, expected) else value


def dotted_keys(kind: type[Struct], prefix: str = "") -> Iterator[str]:
    """Yield the keys of `--set`, such as `resources.nodes`. That of a table with free names ends in a dot: `env.`."""
    for field in msgspec.structs.fields(kind):
        table = _struct_of(field.type)
        is_list = any(get_origin(part) is tuple for part in (field.type, *get_args(field.type)))
        if table is not None and not is_list:
            yield from dotted_keys(table, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}" + "." * (_type_of_values(field.type) is not Any)


def _accepts(value: object, expected: Any) -> bool:
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
            annotation = _type_of_values(annotation)
            continue
        types = {field.name: field.type for field in msgspec.structs.fields(inner)}
        if name not in types:
            return Any
        annotation = types[name]
    return annotation


def _type_of_values(annotation: Any) -> Any:
    """Return the type of the values of a free table."""
    tables = (part for part in (annotation, *get_args(annotation)) if get_origin(part) is dict)
    return next((get_args(table)[1] for table in tables), Any)


def _struct_of(annotation: Any) -> type[Struct] | None:
    """Return the struct type of a field, or of its list items; None for a free table such as [env]."""
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
        several = isinstance(value, list)
        for index, each in enumerate(value if several else [value]):
            if isinstance(each, dict) and inner:
                _refuse_unknown(document, each, inner, f"{prefix}{name}[{index}]." if several else f"{prefix}{name}.")


def _unknown(document: Document, kind: type[Struct], prefix: str, name: str, value: object) -> SpecError:
    from difflib import get_close_matches

    from hpc_kit.spec.cluster import Cluster

    fields = list(kind.__struct_fields__)
    # Users write the names of sbatch options with hyphens.
    spelling = name.replace("-", "_")
    tables = [
        field.name
        for field in msgspec.structs.fields(kind)
        if spelling in getattr(_struct_of(field.type), "__struct_fields__", ())
    ]
    near = [spelling] if spelling in fields else [] if tables else get_close_matches(spelling, fields, n=1, cutoff=0.6)
    table = re.sub(r"\[\d+\]", "", prefix.rstrip("."))
    origin = document.origin_of(prefix + name)
    text = format_toml_value(value)
    # `--set resource.nodes=2` gives resource = {nodes = 2}.
    in_set, below = origin.startswith("--set "), ""
    while in_set and isinstance(value, dict) and len(value) == 1:
        ((key, value),) = value.items()
        below += f".{key}"
    written = value if isinstance(value, str | int) else "..."
    if near:
        remedy = f"write --set {prefix}{near[0]}{below}={written}" if in_set else f"write {near[0]}"
    elif tables:
        remedy = f"write --set {tables[0]}.{spelling}={written}" if in_set else f"move it to [{tables[0]}]"
    elif not prefix and kind is not Cluster and spelling in Cluster.__struct_fields__:
        remedy = f"it is a key of cluster files; for one command, write --set cluster.{spelling}={written}"
    else:
        listed = f"the {len(fields)} keys that `hpc-kit schema` lists" if len(fields) > 16 else ", ".join(fields)
        remedy = f"use one of {listed}"
    return SpecError(
        f"unknown key '{name}' in {origin}",
        found=f"[{table}] {name} = {text}" if table else f"{name} = {text}",
        remedy=remedy,
    )


_TYPE_NAMES = {
    "`int`": "a whole number",
    "int": "a whole number",
    "float": "a number",
    "str": "text in quotes",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


def _wrong_value(document: Document, kind: type[Struct], message: str) -> SpecError:
    # "Expected `int`, got `str` - at `$.component[...].nodes`", where `[...]` stands for any entry
    problem, _, path = message.partition(" - at `$")
    path = path.strip(".`")
    key = re.sub(r"\[(\d+|\.\.\.)\]", "", path)
    place = path.replace("[...]", "")
    value: Any = document.data
    for name, index in re.findall(r"([^.\[\]]+)(?:\[(\d+)\])?", path):
        value = value.get(name) if isinstance(value, dict) else value
        # The message shows one table of a list of tables, but any other list as a whole.
        if index and isinstance(value, list) and isinstance(value[int(index)], dict):
            value = value[int(index)]
    if isinstance(value, dict) and path.endswith("[...]"):
        key, value = _wrong_entry(key, value, _field_type(kind, key))
        place = key
    name = key.rpartition(".")[2]
    expected = _expected(problem) or " or ".join(_choices(_field_type(kind, key)))
    if expected == _TYPE_NAMES["array"]:
        entries = value.split() if name == "command" and isinstance(value, str) else [value]
        if name == "command" and not entries:
            expected = 'a list: command = ["python", "train.py"]'
        elif _accepts(entries, _field_type(kind, key)):
            expected = f"a list: {name} = {format_toml_value(entries)}"
    return SpecError(
        f"wrong value for {key or 'the file'} in {document.origin_of(place)}",
        found=f"{name} = {format_toml_value(value)}",
        remedy=f"write {expected}" if expected else problem,
    )


def _wrong_entry(key: str, table: Table, annotation: Any) -> tuple[str, object]:
    """Return key and value of the first wrong entry of a free table; msgspec does not name its key."""
    for name, value in table.items():
        try:
            msgspec.convert({name: value}, annotation)
        except msgspec.ValidationError:
            return f"{key}.{name}", value
    return key, table


def _choices(annotation: Any) -> list[str]:
    """Return the values of a `Literal`, also inside a union or an Annotated."""
    inner = get_args(annotation)
    if get_origin(annotation) is Literal:
        return [format_toml_value(value) for value in inner]
    return [choice for part in inner for choice in _choices(part)]


def _expected(problem: str) -> str:
    """Describe the expected value: "Expected `int | null`, got `str`" becomes "a whole number"."""
    if match := re.match(r"Expected `([\w |]+)`(?: (>=|<=|>|<) (-?\d+))?", problem):
        kinds = [_TYPE_NAMES.get(kind, kind) for kind in match[1].split(" | ") if kind != "null"]
        limit = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}.get(match[2] or "", "")
        return " or ".join(kinds) + (f", {limit} {match[3]}" if limit else "")
    return ""
