"""The viewer of a page signs in and out, and sends forms from one browser.

Pages answer those who are let in only, and a page about a job is there for its tenant alone. Forms
are read within bounds, and taken only from our own pages.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, urlsplit

from fastapi import Depends
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from penstock_gateway.backend import Backend, backend_of
from penstock_gateway.callers.caller import Caller, Scope, caller_with
from penstock_gateway.callers.known_keys import COOKIE, SESSION_S, keys_of
from penstock_gateway.dashboard.desk import Desk
from penstock_gateway.dashboard.jobs_view import ago
from penstock_gateway.refused import Refused, not_found
from penstock_gateway.render import HEADERS, plain_page, rendered
from penstock_gateway.routing import Router
from penstock_ledger import Job, JobNotFound
from penstock_producer.reporting.reasons import INTERRUPTED
from penstock_producer.reporting.text import one_line

__all__ = [
    "TOKEN",
    "JobHead",
    "Viewer",
    "check_form",
    "check_origin",
    "check_token",
    "head_of",
    "job_of",
    "page",
    "read_form",
    "router",
    "viewer_with",
]

_NAV: Final = (
    ("jobs", "Jobs"),
    ("schedules", "Schedules"),
    ("workers", "Workers"),
    ("quotas", "Quotas"),
    ("spending", "Spending"),
)
_TENANTS_NAV: Final = (("jobs", "Jobs"), ("schedules", "Schedules"), ("spending", "Spending"))

ID_CHARS = 512

THEMES: Final = ("auto", "light", "dark")
THEME: Final = "penstock_theme"
VISIT: Final = "penstock_visit"
"""The cookie of a browser that has no session, since there are no keys: it is nothing but what
forms are tied to."""
_VISIT_SHAPE: Final = re.compile(r"[A-Za-z0-9_-]{32}")


def page(
    template: str, viewer: Viewer, request: Request, *, status: int = 200, **values: Any
) -> Response:
    """Return a page; ``values`` are what the template shows."""
    text = rendered(
        template,
        theme=viewer.theme,
        token=viewer.token,
        nav=_NAV if viewer.sees_all else _TENANTS_NAV,
        here=request.url.path,
        signed_in=viewer.signed_in,
        who=viewer.caller.tenant or "operator",
        can_write=viewer.may("write"),
        **values,
    )
    response = HTMLResponse(text, status, HEADERS)
    if viewer.new_visit:
        give_cookie(response, VISIT, viewer.tied_to, request)
    return response


class JobHead(NamedTuple):
    """The head of each page of a job."""

    job_id: str
    key: str
    state: str
    facts: Sequence[str]
    dead: int


async def job_of(viewer: Viewer, name: str) -> Job:
    """Return a job by its id, or by its key where that has no ``/``, as a batch's id is.

    Raises Refused, with one text for a job that never was and for one of another tenant.
    """
    try:
        job = await viewer.backend.run(viewer.desk.jobs.get, name[:ID_CHARS])
    except JobNotFound:
        raise not_found("job", name) from None
    if not viewer.caller.may_see(job.spec.get("tenant")):
        raise not_found("job", name)
    return job


def head_of(desk: Desk, job: Job, dead: int) -> JobHead:
    """Return what stands above the pages of a job. Blocks."""
    submitted = f"submitted {ago(job.created_at, time.time())}"
    return JobHead(
        job.job_id,
        one_line(job.job_key, 600),
        INTERRUPTED if desk.interrupted([job]) else str(job.state),
        [f"id {job.job_id}", submitted],
        dead,
    )


@dataclass(frozen=True, slots=True)
class Viewer:
    caller: Caller
    backend: Backend
    desk: Desk
    tied_to: str  # the session's cookie, or the visit's
    new_visit: bool  # the visit begins with this answer
    secret: str
    theme: str

    @property
    def token(self) -> str:
        """Return what each form of this session carries."""
        return hmac.new(
            self.secret.encode(), f"form:{self.tied_to}".encode(), hashlib.sha256
        ).hexdigest()

    @property
    def signed_in(self) -> bool:
        return self.caller.key_id is not None

    @property
    def tenants(self) -> list[str | None] | None:
        """Return the tenants whose jobs are shown; None for all."""
        return None if self.sees_all else [self.caller.tenant]

    @property
    def sees_all(self) -> bool:
        return "admin" in self.caller.scopes

    def may(self, scope: Scope) -> bool:
        return scope in self.caller.scopes or self.sees_all


def viewer_with(scope: Scope) -> Callable[[Request], Awaitable[Viewer]]:
    """Return the dependency of a page: who looks at it, with ``scope``.

    Raises Refused: to the sign-in where there is no session, 403 without the scope.
    """
    caller_of = caller_with(scope)

    async def viewer(request: Request) -> Viewer:
        try:
            caller = await caller_of(request)
        except Refused as refused:
            raise _to_sign_in(request) if refused.status == 401 else refused from None
        backend = backend_of(request)
        desk = backend.part(Desk)
        session, visit = request.cookies.get(COOKIE), request.cookies.get(VISIT, "")
        is_new = session is None and _VISIT_SHAPE.fullmatch(visit) is None
        tied_to = session or (secrets.token_urlsafe(24) if is_new else visit)
        theme = request.cookies.get(THEME, "auto")
        secret = await backend.run(desk.secret)
        return Viewer(
            caller, backend, desk, tied_to, is_new, secret, theme if theme in THEMES else "auto"
        )

    return viewer


def give_cookie(
    response: Response, name: str, value: str, request: Request, *, lasts_s: float = SESSION_S
) -> None:
    """Set a cookie that scripts cannot read and other sites' pages do not send.

    Where the page came over TLS, the cookie goes over TLS only. Behind a proxy that ends TLS only
    the browser says so, in the origin of its form.
    """
    response.set_cookie(
        name,
        value,
        max_age=int(lasts_s),
        path="/",
        secure=request.url.scheme == "https"
        or request.headers.get("origin", "").startswith("https://"),
        httponly=True,
        samesite="strict",
    )


def _to_sign_in(request: Request) -> Refused:
    back = quote(request.url.path, safe="/") if request.method == "GET" else "/ui/jobs"
    return Refused(
        303, "Sign in first.", code="sign_in", headers={"location": f"/ui/login?next={back}"}
    )


FIELDS_MAX: Final = 40
TOKEN: Final = "token"  # noqa: S105 — the name of a field


async def read_form(request: Request, most: int) -> Mapping[str, str]:
    """Read the fields of a form, each once.

    Raises Refused for a body of more than ``most`` bytes, and for another kind of body.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refused(
            415,
            "Forms are sent as application/x-www-form-urlencoded.",
            code="unsupported_media_type",
        )
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise Refused(413, f"The form has more than {most:,} bytes.", code="too_large")
    try:
        fields = parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        raise Refused(400, "The form cannot be read.", code="invalid_form") from None
    return dict(fields)


