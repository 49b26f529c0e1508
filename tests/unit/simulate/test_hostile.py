"""What a hostile provider answers, without a socket."""

from __future__ import annotations

import json
import zlib
from collections import Counter

import pytest
from typer.testing import CliRunner

from penstock_cli.main import command_line
from penstock_simulate import hostile
from penstock_simulate.answers.calls import CHAT
from penstock_simulate.choices import BadSetting
from penstock_simulate.config import SimulatorConfig
from penstock_simulate.hostile import KINDS
from penstock_simulate.provider import Provider
from penstock_simulate.reply import Manner, Reply

BODY = json.dumps(
    {"model": "m", "messages": [{"role": "user", "content": "Read the file."}]}
).encode()


def provider(hostile: str, **more: float) -> Provider:
    return Provider(SimulatorConfig(hostile=hostile, **{"hostile_share": 1.0, **more}))  # type: ignore[arg-type]


def ask(provider: Provider, document: str = "d", now: float = 0.0) -> Reply:
    call = provider.open_call(CHAT, BODY, f"job:{document}", "Bearer secret-key")
    reply = provider.decide(call, now, "127.0.0.1:9")
    provider.close_call(call, reply, unread=False)
    return reply


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_sent_and_counted_under_its_name(name: str) -> None:
    """Each kind answers in its own way, and the accounts name it: what a fleet met can be read
    afterwards."""
    hostile = provider(name)
    reply = ask(hostile)
    assert reply.outcome == name
    assert reply._replace(outcome="200", delay_s=0) != ask(Provider(SimulatorConfig()))._replace(
        delay_s=0
    )
    assert hostile.book.stats()["by_status"] == {name: 1}
    assert hostile.book.stats()["answered"] == KINDS[name].answers


def test_luck_follows_from_the_seed() -> None:
    """The same documents meet the same answers in each run, in about the share that was asked
    for."""
    first, second = (
        [ask(told, f"d{n}").outcome for n in range(400)]
        for told in [provider("all", hostile_share=0.3) for _ in "ab"]
    )
    assert first == second
    assert 80 <= sum(outcome in KINDS for outcome in first) <= 160


def test_a_document_can_be_hostile_for_good() -> None:
    """Each call for such a document is answered in the same way; calls for the others are answered
    well."""
    told = provider("html-403,nul", hostile_share=0, hostile_documents=0.25)
    ways = [frozenset(ask(told, f"d{n}").outcome for _ in range(3)) for n in range(200)]
    assert all(len(way) == 1 for way in ways)
    counted = Counter(next(iter(way)) for way in ways)
    assert 30 <= counted["html-403"] + counted["nul"] <= 70
    assert counted["html-403"] + counted["nul"] + counted["200"] == 200


def test_the_time_of_hostility_ends() -> None:
    """After the seconds that were given all answers are good, and a change begins them anew."""
    told = provider("redirect-302", hostile_for_s=10)
    assert [ask(told, now=now).status for now in (5, 14.9, 15, 99)] == [302, 302, 200, 200]
    told.control(b'{"hostile": "html-403", "hostile_for_s": 1}', 200)
    assert [ask(told, now=now).status for now in (200, 200.9, 201)] == [403, 403, 200]
    told.control(b'{"hostile": null}', 300)
    assert ask(told, now=300).status == 200


def test_what_is_large_costs_the_simulator_nothing() -> None:
    """100 MB leave from a block of 64 KiB, and a bomb of 100 MB is 100 kB."""
    large = ask(provider("large"))
    assert (len(large.body) * large.times, len(large.body)) == (hostile.LARGE_BYTES, 65_536)
    bomb = ask(provider("gzip-bomb")).body
    assert len(bomb) < 200_000
    assert len(zlib.decompress(bomb, hostile.GZIP_WINDOW)) == hostile.LARGE_BYTES
    assert ask(provider("drip")).manner is Manner.DRIPPED


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"hostile": "nul,nil"},
            "--hostile: 'nil' is not a kind; `penstock simulate --hostile list` shows all of them",
        ),
        (
            {"hostile": "all", "host": "0.0.0.0"},
            "--hostile with --host 0.0.0.0: it serves this machine only",
        ),
        (
            {"certificate": "old"},
            "--certificate: 'old' cannot be used; give good, self-signed, expired or other-host",
        ),
        ({"hostile_share": 2}, "--hostile-share: 2 cannot be used"),
        ({"hostile_for_s": 0}, "--hostile-for-s: 0 cannot be used"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_flag(given: dict[str, object], told: str) -> None:
    """A wrong name, share or place says so before anything is served."""
    with pytest.raises(BadSetting) as caught:
        SimulatorConfig(**given)  # type: ignore[arg-type]
    assert told in str(caught.value)


def test_the_list_has_every_kind() -> None:
    """`--hostile list` prints each name with what it does, and serves nothing."""
    done = CliRunner().invoke(command_line(), ["simulate", "--hostile", "list"])
    assert done.exit_code == 0
    assert all(
        f"  {kind.name} " in done.output and kind.line in done.output for kind in KINDS.values()
    )
