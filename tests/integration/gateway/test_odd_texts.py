"""Every kind of odd text through the doors that strangers and people use: HTTP and the command
line.

What tasks of Celery clients may hold is in contract/test_doors.py, hooks in a fleet are in
unit/workers/children/test_hooks.py.
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doors import door
from jobs_api import SPEC, Client, place, settings_with_roots, settle, submitted
from odd_texts import LARGE, SHORT, has_half
from typer.testing import CliRunner

from penstock_cli.failures import message
from penstock_cli.main import command_line
from penstock_gateway.settings import GatewaySettings
from penstock_ledger import Database, JobStore, open_database, storable
from penstock_producer.reporting.text import safe

AWAY = 503  # Redis, for what needs it: there is none behind this door

short = pytest.mark.parametrize(
    "text", [pytest.param(text, id=name) for name, text in SHORT.items()]
)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> GatewaySettings:
    return settings_with_roots(tmp_path_factory.mktemp("door"))


@pytest.fixture(scope="module")
def api(settings: GatewaySettings) -> Iterator[Client]:
    with door(settings) as url:
        yield Client(url)


@pytest.fixture(scope="module")
def db(settings: GatewaySettings, api: Client) -> Iterator[Database]:
    database = open_database(settings.database_url)
    yield database
    database.close()


@pytest.fixture(scope="module")
def job(api: Client, settings: GatewaySettings, db: Database) -> str:
    made = str(submitted(api, settings, job="with letters")["id"])
    settle(db, made, 1, 2)
    return made


def asked(text: str, source: str, job: str) -> dict[tuple[str, str], Any]:
    """Bodies with the text in each place that takes one, by method and path."""
    return {
        ("POST", "/v1/jobs"): {**SPEC, "source": source, "job": text},
        ("POST", "/v1/jobs/preview"): {**SPEC, "source": source, "prompt": text + "{text}"},
        ("POST", "/v1/jobs/estimate"): {**SPEC, "source": text},
        ("POST", f"/v1/jobs/{job}/pause"): {"reason": text},
        ("POST", f"/v1/jobs/{job}/resume"): {},
        ("POST", f"/v1/jobs/{job}/replay"): {
            "reason": text,
            "doc_ids": [text],
            "overrides": {"prompt": text},
        },
        ("POST", f"/v1/jobs/{job}/move"): {"lane": text, "reason": text},
        ("POST", f"/v1/jobs/{job}/items"): {"id": text, "text": text},
        ("POST", "/v1/schedules"): {
            "name": text,
            "every": text,
            "source": text,
            "spec": {"prompt": text},
        },
        ("POST", "/v1/webhooks"): {
            "url": f"https://example.com/{text}",
            "events": [text],
            "description": text,
        },
        ("POST", "/v1/keys"): {"name": text, "tenant": text, "scopes": [text]},
        ("POST", "/v1/batches"): {
            "input_file_id": text,
            "endpoint": text,
            "completion_window": "24h",
            "metadata": {"a": text},
        },
        ("POST", "/v1/messages/batches"): {
            "requests": [{"custom_id": text, "params": {"model": text}}]
        },
        ("POST", "/v1/chat/completions"): {
            "model": text,
            "messages": [{"role": text, "content": text}],
        },
        ("PATCH", f"/v1/jobs/{job}"): {"budget_usd": text},
        ("POST", "/ui/login"): {"key": text},
    }


@short
def test_no_text_in_a_body_is_more_than_the_door_can_answer(
    api: Client, settings: GatewaySettings, db: Database, job: str, text: str
) -> None:
    """Half an emoji is refused as JSON, a person's words are stored by the rule, and nothing is an
    error of the door's own."""
    for (method, path), body in asked(text, place(settings), job).items():
        answer = api.ask(method, path, raw=json.dumps(body).encode())
        assert answer.status < 500 or answer.status == AWAY, (path, answer.raw)
        assert not has_half(answer.raw.decode())
        if has_half(text) and body and not path.startswith("/ui"):
            assert answer.status in (400, 401, 403, 404), (path, answer.raw)
        if path.endswith("/pause") and answer.status == 200:
            assert JobStore(db).get(job).reason == storable(text)


