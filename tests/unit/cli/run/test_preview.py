"""`penstock preview`: the first requests, their tokens and problems, without spending."""

from __future__ import annotations

import json
import re
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
    """Line, id, tokens and body of each, and what they come to together; no file is written and no
    key is asked for."""
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
    assert "the 5 rows: 5 requests, 0 problems" in done.output
    assert "at most 35 out" in done.output
    assert [path.name for path in folder.iterdir()] == ["docs.jsonl"]


def test_problems_are_named_with_line_and_fix(folder: Path) -> None:
    """Bad rows and repeated ids of the first rows are all found, and the status is 2."""
    rows(
        folder,
        '{"id": "a", "text": "x"}',
        '{"id": "a", "text": "y"}',
        '{"id": "b", "txt": "z"}',
        "{",
    )
    done = CliRunner().invoke(command_line(), ["preview", "docs.jsonl", *PROMPT])
    assert done.exit_code == 2
    assert "line 2: duplicate_custom_id" in done.output
    assert "line 3: missing_field: field text:" in done.output
    assert "did you mean 'txt'?" in done.output
    assert "line 4: invalid_json_line" in done.output
    assert "the 4 rows: 1 request, 3 problems" in done.output


def test_only_the_first_rows_are_read(folder: Path) -> None:
    """A large source costs what its first rows cost; problems beyond a screenful are counted."""
    rows(
        folder,
        *(f'{{"id": "{number}"}}' for number in range(LOOKED_AT)),
        '{"id": "last", "text": "x"}',
    )
    done = CliRunner().invoke(command_line(), ["preview", "docs.jsonl", *PROMPT])
    assert done.exit_code == 2
    assert f"… and {LOOKED_AT - PROBLEMS_SHOWN} more problems" in done.output
    assert f"the first {LOOKED_AT} rows: 0 requests, {LOOKED_AT} problems" in done.output


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
    assert (found["problems"], found["rows"], found["more"]) == ([], 1, False)
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


def test_a_budget_is_shown_in_requests(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the prices of the settings; nothing is said where they are not known."""
    rows(folder, *(json.dumps({"id": f"d{number}", "text": "x" * 4_000}) for number in range(3)))
    typed = ["preview", "docs.jsonl", *PROMPT, "--param", "max_tokens=1000", "--budget-usd", "2"]
    assert "pays for" not in CliRunner().invoke(command_line(), typed).output
    for name in ("IN", "OUT"):
        monkeypatch.setenv(f"PENSTOCK_PROVIDERS__DEFAULT__USD_PER_MTOK_{name}", "10")
    done = CliRunner().invoke(command_line(), typed)
    assert (done.exit_code, done.exception) == (0, None), done.output
    assert re.search(
        r"they cost about \$0\.03\d*; the budget of \$2\.00 pays for about 19\d requests like them",
        done.output,
    )


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
