"""Pages show jobs, one job, its dead letters and answers, workers, quotas and spending."""

from __future__ import annotations

import time
from itertools import islice
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

from fastapi import Depends
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from penstock_gateway import render
from penstock_gateway.batches.finish import batch_note
from penstock_gateway.callers.caller import whose
from penstock_gateway.dashboard import actions, new_job, schedules, viewer
from penstock_gateway.dashboard.dead_letters_view import (
    GROUPED_MAX,
    answered,
    dead_letter_page,
    dead_letter_rows,
    groups,
    sample,
)
from penstock_gateway.dashboard.fleet_view import (
    PERIODS,
    lane_views,
    price_rows,
    quota_rows,
    spend_rows,
    total_of,
)
from penstock_gateway.dashboard.job_view import job_view
from penstock_gateway.dashboard.jobs_view import (
    calls_row,
    job_rows,
    page_links,
    place_in,
    refused_batches,
    tabs,
)
from penstock_gateway.dashboard.viewer import Viewer, head_of, job_of, page, viewer_with
from penstock_gateway.direct.open_jobs import KEY_PREFIX as CALLS
from penstock_gateway.jobs.names import shown_key
from penstock_gateway.jobs.results import results
from penstock_gateway.refused import Refused
from penstock_gateway.routing import Router
from penstock_ledger import Job, JobState, MadeWith, Provenance, dead_letter_lines
from penstock_ledger.texts import Command, Run
from penstock_producer.reporting.advice import command_line
from penstock_producer.reporting.words import moment

__all__ = ["router"]

router = Router(include_in_schema=False)
router.include_router(render.router)
router.include_router(viewer.router)
router.include_router(new_job.router)
router.include_router(schedules.router)

JOBS_SHOWN: Final = 50
BATCHES_SHOWN: Final = 20  # that were refused, the latest
LETTERS_SHOWN: Final = 50
REASONS_SHOWN: Final = 12
PRICED_JOBS: Final = 20  # the latest, whose prices are shown
SEARCH_CHARS: Final = 200
ID_CHARS: Final = 512

Reader = Annotated[Viewer, Depends(viewer_with("read"))]


@router.get("/")
async def first() -> Response:
    return RedirectResponse("/ui/jobs", 307)


@router.get("/ui")
async def short() -> Response:
    return RedirectResponse("/ui/jobs", 307)


@router.get("/ui/jobs")
async def jobs(request: Request, viewer: Reader) -> Response:
    given = request.query_params
    state = given.get("state", "") if given.get("state") in set(JobState) else ""
    search = given.get("q", "").strip()[:SEARCH_CHARS]

    def read() -> dict[str, Any]:
        desk, now = viewer.desk, time.time()
        before, after = place_in(given.get("before", "")), place_in(given.get("after", ""))
        of_viewer: dict[str, Any] = {
            "tenants": viewer.tenants,
            "states": [JobState(state)] if state else None,
            "limit": JOBS_SHOWN,
        }
        # what is searched for is found in its own row
        found = desk.pages.page(
            **of_viewer,
            search=search,
            without="" if search else CALLS,
            before=before,
            after=after,
        )
        is_first = not (search or before or after)
        calls = desk.pages.page(**of_viewer, beginning=CALLS).jobs if is_first else []
        refused = (
            desk.batches.refused(whose(viewer.caller), BATCHES_SHOWN)
            if is_first and state in ("", JobState.FAILED)
            else []
        )
        newer, older = page_links(found, state, search)
        return {
            "rows": job_rows(found.jobs, now, desk.interrupted([job for job, _ in found.jobs])),
            "calls": calls_row(calls, now),
            "calls_named": CALLS,
            "refused": refused_batches(refused, now),
            "newer": newer,
            "older": older,
            "tabs": tabs(desk.pages.states(viewer.tenants, without=CALLS), state, search),
        }

    return page(
        "jobs_part.html.jinja" if given.get("part") else "jobs.html.jinja",
        viewer,
        request,
        **await viewer.backend.run(read),
        state=state,
        search=search,
        filtered=bool(state or search),
        live=_again(request),
        read_at=moment(time.time()),
        by_http=_by_http(viewer),
        door=str(request.base_url).rstrip("/"),
    )


