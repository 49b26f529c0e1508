"""The names that a job spec file may have, its section `run`, and its JSON Schema.

The package carries the schema as `job-spec.schema.json`, and the docs beside their page; a test
holds both to what this makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from penstock_ledger.redaction import is_secret_name, looks_secret
from penstock_producer.errors import Problem, seen
from penstock_producer.job.endpoints import Kind
from penstock_producer.job.options import OPTIONS, RUN_OPTIONS, FlagForm
from penstock_producer.job.params import KNOWN, UNCHECKED, close_to
from penstock_producer.job.spec import JobSpec
from penstock_producer.jobfile.tree import Node

__all__ = [
    "DURATIONS",
    "FILES",
    "TOP",
    "RunSection",
    "json_schema",
    "name_problems",
    "run_problems",
    "secret_problems",
]

DURATIONS: Final[Mapping[str, str]] = {
    option.flag.replace("-", "_"): option.field
    for option in OPTIONS.values()
    if option.form is FlagForm.DURATION
}
"""Durations under their flags' names, as people write them: `deadline: 8h` for `deadline_s:
28800`."""
FILES: Final[Mapping[str, str]] = {
    f"{option.field}_file": option.field for option in OPTIONS.values() if option.from_file
}
"""Texts that may stand in a file of their own, by the name that says so."""
TOP: Final[Mapping[str, str]] = {
    "source": "The documents: a file or s3://bucket/key; a relative path counts from this file.",
    "from_job": (
        "In the place of a source: the outcomes of this job, which has ended; its id or key."
    ),
    "where": (
        "Beside from_job: a condition on its outcomes, such as status=dead or score<0.5, or a list "
        "of them."
    ),
    "job": "Names the job; the same key resumes it.",
    "run": "What only a run on one machine needs; other doors leave it alone.",
    "$schema": "For editors; not read.",
}
_JOB_NAMES = (*TOP, *OPTIONS, *DURATIONS, *FILES)
# how alike two names are that differ by about one: `max_token` is no secret, `api_key` is one
_ONE_LETTER = 0.9
# texts for models, which may speak of keys
_CONTENT = frozenset({"prompt", "system", "response_schema", "examples"})


def name_problems(root: Node) -> Iterator[Problem]:
    """Yield a problem for each unknown name, at the top and in the section `run`."""
    for name in root.value:
        if name not in _JOB_NAMES:
            yield _unknown(
                name, f"/{name}", _JOB_NAMES, {field: f"run.{field}" for field in RUN_OPTIONS}
            )
    run = root.value.get("run")
    if run is not None and isinstance(run.value, dict):
        for name in run.value:
            if name not in RUN_OPTIONS:
                elsewhere = {field: f"{field} at the top of the file" for field in _JOB_NAMES}
                yield _unknown(name, f"/run/{name}", tuple(RUN_OPTIONS), elsewhere)


def _unknown(
    name: str, pointer: str, names: tuple[str, ...], elsewhere: Mapping[str, str]
) -> Problem:
    usual = name.lower().replace("-", "_")
    others = {one: one for one in names} | {
        one: place for one, place in elsewhere.items() if one not in names
    }
    known = others | {param: f"params.{param}" for param in KNOWN if param not in others}
    close = close_to(usual, known)
    if is_secret_name(usual) and close_to(usual, known, _ONE_LETTER) is None:
        return _secret(pointer, "this field would hold a secret")
    if usual in names:
        fix = f"write {usual}"
    elif usual in others:
        fix = f"it is {others[usual]}"
    elif usual in known:
        fix = f"parameters of requests go under params: params.{usual}"
    else:
        fix = (
            f"did you mean {known[close]!r}?"
            if close is not None
            else "fields are: " + ", ".join(names)
        )
    return Problem("unknown_field", pointer, f"there is no field {seen(name)}", fix)


def secret_problems(root: Node) -> Iterator[Problem]:
    """Yield a problem for values that look like keys or hold a password. They are never shown."""
    for name, node in root.value.items():
        if name not in _CONTENT:
            yield from _secrets_in(node, f"/{name}")


def _secrets_in(node: Node, pointer: str) -> Iterator[Problem]:
    waiting: list[tuple[Any, str]] = [(node, pointer)]
    while waiting:
        one, at = waiting.pop()
        if isinstance(one.value, str) and looks_secret(one.value):
            yield _secret(at, "the value looks like a key, or holds a password (it is not shown)")
        elif isinstance(one.value, dict):
            for name, inner in one.value.items():
                if name.startswith(UNCHECKED) and is_secret_name(name):
                    yield _secret(f"{at}/{name}", "this parameter would hold a secret")
                else:
                    waiting.append((inner, f"{at}/{name}"))
        elif isinstance(one.value, list):
            waiting += [(inner, f"{at}/{index}") for index, inner in enumerate(one.value)]


def _secret(pointer: str, why: str) -> Problem:
    fix = (
        "take it out, a job spec is stored and shown: name the variable that holds the key with "
        "run.api_key_env, or have the workers' settings name it"
    )
    if pointer == "/into":
        fix = (
            "take it out, a job spec is stored and shown: write into: env:NAME, the variable of "
            "the writing process that holds the URL"
        )
    return Problem("secret_in_spec", pointer, why, fix)


Text = Annotated[str, Field(min_length=1, max_length=2_000)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Price = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]


def _of(field: str) -> Any:
    return Field(default=None, description=RUN_OPTIONS[field])


class RunSection(BaseModel):
    """Each field as the flag of the same name; None where the file does not say."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    out: Text | None = _of("out")
    state: Text | None = _of("state")
    workers: Annotated[int, Field(strict=True, ge=1, le=256)] | None = _of("workers")
    gpus: Annotated[int, Field(strict=True, ge=1, le=256)] | Text | None = _of("gpus")
    concurrency: Annotated[int, Field(strict=True, ge=1)] | None = _of("concurrency")
    sample: Annotated[int, Field(strict=True, ge=1, le=10_000)] | None = _of("sample")
    no_progress: Annotated[bool, Field(strict=True)] | None = _of("no_progress")
    wait: Annotated[bool, Field(strict=True)] | None = _of("wait")
    api: Kind | None = _of("api")
    base_url: Text | None = _of("base_url")
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")] | None = _of(
        "api_key_env"
    )
    profile: Text | None = _of("profile")
    rpm: Positive | None = _of("rpm")
    tpm: Positive | None = _of("tpm")
    itpm: Positive | None = _of("itpm")
    otpm: Positive | None = _of("otpm")
    usd_per_mtok_in: Price | None = _of("usd_per_mtok_in")
    usd_per_mtok_out: Price | None = _of("usd_per_mtok_out")


def run_problems(error: ValidationError) -> Iterable[Problem]:
    """Yield what is wrong with the fields of the section `run`.

    What stands where a variable's name should be may be the key itself, and is not shown.
    """
    for detail in error.errors(include_url=False):
        name = str(detail["loc"][0])
        kind = "invalid_type" if "type" in detail["type"] else "invalid_value"
        if name == "api_key_env":
            why, fix = (
                "this is not the name of a variable",
                "write its name, such as OPENAI_API_KEY, never a key",
            )
            yield Problem("invalid_value", f"/run/{name}", why, fix)
        else:
            yield Problem(
                kind, f"/run/{name}", f"{seen(detail['input'])} is refused", detail["msg"]
            )


_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    spec = JobSpec.model_json_schema()
    fields: dict[str, Any] = {
        name: {"type": "string", "description": text} for name, text in TOP.items() if name != "run"
    }
    fields["where"] |= {"type": ["string", "array"], "items": {"type": "string"}}
    fields |= spec["properties"]
    for name, field in DURATIONS.items():
        text = (
            f"{OPTIONS[field].help} As people write it, 90s or 1h30m, or in seconds; or {field}, "
            "in seconds."
        )
        fields[name] = {"type": ["string", "number"], "description": text}
    for name, field in FILES.items():
        fields[name] = {
            "type": "string",
            "description": f"A text file with the {field}; a relative path counts from this file.",
        }
    schema = fields["response_schema"]
    named = {
        "type": "string",
        "description": "A JSON file that holds it, or a Pydantic model: package.module:Model.",
    }
    schema["anyOf"] = [*schema["anyOf"], named]
    run = RunSection.model_json_schema()
    fields["run"] = {
        "type": "object",
        "description": TOP["run"],
        "properties": run["properties"],
        "additionalProperties": False,
    }
    return {
        "$schema": _DIALECT,
        "title": "A Penstock job spec file",
        "type": "object",
        "properties": {name: _untitled(field) for name, field in fields.items()},
        "additionalProperties": False,
    } | ({"$defs": spec["$defs"]} if "$defs" in spec else {})


def _untitled(field: dict[str, Any]) -> dict[str, Any]:
    """Return the field without Pydantic's titles, which repeat the names."""
    kept = {name: value for name, value in field.items() if name != "title"}
    if isinstance(kept.get("properties"), dict):
        kept["properties"] = {name: _untitled(inner) for name, inner in kept["properties"].items()}
    return kept
