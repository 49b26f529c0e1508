"""The trial of schemas and patterns before an engine has them, with a child that is played: who
waits for whom."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_workers.lanes.gpu.children import grammars
from penstock_workers.lanes.gpu.children.grammar_child import next_token
from penstock_workers.lanes.gpu.children.grammars import GrammarCheck
from penstock_workers.lanes.gpu.children.line_child import NoChild
from penstock_workers.lanes.gpu.engine.engines import RequestRefused

CONFIG = SimpleNamespace(model_config=None, structured_outputs_config=None)


class Child:
    """Says at once that a pattern is good; over one with a star it broods for ever."""

    started = 0

    @classmethod
    async def start(cls, program: str, facts: bytes) -> Child:
        cls.started += 1
        return cls()

    async def ask(self, line: bytes, within_s: float) -> str | None:
        if b"*" in line:
            await asyncio.sleep(0)
            raise TimeoutError
        return None

    def kill(self) -> None:
        """It is played."""

    async def gone(self) -> None:
        """It is."""


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> GrammarCheck:
    monkeypatch.setattr(grammars, "LineChild", Child)
    monkeypatch.setattr(Child, "started", 0)
    made = GrammarCheck()
    made.know(CONFIG)
    return made


def pattern(text: str) -> Any:
    return SimpleNamespace(structured_outputs=SimpleNamespace(regex=text))


async def test_a_job_whose_patterns_are_slow_keeps_no_other_job_waiting(
    check: GrammarCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once they took long together its further ones are refused untried, with the reason; those of
    other jobs are tried."""
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr(grammars, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    for number in range(3):
        with pytest.raises(RequestRefused, match="takes longer than 10 s to compile"):
            await check.check(pattern(f"a*{number}"), "bad")
    children = Child.started
    for text in ("a*9", "plain"):
        with pytest.raises(
            RequestRefused, match=r"slow schemas and patterns of this job have taken 30 s"
        ):
            await check.check(pattern(text), "bad")
    assert Child.started == children
    await check.check(pattern("plain"), "good")
    await check.check(pattern("plain"), "bad")  # it is known by now
    await check.close()


async def test_a_known_pattern_waits_for_no_trial(
    check: GrammarCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another one is being tried out, what was tried before passes at once."""
    await check.check(pattern("plain"), "job")

    async def brood(_child: Child, _line: bytes, _within_s: float) -> str | None:
        await asyncio.Event().wait()
        return None

    monkeypatch.setattr(Child, "ask", brood)
    trial = asyncio.create_task(check.check(pattern("another"), "job"))
    await asyncio.sleep(0)
    await asyncio.wait_for(check.check(pattern("plain"), "job"), 1)
    trial.cancel()
    await asyncio.gather(trial, return_exceptions=True)
    await check.close()


async def test_the_answer_to_a_cancelled_trial_is_no_ones(
    check: GrammarCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An item that leaves while its schema is tried out takes the child with it: the next one has
    an answer of its own."""
    await check.check(pattern("plain"), "job")
    kind = check._child
    with monkeypatch.context() as patch:
        patch.setattr(Child, "ask", lambda _child, _line, _within_s: asyncio.Event().wait())
        trial = asyncio.create_task(check.check(pattern("left"), "job"))
        await asyncio.sleep(0)
        trial.cancel()
        await asyncio.gather(trial, return_exceptions=True)
    assert check._child is None
    await check.check(pattern("next"), "job")
    assert check._child is not kind
    await check.close()


async def test_a_schema_deeper_than_json_is_written_is_refused(check: GrammarCheck) -> None:
    """By name, and not as an error of the program."""
    deep: Any = {}
    for _ in range(300):
        deep = {"a": deep}
    with pytest.raises(RequestRefused, match=r"the JSON schema .* cannot be used"):
        await check.check(SimpleNamespace(structured_outputs=SimpleNamespace(json=deep)), "job")


async def test_a_child_that_does_not_start_is_started_later(
    check: GrammarCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then patterns pass untried, and none is taken for tried; the pauses grow, and a start
    that succeeds ends them."""
    now = 100.0
    monkeypatch.setattr(grammars, "time", SimpleNamespace(monotonic=lambda: now))
    tries: list[float] = []

    async def fail(_program: str, _facts: bytes) -> Child:
        tries.append(now)
        raise NoChild("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(Child, "start", fail)
        for now in range(100, 1100):  # noqa: B007 - the clock of the check
            await check.check(pattern("a*"), "job")
    assert tries == [100, 105, 120, 180, 480, 780, 1080]
    now = 1379
    await check.check(pattern("a*"), "job")
    now = 1380
    with pytest.raises(RequestRefused, match="takes longer"):
        await check.check(pattern("a*"), "job")
    with monkeypatch.context() as patch:
        patch.setattr(Child, "start", fail)
        await check.check(pattern("b"), "job")
        now = 1385
        await check.check(pattern("b"), "job")
    assert tries[-2:] == [1380, 1385]
    await check.close()


@given(st.sets(st.integers(0, 199), min_size=1), st.integers(0, 30))
def test_a_trial_goes_on_with_a_token_that_is_allowed(allowed: set[int], place: int) -> None:
    """Whichever bits are set, it takes one of theirs, and the end of the answer only where nothing
    else may come."""
    words = [0] * 7
    for token in allowed:
        words[token // 32] |= 1 << token % 32
    signed = [word - (word >> 31 << 32) for word in words]  # as 32 bits with a sign
    assert next_token(signed, place, None) in allowed
    end = min(allowed)
    found = next_token(signed, place, end)
    assert found in allowed - {end} if len(allowed) > 1 else found is None
