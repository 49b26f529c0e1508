"""Schemas of requests and answers about schedules, each with an example for OpenAPI."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr

__all__ = [
    "FiringResponse",
    "NewSchedule",
    "Noticed",
    "Removed",
    "ScheduleDetails",
    "ScheduleList",
    "ScheduleResponse",
]

CONDITIONS_MAX: Final = 20  # on outcomes

_SCHEDULE: Final[dict[str, Any]] = {
    "object": "schedule",
    "id": "sched_5f0c2a9be7d14c3388f1",
    "name": "nightly",
    "cron": "0 2 * * *",
    "timezone": "Europe/Berlin",
    "catch_up": "once",
    "overlap": False,
    "paused": False,
    "next_at": 1763773200.0,
    "waits_for": None,
    "drift": None,
    "source": {"source": "s3://corpora/tickets.jsonl"},
    "tenant": "shop",
}
_FIRING: Final[dict[str, Any]] = {
    "planned_at": 1763686800.0,
    "outcome": "started",
    "job_id": "job_k3v7q2m4n6p8r2t4w6y2",
    "job_state": "completed",
    "reason": None,
}


def _like(example: Any, extra: Literal["allow", "forbid"] = "forbid") -> ConfigDict:
    return ConfigDict(extra=extra, json_schema_extra={"examples": [example]})


class NewSchedule(BaseModel):
    """The times, the source and the job options (docs/job-options.md) of a schedule's jobs."""

    model_config = _like(
        {
            "name": "nightly",
            "cron": "0 2 * * *",
            "timezone": "Europe/Berlin",
            "source": "s3://corpora/tickets.jsonl",
            "model": "gpt-x",
            "prompt": "Summarise: {text}",
        },
        "allow",
    )

    name: Annotated[StrictStr, Field(min_length=1, max_length=64)] = Field(
        description="The name of the schedule. Its jobs have the keys NAME@TIME."
    )
    cron: Annotated[StrictStr, Field(min_length=1, max_length=200)] = Field(
        description="Minute, hour, day of month, month, day of week."
    )
    timezone: Annotated[StrictStr, Field(min_length=1, max_length=100)] = "UTC"
    catch_up: Literal["once", "skip", "all"] = Field(
        "once", description="What is done about times that were missed."
    )
    overlap: StrictBool = Field(
        False, description="Start a job although an earlier one has not ended."
    )
    drift: Literal["off", "report", "pause"] = Field(
        "off",
        description=(
            "Compare each run with the one before: report what has moved beyond chance, or pause "
            "the schedule then as well."
        ),
    )
    drift_field: StrictStr | None = Field(
        None,
        description=(
            "With drift: a field of answers that are JSON, whose values' shares are compared."
        ),
    )
    source: StrictStr | None = Field(
        None,
        description=(
            "A path or s3:// URI inside source_roots, which is read at each time and need not be "
            "there yet."
        ),
    )
    from_job: StrictStr | None = Field(
        None, description="Read the outcomes of this job instead of a source."
    )
    from_schedule: StrictStr | None = Field(
        None,
        description=(
            "Read the outcomes of this schedule's newest job that has ended, instead of a source."
        ),
    )
    where: list[StrictStr] = Field(
        default_factory=list,
        max_length=CONDITIONS_MAX,
        description="Conditions on those outcomes, such as status=dead.",
    )

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class FiringResponse(BaseModel):
    """A time that was decided, and what came of it."""

    planned_at: float
    outcome: Literal["started", "skipped", "failed", "nothing_new"]
    job_id: str | None
    job_state: str | None = Field(
        description="The state of its job; null where there is none, or it was purged."
    )
    reason: str | None = Field(description="Why there is no job.")
    drift: dict[str, Any] | None = Field(
        None,
        description=(
            "How its job compares with the run `before`: what has `moved`, or why it was `skipped`."
        ),
    )


class ScheduleResponse(BaseModel):
    """A schedule. Times are Unix seconds."""

    model_config = _like(_SCHEDULE)

    object: Literal["schedule"] = "schedule"
    id: str
    name: str
    cron: str
    timezone: str
    catch_up: str
    overlap: bool
    paused: bool
    next_at: float
    waits_for: str | None = Field(description="Why the job of `next_at` has not started yet.")
    drift: dict[str, Any] | None = Field(description="By which rule runs are compared.")
    source: dict[str, Any]
    tenant: str | None


class ScheduleDetails(ScheduleResponse):
    """The same with its options, and what came of its latest times."""

    model_config = _like(
        _SCHEDULE
        | {"spec": {"model": "gpt-x", "prompt": "Summarise: {text}"}, "firings": [_FIRING]}
    )

    spec: dict[str, Any]
    firings: list[FiringResponse] = Field(description="Newest first.")


class ScheduleList(BaseModel):
    model_config = _like({"object": "list", "data": [_SCHEDULE]})

    object: Literal["list"] = "list"
    data: list[ScheduleResponse]


class Removed(BaseModel):
    """It starts no more jobs; those that it has started stay."""

    model_config = _like(
        {
            "object": "schedule",
            "id": "sched_5f0c2a9be7d14c3388f1",
            "name": "nightly",
            "deleted": True,
        }
    )

    object: Literal["schedule"] = "schedule"
    id: str
    name: str
    deleted: Literal[True] = True


class Noticed(BaseModel):
    """The records of a notification, counted by what came of them."""

    model_config = _like({"object": "notification", "outcomes": {"noticed": 1}})

    object: Literal["notification"] = "notification"
    outcomes: dict[str, int]
