"""values.schema.json, completed from values.yaml: what each value means and is by itself, which an editor shows.

Types and bounds are written by hand; what a value means stands in the comment above it, once. `make chart` adds it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Set
from typing import Any, Final, NamedTuple

from chart.values_table import Key, keys
from commands_page import meanings
from pydantic import BaseModel

from penstock_gateway.settings import GatewayFields
from penstock_workers.settings import ProviderSettings, WorkerSettings

Schema = dict[str, Any]

DEFS: Final = "#/$defs/"
# Their values are laid over poolDefaults, whose defaults are those of a pool.
OVER_DEFAULTS: Final = ("kinds.", "workerPools.")
# What the chart sets itself.
GATEWAYS_OWN: Final = frozenset({"host", "port", "files", "drain_s"})
# A line of the file, which people read.
COLUMNS: Final = 140


class Place(NamedTuple):
    """A key of values.yaml, and what the schema says of it."""

    key: Key
    schema: Schema


def resolved(root: Schema, schema: Schema) -> Schema:
    reference = schema.get("$ref")
    found: Schema = root["$defs"][reference.removeprefix(DEFS)] if reference else schema
    return found


def place_of(root: Schema, path: str) -> tuple[Schema | None, bool]:
    """What the schema says of a key, None where it takes none of this name; and whether the name is
    the user's own."""
    schema, named = root, False
    for part in path.split("."):
        within = resolved(root, schema)
        more = within.get("additionalProperties")
        found: Schema | None = within.get("properties", {}).get(part)
        named = found is None
        if found is not None:
            schema = found
        elif isinstance(more, dict):
            schema = more
        else:
            return None, True
    return schema, named


def completed(schema: Schema, values: str) -> Schema:
    """The schema with the comments and defaults of values.yaml, and the fields of settings with those
    of their classes."""
    root = copy.deepcopy(schema)
    pool, defaults = root["$defs"]["pool"], root["$defs"]["poolDefaults"]
    own = {name: pool["properties"][name] for name in ("enabled", "kind")}
    pool["properties"] = own  # the rest comes below
    described = set[int]()
    said: dict[int, list[Any]] = {}
    for place in places(root, values):
        if id(place.schema) not in described:
            described.add(id(place.schema))
            put_first(place.schema, "description", place.key.comment)
        if place.key.is_leaf and not place.key.path.startswith(OVER_DEFAULTS):
            said.setdefault(id(place.schema), []).append(place.key.default)
            # Images and the like are described once for all: only what they all have is a default.
            place.schema.pop("default", None)
            first, *others = said[id(place.schema)]
            if all(one == first for one in others):
                place.schema["default"] = first
    provider = root["$defs"]["provider"]["properties"]
    for name, text in meanings(ProviderSettings).items():
        if text and name in provider:
            put_first(provider[name], "description", text)
    # Named one by one: what Helm says of `propertyNames` stands at the place of another value.
    gateway = root["properties"]["gateway"]["properties"]["settings"]
    gateway["properties"] = settings_of(GatewayFields, but=GATEWAYS_OWN)
    root["$defs"]["settings"]["properties"] = settings_of(WorkerSettings)
    pool["properties"] = own | copy.deepcopy(defaults["properties"])
    return root


def settings_of(model: type[BaseModel], but: Set[str] = frozenset()) -> Schema:
    """Return each setting with what its class says of it."""
    said = meanings(model)
    return {
        name: {"description": said.get(name) or "As in penstock.toml: docs/commands.md."}
        for name in sorted(set(model.model_fields) - but)
    }


def places(root: Schema, values: str) -> Iterator[Place]:
    """Each key of values.yaml that the schema names."""
    for key in keys(values):
        schema, named = place_of(root, key.path)
        if schema is not None and not named:
            yield Place(key, schema)


def put_first(schema: Schema, name: str, value: Any) -> None:
    rest = {other: schema[other] for other in schema if other != name}
    schema.clear()
    schema.update({name: value, **rest})


def text(schema: Schema) -> str:
    return _written(schema, 0, 0) + "\n"


def _written(value: Any, indent: int, before: int) -> str:
    """JSON on one line where it fits behind ``before`` characters, on a line for each part where not."""
    short = json.dumps(value, ensure_ascii=False)
    if before + len(short) <= COLUMNS or not isinstance(value, dict | list) or not value:
        return short
    inner = " " * (indent + 2)
    if isinstance(value, list):
        parts = [_written(one, indent + 2, indent + 3) for one in value]
        opened, closed = "[", "]"
    else:
        parts = []
        for name, one in value.items():
            begun = f"{json.dumps(name, ensure_ascii=False)}: "
            parts.append(begun + _written(one, indent + 2, indent + 3 + len(begun)))
        opened, closed = "{", "}"
    joined = f",\n{inner}".join(parts)
    return f"{opened}\n{inner}{joined}\n{' ' * indent}{closed}"
