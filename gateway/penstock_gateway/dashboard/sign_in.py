"""Signing in with an API key, and out; and the colours that a browser prefers."""

from __future__ import annotations

import re
from typing import Annotated, Final

from fastapi import Depends
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from penstock_gateway.backend import backend_of
from penstock_gateway.callers.known_keys import COOKIE, keys_of
from penstock_gateway.dashboard.forms import check_form, check_origin, read_form
from penstock_gateway.dashboard.viewer import THEME, THEMES, Viewer, give_cookie, viewer_with
from penstock_gateway.pages.render import plain_page
from penstock_gateway.refused import Refused
from penstock_gateway.routing import Router

__all__ = ["router"]

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
