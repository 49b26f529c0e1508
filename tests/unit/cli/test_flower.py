"""`penstock flower` before it listens: which options it ends up with, and which it refuses.

And how it takes events in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flower.options import default_options as options
from tornado.options import OptionParser

from penstock_cli import flower
from penstock_cli.errors import UsageProblem
from penstock_cli.flower import (
    DEFAULTS,
    MAX_TASKS,
    BoundedEvents,
    FlowerRole,
    FlowerSettings,
    fill,
    handlers,
    is_loopback,
)


@pytest.fixture(autouse=True)
def parser() -> Iterator[OptionParser]:
    """Flower has one set of options per process: this gives it back as it was."""
    before = options.as_dict()
    yield options
    for name, value in before.items():
        setattr(options, name, value)


def test_sane_without_a_word(parser: OptionParser) -> None:
    """Loopback, bounded memory, nothing on disk, nothing that changes the fleet."""
    fill(parser, FlowerSettings(), {})
    assert {name: parser[name] for name in DEFAULTS} == dict(DEFAULTS)
    assert (parser.address, parser.max_tasks, parser.persistent, parser.read_only) == (
        "127.0.0.1",
        MAX_TASKS,
        False,
        True,
    )


def test_settings_win_over_flowers_own_variables(parser: OptionParser) -> None:
    """PENSTOCK_FLOWER__PORT before FLOWER_PORT, that before the default."""
    variables = {
        "FLOWER_PORT": "6000",
        "FLOWER_MAX_TASKS": "500",
        "FLOWER_READ_ONLY": "false",
        "FLOWER_NATURAL_TIME": "1",
    }
    fill(parser, FlowerSettings(port=7000), variables)
    assert (parser.port, parser.max_tasks, parser.read_only, parser.natural_time) == (
        7000,
        500,
        False,
        True,
    )


def test_variables_that_kubernetes_makes_are_no_options(parser: OptionParser) -> None:
    """A Service named flower, or penstock-flower, leaves the port alone."""
    fill(
        parser,
        FlowerSettings(),
        {"FLOWER_PORT": "tcp://10.0.0.7:5555", "FLOWER_SERVICE_HOST": "10.0.0.7"},
    )
    assert parser.port == 5555


def test_a_service_link_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """PENSTOCK_FLOWER_PORT=tcp://… of a Service `penstock-flower` is ignored; PENSTOCK_FLOWER__PORT
    is read."""
    monkeypatch.setenv("PENSTOCK_FLOWER_PORT", "tcp://10.0.0.7:5555")
    monkeypatch.setenv("PENSTOCK_FLOWER__ADDRESS", "0.0.0.0")
    assert FlowerRole.load().flower == FlowerSettings(address="0.0.0.0")


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "", "10.1.2.3", "example.org"])
def test_an_open_door_is_refused_with_the_fix(parser: OptionParser, address: str) -> None:
    """Without a login Flower listens on loopback only."""
    with pytest.raises(UsageProblem, match="PENSTOCK_FLOWER__AUTH=user:password"):
        fill(parser, FlowerSettings(address=address), {})


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_login(parser: OptionParser, address: str) -> None:
    """On loopback it may do without."""
    fill(parser, FlowerSettings(address=address), {})
    assert is_loopback(parser.address)


@pytest.mark.parametrize("variables", [{"FLOWER_BASIC_AUTH": "me:one,you:two"}, {}])
def test_with_a_login_it_may_listen_anywhere(
    parser: OptionParser, variables: dict[str, str]
) -> None:
    """From our setting, or from the variable that a Secret for Flower already fills."""
    settings: dict[str, Any] = {} if variables else {"auth": "me:one,you:two"}
    fill(parser, FlowerSettings(address="0.0.0.0", **settings), variables)
    assert parser.basic_auth == ["me:one", "you:two"]


@pytest.mark.parametrize("login", ["nocolon", ":pw", "user:", "a:b,c", "ü:pw", ""])
def test_logins_that_flower_would_choke_on_are_refused(parser: OptionParser, login: str) -> None:
    """The number of the login is named, never its text."""
    with pytest.raises(UsageProblem, match=r"login \d") as refused:
        fill(parser, FlowerSettings(auth=login), {})  # type: ignore[arg-type]  # pydantic makes a secret of it
    assert "nocolon" not in str(refused.value)


def test_a_variable_that_does_not_parse_is_named(parser: OptionParser) -> None:
    """FLOWER_PORT=abc is a usage error that names the variable and the kind it wants."""
    with pytest.raises(UsageProblem, match=r"FLOWER_PORT .* wants int"):
        fill(parser, FlowerSettings(), {"FLOWER_PORT": "abc"})


def test_the_login_is_not_in_the_settings_text() -> None:
    """Printed settings show no password."""
    assert "hidden" not in repr(FlowerSettings(auth="me:hidden"))  # type: ignore[arg-type]  # pydantic makes a secret


@pytest.mark.parametrize(
    ("prefix", "path"), [(None, "/broker"), ("ops", "/ops/broker"), ("a/b", "/a/b/broker")]
)
def test_our_pages_lie_under_the_prefix(prefix: str | None, path: str) -> None:
    """So that they come before Flower's own."""
    assert path in dict(handlers(prefix))


class Loop:
    """Keeps what it should call."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., None], Any]] = []

    def add_callback(self, call: Callable[..., None], *arguments: Any) -> None:
        self.calls.append((call, arguments))

    def run(self) -> None:
        calls, self.calls = self.calls, []
        for call, arguments in calls:
            call(*arguments)


class State:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def event(self, event: dict[str, Any]) -> None:
        self.events.append(event)


def test_more_events_than_flower_can_take_are_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What waits is bounded, failures last of all; heartbeats pass; once it has caught up it goes
    on. Said once a minute."""
    monkeypatch.setattr(flower, "WAITING_MAX", 10)
    loop, state = Loop(), State()
    events = BoundedEvents(None, loop, max_tasks_in_memory=100)
    events.state = state
    for _ in range(25):
        events.on_event({"type": "task-received"})
    for _ in range(15):
        events.on_event({"type": "task-failed"})
    events.on_event({"type": "worker-heartbeat"})
    assert (len(loop.calls), events.dropped) == (21, 20)
    loop.run()
    events.on_event({"type": "task-started"})
    loop.run()
    assert [event["type"] for event in state.events[-2:]] == ["worker-heartbeat", "task-started"]
    assert (events.waiting, caplog.text.count("left out")) == (0, 1)
