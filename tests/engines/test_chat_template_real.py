"""The operator's chat template with transformers' sandbox, and with an engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock_workers.errors import BadEngineSettings
from penstock_workers.item.lane import Request
from penstock_workers.lanes.gpu.gpu_lane import GpuLane
from penstock_workers.lanes.gpu.requests.prompts import read_template
from penstock_workers.lanes.gpu.settings import GpuSettings
from penstock_workers.settings import WorkerSettings

OWN = "{% for m in messages %}{{ m['content'] }};{% endfor %}"


def test_a_template_that_does_not_compile_stops_the_start(tmp_path: Path) -> None:
    """The error names the setting, the file and the line, before any engine is loaded."""
    file = tmp_path / "own.jinja"
    file.write_text("first\n{% for m in messages %}{{ m }")
    with pytest.raises(BadEngineSettings, match=r"gpu\.chat_template: .*own\.jinja, line 2"):
        read_template(str(file))
    with pytest.raises(BadEngineSettings, match=r"gpu\.chat_template: the text, line 1.*nosuchtag"):
        read_template("{% nosuchtag %}")


def test_one_that_compiles_is_taken(tmp_path: Path) -> None:
    """Text or file, and also one that refuses the message it is tried with; the sandbox keeps it
    from Python's insides."""
    (tmp_path / "own.jinja").write_text(OWN)
    assert read_template(str(tmp_path / "own.jinja")) == OWN
    choosy = "{{ raise_exception('a system message comes first') }}"
    assert read_template(choosy) == choosy


async def test_an_engine_reads_what_the_operators_template_makes(
    tiny_llama: Path, tmp_path: Path
) -> None:
    """The prompt that the engine gets is the operator's rendering, token for token."""
    (tmp_path / "own.jinja").write_text(OWN)
    engine = {
        "max_model_len": 256,
        "enforce_eager": True,
        "dtype": "bfloat16",
        "gpu_memory_utilization": 0.5,
    }
    gpu = GpuSettings(
        model=str(tiny_llama),
        in_process=True,
        chat_template=str(tmp_path / "own.jinja"),
        max_num_seqs=4,
        engine=engine,
    )
    lane = GpuLane(WorkerSettings(lane="gpu", gpu=gpu), give_up=pytest.fail)
    await lane.start()
    try:
        body = json.dumps(
            {"messages": [{"role": "user", "content": "import os"}], "max_tokens": 2}
        ).encode()
        prepared = await lane.prepare(Request("tag", "default", "/v1/chat/completions", body, 60.0))
        assert prepared.refused is None, prepared.refused
        from transformers import AutoTokenizer  # pyright: ignore[reportMissingImports]

        tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
        assert (
            prepared.input.token_ids == tokenizer("import os;", add_special_tokens=False).input_ids
        )
    finally:
        await lane.close()
