"""Which names a job spec file may have, and what is said about any other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from penstock_ledger.redaction import is_secret_name, looks_secret
from penstock_producer.errors import Problem, seen
from penstock_producer.job.options import OPTIONS, RUN_OPTIONS, FlagForm
from penstock_producer.job.params import KNOWN, UNCHECKED
from penstock_producer.job.unknown import close_to
from penstock_producer.jobfile.tree import Node

__all__ = ["DURATIONS", "FILES", "TOP", "name_problems", "secret_problems"]

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
    "run": "What only `penstock run` needs; other doors leave it alone.",
    "$schema": "For editors; not read.",
}
_JOB_NAMES = (*TOP, *OPTIONS, *DURATIONS, *FILES)
# how alike two names are that differ by about one: `max_token` is no secret, `api_key` is one
_ONE_LETTER = 0.9
_CONTENT = frozenset(
    {"prompt", "system", "response_schema", "examples"}
)  # texts for models, which may speak of keys


def name_problems(root: Node) -> Iterator[Problem]:
    """Unknown names, at the top and in the section `run`."""
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
    """Values that look like keys or hold a password. They are never shown."""
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
