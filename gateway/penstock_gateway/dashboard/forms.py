"""Forms that a browser sends: read within bounds, and taken only from our own pages."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request

from penstock_gateway.dashboard.viewer import Viewer
from penstock_gateway.refused import Refused

__all__ = ["TOKEN", "check_form", "check_origin", "check_token", "read_form"]

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
