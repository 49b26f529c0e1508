"""Spot notices: the three clouds' contracts, and services that are away, odd or hostile."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime
from email.utils import formatdate
from time import monotonic
from typing import Any

import pytest
from http_servers import Peer, raw_server
from metadata_services import Answer, Aws, Azure, Gcp, MetadataService
from pydantic import ValidationError

from penstock_workers.celery_app.drain import Drain
from penstock_workers.celery_app.ending import FINISH_S, MachineEnd
from penstock_workers.http.pool import LeanClient
from penstock_workers.metrics import catalogue
from penstock_workers.settings import WorkerSettings
from penstock_workers.spot import BACKOFF_S, LIMITS, METADATA_URL, SERVICES, Notice, SpotWatch

LANE = "api"


def iso(in_s: float) -> str:
    return datetime.fromtimestamp(time.time() + in_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def http_date(in_s: float) -> str:
    return formatdate(time.time() + in_s, usegmt=True)


class Watching:
    """A watch whose questions the test asks, one by one."""

    def __init__(self, cloud: str, url: str, client: LeanClient) -> None:
        self.notices: list[Notice] = []
        self.watch = SpotWatch(SERVICES[cloud](url), self.notices.append)
        self._client = client

    async def ask(self) -> float | None:
        return await self.watch.ask(self._client)

    def figures(self) -> dict[tuple[str, ...], float]:
        return {
            (str(one.metric), *one.labels): float(str(one.value))
            for one in self.watch.figures(LANE)
        }

    @property
    def left_s(self) -> float:
        (notice,) = self.notices
        return notice.ends_at - time.time()


@pytest.fixture
async def client() -> AsyncIterator[LeanClient]:
    made = LeanClient(LIMITS)
    yield made
    await made.close()


@pytest.fixture
def aws() -> Iterator[Aws]:
    service = Aws()
    with service.serving():
        yield service


@pytest.fixture
def gcp() -> Iterator[Gcp]:
    service = Gcp()
    with service.serving():
        yield service


@pytest.fixture
def azure() -> Iterator[Azure]:
    service = Azure()
    with service.serving():
        yield service


# -- the contracts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["terminate", "stop", "hibernate"])
async def test_aws_is_asked_with_a_token_until_there_is_an_action(
    aws: Aws, client: LeanClient, action: str
) -> None:
    """One token serves many questions; 404 means none; the action and its time are the notice."""
    watching = Watching("aws", aws.url, client)
    assert [await watching.ask(), await watching.ask()] == [5.0, 5.0]
    assert (len(aws.tokens), watching.notices) == (1, [])
    aws.notice = {"action": action, "time": iso(120)}
    assert await watching.ask() is None
    assert (watching.notices[0].cloud, watching.notices[0].event) == ("aws", action)
    assert 115 < watching.left_s <= 120


async def test_aws_tokens_are_renewed_when_they_end(aws: Aws, client: LeanClient) -> None:
    """A 401 fetches a new token and asks again at once, so that no notice waits for it."""
    watching = Watching("aws", aws.url, client)
    await watching.ask()
    aws.expire_tokens()
    aws.notice = {"action": "terminate", "time": iso(60)}
    assert await watching.ask() is None
    assert len(aws.tokens) == 2


class Clock:
    """Stands for the module `time` where a notice gets its end."""

    now = 1000.0

    def time(self) -> float:
        return self.now

    monotonic = time


async def test_gcp_is_asked_by_a_request_that_waits(
    gcp: Gcp, client: LeanClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answer comes at once; the next request waits, and ends with the preemption; 30 s
    are left from then on."""
    clock = Clock()
    monkeypatch.setattr("penstock_workers.spot.time", clock)
    watching = Watching("gcp", gcp.url, client)
    assert await watching.ask() == 1.0
    waiting = asyncio.create_task(watching.ask())
    await asyncio.to_thread(gcp.waiting.wait, 10)
    assert not waiting.done()
    clock.now += 50
    gcp.preempt()
    assert await waiting is None
    assert watching.notices == [Notice("gcp", "preempted", 1000 + 50 + 30)]


