"""How well adaptive concurrency finds what a server can take: goodput, refusals and the limits it
ends with.

    python -m benchmarks.concurrency [--seconds 600]

In virtual time, so it takes seconds and every run is the same. Two servers: one like vLLM, which
refuses nothing, serves 48 at once and queues the rest; and shared capacity that refuses above 40 in
flight, or 55 in every other two minutes. Beside Penstock's: fixed limits, and additive increase
with multiplicative decrease as llm-d's gateway has it (half, plus one).
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from penstock_ratelimit import Signal
from penstock_ratelimit.shared.concurrency import AdaptiveConcurrency
from penstock_ratelimit.testing import run_virtual

SERVED_AT_ONCE = 48
CAPACITIES, CAPACITY_LASTS_S = (40, 55), 120.0
TOKEN_S = 0.02
REFUSAL_S = 0.5
MOST = 256


class Control(Protocol):
    """What decides how many requests may be in flight."""

    @property
    def limit(self) -> int: ...

    def started(self) -> None: ...

    def finished(self, signal: Signal, latency_s: float, output_tokens: float) -> None: ...


@dataclass
class Fixed:
    """A number that a person has set."""

    limit: int

    def started(self) -> None: ...

    def finished(self, signal: Signal, latency_s: float, output_tokens: float) -> None: ...


@dataclass
class HalfPlusOne:
    """Additive increase, multiplicative decrease: half per episode of refusals, one more per limit
    of good answers."""

    clock: Callable[[], float]
    limit: int = 8
    clean: int = 0
    cut_at: float = field(default=float("-inf"))

    def started(self) -> None: ...

    def finished(self, signal: Signal, latency_s: float, output_tokens: float) -> None:
        if signal is Signal.OVERLOADED:
            if self.clock() - latency_s >= self.cut_at:
                self.cut_at, self.limit = self.clock(), max(1, self.limit // 2)
            return
        self.clean += 1
        if self.clean >= self.limit:
            self.clean, self.limit = 0, min(MOST, self.limit + 1)


class Server(Protocol):
    """Answers one request for so many tokens."""

    async def answer(self, tokens: float) -> Signal: ...


class Queueing:
    """Like vLLM: a token takes longer the more are served; requests above that number wait."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(SERVED_AT_ONCE)
        self._serving = 0

    async def answer(self, tokens: float) -> Signal:
        async with self._places:
            self._serving += 1
            await asyncio.sleep(tokens * TOKEN_S * (0.5 + 0.5 * self._serving / SERVED_AT_ONCE))
            self._serving -= 1
        return Signal.OK


class Refusing:
    """Shared capacity: what comes above it is refused, and how much it is changes without
    notice."""

    def __init__(self) -> None:
        self._busy = 0

    async def answer(self, tokens: float) -> Signal:
        capacity = CAPACITIES[int(asyncio.get_running_loop().time() // CAPACITY_LASTS_S) % 2]
        self._busy += 1
        fits = self._busy <= capacity
        await asyncio.sleep(tokens * TOKEN_S if fits else REFUSAL_S)
        self._busy -= 1
        return Signal.OK if fits else Signal.OVERLOADED


@dataclass
class Account:
    """What came of one run; tokens are those of its second half."""

    tokens: float = 0.0
    answered: int = 0
    refused: int = 0


async def keep_busy(
    control: Control, server: Server, seconds: float, rng: random.Random, account: Account
) -> None:
    """One process that always has more to send than it may."""
    loop = asyncio.get_running_loop()

    async def send() -> None:
        tokens = min(rng.lognormvariate(4.5, 0.8), 800.0)
        control.started()
        sent_at = loop.time()
        signal = await server.answer(tokens)
        control.finished(signal, loop.time() - sent_at, tokens if signal is Signal.OK else 0.0)
        account.answered += signal is Signal.OK
        account.refused += signal is not Signal.OK
        if signal is Signal.OK and loop.time() > seconds / 2:
            account.tokens += tokens

    sending: set[asyncio.Task[None]] = set()
    while loop.time() < seconds:
        sending |= {asyncio.create_task(send()) for _ in range(control.limit - len(sending))}
        _, sending = await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED)
    for task in sending:
        task.cancel()
    await asyncio.gather(*sending, return_exceptions=True)


async def play(
    make: Callable[[Callable[[], float]], Control],
    server: type[Queueing | Refusing],
    processes: int,
    seconds: float,
) -> tuple[Account, list[int]]:
    loop = asyncio.get_running_loop()
    controls = [make(loop.time) for _ in range(processes)]
    account, one = Account(), server()
    await asyncio.gather(
        *(
            keep_busy(control, one, seconds, random.Random(n), account)
            for n, control in enumerate(controls)
        )
    )
    return account, [control.limit for control in controls]


WAYS: dict[str, tuple[Callable[[Callable[[], float]], Control], int]] = {
    "fixed 8": (lambda _: Fixed(8), 1),
    "fixed 48": (lambda _: Fixed(48), 1),
    "fixed 256": (lambda _: Fixed(256), 1),
    "half, plus one": (HalfPlusOne, 1),
    "penstock": (lambda clock: AdaptiveConcurrency(maximum=MOST, clock=clock), 1),
    "penstock, 4 processes": (lambda clock: AdaptiveConcurrency(maximum=MOST, clock=clock), 4),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="of virtual time; the second half is measured"
    )
    seconds = parser.parse_args().seconds
    for server in (Queueing, Refusing):
        rows = {}
        for name, (make, processes) in WAYS.items():
            rows[name] = run_virtual(play(make, server, processes, seconds))
        best = max(account.tokens for account, _ in rows.values())
        print(f"{server.__name__}: share of the best goodput, answers refused, limits at the end")
        for name, (account, limits) in rows.items():
            refused = account.refused / max(1, account.refused + account.answered)
            print(f"  {name:22}  {account.tokens / best:6.1%}  {refused:6.1%}  {limits}")


if __name__ == "__main__":
    main()
