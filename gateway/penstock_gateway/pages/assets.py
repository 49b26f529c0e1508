"""The style, the script and the icon: read once, named by their content, so that browsers keep them
for ever."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

from starlette.responses import Response

from penstock_gateway.refused import not_found
from penstock_gateway.routing import Router

__all__ = ["asset_path", "router"]

router = Router(include_in_schema=False)

_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_PLACE: Final = "/ui/static"


class Asset(NamedTuple):
    content: bytes
    media_type: str


@router.get(_PLACE + "/{name}")
async def asset(name: str) -> Response:
    """Nothing in them is secret: the page that asks for a key needs them, too."""
    found = _by_name().get(name)
    if found is None:
        raise not_found("file", name)
    headers = {
        "cache-control": "public, max-age=31536000, immutable",
        "x-content-type-options": "nosniff",
    }
    return Response(found.content, media_type=found.media_type, headers=headers)


def asset_path(file: str) -> str:
    """Where browsers find it: ``dashboard.css`` as ``/ui/static/dashboard-1f2e3d4c.css``."""
    return f"{_PLACE}/{_names()[file]}"


@cache
def _by_name() -> Mapping[str, Asset]:
    folder = files("penstock_gateway.pages") / "static"
    return {
        _names()[file]: Asset((folder / file).read_bytes(), _TYPES[file.rpartition(".")[2]])
        for file in _names()
    }


@cache
def _names() -> Mapping[str, str]:
    folder = files("penstock_gateway.pages") / "static"
    found = {}
    for file in sorted(entry.name for entry in folder.iterdir()):
        stem, _, ending = file.rpartition(".")
        if ending in _TYPES:
            found[file] = (
                f"{stem}-{hashlib.sha256((folder / file).read_bytes()).hexdigest()[:12]}.{ending}"
            )
    return found
