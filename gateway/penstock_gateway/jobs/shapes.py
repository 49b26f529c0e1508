"""What requests and answers of the jobs API look like, each with an example for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

__all__ = [
    "CancelOrPause",
    "Estimate",
    "FailureShown",
    "JobDetails",
    "JobList",
    "JobShown",
    "Letter",
    "LetterList",
    "LetterShown",
    "Limits",
    "Move",
    "NewItem",
    "NewJob",
    "Noticed",
    "Pushed",
    "QuotaAccount",
    "QuotaList",
    "QuotaShown",
    "Replay",
    "Replayed",
    "ScheduleList",
    "ScheduleShown",
    "Sealed",
]

DOCS_MAX: Final = 10_000  # ids that one replay names
WHERE_MAX: Final = 20  # conditions on outcomes

_COUNTS: Final = {
    "total": 1000, "succeeded": 994, "succeeded_after_retry": 12, "dead": 6, "remaining": 0, "dead_by_reason": {"http_400": 6},
}  # fmt: skip
_USAGE: Final = {"calls": 1012, "prompt_tokens": 120345, "completion_tokens": 48021, "cost_usd": 0.046864}
_JOB: Final[dict[str, Any]] = {
    "object": "job", "id": "job_k3v7q2m4n6p8r2t4w6y2", "job": "tickets-2026-11-21", "tenant": "shop", "state": "completed",
    "reason": None, "resume_at": None, "generation": 1, "lane": "api", "open": False, "created_at": 1763740800.2,
    "finished_at": 1763741012.8, "counts": _COUNTS, "usage": _USAGE,
}  # fmt: skip
_LETTER: Final[dict[str, Any]] = {
    "doc_id": "ticket-17", "generation": 1, "reason": "http_400", "attempts": 1, "calls": 1, "status_code": 400,
    "last_error": "Invalid 'max_tokens': integer below minimum value.", "line": None, "created_at": 1763740931.4,
}  # fmt: skip
_FAILURE: Final[dict[str, Any]] = {
    "job_id": "job_k3v7q2m4n6p8r2t4w6y2", "name": "out_of_money", "text": "You exceeded your current quota.", "count": 3,
    "since": 1763740900.5, "last": 1763740931.4,
}  # fmt: skip
_ACCOUNT: Final[dict[str, Any]] = {
    "limits_per_s": {"requests": 8.33, "tokens": 3333.3}, "granted": 1012, "throttled": 2, "failures": 0,
    "hold": "out_of_money", "last_failures": [_FAILURE],
}  # fmt: skip
_QUOTA: Final[dict[str, Any]] = {
    "object": "quota", "id": "openai", "state": "held", "held_s": 72.5, "wait_s": 0.0, "account": _ACCOUNT,
}  # fmt: skip


def _like(example: Any) -> ConfigDict:
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [example]})


class NewJob(BaseModel):
    """A job: its documents, and the job options as a job spec file has them (docs/job-options.md)."""

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
                {"job": "tickets-live", "open": True, "model": "gpt-x", "prompt": "Summarise: {text}"},
            ]
        },
    )

    job: StrictStr | None = Field(None, description="A key of your own: submitting the same again gives the same job.")
    source: StrictStr | None = Field(
        None, description="The documents: the id of an uploaded file, or a path or s3:// URI inside source_roots."
    )
    from_job: StrictStr | None = Field(None, description="In the place of a source: the outcomes of this job.")
    where: list[StrictStr] = Field(
        default_factory=list, max_length=WHERE_MAX, description="Beside from_job: conditions, such as status=dead."
    )
    open: StrictBool = Field(False, description="No source: documents are pushed until the job is sealed.")

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
    cost_usd: float = Field(description="Of what is priced; the report says whether all of it is.")


class JobShown(BaseModel):
    """A job, and how far it is. Times are Unix seconds."""

    model_config = _like(_JOB)

    object: Literal["job"] = "job"
    id: str
    job: str | None = Field(description="The key that its submitter gave it.")
    tenant: str | None
    state: str
    reason: str | None = Field(description="Why it is paused or has failed.")
    resume_at: float | None = Field(description="When a paused job goes on by itself.")
    generation: int
    lane: str
    open: bool = Field(description="Whether it still takes documents.")
    created_at: float
    finished_at: float | None
    counts: Counts
    usage: Usage


class JobDetails(JobShown):
    """The same with what only one job is shown with."""

    model_config = _like(
        _JOB
        | {
            "items_per_second": 4.7, "eta_s": None, "retries": 12, "rate_limited": 3, "retried_by_reason": {"http_429": 12},
            "lanes": [], "started_by": None, "source": {"kind": "s3", "uri": "s3://corpora/tickets.jsonl"},
            "spec": {"model": "gpt-x", "prompt": "Summarise: {text}"},
        }
    )  # fmt: skip

    items_per_second: float
    eta_s: float | None = Field(description="At the rate so far; null where it is not known.")
    retries: int
    rate_limited: int
    retried_by_reason: dict[str, int]
    lanes: list[dict[str, Any]] = Field(description="Each choice and change of its lane, with its reason.")
    started_by: dict[str, Any] | None = Field(description="The schedule that started it.")
    source: dict[str, Any]
    spec: dict[str, Any]


class JobList(BaseModel):
    """Newest first. `next` is the cursor of older jobs, `previous` that of newer ones."""

    model_config = _like({"object": "list", "data": [_JOB], "next": None, "previous": None})

    object: Literal["list"] = "list"
    data: list[JobShown]
    next: str | None
    previous: str | None


class Estimate(BaseModel):
    """What a job would be. Nothing was accepted and nothing was called."""

    model_config = _like({
        "object": "estimate", "documents": 994, "unusable": 6, "tokens_in": 120345, "tokens_out": 63616,
        "tokens_out_capped": True, "tokens_by": "characters", "cost_usd": 0.0562,
    })  # fmt: skip

    object: Literal["estimate"] = "estimate"
    documents: int
    unusable: int = Field(description="Rows that would be dead letters.")
    tokens_in: int
    tokens_out: int
    tokens_out_capped: bool = Field(description="Whether tokens_out is the most that can be.")
    tokens_by: str
    cost_usd: float | None = Field(description="null where no price is known.")


class CancelOrPause(BaseModel):
    model_config = _like({"reason": "the prompt is being corrected"})

    reason: Annotated[StrictStr, Field(min_length=1, max_length=500)] | None = None


class Move(BaseModel):
    model_config = _like({"lane": "batch", "reason": "no hurry any more"})

    lane: Annotated[StrictStr, Field(min_length=1, max_length=64)]
    reason: Annotated[StrictStr, Field(min_length=1, max_length=500)] = "moved over HTTP"


class Limits(BaseModel):
    """What is left out stays; null lifts a limit."""

    model_config = _like({"budget_usd": 25.0})

    budget_usd: Annotated[StrictFloat | StrictInt, Field(gt=0, allow_inf_nan=False)] | None = None
    deadline_s: Annotated[StrictFloat | StrictInt, Field(gt=0, allow_inf_nan=False)] | None = None


class Replay(BaseModel):
    """Which dead letters are tried again, and with what changed."""

    model_config = _like({"reason": "http_400", "overrides": {"set": {"max_tokens": 128}}})

    reason: Annotated[StrictStr, Field(min_length=1, max_length=200)] | None = None
    doc_ids: Annotated[list[StrictStr], Field(min_length=1, max_length=DOCS_MAX)] | None = None
    overrides: dict[str, Any] = Field(default_factory=dict)


class Replayed(BaseModel):
    model_config = _like({"object": "replay", "documents": 6, "generation": 2})

    object: Literal["replay"] = "replay"
    documents: int
    generation: int


class LetterShown(BaseModel):
    """A document that has failed for good."""

    model_config = _like(_LETTER)

    doc_id: str
    generation: int
    reason: str
    attempts: int
    calls: int
    status_code: int | None
    last_error: str
    line: int | None = Field(description="Of the source, for a row that was refused at submit.")
    created_at: float | None


class Letter(LetterShown):
    """The same with the request that was sent, and the last answer to it."""

    model_config = _like(_LETTER | {
        "request": {"model": "gpt-x", "messages": [{"role": "user", "content": "Summarise: …"}], "max_tokens": 0},
        "response": {"error": {"message": "Invalid 'max_tokens'"}},
    })  # fmt: skip

    request: Any = None
    response: Any = None


class LetterList(BaseModel):
    model_config = _like({"object": "list", "data": [_LETTER], "next": None})

    object: Literal["list"] = "list"
    data: list[LetterShown]
    next: str | None


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
    """What became of each document. Those that are not refused are durable."""

    model_config = _like({
        "object": "items", "accepted": 1, "duplicates": 0, "refused": 0,
        "items": [{"line": 1, "id": "ticket-17", "outcome": "accepted", "code": None, "message": None}],
    })  # fmt: skip

    object: Literal["items"] = "items"
    accepted: int
    duplicates: int
    refused: int
    items: list[PushedLine]


class Sealed(BaseModel):
    model_config = _like({"object": "seal", "total": 1000})

    object: Literal["seal"] = "seal"
    total: int


class ScheduleShown(BaseModel):
    """A schedule. Times are Unix seconds."""

    model_config = _like({
        "name": "nightly", "cron": "0 2 * * *", "timezone": "Europe/Berlin", "paused": False, "next_at": 1763773200.0,
        "waits_for": None, "source": {"source": "s3://corpora/tickets.jsonl"}, "tenant": "shop",
    })  # fmt: skip

    name: str
    cron: str
    timezone: str
    paused: bool
    next_at: float
    waits_for: str | None
    source: dict[str, Any]
    tenant: str | None


class ScheduleList(BaseModel):
    model_config = _like({"object": "list", "data": []})

    object: Literal["list"] = "list"
    data: list[ScheduleShown]


class FailureShown(BaseModel):
    """Calls of a job that fail alike. Times are Unix seconds."""

    model_config = _like(_FAILURE)

    job_id: str
    name: str = Field(description="Of the failure, as dead letters have it as their reason.")
    text: str = Field(description="The last message of it, cut.")
    count: int
    since: float
    last: float


class QuotaAccount(BaseModel):
    """How a provider's account is used, for the operator."""

    model_config = _like(_ACCOUNT)

    limits_per_s: dict[str, float] = Field(description="What the provider allows, in units per second.")
    granted: int = Field(description="Requests so far.")
    throttled: int = Field(description="429s so far.")
    failures: int = Field(description="Failures of the provider's servers so far.")
    hold: str | None = Field(description="Why the account is held: `penstock limits --lift` ends that.")
    last_failures: list[FailureShown]


class QuotaShown(BaseModel):
    """Whether requests to a provider may start now."""

    model_config = _like(_QUOTA)

    object: Literal["quota"] = "quota"
    id: str = Field(description="The provider's name.")
    state: Literal["open", "held", "failing", "waiting"]
    held_s: float | None = Field(description="Since when the account is held, in seconds; null: it is not.")
    wait_s: float = Field(description="Seconds for which nothing starts, as far as that is known.")
    account: QuotaAccount | None = Field(description="Null for keys of a tenant.")


class QuotaList(BaseModel):
    model_config = _like({"object": "list", "data": [_QUOTA]})

    object: Literal["list"] = "list"
    data: list[QuotaShown]


class Noticed(BaseModel):
    """How many records of a notification came to what."""

    model_config = _like({"object": "notification", "outcomes": {"noticed": 1}})

    object: Literal["notification"] = "notification"
    outcomes: dict[str, int]
