"""Schemas of requests and answers of the jobs API, each with an example for OpenAPI."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from penstock_gateway.webhook_delivery import URL_MAX
from penstock_producer.job.spec import MAX_BUDGET_USD, MAX_SPAN_S

__all__ = [
    "BatchTroubleResponse",
    "Between",
    "CancelOrPause",
    "Extrapolation",
    "JobDetails",
    "JobList",
    "JobResponse",
    "Limits",
    "Move",
    "NewItem",
    "NewJob",
    "PreviewResponse",
    "Purged",
    "Pushed",
    "RequestResponse",
    "RowResponse",
    "Sealed",
    "UnreadResponse",
]

WHERE_MAX: Final = 20  # conditions on outcomes
SAMPLE_MAX: Final = 10_000  # documents: an interval from more is hardly narrower

_COUNTS: Final = {
    "total": 1000,
    "succeeded": 994,
    "succeeded_after_retry": 12,
    "dead": 6,
    "remaining": 0,
    "dead_by_reason": {"bad_request": 6},
}
_USAGE: Final = {
    "calls": 1012,
    "prompt_tokens": 120345,
    "completion_tokens": 48021,
    "cost_usd": 0.046864,
}
_JOB: Final[dict[str, Any]] = {
    "object": "job",
    "id": "job_k3v7q2m4n6p8r2t4w6y2",
    "job": "tickets-2026-11-21",
    "tenant": "shop",
    "state": "completed",
    "reason": None,
    "pause": None,
    "resume_at": None,
    "generation": 1,
    "lane": "api",
    "open": False,
    "created_at": 1763740800.2,
    "finished_at": 1763741012.8,
    "counts": _COUNTS,
    "usage": _USAGE,
}


def _like(example: Any) -> ConfigDict:
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [example]})


class NewJob(BaseModel):
    """A job: its documents, and the job options as in a job spec file (docs/job-options.md)."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "job": "tickets-2026-11-21",
                    "source": "s3://corpora/tickets.jsonl",
                    "model": "gpt-x",
                    "prompt": "Summarise: {text}",
                    "params": {"max_tokens": 64},
                },
                {
                    "job": "tickets-live",
                    "open": True,
                    "model": "gpt-x",
                    "prompt": "Summarise: {text}",
                },
            ]
        },
    )

    job: StrictStr | None = Field(
        None, description="A key of your own: submitting the same again gives the same job."
    )
    source: StrictStr | None = Field(
        None,
        description=(
            "The documents: the id of an uploaded file, or a path or s3:// URI inside source_roots."
        ),
    )
    from_job: StrictStr | None = Field(
        None, description="Read the outcomes of this job instead of a source."
    )
    where: list[StrictStr] = Field(
        default_factory=list,
        max_length=WHERE_MAX,
        description="Conditions on the outcomes of from_job, such as status=dead.",
    )
    open: StrictBool = Field(
        False, description="Without a source: documents are pushed until the job is sealed."
    )

    sample: Annotated[StrictInt, Field(ge=1, le=SAMPLE_MAX)] | None = Field(
        None,
        description=(
            "Draw this many documents of the source at random and make them a job of their own; "
            "see its extrapolation."
        ),
    )

    callback_url: Annotated[StrictStr, Field(min_length=1, max_length=URL_MAX)] | None = Field(
        None,
        description=(
            "Where events of this job are sent, as those of webhooks. The header "
            "x-penstock-callback-secret of the answer has the secret that signs them."
        ),
    )

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Counts(BaseModel):
    total: int | None = Field(description="null while an open job is not sealed.")
    succeeded: int
    succeeded_after_retry: int
    dead: int
    remaining: int | None
    dead_by_reason: dict[str, int]


class Usage(BaseModel):
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None = Field(
        description="What the job has spent, over all generations and lanes, whatever became of "
        "the documents. null where of some of it no price is known; the report has the "
        "known part (known_usd)."
    )


class AdviceResponse(BaseModel):
    """Something to do about a pause."""

    text: str
    change: dict[str, Any] | None = Field(
        description="What to send to PATCH /v1/jobs/{job} before the job is resumed."
    )


