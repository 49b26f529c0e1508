"""Who looks at a page, and what ties the forms on it to that browser."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from penstock_gateway.backend import Backend, backend_of
from penstock_gateway.callers.caller import Caller, Scope, caller_with
from penstock_gateway.callers.known_keys import COOKIE, SESSION_S
from penstock_gateway.dashboard.desk import Desk, desk_of
from penstock_gateway.refused import Refused

__all__ = ["THEME", "THEMES", "VISIT", "Viewer", "give_cookie", "viewer_with"]

THEMES: Final = ("auto", "light", "dark")
THEME: Final = "penstock_theme"
VISIT: Final = "penstock_visit"
"""The cookie of a browser that has no session, since there are no keys: it is nothing but what
forms are tied to."""
_VISIT_SHAPE: Final = re.compile(r"[A-Za-z0-9_-]{32}")


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
        """What each form of this session carries."""
        return hmac.new(
            self.secret.encode(), f"form:{self.tied_to}".encode(), hashlib.sha256
        ).hexdigest()

    @property
    def signed_in(self) -> bool:
        return self.caller.key_id is not None

    @property
    def tenants(self) -> list[str | None] | None:
        """Whose jobs are shown; None for all."""
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
        desk = desk_of(backend)
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
