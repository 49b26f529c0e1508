"""Which requests are sent once: what makes two equal, which answers may be shared, and which
options go together."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from penstock_producer import JobSpec
from penstock_producer.errors import SpecError
from penstock_producer.job.repeats import answers_alike
from penstock_workers.item.same_request import REQUEST_BYTES_MAX, ReusePolicy, policy_of
from penstock_workers.settings import ProviderSettings

CHAT = "/v1/chat/completions"
COLD = {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": "hi"}]}


def policy(
    job_id: str = "job-a", *, base_url: str = "http://a/v1", across: bool = False, **spec: Any
) -> ReusePolicy:
    made = policy_of(
        job_id,
        JobSpec.from_json({"dedup": "on"} | spec),
        ProviderSettings(base_url=base_url),
        across_tenants=across,
    )
    assert made is not None
    return made


def name(of: ReusePolicy, body: object) -> Any:
    asked = of.asked(body if isinstance(body, bytes) else orjson.dumps(body))
    return None if asked is None else asked.name


def test_equal_requests_have_one_name_however_they_are_written() -> None:
    """Order of fields, blanks and ways to write a number make no other request; any other value
    does."""
    plain = name(policy(), COLD)
    assert plain == name(policy(), dict(reversed(COLD.items())))
    assert plain == name(policy(), orjson.dumps(COLD, option=orjson.OPT_INDENT_2))
    numbers = [
        orjson.dumps(COLD | {"top_p": 7}).replace(b":7", written)
        for written in (b":0.5", b":0.50", b":5e-1")
    ]
    assert len({name(policy(), body) for body in numbers}) == 1
    others: tuple[dict[str, Any], ...] = (
        {"model": "m2"},
        {"messages": []},
        {"max_tokens": 5},
        {"temperature": 0, "seed": 1},
    )
    for other in others:
        assert name(policy(), COLD | other) != plain


def test_numbers_too_long_for_a_double_stay_apart() -> None:
    """Two seeds that a reader of JSON would round to the same are two requests."""
    first, second = (
        b'{"model":"m","temperature":0,"seed":%d}' % seed for seed in (2**64 + 1, 2**64 + 2)
    )
    assert orjson.loads(first) == orjson.loads(second), "the test would prove nothing"
    assert name(policy(), first) != name(policy(), second)


@pytest.mark.parametrize(
    "other",
    [
        {"base_url": "http://b/v1"},
        {"provider": "other"},
        {"lane": "gpu"},
        {"endpoint": "/v1/responses"},
        {"response_schema": {"type": "object"}},
        {"on_overflow": "trim"},
        {"dedup": "always", "postprocess": "my:hook"},
    ],
)
def test_what_else_decides_an_answer_is_in_the_name(other: dict[str, Any]) -> None:
    """Another provider, address, lane, endpoint, schema, hook or treatment of long prompts is
    another request."""
    body = COLD
    assert name(policy(**other), body) != name(policy(), body)


def test_a_job_shares_with_itself_and_a_tenant_with_its_jobs() -> None:
    """Without a cache each job has a book of its own; with one the jobs of a tenant have one, and
    other tenants another."""
    assert policy("job-a").book != policy("job-b").book
    alike = [policy(job, cache_s=3600, tenant="red").book for job in ("job-a", "job-b")]
    assert alike[0] == alike[1]
    assert policy(cache_s=3600, tenant="blue").book != alike[0] != policy(cache_s=3600).book
    shared = [policy(cache_s=3600, tenant=tenant, across=True).book for tenant in ("red", "blue")]
    assert shared[0] == shared[1] != alike[0]


def test_a_cached_request_names_its_model() -> None:
    """What is answered by whichever model the next worker hosts is shared within its job alone."""
    body = {name: value for name, value in COLD.items() if name != "model"}
    assert name(policy(), body) is not None
    assert name(policy(cache_s=3600), body) is None


@pytest.mark.parametrize(
    ("endpoint", "fields", "alike"),
    [
        (CHAT, {"temperature": 0}, True),
        (CHAT, {"temperature": 0.0, "n": 1}, True),
        (CHAT, {"temperature": 0, "n": 2}, False),
        (CHAT, {"temperature": 0.2}, False),
        (CHAT, {"temperature": 0.2, "seed": 7}, False),
        (CHAT, {}, False),
        (CHAT, {"seed": 7}, True),
        (CHAT, {"seed": "7"}, False),
        (CHAT, {"temperature": False}, False),
        ("/v1/completions", {"temperature": 0, "best_of": 3}, False),
        ("/v1/embeddings", {"temperature": 1}, True),
        ("/rerank", {}, True),
        ("/own/path", {"temperature": 0}, False),
    ],
)
def test_only_answers_that_would_be_alike_are_shared(
    endpoint: str, fields: dict[str, Any], alike: bool
) -> None:
    """Embeddings and scores always; texts at temperature 0, or with a seed and no temperature;
    nothing of unknown paths."""
    assert answers_alike(endpoint, fields) is alike


def test_always_shares_any_answer_to_the_same_request() -> None:
    """With `always` the submitter says so; without it a hot request is sent each time."""
    hot = COLD | {"temperature": 1}
    assert name(policy(), hot) is None
    assert name(policy(dedup="always"), hot) is not None


@pytest.mark.parametrize(
    "body", [b"", b"[1]", b"\xff{}", b"{", b'{"temperature":0}' + b" " * REQUEST_BYTES_MAX]
)
def test_a_body_that_is_no_object_or_enormous_is_sent(body: bytes) -> None:
    """Nothing is looked up for it, and the provider says what is wrong with it."""
    assert policy().asked(body) is None


def test_jobs_that_ask_for_nothing_have_no_policy() -> None:
    """As a default every request is sent, at no cost for looking."""
    assert policy_of("j", JobSpec.from_json({}), ProviderSettings(), across_tenants=False) is None


@pytest.mark.parametrize(
    ("spec", "pointer", "fix"),
    [
        ({"dedup": "on", "preprocess": "my:hook"}, "/dedup", "leave out preprocess"),
        (
            {"cache_s": 60.0, "dedup": "always", "preprocess": "my:hook"},
            "/dedup",
            "leave out preprocess",
        ),
        ({"cache_s": 3600.0, "postprocess": "my:hook"}, "/cache_s", "dedup always"),
        ({"dedup": "on", "prompt": "{text}"}, "/dedup", "temperature=0"),
        (
            {"dedup": "on", "prompt": "{text}", "params": {"temperature": 0, "n": 2}},
            "/dedup",
            "n=1",
        ),
        ({"cache_s": 1.0}, "/cache_s", "greater than or equal to 60"),
        ({"cache_s": 31 * 86_400.0}, "/cache_s", "less than or equal to 2592000"),
        ({"dedup": "yes"}, "/dedup", "'off', 'on' or 'always'"),
    ],
)
def test_options_that_cannot_go_together_are_refused_with_the_fix(
    spec: dict[str, Any], pointer: str, fix: str
) -> None:
    """A job that would reuse nothing, or the wrong thing, is not accepted."""
    with pytest.raises(SpecError) as caught:
        JobSpec.from_json(spec)
    (problem,) = caught.value.problems
    assert (problem.pointer, fix in problem.fix) == (pointer, True), problem


@pytest.mark.parametrize(
    "spec",
    [
        {"dedup": "on"},
        {"dedup": "on", "prompt": "{text}", "params": {"temperature": 0}},
        {"dedup": "on", "prompt": "{text}", "params": {"seed": 5}},
        {"dedup": "on", "prompt": "{text}", "param_fields": {"temperature": "t"}},
        {"dedup": "on", "prompt": "{text}", "endpoint": "/v1/embeddings"},
        {"dedup": "always", "prompt": "{text}", "postprocess": "my:hook"},
        {"cache_s": 86_400.0, "prompt": "{text}", "params": {"temperature": 0.0}},
    ],
)
def test_options_that_go_together_are_accepted(spec: dict[str, Any]) -> None:
    """Lines and columns may have parameters of their own, so those are looked at one by one."""
    read = JobSpec.from_json(spec).to_json()
    assert {name: read[name] for name in spec} == spec
