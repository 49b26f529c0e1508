"""What a job makes of its provider's prompt cache, and what it is refused for."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock_producer import JobSpec, Producer
from penstock_producer.accepting.acceptance import check_acceptable
from penstock_producer.accepting.prompt_caching import (
    CacheUse,
    cache_use,
    check_open,
    check_prompt_cache,
)
from penstock_producer.accepting.sampling import preview
from penstock_producer.accepting.survey import survey
from penstock_producer.errors import SpecError
from penstock_producer.job.provider_facts import ProviderFacts
from penstock_producer.settings import ProducerSettings
from penstock_producer.sources import open_source

CLAUDE = "claude-sonnet-4-5"
PRICES = {"input": 3.0, "cached_input": 0.3, "cache_write": 3.75, "output": 15.0}


def facts(kind: str = "anthropic", **prices: Mapping[str, float]) -> ProviderFacts:
    named = {name.replace("_", "-"): one for name, one in prices.items()} or {CLAUDE: PRICES}
    return ProviderFacts.model_validate({"kind": kind, "prices": named})


ANTHROPIC = facts()
SYSTEM = "Say what the text is about, in one word of this list. " * 100  # 1,350 tokens


def spec_of(**given: Any) -> JobSpec:
    usual = {
        "endpoint": "/v1/messages",
        "model": CLAUDE,
        "prompt": "{text}",
        "params": {"max_tokens": 10},
        "system": SYSTEM,
        "prompt_cache": "on",
    }
    return JobSpec.from_json({**usual, **given})


def use_of(
    folder: Path, spec: JobSpec, provider: ProviderFacts = ANTHROPIC, documents: int = 100
) -> CacheUse | None:
    path = folder / "documents.jsonl"
    path.write_text("".join(f'{{"id":{at},"text":"text {at}"}}\n' for at in range(documents)))
    return cache_use(spec, survey(open_source(str(path), spec, ProducerSettings()), spec), provider)


def test_a_shared_system_text_is_written_once_and_read_by_all_others(tmp_path: Path) -> None:
    """What that saves is said in words, and kept with the job for its workers."""
    use = use_of(tmp_path, spec_of())
    assert use is not None
    assert (len(use.groups), use.documents) == (1, 100)
    assert use.read == pytest.approx(99 * use.written, abs=50)
    # a write of 1.25 and 99 reads of 0.1, of 100 prompts; answers cost what they cost
    prompts = 100 * use.written * 3.0 / 1e6
    assert use.usual_usd - use.least_usd == pytest.approx(prompts * (1 - 0.1115), rel=0.01)
    assert use.most_usd == use.least_usd  # a marked beginning is read for sure
    assert use.kept()["prefixes"]["model"] == CLAUDE


def test_an_automatic_cache_may_save_all_or_nothing(tmp_path: Path) -> None:
    """OpenAI promises no hit: the estimate is a range."""
    provider = facts("openai", gpt_5_mini={"input": 0.25, "cached_input": 0.025})
    spec = spec_of(endpoint="/v1/chat/completions", model="gpt-5-mini")
    use = use_of(tmp_path, spec, provider)
    assert use is not None
    assert use.least_usd < use.most_usd == use.usual_usd


def test_batches_of_anthropic_are_priced_for_an_hour_and_with_their_luck(tmp_path: Path) -> None:
    """Writes cost twice as much, and between 30 % of the reads and all of them come."""
    prices = PRICES | {"cache_write_hour": 6.0, "batch_discount": 0.5}
    provider = facts(claude_sonnet_4_5=prices)
    use = use_of(tmp_path, spec_of(lane="batch"), provider)
    assert use is not None
    assert use.least_usd < use.usual_usd < use.most_usd  # by bad luck it costs more than it saves


@pytest.mark.parametrize(
    ("spec", "provider", "what"),
    [
        ({"endpoint": "/v1/embeddings", "system": None, "params": {}}, {}, "no prompt to cache"),
        ({"lane": "gpu", "endpoint": "/v1/chat/completions"}, {}, "model of its own"),
        ({}, {"prices": {CLAUDE: {"input": 3.0}}}, "no price of cached tokens"),
        ({"model": "another"}, {}, "no price of cached tokens"),
        ({"model": None, "prompt": None, "system": None}, {}, "the job names none"),
        (
            {"lane": "batch", "model": "gpt-4o", "endpoint": "/v1/chat/completions"},
            {"kind": "openai", "base_url": "https://api.openai.com/v1"},
            "cost as much as others in batches",
        ),
    ],
)
def test_a_cache_that_cannot_be_is_refused_with_the_fix(
    spec: dict[str, Any], provider: dict[str, Any], what: str
) -> None:
    """Where `on` asks for it; `auto` does without."""
    asked = ProviderFacts.model_validate(
        {"kind": "anthropic", "prices": {CLAUDE: PRICES}} | provider
    )
    with pytest.raises(SpecError) as refused:
        check_acceptable(spec_of(**spec), asked)
    (problem,) = refused.value.problems
    assert (problem.pointer, what in problem.message, bool(problem.fix)) == (
        "/prompt_cache",
        True,
        True,
    )
    check_acceptable(spec_of(**spec | {"prompt_cache": "auto"}), asked)


def test_documents_that_share_too_little_are_refused_or_sent_without(tmp_path: Path) -> None:
    """The least length is said; `auto` goes without the cache."""
    short = {"system": SYSTEM[:2_000]}
    with pytest.raises(SpecError, match="1,024 tokens or more"):
        use_of(tmp_path, spec_of(**short))
    assert use_of(tmp_path, spec_of(**short, prompt_cache="auto")) is None
    assert use_of(tmp_path, spec_of(prompt_cache="off")) is None
    dear = facts(claude_sonnet_4_5=PRICES | {"cached_input": 3.0})
    assert use_of(tmp_path, spec_of(prompt_cache="auto"), dear) is None  # saves nothing


def test_an_open_job_cannot_ask_for_it() -> None:
    """Its documents are not known when it is opened."""
    with pytest.raises(SpecError, match="one by one"):
        check_open(spec_of())
    check_open(spec_of(prompt_cache="auto"))


def test_estimates_and_budgets_count_with_the_cache(tmp_path: Path) -> None:
    """A job is accepted whose budget suffices with the cache and would not without it; its lanes
    are compared with it, too."""
    path = tmp_path / "documents.jsonl"
    path.write_text("".join(f'{{"id":{at},"text":"text {at}"}}\n' for at in range(100)))
    settings = ProducerSettings(
        database_url=f"sqlite:///{tmp_path}/ledger.db", providers={"default": ANTHROPIC}
    )
    seen = preview(open_source(str(path), spec_of(), settings), spec_of(), lambda _: ANTHROPIC, 1)
    assert seen.cache is not None
    assert seen.cost_usd == pytest.approx(seen.cache.least_usd)
    assert seen.survey.estimate.factors["api"] == pytest.approx(
        seen.cache.least_usd / seen.cache.usual_usd
    )
    between = (seen.cache.least_usd + seen.cache.usual_usd) / 2
    with Producer(settings) as producer:
        tight = {"over_budget": "refuse", "budget_usd": between}
        assert producer.submit(path, spec_of(**tight).to_json(), job_key="with").total == 100
        with pytest.raises(SpecError, match="may cost about"):
            producer.submit(path, spec_of(**tight, prompt_cache="off").to_json(), job_key="without")


PRO = {"gemini_2.5_pro": {"input": 1.25, "cached_input": 0.125, "cache_hour": 4.5}}
EXPLICIT = {
    "endpoint": "/v1beta/generateContent",
    "model": "gemini-2.5-pro",
    "prompt_cache": "explicit",
    "system": SYSTEM * 2,
    "params": {"maxOutputTokens": 10},
}


def test_an_explicit_cache_is_priced_with_its_rent(tmp_path: Path) -> None:
    """Made once, kept for its documents and five minutes, and read by each of them; its beginning
    is kept with the job."""
    use = use_of(tmp_path, spec_of(**EXPLICIT), facts("gemini", **PRO))
    assert use is not None
    assert use.rent is not None
    (name,) = use.rent.names
    assert use.read == pytest.approx(100 * use.written, abs=100)
    rent = use.written * 4.5 * (100 + 300) / 3_600
    own = use.usual_usd * 1e6 - use.read * 1.25
    assert use.least_usd * 1e6 == pytest.approx(
        own + use.read * 0.125 + use.written * 1.25 + rent, rel=0.001
    )
    assert use.most_usd == use.least_usd < use.usual_usd
    assert use.to_json()["explicit"] == 1
    assert base64.b64decode(use.kept()["prefixes"]["rented"]) == name


def test_explicit_caches_that_do_not_pay_are_refused(tmp_path: Path) -> None:
    """Where the rent is dear, say; `on` sends the same documents."""
    dear = {"gemini_2.5_pro": PRO["gemini_2.5_pro"] | {"cache_hour": 4_500.0}}
    with pytest.raises(SpecError, match="cost more than it saves"):
        use_of(tmp_path, spec_of(**EXPLICIT), facts("gemini", **dear))
    assert use_of(tmp_path, spec_of(**EXPLICIT | {"prompt_cache": "on"}), facts("gemini", **dear))


@pytest.mark.parametrize(
    ("spec", "provider", "what"),
    [
        (
            {"endpoint": "/v1/chat/completions", "params": {}},
            {"kind": "openai"},
            "Gemini's own API",
        ),
        ({}, {"kind": "vertex", "project": "p", "region": "global"}, "Gemini's own API"),
        ({"lane": "batch"}, {}, "batches of Gemini"),
        ({"tier": "flex"}, {}, "service tier"),
        ({"model": "gemini-4-argon"}, {}, "no explicit caches of gemini-4-argon"),
        ({"model": "gemini-3.5-flash"}, {}, "rent of an explicit cache"),
        ({"model": "gemini-3-unknown"}, {}, "no price of cached tokens"),
    ],
)
def test_explicit_caches_that_cannot_be_are_refused_with_the_fix(
    spec: dict[str, Any], provider: dict[str, Any], what: str
) -> None:
    """By the provider, the lane, the tier, the model, and by what its rent is: nothing was spent."""
    cheap = {"input": 1.5, "cached_input": 0.15}
    prices = {"gemini-2.5-pro": PRO["gemini_2.5_pro"], "gemini-4-argon": cheap | {"cache_hour": 1}}
    given = {"kind": "gemini", "prices": prices | {"gemini-3.5-flash": cheap}} | provider
    asked = ProviderFacts.model_validate(given)
    with pytest.raises(SpecError) as refused:
        check_prompt_cache(spec_of(**EXPLICIT | spec), asked)
    (problem,) = refused.value.problems
    assert problem.pointer == "/prompt_cache"
    assert what in problem.message
    assert problem.fix
