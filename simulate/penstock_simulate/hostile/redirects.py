"""Other places to go to. `TRAP` counts who goes there: a client with a key must not follow."""

from __future__ import annotations

from collections.abc import Callable

from penstock_simulate.hostile.kinds import Asked, Kind
from penstock_simulate.reply import Reply

TRAP = "/trap"
# another name of this machine, and so another host for a client that was given 127.0.0.1
ELSEWHERE = "localhost"


def _to(status: int, *, host: str | None = None) -> Callable[[Asked], Reply]:
    def make(asked: Asked) -> Reply:
        port = asked.host.rpartition(":")[2]
        root = f"http://{host}:{port}" if host else ""
        return Reply(status, b"", {"Location": f"{root}{TRAP}"})

    return make


KINDS = (
    Kind("redirect-302", "302 to another path", _to(302)),
    Kind("redirect-307", "307 to another path", _to(307)),
    Kind("redirect-308", "308 to another path", _to(308)),
    Kind("redirect-host", "307 to another host", _to(307, host=ELSEWHERE)),
)
