"""Each server of open models, in the shapes that it really sends: the lane, the names of failures
and their outcomes, and docs/servers.md, which says the same."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from attempts import make_attempt

from penstock_ledger.model import ItemKey
from penstock_producer.job.endpoints import CHAT
from penstock_simulate.answers.servers import SERVERS
from penstock_simulate.choices import PRESETS
from penstock_simulate.config import SimulatorConfig
from penstock_simulate.web import running
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.failures import Failure, name_failure
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.item.outcome import Dead, Done, Retry
from penstock_workers.item.passing import Passing
from penstock_workers.item.run.fates import RetryPolicy, decide
from penstock_workers.lanes.api.api_lane import ApiLane
from penstock_workers.settings import ProviderSettings

PAGE = (Path(__file__).parents[2] / "docs" / "servers.md").read_text("utf-8")
HEADS = {
    "ollama": "Ollama",
    "sglang": "SGLang",
    "tgi": "TGI",
    "tensorrt-llm": "TensorRT-LLM",
    "triton": "Triton",
}
WAITS, RETRIES = "waits", "tried again"

# What a document ends in: a result, one more try that counts or not, a dead letter with its reason.
# By situation, in the order of HEADS; None where the server has no such answer.
TABLE: dict[str, tuple[str | None, ...]] = {
    "a good answer": ("result", "result", "result", "result", "result"),
    "the queue is full": (WAITS, WAITS, WAITS, None, WAITS),
    "the prompt is too long": ("context_overflow",) * 5,
    "a request that it does not take": (
        "bad_request",
        "bad_request",
        "unprocessable",
        "bad_request",
        "bad_request",
    ),
    "no such model": ("not_found", None, None, None, "bad_request"),
    "its engine failed": (RETRIES,) * 5,
    "it ends while it answers": (None, RETRIES, None, RETRIES, None),
    "the queue is full, of a stream": (WAITS, WAITS, WAITS, None, WAITS),
    "the prompt is too long, of a stream": ("context_overflow",) * 5,
}
KINDS = {
    "the queue is full": "server_is_overloaded",
    "the prompt is too long": "context_length_exceeded",
    "no such model": "model_not_found",
    "its engine failed": "server_error",
    "it ends while it answers": "aborted",
}
CASES = [
    (server, situation, outcomes[at])
    for situation, outcomes in TABLE.items()
    for at, server in enumerate(HEADS)
    if outcomes[at] is not None
]


async def outcome_of(server: str, situation: str) -> tuple[str, Failure | object]:
    """Ask the played server through the lane, in that situation."""
    situation, _, streamed = situation.partition(", of a ")
    messages = [] if situation == "a request that it does not take" else [{"role": "user"}]
    body: dict[str, Any] = {"model": "m", "messages": [one | {"content": "x"} for one in messages]}
    attempt = make_attempt(body=json.dumps(body).encode(), settings=ProviderSettings(), model="m")
    async with running(SimulatorConfig(like=server, latency_ms=0)) as url:
        if situation in KINDS:
            async with aiohttp.ClientSession() as session:
                refuse = {"refuse": {"kind": KINDS[situation]}}
                async with session.post(f"{url}/control", json=refuse) as answer:
                    assert answer.status == 200
        lane = ApiLane({"default": ProviderSettings(base_url=f"{url}/v1")})
        await lane.start()
        try:
            request = Request("t", "default", CHAT, attempt.body, 20.0, passing=_passing(streamed))
            happened = name_failure(await lane.infer(Prepared(request)), time.time())
        finally:
            await lane.close()
    return _word(attempt, happened), happened


def _passing(streamed: str) -> Passing | None:
    return Passing(ItemKey("job", 1, "doc"), "here", lambda _: None) if streamed else None


def _word(attempt: Attempt, happened: Any) -> str:
    match decide(attempt, happened, RetryPolicy()):
        case Done():
            return "result"
        case Retry(counted=counted):
            return RETRIES if counted else WAITS
        case Dead(letter=letter):
            return letter.reason
    raise AssertionError(happened)


@pytest.mark.parametrize(("server", "situation", "expected"), CASES)
async def test_each_answer_of_each_server_has_its_outcome(
    server: str, situation: str, expected: str
) -> None:
    """A full queue costs no attempt, a prompt that is too long none but its first, and an engine
    that failed is asked again."""
    outcome, happened = await outcome_of(server, situation)
    assert outcome == expected, happened


def test_the_page_has_the_same_table() -> None:
    """docs/servers.md shows each row as it is tested."""
    rows = [("Situation", *HEADS.values()), ("---",) * 6]
    rows += [(name, *(word or "\N{EN DASH}" for word in words)) for name, words in TABLE.items()]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows).replace("| --- ", "|---")
    table = table.replace("|---|---|---|---|---|---|", "|" + "---|" * 6)
    assert table.splitlines()[2:] == [
        line
        for line in PAGE.splitlines()
        if line.startswith(tuple(f"| {name} |" for name in TABLE))
    ]


def test_every_played_server_has_a_section() -> None:
    """What can be played is tested and described, and metered as a server of one's own."""
    assert list(HEADS) == list(SERVERS)
    assert set(SERVERS) <= set(PRESETS)
    for name, head in HEADS.items():
        section = PAGE.partition(f"\n## {head}\n")[2].partition("\n## ")[0]
        assert f"--like {name}" in section or name in section
        assert "[providers." in section


@pytest.mark.parametrize("name", [name for name in SERVERS if name != "ollama"])
async def test_each_server_has_its_own_gauges(name: str) -> None:
    """The page of gauges has the names that the server's own has; Ollama's has none."""
    async with (
        running(SimulatorConfig(like=name)) as url,
        aiohttp.ClientSession() as session,
        session.get(f"{url}/metrics") as answer,
    ):
        text = await answer.text()
    assert all(gauge is None or gauge in text for gauge in SERVERS[name].gauges or ())