async def test_gcp_that_is_preempted_already_says_so_at_once(gcp: Gcp, client: LeanClient) -> None:
    """A process that starts on such a machine must not wait for a change that has been."""
    gcp.preempt()
    watching = Watching("gcp", gcp.url, client)
    assert await watching.ask() is None
    assert [one.event for one in watching.notices] == ["preempted"]


async def test_azure_counts_preemptions_of_this_machine_alone(
    azure: Azure, client: LeanClient
) -> None:
    """Other machines of the scale set, reboots and freezes are no notice; `Preempt` with this name
    is."""
    watching = Watching("azure", azure.url, client)
    azure.schedule("aks-spot-vmss_30", "aks-spot-vmss_4", not_before=http_date(30))
    azure.schedule("aks-spot-vmss_3", kind="Reboot", not_before=http_date(600))
    assert await watching.ask() == 2.0
    azure.schedule("aks-spot-vmss_4", "AKS-spot-vmss_3", not_before=http_date(30))
    assert await watching.ask() is None
    assert watching.notices[0].event == "Preempt"
    assert 25 < watching.left_s <= 30
    assert {one.method for one in azure.asked} == {"GET"}, "nothing is acknowledged"


async def test_azure_that_has_begun_leaves_no_time(azure: Azure, client: LeanClient) -> None:
    """`Started` comes with an empty NotBefore."""
    azure.schedule("aks-spot-vmss_3", status="Started")
    watching = Watching("azure", azure.url, client)
    assert await watching.ask() is None
    assert watching.left_s <= 0


# -- services that are away, odd or hostile --------------------------------------------------------

ODD_BODIES = {
    "nothing": "",
    "a page": "<html>log in</html>",
    "a list": "[]",
    "deep": "[" * 100_000,
    "a number": "9" * 10_000,
    "other fields": '{"action": null, "time": 5, "Events": {"EventType": "Preempt"}}',
    "an unknown action": json.dumps({"action": "dance", "time": "2026-01-01T00:00:00Z"}),
    "no time": json.dumps({"action": "terminate", "time": "soon"}),
    "the year 9999": json.dumps({"action": "terminate", "time": "9999-12-31T23:59:59Z"}),
    "long ago": json.dumps({"action": "terminate", "time": "1999-01-01T00:00:00"}),
    "odd events": json.dumps(
        {"Events": [7, None, {"EventType": "Preempt", "Resources": [1]}] * 1000}
    ),
    "an odd date": json.dumps(
        {"Events": [{"EventType": "Preempt", "Resources": ["x"], "NotBefore": "Mon, 99"}]}
    ),
}


@pytest.mark.parametrize("cloud", sorted(SERVICES))
@pytest.mark.parametrize("body", ODD_BODIES.values(), ids=ODD_BODIES)
async def test_no_odd_answer_ends_a_worker(cloud: str, body: str, client: LeanClient) -> None:
    """Whatever it says other than a notice that makes sense, the worker goes on, and asks again
    less often."""
    answer = {"PUT": Answer(200, "token"), "GET": Answer(200, body, {"Metadata-Flavor": "Google"})}
    service = MetadataService()
    service.answer = lambda asked: (  # type: ignore[method-assign]
        Answer(200, "x") if asked.path.endswith("/name") else answer[asked.method]
    )
    with service.serving():
        watching = Watching(cloud, service.url, client)
        waits = [await watching.ask() for _ in range(8)]
    assert watching.notices == []
    assert waits[-1] == BACKOFF_S
    assert waits == sorted(waits, key=float)  # type: ignore[arg-type]
    assert watching.figures() == {("penstock_spot_service_answers", LANE, cloud): 0.0}


