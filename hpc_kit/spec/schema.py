"""The published JSON Schema of job and cluster files."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from hpc_kit.spec.cluster import Cluster
from hpc_kit.spec.descriptions import RESOURCES
from hpc_kit.spec.job import Job

KINDS = {"job": Job, "cluster": Cluster}


def schema_text(kind: str) -> str:
    """The JSON Schema (draft 2020-12) of one kind of file.

    Args:
        kind: `job` or `cluster`.
    """
    (reference,), components = msgspec.json.schema_components([KINDS[kind]], ref_template="#/$defs/{name}")
    for table in ("Resources", "Component"):
        for name, text in RESOURCES.items() if table in components else ():
            components[table]["properties"][name]["description"] = text
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"hpc_kit {kind} file",
        **reference,
        "$defs": {name: _without_null(component) for name, component in components.items()},
    }
    return json.dumps(schema, indent=2) + "\n"


def _without_null(schema: Any) -> Any:
    """TOML has no null: an option that is not wanted is left out."""
    if isinstance(schema, list):
        return [_without_null(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    cleaned = {key: _without_null(value) for key, value in schema.items() if not (key == "default" and value is None)}
    if "anyOf" in cleaned:
        alternatives = cleaned.pop("anyOf")
        kinds = [kind for kind in alternatives if kind != {"type": "null"}]
        cleaned |= {"anyOf": kinds} if len(kinds) > 1 else kinds[0]
    return cleaned
