"""Limits in tokens by a real tokenizer, as a model's folder has it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock_producer import JobSpec
from penstock_producer.prompts.tokens import counter_of
from penstock_producer.rows import Document
from penstock_producer.sources import open_source

TEXT = "Öl läuft aus; das Ventil 🜁 ist zu. " * 20


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a byte-level BPE tokenizer, of the kind that OpenAI's, Llama's and Qwen's
    models have."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # pyright: ignore[reportMissingImports]

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [TEXT], trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet)
    )
    folder = tmp_path / "model"
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def tokens_of(model: Path, text: str) -> int:
    from tokenizers import Tokenizer  # pyright: ignore[reportMissingImports]

    return len(Tokenizer.from_file(str(model / "tokenizer.json")).encode(text).ids)


@pytest.mark.parametrize("keep", ["head", "tail", "ends"])
def test_a_column_is_cut_by_the_models_own_tokens(model: Path, tmp_path: Path, keep: str) -> None:
    """As many tokens as asked for and no more, whole characters only, and a text that fits is sent
    as it is."""
    spec = JobSpec(
        model="m", prompt="{text}", truncate={"text": f"50t:{keep}"}, tokenizer=str(model)
    )
    path = tmp_path / "in.jsonl"
    path.write_text(
        json.dumps({"id": "a", "text": TEXT}) + "\n" + json.dumps({"id": "b", "text": "Öl"}) + "\n"
    )
    long, short = open_source(path, spec.with_pinned_tokenizer()).documents({})
    assert isinstance(long, Document)
    assert isinstance(short, Document)
    kept = json.loads(long.body)["messages"][0]["content"]
    assert 40 <= tokens_of(model, kept) <= 50 + (keep == "ends") * 4
    assert TEXT.startswith(kept) if keep == "head" else TEXT.endswith(kept[-10:])
    assert json.loads(short.body)["messages"][0]["content"] == "Öl"


def test_every_limit_ends_between_characters(model: Path) -> None:
    """Also where a character is several tokens."""
    tokens = counter_of(str(model))
    for limit in range(1, 60):
        assert tokens_of(model, TEXT[: tokens.head(TEXT, limit)]) <= limit
        assert tokens_of(model, TEXT[tokens.tail(TEXT, limit) :]) <= limit
