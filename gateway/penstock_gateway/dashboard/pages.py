"""Pages for those who are let in."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from penstock_gateway.dashboard.viewer import VISIT, Viewer, give_cookie
from penstock_gateway.pages.render import HEADERS, rendered

__all__ = ["page"]

_NAV: Final = (
    ("jobs", "Jobs"),
    ("workers", "Workers"),
    ("quotas", "Quotas"),
    ("spending", "Spending"),
)
_TENANTS_NAV: Final = (("jobs", "Jobs"), ("spending", "Spending"))


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
