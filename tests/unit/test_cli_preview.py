"""`penstock preview`: the first requests, their tokens and problems, without spending."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock_cli.main import command_line
from penstock_cli.run.preview import LOOKED_AT, PROBLEMS_SHOWN

PROMPT = ["--prompt", "Summarise: {text}", "--model", "m"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return tmp_path


def rows(folder: Path, *lines: str) -> None:
    (folder / "docs.jsonl").write_text("".join(line + "\n" for line in lines))


def test_requests_are_shown_as_they_would_be_sent(folder: Path) -> None:
    """Line, id, tokens and body of each, and what they come to together; no file is written and no key is asked for."""
    rows(folder, *(json.dumps({"id": f"d{number}", "text": "é" * 400}) for number in range(5)))
    done = CliRunner().invoke(command_line(), ["preview", "docs.jsonl", *PROMPT, "--param", "max_tokens=7", "-n", "2"])
    assert (done.exit_code, done.exception) == (0, None), done.output
    assert "line 1 · d0 · about " in done.output
    assert "at most 7 out · /v1/chat/completions" in done.output
    assert '"content": "Summarise: ' + "é" * 400 in done.output
    assert "d1" in done.output
    assert "d2" not in done.output
    assert "the 5 rows: 5 requests, 0 problems" in done.output
    assert "at most 35 out" in done.output
    assert [path.name for path in folder.iterdir()] == ["docs.jsonl"]


def test_problems_are_named_with_line_and_fix(folder: Path) -> None:
    """Bad rows and repeated ids of the first rows are all found, and the status is 2."""
    rows(folder, '{"id": "a", "text": "x"}', '{"id": "a", "text": "y"}', '{"id": "b", "txt": "z"}', "{")
    done = CliRunner().invoke(command_line(), ["preview", "docs.jsonl", *PROMPT])
    assert done.exit_code == 2
    assert "line 2: duplicate_custom_id" in done.output
    assert "line 3: missing_field: field text:" in done.output
    assert "did you mean 'txt'?" in done.output
    assert "line 4: invalid_json_line" in done.output
    assert "the 4 rows: 1 request, 3 problems" in done.output


def test_only_the_first_rows_are_read(folder: Path) -> None:
    """A large source costs what its first rows cost; problems beyond a screenful are counted."""
    rows(folder, *(f'{{"id": "{number}"}}' for number in range(LOOKED_AT)), '{"id": "last", "text": "x"}')
    done = CliRunner().invoke(command_line(), ["preview", "docs.jsonl", *PROMPT])
    assert done.exit_code == 2
    assert f"… and {LOOKED_AT - PROBLEMS_SHOWN} more problems" in done.output
    assert f"the first {LOOKED_AT} rows: 0 requests, {LOOKED_AT} problems" in done.output


def test_a_job_spec_file_and_json(folder: Path) -> None:
    """The same of a file with a Jinja prompt, for programs."""
    rows(folder, '{"id": "a", "tags": ["x", "y"]}')
    (folder / "night.yaml").write_text(
        "source: docs.jsonl\nmodel: m\ntemplate: jinja\nprompt: '{% for t in tags %}{{ t }};{% endfor %}'\n"
    )
    done = CliRunner().invoke(command_line(), ["preview", "night.yaml", "--json"])
    assert (done.exit_code, done.exception) == (0, None), done.output
    found = json.loads(done.output)
    assert found["requests"][0]["body"] == {"model": "m", "messages": [{"role": "user", "content": "x;y;"}]}
    assert (found["problems"], found["rows"], found["more"]) == ([], 1, False)
    assert found["requests"][0]["tokens_in"] > 0


def test_control_characters_of_documents_reach_no_terminal(folder: Path) -> None:
    """What a document holds is shown with its escapes."""
    rows(folder, json.dumps({"id": "a", "text": "\x1b[31mred"}))
    done = CliRunner().invoke(command_line(), ["preview", "docs.jsonl", *PROMPT])
    assert "\x1b" not in done.output
