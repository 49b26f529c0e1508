"""Jobs that run elsewhere: at the HTTP doors of a `serve` or gateway, or in a fleet."""

from __future__ import annotations

import json
import os
import secrets
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import orjson

from penstock.calls import Calls, Prepared
from penstock.errors import BadCall, RunFailed
from penstock.job import FINAL, Books, Given, Job, Ledger, RunStopped, Status
from penstock.progress import View
from penstock.rows import ID
from penstock_producer.source_formats import is_database
from penstock_producer.tables.columns import Row, Table, from_json

__all__ = ["Connection", "connect"]

LOOK_EVERY_S: Final = 1.0
TIMEOUT_S: Final = 60.0  # for an answer of the doors to begin
CHUNK_BYTES: Final = 1024 * 1024


class Connection(Calls):
    """The calls of this package for jobs that run in one other place."""

    def __init__(self, where: Server | Fleet) -> None:
        super().__init__(where)
        self._place = where

    def job(self, key: str) -> Job:
        """Return a job by its key or id, also one of another client. Raises BadCall."""
        return self._place.find(key)

    def __repr__(self) -> str:
        return f"<Connection to {self._place.shown}>"


def connect(url: str, *, api_key_env: str | None = None) -> Connection:
    """Return the same calls for jobs that run elsewhere.

    ``url`` is that of a `penstock serve` or gateway (``http://…``; ``api_key_env`` names the
    variable that holds its key), or of a fleet's database (``postgresql://…``). Raises BadCall.
    """
    if url.startswith(("http://", "https://")):
        return Connection(Server(url, _key(api_key_env)))
    if is_database(url):
        return Connection(Fleet(url))
    raise BadCall(
        f"{url!r} is no address of jobs: give the http:// address of a `penstock serve` or "
        "gateway, or the URL of a fleet's database; its Redis need not be known here"
    )


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise BadCall(f"the variable {variable} is not set; it holds the key of the doors")
    return key


class RemoteJob(Job):
    """A job that goes on without this process, too."""

    def __init__(self, key: str, where: str, books: Books, given: Given) -> None:
        super().__init__(key, where, books, given)
        self._seen: Status | None = None
        self._looked_at = float("-inf")
        self._began = time.monotonic()

    def leave(self, draw: Callable[[], None] = lambda: None) -> None:
        """Leave the job as it is: it goes on without this process."""

    def left(self) -> str:
        return (
            f"job {self.key} goes on at {self.place}; the same call waits for it, and "
            f"connect(…).job({self.key!r}).stop() pauses it"
        )

    def _ended(self, timeout_s: float) -> bool:
        if timeout_s:
            time.sleep(timeout_s)
        if time.monotonic() - self._looked_at >= LOOK_EVERY_S:
            self._seen = self._books.status()
            self._looked_at = time.monotonic()
        return self._seen is not None and (
            self._seen.state in FINAL or self._seen.waits_for is not None
        )

    def _conclude(self) -> None:
        seen = self._seen
        if seen is not None and seen.state not in FINAL:
            raise RunStopped(
                f"job {self.key} is paused: {seen.waits_for}. It goes on with "
                f"connect(…).job({self.key!r}).resume()",
                self.answers,
            )

    def _view(self) -> View:
        seen = self._seen
        if seen is None:
            return View(self.key, {}, None)
        seconds = time.monotonic() - self._began
        figures = {
            "total": seen.total,
            "succeeded": seen.succeeded,
            "dead": seen.dead,
            "retries": 0,
            "seconds": seconds,
            "seconds_left": None,
            "per_second": 0.0,
            "cost_microusd": round((seen.cost_usd or 0) * 1_000_000),
            "unpriced": seen.cost_usd is None and seen.succeeded > 0,
        }
        return View(self.key, figures, None)


# -- a fleet ---------------------------------------------------------------------------------------


