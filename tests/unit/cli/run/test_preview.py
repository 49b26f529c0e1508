"""`penstock preview`: the first requests, and what all would cost, without spending."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock_cli.main import command_line, main
from penstock_cli.run.preview import PROBLEMS_SHOWN, PROBLEMS_TOLD
from penstock_cli.state import StateFolder
from penstock_ledger import ItemKey, OutcomeStore, Result, open_database
from penstock_ledger.model import Saving
from penstock_producer import Producer
from penstock_producer.reporting.by_rules import ESCALATED
from penstock_producer.settings import ProducerSettings

PROMPT = ["--prompt", "Summarise: {text}", "--model", "m"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return tmp_path


def rows(folder: Path, *lines: str) -> None:
    (folder / "docs.jsonl").write_text("".join(line + "\n" for line in lines))


def test_requests_are_shown_as_they_would_be_sent(folder: Path) -> None:
    """Line, id, tokens and body of each, and what all come to; no file is written and no key is
    asked for."""
    rows(folder, *(json.dumps({"id": f"d{number}", "text": "é" * 400}) for number in range(5)))
    done = CliRunner().invoke(
        command_line(), ["preview", "docs.jsonl", *PROMPT, "--param", "max_tokens=7", "-n", "2"]
    )
    assert (done.exit_code, done.exception) == (0, None), done.output
    assert "line 1 · d0 · about " in done.output
    assert "at most 7 out · /v1/chat/completions" in done.output
    assert '"content": "Summarise: ' + "é" * 400 in done.output
    assert "d1" in done.output
    assert "d2" not in done.output
    assert "docs.jsonl holds 5 documents\n" in done.output
    assert "at most 35 out" in done.output
    assert [path.name for path in folder.iterdir()] == ["docs.jsonl"]


def test_what_the_prompt_cache_saves_is_said_and_the_request_shows_its_mark(folder: Path) -> None:
    """In words, and for programs with three costs; `on` for what is too short ends with the fix, and
    `auto` says that it goes without."""
    (folder / "penstock.toml").write_text(
        '[providers.default]\nkind = "anthropic"\n[providers.default.prices.claude-sonnet-4-5]\n'
        "input = 3.0\ncached_input = 0.3\ncache_write = 3.75\noutput = 15.0\n"
    )
    rows(folder, *(json.dumps({"id": f"d{number}", "text": f"t{number}"}) for number in range(50)))
    asked = ["preview", "docs.jsonl", "--prompt", "{text}", "--endpoint", "/v1/messages", "-n", "1"]
    asked += ["--model", "claude-sonnet-4-5", "--param", "max_tokens=5", "--prompt-cache"]
    long = ["--system", "Say in one word what this is about. " * 200]
    done = CliRunner().invoke(command_line(), [*asked, "on", *long])
    assert (done.exit_code, done.exception) == (0, None), done.output
    assert "prompt cache: 50 documents share 1 beginning, " in done.output
    assert "that saves about $" in done.output
    assert '"cache_control": {' in done.output
    told = json.loads(CliRunner().invoke(command_line(), [*asked, "on", *long, "--json"]).output)
    use = told["prompt_cache"]
    assert 0 < use["least_usd"] == use["most_usd"] < use["usual_usd"]
    assert use["read_tokens"] == pytest.approx(49 * use["written_tokens"], rel=0.01)
    short = CliRunner().invoke(command_line(), [*asked, "on"])
    assert "no beginning of 1,024 tokens or more" in str(short.exception)
    without = CliRunner().invoke(command_line(), [*asked, "auto"])
    assert (without.exit_code, "prompt cache: not used" in without.output) == (0, True)


def test_problems_are_named_with_line_and_fix(folder: Path) -> None:
    """All bad rows and repeated ids are found and counted by reason; with more of them than a
    submit accepts it ends as a submit does."""
    rows(
        folder,
        '{"id": "a", "text": "x"}',
        '{"id": "a", "text": "y"}',
        '{"id": "b", "txt": "z"}',
        "{",
    )
    done = CliRunner().invoke(command_line(), ["preview", "docs.jsonl", *PROMPT])
    assert str(done.exception).startswith("too_many_bad_rows: 3 rows of ")
    assert "line 2: duplicate_custom_id" in done.output
    assert "line 3: missing_field: field text:" in done.output
    assert "did you mean 'txt'?" in done.output
    assert "line 4: invalid_json_line" in done.output
    assert "holds 1 document, and 3 unusable rows, for which nothing is sent or paid" in done.output
    assert "missing_field in 'text' 1" in done.output
    allowed = ["preview", "docs.jsonl", *PROMPT, "--max-bad-rows", "3"]
    assert CliRunner().invoke(command_line(), allowed).exit_code == 0


def test_the_first_rows_alone_may_be_read(folder: Path) -> None:
    """A large source then costs what its first rows cost, which are named so; problems beyond a
    screenful are counted."""
    missing = PROBLEMS_TOLD + 20
    rows(
        folder,
        *(f'{{"id": "{number}"}}' for number in range(missing)),
        '{"id": "last", "text": "x"}',
    )
    typed = ["preview", "docs.jsonl", *PROMPT, "--max-bad-rows", "100%"]
    done = CliRunner().invoke(command_line(), [*typed, "--first", str(missing)])
    assert f"  … and {missing - PROBLEMS_SHOWN} more\n" in done.output
    assert f"docs.jsonl holds its first {missing} rows: 0 documents, and {missing}" in done.output
    assert "the first requests" not in done.output
    told = json.loads(CliRunner().invoke(command_line(), [*typed, "--json"]).output)
    assert (told["rows"], told["whole"], told["unusable"]) == (missing + 1, True, missing)
    assert len(told["problems"]) == PROBLEMS_TOLD
    assert [one["doc_id"] for one in told["requests"]] == ["last"]


def test_a_job_spec_file_and_json(folder: Path) -> None:
    """The same of a file with a Jinja prompt, for programs."""
    rows(folder, '{"id": "a", "tags": ["x", "y"]}')
    (folder / "night.yaml").write_text(
        "source: docs.jsonl\n"
        "model: m\n"
        "template: jinja\n"
        "prompt: '{% for t in tags %}{{ t }};{% endfor %}'\n"
    )
    done = CliRunner().invoke(command_line(), ["preview", "night.yaml", "--json"])
    assert (done.exit_code, done.exception) == (0, None), done.output
    found = json.loads(done.output)
    assert found["requests"][0]["body"] == {
        "model": "m",
        "messages": [{"role": "user", "content": "x;y;"}],
    }
    assert (found["problems"], found["rows"], found["refusal"]) == ([], 1, None)
    assert found["requests"][0]["tokens_in"] > 0


def test_control_characters_of_documents_reach_no_terminal(folder: Path) -> None:
    """What a document holds is shown with its escapes."""
    rows(folder, json.dumps({"id": "a", "text": "\x1b[31mred"}))
    done = CliRunner().invoke(command_line(), ["preview", "docs.jsonl", *PROMPT])
    assert "\x1b" not in done.output


def test_what_options_change_is_shown(folder: Path) -> None:
    """Rows that were cut, tokens that compression saves, and the examples by their digest, for
    people and for programs."""
    rows(
        folder,
        *(
            json.dumps({"id": f"d{number}", "text": "a" + " " * 400 + "b" * number})
            for number in range(3)
        ),
    )
    (folder / "shots.jsonl").write_text(
        '{"input": {"text": "x"}, "output": "y"}\n\n{"input": "z", "output": [1]}\n'
    )
    typed = [
        "preview",
        "docs.jsonl",
        *PROMPT,
        "--truncate",
        "text=402",
        "--compress-prompt",
        "--examples",
        "shots.jsonl",
    ]
    done = CliRunner().invoke(command_line(), typed)
    assert (done.exit_code, done.exception) == (0, None), done.output
    assert "cut by --truncate: text in 1 row" in done.output
    assert "--compress-prompt saves about 300 tokens" in done.output
    assert "2 examples in each request, sha256 " in done.output
    assert '"content": "[1]"' in done.output
    found = json.loads(CliRunner().invoke(command_line(), [*typed, "--json"]).output)
    assert (found["rows_cut"], found["tokens_saved"]) == ({"text": 1}, 300)


def test_what_requests_say_of_their_answers_is_shown(folder: Path) -> None:
    """The schema stands in each request, and the last line says how strictly it binds; or that
    nothing asks for it."""
    rows(folder, '{"id": "a", "text": "x"}')
    (folder / "answer.json").write_text(
        '{"type": "object", "properties": {"label": {"type": "string"}}}'
    )
    typed = ["preview", "docs.jsonl", *PROMPT, "--response-schema", "answer.json"]
    done = CliRunner().invoke(command_line(), typed)
    assert (done.exit_code, done.exception) == (0, None), done.output
    assert '"name": "answer"' in done.output
    assert (
        "requests without a response_format get json_schema: without strict, as $ allows other "
        "fields"
    ) in done.output
    without = CliRunner().invoke(command_line(), [*typed, "--response-format", "none"]).output
    assert (
        "requests get no response_format from the job (response_format is none); answers are checked"
        in without
    )
    loose = CliRunner().invoke(command_line(), [*typed, "--response-format", "json_object"]).output
    assert "say in the prompt which JSON is wanted" in loose
    wanting = [*typed, "--response-format", "json_object", "--prompt", "As JSON: {text}"]
    assert "say in the prompt" not in CliRunner().invoke(command_line(), wanting).output
    (line,) = json.loads(CliRunner().invoke(command_line(), [*typed, "--json"]).output)[
        "response_format"
    ]
    assert "get json_schema" in line


def test_a_budget_is_held_against_the_cost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One without prices is refused as a submit refuses it, and one that is too small is said; with
    `--over-budget refuse` that is an error, after all that leads to it."""
    rows(folder, *(json.dumps({"id": f"d{number}", "text": "x" * 4_000}) for number in range(300)))
    typed = ["preview", "docs.jsonl", *PROMPT, "--param", "max_tokens=1000", "--budget-usd", "2"]
    done = CliRunner().invoke(command_line(), typed)
    assert str(done.exception).startswith("--budget-usd: 2 USD would never be reached")
    for name in ("IN", "OUT"):
        monkeypatch.setenv(f"PENSTOCK_PROVIDERS__DEFAULT__USD_PER_MTOK_{name}", "10")
    done = CliRunner().invoke(command_line(), typed)
    assert (done.exit_code, done.exception) == (0, None), done.output
    assert "it would be paused on the way (--over-budget warn)" in done.output
    refused = CliRunner().invoke(command_line(), [*typed, "--over-budget", "refuse", "--json"])
    assert "its budget is 2 USD" in str(refused.exception)
    assert "its budget is 2 USD" in json.loads(refused.output)["refusal"]


