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
from penstock_producer.params import KNOWN, param_problems
from penstock_producer.response_schema import schema_problems
from penstock_producer.template import Template

__all__ = ["CHAT", "EMBEDDINGS", "LANES", "LANES_WITH_A_MODEL_OF_THEIR_OWN", "JobSpec", "Lane", "Overflow", "Priority"]

Lane = Literal["api", "gpu", "embed", "batch"]
LANES: Final[tuple[Lane, ...]] = get_args(Lane)
LANES_WITH_A_MODEL_OF_THEIR_OWN: Final = frozenset({"gpu", "embed"})  # the worker hosts it: a request need not name one
Priority = Literal["urgent", "normal", "low"]
Overflow = Literal["fail", "shrink", "trim"]
CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"

ACCEPTED: Final[dict[str, Any]] = {}  # the context of validation for a spec that a door has accepted

MAX_ATTEMPTS_CAP = 100  # more tries than this are a loop, not a retry policy
MAX_WEIGHT = 100.0  # a job that should get more than a hundred times another's part is urgent, or the other one low
MAX_PROMPT_CHARS = 1_000_000  # a template longer than any context window is probably a file given by mistake

HookPath = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", max_length=256)]  # "package.module:function"
PositiveFloat = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]

_PERCENT = re.compile(r"(\d{1,3}(?:\.\d+)?)%")


class JobSpec(BaseModel):
    """What to do with each document. Constructing one with anything unusable raises SpecError with every problem.

    ``prompt`` decides the form of the input: with a prompt the source holds plain records, without one it holds OpenAI
    Batch lines. A batch line keeps its own body: ``model`` and ``params`` only fill in what the body lacks.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=False, protected_namespaces=())

    lane: Lane = Field(
        default="api", description="How documents are inferred: api, gpu or embed; batch is not built yet."
    )
    provider: str = Field(
        default="default",
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
        description="Which of the workers' providers answers, by its name in their settings.",
    )
    endpoint: str = Field(
        default=CHAT,
        max_length=MAX_PATH_CHARS,
        description="The path of the request at the provider: one of its dialect's, or of the provider's own settings.",
    )
    model: str | None = Field(
        default=None, min_length=1, max_length=512, description="The model, for requests that name none."
    )
    prompt: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_PROMPT_CHARS,
        description='Template over the fields of a plain record: "Summarise: {text}", {field|default:"none"} where it may '
        "be absent. None: documents are OpenAI Batch lines or request bodies.",
    )
    system: str | None = Field(
        default=None, min_length=1, max_length=MAX_PROMPT_CHARS, description="A system message before the prompt."
    )
    id_field: str = Field(
        default="id", min_length=1, max_length=512, description="The field of a plain record that names the document."
    )
    params: dict[str, Any] = Field(
        default_factory=dict,
        description="Request parameters such as max_tokens, checked by params.py; one of the provider's own is x.NAME.",
    )
    max_attempts: Annotated[int, Field(strict=True, ge=1, le=MAX_ATTEMPTS_CAP)] = Field(
        default=4, description="Tries per document, the first included."
    )
    timeout_s: PositiveFloat = Field(default=120.0, description="Seconds for one request.")
    deadline_s: PositiveFloat | None = Field(
        default=None, description="Seconds for the whole job, from its submit; what is left then is a dead letter."
    )
    budget_usd: PositiveFloat | None = Field(
        default=None, description="US dollars at which the job pauses. Needs prices in the settings of its provider."
    )
    max_bad_rows: Annotated[int, Field(strict=True, ge=0)] | str = Field(
        default="1%", description='Unusable rows to accept as dead letters: a number, or a share such as "1%".'
    )
    response_schema: dict[str, Any] | None = Field(
        default=None, description="JSON schema that the text of every answer must satisfy."
    )
    priority: Priority = Field(
        default="normal", description="urgent passes what waits already; low takes a small part while others live."
    )
    weight: Annotated[float, Field(strict=True, gt=0, le=MAX_WEIGHT)] = Field(
        default=1.0, description="The job's part of the fleet beside others of its tenant: 2 is twice."
    )
    tenant: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_.:@/-]{1,64}$",
        description="Whose job it is: tenants share the fleet evenly; jobs without one are one tenant.",
    )
    preprocess: HookPath | None = Field(
        default=None, description='"module:function", called in the worker with each item before it is sent.'
    )
    postprocess: HookPath | None = Field(
        default=None, description='"module:function", called with each answer before it is stored.'
    )
    on_overflow: Overflow = Field(
        default="fail",
        description="gpu and embed lanes, of a prompt that is too long: fail, shrink max_tokens, or trim the prompt as well.",
    )
    prefix_order: bool | None = Field(
        default=None, description="Feed prompts with alike beginnings together; None: in gpu jobs with a prompt."
    )

    @model_validator(mode="wrap")
    @classmethod
    def _explain(cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        try:
            spec = handler(data)
        except ValidationError as error:
            raise SpecError(list(_problems(error))) from None
        if spec.system is not None and spec.prompt is None:
            fix = "give a prompt as well, or put a system message into each batch line"
            raise SpecError([Problem("invalid_value", "/system", "a system text needs a prompt", fix)])
        if info.context is not ACCEPTED:
            problems = list(param_problems(spec.params, spec.endpoint))
            if problems:
                raise SpecError(problems)
        return spec

    @field_validator("lane", mode="before")
    @classmethod
    def _check_lane(cls, lane: Any) -> Any:
        if lane not in LANES:
            raise ValueError("lanes are api, gpu and embed")  # acceptance.py says of batch that it is not built yet
        return lane

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

    @field_validator("response_schema")
    @classmethod
    def _check_schema(cls, schema: dict[str, Any] | None, info: ValidationInfo) -> dict[str, Any] | None:
        problems = () if schema is None or info.context is ACCEPTED else schema_problems(schema)
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
        """The spec as the ledger stores it; ``JobSpec.accepted`` reads it back."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Self:
        """A spec from a mapping of any origin. Raises SpecError."""
        if not isinstance(given, Mapping):
            raise SpecError([Problem("invalid_type", "", f"a spec is an object, not {seen(given)}", "see JobSpec")])
        return cls(**{str(name): value for name, value in given.items()})

    @classmethod
    def accepted(cls, stored: Mapping[str, Any]) -> Self:
        """The spec of a job in the ledger. Parameters that this release would refuse do not stop a job of an earlier one."""
        return cls.model_validate(dict(stored), context=ACCEPTED)