@short
def test_no_text_in_an_address_or_a_head_is_more_than_the_door_can_answer(
    api: Client, job: str, text: str
) -> None:
    """As UTF-8 where it can be, else as the bytes that a client might send."""
    quoted = urllib.parse.quote(text.encode("utf-8", "surrogatepass"), safe="")
    for path in (
        f"/v1/jobs/{quoted}",
        f"/v1/jobs/{job}/dead-letters/{quoted}",
        f"/v1/jobs?tenant={quoted}&after={quoted}&limit={quoted}&state={quoted}",
        f"/v1/jobs/{job}/dead-letters?reason={quoted}&cursor={quoted}",
        f"/v1/files/{quoted}",
        f"/v1/batches/{quoted}",
        f"/v1/schedules/{quoted}",
        f"/v1/webhooks/{quoted}",
        f"/v1/models/{quoted}",
        f"/ui/jobs?q={quoted}",
        f"/{quoted}",
    ):
        answer = api.get(path)
        assert answer.status < 500 or answer.status == AWAY, (path, answer.raw)
        assert not has_half(answer.raw.decode())
    head = (
        "".join(one for one in text if one.isprintable())
        .encode("utf-8", "replace")
        .decode("latin-1")
    )
    for name in (
        "Authorization",
        "Idempotency-Key",
        "X-Request-Id",
        "Accept",
        "If-None-Match",
        "Range",
        "Cookie",
    ):
        headers: dict[str, Any] = {name: head}
        answer = api.ask("GET", f"/v1/jobs/{job}/results", **headers)
        assert answer.status < 500, (name, answer.raw)


@short
def test_a_file_of_any_name_can_be_uploaded_or_is_refused(api: Client, text: str) -> None:
    """And its content is given back byte for byte."""
    boundary, content = "b0undary", json.dumps({"id": "a", "text": text}).encode() + b"\n"
    name = (
        text.replace("\r", "").replace("\n", "").replace('"', "").encode("utf-8", "surrogatepass")
    )
    form = (
        b"--b0undary\r\nContent-Disposition: form-data; "
        b'name="purpose"\r\n\r\nbatch\r\n--b0undary\r\n'
        b'Content-Disposition: form-data; name="file"; filename="%b"\r\n\r\n%b\r\n--b0undary--\r\n'
        % (name, content)
    )
    made = api.ask(
        "POST", "/v1/files", raw=form, content_type=f"multipart/form-data; boundary={boundary}"
    )
    assert made.status in (200, 400), made.raw
    assert not has_half(made.raw.decode())
    if made.status == 200:
        assert api.get(f"/v1/files/{made.json['id']}/content").raw == content


def test_ten_megabytes_are_refused_by_their_size(api: Client, settings: GatewaySettings) -> None:
    """At this door; at one with room for them by the limits of each field."""
    answer = api.post("/v1/jobs", {**SPEC, "source": place(settings), "job": LARGE})
    assert answer.status == 413


@pytest.mark.parametrize(
    "name", ["raw bytes of a name", "right to left override", "control characters"]
)
def test_no_flag_of_the_command_line_is_more_than_it_can_answer(
    settings: GatewaySettings, db: Database, job: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the operating system gives arguments: with surrogates for what is not UTF-8."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", settings.database_url)
    monkeypatch.setenv("PENSTOCK_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.chdir(Path(settings.gateway.files).parent)
    given = SHORT[name]
    for arguments in (
        ["status", given],
        ["pause", job, "--reason", given],
        ["dlq", "show", job, given],
        ["dlq", "replay", job, "--doc", given, "--set", f"prompt={given}"],
        ["run", place(settings), "--prompt", given + "{text}", "--model", given, "--dry-run"],
        ["results", job, "--partial", "--output", given],
    ):
        came = CliRunner().invoke(command_line(), arguments)
        assert "No such" not in came.output, (arguments, came.output)
        if came.exception is not None and not isinstance(came.exception, SystemExit):
            said = safe(message(came.exception))  # as the command says it on its way out
            assert not said.startswith("unexpected"), (arguments, said)
            assert not has_half(said)