@pytest.mark.parametrize("cloud", sorted(SERVICES))
@pytest.mark.parametrize("status", [301, 307, 400, 403, 429, 500, 503])
async def test_no_status_but_the_documented_counts(
    cloud: str, status: int, client: LeanClient
) -> None:
    """A redirect is not followed, a refusal and an overload are no notice."""
    aside = Gcp()
    aside.preempt()
    service = MetadataService()
    with service.serving(), aside.serving():
        service.instead = Answer(
            status, "TRUE", {"Location": f"{aside.url}/", "Metadata-Flavor": "Google"}
        )
        watching = Watching(cloud, service.url, client)
        assert await watching.ask() is not None
    assert (watching.notices, aside.asked) == ([], [])


async def endless(peer: Peer) -> None:
    """64 MB, of which the client may take a hundredth."""
    await peer.request()
    await peer.send(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nMetadata-Flavor: Google\r\n\r\n"
    )
    for _ in range(1000):
        await peer.send(b"10000\r\n" + b"T" * 0x10000 + b"\r\n")
    peer.server.ended += 1


async def silent(peer: Peer) -> None:
    """It takes the request and says half of nothing."""
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nTR")
    await peer.reader.read()


@pytest.mark.parametrize("cloud", sorted(SERVICES))
async def test_an_endless_answer_is_cut_off(cloud: str, client: LeanClient) -> None:
    """Memory has a limit whatever the service sends: the rest is not read."""
    async with raw_server(endless) as server:
        watching = Watching(cloud, server.url, client)
        assert await watching.ask() is not None
        assert (server.connections, server.ended) == (1, 0)
    assert watching.notices == []


