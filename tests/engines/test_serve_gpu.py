"""One command with real engines: `penstock serve --lane gpu` and the client that people have, and
`penstock run --gpus`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from doors import asked
from engines.gpu_worker import START_S, WORK_S
from machine import Machine, eventually
from servers import free_port

LINES = 40
# tries of a client that comes before the model is up: a door says when to come back, 5 s each time
EARLY = 100
END_S = 120.0
ENDED = ("completed", "failed", "expired", "cancelled")
NVIDIA_SMI = """#!/bin/sh
echo 'GPU 0: Toy (UUID: GPU-aaaa1111-0000-0000-0000-000000000000)'
echo 'GPU 1: Toy (UUID: GPU-bbbb2222-0000-0000-0000-000000000000)'
"""
SAY: Any = [{"role": "user", "content": "Say something."}]


def test_a_machine_serves_a_model_of_its_own(tiny_llama: Path, tmp_path: Path) -> None:
    """Calls wait while it loads, its name is listed, calls and a batch are answered, and Ctrl-C
    leaves no engine behind. A batch that mixes the model and an adapter has the answers of both
    alone."""
    from engines.tiny_model import make_adapter

    machine, port = Machine(tmp_path), free_port()
    legal = make_adapter(tmp_path / "legal")
    (tmp_path / "penstock.toml").write_text(
        f'gpu.lora.legal = "{legal}"\ngateway.batches.models = "any"\n'
    )
    url = f"http://127.0.0.1:{port}"
    process = machine.start(
        "serve",
        "--lane",
        "gpu",
        "--model",
        str(tiny_llama),
        "--port",
        str(port),
        "--state",
        "state",
        "--no-progress",
    )
    told = ""
    try:
        eventually(lambda: process.poll() is not None or _healthy(url), START_S)
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=EARLY)
        answer = client.chat.completions.create(model=tiny_llama.name, messages=SAY, max_tokens=8)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 8
        assert tiny_llama.name in [one.id for one in client.models.list()]
        body = {"model": tiny_llama.name, "prompts": ["one", "two", "three"], "max_tokens": 4}
        together: Any = asked(
            f"{url}/v1/batch/sync", json.dumps(body).encode(), content_type="application/json"
        ).content
        assert (together["counts"], together["usage"]["completion_tokens"]) == (
            {"total": 3, "succeeded": 3, "failed": 0},
            12,
        )
        models = (tiny_llama.name, "legal")
        alone = {model: _answer(client, model) for model in models}
        assert alone["legal"] != alone[tiny_llama.name]
        assert _batch(client, models) == {
            f"line-{number}": alone[models[number % 2]] for number in range(LINES)
        }
    finally:
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate(timeout=END_S)
    assert process.returncode == 0, told
    assert f"a worker loads the model {tiny_llama.name}" in told
    # the guard beside its engine looks once more
    eventually(lambda: not machine.leftovers(), 30)


def _healthy(url: str) -> bool:
    try:
        return asked(f"{url}/health").status == 200
    except OSError:
        return False


def _answer(client: openai.OpenAI, model: str) -> str | None:
    answer = client.chat.completions.create(model=model, messages=SAY, max_tokens=6, temperature=0)
    return answer.choices[0].message.content


def _batch(client: openai.OpenAI, models: tuple[str, ...]) -> dict[str, str]:
    """Ask each model in turn, and return the text of each line's answer."""
    lines = [
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": models[number % len(models)],
                "messages": SAY,
                "max_tokens": 6,
                "temperature": 0,
            },
        }
        for number in range(LINES)
    ]
    file = client.files.create(
        file=("in.jsonl", "".join(f"{json.dumps(line)}\n" for line in lines).encode()),
        purpose="batch",
    )
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    eventually(lambda: client.batches.retrieve(batch.id).status in ENDED, WORK_S)
    ended = client.batches.retrieve(batch.id)
    output = ended.output_file_id
    assert output is not None, ended
    answers = map(json.loads, client.files.content(output).text.splitlines())
    return {
        one["custom_id"]: one["response"]["body"]["choices"][0]["message"]["content"]
        for one in answers
    }


def test_a_run_gives_each_engine_gpus_of_its_own(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`penstock run --gpus all` on a machine of two cards, listed by an nvidia-smi of our own: two
    workers, each with its card alone, and all documents answered by them."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(NVIDIA_SMI)
    (tools / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine = Machine(tmp_path)
    machine.source(LINES)
    asked = ["--prompt", "{text}", "--param", "max_tokens=8"]
    process = machine.start(
        *["run", "reviews.jsonl", "--out", "out", "--lane", "gpu", "--model", str(tiny_llama)],
        *["--gpus", "all", "--no-progress", *asked],
    )
    seen: set[tuple[str, str]] = set()

    def look() -> bool:
        for pid in machine.processes():
            with contextlib.suppress(psutil.Error):  # it has ended meanwhile
                given = psutil.Process(pid).environ()
                if "PENSTOCK_GPU__CARDS" in given:
                    seen.add((given["PENSTOCK_GPU__CARDS"], given["CUDA_VISIBLE_DEVICES"]))
        return process.poll() is not None

    eventually(look, START_S)
    assert process.returncode == 0, process.communicate()[0]
    assert seen == {("0", "0"), ("1", "1")}, "each engine's process"
    assert len(machine.lines("output.jsonl")) == LINES