def check_form(request: Request, viewer: Viewer, form: Mapping[str, str]) -> None:
    """Raise Refused for a form that was not made for this session.

    Another site may send one, too.
    """
    check_origin(request, viewer.backend.settings.gateway.hosts)
    check_token(viewer, form.get(TOKEN, ""))


def check_token(viewer: Viewer, token: str) -> None:
    """Raise Refused for a form that a page of another session has."""
    given = token.encode("utf-8", "surrogatepass")
    if viewer.new_visit or not hmac.compare_digest(given, viewer.token.encode()):
        raise Refused(
            403,
            "This form is of another session, or of one that has ended: open the page again and "
            "repeat it.",
            code="foreign_form",
        )


def check_origin(request: Request, hosts: tuple[str, ...]) -> None:
    """Raise Refused for a form of another site's page, and where the browser names no page.

    Browsers say which page a form is on.
    """
    refused = Refused(403, "This form is not of this site's pages.", code="foreign_form")
    try:
        origin = urlsplit(request.headers.get("origin", ""))
    except ValueError:  # brackets without an address between them
        raise refused from None
    own = request.headers.get("host", "")
    if not origin.netloc or (origin.netloc != own and origin.hostname not in hosts):
        raise refused


router = Router(include_in_schema=False)

FORM_MAX: Final = 8 * 1024  # bytes
YEAR_S: Final = 365 * 86_400
# where a sign-in goes on: nowhere else
_OURS: Final = re.compile(r"/ui(?:/[A-Za-z0-9_.-]{1,512}){0,6}")

Reader = Annotated[Viewer, Depends(viewer_with("read"))]


@router.get("/ui/login")
async def ask_for_key(next: str = "/ui/jobs") -> Response:
    return plain_page("login.html.jinja", next=_ours(next), fault="")


@router.post("/ui/login")
async def sign_in(request: Request) -> Response:
    check_origin(request, backend_of(request).settings.gateway.hosts)
    form = await read_form(request, FORM_MAX)
    place = _ours(form.get("next", ""))
    try:
        session = await keys_of(request).session_for(form.get("key", "").strip(), request)
    except Refused as refused:
        return plain_page(
            "login.html.jinja", status=refused.status, next=place, fault=refused.message
        )
    response = RedirectResponse(place, 303)
    give_cookie(response, COOKIE, session, request)
    return response


@router.post("/ui/logout")
async def sign_out(request: Request, viewer: Reader) -> Response:
    check_form(request, viewer, await read_form(request, FORM_MAX))
    await keys_of(request).end_session(request)
    response = RedirectResponse("/ui/login", 303)
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return response


@router.post("/ui/theme")
async def choose_theme(request: Request, viewer: Reader) -> Response:
    form = await read_form(request, FORM_MAX)
    check_form(request, viewer, form)
    response = RedirectResponse(_ours(form.get("back", "")), 303)
    theme = form.get("theme", "auto")
    theme = theme if theme in THEMES else "auto"
    give_cookie(response, THEME, theme, request, lasts_s=YEAR_S)
    return response


def _ours(place: str) -> str:
    return place if _OURS.fullmatch(place) else "/ui/jobs"