PRICED = ["--prompt", "Say: {text}", "--model", "gpt-5-mini", "--param", "max_tokens=100"]


def test_answers_that_go_on_are_counted_as_an_earlier_job_had_them(folder: Path) -> None:
    """Without one the range from none to all is said. A job of the same name and rule says how many
    went on: the cost and the budget count with that; one with another rule says nothing."""
    prices = "".join(
        f'[providers.default.prices."{name}"]\ninput = {usd}\noutput = {usd}\n'
        for name, usd in (("m", 1.0), ("large", 10.0))
    )
    (folder / "penstock.toml").write_text(f"[providers.default]\n{prices}")
    rows(folder, *(json.dumps({"id": f"d{number}", "text": "t"}) for number in range(4)))
    rule = "score<0.5 -> model=large"
    asked = ["preview", "docs.jsonl", *PROMPT, "--param", "max_tokens=1000", "--state", "state"]

    def said(*more: str) -> dict[str, Any]:
        done = CliRunner().invoke(command_line(), [*asked, "--escalate", rule, "--json", *more])
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    unknown = said()["escalate"]
    assert (unknown["share"], unknown["cost_usd"]) == (None, None)
    assert unknown["cost_usd_all"] == pytest.approx(11 * unknown["cost_usd_none"])
    state = StateFolder.create(folder / "state")
    database = open_database(state.database_url)
    database.migrate()
    settings = ProducerSettings(database_url=state.database_url)
    with Producer(settings, database=database) as producer:
        spec = {"prompt": "{text}", "model": "m", "escalate": rule}
        job = producer.submit(folder / "docs.jsonl", spec, job_key="docs")
    keys = [ItemKey(job.job_id, 1, f"d{number}") for number in range(4)]
    results = [Result(one, 200, b"{}", None, None, None, 1, 1, 5, 1, 1, 1) for one in keys]
    savings = {keys[0]: [Saving(ESCALATED, 1)]}
    OutcomeStore(database).settle(results, [], savings=savings)
    database.close()
    known = said()
    assert known["escalate"]["share_of"] == {"job_key": "docs", "documents": 4, "went_on": 1}
    assert known["escalate"]["share"] == 0.25
    assert known["cost_usd"] == known["escalate"]["cost_usd"]
    assert known["cost_usd"] == pytest.approx(3.5 * known["escalate"]["cost_usd_none"])
    budget = str(2 * known["escalate"]["cost_usd_none"])
    assert "budget" in said("--budget-usd", budget, "--over-budget", "refuse")["refusal"]
    done = CliRunner().invoke(command_line(), [*asked, "--escalate", rule])
    assert "as in docs, where 1 of 4 documents did" in done.output
    other = CliRunner().invoke(command_line(), [*asked, "--escalate", "score<0.6 -> model=large"])
    assert "where all do; a --sample says how many do" in other.output


