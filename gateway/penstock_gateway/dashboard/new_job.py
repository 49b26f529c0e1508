"""A new job from a file: uploaded, looked at, then submitted.

Each step is a form of its own and calls what the HTTP API calls, so that limits, tenants and prices
are those of there. What was uploaded and never submitted goes by itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, NamedTuple, get_args

from fastapi import Depends
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from penstock_gateway.callers.caller import whose
from penstock_gateway.dashboard.actions import deadline_in, dollars_in
from penstock_gateway.dashboard.foreign import Shown, shown
from penstock_gateway.dashboard.viewer import (
    TOKEN,
    Viewer,
    check_form,
    check_origin,
    check_token,
    page,
    read_form,
    viewer_with,
)
from penstock_gateway.errors import refused_for
from penstock_gateway.files.form import BATCH, BATCH_LIVES_S, UploadForm
from penstock_gateway.files.multipart import FormPart
from penstock_gateway.files.store import FileStore
from penstock_gateway.files.uploads import uploaded
from penstock_gateway.jobs.schemas import NewJob, PreviewResponse, RequestResponse
from penstock_gateway.jobs.submitting import previewed, submit
from penstock_gateway.middleware import is_id
from penstock_gateway.refused import Refused, not_found
from penstock_gateway.routing import Router
from penstock_ledger import DoorFile, PenstockError
from penstock_producer.job.lanes import AUTO, LANES
from penstock_producer.job.tiers import Tier
from penstock_producer.reporting.advice import on_page
from penstock_producer.reporting.text import count, one_line, usd
from penstock_producer.source_formats import FORMATS

__all__ = ["router"]

router = Router(include_in_schema=False)

PROMPT_BYTES: Final = 16 * 1024  # a page of a book has 3,000; longer ones come over the HTTP API
VALUE_BYTES: Final = 512
# percent signs make three bytes of one, and the other fields are short
FORM_MAX: Final = 8 * PROMPT_BYTES
REQUESTS_SHOWN: Final = 3
PROBLEMS_SHOWN: Final = 5
MIB: Final = 2**20
KEY_CHARS: Final = 80  # of a file's name in the name of its job
RULES_BYTES: Final = 8 * 1024  # of all rules of one kind; more of them are for a job spec file


def _lines(typed: str) -> list[str]:
    return [line.strip() for line in typed.splitlines() if line.strip()]


class _Option(NamedTuple):
    """A field that most jobs leave empty."""

    name: str
    label: str
    hint: str
    choices: Sequence[str] = ()  # of a list; none: it is typed
    read: Callable[[str], Any] = str  # a list of rules has one in each line

    @property
    def has_lines(self) -> bool:
        return self.read is _lines

    @property
    def most_bytes(self) -> int:
        return RULES_BYTES if self.has_lines else VALUE_BYTES


_MORE: Final = (
    _Option(
        "lane",
        "Lane",
        "batch costs half and takes up to a day; auto is the cheapest that meets the deadline. "
        "Empty: api.",
        (*LANES, AUTO),
    ),
    _Option(
        "tier",
        "Service tier",
        "flex costs less and waits, priority costs more. Empty: the provider's own.",
        get_args(Tier),
    ),
    _Option(
        "prompt_cache",
        "Provider's cache",
        "Documents that begin alike are read from the provider's cache. Empty: off.",
        ("auto", "on", "explicit", "off"),
    ),
    _Option(
        "dedup",
        "Equal requests",
        "on: sent once where the answer would be the same. Empty: off.",
        ("on", "always", "off"),
    ),
    _Option("deadline_s", "Deadline", "Since the submit, as 90m, 24h or 2d.", read=deadline_in),
    _Option("budget_usd", "Budget in US dollars", "Of the whole job.", read=dollars_in),
    _Option(
        "routes",
        "Routes",
        "One rule a line, as lang=de -> model=large, or @length>8000 -> max_tokens=500.",
        read=_lines,
    ),
    _Option(
        "escalate",
        "Escalate",
        "Another model where the first one's answer says so, as score<0.5 -> model=large.",
    ),
    _Option(
        "degrade",
        "Degrade",
        "One step a line, as model=small at 80% of deadline, or of budget.",
        read=_lines,
    ),
)
_OPTIONS: Final = (
    *("prompt", "model", "id_field", "max_bad_rows", "encoding"),
    *(one.name for one in _MORE),
)
_FIELDS: Final = (
    dict.fromkeys((TOKEN, *_OPTIONS), VALUE_BYTES)
    | {one.name: one.most_bytes for one in _MORE}
    | {"prompt": PROMPT_BYTES}
)

Writer = Annotated[Viewer, Depends(viewer_with("write"))]


class _Form(UploadForm):
    """The upload's form: its token stands before its file, so that no stranger's file is kept."""

    fields: ClassVar[Mapping[str, int]] = _FIELDS

    def __init__(self, viewer: Viewer) -> None:
        super().__init__()
        self._viewer = viewer

    def begin(self, part: FormPart) -> bool:
        if part.filename is not None:
            check_token(self._viewer, self.text(TOKEN) or "")
        if part.filename == "":
            raise Refused(400, "Choose a file first.", code="missing_required_parameter")
        return super().begin(part)

    @property
    def purpose(self) -> str:
        return BATCH

    @property
    def lives_s(self) -> float:
        return BATCH_LIVES_S

    def typed(self) -> dict[str, str]:
        return {name: _plain(self.text(name) or "") for name in _OPTIONS}


class _Request(NamedTuple):
    """One request of the preview."""

    name: str
    text: Shown
    facts: str


@router.get("/ui/new")
async def ask(request: Request, viewer: Writer) -> Response:
    return _upload_page(request, viewer, {})


@router.post("/ui/new/file")
async def upload(request: Request, viewer: Writer) -> Response:
    check_origin(request, viewer.backend.settings.gateway.hosts)
    form, store = _Form(viewer), _store(viewer)
    try:
        file = await uploaded(request, viewer.backend, store, viewer.caller.tenant, form)
    except Refused as refused:
        if refused.code == "foreign_form":
            raise
        return _upload_page(request, viewer, form.typed(), refused)
    return await _preview_page(request, viewer, file, form.typed() | {"name": _name_of(file)})


@router.post("/ui/new/preview")
async def look(request: Request, viewer: Writer) -> Response:
    file, typed = await _checked(request, viewer)
    return await _preview_page(request, viewer, file, typed)


@router.post("/ui/new/submit")
async def send(request: Request, viewer: Writer) -> Response:
    file, typed = await _checked(request, viewer)
    try:
        given = _job(file, typed, job=typed["name"] or _name_of(file))
        job = await submit(request, Response(), given, viewer.caller)
    except (PenstockError, Refused) as error:
        return await _preview_page(request, viewer, file, typed, refused_for(error, on_page))
    return RedirectResponse(f"/ui/jobs/{job.id}?done=submit", 303)


async def _checked(request: Request, viewer: Viewer) -> tuple[DoorFile, dict[str, str]]:
    """Return the file that a form names, and what was typed. Raises Refused."""
    form = await read_form(request, FORM_MAX)
    check_form(request, viewer, form)
    file_id = form.get("file", "")
    look_up = _store(viewer).get
    file = (
        await viewer.backend.run(look_up, file_id, whose(viewer.caller))
        if is_id("file", file_id)
        else None
    )
    if file is None:
        raise not_found("file", file_id[:80])
    return file, {name: _plain(form.get(name, "")) for name in (*_OPTIONS, "name")}


def _plain(typed: str) -> str:
    """Return a field as it was typed: browsers end lines of forms in two characters."""
    return typed.strip().replace("\r\n", "\n")


def _job(file: DoorFile, typed: Mapping[str, str], **more: Any) -> NewJob:
    options: dict[str, Any] = {name: typed[name] for name in _OPTIONS if typed[name]}
    if (most := typed["max_bad_rows"]).isdecimal():
        options["max_bad_rows"] = int(most)
    for one in _MORE:
        if one.name in options:
            try:
                options[one.name] = one.read(options[one.name])
            except Refused as refused:
                refused.param = one.name
                raise
    return NewJob(source=file.file_id, **more, **options)


def _at_fields(typed: Mapping[str, str], refused: Refused | None) -> dict[str, Any]:
    """Return what a page shows of the fields that most jobs leave empty, and why some are refused.

    They are folded up where none has anything to say."""
    faults: dict[str, list[str]] = {}
    if refused is not None:
        told = [
            (one["pointer"], " ".join(filter(None, (f"{one['message']};", one["fix"]))))
            for one in refused.problems
        ]
        for pointer, words in told or [(refused.param or "", refused.message)]:
            faults.setdefault(pointer.lstrip("/").partition("/")[0], []).append(words.rstrip(";"))
    names = [one.name for one in _MORE]
    return {
        "more": _MORE,
        "faults": {name: faults[name] for name in names if name in faults},
        "more_open": any(typed.get(name) or name in faults for name in names),
    }


def _upload_page(
    request: Request, viewer: Viewer, typed: Mapping[str, str], refused: Refused | None = None
) -> Response:
    return page(
        "new_job.html.jinja",
        viewer,
        request,
        status=200 if refused is None else refused.status,
        fault="" if refused is None else refused.message,
        typed=dict.fromkeys(_OPTIONS, "") | dict(typed),
        **_at_fields(typed, refused),
        formats=", ".join(one.name for one in FORMATS.values() if one.of_rows),
        most=_size(viewer.backend.settings.gateway.max_upload_bytes),
    )


async def _preview_page(
    request: Request,
    viewer: Viewer,
    file: DoorFile,
    typed: Mapping[str, str],
    refused: Refused | None = None,
) -> Response:
    """Show what would be sent, or why nothing can be."""
    seen: PreviewResponse | None = None
    try:
        seen = await previewed(request, _job(file, typed), viewer.caller, REQUESTS_SHOWN, on_page)
    except (PenstockError, Refused) as error:
        refused = refused or refused_for(error, on_page)
    fault = refused.message if refused is not None else (seen and seen.refusal) or ""
    return page(
        "new_job_preview.html.jinja",
        viewer,
        request,
        status=200 if refused is None else refused.status,
        fault=fault.replace(file.place, file.filename),
        file=file.file_id,
        file_name=one_line(file.filename),
        file_size=_size(file.bytes),
        typed=typed,
        **_at_fields(typed, refused),
        requests=[] if seen is None else list(map(_request, seen.requests)),
        problems=[]
        if seen is None
        else [f"line {one.line}: {one_line(one.message, 300)}" for one in seen.problems],
        problems_shown=PROBLEMS_SHOWN,
        tiles=[] if seen is None else _tiles(seen),
        tokens_by="" if seen is None else one_line(seen.tokens_by),
    )


def _request(one: RequestResponse) -> _Request:
    body = json.dumps(one.body, ensure_ascii=False, indent=2)
    most = "at most " if one.tokens_out_capped else "about "
    facts = f"about {count(one.tokens_in)} tokens in, {most}{count(one.tokens_out)} out"
    return _Request(one_line(one.doc_id, VALUE_BYTES), shown(body), facts)


def _tiles(whole: PreviewResponse) -> list[tuple[str, str, str]]:
    """Return figure, name and more of what the job would be."""
    most = "at most" if whole.tokens_out_capped else "about"
    return [
        (
            "documents",
            count(whole.documents),
            f"{count(whole.unusable)} rows cannot be used"
            if whole.unusable
            else "all rows can be used",
        ),
        ("tokens in", count(whole.tokens_in), "about"),
        ("tokens out", count(whole.tokens_out), most),
        ("cost", *_cost(whole, most)),
    ]


def _cost(whole: PreviewResponse, most: str) -> tuple[str, str]:
    if whole.cost_usd is None:
        return "unknown", "no price is set for this model"
    return usd(whole.cost_usd), most


def _name_of(file: DoorFile) -> str:
    """Return a name for its job: the same upload submitted twice is one job."""
    stem = re.sub(r"[^\w.-]+", "-", file.filename.rpartition(".")[0] or file.filename)[:KEY_CHARS]
    return f"{stem}-{file.file_id[-6:]}"


def _size(number: int) -> str:
    """Return a number of bytes; small ones are exact."""
    return f"{number:,} bytes" if number < MIB else f"{number / MIB:,.0f} MiB"


def _store(viewer: Viewer) -> FileStore:
    return FileStore(viewer.backend.settings, viewer.backend.database)
