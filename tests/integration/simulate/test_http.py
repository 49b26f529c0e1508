"""The simulated provider as a client sees it: over real sockets, and as a process."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from penstock_simulate import SimulatorConfig
from penstock_simulate.choices import BadSetting
from penstock_simulate.web import running

BODY = json.dumps(
    {"model": "sim-small", "messages": [{"role": "user", "content": "Read the file."}]}
).encode()
FAST = {"latency_ms": 0.0}


class Client:
    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.session = session

    async def post(
        self, tag: str = "job:doc", timeout_s: float = 10
    ) -> tuple[int, bytes, Mapping[str, str]]:
        async with self.session.post(
            self.url + "/v1/chat/completions",
            data=BODY,
            headers={"X-Client-Request-Id": tag},
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        ) as response:
            return response.status, await response.read(), response.headers

    async def get(self, path: str) -> Any:
        async with self.session.get(self.url + path) as response:
            assert response.status == 200, await response.text()
            return await response.json()


@asynccontextmanager
async def provider(**config: Any) -> AsyncIterator[Client]:
    async with (
        running(SimulatorConfig(**{**FAST, **config})) as url,
        aiohttp.ClientSession() as session,
    ):
        yield Client(url, session)


async def test_a_call_is_answered_and_counted() -> None:
    """The endpoints of a provider and the accounts are there, and a reset empties the accounts."""
    async with provider(rpm=600, tpm=60_000) as client:
        status, body, headers = await client.post()
        assert status == 200
        assert json.loads(body)["choices"][0]["finish_reason"] == "stop"
        assert headers["x-ratelimit-limit-requests"] == "600"
        assert headers["x-request-id"].startswith("req_")
        assert (await client.get("/v1/models"))["data"][0]["id"] == "sim-small"
        assert await client.get("/calls") == {"job:doc": {"calls": 1, "ok": 1}}
        assert await client.get("/calls?min_calls=2") == {}
        assert (await client.get("/stats"))["by_status"] == {"200": 1}
        async with client.session.post(client.url + "/reset") as response:
            assert response.status == 204
        assert (await client.get("/stats"))["requests"] == 0


async def test_a_dropped_connection_gives_no_answer() -> None:
    """Half of the broken connections end before the answer, half within it; none is counted as
    answered."""
    broken = []
    async with provider(drop_rate=1) as client:
        for number in range(12):
            with pytest.raises(
                (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError)
            ) as caught:
                await client.post(f"job:{number}")
            broken.append(type(caught.value))
        stats = await client.get("/stats")
    assert aiohttp.ClientPayloadError in broken
    assert any(issubclass(error, aiohttp.ClientConnectionError) for error in broken)
    assert stats["answered"] == 0
    assert set(stats["by_status"]) == {"dropped", "cut"}


async def test_answers_that_are_no_answers() -> None:
    """HTML pages, half bodies and errors with status 200 arrive as what they are."""
    async with provider(html_rate=1) as client:
        status, body, headers = await client.post()
        assert (status, headers["Content-Type"]) == (502, "text/html")
        assert body.startswith(b"<html>")
    async with provider(truncate_rate=1) as client:
        status, body, _ = await client.post()
        assert status == 200
        with pytest.raises(json.JSONDecodeError):
            json.loads(body)
    async with provider(error_body_rate=1) as client:
        status, body, _ = await client.post()
        assert status == 200
        assert "error" in json.loads(body)


async def test_a_hanging_call_ends_with_the_simulator() -> None:
    """A client's timeout is what ends a hanging call; the end of the simulator does not wait for
    it."""
    async with provider(hang_rate=1) as client:
        with pytest.raises(TimeoutError):
            await client.post(timeout_s=0.2)
        hanging = asyncio.create_task(client.post("job:other"))
        async with asyncio.timeout(5):
            while (await client.get("/stats"))["requests"] < 2:
                pass
    with pytest.raises(aiohttp.ClientConnectionError):
        await hanging


async def test_the_limit_holds_over_http() -> None:
    """Of a burst, exactly what the bucket holds gets through, however many connections it comes
    over."""
    async with provider(rpm=60, depth_s=20) as client:
        statuses = [
            status
            for status, _, _ in await asyncio.gather(*[client.post(f"j:{n}") for n in range(60)])
        ]
    assert statuses.count(200) in (20, 21)
    assert statuses.count(429) == 60 - statuses.count(200)


async def test_limits_change_through_the_control_endpoint() -> None:
    """A change is in the next answer's headers; one that cannot be made gets 400 with the
    reason."""
    async with provider(rpm=600) as client:
        async with client.session.post(client.url + "/control", json={"rpm": 300}) as response:
            assert (response.status, (await response.json())["rpm"]) == (200, 300)
        assert (await client.post())[2]["x-ratelimit-limit-requests"] == "300"
        async with client.session.post(client.url + "/control", json={"rpm": -1}) as response:
            assert response.status == 400
            assert "--rpm: -1 cannot be used" in (await response.json())["error"]["message"]
        assert (await client.get("/control"))["rpm"] == 300
        assert (await client.get("/stats"))["limits"]["requests"]["accepted"] == 1


async def test_a_refusal_on_demand_arrives() -> None:
    """One call is refused with 429, the next is served."""
    async with provider() as client:
        async with client.session.post(
            client.url + "/control", json={"refuse": {"kind": "slow_down", "calls": 1}}
        ) as response:
            assert response.status == 200
        status, body, headers = await client.post()
        assert (status, json.loads(body)["error"]["code"], headers["retry-after"]) == (
            429,
            "slow_down",
            "1",
        )
        assert (await client.post())[0] == 200


async def test_the_metrics_are_prometheus_text() -> None:
    """What a controller of a self-hosted server reads."""
    async with (
        provider(like="vllm") as client,
        client.session.get(client.url + "/metrics") as response,
    ):
        assert response.content_type == "text/plain"
        assert "vllm:num_requests_waiting{" in await response.text()


async def test_it_says_that_it_is_well() -> None:
    """A probe of vLLM's server gets 200 from what plays it."""
    async with (
        provider(like="vllm") as client,
        client.session.get(client.url + "/health") as response,
    ):
        assert response.status == 200


async def test_a_taken_port_is_named() -> None:
    """The message gives the address and what to do."""
    async with provider() as client:
        port = int(client.url.rpartition(":")[2])
        with pytest.raises(BadSetting, match=rf"--port {port}: cannot listen there"):
            async with running(SimulatorConfig(port=port)):
                pass


def start(*flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "penstock_simulate", "--port", "0", *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_process_says_where_it_is_and_ends_on_sigterm(tmp_path: Path) -> None:
    """One line with the URL when ready; SIGTERM ends it cleanly with status 0."""
    with start("--call-log", str(tmp_path / "calls.jsonl")) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=10)
    assert line.startswith("penstock simulate: serving http://127.0.0.1:")
    assert (process.returncode, rest, errors) == (0, "", "")


def test_a_bad_flag_ends_with_status_2() -> None:
    """A value that cannot be used is refused before anything is served, in one line."""
    with start("--error-rate", "7") as process:
        _, errors = process.communicate(timeout=10)
    assert process.returncode == 2
    assert (
        errors
        == "error: --error-rate: 7.0 cannot be used; give a share between 0 and 1, such as 0.05\n"
    )