def test_cost_and_time_stand_beside_each_other_for_each_lane(folder: Path) -> None:
    """Known prices, declared limits: the cost of each lane, batches at half the price, and the
    limit that binds."""
    rows(folder, *(json.dumps({"id": str(number), "text": "x" * 400}) for number in range(1_000)))
    typed = ["preview", "docs.jsonl", *PRICED, "--rpm", "100"]
    shown = json.loads(CliRunner().invoke(command_line(), [*typed, "--json"]).output)
    assert (shown["documents"], shown["tokens_out"], shown["tokens_out_capped"]) == (
        1_000,
        100_000,
        True,
    )
    lanes = {lane["lane"]: lane for lane in shown["lanes"]}
    expected = (shown["tokens_in"] * 0.25 + 100_000 * 2.0) / 1e6
    assert shown["prompts_usd"] == pytest.approx(shown["tokens_in"] * 0.25 / 1e6)
    assert lanes["api"]["cost_usd"] == shown["cost_usd"] == pytest.approx(expected)
    assert lanes["batch"]["cost_usd"] == pytest.approx(expected / 2, abs=1e-6)
    assert (lanes["api"]["seconds"], lanes["api"]["bound"]) == (600, "100 requests a minute")
    assert lanes["gpu"]["cost_usd"] is None
    assert shown["prices"]["checked"]
    told = CliRunner().invoke(command_line(), typed).output
    assert "by characters, calibrated by script" in told
    assert "at $0.2500 in, $2.00 out per million tokens, as https://" in told
    assert "no call was made" in told


