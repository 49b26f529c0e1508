"""Keys: an id is never a secret, no door says whose another's are, and a session that was ended is
over."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doors import Answer, asked, door, door_settings, sent
from servers import RedisServer

from penstock_gateway.callers.known_keys import TRIES_MAX
from penstock_gateway.settings import GatewaySettings
from penstock_ledger import ApiKeyStore, NewApiKey, open_database

FORM = "application/x-www-form-urlencoded"


@pytest.fixture
def settings(tmp_path: Path, redis_server: RedisServer) -> GatewaySettings:
    return door_settings(tmp_path, redis_server.url)


@pytest.fixture
def operator(settings: GatewaySettings) -> tuple[str, str]:
    """The operator's key: its id, which many may know, and its secret."""
    database = open_database(settings.database_url)
    database.migrate()
    made = ApiKeyStore(database).create(NewApiKey("operations", None, frozenset(["admin"])))
    database.close()
    return made


@pytest.fixture
def url(settings: GatewaySettings, operator: tuple[str, str]) -> Iterator[str]:
    with door(settings) as url:
        yield url


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def made(url: str, secret: str, **fields: Any) -> Answer:
    body = json.dumps({"name": "made", **fields}).encode()
    return asked(f"{url}/v1/keys", body, content_type="application/json", **bearer(secret))


def signed_in(url: str, secret: str) -> str:
    """The cookie of a browser whose person has typed this key."""
    form, host = f"key={secret}".encode(), url.removeprefix("http://")
    head = (
        "POST /ui/login HTTP/1.1\r\n"
        f"host: {host}\r\n"
        f"origin: {url}\r\n"
        "connection: close\r\n"
        f"content-type: {FORM}\r\n"
    )
    answer = sent(url, f"{head}content-length: {len(form)}\r\n\r\n".encode() + form).decode()
    return answer.partition("set-cookie: ")[2].partition(";")[0]


def test_the_id_of_a_key_is_never_its_secret(url: str, operator: tuple[str, str]) -> None:
    """401 for the id of a key on every door, although its owner looks at the dashboard at the same
    moment; nothing is made."""
    key_id, secret = operator
    cookie = signed_in(url, secret)
    for _ in range(TRIES_MAX // 3):
        assert asked(f"{url}/ui/jobs", cookie=cookie).status == 200
        assert asked(f"{url}/v1/keys", **bearer(key_id)).status == 401
        assert asked(f"{url}/v1/keys", x_api_key=key_id).status == 401
        assert made(url, key_id, scopes=["admin"]).status == 401
    assert asked(f"{url}/v1/keys", **bearer(key_id)).status == 429, (
        "ids count as the wrong keys that they are"
    )
    assert [key["id"] for key in asked(f"{url}/v1/keys", **bearer(secret)).content["data"]] == [
        key_id
    ]


@pytest.mark.parametrize("part", [0, 1, 2, 3])
def test_no_part_of_a_session_is_a_key(url: str, operator: tuple[str, str], part: int) -> None:
    """What a cookie holds opens no door, alone or whole, while its session is in use."""
    cookie = signed_in(url, operator[1])
    assert asked(f"{url}/ui/jobs", cookie=cookie).status == 200
    value = cookie.partition("=")[2]
    for wrong in (value, (value.split(".") * 2)[part]):
        assert asked(f"{url}/v1/keys", **bearer(wrong)).status == 401
    assert asked(f"{url}/v1/keys", cookie=cookie).status == 401, "a session counts on pages only"


def test_who_made_a_key_is_told_within_its_tenant_only(url: str, operator: tuple[str, str]) -> None:
    """A tenant sees the ids of its own keys; those of the operator's and of another tenant's it
    does not."""
    key_id, secret = operator
    first = made(url, secret, tenant="alpha", scopes=["keys", "read"]).content
    second = made(url, first["secret"], scopes=["keys", "read"]).content
    by_operator = {
        key["id"]: key["made_by"]
        for key in asked(f"{url}/v1/keys", **bearer(secret)).content["data"]
    }
    assert by_operator == {key_id: None, first["id"]: key_id, second["id"]: first["id"]}
    answer = asked(f"{url}/v1/keys", **bearer(second["secret"]))
    assert {key["id"]: key["made_by"] for key in answer.content["data"]} == {
        first["id"]: None,
        second["id"]: first["id"],
    }
    for path in (f"/v1/keys/{first['id']}", "/v1/keys", "/v1/jobs"):
        assert key_id.encode() not in asked(f"{url}{path}", **bearer(second["secret"])).body


def test_memory_holds_no_secret(url: str, operator: tuple[str, str]) -> None:
    """After a request nothing that the door remembers of its key is or contains the secret."""
    secret = made(url, operator[1], scopes=["read"]).content["secret"]
    assert asked(f"{url}/v1/keys", **bearer(operator[1])).status == 200
    asked(f"{url}/v1/jobs", **bearer(secret))
    gc.collect()
    held = [found for found in gc.get_objects() if isinstance(found, dict) and secret in found]
    assert held == []


def test_signing_out_ends_the_session_everywhere(
    settings: GatewaySettings, operator: tuple[str, str]
) -> None:
    """A cookie that was kept opens nothing after its person has signed out: at this door, at
    another, and after a restart."""
    with door(settings) as url:
        cookie, other = signed_in(url, operator[1]), signed_in(url, operator[1])
        page = asked(f"{url}/ui/jobs", cookie=cookie).body.decode()
        token = page.partition('name="token" value="')[2].partition('"')[0]
        form = f"token={token}".encode()
        assert (
            asked(f"{url}/ui/logout", form, origin=url, cookie=cookie, content_type=FORM).status
            != 403
        )
        assert b"/ui/logout" not in asked(f"{url}/ui/jobs", cookie=cookie).body
        assert b"/ui/logout" in asked(f"{url}/ui/jobs", cookie=other).body, (
            "another browser's session goes on"
        )
    with door(settings) as url:
        assert b"/ui/logout" not in asked(f"{url}/ui/jobs", cookie=cookie).body
        assert b"/ui/logout" in asked(f"{url}/ui/jobs", cookie=other).body