@pytest.mark.parametrize("cloud", sorted(SERVICES))
async def test_an_answer_that_never_ends_is_given_up(
    cloud: str, client: LeanClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit holds from the question to the last byte."""
    monkeypatch.setattr("penstock_workers.spot.TIMEOUT_S", 0.05)
    monkeypatch.setattr("penstock_workers.spot.WAIT_S", 0)
    async with raw_server(silent) as server:
        watching = Watching(cloud, server.url, client)
        assert await watching.ask() is not None
    assert watching.notices == []


@pytest.mark.parametrize("cloud", sorted(SERVICES))
async def test_a_service_that_is_away_is_no_notice(
    cloud: str, client: LeanClient, caplog: pytest.LogCaptureFixture
) -> None:
    """One line in the log for a state that lasts, with what happens next."""
    caplog.set_level(logging.INFO, "penstock_workers.spot")
    async with raw_server(silent) as gone:
        watching = Watching(cloud, gone.url, client)
    for _ in range(5):
        assert await watching.ask() is not None
    (line,) = [
        record for record in caplog.records if record.name.startswith("penstock_workers.spot")
    ]
    assert f"of {cloud}" in line.getMessage()
    assert "The worker goes on" in line.getMessage()


async def test_a_service_that_comes_and_goes_does_not_fill_the_log(
    aws: Aws, client: LeanClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Each state is logged as it begins, and not again for a while; the figure follows each
    question."""
    caplog.set_level(logging.INFO, "penstock_workers.spot")
    watching = Watching("aws", aws.url, client)
    for _ in range(10):
        aws.instead = None
        await watching.ask()
        assert watching.figures() == {("penstock_spot_service_answers", LANE, "aws"): 1.0}
        aws.instead = Answer(500)
        await watching.ask()
        await watching.ask()
        assert watching.figures() == {("penstock_spot_service_answers", LANE, "aws"): 0.0}
    assert (
        len(
            [record for record in caplog.records if record.name.startswith("penstock_workers.spot")]
        )
        == 2
    )


async def test_no_proxy_is_asked(
    aws: Aws, client: LeanClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine's own service never goes through HTTP_PROXY, which would speak for another
    machine."""
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert await Watching("aws", aws.url, client).ask() == 5.0


async def test_the_metric_says_which_notice_and_how_long(aws: Aws, client: LeanClient) -> None:
    """Cloud and event are labels, the seconds that are left the value."""
    aws.notice = {"action": "terminate", "time": iso(100)}
    watching = Watching("aws", aws.url, client)
    await watching.ask()
    assert 90 < watching.figures()[str(catalogue.SPOT_LEFT), LANE, "aws", "terminate"] <= 100


# -- settings --------------------------------------------------------------------------------------


def test_it_is_off_until_a_cloud_is_named() -> None:
    """No setting, no thread and no request; an empty variable is no setting."""
    assert SpotWatch.of(WorkerSettings(), lambda _: None) is None
    assert (
        WorkerSettings.model_validate({"spot_notices": "", "spot_notices_url": ""}).spot_notices
        is None
    )
    assert METADATA_URL == "http://169.254.169.254"
    assert set(SERVICES) == {"aws", "gcp", "azure"}
    with pytest.raises(ValidationError, match="spot_notices"):
        WorkerSettings.model_validate({"spot_notices": "alibaba"})
    with pytest.raises(ValidationError, match="spot_notices_url"):
        WorkerSettings.model_validate({"spot_notices_url": "https://metadata.example"})


# -- the drain -------------------------------------------------------------------------------------


def noticed(left_s: float) -> MachineEnd:
    end = MachineEnd()
    end.noticed(Notice("aws", "terminate", time.time() + left_s), LANE)
    return end


def test_the_time_that_is_left_is_the_drains_limit() -> None:
    """Without a notice `drain_seconds`, with one its time less what the process needs to end."""
    assert MachineEnd().drain_until(25) == pytest.approx(monotonic() + 25, abs=1)
    assert noticed(120).drain_until(25) == pytest.approx(monotonic() + 120 - FINISH_S, abs=1)
    assert noticed(10).drain_until(25) == pytest.approx(monotonic() + 10 - FINISH_S, abs=1)


def test_a_sigterm_beside_the_notice_leaves_the_shorter_time() -> None:
    """What sends it kills soon after `drain_seconds`, as GKE does after 15 of the 30 s."""
    long, short = noticed(120), noticed(10)
    for end in (long, short):
        assert end.asked_to_stop()
        assert not end.asked_to_stop()
    assert long.drain_until(25) == pytest.approx(monotonic() + 25, abs=1)
    assert short.drain_until(25) == pytest.approx(monotonic() + 10 - FINISH_S, abs=1)


class SignalledPool:
    """Gets a SIGTERM at each turn of its drain."""

    drain: Drain

    def __init__(self) -> None:
        self.turns = 0

    def deliver(self) -> None:
        self.turns += 1
        if self.turns <= 5:
            self.drain.signalled()

    def is_idle(self) -> bool:
        return False

    def give_back_all(self) -> int:
        return 0

    def finish(self, timeout_s: float) -> None:
        """Nothing is left."""


class BusyEngine:
    """Holds items that do not end."""

    def drain(self, deadline_s: float) -> Any:
        return Future[None]()

    def stop(self, timeout_s: float) -> bool:
        return True


class Hub:
    def fire_timers(self) -> None:
        """It has none."""


@pytest.mark.parametrize(("notice_s", "signals"), [(None, 1), (120, 2)], ids=["SIGTERM", "notice"])
def test_the_first_sigterm_after_a_notice_does_not_cut_the_drain_short(
    notice_s: int | None, signals: int
) -> None:
    """It is the orchestrator's own drain of the node; one after another signal still means: at
    once."""
    end = MachineEnd() if notice_s is None else noticed(notice_s)
    pool = SignalledPool()
    pool.drain = Drain(pool, BusyEngine(), Hub(), 600, end)  # type: ignore[arg-type]  # a double
    pool.drain.run()
    assert pool.turns == signals + 1  # the last one delivers what the engine said at the end


def test_without_a_notice_no_process_stays() -> None:
    """After an ordinary drain it ends at once."""
    began = monotonic()
    MachineEnd().stay()
    assert monotonic() - began < 1
