"""The jobs API as tests call it, and outcomes as workers write them."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from doors import door_settings

from penstock_gateway.settings import GatewaySettings
from penstock_ledger import Database, DeadLetter, ItemKey, OutcomeStore, Result

SPEC = {"prompt": "Summarise: {text}", "model": "gpt-x", "params": {"max_tokens": 16}}
ROWS = b"".join(b'{"id": "d%d", "text": "document %d"}\n' % (number, number) for number in range(6))


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)


class Client:
    def __init__(self, url: str, secret: str | None = None) -> None:
        self.url = url
        self.secret = secret

    def ask(
        self, method: str, path: str, body: Any = None, *, raw: bytes | None = None, **headers: str
    ) -> Answer:
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.secret is not None:
            sent["authorization"] = f"Bearer {self.secret}"
        if data is not None:
            sent.setdefault("content-type", "application/json")
        request = urllib.request.Request(f"{self.url}{path}", data, sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return Answer(answer.status, dict(answer.headers), answer.read())
        except urllib.error.HTTPError as error:
            return Answer(error.code, dict(error.headers), error.read())

    def get(self, path: str, **query: object) -> Answer:
        asked = {name: value for name, value in query.items() if value is not None}
        return self.ask(
            "GET", f"{path}?{urllib.parse.urlencode(asked, doseq=True)}" if asked else path
        )

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return self.ask("POST", path, body, raw=None, **headers)


def settings_with_roots(folder: Path, redis_url: str = "redis://127.0.0.1:1/0") -> GatewaySettings:
    """Of a door that reads what lies in ``folder``/in, where six rows are; one beside it is not to
    be read."""
    (folder / "in").mkdir()
    (folder / "in/rows.jsonl").write_bytes(ROWS)
    (folder / "in/odd.jsonl").write_bytes(ROWS + b"not json\n")
    (folder / "secret.jsonl").write_bytes(ROWS)
    given = door_settings(folder, redis_url, max_body_bytes=2 * 1024 * 1024)
    return given.model_copy(update={"source_roots": (str(folder / "in"),)})


def place(settings: GatewaySettings, name: str = "in/rows.jsonl") -> str:
    return str(Path(settings.gateway.files).parent / name)


def submitted(api: Client, settings: GatewaySettings, **more: Any) -> dict[str, Any]:
    answer = api.post("/v1/jobs", {**SPEC, "source": place(settings), **more})
    assert answer.status == 201, answer.raw
    shown: dict[str, Any] = answer.json
    return shown


def uploaded(api: Client, lines: bytes = ROWS) -> str:
    """The id of a file of rows."""
    boundary = "b0undary"
    form = (
        (
            f"--{boundary}\r\n"
            'Content-Disposition: form-data; name="purpose"\r\n'
            "\r\n"
            "batch\r\n"
            f"--{boundary}\r\n"
            'Content-Disposition: form-data; name="file"; filename="rows.jsonl"\r\n'
            "\r\n"
        ).encode()
        + lines
        + f"\r\n--{boundary}--\r\n".encode()
    )
    made = api.ask(
        "POST", "/v1/files", raw=form, content_type=f"multipart/form-data; boundary={boundary}"
    )
    assert made.status == 200, made.raw
    return str(made.json["id"])


def settle(
    db: Database,
    job_id: str,
    done: int,
    dead: int = 0,
    first: int = 0,
    request: bytes = b'{"model": "gpt-x"}',
) -> None:
    """Outcomes of the job's documents, as a worker writes them."""
    body = b'{"choices": [{"message": {"content": "ok"}}]}'
    results = [
        Result(
            ItemKey(job_id, 1, f"d{number}"), 200, body, None, "gpt-x", "stop", 5, 2, 3, 10, 1, 1
        )
        for number in range(first, first + done)
    ]
    letters = [
        DeadLetter(
            ItemKey(job_id, 1, f"d{number}"), "http_400", 1, 1, "refused", 400, request, b"no json"
        )
        for number in range(first + done, first + done + dead)
    ]
    OutcomeStore(db).settle(results, letters)
