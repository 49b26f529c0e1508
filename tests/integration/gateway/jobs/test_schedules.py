"""Schedules over HTTP: added, looked at, paused, resumed, removed, each by its tenant alone, and
started by control processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doors import door, new_key
from jobs_api import SPEC, Client, place, settings_with_roots, settle
from night import Night

from penstock_gateway.jobs import schedules as room
from penstock_gateway.settings import GatewaySettings
from penstock_ledger import Database, JobState, JobStore, ScheduleStore, open_database

YEARLY = {"cron": "0 0 1 1 *", "timezone": "Europe/Berlin"}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> GatewaySettings:
    return settings_with_roots(tmp_path_factory.mktemp("door"))


@pytest.fixture(scope="module")
def shop(settings: GatewaySettings) -> Iterator[Client]:
    secret = new_key(settings, "shop", "read", "write")
    with door(settings) as url:
        yield Client(url, secret)


@pytest.fixture(scope="module")
def desk(settings: GatewaySettings, shop: Client) -> Client:
    return Client(shop.url, new_key(settings, "desk", "read", "write"))


@pytest.fixture(scope="module")
def db(settings: GatewaySettings, shop: Client) -> Iterator[Database]:
    database = open_database(settings.database_url)
    yield database
    database.close()


def given(settings: GatewaySettings, name: str, **more: Any) -> dict[str, Any]:
    return {**SPEC, **YEARLY, "name": name, "source": place(settings), **more}


def test_a_schedule_is_added_paused_resumed_and_removed(
    shop: Client, settings: GatewaySettings
) -> None:
    """Each answer has the schedule as it is then, by its name or id; what is done already is no
    error."""
    added = shop.post("/v1/schedules", given(settings, "nightly", catch_up="skip"))
    assert (added.status, added.json["name"], added.json["tenant"]) == (201, "nightly", "shop"), (
        added.raw
    )
    assert added.headers["location"] == f"/v1/schedules/{added.json['id']}"
    assert (added.json["catch_up"], added.json["spec"]["prompt"]) == ("skip", SPEC["prompt"])
    assert [one["id"] for one in shop.get("/v1/schedules").json["data"]] == [added.json["id"]]
    for name in ("nightly", added.json["id"]):
        assert shop.post(f"/v1/schedules/{name}/pause").json["paused"] is True
        assert shop.post(f"/v1/schedules/{name}/pause").status == 200
        resumed = shop.post(f"/v1/schedules/{name}/resume").json
        assert (resumed["paused"], resumed["next_at"]) == (False, added.json["next_at"])
    again = shop.post("/v1/schedules", given(settings, "nightly"))
    assert (again.status, again.json["code"]) == (409, "schedule_exists")
    removed = shop.ask("DELETE", "/v1/schedules/nightly")
    assert (removed.status, removed.json["name"], removed.json["deleted"]) == (200, "nightly", True)
    assert (
        shop.get("/v1/schedules/nightly").status
        == shop.ask("DELETE", "/v1/schedules/nightly").status
        == 404
    )


def test_what_a_schedule_is_refused_for_is_named(shop: Client, settings: GatewaySettings) -> None:
    """A place outside source_roots, an option beyond the caps, a time that is none, and fields of
    no door."""
    secret = place(settings, "secret.jsonl")
    for more, code in (
        ({"source": secret}, "source_forbidden"),
        ({"source": "/etc/passwd"}, "source_forbidden"),
        ({"source": "env:DATABASE_URL"}, "source_forbidden"),
        ({"source": place(settings, "in/")}, "source_forbidden"),
        ({"source": "file-" + "x" * 27}, "source_forbidden"),
        ({"cron": "61 * * * *"}, "invalid_schedule"),
        ({"timezone": "Mars/Base"}, "invalid_schedule"),
        ({"name": "../x"}, "invalid_schedule"),
        ({"weight": 50}, "not_allowed"),
        ({"tenant": "desk"}, "not_allowed"),
        ({"max_attempts": 0}, "invalid_value"),
        ({"new_files": True}, "unknown_field"),
        ({"events": "https://sqs.eu-central-1.amazonaws.com/1/q"}, "unknown_field"),
        ({"crom": "x"}, "unknown_field"),
        ({"where": ["status=dead"]}, "invalid_value"),
        ({"from_job": "x"}, "invalid_value"),
        ({"source": None}, "missing_field"),
        ({"catch_up": "never"}, "invalid_value"),
    ):
        answer = shop.post("/v1/schedules", given(settings, "odd") | more)
        assert (answer.status, answer.json["code"]) == (400, code), (more, answer.raw)
    assert shop.get("/v1/schedules/odd").status == 404


def test_schedules_of_another_tenant_are_not_there(
    shop: Client, desk: Client, settings: GatewaySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tenants may use one name; each sees and changes its own, reads its own outcomes, and has
    its own number of them."""
    both = [client.post("/v1/schedules", given(settings, "daily")) for client in (shop, desk)]
    assert [answer.status for answer in both] == [201, 201]
    theirs = both[1].json["id"]
    unknown = theirs[:-1] + ("0" if theirs[-1] != "0" else "1")
    for method, path in (("GET", ""), ("POST", "/pause"), ("POST", "/resume"), ("DELETE", "")):
        answers = [shop.ask(method, f"/v1/schedules/{name}{path}") for name in (theirs, unknown)]
        assert [answer.status for answer in answers] == [404, 404], path
        assert answers[0].json["detail"].replace(theirs, unknown) == answers[1].json["detail"]
    assert shop.ask("POST", f"/v1/notifications/{theirs}", {}).status == 404
    assert [one["name"] for one in shop.get("/v1/schedules").json["data"]] == ["daily"]
    over = {**YEARLY, "name": "over", "model": "large"}
    assert shop.post("/v1/schedules", {**over, "from_schedule": theirs}).status == 404
    job = desk.post("/v1/jobs", {**SPEC, "open": True}).json["id"]
    assert shop.post("/v1/schedules", {**over, "from_job": job}).status == 404
    named = shop.post("/v1/schedules", {**over, "from_schedule": "daily", "where": ["status=dead"]})
    assert (named.status, named.json["source"]["outcomes_of"]["schedule"]) == (
        201,
        "@shop/daily",
    ), named.raw
    reader = Client(shop.url, new_key(settings, "shop", "read"))
    assert reader.post("/v1/schedules", given(settings, "x")).status == 403
    size = len(json.dumps(both[0].json["spec"])) + len(json.dumps(named.json["spec"]))
    monkeypatch.setattr(room, "OF_TENANT_CHARS_MAX", size + 1_000)
    large = shop.post("/v1/schedules", given(settings, "large", prompt="{text}" + "x" * 1_000))
    assert (large.status, large.json["code"]) == (409, "too_many_schedules")
    monkeypatch.setattr(room, "OF_TENANT_MAX", 2)
    full = shop.post("/v1/schedules", given(settings, "third"))
    assert (full.status, full.json["code"]) == (409, "too_many_schedules")
    assert desk.post("/v1/schedules", given(settings, "second")).status == 201