def test_an_unknown_model_costs_unknown(folder: Path) -> None:
    """Neither 0 nor a guess."""
    rows(folder, '{"id": "a", "text": "x"}')
    typed = ["preview", "docs.jsonl", *PROMPT, "--base-url", "http://127.0.0.1:9/v1", "--json"]
    shown = json.loads(CliRunner().invoke(command_line(), typed).output)
    assert (shown["prices"], shown["cost_usd"]) == (None, None)
    assert all(lane["cost_usd"] is None for lane in shown["lanes"])


def test_it_goes_by_its_earlier_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`penstock estimate` prints what `penstock preview` prints, and says so in one line on
    stderr; no help names it."""
    rows(folder, '{"id": "a", "text": "x"}')
    told = {}
    for name in ("preview", "estimate"):
        monkeypatch.setattr("sys.argv", ["penstock", name, "docs.jsonl", *PROMPT])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        told[name] = capsys.readouterr()
    assert told["estimate"].out == told["preview"].out
    assert told["estimate"].err == "penstock: `estimate` is `preview` now\n"
    assert "estimate" not in CliRunner().invoke(command_line(), ["--help"]).output


@pytest.mark.parametrize("command", [["run", "--out", "out"], ["submit"]])
def test_a_dry_run_prints_what_preview_prints(folder: Path, command: list[str]) -> None:
    """With the same options, and without a database, a key or a file."""
    rows(folder, '{"id": "a", "text": "x"}', '{"id": "b"}')
    typed = ["docs.jsonl", *PROMPT, "--max-bad-rows", "1"]
    (folder / "penstock.toml").write_text(
        '[providers.default]\nbase_url = "http://127.0.0.1:9/v1"\n'
    )
    before = sorted(path.name for path in folder.iterdir())
    shown = CliRunner().invoke(command_line(), ["preview", *typed])
    tried = CliRunner().invoke(command_line(), [*command, *typed, "--dry-run"])
    assert (tried.exit_code, tried.output) == (0, shown.output)
    assert sorted(path.name for path in folder.iterdir()) == before


def test_examples_that_cannot_be_read_are_named_with_their_line(folder: Path) -> None:
    """By a flag as in a job spec file; before a row is read."""
    rows(folder, '{"id": "a", "text": "x"}')
    (folder / "shots.jsonl").write_text('{"input": "a", "output": "b"}\n{"input": \n')
    done = CliRunner().invoke(
        command_line(), ["preview", "docs.jsonl", *PROMPT, "--examples", "shots.jsonl"]
    )
    assert str(done.exception).startswith("--examples shots.jsonl line 2: ")
    (folder / "night.yaml").write_text(
        "source: docs.jsonl\nmodel: m\nprompt: '{text}'\nexamples: shots.jsonl\n"
    )
    done = CliRunner().invoke(command_line(), ["preview", "night.yaml"])
    assert "night.yaml line 4, field examples: 'shots.jsonl' line 2: " in str(done.exception)
    (folder / "shots.jsonl").write_text('{"input": {"txt": 1}, "output": "b"}\n')
    done = CliRunner().invoke(command_line(), ["preview", "night.yaml"])
    assert "field examples.0.input: The prompt uses the column 'text'" in str(done.exception)


def test_images_are_shown_by_their_size_and_are_no_tokens_of_text(folder: Path) -> None:
    """A terminal gets no base64, and the estimate counts text alone."""
    (folder / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(300_000))
    rows(folder, '{"id": "a", "text": "x", "image": "a.png"}')
    done = CliRunner().invoke(
        command_line(), ["preview", "docs.jsonl", *PROMPT, "--image-field", "image", "--json"]
    )
    found = json.loads(done.output)["requests"][0]
    assert found["tokens_in"] < 100
    assert len(found["body"]["messages"][0]["content"][1]["image_url"]["url"]) > 400_000
    done = CliRunner().invoke(
        command_line(), ["preview", "docs.jsonl", *PROMPT, "--image-field", "image"]
    )
    assert (done.exit_code, done.exception) == (0, None), done.output
    assert '"url": "data:image/png;base64,iVBORw0KGgoAAAAA' in done.output
    assert len(done.output) < 2_000