@router.get("/ui/jobs/{job_id}")
async def job(request: Request, viewer: Reader, job_id: str) -> Response:
    found = await job_of(viewer, job_id)
    seen = await viewer.backend.run(viewer.desk.look, found)
    template = "job_part.html.jinja" if request.query_params.get("part") else "job.html.jinja"
    said = actions.DONE.get(request.query_params.get("done", ""), "")
    return page(template, viewer, request, job=job_view(seen), done=said, live=_again(request))


@router.get("/ui/jobs/{job_id}/letters")
async def letters(request: Request, viewer: Reader, job_id: str) -> Response:
    found = await job_of(viewer, job_id)
    given = request.query_params
    reason = given.get("reason") or None
    after = _letter_place(given.get("after", ""))

    def read() -> dict[str, Any]:
        desk = viewer.desk
        counts = desk.outcomes.counts(found.job_id)
        whole = counts.dead_by_reason.get(reason, 0) if reason else counts.dead
        shown = dead_letter_lines(
            desk.database, found.job_id, reason=reason, after=after, limit=LETTERS_SHOWN + 1
        )  # one more says whether there are more
        first = dead_letter_lines(desk.database, found.job_id, reason=reason, limit=GROUPED_MAX)
        lines = shown[:LETTERS_SHOWN]
        return {
            "job": head_of(desk, found, counts.dead),
            "total": counts.dead,
            "reasons": sorted(
                counts.dead_by_reason.items(), key=lambda entry: (-entry[1], entry[0])
            )[:REASONS_SHOWN],
            "groups": groups(first),
            "grouped_of": GROUPED_MAX if whole > GROUPED_MAX else 0,
            "rows": dead_letter_rows(found, lines),
            "after": _dead_letters_after(found, reason, lines[-1])
            if len(shown) > LETTERS_SHOWN
            else "",
        }

    done = given.get("done", "")
    said = actions.DONE.get(done, "")
    if done in ("replay", "replay-one"):
        note = await viewer.backend.run(batch_note, viewer.desk.database, found)
        said = f"{said} {note}" if note else said
    values = await viewer.backend.run(read)
    return page(
        "dead_letters.html.jinja",
        viewer,
        request,
        **values,
        reason=reason,
        further=after is not None,
        done=said,
    )


@router.get("/ui/jobs/{job_id}/letter")
async def letter(request: Request, viewer: Reader, job_id: str, doc: str = "") -> Response:
    found = await job_of(viewer, job_id)
    return await dead_letter_page(request, viewer, found, doc[:ID_CHARS])


@router.get("/ui/jobs/{job_id}/answers")
async def answers(request: Request, viewer: Reader, job_id: str, doc: str = "") -> Response:
    found = await job_of(viewer, job_id)
    doc = doc.strip()[:ID_CHARS]

    def read() -> dict[str, Any]:
        desk = viewer.desk
        head = head_of(desk, found, desk.outcomes.counts(found.job_id).dead)
        if doc:
            outcome = desk.outcomes.get(found.job_id, doc)
            return {
                "job": head,
                "documents": [] if outcome is None else [answered(outcome)],
                "why": "",
            }
        some = sample(desk.database, found, viewer.backend.settings)
        return {"job": head, "documents": some.documents, "why": some.why if some.documents else ""}

    results = Run(Command.RESULTS, (found.job_key, "-o", "results.jsonl"))
    command = f"{command_line(results)}{viewer.desk.in_state}"
    return page(
        "answers.html.jinja",
        viewer,
        request,
        **await viewer.backend.run(read),
        doc=doc,
        command=command,
    )


@router.get("/ui/jobs/{job_id}/results")
async def download(
    request: Request,
    viewer: Reader,
    job_id: str,
    form: Literal["jsonl", "csv", "parquet"] = "jsonl",
) -> Response:
    """Return all results as a file, as `GET /v1/jobs/JOB/results` streams them."""
    found = await job_of(viewer, job_id)
    # a spreadsheet is what opens a CSV that a browser has loaded
    answer = await results(
        request, found.job_id, viewer.caller, form=form, escape_formulas=form == "csv"
    )
    name = quote(f"{shown_key(found) or found.job_id}.{form}", safe="")
    answer.headers["content-disposition"] = f"attachment; filename*=UTF-8''{name}"
    answer.headers.update({"cache-control": "no-store", "x-content-type-options": "nosniff"})
    return answer