def test_its_jobs_are_the_tenants_and_read_only_what_callers_may(
    shop: Client, desk: Client, settings: GatewaySettings, db: Database, tmp_path: Path
) -> None:
    """A control process starts them under the tenant's name; a link that leads out of source_roots
    by then is not followed."""
    nightly = Path(place(settings, "in/nightly.jsonl"))
    added = shop.post(
        "/v1/schedules", given(settings, "fires", source=str(nightly), cron="0 1 * * *")
    ).json
    nightly.write_text('{"id": 1, "text": "first"}\n')
    night = Night(db, tmp_path, settings)
    night.now = added["next_at"] + 1
    night.control("a").turn()
    shown = shop.get("/v1/schedules/fires").json
    assert [firing["outcome"] for firing in shown["firings"]] == ["started"], shown
    job = shop.get(f"/v1/jobs/{shown['firings'][0]['job_id']}").json
    assert (job["tenant"], job["job"].partition("@")[0], job["started_by"]["schedule"]) == (
        "shop",
        "fires",
        "@shop/fires",
    )
    assert shop.get(f"/v1/jobs/{job['job']}").json["id"] == job["id"]
    assert desk.get(f"/v1/jobs/{job['job']}").status == 404
    settle(db, job["id"], 1)
    JobStore(db).set_state(job["id"], JobState.COMPLETED, expect=[JobState.RUNNING])
    nightly.unlink()
    nightly.symlink_to(place(settings, "secret.jsonl"))
    night.now = shown["next_at"] + 1
    night.control("b").turn()
    last = shop.get("/v1/schedules/fires").json["firings"][0]
    assert (last["outcome"], last["job_id"]) == ("failed", None)
    assert "source_roots" in last["reason"], last
    assert ScheduleStore(db).get("@shop/fires").source["door"] == "remote"
