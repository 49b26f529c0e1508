"""`/v1/keys`: keys made, listed and revoked over HTTP, and what no key can give to another."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doors import Answer, asked, door, door_settings, new_key
from fleet import until
from servers import RedisServer

from penstock_gateway.settings import GatewaySettings
from penstock_ledger import ApiKeyStore, KeyLimits, NewApiKey, open_database

ALL = ["read", "write", "infer"]


class Asker:
    """Who asks with one key."""

    def __init__(self, url: str, secret: str | None) -> None:
        self.url, self.secret = url, secret

    def ask(self, method: str, path: str = "", body: Any = None) -> Answer:
        headers = {"content_type": "application/json"} if body is not None else {}
        if self.secret is not None:
            headers["authorization"] = f"Bearer {self.secret}"
        sent = None if body is None else json.dumps(body).encode()
        return asked(f"{self.url}/v1/keys{path}", sent, method=method, **headers)

    def make(self, **fields: Any) -> Answer:
        return self.ask("POST", "", {"name": "made", **fields})

    def ids(self) -> list[str]:
        return [key["id"] for key in self.ask("GET").content["data"]]


@pytest.fixture(scope="module")
def settings(
    tmp_path_factory: pytest.TempPathFactory, _shared_redis: RedisServer
) -> GatewaySettings:
    return door_settings(tmp_path_factory.mktemp("door"), _shared_redis.url)


@pytest.fixture(scope="module")
def operator(settings: GatewaySettings) -> Iterator[Asker]:
    secret = new_key(settings, None, "admin")
    with door(settings) as url:
        yield Asker(url, secret)


def made_by(operator: Asker, **fields: Any) -> Asker:
    answer = operator.make(**fields)
    assert answer.status == 201, answer.body
    return Asker(operator.url, answer.content["secret"])


def test_a_key_is_made_shown_once_and_revoked(operator: Asker) -> None:
    """Its secret comes with the answer that made it and never again; revoked it is refused, and
    stays in the list."""
    answer = operator.make(tenant="shop", expires_in_s=3600, requests_per_minute=60, budget_usd=5)
    made = answer.content
    assert (answer.status, answer.headers["cache-control"]) == (201, "no-store")
    assert answer.headers["location"] == f"/v1/keys/{made['id']}"
    assert (made["tenant"], made["scopes"], made["requests_per_minute"], made["budget_usd"]) == (
        "shop",
        ["infer", "read", "write"],
        60,
        5.0,
    )
    assert 3500 < made["expires_at"] - time.time() <= 3600
    user = {"authorization": f"Bearer {made['secret']}"}
    assert asked(f"{operator.url}/v1/jobs", **user).status == 200
    for shown in (operator.ask("GET", f"/{made['id']}"), operator.ask("GET")):
        assert shown.status == 200
        assert b"secret" not in shown.body
        assert made["secret"].encode() not in shown.body
    ended = operator.ask("DELETE", f"/{made['id']}").content
    assert (ended["valid"], operator.ask("DELETE", f"/{made['id']}").content["revoked_at"]) == (
        False,
        ended["revoked_at"],
    )
    until(
        lambda: asked(f"{operator.url}/v1/jobs", **user).status == 401,
        30,
        "the revoked key is refused",
    )
    assert made["id"] in operator.ids()


def test_what_a_new_key_is_refused_for_is_named(operator: Asker) -> None:
    """Each field that cannot be is named, and nothing is made."""
    before = operator.ids()
    for fields, param in (
        ({"name": ""}, "name"),
        ({"name": "a\u202e"}, "name"),
        ({"tenant": "job_x"}, "tenant"),
        ({"tenant": "a/b"}, "tenant"),
        ({"scopes": ["root"]}, "scopes.0"),
        ({"scopes": []}, "scopes"),
        ({"expires_in_s": 0}, "expires_in_s"),
        ({"expires_in_s": 1e300}, "expires_in_s"),
        ({"concurrency": 1.5}, "concurrency"),
        ({"budget_usd": 5}, "budget_usd"),
        ({"requests_per_minute": "60"}, "requests_per_minute"),
        ({"owner": "me"}, "owner"),
    ):
        answer = operator.make(**fields)
        assert (answer.status, answer.content["param"]) == (400, param), answer.body
    assert operator.ids() == before
    assert operator.ask("GET", "?cursor=nonsense").content["code"] == "invalid_cursor"
    assert (
        operator.ask("GET", "/key_nothing").status
        == operator.ask("DELETE", "/key_nothing").status
        == 404
    )


@pytest.mark.parametrize("scope", ["keys", "admin"])
def test_a_tenants_administrator_has_its_own_tenant_only(operator: Asker, scope: str) -> None:
    """It lists, shows and revokes keys of its tenant, makes keys for it, and for others they are
    not there."""
    tenant = f"of-{scope}"
    theirs = operator.make(tenant="others").content["id"]
    chief = made_by(operator, tenant=tenant, scopes=[*ALL, scope])
    made = chief.make().content
    assert made["tenant"] == tenant
    assert chief.make(tenant=tenant).status == 201
    assert theirs not in chief.ids()
    assert {chief.ask("GET", f"/{name}").content["tenant"] for name in chief.ids()} == {tenant}
    for method in ("GET", "DELETE"):
        foreign, unknown = chief.ask(method, f"/{theirs}"), chief.ask(method, f"/{theirs[:-1]}x")
        assert (foreign.status, foreign.content["detail"]) == (
            404,
            unknown.content["detail"].replace(theirs[:-1] + "x", theirs),
        )
    assert operator.ask("GET", f"/{theirs}").content["valid"] is True
    refused = chief.make(tenant="others")
    assert (refused.status, refused.content["code"], refused.content["param"]) == (
        403,
        "not_allowed",
        "tenant",
    )


def test_no_key_gives_what_it_has_not(operator: Asker, settings: GatewaySettings) -> None:
    """Neither a scope, nor a larger limit, nor a later end; what is left out is as the giver has
    it."""
    database = open_database(settings.database_url)
    end = time.time() + 3600
    limits = KeyLimits(requests_per_minute=10_000, concurrency=50, budget_usd=7.5)
    new = NewApiKey("small", "small", frozenset(["read", "keys"]), end, limits)
    _, secret = ApiKeyStore(database).create(new)
    small = Asker(operator.url, secret)
    for fields, param in (
        ({"scopes": ["read", "write"]}, "scopes"),
        ({"scopes": ["admin"]}, "scopes"),
        ({}, "scopes"),
        ({"scopes": ["read"], "requests_per_minute": 10_001}, "requests_per_minute"),
        ({"scopes": ["read"], "concurrency": 51}, "concurrency"),
        ({"scopes": ["read"], "budget_usd": 7.51}, "budget_usd"),
        ({"scopes": ["read"], "expires_in_s": 7200}, "expires_in_s"),
    ):
        refused = small.make(**fields)
        assert (refused.status, refused.content["param"]) == (403, param), refused.body
    made = small.make(scopes=["read", "keys"]).content
    assert (made["requests_per_minute"], made["concurrency"], made["expires_at"]) == (
        10_000,
        50,
        end,
    )
    second = (
        Asker(operator.url, made["secret"])
        .make(scopes=["read"], concurrency=5, expires_in_s=60)
        .content
    )
    assert (second["concurrency"], second["budget_usd"]) == (5, None)
    mighty = operator.make(tenant="small", scopes=["admin"]).content["id"]
    assert small.ask("DELETE", f"/{mighty}").content["code"] == "not_allowed"
    assert operator.ask("GET", f"/{mighty}").content["valid"] is True
    database.close()


def test_a_tenant_does_not_raise_its_own_budget(operator: Asker) -> None:
    """Neither by a key that names more than the newest one of the operator's, nor by revoking that
    one; less it may name."""
    chief = made_by(operator, tenant="thrifty", scopes=[*ALL, "keys"], budget_usd=50)
    limit = operator.make(tenant="thrifty", budget_usd=5).content["id"]
    for asked_for in (50, 5.01):
        refused = chief.make(budget_usd=asked_for)
        assert (refused.status, refused.content["param"]) == (403, "budget_usd"), refused.body
    assert chief.make().content["budget_usd"] is None
    refused = chief.ask("DELETE", f"/{limit}")
    assert (refused.status, refused.content["code"]) == (403, "not_allowed")
    assert "only the operator may revoke it" in refused.content["detail"]
    less = chief.make(budget_usd=4).content["id"]
    assert chief.ask("DELETE", f"/{less}").status == 403
    assert (
        operator.ask("DELETE", f"/{less}").status
        == operator.ask("DELETE", f"/{limit}").status
        == 200
    )


def test_a_limited_key_without_a_tenant_has_its_rate_with_its_children(
    operator: Asker, settings: GatewaySettings
) -> None:
    """Who makes ten keys of its own has not ten times the requests; the list says which key made
    which."""
    database = open_database(settings.database_url)
    new = NewApiKey(
        "bot", None, frozenset(["read", "keys"]), None, KeyLimits(requests_per_minute=4)
    )
    giver, secret = ApiKeyStore(database).create(new)
    database.close()
    bot = Asker(operator.url, secret)
    child = bot.make(scopes=["read", "keys"]).content
    second = Asker(operator.url, child["secret"]).make(scopes=["read"]).content
    assert (child["made_by"], second["made_by"]) == (giver, child["id"])
    user = {"authorization": f"Bearer {second['secret']}"}
    assert [asked(f"{operator.url}/v1/jobs", **user).status for _ in range(3)] == [200, 200, 429]
    assert bot.ask("GET").status == 429


def test_keys_are_for_those_with_the_scope_only(operator: Asker) -> None:
    """A key with every other scope neither sees nor makes nor revokes any, nor does a caller
    without a key."""
    plain = made_by(operator, tenant="plain", scopes=ALL)
    own = next(
        name
        for name in operator.ids()
        if operator.ask("GET", f"/{name}").content["tenant"] == "plain"
    )
    for method, path, body in (
        ("GET", "", None),
        ("POST", "", {"name": "x"}),
        ("GET", f"/{own}", None),
        ("DELETE", f"/{own}", None),
    ):
        assert plain.ask(method, path, body).content["code"] == "missing_scope"
        assert Asker(operator.url, None).ask(method, path, body).status == 401


def test_a_key_that_was_just_revoked_leaves_no_other_behind(
    operator: Asker, settings: GatewaySettings
) -> None:
    """The door remembers it for two seconds; making and revoking keys look again."""
    chief = made_by(operator, tenant="ending", scopes=["keys", "read"])
    (own,) = chief.ids()
    database = open_database(settings.database_url)
    assert ApiKeyStore(database).revoke(own)
    database.close()
    assert chief.make(scopes=["read"]).status == 401
    assert chief.ask("DELETE", f"/{own}").status == 401


def test_the_list_has_pages(operator: Asker) -> None:
    """Each key is on one page, newest first."""
    chief = made_by(operator, tenant="pages", scopes=["keys", "read"])
    made = [chief.make(scopes=["read"]).content["id"] for _ in range(4)]
    first = chief.ask("GET", "?limit=3").content
    rest = chief.ask("GET", f"?limit=3&cursor={first['next']}").content
    assert ([key["id"] for key in first["data"] + rest["data"]][:4], rest["next"]) == (
        made[::-1],
        None,
    )


def test_the_first_key_closes_the_door(tmp_path: Path) -> None:
    """Without keys the operator of this machine makes the first one; from then on each request
    needs one."""
    with door(door_settings(tmp_path)) as url:
        nobody = Asker(url, None)
        first = nobody.make(scopes=["admin"])
        assert first.status == 201
        assert nobody.make(scopes=["admin"]).status == 401
        until(lambda: nobody.ask("GET").status == 401, 30, "the door asks for keys")
        assert Asker(url, first.content["secret"]).ids() == [first.content["id"]]
