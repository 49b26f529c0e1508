"""The corpus that demo, benchmarks and soak runs read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CORPUS = Path(__file__).parents[3] / "examples" / "corpus.py"


def gather(out: Path, *flags: str) -> list[dict[str, str]]:
    subprocess.run([sys.executable, CORPUS, out, *flags], check=True, capture_output=True)
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    return gather(tmp_path_factory.mktemp("corpus") / "corpus.jsonl")


def test_there_are_thousands_of_documents_with_names_of_their_own(
    corpus: list[dict[str, str]],
) -> None:
    """At least 2,000 real documents, each with a unique dotted name, a text, and no private or test
    code among them."""
    ids = [record["id"] for record in corpus]
    assert len(ids) == len(set(ids)) >= 2_000
    assert all(
        record["text"].strip() and record["id"].startswith(record["module"]) for record in corpus
    )
    assert not any(part.startswith("_") for name in ids for part in name.split("."))
    assert not any("test" in record["module"].split(".") for record in corpus)
    assert {record["kind"] for record in corpus} == {"module", "class", "function", "method"}


def test_a_document_is_the_docstring_that_python_shows(corpus: list[dict[str, str]]) -> None:
    """What was parsed is what `inspect.getdoc` says of the imported thing."""
    import inspect
    import json.decoder
    import textwrap

    texts = {record["id"]: record["text"] for record in corpus}
    assert texts["json.decoder.JSONDecoder.decode"] == inspect.getdoc(
        json.decoder.JSONDecoder.decode
    )
    assert texts["textwrap"] == inspect.getdoc(textwrap)


def test_the_same_python_gives_the_same_file(corpus: list[dict[str, str]], tmp_path: Path) -> None:
    """A limited corpus is the beginning of the whole one, and no half-written file is left beside
    it."""
    assert gather(tmp_path / "some.jsonl", "--limit", "300") == corpus[:300]
    assert [path.name for path in tmp_path.iterdir()] == ["some.jsonl"]


def test_a_limit_of_nothing_is_refused(tmp_path: Path) -> None:
    """The message names the flag and the value."""
    asked = subprocess.run(
        [sys.executable, CORPUS, tmp_path / "x", "--limit", "0"], capture_output=True, text=True
    )
    assert asked.returncode == 2
    assert "--limit: 0 documents" in asked.stderr
