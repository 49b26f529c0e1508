"""Providers that speak another API than OpenAI's: where they are, how they are asked, and what
their answers mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock_cli.errors import UsageProblem
from penstock_cli.job.given import GivenJob
from penstock_cli.job.jobspec import job_spec, with_provider
from penstock_cli.job.options import ProviderFlags
from penstock_producer import JobSpec, Producer, SpecError
from penstock_producer.job.endpoints import GENERATE, generate_path
from penstock_producer.prices import TokensUsed
from penstock_producer.settings import ProducerSettings
from penstock_workers.item.answer import Answer
from penstock_workers.item.answer_forms import tokens_used
from penstock_workers.item.failures import Failure, Reply, name_failure
from penstock_workers.provider_calls import address, headers_of
from penstock_workers.settings import ProviderSettings, WorkerSettings

NOW = 1_790_000_000.0
MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "category"}],
    "stop_reason": "end_turn",
    "usage": {
        "input_tokens": 12,
        "cache_creation_input_tokens": 100,
        "cache_read_input_tokens": 30,
        "output_tokens": 3,
    },
}


def read(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Failure | Reply:
    return name_failure(Answer(status, headers or {}, orjson.dumps(body), latency_ms=5), NOW)


def test_a_message_is_a_good_answer() -> None:
    """Its text is whole, and its prompt is what was new, what was written to the cache, and what
    was read from it."""
    reply = read(MESSAGE, headers={"request-id": "req_1"})
    assert isinstance(reply, Reply)
    assert (reply.content, reply.finish_reason, reply.model, reply.request_id) == (
        "a category",
        "stop",
        "claude",
        "req_1",
    )
    assert (reply.prompt_tokens, reply.completion_tokens) == (142, 3)


@pytest.mark.parametrize(
    ("reason", "becomes"),
    [
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("tool_use", "tool_calls"),
        ("pause_turn", "pause_turn"),
        (None, None),
        (7, None),
    ],
)
def test_stop_reasons_have_the_words_of_finish_reasons(reason: Any, becomes: str | None) -> None:
    """So that a cut answer is one at every provider; a new reason keeps its own word."""
    reply = read(MESSAGE | {"stop_reason": reason})
    assert isinstance(reply, Reply)
    assert reply.finish_reason == becomes


@pytest.mark.parametrize(
    ("body", "status", "name"),
    [
        (MESSAGE | {"stop_reason": "refusal"}, 200, "content_filter"),
        (MESSAGE | {"content": []}, 200, "empty_answer"),
        (MESSAGE | {"content": None}, 200, "empty_answer"),
        (MESSAGE | {"content": [{"type": "thinking", "thinking": "x"}, 7]}, 200, "empty_answer"),
        (
            {"type": "error", "error": {"type": "overloaded_error", "message": "m"}},
            529,
            "overloaded",
        ),
        (
            {"type": "error", "error": {"type": "overloaded_error", "message": "m"}},
            200,
            "overloaded",
        ),
        (
            {
                "type": "error",
                "error": {"type": "invalid_request_error", "message": "max_tokens: required"},
            },
            400,
            "bad_request",
        ),
        (
            {"type": "error", "error": {"type": "billing_error", "message": "m"}},
            402,
            "out_of_credit",
        ),
        (
            {
                "type": "error",
                "error": {
                    "type": "rate_limit_error",
                    "details": {"error_code": "enforced_spend_limit_reached"},
                },
            },
            429,
            "out_of_credit",
        ),
    ],
)
def test_failures_of_anthropic_have_the_names_of_all_others(
    body: Any, status: int, name: str
) -> None:
    """A refusal, an empty message and the error envelope."""
    failure = read(body, status)
    assert isinstance(failure, Failure)
    assert failure.name == name


def test_a_message_that_uses_a_tool_is_an_answer() -> None:
    """It has no text, and is no empty one."""
    reply = read(
        MESSAGE
        | {
            "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}],
            "stop_reason": "tool_use",
        }
    )
    assert isinstance(reply, Reply)
    assert reply.content is None


@pytest.mark.parametrize("cached", [-5, "x", None, True, 10**18])
def test_counts_that_cannot_be_right_are_never_money(cached: Any) -> None:
    """A part of the prompt that is no count adds nothing."""
    reply = read(MESSAGE | {"usage": MESSAGE["usage"] | {"cache_read_input_tokens": cached}})
    assert isinstance(reply, Reply)
    assert reply.prompt_tokens == 112


# -- Gemini ----------------------------------------------------------------------------------------

GEMINI: dict[str, Any] = {
    "candidates": [
        {
            "content": {
                "role": "model",
                "parts": [{"text": "hm", "thought": True}, {"text": "a "}, {"text": "category"}],
            },
            "finishReason": "STOP",
        }
    ],
    "usageMetadata": {"promptTokenCount": 12, "candidatesTokenCount": 3, "thoughtsTokenCount": 4},
    "modelVersion": "gemini-x",
}


def test_geminis_answer_is_a_good_one() -> None:
    """Its text without its thoughts, which count as output."""
    reply = read(GEMINI)
    assert isinstance(reply, Reply)
    assert (reply.content, reply.finish_reason, reply.model) == ("a category", "stop", "gemini-x")
    assert (reply.prompt_tokens, reply.completion_tokens) == (12, 7)


def test_geminis_tokens_are_of_all_kinds() -> None:
    """What its tools brought is input, what it thought is output, and what was cached is
    cheaper."""
    usage = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 40,
        "toolUsePromptTokenCount": 7,
        "candidatesTokenCount": 3,
        "thoughtsTokenCount": 5,
    }
    reply = read(GEMINI | {"usageMetadata": usage})
    assert isinstance(reply, Reply)
    used = tokens_used(reply.usage, reply.prompt_tokens, reply.completion_tokens)
    assert used == TokensUsed(prompt=107, completion=8, cached=40, reasoning=5)


def test_geminis_limits_say_when_to_come_again() -> None:
    """By RetryInfo among the details of its envelope."""
    retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "36s"}
    failure = read(
        {
            "error": {
                "code": 429,
                "status": "RESOURCE_EXHAUSTED",
                "message": "m",
                "details": [retry],
            }
        },
        429,
    )
    assert isinstance(failure, Failure)
    assert (failure.name, failure.retry_after_s) == ("rate_limited", 36.0)


def candidate(**given: Any) -> dict[str, Any]:
    return {**GEMINI, "candidates": [{**GEMINI["candidates"][0], **given}]}


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (candidate(finishReason="SAFETY"), "content_filter"),
        (candidate(finishReason="IMAGE_SAFETY"), "content_filter"),
        (candidate(finishReason="RECITATION", content={}), "content_filter"),
        (candidate(finishReason="MALFORMED_FUNCTION_CALL", content={}), "empty_answer"),
        ({"error": {"code": 503, "status": "UNAVAILABLE", "message": "m"}}, "overloaded"),
        ({"promptFeedback": {"blockReason": "SAFETY"}}, "content_filter"),
        ({"candidates": []}, "empty_answer"),
        (candidate(content={}), "empty_answer"),
        (candidate(content=[]), "empty_answer"),
        (candidate(content={"parts": [7, {"text": 3}]}), "empty_answer"),
    ],
)
def test_an_answer_of_gemini_that_is_none_is_a_failure(body: Any, name: str) -> None:
    """A blocked prompt and a blocked answer are the provider's policy, whatever else stands
    there."""
    failure = read(body)
    assert isinstance(failure, Failure)
    assert failure.name == name


def test_geminis_counts_that_cannot_be_right_are_never_money() -> None:
    """As at every provider."""
    reply = read(GEMINI | {"usageMetadata": {"promptTokenCount": "12", "candidatesTokenCount": -1}})
    assert isinstance(reply, Reply)
    assert (reply.prompt_tokens, reply.completion_tokens) == (None, None)


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "place", "metering"),
    [
        ("openai", "https://api.openai.com/v1", None),
        ("anthropic", "https://api.anthropic.com", "anthropic"),
        ("gemini", "https://generativelanguage.googleapis.com", "gemini"),
    ],
)
def test_each_kind_has_its_place_and_its_metering(
    kind: Any, place: str, metering: str | None
) -> None:
    """An address and a profile that are given go before them."""
    assert ProviderSettings(kind=kind).base_url == place
    assert ProviderSettings(kind=kind).metering == metering
    own = ProviderSettings(kind=kind, base_url="http://gateway/", profile="vllm")
    assert (own.base_url, own.metering) == ("http://gateway", "vllm")


def test_each_kind_has_its_headers() -> None:
    """The key stands where the provider looks for it, and nowhere without a key."""
    assert headers_of("openai", "k")["Authorization"] == "Bearer k"
    anthropic = headers_of("anthropic", "k")
    assert (anthropic["x-api-key"], anthropic["anthropic-version"]) == ("k", "2023-06-01")
    assert "Authorization" not in anthropic
    assert headers_of("gemini", "k")["x-goog-api-key"] == "k"
    assert set(headers_of("gemini", None)) == {"User-Agent"}


@pytest.mark.parametrize("base", ["http://h", "http://h/v1"])
def test_base_urls_are_taken_with_and_without_their_version(base: str) -> None:
    """As the SDKs of both providers write them."""
    assert address(base, "/v1/messages") == "http://h/v1/messages"


def test_jobs_ask_a_provider_for_what_its_kind_answers() -> None:
    """Anthropic's takes Messages and no chat; the refusal says what it takes."""
    made = ProducerSettings(
        providers={"claude": {"kind": "anthropic"}, "other": {"endpoints": ["/v1/messages"]}}  # type: ignore[dict-item]
    )
    assert made.refused_endpoint("claude", "/v1/messages") is None
    assert "jobs on: /v1/messages; use one of them (endpoint)" in (
        made.refused_endpoint("claude", "/v1/chat/completions") or ""
    )
    assert made.refused_endpoint("other", "/v1/messages") is None
    assert 'providers.unknown.kind = "anthropic"' in (
        made.refused_endpoint("unknown", "/v1/messages") or ""
    )


