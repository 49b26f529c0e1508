"""Webhooks from the change to the receiver: real servers on both sides, verified by the library of
Standard Webhooks."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
import pytest
from doors import door, door_settings
from fleet import until
from metrics_page import read, value
from standardwebhooks import Webhook

from penstock_gateway import webhook_delivery
from penstock_gateway.settings import GatewaySettings
from penstock_gateway.webhooks import new_secret
from penstock_ledger import (
    EVERYONE,
    Database,
    Endpoint,
    JobStore,
    NewCallback,
    NewEndpoint,
    WebhookStore,
    Whose,
    note_event,
    open_database,
)
from penstock_ledger.door_stores import webhooks
from penstock_ledger.model import JobState, NewJob
from penstock_ledger.sql.tables import webhook_endpoints


@dataclass
class Receiver:
    """A server that webhooks are sent to: answers as a test wants, and keeps what came."""

    answers: list[int] = field(default_factory=list)  # of the next requests; then 200
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def verified(self, secret: str) -> list[dict[str, Any]]:
        return [Webhook(secret).verify(body, headers) for headers, body in self.got]


def serve(receiver: Receiver) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.got.append((dict(self.headers), body))
            status = receiver.answers.pop(0) if receiver.answers else 200
            if status == 0:
                receiver.hold.wait(10)
                return
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("location", receiver.url + "/elsewhere")
            self.end_headers()
            self.wfile.write(b"x" * 100_000)

        def log_message(self, format: str, *args: Any) -> None:
            return

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    server = serve(receiver)
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield receiver
    receiver.hold.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> GatewaySettings:
    return door_settings(tmp_path_factory.mktemp("door"), webhook_hosts=("127.0.0.1",))


@pytest.fixture(scope="module")
def url(settings: GatewaySettings) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(webhook_delivery, "LOOK_EVERY_S", 0.02)
        patch.setattr(webhook_delivery, "PAUSES_S", (0.05, 0.05, 0.05))
        patch.setattr(webhook_delivery, "ANSWER_S", 0.5)
        with door(settings) as url:
            yield url


@pytest.fixture
def database(settings: GatewaySettings, url: str) -> Iterator[Database]:
    database = open_database(settings.database_url)
    yield database
    database.close()


@pytest.fixture
def hook(url: str, receiver: Receiver) -> Iterator[dict[str, Any]]:
    """An endpoint for all events at the receiver."""
    made = httpx2.post(f"{url}/v1/webhooks", json={"url": receiver.url})
    assert made.status_code == 201, made.text
    yield made.json()
    httpx2.delete(f"{url}/v1/webhooks/{made.json()['id']}")


def told(
    database: Database,
    type_: str = "batch.completed",
    object_id: str = "batch_1",
    tenant: str | None = None,
) -> int:
    return database.write(lambda connection: note_event(connection, tenant, type_, object_id))


def deliveries(url: str, hook: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx2.get(f"{url}/v1/webhooks/{hook['id']}/deliveries").json()[
        "data"
    ]
    return found


def test_the_end_of_a_batch_is_told_as_openai_does(
    url: str, hook: dict[str, Any], receiver: Receiver, database: Database
) -> None:
    """Signed by the secret that was shown once, in OpenAI's shape, to the endpoints of its tenant
    only."""
    assert told(database, tenant="another") == 0
    assert told(database) == 1
    until(lambda: receiver.got, 30, "an event has come")
    (event,) = receiver.verified(hook["secret"])
    assert (event["object"], event["type"], event["data"]) == (
        "event",
        "batch.completed",
        {"id": "batch_1"},
    )
    assert abs(event["created_at"] - time.time()) < 60
    headers = {name.lower(): value for name, value in receiver.got[0][0].items()}
    assert headers["webhook-id"] == event["id"]
    until(
        lambda: deliveries(url, hook)[0]["status"] == "delivered",
        30,
        "the delivery is noted as delivered",
    )
    assert "secret" not in httpx2.get(f"{url}/v1/webhooks/{hook['id']}").json()


def test_an_event_is_tried_again_until_it_arrives(
    url: str, hook: dict[str, Any], receiver: Receiver, database: Database
) -> None:
    """An error, a redirect, which is not followed, and no answer at all: then it arrives, with the
    id that it had."""
    receiver.answers += [500, 302, 0]
    told(database)
    until(
        lambda: deliveries(url, hook)[0]["status"] == "delivered",
        30,
        "the delivery is noted as delivered",
    )
    ids = {headers["webhook-id"] for headers, _ in receiver.got}
    assert (len(receiver.got), len(ids), deliveries(url, hook)[0]["tries"]) == (4, 1, 4)
    assert len(receiver.verified(hook["secret"])) == 4


def tries(url: str) -> list[float]:
    """How many were delivered, failed and given up, as the door counts them."""
    page = read(httpx2.get(f"{url}/metrics").text)
    return [
        value(page, "penstock_door_webhook_tries_total", outcome=how)
        for how in ("delivered", "failed", "gave_up")
    ]


def test_an_event_is_given_up_with_its_last_error_and_sent_again_by_hand(
    url: str, hook: dict[str, Any], receiver: Receiver, database: Database
) -> None:
    """After the last try it ends; the list says why, and a retry sends it with the same id."""
    before = tries(url)
    receiver.answers += [503] * 4
    told(database)
    until(lambda: deliveries(url, hook)[0]["status"] == "failed", 30, "the delivery is given up")
    (delivery,) = deliveries(url, hook)
    assert (delivery["tries"], delivery["last_error"], delivery["next_try_at"]) == (
        4,
        "it answered 503",
        None,
    )
    again = httpx2.post(f"{url}/v1/webhooks/{hook['id']}/deliveries/{delivery['id']}/retry")
    assert again.status_code == 202
    until(
        lambda: deliveries(url, hook)[0]["status"] == "delivered",
        30,
        "the delivery is noted as delivered",
    )
    assert receiver.got[-1][0]["webhook-id"] == delivery["id"]
    assert [now - was for was, now in zip(before, tries(url), strict=True)] == [1, 3, 1]


def test_410_disables_an_endpoint_until_it_is_enabled(
    url: str, hook: dict[str, Any], receiver: Receiver, database: Database
) -> None:
    """Nothing more is sent there, and the endpoint says why."""
    receiver.answers += [410]
    place = f"{url}/v1/webhooks/{hook['id']}"
    told(database)
    until(lambda: httpx2.get(place).json()["status"] == "disabled", 30, "the endpoint is disabled")
    assert httpx2.get(place).json()["disabled_because"] == "it answered 410 Gone"
    assert told(database) == 0
    assert httpx2.post(f"{place}/test").status_code == 409
    assert httpx2.post(f"{place}/enable").json()["status"] == "enabled"
    test = httpx2.post(f"{place}/test").json()
    until(lambda: len(receiver.got) == 2, 30, "two events have come")
    event = Webhook(hook["secret"]).verify(receiver.got[1][1], receiver.got[1][0])
    assert (event["id"], event["type"], event["data"]) == (
        test["id"],
        "webhook.test",
        {"id": hook["id"]},
    )


def test_a_new_secret_signs_beside_the_old_one(
    url: str, hook: dict[str, Any], receiver: Receiver
) -> None:
    """A receiver may change from one to the other at any moment of the next day, also where the
    answer with a new secret was lost and the caller has asked for another one."""
    httpx2.post(f"{url}/v1/webhooks/{hook['id']}/rotate")
    new = httpx2.post(f"{url}/v1/webhooks/{hook['id']}/rotate").json()["secret"]
    assert new != hook["secret"]
    httpx2.post(f"{url}/v1/webhooks/{hook['id']}/test")
    until(lambda: receiver.got, 30, "an event has come")
    assert receiver.verified(new) == receiver.verified(hook["secret"])


def test_the_states_of_a_job_are_told_with_the_change(
    hook: dict[str, Any], receiver: Receiver, database: Database
) -> None:
    """Paused and completed, each once: a change that was not made tells nothing."""
    jobs = JobStore(database)
    job, _ = jobs.create(
        NewJob("job-1", "key-1", {"endpoint": "/v1/embeddings"}, {"kind": "spool"}, "digest", 1)
    )
    assert jobs.set_state(job.job_id, JobState.PAUSED, expect={JobState.RUNNING})
    assert not jobs.set_state(job.job_id, JobState.PAUSED, expect={JobState.RUNNING})
    assert jobs.set_state(job.job_id, JobState.RUNNING, expect={JobState.PAUSED})
    assert jobs.set_state(job.job_id, JobState.COMPLETED, expect={JobState.RUNNING})
    until(lambda: len(receiver.got) == 2, 30, "two events have come")
    events = receiver.verified(hook["secret"])
    assert {(event["type"], event["data"]["id"]) for event in events} == {
        ("job.paused", job.job_id),
        ("job.completed", job.job_id),
    }


def test_an_endpoint_hears_of_what_it_asked_for(
    url: str, receiver: Receiver, database: Database
) -> None:
    """Named events only; pages go on behind the last id; a removed one is unknown, with all that
    was on its way."""
    given = {"url": receiver.url, "events": ["batch.failed"]}
    first, second = (httpx2.post(f"{url}/v1/webhooks", json=given).json() for _ in range(2))
    assert told(database, "batch.completed") == 0
    assert told(database, "batch.failed") == 2
    page = httpx2.get(f"{url}/v1/webhooks?limit=1").json()
    assert ([one["id"] for one in page["data"]], page["has_more"]) == ([second["id"]], True)
    page = httpx2.get(f"{url}/v1/webhooks?limit=1&after={page['last_id']}").json()
    assert ([one["id"] for one in page["data"]], page["has_more"]) == ([first["id"]], False)
    for one in (first, second):
        assert httpx2.delete(f"{url}/v1/webhooks/{one['id']}").json()["deleted"]
        gone = httpx2.get(f"{url}/v1/webhooks/{one['id']}")
        assert (gone.status_code, gone.headers["content-type"]) == (404, "application/problem+json")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"url": "http://169.254.169.254/latest/meta-data/"}, "url_not_allowed"),
        ({"url": "https://localhost/"}, "url_not_allowed"),
        ({"url": "https://[::ffff:10.0.0.1]/"}, "url_not_allowed"),
        ({"url": "https://127.0.0.1.:443/", "events": ["batch.failed"]}, "url_not_allowed"),
        ({"url": "https://example.com/", "events": ["all"]}, "invalid_value"),
        ({"url": "https://example.com/", "tenant": "another"}, "invalid_value"),
        ({}, "missing_required_parameter"),
        ([], "invalid_value"),
    ],
)
def test_endpoints_that_are_refused(url: str, body: Any, code: str) -> None:
    """400 with the field, before anything is kept."""
    answer = httpx2.post(
        f"{url}/v1/webhooks", content=json.dumps(body), headers={"content-type": "application/json"}
    )
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert httpx2.get(f"{url}/v1/webhooks").json()["data"] == []


@pytest.fixture
def store(either: Database) -> WebhookStore:
    return WebhookStore(either)


def endpoint(store: WebhookStore, number: int, tenant: str | None = None) -> str:
    made = store.add(NewEndpoint(f"we_{number}", tenant, "https://example.com", "whsec_x", ["*"]))
    assert made is not None
    return made.endpoint_id


def test_one_endpoint_with_many_events_leaves_room_for_others(store: WebhookStore) -> None:
    """A few of each at a time, and those that are under way are held by one process until its lease
    ends."""
    busy, quiet = endpoint(store, 1), endpoint(store, 2)
    for _ in range(50):
        store.test(busy)
    store.test(quiet)
    taken = store.claim("a", 60.0, most=16, per_endpoint=2)
    assert sorted(one.endpoint_id for one in taken) == [busy, busy, quiet]
    assert quiet not in [one.endpoint_id for one in store.claim("b", 60.0, most=16, per_endpoint=2)]
    assert [
        one.endpoint_id for one in store.claim("b", 0.0, most=16, per_endpoint=60, without=[quiet])
    ] == [busy] * 16
    again = store.claim("c", 60.0, most=16, per_endpoint=1)
    assert [one.endpoint_id for one in again] == [busy]
    store.delivered(again[0].event_id, busy, "b")  # whose lease has ended: nothing is written
    assert sum(one.delivered_at is not None for one in store.deliveries(busy, 100)) == 0
    store.delivered(again[0].event_id, busy, "c")
    assert sum(one.delivered_at is not None for one in store.deliveries(busy, 100)) == 1


def test_test_events_do_not_pile_up(store: WebhookStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many wait for one endpoint; once one has arrived there is room for the next."""
    monkeypatch.setattr(webhooks, "TESTS_MAX", 2)
    name, other = endpoint(store, 1), endpoint(store, 2)
    assert [store.test(one) is not None for one in (name, name, name, other)] == [
        True,
        True,
        False,
        True,
    ]
    (due,) = store.claim("a", 60.0, most=1, per_endpoint=1, without=[other])
    store.delivered(due.event_id, name, "a")
    assert store.test(name) is not None