class PauseResponse(BaseModel):
    """The reason why a job is paused."""

    code: str = Field(
        description="Such as by_hand, budget_exhausted, stop_dead or out_of_credit; "
        "docs/gateway-jobs.md lists them. Decide by this, not by the message."
    )
    by: str = Field(description="person, control, budget, provider, lane, source or stop_loss.")
    params: dict[str, Any] = Field(
        description="What belongs to the code: sums, shares, examples, what was reported."
    )
    message: str = Field(description="The pause as a sentence.")
    advice: list[AdviceResponse]


class JobResponse(BaseModel):
    """A job, and how far it is. Times are Unix seconds."""

    model_config = _like(_JOB)

    object: Literal["job"] = "job"
    id: str
    job: str | None = Field(description="The key that its submitter gave it.")
    tenant: str | None
    state: str
    reason: str | None = Field(description="Why it is paused or has failed.")
    pause: PauseResponse | None = Field(
        description="Why it is paused, as data; null where it is not paused."
    )
    resume_at: float | None = Field(description="When a paused job goes on by itself.")
    generation: int
    lane: str
    open: bool = Field(description="Whether it still takes documents.")
    created_at: float
    finished_at: float | None
    counts: Counts
    usage: Usage


class WaitResponse(BaseModel):
    """The reason why documents of a running job wait."""

    code: str = Field(description="Such as no_worker, no_model, redis_full and slots_taken.")
    params: dict[str, str] = Field(description="The words of the message that belong to the code.")
    message: str


class BatchTroubleResponse(BaseModel):
    """The trouble that holds provider batches up. Times are Unix seconds."""

    provider: str
    batches: int = Field(description="How many batches wait for this.")
    call: str = Field(description="The call that fails: upload, create, look, answers or delete.")
    name: str = Field(
        description="The name of the failure, as `server_error`, `forbidden` or `answers_missing`."
    )
    said: str = Field(description="What the provider said about one of them.")
    status: int | None = Field(description="The status of the provider's HTTP answer.")
    since: float
    times: int = Field(description="How often it has failed in a row.")
    again_at: float = Field(description="When the call is tried again.")


class UnreadResponse(BaseModel):
    """Answers of provider batches that were paid for and could not be read."""

    answers: int
    cost_usd: float | None = Field(
        description="The most that they cost, estimated; null where no price is known."
    )


class JobDetails(JobResponse):
    """The same with what only one job is shown with."""

    model_config = _like(
        _JOB
        | {
            "waits_for": None,
            "waits": [
                {
                    "code": "slots_taken",
                    "params": {"slots": "64", "workers": "one worker", "number": "9 documents"},
                    "message": "all 64 slots of one worker are taken; waiting for one: 9 documents",
                }
            ],
            "batch_troubles": [],
            "unread": None,
            "items_per_second": 4.7,
            "eta_s": None,
            "retries": 12,
            "rate_limited": 3,
            "retried_by_reason": {"http_429": 12},
            "lanes": [],
            "started_by": None,
            "source": {"kind": "s3", "uri": "s3://corpora/tickets.jsonl"},
            "spec": {"model": "gpt-x", "prompt": "Summarise: {text}"},
        }
    )

    waits_for: str | None = Field(
        description="Why calls of a running job wait: the budget of its tenant for the month."
    )
    waits: list[WaitResponse] = Field(
        description="Why documents of a running job wait, the most serious first."
    )
    batch_troubles: list[BatchTroubleResponse] = Field(
        description="What its open provider batches wait for."
    )
    unread: UnreadResponse | None
    items_per_second: float
    eta_s: float | None = Field(
        description="Seconds to the end at the rate so far; null where that is not known."
    )
    retries: int
    rate_limited: int
    retried_by_reason: dict[str, int]
    lanes: list[dict[str, Any]] = Field(
        description="Each choice and change of its lane, with its reason."
    )
    started_by: dict[str, Any] | None = Field(description="The schedule that started it.")
    source: dict[str, Any]
    spec: dict[str, Any]


