"""What tokens are counted by: a tokenizer that is at hand, else characters by script; and never
anything that is fetched."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock_cli.main import command_line
from penstock_producer.accepting import estimates
from penstock_producer.accepting.estimates import (
    CALIBRATED,
    COUNTED_CHARS,
    MESSAGE_TOKENS,
    Measure,
    TokenMeter,
    by_script,
    meter_of,
)

# Each with what o200k_base makes of it, counted on 2026-11-22.
KNOWN = {
    "english": (
        "The quota of a provider is shared by all workers of the fleet, and each call waits for "
        "its turn.",
        22,
    ),
    "code": (
        "for number in range(documents):\n    yield number, stages[number % len(stages)]\n",
        18,
    ),
    "json": (
        '{"id": 17, "status": "completed", "counts": {"total": 1200, "failed": 3}, "tags": '
        '["night", "batch"]}',
        38,
    ),
    "german": (
        "Das Kontingent eines Anbieters teilen sich alle Prozesse, und jeder Aufruf wartet, bis er "
        "an der Reihe ist.",
        26,
    ),
    "russian": (
        "Все процессы делят квоту поставщика, и каждый запрос ждёт своей очереди.",  # noqa: RUF001
        18,
    ),
    "chinese": (
        "所有进程共享供应商的配额。失败的文档会再次尝试，无法成功的文档会连同原因一起保存下来。",  # noqa: RUF001
        32,
    ),
    "japanese": (
        "すべてのプロセスがプロバイダーの割り当てを共有し、失敗した文書はもう一度試されます。",
        34,
    ),
    "korean": (
        "모든 프로세스가 공급자의 할당량을 공유하고 각 요청은 자신의 차례를 기다립니다.",
        24,
    ),
}


def words(text: str) -> float:
    """A tokenizer whose tokens are words."""
    return float(len(text.split()))


def test_a_request_has_the_tokens_of_its_texts() -> None:
    """Messages with parts, instructions and tools; roles, marks and images are no text."""
    meter = TokenMeter(words, "words")
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 5_000}}
    parts = [{"type": "text", "text": "one two three"}, image]
    assert (
        meter.prompt({"model": "a b c d", "messages": [{"role": "user", "content": parts}]})
        == 3 + 2 * MESSAGE_TOKENS
    )
    assert meter.prompt({"instructions": "be brief", "input": "now go"}) == 4
    assert meter.prompt({"input": ["a b", "c"]}) == 3
    assert meter.prompt({"prompt": [1, 2, 3, 4]}) == 4
    assert meter.prompt({"contents": [{"role": "user", "parts": [{"text": "a b c"}]}]}) == 3
    assert meter.prompt({"query": "a b", "documents": ["c", "d e"]}) == 5
    assert meter.prompt({"unknown": "a b"}) == 2
    assert meter.prompt([1]) == 0


def test_a_large_sample_is_counted_in_part() -> None:
    """Once a million characters were counted, the others follow at their ratio."""
    counted = list[int]()

    def encoder(text: str) -> float:
        counted.append(len(text))
        return len(text) / 5

    meter = TokenMeter(encoder, "fifths")
    assert sum(meter.text("x" * 100_000) for _ in range(50)) == pytest.approx(1_000_000)
    assert COUNTED_CHARS <= sum(counted) < COUNTED_CHARS + 100_000
    assert max(counted) <= estimates.PIECE_CHARS, (
        "some tokenizers take quadratic time on one long word"
    )


@pytest.mark.parametrize(("text", "tokens"), KNOWN.values(), ids=KNOWN)
def test_characters_are_calibrated_by_script(text: str, tokens: int) -> None:
    """Within a quarter of what a real tokenizer makes of some sentences."""
    assert by_script(text) == pytest.approx(tokens, rel=0.25)


def test_tiktoken_is_asked_only_where_its_file_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would fetch a file that is missing or spoilt: then characters count, and it is said."""
    asked = list[str]()
    module = types.ModuleType("tiktoken")
    encoding = types.SimpleNamespace(encode_ordinary=str.split)

    def get_encoding(name: str) -> types.SimpleNamespace:
        asked.append(name)
        return encoding

    names = {"gpt-x": "o200k_base"}
    module.__dict__.update(encoding_name_for_model=names.__getitem__, get_encoding=get_encoding)
    monkeypatch.setitem(sys.modules, "tiktoken", module)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    estimates._tiktoken.cache_clear()
    assert meter_of("gpt-x").by == CALIBRATED
    file = tmp_path / "fb374d419588a4632f3f557e76b4b70aebbca790"
    file.write_bytes(b"spoilt")
    estimates._tiktoken.cache_clear()
    assert meter_of("gpt-x").by == CALIBRATED
    assert asked == []
    digest = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # of no byte
    monkeypatch.setitem(estimates._TIKTOKEN_FILES, "o200k_base", digest)
    file.write_bytes(b"")
    estimates._tiktoken.cache_clear()
    meter = meter_of("gpt-x")
    assert (meter.by, meter.text("a b c"), asked) == ("tiktoken's o200k_base", 3, ["o200k_base"])
    assert meter_of("another").by == CALIBRATED
    estimates._tiktoken.cache_clear()


def test_prompts_are_scaled_by_the_bytes_of_all() -> None:
    """The first documents of a sorted source are the shortest; with an image in one of them, bytes
    say nothing."""
    short = json.dumps({"messages": [{"role": "user", "content": "word " * 20}]}).encode()
    measure = Measure.taken([short] * 10)
    assert measure.of(100, size=len(short) * 500).tokens_in == pytest.approx(
        measure.of(500).tokens_in, rel=0.01
    )
    image = {"role": "user", "content": "data:image/png;base64," + "A" * 5_000}
    pictures = Measure.taken([json.dumps({"messages": [image]}).encode()])
    assert pictures.of(100, size=10**9).tokens_in == pictures.of(100).tokens_in


def test_a_tokenizer_may_be_named_for_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts although nothing is cut by tokens; one that is not there is refused, and a run
    would refuse it as before."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs.jsonl").write_text('{"id": 1, "text": "a b c"}\n')
    typed = ["docs.jsonl", "--prompt", "{text}", "--model", "m", "--tokenizer", "nothing.json"]
    for command in ("preview", "plan"):
        done = CliRunner().invoke(command_line(), [command, *typed])
        assert "nothing.json cannot be read" in str(done.exception), command
    done = CliRunner().invoke(command_line(), ["run", *typed, "--out", "out"])
    assert "there is nothing that it would count" in str(done.exception) or "cannot be read" in str(
        done.exception
    )