def test_one_tenant_with_many_endpoints_leaves_room_for_others(store: WebhookStore) -> None:
    """Its receivers may hang and its events come faster than they are sent: another tenant's are
    sent next all the same."""
    for number in range(20):
        name = endpoint(store, number, "loud")
        for _ in range(3):
            store.test(name)
    calm = endpoint(store, 99, "calm")
    for _ in range(2):
        store.test(calm)
    taken = [one.endpoint_id for one in store.claim("a", 60.0, most=16, per_endpoint=1)]
    assert (len(taken), taken.count(calm)) == (16, 1)
    assert [one.endpoint_id for one in store.claim("a", 60.0, most=1, per_endpoint=1)] == [calm]
    assert [one.endpoint_id for one in store.claim("a", 60.0, most=1, per_endpoint=1)] != [calm]


def test_deliveries_that_are_over_are_forgotten_in_time(store: WebhookStore) -> None:
    """Those that still wait stay."""
    name = endpoint(store, 1)
    store.test(name)
    (due,) = store.claim("a", 60.0, most=1, per_endpoint=1)
    store.delivered(due.event_id, name, "a")
    store.test(name)
    assert store.forget_before(time.time() + 60) == 1
    assert [one.next_at for one in store.deliveries(name, 10)] == [0.0]
    assert store.due_in_s() or store.claim("a", 60.0, most=1, per_endpoint=1)
    assert store.due_in_s()


