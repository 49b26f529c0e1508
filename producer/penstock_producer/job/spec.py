"""The job spec: how a batch of documents is to be inferred.

Checked once, where it enters; trusted everywhere after."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Final, Literal, Self, TypeVar, get_args

import orjson
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticKnownError

from penstock_ledger.redaction import redact
from penstock_ledger.vectors import VectorType
from penstock_producer.errors import Problem, SpecError, pointer_to, seen
from penstock_producer.job.endpoints import (
    CHAT,
    EMBEDDINGS,
    MAX_PATH_CHARS,
    UPLOADS,
    check_path,
)
from penstock_producer.job.fallback import (
    MAX_FALLBACKS,
    USUAL_REASONS,
    FallbackModel,
    FallbackReason,
)
from penstock_producer.job.lanes import (
    AUTO,
    LANES,
    Lane,
    LaneAsked,
    has_own_model,
    lanes_in_words,
    permitted,
)
from penstock_producer.job.levers import (
    ANSWERED_IN_TEXT,
    MAX_STEPS,
    Escalation,
    Step,
    escalation_of,
    steps_of,
    steps_problems,
)
from penstock_producer.job.options import OPTIONS, SINK_FIELDS
from penstock_producer.job.params import (
    KNOWN,
    Suggestions,
    as_sent,
    param_name_problems,
    param_problems,
    params_of,
    too_many_unknown,
)
from penstock_producer.job.repeats import CACHE_MAX_S, CACHE_MIN_S, Dedup, reuse_problems
from penstock_producer.job.response_format import FIELD, AskedFormat, ResponseFormat, format_asked
from penstock_producer.job.response_schema import schema_problems
from penstock_producer.job.routing import MAX_ROUTES, RoutingTable, table_problems
from penstock_producer.job.sinks import columns_problem, sink_problems
from penstock_producer.job.targets import RULE_CHARS, RuleFault, Target, target_problems
from penstock_producer.job.tiers import Tier, has_flex, tier_named, tier_problems
from penstock_producer.prompts.examples import example_problems
from penstock_producer.prompts.languages import Language, prompt_of
from penstock_producer.prompts.tokens import counts_tokens, cut_of, in_words, pinned
from penstock_producer.source_formats import FORMATS, check_encoding

__all__ = [
    "MAX_BUDGET_USD",
    "MAX_KEEP_CHARS",
    "MAX_SPAN_S",
    "OFF",
    "JobSpec",
    "Overflow",
    "Priority",
    "RowOrder",
]


OutputFormat = Literal["jsonl", "csv", "parquet", "xlsx"]
RowOrder = Literal["source", "done"]
Priority = Literal["urgent", "normal", "low"]
Overflow = Literal["fail", "shrink", "trim"]
OverBudget = Literal["warn", "refuse"]
BatchFiles = Literal["keep", "delete"]
MAX_KEEP_CHARS: Final = (
    100_000  # some thousand names; a table of more keeps all, or is made of fewer
)

# Contexts of validation: each is recognised by its identity.
ACCEPTED: Final[dict[str, Any]] = {"a": "spec that a door has accepted"}
ALONE: Final[dict[str, Any]] = {"a": "spec whose fields are looked at one by one"}

MAX_ATTEMPTS_CAP = 100  # more tries than this are a loop, not a retry policy
MAX_SCHEMA_REPAIRS = 10  # a model that is wrong so often about one document needs another prompt
# a job that should get more than a hundred times another's part is urgent, or the other one low
MAX_JOB_WEIGHT = 100.0
# one Redis takes what fewer of them publish; each is a row and a lease in the database
MAX_FEEDERS = 64
MAX_BATCH_REQUESTS = 100_000  # of one batch: no provider takes more
MAX_BATCH_POLL_S = 3_600.0  # between two looks at a batch
MAX_QUERY_CHARS = 100_000  # of SQL
MAX_TOKENIZER_CHARS = 4_096  # a path, and a digest
MAX_BAD_ROWS = 2**53 - 1  # what JSON holds exactly; a job has fewer documents
# more is a slip of the keyboard, and no sum in millionths of it fits a column
MAX_BUDGET_USD = 1e12
MAX_SPAN_S = 100 * 366 * 86_400.0  # a hundred years: moments behind it have no date
MAX_MEDIA_FIELDS = 20  # columns; a row may name as many files
MAX_PROMPT_TOKENS = 1_000_000_000  # no model takes more
# of one field that is a list or an object: each may be wrong, and then has an error of its own
MAX_ENTRIES = 1_000
# a template longer than any context window is probably a file given by mistake
MAX_PROMPT_CHARS = 1_000_000

# as in "package.module:function"
HookPath = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", max_length=256)]
Column = Annotated[str, Field(min_length=1, max_length=512)]
RuleText = Annotated[str, Field(min_length=1, max_length=RULE_CHARS)]
PositiveFloat = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Span = Annotated[PositiveFloat, Field(le=MAX_SPAN_S)]  # seconds


def _format_name(given: Any) -> str:
    if isinstance(given, str) and given in FORMATS:
        return given
    *first, last = map(repr, FORMATS)
    raise PydanticKnownError("literal_error", {"expected": f"{', '.join(first)} or {last}"})


SourceFormatName = Annotated[
    str,
    PlainValidator(_format_name),
    WithJsonSchema({"enum": list(FORMATS), "type": "string"}),
]

RESPONSE_FORMATS: Final[tuple[str, ...]] = get_args(ResponseFormat)

_Spec = TypeVar("_Spec", bound="JobSpec")
OFF: Final = "off"
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d+)?)%")


def _of(field: str, **limits: Any) -> Any:
    """Return a field with its meaning and default from the table of options."""
    option = OPTIONS[field]
    return Field(default=option.default, description=option.help, **limits)


class JobSpec(BaseModel):
    """The work to do with each document.

    Constructing one with anything unusable raises SpecError with every problem.

    ``prompt`` or ``messages_field`` decides the form of the input: with one of them the source
    holds plain records, without it holds OpenAI Batch lines. A batch line keeps its own body:
    ``model`` and ``params`` only fill in what the body lacks.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, str_strip_whitespace=False, protected_namespaces=()
    )

    # What each field means, and its default, stands in options.py: flags and docs say the same.
    lane: LaneAsked = _of("lane")
    lanes: list[Lane] | None = _of("lanes", min_length=1)
    provider: str = _of("provider", pattern=r"^[A-Za-z0-9_-]{1,64}$")
    endpoint: str = _of("endpoint", max_length=MAX_PATH_CHARS)
    model: str | None = _of("model", min_length=1, max_length=512)
    template: Language = _of("template")  # before the prompt, which is checked with it
    prompt: str | None = _of("prompt", min_length=1, max_length=MAX_PROMPT_CHARS)
    system: str | None = _of("system", min_length=1, max_length=MAX_PROMPT_CHARS)
    messages_field: str | None = _of("messages_field", min_length=1, max_length=512)
    examples: list[dict[str, Any]] = Field(
        default_factory=list, description=OPTIONS["examples"].help
    )
    truncate: dict[Column, Annotated[int, Field(strict=True)] | str] = Field(
        default_factory=dict, description=OPTIONS["truncate"].help
    )
    tokenizer: str | None = _of("tokenizer", min_length=1, max_length=MAX_TOKENIZER_CHARS)
    compress_prompt: Annotated[bool, Field(strict=True)] = _of("compress_prompt")
    image_fields: Annotated[list[Column], Field(max_length=MAX_MEDIA_FIELDS)] = Field(
        default_factory=list, description=OPTIONS["image_fields"].help
    )
    audio_fields: Annotated[list[Column], Field(max_length=MAX_MEDIA_FIELDS)] = Field(
        default_factory=list, description=OPTIONS["audio_fields"].help
    )
    id_field: str = _of("id_field", min_length=1, max_length=512)
    format: SourceFormatName | None = _of("format")
    table: str | None = _of("table", min_length=1, max_length=256)
    query: str | None = _of("query", min_length=1, max_length=MAX_QUERY_CHARS)
    sheet: str | None = _of("sheet", min_length=1, max_length=100)
    encoding: str | None = _of("encoding", max_length=64)
    # checked by params.py
    params: dict[str, Any] = Field(default_factory=dict, description=OPTIONS["params"].help)
    param_fields: dict[str, Column] = Field(
        default_factory=dict, description=OPTIONS["param_fields"].help
    )
    max_attempts: Annotated[int, Field(strict=True, ge=1, le=MAX_ATTEMPTS_CAP)] = _of(
        "max_attempts"
    )
    timeout_s: Span = _of("timeout_s")
    deadline_s: Span | None = _of("deadline_s")
    budget_usd: Annotated[PositiveFloat, Field(le=MAX_BUDGET_USD)] | None = _of("budget_usd")
    over_budget: OverBudget = _of("over_budget")
    stop_at_dead: str = _of("stop_at_dead", max_length=16)
    stop_at_usd_per_doc: Annotated[PositiveFloat, Field(le=MAX_BUDGET_USD)] | None = _of(
        "stop_at_usd_per_doc"
    )
    tier: Tier | None = _of("tier")
    max_prompt_tokens: Annotated[int, Field(strict=True, ge=1, le=MAX_PROMPT_TOKENS)] | None = _of(
        "max_prompt_tokens"
    )
    max_bad_rows: Annotated[int, Field(strict=True, ge=0, le=MAX_BAD_ROWS)] | str = _of(
        "max_bad_rows"
    )
    response_schema: dict[str, Any] | None = _of("response_schema")
    # None: of a release that sent none
    response_format: ResponseFormat | None = _of("response_format")
    schema_repairs: Annotated[int, Field(strict=True, ge=0, le=MAX_SCHEMA_REPAIRS)] = _of(
        "schema_repairs"
    )
    fallback: list[FallbackModel] | None = _of("fallback", min_length=1, max_length=MAX_FALLBACKS)
    fallback_on: list[FallbackReason] | None = _of("fallback_on", min_length=1)
    routes: list[RuleText] | None = _of("routes", min_length=1, max_length=MAX_ROUTES)
    escalate: RuleText | None = _of("escalate")
    degrade: list[RuleText] | None = _of("degrade", min_length=1, max_length=MAX_STEPS)
    priority: Priority = _of("priority")
    weight: Annotated[float, Field(strict=True, gt=0, le=MAX_JOB_WEIGHT)] = _of("weight")
    tenant: str | None = _of("tenant", pattern=r"^[A-Za-z0-9_.:@/-]{1,64}$")
    preprocess: HookPath | None = _of("preprocess")
    postprocess: HookPath | None = _of("postprocess")
    on_overflow: Overflow = _of("on_overflow")
    embedding_dtype: VectorType | None = _of("embedding_dtype")
    prefix_order: Annotated[bool, Field(strict=True)] | None = _of("prefix_order")
    dedup: Dedup = _of("dedup")
    prompt_cache: Literal["off", "auto", "on", "explicit"] = _of("prompt_cache")
    cache_s: Annotated[PositiveFloat, Field(ge=CACHE_MIN_S, le=CACHE_MAX_S)] | None = _of("cache_s")
    feeders: Annotated[int, Field(strict=True, ge=1, le=MAX_FEEDERS)] | None = _of("feeders")
    batch_max_requests: Annotated[int, Field(strict=True, ge=1, le=MAX_BATCH_REQUESTS)] | None = (
        _of("batch_max_requests")
    )
    batch_poll_s: Annotated[PositiveFloat, Field(le=MAX_BATCH_POLL_S)] | None = _of("batch_poll_s")
    batch_files: BatchFiles = _of("batch_files")
    output_format: OutputFormat | None = _of("output_format")
    keep_columns: str = _of("keep_columns", min_length=1, max_length=MAX_KEEP_CHARS)
    order: RowOrder = _of("order")
    escape_formulas: Annotated[bool, Field(strict=True)] | None = _of("escape_formulas")
    # its limits are looked at where its value is not shown
    into: str | None = _of("into", min_length=1)
    into_table: str | None = _of("into_table", min_length=1, max_length=128)
    into_id: str = _of("into_id", min_length=1, max_length=128)

    @model_validator(mode="wrap")
    @classmethod
    def _explain(
        cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        if info.context is not ACCEPTED:
            _refuse_bulk(data)
        spec = _each_field_checked(data, handler)
        if info.context is ALONE:
            return spec
        problems = [
            *spec._together_problems(),
            *(() if info.context is ACCEPTED else spec._new_problems()),
        ]
        if problems:
            raise SpecError(problems)
        return spec

    @classmethod
    def field_problems(cls, given: Mapping[str, Any]) -> Sequence[Problem]:
        """Return what is wrong with each field by itself, where others are not known yet."""
        try:
            cls.model_validate(dict(given), context=ALONE)
        except SpecError as error:
            return error.problems
        return ()

    @property
    def takes_records(self) -> bool:
        """Return whether the rows of the source are plain records, not OpenAI Batch lines."""
        made = self.prompt is not None or self.messages_field is not None
        return made or (self.sends_files and bool(self.image_fields or self.audio_fields))

    @property
    def sends_files(self) -> bool:
        """Return whether its requests may be made of files alone."""
        return self.endpoint in UPLOADS or self.endpoint == EMBEDDINGS

    @property
    def has_rules(self) -> bool:
        """Return whether documents may be asked otherwise than the job says."""
        return bool(self.routes or self.escalate or self.degrade)

    @property
    def asks_one_model(self) -> bool:
        """Return whether all of its documents begin with the job's own model."""
        return self.takes_records and not self.routes

    @property
    def permitted_lanes(self) -> tuple[str, ...]:
        """Return where its documents may go, the preferred one first."""
        return permitted(self.lane, self.lanes)

    @property
    def first_lane(self) -> str:
        """The one that it begins with, and whose form its requests have."""
        return self.permitted_lanes[0]

    @property
    def lets_choose_flex(self) -> bool:
        """Return whether its documents may be asked for in flex where that is the better choice."""
        has_own = self.tier is not None or tier_named(self.params) is not None
        return self.lane == AUTO and not has_own and has_flex(self.endpoint)

    def tier_in(self, lane: str) -> str | None:
        """Return the service tier that its requests name, as flex.

        None in lanes in which no provider answers in real time."""
        return (self.tier or tier_named(self.params)) if LANES[lane].is_real_time else None

    @property
    def asks_a_provider(self) -> bool:
        """Return whether it may go to one: then requests name their model, and cost money."""
        return not all(map(has_own_model, self.permitted_lanes))

    def _together_problems(self) -> Iterable[Problem]:
        yield from self._without_prompt()
        yield from self._lane_problems()
        if self.fallback_on and not self.fallback:
            yield Problem("invalid_value", "/fallback_on", "it needs models", "name one: fallback")
        if self.tokenizer is not None and self.tokens_counted is None:
            fix = "give a limit in tokens, as truncate text=2000t, or leave it out"
            yield Problem(
                "invalid_value", "/tokenizer", "there is nothing that it would count", fix
            )
        if self.table is not None and self.query is not None:
            fix = "keep one of them; a query may name the table"
            yield Problem(
                "invalid_value", "/query", "a source is read by a table or by a query", fix
            )

    def _lane_problems(self) -> Iterable[Problem]:
        named = self.lanes or ()
        if len(set(named)) < len(named):
            yield Problem(
                "invalid_value",
                "/lanes",
                f"{seen(','.join(named))} names a lane twice",
                "name each once",
            )
        if self.lane != AUTO and named and self.lane not in named:
            fix = f"add {self.lane} to them, or let lane be {AUTO}"
            yield Problem(
                "invalid_value",
                "/lanes",
                f"the lane that the job begins with, {self.lane}, is not there",
                fix,
            )

    def _new_problems(self) -> Iterable[Problem]:
        """Yield what is wrong with a job that is submitted now; jobs of the ledger may have it."""
        yield from self._reuse_problems()
        if self.tier is not None:
            yield from tier_problems(self.tier, self.endpoint, self.permitted_lanes, self.params)
        yield from self._format_problems()
        yield from self._rule_problems()
        yield from sink_problems(
            self.output_format, self.escape_formulas, self.into, self.into_table, self.into_id
        )
        if problem := columns_problem(self.keep_columns, self.order):
            yield Problem("invalid_value", "/keep_columns", *problem)

    def _without_prompt(self) -> Iterable[Problem]:
        """Yield a problem for options that say how a prompt is made, where there is none."""
        if self.prompt is not None and self.messages_field is not None:
            message = "a prompt is given, too, and messages need none"
            yield Problem("invalid_value", "/messages_field", message, "keep one of them")
        needs = () if self.takes_records else _NEEDS_RECORDS.items()
        for field, (message, fix) in (
            *needs,
            *(() if self.prompt is not None else _NEEDS_PROMPT.items()),
        ):
            is_file = self.sends_files and field in ("image_fields", "audio_fields")
            if getattr(self, field) and not is_file:
                yield Problem("invalid_value", f"/{field}", message, fix)

    @field_validator("lane", mode="plain", json_schema_input_type=LaneAsked)
    @classmethod
    def _check_lane(cls, lane: Any) -> Any:
        if not isinstance(lane, str) or lane not in (*LANES, AUTO):
            raise ValueError(f"lanes are {lanes_in_words()}; {AUTO} chooses")
        return lane

    @field_validator("lanes", mode="plain", json_schema_input_type=list[Lane] | None)
    @classmethod
    def _check_lanes(cls, lanes: Any) -> Any:
        if lanes is None:
            return None
        strange = (
            [lane for lane in lanes if lane not in LANES]
            if isinstance(lanes, list | tuple)
            else [lanes]
        )
        if strange or not lanes:
            raise ValueError(
                f"give a list of lanes, in the order of preference; lanes are {lanes_in_words()}"
            )
        return list(lanes)

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, endpoint: str) -> str:
        return check_path(endpoint)

    @field_validator("prompt")
    @classmethod
    def _check_prompt(cls, prompt: str | None, info: ValidationInfo) -> str | None:
        language = info.data.get("template")  # None where that is unusable itself
        if (
            prompt is not None
            and language is not None
            and not (info.context is ACCEPTED and language == "jinja")
        ):
            prompt_of(prompt, language)
        return prompt

    @field_validator("examples")
    @classmethod
    def _check_examples(
        cls, examples: list[dict[str, Any]], info: ValidationInfo
    ) -> list[dict[str, Any]]:
        problems = [] if info.context is ACCEPTED else list(example_problems(examples))
        if problems:
            raise SpecError(problems)
        return examples

    @field_validator("truncate")
    @classmethod
    def _check_truncate(cls, truncate: dict[str, int | str]) -> dict[str, int | str]:
        problems = []
        for name, policy in truncate.items():
            try:
                cut_of(policy)
            except ValueError as error:
                problems.append(
                    Problem(
                        "invalid_value",
                        pointer_to("truncate", name),
                        f"{seen(policy)} is refused",
                        str(error),
                    )
                )
        if problems:
            raise SpecError(problems)
        return truncate

    @field_validator("params")
    @classmethod
    def _check_params(cls, params: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        endpoint = info.data.get("endpoint")  # None where that is unusable itself
        problems = (
            []
            if info.context is ACCEPTED or endpoint is None
            else list(param_problems(params, endpoint))
        )
        if problems:
            raise SpecError(problems)
        return params

    @field_validator("param_fields")
    @classmethod
    def _check_param_fields(cls, columns: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        endpoint = info.data.get("endpoint")
        known = info.context is ACCEPTED or endpoint is None
        problems = (
            [] if known else list(param_name_problems(columns, str(endpoint), "/param_fields"))
        )
        if problems:
            raise SpecError(problems)
        return columns

    @field_validator("encoding")
    @classmethod
    def _check_encoding(cls, encoding: str | None) -> str | None:
        return None if encoding is None else check_encoding(encoding)

    @field_validator("response_schema")
    @classmethod
    def _check_schema(
        cls, schema: dict[str, Any] | None, info: ValidationInfo
    ) -> dict[str, Any] | None:
        problems = () if schema is None or info.context is ACCEPTED else schema_problems(schema)
        if problems:
            raise SpecError(problems)
        return schema

    @field_validator("response_format", mode="plain", json_schema_input_type=ResponseFormat)
    @classmethod
    def _check_format(cls, given: Any, info: ValidationInfo) -> Any:
        if given is None and info.context is not ACCEPTED:
            return OPTIONS["response_format"].default
        if given is not None and given not in RESPONSE_FORMATS:
            raise ValueError(f"give one of {', '.join(RESPONSE_FORMATS)}")
        return given

    @field_validator("stop_at_dead")
    @classmethod
    def _check_stop(cls, value: str) -> str:
        if value != OFF and (_PERCENT.fullmatch(value) is None or not 0 < float(value[:-1]) <= 100):
            raise ValueError(
                f'write a share such as "50%", more than 0% and at most 100%, or {OFF}'
            )
        return value

    @field_validator("max_bad_rows")
    @classmethod
    def _check_bad_rows(cls, value: int | str) -> int | str:
        if isinstance(value, str) and (
            _PERCENT.fullmatch(value) is None or float(value[:-1]) > 100
        ):
            raise ValueError('write a number of rows such as 100, or a share such as "1%"')
        return value

    def _format_problems(self) -> Iterable[Problem]:
        if self.response_format not in ("json_schema", "json_object"):
            return
        known = params_of(self.endpoint)
        if self.response_format == "json_schema" and self.response_schema is None:
            message, fix = "there is no schema to ask for", "give the schema: response_schema"
        elif known is not None and (FIELD not in known or known[FIELD].among):
            message, fix = f"{self.endpoint} has no parameter {FIELD}", "leave it out"
        elif self.asked_format.format is None:
            message, fix = self.asked_format.why, "keep one of them"
        else:
            return
        yield Problem("invalid_value", "/response_format", message, fix)

    def _rule_problems(self) -> Iterable[Problem]:
        """Yield what is wrong with the rules by which documents go to other models."""
        routes = list(table_problems(self.routes or ()))
        yield from routes
        for rule in () if routes else self.routing.rules:
            if rule.target is not None:
                at = pointer_to("routes", rule.number - 1)
                yield from self._target_problems(rule.target, at)
        steps = list(
            steps_problems(
                self.degrade or (),
                has_deadline=self.deadline_s is not None,
                has_budget=self.budget_usd is not None,
            )
        )
        yield from steps
        for step in () if steps else self.steps:
            yield from self._target_problems(step.target, pointer_to("degrade", step.number - 1))
        if self.escalate is not None:
            yield from self._escalation_problems(self.escalate)

    def _target_problems(self, target: Target, pointer: str) -> Iterable[Problem]:
        return target_problems(target, self.endpoint, self.permitted_lanes, self.params, pointer)

    def _escalation_problems(self, text: str) -> Iterable[Problem]:
        try:
            rule = escalation_of(text)
        except RuleFault as fault:
            yield Problem("invalid_value", "/escalate", f"{seen(text)} is refused", str(fault))
            return
        yield from self._target_problems(rule.target, "/escalate")
        if self.endpoint not in ANSWERED_IN_TEXT:
            why = f"answers of {self.endpoint} have no text that a rule could look into"
            yield Problem("invalid_value", "/escalate", why, "leave it out")
        elif rule.by_logprob and (
            self.endpoint != CHAT or as_sent(self.params).get("logprobs") is not True
        ):
            why = "answers have no log probabilities where requests do not ask for them"
            fix = f"send logprobs=true to {CHAT}, or compare a field of the answer"
            yield Problem("invalid_value", "/escalate", why, fix)

    def _reuse_problems(self) -> Iterable[Problem]:
        # else rows have parameters of their own
        decides = self.prompt is not None and not self.param_fields
        return reuse_problems(
            self.dedup,
            self.cache_s,
            endpoint=self.endpoint,
            params=as_sent(self.params) if decides else None,
            preprocess=self.preprocess,
            postprocess=self.postprocess,
        )

    @property
    def reuses_answers(self) -> bool:
        """Return whether documents may take the answers to equal requests."""
        return self.dedup != "off" or self.cache_s is not None

    @property
    def routing(self) -> RoutingTable:
        """Return the rules by which documents take another route."""
        return RoutingTable(self.routes or ())

    def asked_as(self, target: Target) -> Self:
        """Return the job as it asks for a document that a rule sends to this target."""
        changes: dict[str, Any] = {"params": {**self.params, **dict(target.params)}}
        if target.model is not None:
            changes["model"] = target.model
        if target.provider is not None:
            changes["provider"] = target.provider
            # the tiers of one provider are not those of another
            changes["tier"] = self.tier if target.provider == self.provider else None
        if target.tier is not None:
            changes["tier"] = target.tier
        return self.model_copy(update=changes)

    @property
    def asked_by_rules(self) -> list[tuple[str, Self]]:
        """Return the job as each of its rules asks, with the rule's pointer."""
        found, asked = list[tuple[str, Self]](), self
        for rule in self.routing.rules:
            if rule.target is not None:
                found.append((pointer_to("routes", rule.number - 1), self.asked_as(rule.target)))
        if self.escalation is not None:
            found.append(("/escalate", self.asked_as(self.escalation.target)))
        for step in self.steps:  # each step gives way further than the one before
            asked = asked.asked_as(step.target)
            found.append((pointer_to("degrade", step.number - 1), asked))
        return found

    @property
    def providers_of_rules(self) -> dict[str, str]:
        """Return the other providers that rules name, each with the pointer of a rule that does."""
        asked = ((one.provider, pointer) for pointer, one in self.asked_by_rules)
        return {provider: pointer for provider, pointer in asked if provider != self.provider}

    @property
    def escalation(self) -> Escalation | None:
        return None if self.escalate is None else escalation_of(self.escalate)

    @property
    def steps(self) -> list[Step]:
        """Return the steps by which the job gives way as its deadline or budget comes near."""
        return steps_of(self.degrade or ())

    @property
    def stop_at_share(self) -> float | None:
        """The share of ``stop_at_dead``; None where it is off."""
        return None if self.stop_at_dead == OFF else float(self.stop_at_dead[:-1]) / 100

    def bad_rows_allowed(self, total: int) -> int:
        """Return how many of ``total`` rows may be refused before the whole source is.

        Shares round up, so that one row of forty does not stop a job; all rows are only ever
        refused where the share is 100 %.
        """
        if isinstance(self.max_bad_rows, int):
            return self.max_bad_rows
        percent = Decimal(self.max_bad_rows[:-1])
        allowed = math.ceil(total * percent / 100)
        return allowed if percent == 100 else min(allowed, max(0, total - 1))

    def sent_params(self) -> dict[str, Any]:
        """Return what each request carries that has no value of its own there.

        The names are those that are sent.
        """
        asked = self.asked_format.format
        form = {} if asked is None else {FIELD: asked}
        vectors = {} if self.embedding_dtype is None else {"output_dtype": self.embedding_dtype}
        return form | as_sent(self.params) | vectors

    @property
    def asked_format(self) -> AskedFormat:
        """Return what requests without a `response_format` of their own get for one."""
        if self.response_format is None:
            return AskedFormat(None, "the job was accepted by a release that sent none")
        return format_asked(
            self.response_format,
            self.response_schema,
            endpoint=self.endpoint,
            lane=next(
                (lane for lane in self.permitted_lanes if not has_own_model(lane)), self.first_lane
            ),
            params=as_sent(self.params).keys(),
        )

    @property
    def enforced_schema(self) -> dict[str, Any] | None:
        """Return the schema that an engine in the worker enforces where requests do not say it."""
        return None if self.response_format in ("json_object", "none") else self.response_schema

    @property
    def falls_back_on(self) -> Collection[str]:
        """Reasons for which a document goes to the next model of ``fallback``."""
        return self.fallback_on or USUAL_REASONS

    @property
    def tokens_counted(self) -> str | None:
        """By what limits in tokens are counted, in words; None where there are none."""
        return in_words(self.tokenizer) if any(map(counts_tokens, self.truncate.values())) else None

    def with_pinned_tokenizer(self) -> Self:
        """Return the spec with the digest of its tokenizer.

        Raises SpecError for a file that cannot be read here.
        """
        if self.tokenizer is None:
            return self
        try:
            return self.model_copy(update={"tokenizer": pinned(self.tokenizer)})
        except ValueError as error:
            problem = Problem(
                "invalid_value", "/tokenizer", f"{seen(self.tokenizer)} is refused", str(error)
            )
            raise SpecError([problem]) from None

    def without_sinks(self) -> Self:
        """Return the spec without sinks, for a process that writes the results itself."""
        return self.model_copy(update={name: OPTIONS[name].default for name in SINK_FIELDS})

    def to_json(self) -> dict[str, Any]:
        """Return the spec as the ledger stores it; ``JobSpec.accepted`` reads it back."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Self:
        """Return a spec from a mapping of any origin. Raises SpecError."""
        if not isinstance(given, Mapping):
            raise SpecError(
                [
                    Problem(
                        "invalid_type", "", f"a spec is an object, not {seen(given)}", "see JobSpec"
                    )
                ]
            )
        return cls(**{str(name): value for name, value in given.items()})

    @classmethod
    def accepted(cls, stored: Mapping[str, Any]) -> Self:
        """Return the spec of a job in the ledger.

        Parameters that this release would refuse do not stop a job of an earlier one.
        """
        return cls.model_validate({"response_format": None, **stored}, context=ACCEPTED)


def _refuse_bulk(data: Any) -> None:
    """Raise SpecError for more fields and entries than could have an error each."""
    if not isinstance(data, Mapping):
        return
    bulk = too_many_unknown([name for name in data if name not in JobSpec.model_fields])
    problems = [] if bulk is None else [bulk]
    for name in data.keys() & JobSpec.model_fields.keys():
        value = data[name]
        if isinstance(value, list | tuple | Mapping) and len(value) > MAX_ENTRIES:
            message = f"it has {len(value):,} entries"
            problems.append(
                Problem("invalid_value", f"/{name}", message, f"give at most {MAX_ENTRIES:,}")
            )
    if problems:
        raise SpecError(problems)


def _each_field_checked(data: Any, handler: Callable[[Any], _Spec]) -> _Spec:
    """Raise SpecError with what is wrong with every field.

    A field whose check ends the others' is left out for the next try.
    """
    given = dict(data) if isinstance(data, Mapping) else data
    first: SpecError | None = None
    problems: list[Problem] = []
    for _ in range(len(JobSpec.model_fields) + 1):
        try:
            spec = handler(given)
        except ValidationError as error:
            problems += _problems(error)
            break
        except SpecError as error:
            first = first or error
            problems += error.problems
            fields = {
                problem.pointer.split("/")[1]
                for problem in error.problems
                if "/" in problem.pointer
            }
            if not isinstance(given, dict) or not fields & given.keys():
                break
            given = {name: value for name, value in given.items() if name not in fields}
        else:
            problems += _unwritable(spec)
            if not problems:
                return spec
            break
    if first is not None and len(first.problems) == len(problems):
        raise first
    raise SpecError(problems)


def json_problems(value: Any, pointer: str) -> Iterable[Problem]:
    """Yield a problem for a value of which no JSON is written.

    Such are numbers of more than 64 bits and half characters in a list or object.
    """
    try:
        orjson.dumps(value, default=repr)
    except TypeError as error:
        fix = "write numbers of at most 64 bits, text that is UTF-8, and few levels"
        yield Problem("invalid_value", pointer, f"it cannot be kept as JSON: {error}", fix)


def _unwritable(spec: JobSpec) -> Iterable[Problem]:
    for name in spec.model_fields_set:
        value = getattr(spec, name)
        if isinstance(value, dict | list):
            yield from json_problems(value, f"/{name}")


def _problems(error: ValidationError) -> Iterable[Problem]:
    suggestions = Suggestions()
    for detail in error.errors(include_url=False):
        pointer = pointer_to(*(part for part in detail["loc"] if part not in _UNION_BRANCHES))
        if detail["type"] == "extra_forbidden":
            name = str(detail["loc"][-1])
            yield Problem(
                "unknown_field",
                pointer,
                f"there is no field {seen(name)}",
                _did_you_mean(name, suggestions),
            )
            continue
        kind = (
            "invalid_type"
            if "type" in detail["type"] or "parsing" in detail["type"]
            else "invalid_value"
        )
        yield Problem(
            kind, pointer, f"{redact(seen(detail['input']))} is refused", _fix(detail["msg"])
        )


def _fix(message: str) -> str:
    """Return Pydantic's sentence without its preamble.

    The messages raised in this module are sentences already.
    """
    return message.removeprefix("Value error, ")


_NEEDS_RECORDS: Final = {
    "system": (
        "a system text needs a prompt",
        "give a prompt as well, or put a system message into each batch line",
    ),
    "param_fields": (
        "columns belong to plain records",
        "give a prompt as well; a batch line has parameters of its own",
    ),
    "examples": (
        "examples need a prompt",
        "give a prompt as well, or put them into each batch line",
    ),
    "compress_prompt": (
        "there is no prompt",
        "give a prompt as well; a batch line is sent as it is",
    ),
    "routes": (
        "rules look at columns of plain records",
        "give a prompt as well; a batch line names its own model",
    ),
}
_NEEDS_PROMPT: Final = {
    "truncate": ("columns are cut for a prompt, and there is none", "give a prompt as well"),
    "image_fields": (
        "images go behind a prompt, and there is none",
        "give a prompt as well, or put them into messages",
    ),
    "audio_fields": (
        "sounds go behind a prompt, and there is none",
        "give a prompt as well, or put them into messages",
    ),
}
_UNION_BRANCHES = frozenset({"constrained-int", "int", "str"})


def _did_you_mean(name: str, suggestions: Suggestions) -> str:
    candidates = {field: field for field in JobSpec.model_fields}
    candidates |= {param: f"params.{param}" for param in KNOWN if param not in candidates}
    if name in KNOWN:
        return f"provider parameters go under params: params.{name}"
    close = suggestions.close_to(name, candidates)
    if close is not None:
        return f"did you mean {candidates[close]!r}?"
    return "fields are: " + ", ".join(JobSpec.model_fields)
