"""A disk that is nearly full: nothing new is accepted where the ledger lies on it, and what was
accepted is kept.

A ledger in SQLite lies in a file of this machine; that of a fleet does not, and its own server says
when it is full.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

from penstock_gateway.refused import Refused
from penstock_gateway.settings import GatewaySettings

__all__ = ["ACCEPT_BYTES", "Room", "free_bytes"]

ACCEPT_BYTES: Final = 64 * 1024 * 1024
"""What has to be free for anything new. Jobs go on until half of that is left, so that what was
accepted comes first."""
_ENDS: Final = ("/cancel", "/pause", "/seal", "/resume", "/move")  # they accept nothing


def free_bytes(folder: Path) -> int | None:
    """What this user may still write there; None where the system does not say."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


class Room:
    """A step of the app. Raises Refused (507)."""

    def __init__(
        self,
        app: ASGIApp,
        settings: GatewaySettings,
        free: Callable[[Path], int | None] = free_bytes,
    ) -> None:
        self._app, self._free = app, free
        self._folder = _folder_of(settings.database_url)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and self._folder is not None:
            path: str = scope["path"]
            if path.startswith("/v1/") and not path.endswith(_ENDS):
                _refuse_without(self._free(self._folder))
        await self._app(scope, receive, send)


def _refuse_without(free: int | None) -> None:
    if free is not None and free < ACCEPT_BYTES:
        raise Refused(
            507,
            f"the disk of the server has {free / 1e6:.1f} MB left: nothing new is accepted below "
            f"{ACCEPT_BYTES / 1e6:.0f} MB; what was accepted is kept. Remove files that are not "
            "needed any more, or tell its operator",
            code="insufficient_storage",
            kind="server_error",
            headers={"retry-after": "60"},
        )


def _folder_of(database_url: str) -> Path | None:
    kind, _, path = database_url.partition(":///")
    return Path(unquote(path)).parent if kind.startswith("sqlite") and path else None