def days_ago(store: WebhookStore, name: str, days: float) -> None:
    """The first try that failed was so long ago."""
    since = webhook_endpoints.update().where(webhook_endpoints.c.endpoint_id == name)
    store._db.write(
        lambda connection: connection.execute(
            since.values(failing_since=time.time() - days * 86_400)
        )
    )


def one_try(store: WebhookStore, name: str) -> str:
    """The event that this process holds now."""
    store.test(name)
    return store.claim("a", 60.0, most=1, per_endpoint=1)[0].event_id


def seen(store: WebhookStore, name: str) -> Endpoint:
    found = store.get(name, EVERYONE)
    assert found is not None
    return found


def test_an_endpoint_where_nothing_arrives_for_five_days_is_disabled(store: WebhookStore) -> None:
    """When a delivery is given up, with the reason; what arrives ends the count, and a try that is
    repeated decides nothing."""
    name = endpoint(store, 1)
    assert not store.failed(one_try(store, name), name, "a", "it answered 500", None)
    assert seen(store, name).failing_since is not None
    store.delivered(one_try(store, name), name, "a")
    assert seen(store, name).failing_since is None
    assert not store.failed(one_try(store, name), name, "a", "it answered 500", None)
    days_ago(store, name, 4.9)
    assert not store.failed(one_try(store, name), name, "a", "it answered 502", None)
    days_ago(store, name, 5.1)
    assert not store.failed(one_try(store, name), name, "b", "of a process that has lost it", None)
    assert not store.failed(one_try(store, name), name, "a", "it answered 502", 30.0)
    waiting = one_try(store, name)
    assert seen(store, name).disabled_at is None
    assert store.failed(waiting, name, "a", "it answered 503", None)
    found = seen(store, name)
    assert found.disabled_at is not None
    assert found.why == "nothing has arrived there for 5 days; the last try: it answered 503"
    assert all(one.next_at is None for one in store.deliveries(name, 100)), (
        "what was on its way is given up, too"
    )
    assert store.enable(name, EVERYONE)
    assert (seen(store, name).disabled_at, seen(store, name).failing_since) == (None, None)


