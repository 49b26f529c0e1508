"""Folders as `datasets.save_to_disk` of Hugging Face writes them: Arrow streams in the order that
`state.json` says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ipc

from penstock_producer.accepting.survey import survey
from penstock_producer.errors import SourceError
from penstock_producer.job.spec import JobSpec
from penstock_producer.sources import Document, open_source

SPEC = JobSpec(prompt="{text}", model="m")


def save(folder: Path, shards: int, rows: int = 25, **state: Any) -> Path:
    """As `Dataset.save_to_disk(num_shards=…)` does it: batches of ten rows here, a thousand
    there."""
    folder.mkdir(parents=True)
    names = [f"data-{number:05}-of-{shards:05}.arrow" for number in range(shards)]
    for number, name in enumerate(names):
        first = number * rows
        ids = list(range(first, first + rows))
        table = pa.table({"id": ids, "text": [f"t{row}" for row in ids], "label": [1] * rows})
        table = table.replace_schema_metadata(
            {"huggingface": json.dumps({"info": {"features": {}}})}
        )
        with ipc.new_stream(str(folder / name), table.schema) as stream:
            stream.write_table(table, max_chunksize=10)
    (folder / "dataset_info.json").write_text(
        json.dumps({"features": {"text": {"dtype": "string", "_type": "Value"}}})
    )
    given = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": "f",
        "_split": None,
    }
    (folder / "state.json").write_text(json.dumps(given | state))
    return folder


def test_a_saved_dataset_is_one_source(tmp_path: Path) -> None:
    """Its files are read in its own order, by cursor and position as any; what lies beside them is
    left out."""
    folder = save(tmp_path / "ds", 3)
    (folder / "cache-0123.arrow").write_bytes(b"x")
    names = json.loads((folder / "state.json").read_text())
    names["_data_files"].reverse()
    (folder / "state.json").write_text(json.dumps(names))
    pin = json.loads(json.dumps(survey(open_source(f"{folder}/", SPEC), SPEC).pin))
    source = open_source(pin, SPEC)
    rows = list(source.documents({}))
    assert [row.doc_id for row in rows] == [
        str(n) for first in (50, 25, 0) for n in range(first, first + 25)
    ]
    for index in (0, 24, 25, 60, 74):
        row = rows[index]
        assert isinstance(row, Document)
        assert list(source.documents(row.cursor)) == rows[index + 1 :]
        assert source.fetch(row.position).body == row.body


def test_datasets_that_cannot_be_read_say_what_to_do(tmp_path: Path) -> None:
    """Several splits, a selection by numbers, a missing file, and a state that is none are one
    error each."""
    (tmp_path / "all").mkdir()
    save(tmp_path / "all" / "train", 1)
    (tmp_path / "all" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    save(tmp_path / "chosen", 1, _indices_data_files=[{"filename": "indices.arrow"}])
    (save(tmp_path / "short", 2) / "data-00001-of-00002.arrow").unlink()
    (save(tmp_path / "none", 1) / "state.json").write_text("[]")
    (save(tmp_path / "odd", 1) / "state.json").write_text("{")
    (save(tmp_path / "strange", 1) / "state.json").write_text(
        '{"_data_files": [{"filename": "../x"}, 3]}'
    )
    for name, words in {
        "all": rf"several_splits.*{tmp_path}/all/train/ or {tmp_path}/all/test/",
        "chosen": "flatten_indices",
        "short": "'data-00001-of-00002.arrow'",
        "none": "not a JSON object",
        "odd": "not JSON",
        "strange": r"'\.\./x', and the folder has no such file",
    }.items():
        with pytest.raises(SourceError, match=words):
            open_source(f"{tmp_path}/{name}/", SPEC)
    assert survey(open_source(f"{tmp_path}/all/train/", SPEC), SPEC).total == 25