@router.get("/ui/workers")
async def workers(request: Request, viewer: Reader) -> Response:
    _for_operators(viewer)
    seen, depths, answered_ = await viewer.backend.run(viewer.desk.fleet)
    template = (
        "workers_part.html.jinja" if request.query_params.get("part") else "workers.html.jinja"
    )
    read_at = moment(time.time())
    one_machine = viewer.desk.in_state != ""
    return page(
        template,
        viewer,
        request,
        lanes=lane_views(seen, depths, one_machine=one_machine),
        answered=answered_,
        one_machine=one_machine,
        read_at=read_at,
    )


@router.get("/ui/quotas")
async def quotas(request: Request, viewer: Reader) -> Response:
    _for_operators(viewer)

    def read() -> dict[str, Any]:
        seen, causes, found = viewer.desk.quotas()
        paused = viewer.desk.pages.page(states=[JobState.PAUSED], limit=JOBS_SHOWN)
        now = time.time()
        return {
            "rows": quota_rows(seen, causes, now, viewer.desk.in_state),
            "answered": found,
            "in_state": viewer.desk.in_state,
            "paused": job_rows(paused.jobs, now),
        }

    template = "quotas_part.html.jinja" if request.query_params.get("part") else "quotas.html.jinja"
    return page(
        template, viewer, request, **await viewer.backend.run(read), read_at=moment(time.time())
    )


@router.get("/ui/spending")
async def spending(request: Request, viewer: Reader) -> Response:
    given = request.query_params.get("period", "")
    period = given if given in PERIODS else "month"
    words, seconds = PERIODS[period]
    since = time.time() - seconds if seconds else 0.0

    def read() -> dict[str, Any]:
        desk = viewer.desk
        spent = desk.spending.by_tenant(since, viewer.tenants)
        made = list[MadeWith]()
        for found, _ in desk.pages.page(tenants=viewer.tenants, limit=PRICED_JOBS).jobs:
            made += islice(Provenance(desk.database).of(found.job_id), PRICED_JOBS)
        return {
            "rows": spend_rows(spent, "no tenant", desk.spending.savings(since, viewer.tenants)),
            "total": total_of(spent),
            "lanes": spend_rows(
                desk.spending.by_lane(since, viewer.tenants),
                "refused or cancelled",
                desk.spending.savings(since, viewer.tenants, by_lane=True),
            ),
            "prices": price_rows(made),
        }

    periods = [(name, told) for name, (told, _) in PERIODS.items()]
    return page(
        "spending.html.jinja",
        viewer,
        request,
        **await viewer.backend.run(read),
        periods=periods,
        period=period,
        period_name=words,
    )


def _again(request: Request) -> str:
    """Return where the part of a page that changes is fetched again."""
    url = request.url.include_query_params(part="1")
    return f"{url.path}?{url.query}"


def _by_http(viewer: Viewer) -> bool:
    """Return whether the viewer sends work over HTTP.

    Tenants do, and everyone does where `penstock serve` is all there is.
    """
    return not viewer.sees_all or viewer.desk.in_state != ""


def _for_operators(viewer: Viewer) -> None:
    """Raise Refused for tenants: workers and quotas are of the whole installation."""
    if not viewer.sees_all:
        raise Refused(404, "There is no such page.", code="not_found")


def _letter_place(text: str) -> tuple[int, str] | None:
    generation, _, doc_id = text.partition("~")
    return (
        (int(generation), doc_id)
        if generation.isascii() and generation.isdigit() and len(generation) < 10
        else None
    )


def _dead_letters_after(job: Job, reason: str | None, last: Any) -> str:
    chosen = f"reason={quote(reason, safe='')}&" if reason else ""
    after = quote(f"{last.generation}~{last.doc_id}", safe="")
    return f"/ui/jobs/{job.job_id}/letters?{chosen}after={after}"


router.include_router(actions.router)  # behind the pages above: its last path stands for any action