def test_two_at_once_do_not_pass_the_limit_of_endpoints(store: WebhookStore) -> None:
    """Eight callers that add the last one together: one of them has it, on either database."""
    for number in range(19):
        endpoint(store, number, "mine")
    new = [
        NewEndpoint(f"we_{number}", "mine", "https://example.com", "whsec_x", ["*"])
        for number in range(100, 108)
    ]
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(store.add, new))
    assert sum(one is not None for one in made) == 1


def test_endpoints_of_another_tenant_are_unknown(store: WebhookStore) -> None:
    """Also the operator's are not a tenant's; and one tenant has a bounded number."""
    mine, theirs = endpoint(store, 1, "mine"), endpoint(store, 2, "theirs")
    assert store.get(theirs, Whose("mine")) is None
    assert store.get(mine, Whose(None)) is None
    assert not store.remove(theirs, Whose("mine"))
    assert not store.rotate(theirs, Whose("mine"), "whsec_y", overlap_s=1)
    listed = store.page(Whose("mine"), limit=10)
    assert listed is not None
    assert [one.endpoint_id for one in listed[0]] == [mine]
    everyone = store.page(EVERYONE, limit=10)
    assert everyone is not None
    assert len(everyone[0]) == 2
    for number in range(3, 22):
        endpoint(store, number, "mine")
    assert store.add(NewEndpoint("we_99", "mine", "https://example.com", "whsec_x", ["*"])) is None


