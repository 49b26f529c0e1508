"""The job spec: how a batch of documents is to be inferred. Checked once, where it enters; trusted everywhere after."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from penstock_producer.endpoints import MAX_PATH_CHARS, check_path
from penstock_producer.errors import Problem, SpecError, seen
from penstock_producer.response_schema import schema_problems
from penstock_producer.template import Template

Lane = Literal["api", "gpu", "embed", "batch"]
LANES: Final[tuple[Lane, ...]] = get_args(Lane)
Priority = Literal["urgent", "normal", "low"]
Overflow = Literal["fail", "shrink", "trim"]
CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"

MAX_ATTEMPTS_CAP = 100  # more tries than this are a loop, not a retry policy
MAX_WEIGHT = 100.0  # a job that should get more than a hundred times another's part is urgent, or the other one low
MAX_PROMPT_CHARS = 1_000_000  # a template longer than any context window is a file given by mistake

HookPath = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", max_length=256)]  # "package.module:function"
PositiveFloat = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]

_COUNT_PARAMS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n", "top_logprobs", "dimensions")
_NUMBER_PARAMS = ("temperature", "top_p", "frequency_penalty", "presence_penalty")
# Offered by "did you mean": provider parameters that belong under `params`.
_KNOWN_PARAMS = (*_COUNT_PARAMS, *_NUMBER_PARAMS, "stop", "seed", "logprobs", "response_format", "tools")
_FIELDS_OF_THE_BODY = frozenset({"model", "messages", "input", "prompt", "instructions"})
_STORED: Final = {"stored": True}  # the validation context of ``JobSpec.stored``
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d+)?)%")


class JobSpec(BaseModel):
    """What to do with each document. Constructing one with anything unusable raises SpecError with every problem.

    ``prompt`` decides the form of the input: with a prompt the source holds plain records, without one it holds OpenAI
    Batch lines. A batch line keeps its own body: ``model`` and ``params`` only fill in what the body lacks.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=False, protected_namespaces=())

    lane: Lane = "api"
    provider: str = Field(default="default", pattern=r"^[A-Za-z0-9_-]{1,64}$")
    endpoint: str = Field(
        default=CHAT, max_length=MAX_PATH_CHARS
    )  # which ones: endpoints.py, and the provider's setting
    model: str | None = Field(default=None, min_length=1, max_length=512)
    prompt: str | None = Field(default=None, min_length=1, max_length=MAX_PROMPT_CHARS)
    system: str | None = Field(default=None, min_length=1, max_length=MAX_PROMPT_CHARS)
    id_field: str = Field(default="id", min_length=1, max_length=512)
    params: dict[str, Any] = Field(default_factory=dict)
    max_attempts: Annotated[int, Field(strict=True, ge=1, le=MAX_ATTEMPTS_CAP)] = 4  # the first try and three retries
    timeout_s: PositiveFloat = 120.0  # one request, not the job
    deadline_s: PositiveFloat | None = None  # the whole job, from submit
    budget_usd: PositiveFloat | None = None
    max_bad_rows: Annotated[int, Field(strict=True, ge=0)] | str = "1%"
    response_schema: dict[str, Any] | None = None
    priority: Priority = "normal"  # urgent passes what waits already; low takes a small part while others live
    weight: Annotated[float, Field(strict=True, gt=0, le=MAX_WEIGHT)] = 1.0  # its part among the jobs of its tenant
    tenant: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.:@/-]{1,64}$")  # tenants share evenly; None is one
    preprocess: HookPath | None = None  # called in the worker with each item before it is sent; see hooks.py
    postprocess: HookPath | None = None  # called with each answer before it is stored
    on_overflow: Overflow = "fail"  # gpu and embed lanes: of too long a prompt, shrink max_tokens, or trim it as well
    prefix_order: bool | None = None  # feed alike beginnings together; None = gpu jobs with a prompt

    @model_validator(mode="wrap")
    @classmethod
    def _explain(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            spec = handler(data)
        except ValidationError as error:
            raise SpecError(list(_problems(error))) from None
        if spec.system is not None and spec.prompt is None:
            fix = "give a prompt as well, or put a system message into each batch line"
            raise SpecError([Problem("invalid_value", "/system", "a system text needs a prompt", fix)])
        return spec

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, endpoint: str) -> str:
        return check_path(endpoint)

    @field_validator("prompt")
    @classmethod
    def _check_prompt(cls, prompt: str | None) -> str | None:
        if prompt is not None:
            Template(prompt)
        return prompt

    @field_validator("params")
    @classmethod
    def _check_params(cls, params: dict[str, Any]) -> dict[str, Any]:
        problems = list(_param_problems(params))
        if problems:
            raise SpecError(problems)
        return params

    @field_validator("response_schema")
    @classmethod
    def _check_schema(cls, schema: dict[str, Any] | None, info: ValidationInfo) -> dict[str, Any] | None:
        problems = () if schema is None or info.context is _STORED else schema_problems(schema)
        if problems:
            raise SpecError(problems)
        return schema

    @field_validator("max_bad_rows")
    @classmethod
    def _check_bad_rows(cls, value: int | str) -> int | str:
        if isinstance(value, str) and (_PERCENT.fullmatch(value) is None or float(value[:-1]) > 100):
            raise ValueError('write a number of rows such as 100, or a share such as "1%"')
        return value

    def bad_rows_allowed(self, total: int) -> int:
        """How many of ``total`` rows may be refused before the whole source is; shares round down."""
        if isinstance(self.max_bad_rows, int):
            return self.max_bad_rows
        return int(total * float(self.max_bad_rows[:-1]) / 100)

    def to_json(self) -> dict[str, Any]:
        """The spec as the ledger stores it; ``JobSpec.stored`` reads it back."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """A spec from a mapping of any origin. Raises SpecError."""
        if not isinstance(stored, Mapping):
            raise SpecError([Problem("invalid_type", "", f"a spec is an object, not {seen(stored)}", "see JobSpec")])
        return cls(**{str(name): value for name, value in stored.items()})

    @classmethod
    def stored(cls, spec: Mapping[str, Any]) -> Self:
        """A spec as the ledger holds it. Its schema was looked at when it entered, and is not looked at again.

        Raises SpecError.
        """
        return cls.model_validate({**spec}, context=_STORED)


def _problems(error: ValidationError) -> Iterable[Problem]:
    for detail in error.errors(include_url=False):
        pointer = "".join(f"/{part}" for part in detail["loc"] if part not in _UNION_BRANCHES)
        if detail["type"] == "extra_forbidden":
            name = str(detail["loc"][-1])
            yield Problem("unknown_field", pointer, f"there is no field {seen(name)}", _did_you_mean(name))
            continue
        kind = "invalid_type" if "type" in detail["type"] or "parsing" in detail["type"] else "invalid_value"
        yield Problem(kind, pointer, f"{seen(detail['input'])} is refused", detail["msg"])


_UNION_BRANCHES = frozenset({"constrained-int", "int", "str"})


def _did_you_mean(name: str) -> str:
    candidates = {field: field for field in JobSpec.model_fields}
    candidates |= {param: f"params.{param}" for param in _KNOWN_PARAMS}
    if name in _KNOWN_PARAMS:
        return f"provider parameters go under params: params.{name}"
    close = difflib.get_close_matches(name, candidates, n=1)
    if close:
        return f"did you mean {candidates[close[0]]!r}?"
    return "fields are: " + ", ".join(JobSpec.model_fields)


def _param_problems(params: Mapping[str, Any]) -> Iterable[Problem]:
    for name in _COUNT_PARAMS:
        value = params.get(name)
        if value is not None and (type(value) is not int or value < 1):
            kind = "invalid_value" if type(value) is int else "invalid_type"
            yield Problem(kind, f"/params/{name}", f"{seen(value)} is refused", "give an integer of at least 1")
    for name in _NUMBER_PARAMS:
        value = params.get(name)
        if value is not None and type(value) not in (int, float):
            yield Problem("invalid_type", f"/params/{name}", f"{seen(value)} is refused", "give a number")
    for name in _FIELDS_OF_THE_BODY & params.keys():
        yield Problem("invalid_value", f"/params/{name}", f"{name} is no parameter", "use the spec's model and prompt")
    if params.get("stream"):
        yield Problem("streaming_unsupported", "/params/stream", "results are stored whole, not streamed", "remove it")
