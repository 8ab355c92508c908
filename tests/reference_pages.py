"""The reference pages of docs/ that are generated from the code: keys of files, commands, exit codes, Python API."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import hpc_kit
from hpc_kit import errors
from hpc_kit.cli import root
from hpc_kit.spec.schema import schema_text

FOLDER = Path(__file__).parents[1] / "docs"
WIDTH = 100
"""Columns of the terminal for which the help texts are written."""

GENERATED = "This page is generated from the code (`make golden`)."

JOB_TABLES = {
    "Job": "Top level",
    "Resources": "[resources]",
    "Component": "[[component]]",
    "Layout": "[layout]",
    "Model": "[model]",
    "Program": "[program]",
    "Launch": "[launch]",
    "Restart": "[restart]",
    "Preflight": "[preflight]",
}
CLUSTER_TABLES = {
    "Cluster": "Top level",
    "Environment": "[environment]",
    "Node": "[node]",
    "Partition": "[partition.NAME]",
    "Embedded": "[embedded]",
    "Resources": "[defaults]",
}

JOB_INTRODUCTION = f"""# Keys of a job file

A job file is TOML: `jobs/NAME.toml`. [Job and cluster files](jobs-and-clusters.md) explains how to write one.
{GENERATED} `hpc-kit schema job` prints the same as a JSON Schema, for editors.
"""

CLUSTER_INTRODUCTION = f"""# Keys of a cluster file

A cluster file is TOML: `env/NAME.toml`. [Job and cluster files](jobs-and-clusters.md) explains how to write one.
{GENERATED} `hpc-kit schema cluster` prints the same as a JSON Schema, for editors.
"""

COMMANDS_INTRODUCTION = f"""# Commands

Each section is the output of `hpc-kit COMMAND --help`. [Exit codes](exit-codes.md) lists the statuses.
{GENERATED}
"""

EXIT_CODES = f"""# Exit codes

## Of hpc-kit

| status | meaning |
|---|---|
| 0 | success |
| 1 | the command ran, and the answer is no: faults found, a failed job, no Slurm, a refusal by sbatch |
| 2 | wrong use: an unknown key, option or file |
| 130 | interrupted with Ctrl-C; a job that was being followed continues |
| 141 | `logs -f` or `watch`, and the reader of the output (`head`) has closed the pipe before the end of the jobs |

`hpc-kit submit --wait` and `hpc-kit logs -f` return the exit code of the job. [When a job fails](when-it-fails.md)
lists these codes. `make` itself always ends with 2 when its command fails.

## Of each error

The table lists the exceptions of `hpc_kit.errors`, which the Python functions raise, with the exit status of the
command line. {GENERATED}

| exception | status | meaning |
|---|---|---|
"""

API_INTRODUCTION = f"""# Python API

Import these names from `hpc_kit`. Importing the package is cheap: each name is loaded when it is first used.
{GENERATED} [Exit codes](exit-codes.md) lists all exceptions.

| to | use |
|---|---|
| print a script | `hpc_kit.render` |
| submit a program | `hpc_kit.submit`, which returns a `ScriptJob` |
| submit functions | `hpc_kit.Executor` |
| make the process group in a program | `hpc_kit.distributed`, which yields a `Group` |
| learn the rank of a process | `hpc_kit.resolve`, which returns a `World` |
| save training, stop it and [resume](checkpoints.md) | `hpc_kit.Checkpointer` |
| save and load a checkpoint in one file | `hpc_kit.save_checkpoint`, `hpc_kit.load_checkpoint` |
| expand a node list | `hpc_kit.slurm.nodelist` |

Commands inside a job: `python -m hpc_kit.runtime PROGRAM` runs a program with torch's variables set.
"""

API_NAMES = (
    "render",
    "submit",
    "ScriptJob",
    "Executor",
    "distributed",
    "Group",
    "resolve",
    "World",
    "Checkpointer",
    "save_checkpoint",
    "load_checkpoint",
    "convert_checkpoint",
    "HpcKitError",
)


def documents() -> Iterator[tuple[Path, str]]:
    """Yield each generated reference page with its text."""
    yield FOLDER / "job-keys.md", keys_page("job", JOB_TABLES, JOB_INTRODUCTION)
    yield FOLDER / "cluster-keys.md", keys_page("cluster", CLUSTER_TABLES, CLUSTER_INTRODUCTION)
    yield FOLDER / "commands.md", commands_page()
    yield FOLDER / "exit-codes.md", exit_codes_page()
    yield FOLDER / "python-api.md", api_page()


def keys_page(kind: str, titles: dict[str, str], introduction: str) -> str:
    """Return the page of all keys of one kind of file, one section for each TOML table."""
    tables: dict[str, Any] = json.loads(schema_text(kind))["$defs"]
    lines = [introduction]
    known = [name for name in titles if name in tables]
    for name in [*known, *sorted(set(tables) - set(known))]:
        lines += [f"## {titles.get(name, name)}", ""]
        properties = tables[name]["properties"]
        if name == "Component":
            # A component takes the options of [resources]; only its own keys need a row.
            lines += ["Every key of `[resources]`, for one component of a heterogeneous job, and:", ""]
            properties = {
                key: value for key, value in properties.items() if key not in tables["Resources"]["properties"]
            }
        elif name == "Resources" and kind == "cluster":
            lines += ["Every key of [`[resources]` of a job file](job-keys.md#resources).", ""]
            continue
        lines += ["| key | value | default | meaning |", "|---|---|---|---|"]
        lines += [key_row(key, schema, required=key in tables[name]["required"]) for key, schema in properties.items()]
        lines += [""]
    return "\n".join(lines).rstrip() + "\n"


def key_row(key: str, schema: dict[str, Any], *, required: bool) -> str:
    """Return the table row of one key."""
    default = "required" if required else ""
    if schema.get("default") not in (None, "", [], {}):
        default = f"`{json.dumps(schema['default'])}`"
    return f"| `{key}` | {value_of(schema)} | {default} | {cell(schema.get('description', ''))} |"


def cell(text: str) -> str:
    """Return a text for a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def value_of(schema: dict[str, Any]) -> str:
    """Return what a key's value may be, in the words of TOML."""
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(value_of(each) for each in schema["anyOf"])
    if "$ref" in schema:
        return "table"
    if schema["type"] == "array":
        return f"array of {value_of(schema['items'])}s"
    bounds = [f"from {schema['minimum']}" if "minimum" in schema else "", f"to {schema.get('maximum')}"]
    bounds = bounds if "maximum" in schema else bounds[:1]
    kind = {"number": "float", "object": "table"}.get(schema["type"], schema["type"])
    return " ".join([kind, *bounds]).strip()