def submitted(url: str, receiver: Receiver, key: str) -> httpx2.Response:
    """An open job whose events go to the receiver."""
    body = {"job": key, "open": True, "model": "m", "prompt": "{text}"}
    return httpx2.post(f"{url}/v1/jobs", json={**body, "callback_url": receiver.url})


def test_a_job_calls_back(url: str, receiver: Receiver, database: Database) -> None:
    """Signed by the secret in the header of its answer, and about this job alone; the same submit
    again has no second secret; what is over by then was sent once."""
    made = submitted(url, receiver, "called-back")
    assert made.status_code == 201, made.text
    secret, job_id = made.headers["x-penstock-callback-secret"], made.json()["id"]
    again = submitted(url, receiver, "called-back")
    assert (again.status_code, again.json()["id"]) == (200, job_id)
    assert "x-penstock-callback-secret" not in again.headers
    told(database, "job.completed", "job_another")
    httpx2.post(f"{url}/v1/jobs/{job_id}/cancel", json={})
    JobStore(database).set_state(job_id, JobState.CANCELLED, expect=(JobState.CANCELLING,))
    until(lambda: len(receiver.got) > 0, 20, "the callback has come")
    (event,) = receiver.verified(secret)
    assert (event["type"], event["data"]) == ("job.cancelled", {"id": job_id})
    assert httpx2.get(f"{url}/v1/webhooks").json()["data"] == []


def test_a_callback_of_what_is_over_comes_at_once(
    receiver: Receiver, url: str, database: Database
) -> None:
    """However late it is registered; once it has heard of the end its row goes."""
    job = httpx2.post(f"{url}/v1/jobs", json={"open": True, "model": "m", "prompt": "{text}"})
    job_id = job.json()["id"]
    JobStore(database).set_state(job_id, JobState.CANCELLED, expect=(JobState.RUNNING,))
    store = WebhookStore(database)
    new = NewCallback(job_id, None, receiver.url, new_secret())
    assert store.call_back(new)
    assert not store.call_back(new)
    until(lambda: len(receiver.got) > 0, 20, "the callback has come")
    assert [event["type"] for event in receiver.verified(new.secret)] == ["job.cancelled"]

    def gone() -> bool:
        store.forget_before(0.0)
        return store.call_back(new)  # there is room for it again

    until(gone, 20, "its row has gone")


def test_callbacks_go_where_webhooks_may(url: str) -> None:
    """Through the same guard, with the field's name, before anything is accepted."""
    inside = "https://169.254.169.254/latest"
    body = {"open": True, "model": "m", "prompt": "{text}", "callback_url": inside}
    job = httpx2.post(f"{url}/v1/jobs", json=body)
    assert (job.status_code, job.json()["param"]) == (400, "callback_url")
    batch = {
        "input_file_id": "file-x",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "callback_url": inside,
    }
    made = httpx2.post(f"{url}/v1/batches", json=batch)
    assert (made.status_code, made.json()["error"]["param"]) == (400, "callback_url")
    named = httpx2.post(f"{url}/v1/batches", json={**batch, "callback_url": 7})
    assert named.json()["error"]["code"] == "invalid_type"
    messages = httpx2.post(
        f"{url}/v1/messages/batches", json={}, headers={"x-penstock-callback-url": inside}
    )
    assert (messages.status_code, messages.json()["error"]["type"]) == (
        400,
        "invalid_request_error",
    )


def test_a_batch_calls_back(url: str, receiver: Receiver) -> None:
    """Of its end, whatever that is: here its file is not there, which its errors name as sent."""
    batch = {
        "input_file_id": "file-of-my-own",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "callback_url": receiver.url,
    }
    made = httpx2.post(f"{url}/v1/batches", json=batch)
    assert made.status_code == 200, made.text
    secret, batch_id = made.headers["x-penstock-callback-secret"], made.json()["id"]
    until(lambda: len(receiver.got) > 0, 20, "the callback has come")
    (event,) = receiver.verified(secret)
    assert (event["type"], event["data"]) == ("batch.failed", {"id": batch_id})
    shown = httpx2.get(f"{url}/v1/batches/{batch_id}").json()
    assert shown["input_file_id"] == "file-of-my-own"
    assert "file-of-my-own" in shown["errors"]["data"][0]["message"]
    stats = httpx2.get(f"{url}/v1/batch/stats").json()
    assert stats["batches"]["failed"] >= 1
    assert stats["requests"]["open"] == 0
