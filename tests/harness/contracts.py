"""The contracts of docs/contracts.md as facts, and the golden files that hold what the last release
promised.

A fact is a name with a value: a field and its type, a flag, a column. Where it is part of something
the name is `WHOLE > PART`. After a release: `python tests/harness/contracts.py` writes the golden
files anew."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

import typer.main
from sqlalchemy.dialects import postgresql

from penstock_cli import errors as cli_errors
from penstock_cli.main import RENAMED, command_line
from penstock_gateway import GatewaySettings, create_app
from penstock_ledger import EventType, keys
from penstock_ledger.model import ItemKey
from penstock_ledger.sql.tables import metadata
from penstock_producer.feed.wire import encode_item
from penstock_producer.jobfile.fields import json_schema
from penstock_producer.reporting.account import Report

GOLDEN: Final = Path(__file__).parents[1] / "contract" / "golden"
REQUIRED: Final = ", required"  # ends the value of what a writer has to give
DEEPEST: Final = 3  # levels of objects inside one another that are facts of their own
ITEM: Final = ItemKey("job_abcdefghij", 3, "doc-1")
KEY_LINE: Final = re.compile(
    r"^((?:penstock:|<queue>|unacked).*?)\s{2,}(string|hash|list|zset)\b", re.MULTILINE
)

Facts = dict[str, str]


def _kind(value: Any) -> str:
    return type(value).__name__


def message_samples() -> dict[str, bytes]:
    """One message of each version, with all that may be in it."""
    of_all: dict[str, Any] = {"queue": "penstock.api", "retries": 1, "calls": 2, "urgent": True}
    of_all |= {"fed": 1_790_000_000, "trace": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}
    of_all |= {"spent": (1, 2, 3, 0, 0, 0, 0), "stream": "door-1"}
    return {
        "1": encode_item(ITEM, body=b'{"model":"m"}', ref=None, **of_all),
        "1-ref": encode_item(ITEM, body=None, ref="17", queue="penstock.api"),
        "2": encode_item(ITEM, body=b"{}", ref=None, endpoint="/v1/embeddings", **of_all),
    }


def _messages() -> Iterator[tuple[str, str]]:
    for name, raw in message_samples().items():
        message = json.loads(raw)
        _, kwargs, _ = json.loads(message["body"])
        yield f"message {name}", "protocol 2, JSON"
        for part, values in (("", message), ("headers.", message["headers"]), ("kwargs.", kwargs)):
            for key, value in values.items():
                yield f"message {name} > {part}{key}", _kind(value)


def _schema(schema: Mapping[str, Any]) -> str:
    """A JSON schema on one line: its type, or the name of the object that it is."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(sorted({_schema(one) for one in schema[several]}))
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    if "const" in schema:
        return f"always {schema['const']}"
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_schema(schema.get('items', {}))}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _fields(
    where: str, schema: Mapping[str, Any], *, asked: bool, level: int = 0
) -> Iterator[tuple[str, str]]:
    needed = schema.get("required", ()) if asked else ()
    for name, one in schema.get("properties", {}).items():
        yield f"{where} > {name}", _schema(one) + (REQUIRED if name in needed else "")
        if level < DEEPEST and one.get("properties"):
            yield from _fields(f"{where} > {name}", one, asked=asked, level=level + 1)


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield str(value["$ref"]).rpartition("/")[2]
        for one in value.values():
            yield from _references(one)
    elif isinstance(value, list):
        for one in value:
            yield from _references(one)


def _http() -> Iterator[tuple[str, str]]:
    document = create_app(GatewaySettings()).openapi()
    schemas = document["components"]["schemas"]
    asked = set[str]()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            where = f"{method.upper()} {path}"
            yield where, operation["operationId"]
            for one in operation.get("parameters", ()):
                ends = REQUIRED if one.get("required") and one["in"] != "path" else ""
                yield f"{where} > {one['in']} {one['name']}", _schema(one["schema"]) + ends
            body = operation.get("requestBody", {})
            asked |= set(_references(body))
            for media, content in body.get("content", {}).items():
                yield f"{where} > body {media}", _schema(content.get("schema", {}))
            for status, answer in operation["responses"].items():
                for media, content in answer.get("content", {}).items():
                    yield f"{where} > {status} {media}", _schema(content.get("schema", {}))
    waiting = list(asked)
    while waiting:
        inside = set(_references(schemas[waiting.pop()])) - asked
        asked |= inside
        waiting += inside
    for name, schema in schemas.items():
        yield f"object {name}", _schema(schema)
        yield from _fields(f"object {name}", schema, asked=name in asked)
    for event in get_args(EventType):
        yield f"webhook event {event}", "POST"


