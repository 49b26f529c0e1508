"""`GET /v1/limits`: the operator sees the accounts of providers, a tenant whether its requests may
start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doors import asked, door, door_settings, new_key
from one_quota import Redis, both
from servers import RedisServer

from penstock_gateway.settings import GatewaySettings
from penstock_ledger import Cause, CauseBook
from penstock_producer.reporting.reasons import yields_line
from penstock_ratelimit.shared.interactive import Yielding
from penstock_ratelimit.store.messages import ProviderReport


@pytest.fixture
def settings(tmp_path: Path, redis_server: RedisServer) -> GatewaySettings:
    return door_settings(tmp_path, redis_server.url)


@pytest.fixture
def url(settings: GatewaySettings) -> Iterator[str]:
    with door(settings) as url:
        yield url


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def test_the_operator_sees_accounts_and_a_tenant_whether_it_may_start(
    url: str, settings: GatewaySettings, redis_server: RedisServer
) -> None:
    """A hold with its reason, figures and failing jobs for a key without a tenant or with admin;
    for others the state alone."""
    quota = Redis(redis_server, both())
    quota.reserve((1, 200), (1, 100))
    quota.report(ProviderReport(hold="out_of_money", throttled=1))
    name = quota.quota.id
    CauseBook(redis_server.client()).note(
        [Cause(name, "job_secret", "out_of_money", "no credit left", 3, 1.0, 9e9)]
    )
    operator, admin = new_key(settings, None, "read"), new_key(settings, "shop", "read", "admin")
    tenant, writes = new_key(settings, "shop", "read"), new_key(settings, "shop", "write")
    for secret in (operator, admin):
        (found,) = asked(f"{url}/v1/limits", **bearer(secret)).content["data"]
        assert (found["id"], found["state"]) == (name, "held")
        account = found["account"]
        assert (account["hold"], account["granted"], account["throttled"]) == ("out_of_money", 2, 1)
        assert set(account["limits_per_s"]) == {"requests", "tokens"}
        assert [(one["job_id"], one["count"]) for one in account["last_failures"]] == [
            ("job_secret", 3)
        ]
    answer = asked(f"{url}/v1/limits", **bearer(tenant))
    (found,) = answer.content["data"]
    assert (found["id"], found["state"], found["account"]) == (name, "held", None)
    assert found["held_s"] is not None
    assert b"job_secret" not in answer.body
    assert b"out_of_money" not in answer.body
    refused = asked(f"{url}/v1/limits", **bearer(writes))
    assert (refused.status, refused.content["code"]) == (403, "missing_scope")


def test_the_operator_sees_what_holds_calls_back_for_interactive_traffic(
    url: str, settings: GatewaySettings, redis_server: RedisServer
) -> None:
    """The figures, and the sentence of the pages; null where nothing watches, and for a tenant."""
    quota = Redis(redis_server, both())
    quota.reserve((1, 200))
    operator, tenant = new_key(settings, None, "read"), new_key(settings, "shop", "read")

    def held(secret: str) -> Any:
        (found,) = asked(f"{url}/v1/limits", **bearer(secret)).content["data"]
        return (found["account"] or {}).get("interactive")

    assert held(operator) is None
    redis = redis_server.client()
    decided = Yielding("unread", 12.0, 0.5, why="it answers 401")
    now_us = int(redis.time()[0]) * 1_000_000
    redis.hset(quota.hash.key, mapping={"iy": decided.to_json(), "ia": now_us})
    assert held(operator) == {
        "code": "unread",
        "calls": 12.0,
        "target_s": 0.5,
        "ttft_s": None,
        "why": "it answers 401",
        "text": str(yields_line(decided)),
    }
    assert held(tenant) is None


def test_a_tenant_sees_the_providers_that_its_jobs_may_name(
    settings: GatewaySettings, redis_server: RedisServer
) -> None:
    """Others are the operator's to know."""
    Redis(redis_server, both()).reserve((1, 200))
    doors = settings.doors.model_copy(update={"providers": ("another",)})
    with door(settings.model_copy(update={"doors": doors})) as url:
        tenant, operator = new_key(settings, "shop", "read"), new_key(settings, None, "read")
        assert asked(f"{url}/v1/limits", **bearer(tenant)).content == {"object": "list", "data": []}
        assert len(asked(f"{url}/v1/limits", **bearer(operator)).content["data"]) == 1


def test_without_redis_it_says_so(tmp_path: Path) -> None:
    """503 with a time to come back, as problem details."""
    with door(door_settings(tmp_path)) as url:
        answer = asked(f"{url}/v1/limits")
    assert (answer.status, answer.content["code"], answer.headers["retry-after"]) == (
        503,
        "service_unavailable",
        "5",
    )
    assert answer.headers["content-type"] == "application/problem+json"
