"""A collector that speaks OTLP: what it learns of a process, and what is said of its outages.

It may be away, slow or hostile. Neither work nor memory depends on it: its answers are not read
beyond their heads, and an outage is two lines of the log.
"""

from __future__ import annotations

import logging
import os
import socket
from functools import cache
from importlib.metadata import version
from typing import Final

import requests
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

__all__: Final = ["FLUSH_S", "SCOPE", "Outage", "bounded_session", "resource_of"]

log = logging.getLogger(__name__)

# at the end of a process, for what waits; two senders of one process fit into the drain's stop
# timeout
FLUSH_S: Final = 2.0

# of an answer that is read: a collector has a few words to say
ANSWER_BYTES: Final = 65_536

LOGINS: Final = tuple(
    f"OTEL_PYTHON_EXPORTER_OTLP_HTTP_{signal}CREDENTIAL_PROVIDER"
    for signal in ("", "TRACES_", "METRICS_")
)

SCOPE: Final = InstrumentationScope("penstock", version("penstock"))


def resource_of(service: str) -> Resource:
    """Describe the process; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win."""
    attributes = {
        "service.name": service,
        "service.version": version("penstock"),
        "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",
    }
    return Resource.create().merge(Resource(attributes)).merge(OTELResourceDetector().detect())


def bounded_session() -> requests.Session | None:
    """Return a session for an exporter, which looks at the head of an answer alone.

    A longer body than ``ANSWER_BYTES``, or one of unknown length, is not read but cut off. It is
    None, the exporter's own, where a variable names a session that logs in.
    """
    if any(name in os.environ for name in LOGINS):
        return None
    session = requests.Session()
    session.stream = True
    session.hooks["response"].append(_end)
    return session


def _end(response: requests.Response, **_: object) -> None:
    """Keep the connection for the next attempt, where little is left to read on it."""
    left = response.raw.length_remaining
    if left is not None and left <= ANSWER_BYTES:
        response.raw.read(decode_content=False)
    else:
        response.close()


class Outage:
    """Says when an outage of the collector begins and ends, not for each attempt.

    ``exporter`` is the logger whose lines, several for each attempt, are kept to the last one.
    ``meanwhile`` says what becomes of the ``things`` that it does not take."""

    def __init__(self, signal: str, things: str, meanwhile: str, exporter: str) -> None:
        self._of = signal, things
        self._meanwhile = meanwhile
        self._words = _last_words(exporter)
        self.lasts = False

    def note(self, *, taken: bool, since: str) -> None:
        """Note an attempt; ``since`` says what an outage that ends with it has cost."""
        signal, things = self._of
        if not taken and not self.lasts:
            log.warning(
                "%s: the collector does not take %s (%s); %s, the work goes on",
                signal,
                things,
                self._words,
                self._meanwhile,
            )
        elif taken and self.lasts:
            log.info("%s: the collector takes %s again; %s", signal, things, since)
        self.lasts = not taken


class _LastWords(logging.Filter):
    """Keeps an exporter's log, several lines per batch of an outage, to its last line."""

    _said = "no reason given"

    def filter(self, record: logging.LogRecord) -> bool:
        self._said = record.getMessage()
        return False

    def __str__(self) -> str:
        return self._said


@cache
def _last_words(logger: str) -> _LastWords:
    """Filter a logger once: a second filter would see no records."""
    words = _LastWords()
    logging.getLogger(logger).addFilter(words)
    return words
