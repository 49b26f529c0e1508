"""What a run would ask and cost, without asking."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock_cli.main import command_line
from penstock_producer.accepting.estimates import Estimate, Measure
from penstock_producer.sources import Document

RUN = [
    "run",
    "docs.jsonl",
    "--out",
    "out",
    "--base-url",
    "http://127.0.0.1:9/v1",
    "--model",
    "m",
    "--prompt",
    "S {text}",
]


def document(**body: object) -> Document:
    return Document("a", json.dumps(body).encode(), "", 1, {})


def estimated(documents: list[Document], total: int) -> Estimate:
    return Measure.taken(document.body for document in documents).of(total)


def test_an_estimate_is_scaled_to_all_documents() -> None:
    """Tokens are those of the documents measured, times how many more there are (D14)."""
    measured = [document(max_tokens=10, text="x" * 372), document(max_tokens=30, text="x" * 372)]
    assert [len(one.body) for one in measured] == [402, 402]
    (one,) = {Measure.taken([document.body]).of(1).tokens_in for document in measured}
    assert estimated(measured, 200) == Estimate(200 * one, 4_000, capped=True)
    assert not estimated([*measured, document(text="open end")], 3).capped
    assert estimated([], 0) == Estimate(0, 0, capped=True)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    rows = [json.dumps({"id": f"d{number}", "text": f"review {number}"}) for number in range(200)]
    (tmp_path / "docs.jsonl").write_text("\n".join([*rows, '{"id": "bad"}', ""]))
    return tmp_path


def test_a_dry_run_shows_requests_counts_and_money(folder: Path) -> None:
    """The first rendered requests, the counts, bad rows by line, tokens and their price; no call,
    no file (D14)."""
    prices = ["--param", "max_tokens=20", "--usd-per-mtok-in", "1000", "--usd-per-mtok-out", "1000"]
    told = CliRunner().invoke(command_line(), [*RUN, "--dry-run", *prices])
    assert told.exit_code == 0, told
    assert "200 documents, and 1 unusable row," in told.output
    assert "docs.jsonl line 201" in told.output
    assert '"content": "S review 0"' in told.output
    assert "at most 4,000 out" in told.output
    assert "at most $4.00 out" in told.output
    assert [path.name for path in folder.iterdir()] == ["docs.jsonl"]


def test_a_dry_run_of_batches_has_their_price(folder: Path) -> None:
    """The discount of a provider's batches is in the sum and is named, unless documents may go on
    in real time."""
    (folder / "penstock.toml").write_text("[providers.default]\nbatch_discount = 0.5\n")
    prices = [
        "--param",
        "max_tokens=20",
        "--usd-per-mtok-in",
        "1000",
        "--usd-per-mtok-out",
        "1000",
        "--lane",
        "batch",
    ]
    told = CliRunner().invoke(command_line(), [*RUN, "--dry-run", *prices])
    assert told.exit_code == 0, told
    assert "at most $2.00 out" in told.output
    assert "less 50% in batches" in told.output
    told = CliRunner().invoke(command_line(), [*RUN, "--dry-run", *prices, "--lanes", "batch,api"])
    assert "at most $4.00 out" in told.output


def test_a_dry_run_without_prices_says_how_to_give_them(folder: Path) -> None:
    """Money is not guessed at (D14)."""
    assert (
        "unknown, since no price of m is known here; give --usd-per-mtok-in"
        in CliRunner().invoke(command_line(), [*RUN, "--dry-run"]).output
    )


def test_a_budget_without_prices_is_refused_before_anything_is_made(folder: Path) -> None:
    """A dry run says what the run would say of its budget (D1, D14)."""
    told = CliRunner().invoke(command_line(), [*RUN, "--dry-run", "--budget-usd", "3"])
    assert str(told.exception).startswith("--budget-usd: 3 USD would never be reached")


def test_a_wrong_file_name_is_told_before_the_key_and_the_provider(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who mistypes the file hears of it first, not of a key, a model or a server that it would not
    have needed (D25)."""
    monkeypatch.delenv("UNSET_KEY", raising=False)
    typed = ["run", "dosc.jsonl", *RUN[2:], "--api-key-env", "UNSET_KEY"]
    told = CliRunner().invoke(command_line(), typed)
    assert "dosc.jsonl" in str(told.exception), told.exception
    assert "UNSET_KEY" not in str(told.exception)
    assert [path.name for path in folder.iterdir()] == ["docs.jsonl"]


def test_a_dry_run_refuses_what_a_run_refuses(folder: Path) -> None:
    """An unusable source is the same error with the same exit status (D14)."""
    (folder / "docs.jsonl").write_text('{"id": "a"\n')
    error = CliRunner().invoke(command_line(), [*RUN, "--dry-run"]).exception
    assert "invalid_json" in str(error)


def test_a_budget_below_the_estimate_is_told(folder: Path) -> None:
    """Before anything is spent; a dry run says what it would come to, and what --over-budget would
    do."""
    prices = ["--param", "max_tokens=20", "--usd-per-mtok-in", "1000", "--usd-per-mtok-out", "1000"]
    told = CliRunner().invoke(command_line(), [*RUN, "--dry-run", *prices, "--budget-usd", "3"])
    assert told.exit_code == 0, told
    assert (
        "and its budget is 3 USD: it would be paused on the way (--over-budget warn)" in told.output
    )
    enough = CliRunner().invoke(
        command_line(), [*RUN, "--dry-run", *prices, "--budget-usd", "3000"]
    )
    assert "budget is" not in enough.output


def test_estimates_assume_what_the_rate_limiter_assumes() -> None:
    """The producer imports no rate limiter, and their first guesses are the same."""
    from penstock_producer.accepting import estimates
    from penstock_ratelimit import estimates as guesses

    assert estimates.CHARS_PER_TOKEN == guesses.CHARS_PER_TOKEN
    assert estimates.DEFAULT_OUTPUT_TOKENS == guesses.DEFAULT_OUTPUT_TOKENS


def test_one_machine_refuses_a_fallback_to_a_model_that_it_does_not_host(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its documents would wait for ever: what to do instead is said.

    An adapter of the same worker is asked."""
    monkeypatch.setenv("PENSTOCK_GPU__LORA", '{"legal": "/adapters/legal"}')
    hosted = [
        "run",
        "docs.jsonl",
        "--out",
        "out",
        "--lane",
        "gpu",
        "--model",
        "m",
        "--prompt",
        "S {text}",
        "--dry-run",
    ]
    refused = CliRunner().invoke(
        command_line(), [*hosted, "--fallback", "legal", "--fallback", "large"]
    )
    assert str(refused.exception).startswith(
        "--fallback: `penstock run` hosts one model, and it is not large"
    )
    assert "penstock submit --from-job JOB" in str(refused.exception)
    told = CliRunner().invoke(command_line(), [*hosted, "--fallback", "legal"])
    assert told.exit_code == 0, told
