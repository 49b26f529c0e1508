"""Decide what a call gets: checks in order, with the time passed in and nothing sent.

At the end stands what may be changed while it runs: settings by name, and refusals on demand.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from hmac import compare_digest
from typing import Any

import orjson

from penstock_simulate import choices, limits
from penstock_simulate.answers import refusals
from penstock_simulate.answers.cached_contents import CachedContents, KeptContent
from penstock_simulate.answers.calls import (
    CHAT,
    CONVERSE,
    GENERATE,
    MESSAGES,
    Call,
    at_admission,
    unreadable,
)
from penstock_simulate.answers.faults import Hostility, document_of
from penstock_simulate.answers.prompt_cache import NO_CACHE, CacheUse, PromptCache
from penstock_simulate.answers.refusals import BY_NAME, Refusal
from penstock_simulate.answers.replies import ANTHROPIC, BEDROCK, GEMINI, Replies
from penstock_simulate.answers.servers import SERVERS
from penstock_simulate.answers.structured import refused_format
from penstock_simulate.book import CallBook
from penstock_simulate.capacity import (
    Latencies,
    PriorityQueue,
    Queue,
    Wallet,
    gauges,
    labels_of,
    make_ramp,
    ramp_settings,
    resized,
)
from penstock_simulate.choices import BadSetting, Crowded, Mode, Structured
from penstock_simulate.config import SimulatorConfig
from penstock_simulate.limits import Charge, KeyLimits
from penstock_simulate.reply import Manner, Reply, Usage

MODELS = ("sim-small", "sim-large", "sim-embed")  # listed; any other name works too


class Provider:
    """Decides about calls; owns the limits, the luck and the accounts.

    Times are seconds of any steady clock, passed in; ``wall`` gives Unix seconds for headers that
    hold a date.
    """

    def __init__(self, config: SimulatorConfig, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._demand: Demand | None = None
        self._slots: Queue | None = None
        self.book = CallBook(config.call_log)
        self._follow(config)
        self._fill()

    def reset(self) -> None:
        """Reset accounts and limits to those at the start.

        The log on disk and what was changed meanwhile are kept."""
        self.book.reset()
        self._fill()

    def control(self, raw: bytes, now: float) -> None:
        """Change settings while running, and refuse on demand.

        Raises BadSetting and changes nothing."""
        before, change = self._config, read_change(raw, self._config, self._demand)
        self._demand = change.demand
        self._follow(change.config)
        self._limits.change(change.config, now)
        self._wallet.change(change.config)
        self._cache.kept_s = change.config.prompt_cache_s
        if ramp_settings(before) != ramp_settings(change.config):
            self._ramp = make_ramp(change.config)
        self._slots = resized(self._slots, change.config)

    def controls(self) -> dict[str, Any]:
        """Return the settings in force."""
        return shown(self._config, self._demand)

    def stats(self, now: float) -> dict[str, Any]:
        """Return the accounts since the start or the last reset, those of each limit among them."""
        return self.book.stats() | {
            "limits": self._limits.stats(now),
            "spent_usd": round(self._wallet.spent_usd, 9),
            "ordinary_usd": round(self._wallet.ordinary_usd, 9),
        }

    def metrics(self, now: float) -> str | None:
        """Write the gauges of the server that is played, vLLM's of any other provider.

        None where it has none. Without a queue everything in flight runs."""
        running = self.book.in_flight if self._slots is None else self._slots.running(now)
        waiting = 0 if self._slots is None else self._slots.waiting(now)
        server = SERVERS.get(self._config.like or "")
        if server is not None:
            return server.metrics(running, waiting)
        latencies = self._latencies.text(now, labels_of(MODELS[0]))
        return gauges(running, waiting, MODELS[0]) + latencies

    @property
    def config(self) -> SimulatorConfig:
        """Return the configuration in force."""
        return self._config

    def turned_away(self, authorization: str | None, *, spends: bool) -> Refusal | None:
        """Check what a call meets that is no inference: key, demand and, if it spends, account."""
        return (
            self._wrong_key(authorization)
            or self._demanded()
            or (self._no_money() if spends else None)
        )

    def pay(self, usage: Usage, price: float) -> None:
        """Pay for work done, at this part of the ordinary price."""
        cheaper = usage.cached * (1 - self._config.cached_price) - usage.extra
        self._wallet.pay(usage.prompt, usage.completion, price, cheaper)

    def pay_rent(self, kept: KeptContent, seconds: float) -> None:
        """Pay for an explicit cache that is kept for so long, and no less where it goes before."""
        self._wallet.rent(kept.tokens * seconds / 3600)

    def open_call(
        self, endpoint: str, raw: bytes, tag: str | None, authorization: str | None
    ) -> Call:
        """Count a call before anything else happens to it.

        Without a tag the body's hash names the document."""
        tag = tag or "body-" + blake2b(raw, digest_size=8).hexdigest()
        kept = self.contents.kept
        return Call(endpoint, raw, authorization, tag, self.book.arrived(tag), kept=kept)

    def decide(self, call: Call, now: float, host: str = "") -> Reply:
        """Return the reply to a call that arrives at ``now``, noted in the call log.

        ``now`` is in seconds of any steady clock.

        ``host`` is the name that the client called us by.
        """
        reply = self._judge(call, now, host)
        if reply.code is not None:
            self.book.refused(reply.code)
        self.book.decided(call.tag, call.number, reply.outcome)
        return reply

    def _judge(self, call: Call, now: float, host: str) -> Reply:
        self.contents.expire(now)
        refusal = self._turned_away(call)
        kind = None if refusal else self._hostility.kind(document_of(call.tag), call.number, now)
        if kind is not None:
            return self._replies.hostile(kind, call, host, self._limits.meters, now)
        replies = self._own.get(call.endpoint, self._replies)
        call.cache = call.named or self._looked_up(call, now)
        charge = None if refusal else self._charge(call)
        refusal = refusal or self._too_steep(now) or self._over_limit(call, charge, now)
        if refusal is not None:
            self._limits.catch_up(now)
            return replies.refuse(refusal, call, self._limits.meters, now)
        reply = self._take_time(call, replies.work(call, self._limits.meters, now), charge, now)
        if reply.worked:
            self._cache.use(call.prefixes, now, now + reply.delay_s)
        return reply

    def _looked_up(self, call: Call, now: float) -> CacheUse:
        """Return what the cache has of a prompt, by luck where it is kept without marks."""
        is_luck = all(one.price == 1 for one in call.prefixes)
        if is_luck and self._luck.random() >= self._config.prompt_cache_hits:
            return NO_CACHE
        return self._cache.look(call.prefixes, now)

    def close_call(self, call: Call, reply: Reply, *, unread: bool) -> None:
        self.book.left(call.tag, reply.outcome, reply.usage, ok=reply.good, unread=unread)

    def _follow(self, config: SimulatorConfig) -> None:
        """Make everything that follows from the settings alone."""
        metering = config.metering
        self._config = config
        self._replies = Replies(config, self._wall, self._request_id)
        self._own = {
            endpoint: Replies(config, self._wall, self._request_id, api)
            for endpoint, api in ((MESSAGES, ANTHROPIC), (GENERATE, GEMINI), (CONVERSE, BEDROCK))
        }
        self._authorization = f"Bearer {config.api_key}".encode() if config.api_key else None
        self._mode, self._unset_max_tokens = Mode(metering.charge), metering.unset_max_tokens
        self._burndown = metering.burndown
        self._crowd, self._most_in_flight = Crowded(metering.crowded), metering.max_concurrency
        self._credit_error = metering.credit_error
        self._structured = Structured(config.structured)
        self._hostility = Hostility(config)

    def _fill(self) -> None:
        self._limits = KeyLimits(self._config)
        self._wallet = Wallet(self._config)
        self._cache = PromptCache(self._config.prompt_cache_s)
        self._luck = random.Random(self._config.seed)
        self.contents = CachedContents()
        self._ramp = make_ramp(self._config)
        self._slots = resized(None, self._config)
        self._latencies = Latencies()

    def _request_id(self) -> str:
        return f"req_{self.book.requests:016x}"

    def _turned_away(self, call: Call) -> Refusal | None:
        """Refuse before limits are asked: by key, demand, request, account or crowd."""
        wrong = self._wrong_key(call.authorization)
        return (
            wrong
            or self._demanded()
            or unreadable(call)
            or self._format(call)
            or self._no_money()
            or self._crowded()
        )

    def _wrong_key(self, authorization: str | None) -> Refusal | None:
        if self._authorization is None or compare_digest(
            (authorization or "").encode(), self._authorization
        ):
            return None
        return refusals.wrong_key()

    def _demanded(self) -> Refusal | None:
        demand = self._demand
        if demand is None:
            return None
        if demand.calls is not None:
            demand.calls -= 1
            if demand.calls == 0:
                self._demand = None
        return refusals.BY_NAME[demand.kind](self._config.retry_after_s)

    def _format(self, call: Call) -> Refusal | None:
        if call.endpoint != CHAT or "response_format" not in call.body:
            return None
        refusal = refused_format(call.body, self._structured)
        if self._structured is Structured.IGNORED:
            call.body = {
                name: value for name, value in call.body.items() if name != "response_format"
            }
        return refusal

    def _no_money(self) -> Refusal | None:
        return (
            refusals.no_money(self._credit_error)
            if self._wallet.empty(self.book.requests)
            else None
        )

    def _crowded(self) -> Refusal | None:
        most = self._most_in_flight
        if most is None or self.book.in_flight <= most or self._crowd is Crowded.QUEUED:
            return None
        self.book.over_limit("concurrency")
        if self._crowd is Crowded.UNAVAILABLE:
            return refusals.overloaded(self._config.retry_after_s)
        return refusals.too_many_in_flight(most, self._config.retry_after_s)

    def _too_steep(self, now: float) -> Refusal | None:
        if self._ramp is None:
            return None
        wait_s = self._ramp.wait_s(now)
        return refusals.too_steep(wait_s) if wait_s > 0 else None

    def _over_limit(self, call: Call, charge: Charge | None, now: float) -> Refusal | None:
        over = self._limits.admit(charge, now) if charge is not None else None
        if over is not None:
            self.book.over_limit(over.dimension)
            return refusals.over_limit(over, call.model)
        if self._ramp is not None:
            self._ramp.accepted()
        return None

    def _charge(self, call: Call) -> Charge | None:
        """Charge a call; None where nothing is limited.

        Then nothing needs to be counted beforehand."""
        return (
            at_admission(self._mode, call, self._unset_max_tokens) if self._limits.meters else None
        )

    def _take_time(self, call: Call, reply: Reply, charge: Charge | None, now: float) -> Reply:
        """Let the call wait for its turn, and charge what is due while it runs and when it ends."""
        wait_s = 0.0
        if self._slots is not None and reply.delay_s > 0 and reply.manner is not Manner.HUNG:
            if isinstance(self._slots, PriorityQueue):
                turn = self._slots.enter(now, reply.delay_s, call.priority)
                reply = reply._replace(turn=turn)
            else:
                wait_s = self._slots.enter(now, reply.delay_s)
        if reply.turn is None:
            self._count_latency(reply, now, wait_s)
        if charge is not None:
            self._charge_later(reply, charge, now + wait_s)
        self.pay(reply.usage, reply.price)
        return reply._replace(delay_s=wait_s + reply.delay_s) if wait_s else reply

    def wait_s(self, reply: Reply, now: float) -> float:
        """Return the seconds after which to ask again, while a call waits for its turn.

        0 once that has come: it is asked until then, and no more."""
        turn, queue = reply.turn, self._slots
        if turn is None or not isinstance(queue, PriorityQueue):
            return 0.0
        left = queue.wait_s(turn, now)
        if turn.start is not None:
            self._count_latency(reply, turn.arrived, turn.start - turn.arrived)
        return left

    def _count_latency(self, reply: Reply, arrived: float, wait_s: float) -> None:
        if reply.worked and reply.manner is not Manner.HUNG:
            decode_s = reply.usage.completion * self._config.latency_ms_per_token / 1000
            first_s = max(0.0, reply.delay_s - decode_s)
            self._latencies.add(arrived, wait_s, first_s, reply.delay_s)

    def _charge_later(self, reply: Reply, charge: Charge, start: float) -> None:
        end = start + reply.delay_s
        if self._mode is Mode.PRODUCED and reply.usage.completion:
            self._limits.produce(reply.usage.completion, start, end)
        refund = not self._config.charge_failed and not reply.worked
        due = limits.correction(
            self._mode, charge, reply.usage.completion, burndown=self._burndown, refund=refund
        )
        if due is not None:
            self._limits.correct(due, end)


