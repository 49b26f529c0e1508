"""The section `run` of a job spec file: what only `penstock run` needs; every other door leaves it
alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from penstock_producer.errors import Problem, seen
from penstock_producer.job.endpoints import Kind
from penstock_producer.job.options import RUN_OPTIONS

__all__ = ["RunSection", "run_problems"]

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
    concurrency: Annotated[int, Field(strict=True, ge=1)] | None = _of("concurrency")
    sample: Annotated[int, Field(strict=True, ge=1, le=10_000)] | None = _of("sample")
    no_progress: Annotated[bool, Field(strict=True)] | None = _of("no_progress")
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
    """What is wrong with the fields of the section.

    What stands where a variable's name should may be the key itself."""
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