def commands_page() -> str:
    """Return the help texts of all commands."""
    lines = [COMMANDS_INTRODUCTION]
    context = click.Context(root, info_name="hpc-kit", **{**root.context_settings, "terminal_width": WIDTH})
    for path, text in help_texts(context):
        lines += [f"## {path}", "", "```text", text.rstrip(), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def help_texts(context: click.Context) -> Iterator[tuple[str, str]]:
    """Yield the path and the help of a command and of its subcommands."""
    # A help text that names a page has its path, which is absolute outside of the checkout.
    yield context.command_path, context.get_help().replace(f"{FOLDER.parent}/", "")
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            assert command is not None
            child = click.Context(command, info_name=name, parent=context, **command.context_settings)
            yield from help_texts(child)


def exit_codes_page() -> str:
    """Return the page of exit statuses, with a row for each exception."""
    rows = []

    def add(kind: type[errors.HpcKitError], depth: int) -> None:
        meaning = (kind.__doc__ or "").partition("\n")[0]
        rows.append(f"| {'&nbsp;' * 4 * depth}`{kind.__name__}` | {kind.exit_status} | {cell(meaning)} |")
        for child in kind.__subclasses__():
            if child.__module__ == errors.__name__:
                add(child, depth + 1)

    add(errors.HpcKitError, 0)
    return EXIT_CODES + "\n".join(rows) + "\n"


def api_page() -> str:
    """Return the page of the public functions and classes with their docstrings."""
    lines = [API_INTRODUCTION]
    for name in API_NAMES:
        value = getattr(hpc_kit, name)
        lines += [f"## {name}", ""]
        if not dataclasses.is_dataclass(value):
            lines += ["```python", signature_text(name, value), "```", ""]
        lines += [docstring_text(value), ""]
        if name in {"ScriptJob", "Group", "World", "Checkpointer"}:
            lines += members(value)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def signature_text(name: str, value: Any) -> str:
    """Return the signature of a function or class, one parameter a line if it is long."""
    signature = inspect.signature(value)
    parameters: list[str] = []
    star = False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            star = True
            parameters.append("*")
        text = str(parameter).replace("'", "")
        parameters.append(text if len(text) <= WIDTH else f"{text.partition(' = ')[0]} = ...")
    returned = signature.return_annotation
    arrow = f" -> {returned}" if inspect.isfunction(value) and returned is not inspect.Signature.empty else ""
    one_line = f"{name}({', '.join(parameters)}){arrow}"
    if len(one_line) <= WIDTH:
        return one_line
    return "\n".join([f"{name}(", *(f"    {parameter}," for parameter in parameters), f"){arrow}"])


def docstring_text(value: Any) -> str:
    """Return a docstring as Markdown: its Google sections become lists, its tables become blocks."""
    text = inspect.getdoc(value) or ""
    text = re.sub(r"(?m)^={3,}.*\n(?:.*\n)*?={3,}.*\n(?:.*\n)*?={3,}.*$", r"```text\n\g<0>\n```", text)
    text = re.sub(r"(?m)^::\n\n((?: {4}.*\n|\n)+)", lambda found: f"```python\n{found[1].strip()}\n```\n\n", text)
    lines: list[str] = []
    is_code = False
    for line in text.splitlines():
        is_code ^= line.startswith("```")
        if is_code:
            lines.append(line.removeprefix("    "))
        elif re.fullmatch(r"(Args|Returns|Raises|Yields|Attributes):", line):
            lines += [f"**{line[:-1]}**", ""]
        elif found := re.match(r" {4}(\w+): (.*)", line):
            lines.append(f"- `{found[1]}`: {found[2]}")
        elif line.startswith("    "):
            lines.append(f"  {line.strip()}")
        else:
            lines.append(line)
    return "\n".join(lines)


def members(kind: type) -> list[str]:
    """Return table rows of the public fields, properties and methods that a class itself defines."""
    rows = []
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    for node, following in itertools.pairwise([*definition.body, ast.Pass()]):
        if isinstance(node, ast.AnnAssign) and dataclasses.is_dataclass(kind):
            described = following.value if isinstance(following, ast.Expr) else None
            text = described.value if isinstance(described, ast.Constant) else ""
            rows.append((ast.unparse(node.target), " ".join(str(text).split())))
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            is_property = any(ast.unparse(each).endswith("property") for each in node.decorator_list)
            text = (ast.get_docstring(node) or "").partition("\n\n")[0]
            rows.append((node.name if is_property else f"{node.name}()", " ".join(text.split())))
    if not rows:
        return []
    return ["| member | meaning |", "|---|---|", *(f"| `{name}` | {cell(text)} |" for name, text in rows), ""]
