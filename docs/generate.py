"""Write the pages that are made from the code: docs/plan-reference.md, docs/cli.md,
docs/variables.md, and two JSON schemas.

python docs/generate.py
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel
from typer._click.core import Context
from typer.main import get_command

from backends import REGISTRY as BACKENDS
from backends import backend_class
from measurement.environment import disturbing_variables
from measurement.plans.plan import Plan, Point
from measurement.plans.sections import Arm, Measurement, ScriptSettings
from measurement.plans.settings import SpeedSettings, TrainingSettings
from reports.schema import Comparison
from runners.cli import app as ringside
from runners.spawn import _arguments as spawn_arguments
from runners.standalone.run import command_line, epilog
from workloads import REGISTRY as WORKLOADS
from workloads import workload_class

DOCS = Path(__file__).parent
SECTIONS: Mapping[str, type[BaseModel]] = {
    "The plan": Plan,
    "`arms.NAME`": Arm,
    "`measurement`": Measurement,
    "`scripts`": ScriptSettings,
    "`training`": TrainingSettings,
    "`points.NAME`": Point,
    "`speed`": SpeedSettings,
}
REACHES = {
    "horovod": "Horovod",
    "torch.distributed": "DDP, FSDP2, naive",
    "cuda": "ranks on GPUs",
    "any": "all ranks",
}
VARIABLES = """# Variables left in the shell

This page is made from the code by `python docs/generate.py`. These variables change what is
measured.

- Ringside refuses what makes a library measure something else, or die. Nothing is timed then.
- It names the others in the headline and among the warnings, with the arms that they reach.
- Runs that you start yourself are not compared where they differ in one, unless
  `--allow environment` says so.
- Scripts keep what their shell or their command sets. The headline names it.
- What a plan sets in `environment` is its own choice, and is not named."""
EXIT_CODES = """## Exit codes

| code | means |
|---|---|
| 0 | it is done, and nothing that was asked for failed |
| 1 | an arm failed, is wrong, or was not measured; `ringside hosts`, `check`: a problem was found |
| 2 | bad input, or something that is missing: one message on stderr says what to do |
| 3 | not shown: `--assert-equal`, `--golden`, `--assert-not-slower`, `bisect`, `gate`; \
or `--against` shows a regression |
| 130, 143 | interrupted by Ctrl-C, or ended by SIGTERM; the message says how to go on |"""
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
FROM_HOSTS = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}],
    "default": None,
}
VALUES_OF_VARIABLES = {"type": ["string", "number", "boolean"]}


def pages() -> dict[str, str]:
    """Return every generated file's text by its name in docs/."""
    return {
        "plan-reference.md": plan_reference(),
        "cli.md": command_reference(),
        "variables.md": variables(),
        "plan.schema.json": plan_schema(),
        "comparison.schema.json": comparison_schema(),
    }


def variables() -> str:
    """Return the table of variables that change what is measured."""
    rows = ["| variable | values | reaches | what it does | Ringside |", "|---|---|---|---|---|"]
    for one in disturbing_variables():
        unless = ", ".join(f"`{value}`" for value in one.unless if value)
        values = ", ".join(f"`{value}`" for value in one.only) or (
            f"all but {unless}" if unless else "all"
        )
        does = "refuses it" if one.is_refused else "names it"
        rows.append(f"| `{one.name}` | {values} | {REACHES[one.library]} | {one.does} | {does} |")
    return "\n\n".join([VARIABLES, "\n".join(rows)]) + "\n"


def plan_reference() -> str:
    """Return every key of a plan, and every option of a backend or workload, in tables."""
    parts = [
        "# Plan reference",
        "This page is made from the code by `python docs/generate.py`. Unknown keys are refused.",
    ]
    for title, model in SECTIONS.items():
        parts += [f"## {title}", _rows(model)]
    parts += ["## Options of backends", "Set them under an arm's `options`."]
    parts += _options({name: backend_class(name).Options for name in BACKENDS.table})
    parts += ["## Options of workloads", "Set them under `workload_options`."]
    parts += _options({name: workload_class(name)[0].Options for name in sorted(WORKLOADS.table)})
    return "\n\n".join(parts) + "\n"


def _options(models: Mapping[str, type[BaseModel]]) -> Iterator[str]:
    for name, model in models.items():
        yield f"### `{name}`"
        yield _rows(model) if model.model_fields else "It has no options."


def _rows(model: type[BaseModel]) -> str:
    schema = model.model_json_schema()
    named = schema.get("$defs", {})
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for name, field in schema["properties"].items():
        default = "required" if name in schema.get("required", ()) else _default(field)
        lines.append(
            f"| `{name}` | {_type(field, named)} | {default} |"
            f" {_text(field.get('description', ''))} |"
        )
    return "\n".join(lines)