class Fleet:
    """A fleet, by its database: documents are pushed into an open job."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.shown = urllib.parse.urlsplit(url)._replace(query="").geturl().rpartition("@")[2]

    def begin(self, call: Prepared) -> Job:
        """Push the rows into a job of this name, unless it has them already."""
        _refuse(call, "the fleet")
        if call.held.ids is None:
            raise BadCall(
                "a fleet reads files and tables from where its workers are: submit them with "
                "penstock_producer.Producer, or give the rows themselves"
            )
        key = call.folder.name
        ledger = Ledger(self._url, lambda: key)
        options = {name: value for name, value in call.options.job.items() if name != "id_field"}
        if not ledger.is_kept() or ledger.producer.status(key).job.total is None:
            with ledger.producer.open_job(options, job_key=key) as job:
                for doc_id, document in _documents(Path(call.source), call):
                    job.enqueue(doc_id, document)
                job.close()
        return FleetJob(key, self.shown, ledger, call.held)

    def find(self, key: str) -> Job:
        ledger = Ledger(self._url, lambda: key)
        if not ledger.is_kept():
            raise BadCall(f"there is no job {key!r} in {self.shown}")
        return FleetJob(key, self.shown, ledger, Given(None, None, None))


class FleetJob(RemoteJob):
    """A job of a fleet."""

    def __init__(self, key: str, where: str, ledger: Ledger, given: Given) -> None:
        super().__init__(key, where, ledger, given)
        self._producer = ledger.producer

    def stop(self) -> None:
        self._producer.pause(self.key)

    def resume(self) -> None:
        self._producer.resume(self.key)

    def forget(self) -> None:
        raise RunFailed(f"penstock purge {self.key} removes a job of a fleet")


def _documents(path: Path, call: Prepared) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as file:
        for line in file:
            record = orjson.loads(line)
            doc_id = record.pop(ID)
            takes_records = call.options.spec.takes_records
            yield (doc_id, record) if takes_records else (record["custom_id"], record["body"])


def _refuse(call: Prepared, whose: str) -> None:
    """Refuse what the other side decides. Raises BadCall."""
    for name in (*call.options.provider, *call.options.machine):
        raise BadCall(f"{name} is for {whose} to say, which has its own; leave it out")


# -- HTTP doors ------------------------------------------------------------------------------------


class Server:
    """The HTTP doors of a `serve` or gateway."""

    def __init__(self, url: str, key: str | None) -> None:
        self.shown = url.rstrip("/").removesuffix("/v1")
        self._key = key

    def begin(self, call: Prepared) -> Job:
        """Upload the rows and submit them, unless there is a job of this name already."""
        _refuse(call, "the server")
        key = call.folder.name
        door = Door(self, key)
        if not door.is_kept():
            file = None if call.held.ids is None else self._uploaded(Path(call.source))
            source = file or call.source
            self.ask("POST", "/v1/jobs", {**call.options.job, "job": key, "source": source})
        return ServerJob(self, key, door, call.held)

    def find(self, key: str) -> Job:
        door = Door(self, key)
        if not door.is_kept():
            raise BadCall(f"there is no job {key!r} at {self.shown}")
        return ServerJob(self, key, door, Given(None, None, None))

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return what the doors answer. Raises BadCall, NotThere among them, and RunFailed."""
        data = None if body is None else json.dumps(body).encode()
        with self.open(method, path, data, "application/json") as answer:
            return json.load(answer)

    def open(
        self,
        method: str,
        path: str,
        data: bytes | Iterable[bytes] | None = None,
        content_type: str | None = None,
        **headers: str,
    ) -> Any:
        """Return the answer, to be read. Raises BadCall, NotThere among them, and RunFailed."""
        if content_type is not None and data is not None:
            headers["Content-Type"] = content_type
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        request = urllib.request.Request(  # noqa: S310 - http and https alone, as connect() saw
            self.shown + path, data, {name.replace("_", "-"): to for name, to in headers.items()}
        )
        request.method = method
        try:
            return urllib.request.urlopen(request, timeout=TIMEOUT_S)  # noqa: S310 - as above
        except urllib.error.HTTPError as error:
            raise _refusal(error, self.shown) from None
        except OSError as error:
            raise RunFailed(f"no server answers at {self.shown} ({error})") from error

    def _uploaded(self, path: Path) -> str:
        border = secrets.token_hex(16)
        head = (
            f'--{border}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            f'--{border}\r\nContent-Disposition: form-data; name="file"; filename="{path.name}"\r\n'
            "Content-Type: application/jsonl\r\n\r\n"
        ).encode()
        tail = f"\r\n--{border}--\r\n".encode()
        size = len(head) + path.stat().st_size + len(tail)

        def pieces() -> Iterator[bytes]:
            yield head
            with path.open("rb") as file:
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk
            yield tail

        kind = f"multipart/form-data; boundary={border}"
        with self.open("POST", "/v1/files", pieces(), kind, Content_Length=str(size)) as answer:
            return str(json.load(answer)["id"])