class JobList(BaseModel):
    """Newest first. `next` is the cursor of older jobs, `previous` that of newer ones."""

    model_config = _like({"object": "list", "data": [_JOB], "next": None, "previous": None})

    object: Literal["list"] = "list"
    data: list[JobResponse]
    next: str | None
    previous: str | None


class RowResponse(BaseModel):
    """A row that would not become a document."""

    line: int
    doc_id: str | None
    code: str
    field: str | None
    message: str
    fix: str


class RequestResponse(BaseModel):
    """A request as it would be sent. Tokens are estimated."""

    doc_id: str
    line: int
    url: str
    body: dict[str, Any]
    tokens_in: int
    tokens_out: int
    tokens_out_capped: bool = Field(description="Whether tokens_out is an upper limit.")


class PromptCacheResponse(BaseModel):
    """The use that a job would make of its provider's prompt cache."""

    documents: int = Field(description="Documents that share a beginning with others.")
    beginnings: int
    read_tokens: int = Field(description="Read from the cache, where each is written once.")
    written_tokens: int
    usual_usd: float = Field(description="What the job costs without the cache.")
    least_usd: float = Field(description="With it, where each beginning is written once.")
    most_usd: float = Field(description="With it, where as little is read as may be.")
    explicit: int = Field(description="Caches that are made and paid for by the hour.")


class PreviewResponse(BaseModel):
    """Says what a job would send and cost. Nothing was accepted and nothing was called."""

    model_config = _like(
        {
            "object": "preview",
            "rows": 1000,
            "whole": True,
            "documents": 994,
            "unusable": 6,
            "refusal": None,
            "tokens_in": 120345,
            "tokens_out": 63616,
            "tokens_out_capped": True,
            "tokens_by": "characters",
            "prompts_usd": 0.0181,
            "cost_usd": 0.0562,
            "routes": [{"rule": "lang=de -> model=gpt-y", "documents": 12, "cost_usd": 0.004}],
            "escalate": None,
            "degrade": [],
            "requests": [
                {
                    "doc_id": "ticket-17",
                    "line": 1,
                    "url": "/v1/chat/completions",
                    "tokens_in": 14,
                    "tokens_out": 64,
                    "body": {
                        "model": "gpt-x",
                        "messages": [{"role": "user", "content": "Summarise: …"}],
                        "max_tokens": 64,
                    },
                    "tokens_out_capped": True,
                }
            ],
            "problems": [
                {
                    "line": 2,
                    "doc_id": None,
                    "code": "invalid_json_line",
                    "field": None,
                    "message": "The line is no JSON.",
                    "fix": "one JSON object per line",
                }
            ],
        }
    )

    object: Literal["preview"] = "preview"
    rows: int = Field(description="How many rows were read.")
    whole: bool = Field(description="Whether these are all rows.")
    documents: int = Field(description="Rows that can be used.")
    unusable: int = Field(description="Rows that would be dead letters.")
    refusal: str | None = Field(description="Why a submit would be refused; null where not.")
    tokens_in: int
    tokens_out: int
    tokens_out_capped: bool = Field(description="Whether tokens_out is an upper limit.")
    tokens_by: str
    prompts_usd: float | None = Field(description="What prompts cost; null: no price is known.")
    cost_usd: float | None = Field(description="The same with answers, as long as they may be.")
    prompt_cache: PromptCacheResponse | None = Field(
        None, description="What the provider's prompt cache saves; null where it is not used."
    )
    routes: list[dict[str, Any]] = Field(
        description="Of each rule of `routes`: `rule`, `documents` and `cost_usd`."
    )
    escalate: dict[str, Any] | None = Field(
        description="`cost_usd_none`: where no answer goes on, `cost_usd_all`: where all do; what "
        "an earlier job says of that (`cost_usd`, `share`) is shown by the command line alone."
    )
    degrade: list[dict[str, Any]] = Field(
        description="Of each step: `step`, and `cost_usd_all`, by it from the first document on."
    )
    requests: list[RequestResponse] = Field(description="The first requests.")
    problems: list[RowResponse] = Field(description="The first rows that cannot be used.")


