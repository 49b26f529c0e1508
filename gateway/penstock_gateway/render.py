"""The dashboard's templates, filled in, with its style, script and icon, and the lines of charts.

Files are read once and named by their content; headers let a browser run and load nothing else.
Where the line of a chart runs is computed here, and the template draws it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from itertools import pairwise
from typing import Any, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response

from penstock_gateway.refused import not_found
from penstock_gateway.routing import Router
from penstock_producer.reporting.text import count, duration, one_line, percent, rate, usd
from penstock_producer.reporting.timeline import Stretch

__all__ = [
    "HEADERS",
    "Chart",
    "Part",
    "asset_path",
    "error_page",
    "parts",
    "plain_page",
    "rate_chart",
    "rendered",
    "router",
]

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
    """Return a static file.

    Nothing in them is secret: the page that asks for a key needs them, too.
    """
    found = _by_name().get(name)
    if found is None:
        raise not_found("file", name)
    headers = {
        "cache-control": "public, max-age=31536000, immutable",
        "x-content-type-options": "nosniff",
    }
    return Response(found.content, media_type=found.media_type, headers=headers)


def asset_path(file: str) -> str:
    """Return where browsers find a file.

    ``dashboard.css`` is at ``/ui/static/dashboard-1f2e3d4c.css``.
    """
    return f"{_PLACE}/{_names()[file]}"


@cache
def _by_name() -> Mapping[str, Asset]:
    folder = files("penstock_gateway") / "static"
    return {
        _names()[file]: Asset((folder / file).read_bytes(), _TYPES[file.rpartition(".")[2]])
        for file in _names()
    }


@cache
def _names() -> Mapping[str, str]:
    folder = files("penstock_gateway") / "static"
    found = {}
    for file in sorted(entry.name for entry in folder.iterdir()):
        stem, _, ending = file.rpartition(".")
        if ending in _TYPES:
            found[file] = (
                f"{stem}-{hashlib.sha256((folder / file).read_bytes()).hexdigest()[:12]}.{ending}"
            )
    return found


HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "cache-control": "no-store",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), interest-cohort=()",
}


def plain_page(
    template: str, *, status: int = 200, headers: Mapping[str, str] | None = None, **values: Any
) -> Response:
    """Return a page for those who are not signed in."""
    text = rendered(
        template,
        theme="auto",
        token="",
        nav=(),
        here="",
        signed_in=False,
        who="",
        can_write=False,
        **values,
    )
    return HTMLResponse(text, status, HEADERS | dict(headers or {}))


def error_page(
    status: int, message: str, request_id: str, headers: Mapping[str, str] | None = None
) -> Response:
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else "Error"
    return plain_page(
        "error.html.jinja",
        status=status,
        headers=headers,
        title=phrase,
        number=status,
        message=message,
        request_id=request_id,
    )


def rendered(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("penstock_gateway"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals["asset"] = asset_path
    made.filters |= {
        "count": count,
        "duration": duration,
        "line": one_line,
        "percent": percent,
        "usd": usd,
    }
    return made


WIDTH: Final = 720
HEIGHT: Final = 150
WIDE: Final = 1000.0  # a bar
LEAST: Final = 4.0  # of it, that can be seen
ROWS: Final = 12  # of the table that says the same in figures


class Chart(NamedTuple):
    """Documents per second over the time of a job. ``line``, ``area`` and ``dead`` are points."""

    width: int
    height: int
    line: str
    area: str
    dead: str
    most: str  # in words, as the next
    seconds: str
    title: str
    # until when, documents per second, those of them that failed
    rows: Sequence[tuple[str, str, str]]


class Part(NamedTuple):
    """A piece of a bar: where it begins and how wide it is, of 1000."""

    kind: str
    x: float
    width: float


def parts(numbers: Sequence[tuple[str, int]], whole: int) -> list[Part]:
    """Return the pieces of a bar whose whole is ``whole``; one that is there at all can be seen."""
    widths = {
        kind: max(LEAST, WIDE * number / whole)
        for kind, number in numbers
        if number > 0 and whole > 0
    }
    if widths:
        widest = max(widths, key=lambda kind: widths[kind])
        widths[widest] -= max(0.0, sum(widths.values()) - WIDE)
    found, at = list[Part](), 0.0
    for kind, width in widths.items():
        found.append(Part(kind, round(at, 1), round(width, 1)))
        at += width
    return found


def rate_chart(stretches: Sequence[Stretch]) -> Chart | None:
    """Return the chart of documents per second; None where nothing has ended."""
    if len(stretches) < 2 or not stretches[-1].finished:
        return None
    speeds = [_speed(before, after) for before, after in pairwise(stretches)]
    whole_s = max(1, stretches[-1].seconds)
    most = max(done for _, _, done, _ in speeds) or 1.0
    corners = [(since, until, done, dead) for since, until, done, dead in speeds]
    line = _steps([(since, until, done) for since, until, done, _ in corners], whole_s, most)
    dead = _steps([(since, until, failed) for since, until, _, failed in corners], whole_s, most)
    mean = stretches[-1].finished / whole_s
    title = (
        f"Documents per second over {duration(whole_s)}: {rate(mean)} on average, {rate(most)} at "
        f"most; {count(stretches[-1].dead)} of {count(stretches[-1].finished)} failed"
    )
    each = max(1, len(speeds) // ROWS)
    rows = [
        (duration(until), rate(done), rate(failed))
        for _, until, done, failed in speeds[each - 1 :: each]
    ]
    any_dead = stretches[-1].dead > 0
    return Chart(
        WIDTH,
        HEIGHT,
        line,
        _closed(line),
        _closed(dead) if any_dead else "",
        rate(most),
        duration(whole_s),
        title,
        rows,
    )


def _speed(before: Stretch, after: Stretch) -> tuple[int, int, float, float]:
    seconds = max(1, after.seconds - before.seconds)
    return (
        before.seconds,
        after.seconds,
        (after.finished - before.finished) / seconds,
        (after.dead - before.dead) / seconds,
    )


def _steps(spans: Sequence[tuple[int, int, float]], whole_s: int, most: float) -> str:
    points = list[tuple[float, float]]()
    for since, until, speed in spans:
        y = HEIGHT - (HEIGHT - 4) * speed / most
        points += [(WIDTH * since / whole_s, y), (WIDTH * until / whole_s, y)]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _closed(line: str) -> str:
    return f"0,{HEIGHT} {line} {WIDTH},{HEIGHT}"
