"""The file of `penstock doctor --report`, with stores that are there and that are not."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock_cli.doctor import bundle
from penstock_cli.doctor.worker import Finding, Verdict
from penstock_cli.errors import UsageProblem
from penstock_cli.main import command_line
from penstock_ledger import open_database
from penstock_producer import Producer

CANARY = "canary-5d0c7e1f-not-a-known-shape"


@pytest.fixture
def no_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose settings name a SQLite that is not there and a Redis that does not answer."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", f"sqlite:///{tmp_path}/none/penstock.db")
    monkeypatch.setenv("PENSTOCK_REDIS_URL", f"redis://:{CANARY}@127.0.0.1:1/0")
    return tmp_path


def asked(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(command_line(), ["doctor", "--no-provider", *words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout


def parts(text: str) -> dict[str, list[str]]:
    """Each part's lines by its title."""
    return {
        part.partition("\n")[0]: part.partition("\n")[2].split("\n")
        for part in text.split("\n## ")[1:]
    }


def test_stores_that_are_down_are_parts_that_say_so(no_servers: Path) -> None:
    """Without SQL and Redis there is a report all the same, for its owner only, and it says why
    both parts are empty."""
    status, shown = asked("--report", "here.md")
    assert status == 1
    assert "here.md is the report: read it before you attach it" in shown
    assert stat.S_IMODE((no_servers / "here.md").stat().st_mode) == 0o600
    found = parts((no_servers / "here.md").read_text())
    assert "not to be had" in "".join(found["Database and its newest jobs"])
    assert "not to be had: Redis: " in "".join(found["Redis, and what fails lately"])
    assert any("penstock 0." in line for line in found["Versions"])


def test_a_secret_of_any_setting_is_left_out(
    no_servers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passwords in URLs, keys in variables and options of engines are not in the report; the names
    of settings and variables are."""
    monkeypatch.setenv("PENSTOCK_PROVIDERS__MINE__BASE_URL", f"https://me:{CANARY}@127.0.0.1:1/v1")
    monkeypatch.setenv("PENSTOCK_PROVIDERS__MINE__API_KEY_ENV", "MINE_KEY")
    monkeypatch.setenv("PENSTOCK_PROVIDERS__ALONE__BASE_URL", f"https://{CANARY}-5@127.0.0.1:1/v1")
    azure = f"https://127.0.0.1:1/v1?code={CANARY}-6&subscription-key={CANARY}-7&of={CANARY}-8"
    monkeypatch.setenv("PENSTOCK_PROVIDERS__AZURE__BASE_URL", azure)
    engine = {"hf_token": f"{CANARY}-2", "more": {"auth": f"{CANARY}-9"}}
    monkeypatch.setenv("PENSTOCK_GPU__ENGINE", json.dumps(engine))
    monkeypatch.setenv("MINE_KEY", f"{CANARY}-3")
    monkeypatch.setenv("OPENAI_API_KEY", f"{CANARY}-4")
    _, text = asked("--report", "-")
    assert CANARY not in text
    assert "providers.mine.api_key_env = MINE_KEY" in text
    assert "gpu.engine.hf_token = [redacted]" in text
    assert "    OPENAI_API_KEY\n" in text


def test_settings_that_are_refused_are_a_part_that_says_so(
    no_servers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report is what one asks for when a setting is wrong, too."""
    monkeypatch.setenv("PENSTOCK_CONCURRENCY", "many")
    _, text = asked("--report", "-")
    assert "not to be had: setting concurrency" in text
    assert "## Versions" in text


@pytest.mark.parametrize("place", ["there.md", "folder", "no/such/folder.md", "link.md"])
def test_a_place_that_will_not_do_is_refused_first(no_servers: Path, place: str) -> None:
    """What is there already is not overwritten, not even through a link to nothing, and nothing is
    looked at before."""
    (no_servers / "there.md").write_text("mine")
    (no_servers / "folder").mkdir()
    (no_servers / "link.md").symlink_to("nothing")
    with pytest.raises(UsageProblem, match=f"--report {place}"):
        asked("--report", place)
    assert (no_servers / "there.md").read_text() == "mine"


def test_what_was_written_meanwhile_stays(no_servers: Path) -> None:
    """A file that came after the first look is not overwritten either."""
    (no_servers / "late.md").write_text("mine")
    with pytest.raises(UsageProblem, match=r"late\.md: File exists"):
        bundle.write("late.md", "ours")
    assert (no_servers / "late.md").read_text() == "mine"


def test_jobs_are_shown_without_their_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State, counts and names of jobs are in it; prompts and documents are not."""
    url = f"sqlite:///{tmp_path}/penstock.db"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", url)
    monkeypatch.setenv("PENSTOCK_REDIS_URL", "redis://127.0.0.1:1/0")
    open_database(url).migrate()
    (tmp_path / "docs.jsonl").write_text('{"id": "a", "text": "a private text"}\n')
    with Producer(database_url=url) as producer:
        producer.submit(
            "docs.jsonl", {"prompt": "Say {text} privately", "model": "m"}, job_key="tickets"
        )
    _, text = asked("--report", "-")
    (line,) = (one for one in text.splitlines() if one.startswith("    tickets ("))
    assert "running, lane api, generation 1, 1 documents, 0 succeeded, 0 dead" in line
    assert "privat" not in text


def hostile() -> Iterator[Finding]:
    for number in range(2_000):
        yield Finding(Verdict.BAD, "redis", f"{number}\n## Forged\n```\x1b[2J\u202e" + "x" * 10_000)


def test_hostile_and_endless_lines_stay_lines(no_servers: Path) -> None:
    """No text of a server ends its block, moves a cursor or makes the file larger than its
    bound."""
    text = bundle.report(list(hostile()), None, now=time.time())
    assert len(text.encode()) <= bundle.MAX_BYTES
    assert "Forged" not in parts(text)
    assert not [line for line in text.splitlines() if line.startswith("```")]
    assert "\x1b" not in text
    assert "… and more: 200 lines are shown" in text


def test_the_logs_of_a_state_folder_show_their_last_warnings(tmp_path: Path) -> None:
    """Of each log the last warnings and errors, however long it is; a traceback stays out."""
    (tmp_path / "penstock.db").touch()
    (tmp_path / "logs").mkdir()
    lines = [f"2026-11-28 12:00:00,{n:03} INFO penstock: said {n}" for n in range(100)]
    lines += [f"2026-11-28 12:00:01,{n:03} WARNING penstock: warned {n}" for n in range(100)]
    (tmp_path / "logs/api-1.log").write_text("\n".join([*lines, "    Traceback: a text"]))
    shown = parts(bundle.report([], tmp_path, now=0))["Warnings and errors in the logs"]
    said = [line for line in shown if "WARNING" in line]
    assert (len(said), said[-1].endswith("warned 99")) == (bundle.LOG_LINES, True)
    assert not [line for line in shown if "INFO" in line or "Traceback" in line]