def _job_file() -> Iterator[tuple[str, str]]:
    schema = json_schema()
    yield "a job spec file", _schema(schema)
    yield from _fields("a job spec file", schema, asked=True)


def _sql() -> Iterator[tuple[str, str]]:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    for table in metadata.sorted_tables:
        yield f"table {table.name}", ", ".join(one.name for one in table.primary_key.columns)
        for column in table.columns:
            given = (
                column.nullable or column.server_default is not None or column.autoincrement is True
            )
            ends = "" if given else REQUIRED
            yield f"table {table.name} > {column.name}", column.type.compile(dialect) + ends


def _redis() -> Iterator[tuple[str, str]]:
    yield from KEY_LINE.findall(keys.__doc__ or "")


def _command_line() -> Iterator[tuple[str, str]]:
    for name, value in vars(cli_errors).items():
        if name.startswith("EXIT_"):
            yield f"exit status {name.removeprefix('EXIT_').lower()}", str(value)
    for old, new in RENAMED.items():
        yield f"penstock {old}", f"penstock {new}"
    yield from _commands("penstock", typer.main.get_command(command_line()))


def _commands(name: str, command: Any) -> Iterator[tuple[str, str]]:
    yield name, "a group" if hasattr(command, "commands") else "a command"
    for one in command.params:
        ends = REQUIRED if one.required else ""
        for flag in (*one.opts, *one.secondary_opts):
            taken = "" if getattr(one, "is_flag", False) else " with a value"
            yield f"{name} > {flag}", f"{one.param_type_name}{taken}{ends}"
    for part, inside in getattr(command, "commands", {}).items():
        yield from _commands(f"{name} {part}", inside)


def _report() -> Iterator[tuple[str, str]]:
    yield "report.json", "object"
    yield from ((f"report.json > {one.name}", str(one.type)) for one in fields(Report))


class Contract(NamedTuple):
    """What others build on, the number of its present form, and how its facts are found."""

    version: int
    facts: Callable[[], Iterator[tuple[str, str]]]


CONTRACTS: Final[Mapping[str, Contract]] = {
    "item-message": Contract(2, _messages),
    "http-api": Contract(1, _http),
    "job-spec-file": Contract(1, _job_file),
    "sql-schema": Contract(1, _sql),
    "redis-keys": Contract(1, _redis),
    "command-line": Contract(1, _command_line),
    "report-json": Contract(1, _report),
}


def written(version: int, facts: Mapping[str, str]) -> str:
    lines = (f"{name} = {value}\n" for name, value in sorted(facts.items()))
    return f"version {version}\n" + "".join(lines)


def golden(name: str) -> tuple[int, Facts]:
    """The version and the facts that the last release promised."""
    head, *lines = (GOLDEN / f"{name}.txt").read_text("utf-8").splitlines()
    pairs = (line.partition(" = ") for line in lines)
    return int(head.removeprefix("version ")), {key: value for key, _, value in pairs}


def _only_more_choices(before: str, now: str) -> bool:
    """Whether what may be chosen is all there still, with something besides."""
    first = "one of "
    earlier, later = (
        {choice for one in value.split(" or ") for choice in one.removeprefix(first).split(", ")}
        for value in (before, now)
    )
    return first in before and first in now and earlier <= later


def broken(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What a client, a file or a process of the last release could stumble over."""
    found = [f"removed: {name} = {before[name]}" for name in sorted(before.keys() - now.keys())]
    found += [
        f"changed: {name} = {now[name]}, was {before[name]}"
        for name in sorted(before.keys() & now.keys())
        if before[name] != now[name] and not _only_more_choices(before[name], now[name])
    ]
    return found + [
        f"added as required: {name} = {now[name]}"
        for name in sorted(now.keys() - before.keys())
        if now[name].endswith(REQUIRED) and name.rpartition(" > ")[0] in before
    ]


if __name__ == "__main__":
    for name, contract in CONTRACTS.items():
        (GOLDEN / f"{name}.txt").write_text(
            written(contract.version, dict(contract.facts())), "utf-8"
        )
    for sample, raw in message_samples().items():
        place = GOLDEN / f"item-message-{sample}.json"
        if not place.exists():  # what an earlier release wrote stays
            place.write_bytes(raw + b"\n")