def _default(field: Mapping[str, Any]) -> str:
    value = field.get("default")
    if "$ref" in field or (isinstance(value, dict) and value):
        return "see its section"
    return "none" if value is None else f"`{json.dumps(value, ensure_ascii=False)}`"


def _type(field: Mapping[str, Any], named: Mapping[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(
            dict.fromkeys(_type(one, named) for one in field["anyOf"] if one.get("type") != "null")
        )
    if "$ref" in field:
        return _type(named[field["$ref"].rpartition("/")[2]], named)
    if "enum" in field or "const" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if field.get("type") == "array" and "items" in field:
        return f"list of {_type(field['items'], named)}"
    bounds = [f"{sign} {field[name]:g}" for name, sign in BOUNDS.items() if name in field]
    return " ".join(
        [{"object": "mapping"}.get(field.get("type", ""), field.get("type", "any")), *bounds]
    )


def _text(text: str) -> str:
    """Return one line for a table's cell, with Markdown's marks for code."""
    return re.sub(r"\s+", " ", text).replace("``", "`").replace("|", "\\|")


def plan_schema() -> str:
    """Return the JSON schema of a plan's file, in which hosts may be lists."""
    schema = Plan.model_json_schema()
    places = [schema, schema["$defs"]["Point"]]
    for place in places:
        text = place["properties"]["hosts"].get("description", "")
        place["properties"]["hosts"] = FROM_HOSTS | {"description": text}
    arm = schema["$defs"]["Arm"]
    for place in (schema, arm):
        patterns = place["properties"]["environment"]["patternProperties"]
        patterns.update(dict.fromkeys(patterns, VALUES_OF_VARIABLES))
    # hosts or points may say it
    schema["required"] = [name for name in schema["required"] if name != "world_size"]
    return schema_text(schema)


def comparison_schema() -> str:
    """Return the JSON schema of comparison.json, of a comparison."""
    return schema_text(Comparison.model_json_schema(mode="serialization"))


def schema_text(schema: Mapping[str, Any]) -> str:
    """Return a schema as a file."""
    return (
        json.dumps(
            {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema},
            indent=1,
            ensure_ascii=False,
        )
        + "\n"
    )


def command_reference() -> str:
    """Return every command with its flags, in tables."""
    parts = [
        "# Command reference",
        "This page is made from the code by `python docs/generate.py`.",
        EXIT_CODES,
        "## `ringside`",
    ]
    group = get_command(ringside)
    for name, command in _commands(group):
        parts += _command(command, f"ringside {name}", level="###")
    parts += [
        "## Commands that every rank runs",
        "Start them by torchrun, horovodrun, mpirun, srun or `runners.spawn`.",
    ]
    parts += _command(_single(command_line("ddp")), "python -m runners.ddp", level="###")
    parts += ["### `python -m runners.hvd`", "It takes the flags of `runners.ddp`."]
    for module, backend in (("ddp", "ddp"), ("hvd", "horovod")):
        parts.append(f"`--option` of `runners.{module}`, with defaults: {_options_line(backend)}.")
    parts += ["### `python -m runners.spawn`", *_spawn()]
    return "\n\n".join(parts) + "\n"


def _commands(group: Any) -> Iterator[tuple[str, Any]]:
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from ((f"{name} {inner}", one) for inner, one in _commands(command))
        else:
            yield name, command


def _single(function: Any) -> Any:
    app = typer.Typer(add_completion=False)
    app.command()(function)
    return get_command(app)


def _command(command: Any, name: str, *, level: str) -> Iterator[str]:
    yield f"{level} `{name}`"
    yield _text(command.help or "")
    context = Context(command, info_name=name)
    records = [
        record for parameter in command.params if (record := parameter.get_help_record(context))
    ]
    yield _table([(names, text) for names, text in records])


def _spawn() -> Iterator[str]:
    actions = [
        action
        for action in spawn_arguments()._actions
        if not isinstance(action, argparse._HelpAction)
    ]
    yield "Runs a module on ranks of this host, forked from one process."
    yield _table([(", ".join(action.option_strings), action.help or "") for action in actions])


def _options_line(backend: str) -> str:
    found = epilog(backend).partition("with defaults: ")[2].rstrip(".")
    return ", ".join(f"`{one}`" for one in found.split(", ")) if found != "none" else "none"


def _table(rows: list[tuple[str, str]]) -> str:
    lines = [f"| `{_text(names)}` | {_text(text)} |" for names, text in rows]
    return "\n".join(["| flag | meaning |", "|---|---|", *lines]) if lines else "It takes no flags."


def main() -> None:
    """Write every generated file."""
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
