"""Jobs are changed on pages that ask first.

The actions are pause, resume, cancel, limits, and replays of dead letters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import quote

import orjson
from fastapi import Depends
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from penstock_gateway.batches.finish import batch_note
from penstock_gateway.bodies import refuse_huge_integer
from penstock_gateway.dashboard.dead_letters_view import (
    EDIT_MAX,
    GROUPED_MAX,
    dead_letter_of,
    dead_letter_page,
    members,
)
from penstock_gateway.dashboard.viewer import (
    Viewer,
    check_form,
    job_of,
    page,
    read_form,
    viewer_with,
)
from penstock_gateway.errors import refused_for
from penstock_gateway.refused import Refused
from penstock_gateway.routing import Router
from penstock_ledger import Job, JobNotReplayable, NothingToReplay, dead_letter_lines
from penstock_producer import JobRefused, SpecError
from penstock_producer.job.options import OPTIONS, seconds_of
from penstock_producer.job.spec import OFF
from penstock_producer.operations import Changed
from penstock_producer.reporting.advice import on_page
from penstock_producer.reporting.money import money_of
from penstock_producer.reporting.text import count, one_line

__all__ = ["DONE", "router"]


router = Router(include_in_schema=False)

FORM_MAX: Final = 16 * 1024  # bytes
EDITED_MAX: Final = 6 * EDIT_MAX  # as a form sends it: a character may take six
VALUE_CHARS: Final = 2_000
# What a form can correct: its page comes back with the reason.
SHOWN: Final = (Refused, SpecError, JobRefused, JobNotReplayable, NothingToReplay)

Writer = Annotated[Viewer, Depends(viewer_with("write"))]

DONE: Final[Mapping[str, str]] = {
    "submit": "The job is submitted.",
    "pause": "The job is paused: what is in flight finishes, and nothing more starts.",
    "resume": "The job goes on.",
    "cancel": "The job is being cancelled: what has not begun becomes dead letters.",
    "limit": "The limits are changed.",
    "replay-one": "The document is sent again, as a new generation of the job.",
    "replay": "They are sent again, as a new generation of the job.",
    "unchanged": "Nothing was changed: the job is in another state by now.",
}


class Field(NamedTuple):
    name: str
    label: str
    hint: str
    value: str = ""
    inputmode: str = "text"


class Asked(NamedTuple):
    """A question that a page asks before something is done."""

    title: str
    texts: Sequence[str]
    button: str
    danger: bool = False


_ASKED: Final[Mapping[str, Asked]] = {
    "pause": Asked(
        "Pause",
        ["What is in flight finishes. Nothing more starts until the job is resumed."],
        "Pause the job",
    ),
    "resume": Asked(
        "Resume",
        [
            "Its documents start again. A provider that is held stays held: the page of quotas "
            "says how to lift it."
        ],
        "Resume the job",
    ),
    "cancel": Asked(
        "Cancel",
        [
            "What has not begun becomes dead letters `cancelled`. This cannot be undone; results "
            "that are there stay."
        ],
        "Cancel the job",
        danger=True,
    ),
}


@router.get("/ui/jobs/{job_id}/limit")
async def ask_limit(request: Request, viewer: Writer, job_id: str) -> Response:
    return await _limit_page(request, viewer, await job_of(viewer, job_id), {})


@router.post("/ui/jobs/{job_id}/limit")
async def limit(request: Request, viewer: Writer, job_id: str) -> Response:
    job, form = await _checked(request, viewer, job_id)
    operations = viewer.backend.operations
    try:
        await viewer.backend.run(operations.limit, job, _limits_in(form, job))
    except SHOWN as error:
        return await _limit_page(request, viewer, job, form, refused_for(error, on_page))
    return _to_job(job, "limit")


@router.get("/ui/jobs/{job_id}/replay")
async def ask_replay(
    request: Request, viewer: Writer, job_id: str, reason: str = "", alike: str = ""
) -> Response:
    return await _replay_page(request, viewer, await job_of(viewer, job_id), reason, alike, {})


@router.post("/ui/jobs/{job_id}/replay")
async def replay(request: Request, viewer: Writer, job_id: str) -> Response:
    job, form = await _checked(request, viewer, job_id)
    reason, words = form.get("reason", ""), form.get("alike", "")
    chosen = {
        "model": form.get("model", "").strip()[:VALUE_CHARS],
        "prompt": form.get("prompt", "")[:VALUE_CHARS],
    }
    changes: dict[str, Any] = {"set": {"model": chosen["model"]}} if chosen["model"] else {}
    changes |= {"prompt": chosen["prompt"]} if chosen["prompt"].strip() else {}

    def send() -> None:
        documents = _members(viewer, job, reason, words)
        if not documents:
            raise NothingToReplay(job.job_id, reason)
        viewer.backend.operations.replay(job, doc_ids=documents, overrides=changes)

    try:
        await viewer.backend.run(send)
    except SHOWN as error:
        return await _replay_page(
            request, viewer, job, reason, words, chosen, refused_for(error, on_page)
        )
    return RedirectResponse(f"/ui/jobs/{job.job_id}/letters?done=replay", 303)


@router.post("/ui/jobs/{job_id}/letter")
async def replay_one(request: Request, viewer: Writer, job_id: str) -> Response:
    job, form = await _checked(request, viewer, job_id, EDITED_MAX)
    doc_id, typed = form.get("doc", ""), form.get("body")

    def send() -> None:
        letter = dead_letter_of(viewer, job, doc_id)
        body = None if typed is None else _request_in(typed)
        same = body is None or body == orjson.loads(letter.request or b"null")
        changes = {} if same else {"body": body}
        viewer.backend.operations.replay(job, doc_ids=[doc_id], overrides=changes)

    try:
        await viewer.backend.run(send)
    except SHOWN as error:
        refused = refused_for(error, on_page)
        return await dead_letter_page(request, viewer, job, doc_id, refused=refused, typed=typed)
    return RedirectResponse(f"/ui/jobs/{job.job_id}/letters?done=replay-one", 303)


@router.get("/ui/jobs/{job_id}/{action}")
async def ask(request: Request, viewer: Writer, job_id: str, action: str) -> Response:
    asked = _asked(action)
    job = await job_of(viewer, job_id)
    return _confirm(request, viewer, job, action, asked)


@router.post("/ui/jobs/{job_id}/{action}")
async def act(request: Request, viewer: Writer, job_id: str, action: str) -> Response:
    _asked(action)
    job, _ = await _checked(request, viewer, job_id)
    operations = viewer.backend.operations
    acts: Mapping[str, Callable[[], Changed]] = {
        "pause": lambda: operations.pause(job, "paused on the dashboard"),
        "resume": lambda: operations.resume(job),
        "cancel": lambda: operations.cancel(job, "cancelled on the dashboard"),
    }
    try:
        changed = (await viewer.backend.run(acts[action])).changed
    except JobRefused:
        changed = False
    return _to_job(job, action if changed else "unchanged")


def _asked(action: str) -> Asked:
    if action not in _ASKED:
        raise Refused(404, "There is no such page.", code="not_found")
    return _ASKED[action]


async def _checked(
    request: Request, viewer: Viewer, job_id: str, most: int = FORM_MAX
) -> tuple[Job, Mapping[str, str]]:
    form = await read_form(request, most)
    check_form(request, viewer, form)
    return await job_of(viewer, job_id), form


def _to_job(job: Job, done: str) -> Response:
    return RedirectResponse(f"/ui/jobs/{job.job_id}?done={done}", 303)


def _confirm(
    request: Request,
    viewer: Viewer,
    job: Job,
    action: str,
    asked: Asked,
    refused: Refused | None = None,
    **more: Any,
) -> Response:
    values: dict[str, Any] = {
        "fault": "" if refused is None else refused.message,
        "status": 200 if refused is None else refused.status,
        "fields": (),
        "hidden": (),
        "back": f"/ui/jobs/{job.job_id}",
    }
    return page(
        "confirm.html.jinja",
        viewer,
        request,
        title=asked.title,
        texts=[one_line(job.job_key, 600), *asked.texts],
        button=asked.button,
        danger=asked.danger,
        action=f"/ui/jobs/{job.job_id}/{action}",
        **values | more,
    )


async def _limit_page(
    request: Request,
    viewer: Viewer,
    job: Job,
    typed: Mapping[str, str],
    refused: Refused | None = None,
) -> Response:
    budget, deadline = _shown(job, "budget_usd"), _shown(job, "deadline_s")
    fields = [
        Field(
            "budget",
            "Budget in US dollars",
            "Of the whole job, with what is spent already. Empty: none.",
            typed.get("budget", budget),
            "decimal",
        ),
        Field(
            "deadline",
            "Deadline",
            "Since the submit, as 90m, 24h or 2d. Empty: none.",
            typed.get("deadline", deadline and f"{deadline}s"),
        ),
        Field(
            "stop_at_dead",
            "Stop at dead",
            "The share of the latest documents at which the job pauses, as 50%, or off.",
            typed.get("stop_at_dead", _shown(job, "stop_at_dead")),
        ),
        Field(
            "stop_at_usd_per_doc",
            "Stop at US dollars per document",
            "Empty: none.",
            typed.get("stop_at_usd_per_doc", _shown(job, "stop_at_usd_per_doc")),
            "decimal",
        ),
    ]
    counts = await viewer.backend.run(viewer.desk.outcomes.counts, job.job_id)
    so_far = money_of(counts).words
    asked = Asked("Limits", [f"Spent so far: {so_far}."], "Set the limits")
    return _confirm(
        request,
        viewer,
        job,
        "limit",
        asked,
        refused,
        fields=fields,
    )


async def _replay_page(
    request: Request,
    viewer: Viewer,
    job: Job,
    reason: str,
    words: str,
    typed: Mapping[str, str],
    refused: Refused | None = None,
) -> Response:
    documents = await viewer.backend.run(_members, viewer, job, reason, words)
    note = await viewer.backend.run(batch_note, viewer.desk.database, job)
    told = [f"{one_line(reason, 120)}: {words}" if words else one_line(reason, 120)]
    number = "1 document is" if len(documents) == 1 else f"{count(len(documents))} documents are"
    asked = Asked(
        "Replay",
        [*told, f"{number} sent again, as a new generation.", *filter(None, [note])],
        f"Replay {count(len(documents))}",
    )
    fields = [
        Field("model", "Another model", "Empty: the one that was asked.", typed.get("model", "")),
        Field(
            "prompt",
            "Another prompt",
            "{prompt} stands for the text that was sent, as in: Answer in JSON. {prompt}",
            typed.get("prompt", ""),
        ),
    ]
    hidden = [("reason", reason), ("alike", words)]
    back = f"/ui/jobs/{job.job_id}/letters?reason={quote(reason, safe='')}"
    return _confirm(
        request,
        viewer,
        job,
        "replay",
        asked,
        refused,
        fields=fields,
        hidden=hidden,
        back=back,
    )


def _members(viewer: Viewer, job: Job, reason: str, words: str) -> list[str]:
    """Return the documents of a group, as the page of dead letters has counted them."""
    lines = dead_letter_lines(
        viewer.desk.database, job.job_id, reason=reason or None, limit=GROUPED_MAX
    )
    return members(lines, reason, words)


def _request_in(typed: str) -> Any:
    """Parse the request that was typed. Raises Refused where it is not JSON, or would change."""
    body = typed.encode("utf-8", "surrogatepass")
    refuse_huge_integer(body)
    try:
        return orjson.loads(body)
    except ValueError as error:
        said = one_line(str(error), 200)
        raise Refused(400, f"The request is not valid JSON: {said}", code="invalid_json") from None


def _limits_in(form: Mapping[str, str], job: Job) -> dict[str, Any]:
    """Return the limits that a form changes; one that is empty is lifted. Raises Refused."""
    given: dict[str, Any] = {
        name: read(form[field]) for name, (field, read) in _LIMIT_FIELDS.items() if field in form
    }
    return {name: value for name, value in given.items() if value != _limit_of(job, name)}


def _limit_of(job: Job, name: str) -> Any:
    return job.spec.get(name, OPTIONS[name].default)


def _shown(job: Job, name: str) -> str:
    """Return a limit as a form has it; a number that comes back as it was is the same number."""
    value = _limit_of(job, name)
    return (
        "" if value is None else f"{value:.15g}" if isinstance(value, int | float) else str(value)
    )


def dollars_in(text: str) -> float | None:
    try:
        return float(text) if text.strip() else None
    except ValueError:
        raise _not_taken(text, "is no sum of US dollars") from None


def deadline_in(text: str) -> float | None:
    try:
        return seconds_of(text.strip()) if text.strip() else None
    except ValueError as error:
        raise _not_taken(text, str(error)) from None


def _not_taken(text: str, why: str) -> Refused:
    return Refused(400, f"{one_line(text, 60)!r} {why}", code="invalid_value")


_LIMIT_FIELDS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "budget_usd": ("budget", dollars_in),
    "deadline_s": ("deadline", deadline_in),
    "stop_at_dead": ("stop_at_dead", lambda text: text.strip() or OFF),
    "stop_at_usd_per_doc": ("stop_at_usd_per_doc", dollars_in),
}
