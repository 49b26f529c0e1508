"""Whether a provider can be reached at all."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock_cli.errors import UsageProblem

if TYPE_CHECKING:
    from penstock_workers.settings import ProviderSettings

KNOCK_TIMEOUT_S = 5.0
_PORTS = {"http": 80, "https": 443}


def knock(base_url: str) -> None:
    """Open a connection and close it again: nothing is asked, so nothing is paid.

    Raises UsageProblem.

    A name that does not resolve and a connection that is refused are errors now; a provider that is
    only slow passes.
    """
    from penstock_ledger.redaction import redact

    parts = urlsplit(base_url)
    port = parts.port or _PORTS.get(parts.scheme, 443)
    try:
        socket.create_connection((parts.hostname or "", port), KNOCK_TIMEOUT_S).close()
    except TimeoutError:
        return
    except OSError as error:
        raise UsageProblem(
            f"no server answers at {redact(base_url)} ({error.strerror or error}): check the URL "
            "and that the server runs"
        ) from error


def name_receiver(name: str, provider: ProviderSettings) -> None:
    """Say which host gets the documents and which key, where a settings file decides that: it may
    not be the user's own."""
    from penstock_producer.reporting.text import safe
    from penstock_producer.settings import config_path

    config = config_path()
    if config is None:
        return
    host = urlsplit(provider.base_url).netloc.rpartition("@")[2]
    key = f"with the key of {provider.api_key_env}" if provider.api_key_env else "without a key"
    sys.stderr.write(
        safe(f"penstock: {config.resolve()}: provider {name!r} sends documents to {host}, {key}")
        + "\n"
    )
