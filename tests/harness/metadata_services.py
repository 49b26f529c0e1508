"""Stand-ins of the metadata services of AWS, Google Cloud and Azure: HTTP servers on loopback that
keep to their contracts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, NamedTuple
from urllib.parse import parse_qs, urlsplit


class Answer(NamedTuple):
    status: int
    body: str = ""
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed


class Asked(NamedTuple):
    method: str
    path: str
    query: dict[str, list[str]]
    headers: Any


class MetadataService:
    """One of the three.

    ``asked`` has every request; ``instead`` replaces the answers, for a service that misbehaves."""

    url: str

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.instead: Answer | None = None

    def answer(self, asked: Asked) -> Answer:
        raise NotImplementedError

    @contextmanager
    def serving(self) -> Iterator[MetadataService]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            timeout = 30.0

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                asked = Asked(self.command, parts.path, parse_qs(parts.query), self.headers)
                service.asked.append(asked)
                # all three refuse what comes through a proxy
                forwarded = "X-Forwarded-For" in self.headers
                found = service.instead or (Answer(403) if forwarded else service.answer(asked))
                self.send_response(found.status)
                for name, value in found.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(found.body.encode())))
                self.end_headers()
                self.wfile.write(found.body.encode())

            do_PUT = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                """Not in the output of tests."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()


class Aws(MetadataService):
    """IMDSv2: a token by PUT with its lifetime, 401 without a live one, 404 until there is a
    notice."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens: list[str] = []
        self.live: set[str] = set()
        self.notice: object | None = None

    def expire_tokens(self) -> None:
        self.live.clear()

    def answer(self, asked: Asked) -> Answer:
        if asked.method == "PUT":
            lifetime = asked.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
            if (
                asked.path != "/latest/api/token"
                or not lifetime.isdigit()
                or not 1 <= int(lifetime) <= 21_600
            ):
                return Answer(400)
            token = f"AQAEA-token-{len(self.tokens)}=="
            self.tokens.append(token)
            self.live.add(token)
            return Answer(200, token, {"X-aws-ec2-metadata-token-ttl-seconds": lifetime})
        if asked.headers.get("X-aws-ec2-metadata-token") not in self.live:
            return Answer(401)
        if asked.path != "/latest/meta-data/spot/instance-action" or self.notice is None:
            return Answer(404, "<title>404 - Not Found</title>")
        return Answer(200, json.dumps(self.notice), {"Content-Type": "text/plain"})


class Gcp(MetadataService):
    """TRUE or FALSE, at once where the etag has changed or none is named, else when it changes or
    the time is over."""

    FLAVOR: ClassVar = {"Metadata-Flavor": "Google"}

    def __init__(self) -> None:
        super().__init__()
        self._preempted = False
        self._changed = threading.Condition()
        self.waiting = threading.Event()  # a request waits for the change

    def preempt(self) -> None:
        with self._changed:
            self._preempted = True
            self._changed.notify_all()

    @property
    def _etag(self) -> str:
        return "e1" if self._preempted else "e0"

    def answer(self, asked: Asked) -> Answer:
        if asked.headers.get("Metadata-Flavor") != "Google":
            return Answer(403)
        if asked.path != "/computeMetadata/v1/instance/preempted":
            return Answer(404, "", self.FLAVOR)
        seen = asked.query.get("last_etag", [""])[0]
        with self._changed:
            if asked.query.get("wait_for_change") == ["true"] and seen in ("", self._etag):
                before = self._etag
                self.waiting.set()
                self._changed.wait_for(
                    lambda: self._etag != before, float(asked.query["timeout_sec"][0])
                )
            body = "TRUE" if self._preempted else "FALSE"
            return Answer(200, body, self.FLAVOR | {"ETag": self._etag})


class Azure(MetadataService):
    """Scheduled Events of a whole scale set, and the name of this machine in it."""

    def __init__(self, name: str = "aks-spot-vmss_3") -> None:
        super().__init__()
        self.name = name
        self.events: list[object] = []

    def schedule(
        self,
        *resources: str,
        kind: str = "Preempt",
        status: str = "Scheduled",
        not_before: str = "",
    ) -> None:
        self.events.append(
            {
                "EventId": f"C7061BAC-{len(self.events)}",
                "EventType": kind,
                "ResourceType": "VirtualMachine",
                "Resources": list(resources),
                "EventStatus": status,
                "NotBefore": not_before,
                "Description": "",
                "EventSource": "Platform",
                "DurationInSeconds": -1,
            }
        )

    def answer(self, asked: Asked) -> Answer:
        version = asked.query.get("api-version")
        if asked.headers.get("Metadata") != "true" or version is None:
            return Answer(400, json.dumps({"error": "Bad request"}))
        if asked.path == "/metadata/instance/compute/name" and asked.query.get("format") == [
            "text"
        ]:
            return Answer(200, self.name)
        if asked.path != "/metadata/scheduledevents" or version != ["2020-07-01"]:
            return Answer(404)
        return Answer(
            200, json.dumps({"DocumentIncarnation": len(self.events), "Events": self.events})
        )
