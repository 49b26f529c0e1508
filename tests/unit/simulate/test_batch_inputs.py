"""How the simulated provider reads the input of a batch, and what each request gets."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from penstock_simulate.answers.faults import Fates
from penstock_simulate.batches.folder import LOCK, PREFIX, Folder, RequestAccount
from penstock_simulate.batches.intake import MAX_PROBLEMS, Kept, read_input
from penstock_simulate.batches.openai_lines import MAX_REQUESTS, OpenAIReader
from penstock_simulate.batches.timeline import Fate
from penstock_simulate.choices import BadSetting
from penstock_simulate.config import SimulatorConfig

CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"


def written(path: Path, number: int, url: str = CHAT, **body: Any) -> Path:
    body = {"model": "m", "messages": [{"role": "user", "content": "Read it."}]} | body
    lines = [
        {"custom_id": f"d{at}", "method": "POST", "url": url, "body": body} for at in range(number)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_file_beyond_the_limit_is_not_read_to_its_end(tmp_path: Path) -> None:
    """One line more than a batch may have is enough to know."""
    source = tmp_path / "input"
    source.write_bytes(b"{}\n" * (MAX_REQUESTS + 5))
    reader = OpenAIReader(CHAT)
    assert sum(1 for _ in reader.spans(source)) == MAX_REQUESTS + 1
    reader.whole(MAX_REQUESTS)
    assert reader.problems == []
    reader.whole(MAX_REQUESTS + 1)
    assert [problem.code for problem in reader.problems] == ["too_many_tasks"]


def test_the_texts_of_embeddings_count_together(tmp_path: Path) -> None:
    """A batch may have as many of them as requests, however they are spread."""
    texts = ["a"] * (MAX_REQUESTS // 25)
    for number, codes in ((25, []), (26, ["too_many_tasks"])):
        found = read_input(
            written(tmp_path / "input", number, EMBEDDINGS, input=texts[:2048], dimensions=1),
            OpenAIReader(EMBEDDINGS),
            Fates(SimulatorConfig()),
        )
        assert [problem.code for problem in found.problems] == codes


def test_a_wrong_file_has_its_problems_listed_up_to_a_limit(tmp_path: Path) -> None:
    """What is wrong on every line is said of the first hundred."""
    source = tmp_path / "input"
    source.write_bytes(b"no json\n" * 1000)
    problems = read_input(source, OpenAIReader(CHAT), Fates(SimulatorConfig())).problems
    assert [problem.line for problem in problems] == list(range(1, MAX_PROBLEMS + 1))


def test_each_request_lies_where_the_index_says(tmp_path: Path) -> None:
    """Read back in the order of the answers, every line is there once with what it gets, and good
    ones are counted."""
    source = written(tmp_path / "input", 500)
    account = RequestAccount()
    found = read_input(
        source, OpenAIReader(CHAT), Fates(SimulatorConfig(error_rate=0.2, poison_rate=0.1))
    )
    index = found.index(account, Kept(tmp_path / "index", "order"))
    read = [(fate, json.loads(raw)["custom_id"]) for fate, raw in index.read(source)]
    assert sorted(name for _, name in read) == sorted(f"d{at}" for at in range(500))
    assert [name for _, name in read] != [f"d{at}" for at in range(500)]
    good = [fate is Fate.GOOD for fate, _ in read]
    assert 300 < sum(good) < 420
    assert [index.good(done) for done in (0, 250, 500)] == [0, sum(good[:250]), sum(good)]
    assert account.summary()["submitted"] == 500
    account.close()


def test_files_of_a_killed_simulator_are_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is in use stays; one whose simulator has gone does not."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    one, other = Folder(), Folder()
    kept = one.empty()
    left = tmp_path / f"{PREFIX}left"
    left.mkdir()
    (left / LOCK).touch()
    other.empty()
    assert (kept.exists(), left.exists()) == (True, False)
    one.close()
    other.close()
    assert list(tmp_path.iterdir()) == []


def test_a_batch_stalls_or_expires() -> None:
    """Both shares are of all batches, so together they are one at most."""
    with pytest.raises(
        BadSetting, match=r"--batch-stalled-share 0.6 \+ --batch-expired-share 0.6 add up to 1.2"
    ):
        SimulatorConfig(batch_stalled_share=0.6, batch_expired_share=0.6)
    with pytest.raises(
        BadSetting, match="--batch-window-s: 0 cannot be used; give a number above 0"
    ):
        SimulatorConfig(batch_window_s=0)
