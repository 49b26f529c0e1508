"""Whether a provider can be reached at all."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from penstock_cli.errors import UsageProblem

KNOCK_TIMEOUT_S = 5.0
_PORTS = {"http": 80, "https": 443}


def knock(base_url: str) -> None:
    """Open a connection and close it again: nothing is asked, so nothing is paid. Raises UsageProblem.

    Somebody who does not exist or refuses will not do otherwise by waiting; a provider that is only slow may pass.
    """
    parts = urlsplit(base_url)
    port = parts.port or _PORTS.get(parts.scheme, 443)
    try:
        socket.create_connection((parts.hostname or "", port), KNOCK_TIMEOUT_S).close()
    except TimeoutError:
        return
    except OSError as error:
        raise UsageProblem(
            f"nobody answers at {base_url} ({error.strerror or error}): check the URL and that the server runs"
        ) from error
