"""`penstock estimate`: what a job would cost and take, before anything is spent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock_cli.main import command_line

PROMPT = ["--prompt", "Say: {text}", "--model", "gpt-5-mini", "--param", "max_tokens=100"]


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    path = tmp_path / "docs.jsonl"
    path.write_text(
        "".join(
            json.dumps({"id": str(number), "text": "x" * 400}) + "\n" for number in range(1_000)
        )
    )
    return path


def test_an_estimate_needs_no_key_and_shows_batches_at_half_the_price(source: Path) -> None:
    """Known prices, declared limits: the cost of each lane, and the limit that binds."""
    typed = ["estimate", str(source), *PROMPT, "--rpm", "100", "--json"]
    shown = json.loads(CliRunner().invoke(command_line(), typed).output)
    assert (shown["documents"], shown["tokens_out"], shown["tokens_out_capped"]) == (
        1_000,
        100_000,
        True,
    )
    lanes = {lane["lane"]: lane for lane in shown["lanes"]}
    expected = (shown["tokens_in"] * 0.25 + 100_000 * 2.0) / 1e6
    assert lanes["api"]["cost_usd"] == pytest.approx(expected)
    assert lanes["batch"]["cost_usd"] == pytest.approx(expected / 2, abs=1e-6)
    assert (lanes["api"]["seconds"], lanes["api"]["bound"]) == (600, "100 requests a minute")
    assert lanes["gpu"]["cost_usd"] is None
    assert shown["prices"]["checked"]


def test_an_estimate_is_a_table_for_people(source: Path) -> None:
    """With where the price comes from, and what tokens are measured by."""
    told = CliRunner().invoke(command_line(), ["estimate", str(source), *PROMPT]).output
    assert "holds 1,000 documents" in told
    assert "by characters, calibrated by script" in told
    assert "prices: $0.2500 in, $2.00 out per million tokens, as https://" in told
    assert "batch" in told
    assert "no call was made" in told


def test_an_unknown_model_costs_unknown(source: Path) -> None:
    """Neither 0 nor a guess, and unusable rows are counted."""
    source.write_text(source.read_text() + "not json\n")
    typed = [
        "estimate",
        str(source),
        "--prompt",
        "{text}",
        "--model",
        "mine",
        "--base-url",
        "http://127.0.0.1:9/v1",
        "--json",
    ]
    shown = json.loads(CliRunner().invoke(command_line(), typed).output)
    assert (shown["documents"], shown["unusable"], shown["prices"]) == (1_000, 1, None)
    assert all(lane["cost_usd"] is None for lane in shown["lanes"])