class Between(BaseModel):
    """A sum over all documents, with its interval."""

    low: float
    middle: float
    high: float


class Extrapolation(BaseModel):
    """The figures that a sample predicts for all documents."""

    model_config = _like(
        {
            "object": "extrapolation",
            "job": _JOB["id"],
            "tenant": "shop",
            "documents": 100000,
            "sampled": 200,
            "dead": 1,
            "confidence": 0.9,
            "tokens_in": {"low": 11800000.0, "middle": 12034500.0, "high": 12310000.0},
            "tokens_out": {"low": 4500000.0, "middle": 4802100.0, "high": 5110000.0},
            "cost_usd": {"low": 4.47, "middle": 4.69, "high": 4.91},
        }
    )

    object: Literal["extrapolation"] = "extrapolation"
    job: str
    tenant: str | None
    documents: int = Field(description="Usable documents of the whole source.")
    sampled: int = Field(
        description="Documents of the sample that have ended; fewer than 30 say little."
    )
    dead: int = Field(description="How many of these are dead letters.")
    confidence: float = Field(description="The share of such intervals that hold the true sum.")
    tokens_in: Between | None = Field(description="null before the first document has ended.")
    tokens_out: Between | None
    cost_usd: Between | None = Field(
        description="null where a price is missing, and for lanes that host a model."
    )


class CancelOrPause(BaseModel):
    model_config = _like({"reason": "the prompt is being corrected"})

    reason: Annotated[StrictStr, Field(min_length=1, max_length=500)] | None = None


class Move(BaseModel):
    model_config = _like({"lane": "batch", "reason": "no hurry any more"})

    lane: Annotated[StrictStr, Field(min_length=1, max_length=64)]
    reason: Annotated[StrictStr, Field(min_length=1, max_length=500)] = "moved over HTTP"


class Limits(BaseModel):
    """New limits. One that is left out stays; null lifts it."""

    model_config = _like({"budget_usd": 25.0})

    budget_usd: (
        Annotated[StrictFloat | StrictInt, Field(gt=0, le=MAX_BUDGET_USD, allow_inf_nan=False)]
        | None
    ) = None
    deadline_s: (
        Annotated[StrictFloat | StrictInt, Field(gt=0, le=MAX_SPAN_S, allow_inf_nan=False)] | None
    ) = None
    stop_at_dead: Annotated[StrictStr, Field(max_length=16)] | None = None
    stop_at_usd_per_doc: (
        Annotated[StrictFloat | StrictInt, Field(gt=0, le=MAX_BUDGET_USD, allow_inf_nan=False)]
        | None
    ) = None


class Purged(BaseModel):
    """It is forgotten: its id is unknown from now on."""

    model_config = _like(
        {
            "object": "job",
            "id": _JOB["id"],
            "job": _JOB["job"],
            "deleted": True,
            "outcomes": 1000,
        }
    )

    object: Literal["job"] = "job"
    id: str
    job: str | None
    deleted: Literal[True] = True
    outcomes: int = Field(description="Results and dead letters that were deleted.")


class NewItem(BaseModel):
    """One document: a record for the job's prompt, or a request body where the job has none."""

    model_config = _like({"id": "ticket-17", "document": {"text": "The parcel has not come."}})

    id: Annotated[StrictStr, Field(min_length=1, max_length=512)] | StrictInt
    document: dict[str, Any]


class PushedLine(BaseModel):
    line: int
    id: str | None
    outcome: Literal["accepted", "duplicate", "refused"]
    code: str | None = None
    message: str | None = None


class Pushed(BaseModel):
    """The fate of each document. Those that are not refused are durable."""

    model_config = _like(
        {
            "object": "items",
            "accepted": 1,
            "duplicates": 0,
            "refused": 0,
            "items": [
                {"line": 1, "id": "ticket-17", "outcome": "accepted", "code": None, "message": None}
            ],
        }
    )

    object: Literal["items"] = "items"
    accepted: int
    duplicates: int
    refused: int
    items: list[PushedLine]


class Sealed(BaseModel):
    model_config = _like({"object": "seal", "total": 1000})

    object: Literal["seal"] = "seal"
    total: int