REFUSE = "refuse"
# Where it listens and what its meters are made of stay; what they allow may change.
FIXED = frozenset(
    {
        "host",
        "port",
        "call_log",
        "seed",
        "like",
        "window",
        "tokens_window",
        "depth_s",
        "charge",
        "certificate",
        "authority",
        "scheduling_policy",
    }
)
CHANGEABLE = [field.name for field in fields(SimulatorConfig) if field.name not in FIXED]


@dataclass(slots=True)
class Demand:
    """Refuse in this way: so many calls, or every one until something else is asked for."""

    kind: str
    calls: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A request to the control endpoint, read and checked."""

    config: SimulatorConfig
    demand: Demand | None  # what is refused from now on


def read_change(raw: bytes, config: SimulatorConfig, demand: Demand | None) -> Change:
    """Read settings as in SimulatorConfig, and `refuse`; what is not named stays.

    Raises BadSetting and changes nothing."""
    try:
        given = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadSetting(f"the body is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise BadSetting('the body must be a JSON object such as {"rpm": 600}')
    if REFUSE in given:
        demand = _demand(given.pop(REFUSE))
    unknown = [name for name in given if name not in CHANGEABLE]
    if unknown:
        raise BadSetting(
            f"{unknown[0]!r} cannot be changed; these can: {', '.join([REFUSE, *CHANGEABLE])}"
        )
    _types_fit(given)
    return Change(replace(config, **given), demand)


def shown(config: SimulatorConfig, demand: Demand | None) -> dict[str, Any]:
    """Return what is in force, under the names that `POST /control` takes; but for the key."""
    shown = {name: getattr(config, name) for name in CHANGEABLE if name != "api_key"}
    shown |= {
        name: getattr(config.metering, name) for name in config.metering._fields if name in shown
    }
    return shown | {REFUSE: {"kind": demand.kind, "calls": demand.calls} if demand else None}


def _demand(given: object) -> Demand | None:
    if given is None:
        return None
    if not isinstance(given, dict):
        raise BadSetting(
            f'{REFUSE}: {given!r} cannot be used; give {{"kind": "slow_down", "calls": 3}} or null'
        )
    kind, calls = given.get("kind"), given.get("calls")
    choices.one_of("refuse.kind", kind, tuple(BY_NAME))
    if calls is not None:
        choices.whole("refuse.calls", calls, 1)
    return Demand(str(kind), calls)


def _types_fit(given: Mapping[str, Any]) -> None:
    """Check what the configuration does not, since flags cannot get it wrong."""
    for name, kind, fix in (
        ("charge_failed", bool, "true or false"),
        ("api_key", str | None, "a text or null"),
        ("hostile", str | None, "names with commas between, or null"),
    ):
        if name in given and not isinstance(given[name], kind):
            raise choices.unusable(name, given[name], f"give {fix}")
    for name in given:
        if given[name] is None and SimulatorConfig.__dataclass_fields__[name].default is not None:
            raise choices.unusable(name, None, "give a value")
