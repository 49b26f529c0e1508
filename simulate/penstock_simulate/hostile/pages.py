"""HTML where JSON belongs: what stands between a client and its provider, and answers in the
provider's place."""

from __future__ import annotations

from penstock_simulate.hostile.kinds import Kind, fixed

HTML = {"Content-Type": "text/html; charset=utf-8", "Server": "edge"}
STATUSES = {
    200: "a login page",
    401: "a proxy's",
    403: "a firewall's",
    404: "a wrong path's",
    502: "a gateway's",
}


def _page(status: int) -> bytes:
    return (
        "<!doctype "
        f"html><html><head><title>{status}</title></head><body><h1>{status}</h1></body></html>"
    ).encode()


KINDS = tuple(
    Kind(
        f"html-{status}",
        f"{status} with {whose} HTML page" if status != 200 else f"200 with {whose}",
        fixed(status, _page(status), HTML),
    )
    for status, whose in STATUSES.items()
)