class NotThere(BadCall):
    """The doors do not know the thing that was named."""


def _refusal(error: urllib.error.HTTPError, shown: str) -> Exception:
    """Return what an answer of the doors means."""
    try:
        said = json.loads(error.read())["error"]["message"]
    except (ValueError, KeyError, TypeError):
        said = error.reason
    if error.code == 404:
        return NotThere(f"{shown}: {said}")
    if error.code in (401, 403):
        return BadCall(f"{shown} refuses the key: {said}; api_key_env names the variable it is in")
    return BadCall(f"{shown}: {said}") if error.code < 500 else RunFailed(f"{shown}: {said}")


class Door:
    """The books of a job behind HTTP."""

    def __init__(self, server: Server, key: str) -> None:
        self._server = server
        self._path = f"/v1/jobs/{urllib.parse.quote(key, safe='')}"

    def _shown(self) -> Mapping[str, Any]:
        found: dict[str, Any] = self._server.ask("GET", self._path)
        return found

    @property
    def spec(self) -> Mapping[str, Any]:
        return self._spec

    @cached_property
    def _spec(self) -> Mapping[str, Any]:
        found: dict[str, Any] = self._shown()["spec"]
        return found

    def is_kept(self) -> bool:
        try:
            self._shown()
        except NotThere:
            return False
        return True

    def rows(self, after: str | None = None) -> Iterator[tuple[str, Row]]:
        columns = Table(self.spec).columns
        query = {"form": "rows", **({} if after is None else {"after": after})}
        path = f"{self._path}/results?{urllib.parse.urlencode(query)}"
        with self._server.open("GET", path) as answer:
            for line in answer:
                row = orjson.loads(line)
                yield row["cursor"], [from_json(row[one.name], one.kind) for one in columns]

    def latest(self, number: int) -> list[str]:
        return []

    def status(self) -> Status:
        shown = self._shown()
        counts = shown["counts"]
        waits = shown["state"] == "paused" and shown["resume_at"] is None
        return Status(
            shown["state"],
            counts["total"],
            counts["succeeded"],
            counts["dead"],
            shown["usage"]["cost_usd"],
            (shown["reason"] or "no reason was recorded") if waits else None,
        )

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = self._server.ask("GET", f"{self._path}/report")
        return found


class ServerJob(RemoteJob):
    """A job behind HTTP doors."""

    def __init__(self, server: Server, key: str, door: Door, given: Given) -> None:
        super().__init__(key, server.shown, door, given)
        self._server = server
        self._path = f"/v1/jobs/{urllib.parse.quote(key, safe='')}"

    def stop(self) -> None:
        self._server.ask("POST", f"{self._path}/pause", {})

    def resume(self) -> None:
        self._server.ask("POST", f"{self._path}/resume", {})

    def forget(self) -> None:
        self._server.ask("DELETE", self._path)