def test_a_fallback_speaks_the_api_of_its_job(tmp_path: Path) -> None:
    """A model of a provider of another kind is refused where the job is accepted: it would get
    bodies that it does not take."""
    providers: Any = {"claude": {"kind": "anthropic"}, "default": {}}
    settings = ProducerSettings(database_url=f"sqlite:///{tmp_path}/ledger.db", providers=providers)
    with Producer(settings) as producer, pytest.raises(SpecError, match=r"/fallback: .*claude"):
        producer.submit(str(tmp_path / "none.jsonl"), JobSpec(model="m", fallback=["claude/c"]))


# -- flags -----------------------------------------------------------------------------------------


def given(**flags: Any) -> GivenJob:
    return GivenJob("docs.jsonl", flags)


def test_the_flag_chooses_the_endpoint_and_the_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--api anthropic` alone is enough beside prompt, model and max_tokens; an endpoint that is
    typed stays."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k-anthropic")
    spec = job_spec(given(model="c", prompt="{text}", params=["max_tokens=5"]).for_api("anthropic"))
    assert spec.endpoint == "/v1/messages"
    assert given(endpoint="/v1/x").for_api("anthropic").flags["endpoint"] == "/v1/x"
    settings = WorkerSettings(providers={"default": ProviderSettings(rpm=5)})
    provider = with_provider(settings, "default", ProviderFlags(api="anthropic")).providers[
        "default"
    ]
    assert (provider.kind, provider.base_url, provider.rpm) == (
        "anthropic",
        "https://api.anthropic.com",
        5,
    )
    assert provider.api_key_env == "ANTHROPIC_API_KEY"


def test_gemini_is_asked_by_its_own_api_in_real_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--api gemini` is enough beside prompt and model, in the lane api as in batches."""
    monkeypatch.setenv("GEMINI_API_KEY", "k-gemini")
    assert job_spec(given(model="gemini-x", prompt="{text}").for_api("gemini")).endpoint == GENERATE
    provider = with_provider(WorkerSettings(), "default", ProviderFlags(api="gemini")).providers[
        "default"
    ]
    assert (provider.kind, provider.base_url) == (
        "gemini",
        "https://generativelanguage.googleapis.com",
    )
    made = ProducerSettings(providers={"google": {"kind": "gemini"}})  # type: ignore[dict-item]
    assert made.refused_endpoint("google", GENERATE) is None
    assert "provider google of kind gemini answers" in (
        made.refused_endpoint("google", "/v1/chat/completions") or ""
    )


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("gemini-2.5-flash", "/v1beta/models/gemini-2.5-flash:generateContent"),
        ("models/gemini-2.5-flash", "/v1beta/models/gemini-2.5-flash:generateContent"),
        ("tunedModels/mine-7", "/v1beta/tunedModels/mine-7:generateContent"),
        *(
            (odd, None)
            for odd in (
                "",
                "../files",
                "a/b",
                "models/",
                "x?key=y",
                "x:delete",
                "x%2f",
                "x\n",
                "é",
                "a" * 300,
                7,
                None,
            )
        ),
    ],
)
def test_a_name_of_a_model_means_no_other_place(model: Any, path: str | None) -> None:
    """It goes into the path of a call with the fleet's key, so it is a plain name or refused."""
    assert generate_path(model) == path


def test_an_api_that_is_not_spoken_is_refused() -> None:
    """The error names those that are."""
    with pytest.raises(UsageProblem, match="openai, anthropic, gemini"):
        given().for_api("claude")