def _problems(error: ValidationError) -> Iterable[Problem]:
    for detail in error.errors(include_url=False):
        pointer = "".join(f"/{part}" for part in detail["loc"] if part not in _UNION_BRANCHES)
        if detail["type"] == "extra_forbidden":
            name = str(detail["loc"][-1])
            yield Problem("unknown_field", pointer, f"there is no field {seen(name)}", _did_you_mean(name))
            continue
        kind = "invalid_type" if "type" in detail["type"] or "parsing" in detail["type"] else "invalid_value"
        yield Problem(kind, pointer, f"{seen(detail['input'])} is refused", _fix(detail["msg"]))


def _fix(message: str) -> str:
    """Pydantic's sentence without its preamble: the messages raised in this module are sentences already."""
    return message.removeprefix("Value error, ")


_UNION_BRANCHES = frozenset({"constrained-int", "int", "str"})


def _did_you_mean(name: str) -> str:
    candidates = {field: field for field in JobSpec.model_fields}
    candidates |= {param: f"params.{param}" for param in KNOWN if param not in candidates}
    if name in KNOWN:
        return f"provider parameters go under params: params.{name}"
    close = difflib.get_close_matches(name, candidates, n=1)
    if close:
        return f"did you mean {candidates[close[0]]!r}?"
    return "fields are: " + ", ".join(JobSpec.model_fields)
