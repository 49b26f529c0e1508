"""Escalation and degradation: how the rules are read, and when an answer goes on."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from penstock_producer.accepting.acceptance import check_acceptable
from penstock_producer.errors import SpecError
from penstock_producer.job.levers import escalation_of
from penstock_producer.job.provider_facts import ProviderFacts
from penstock_producer.job.spec import JobSpec

CHAT: dict[str, Any] = {"model": "small", "prompt": "Score: {text}"}
PRICED = ProviderFacts(usd_per_mtok_in=1.0, usd_per_mtok_out=1.0)


def body(*logprobs: float) -> bytes:
    tokens = [{"token": "a", "logprob": number} for number in logprobs]
    return orjson.dumps({"choices": [{"logprobs": {"content": tokens}}]})


@pytest.mark.parametrize(
    ("rule", "answer", "goes_on"),
    [
        ("score<0.5 -> model=large", '{"score": 0.4}', True),
        ("score<0.5 -> model=large", '{"score": "0.4"}', True),
        ("score<0.5 -> model=large", '{"score": 0.5}', False),
        ("score<0.5 -> model=large", '{"score": null}', False),
        ("score<0.5 -> model=large", '{"label": "x"}', False),
        ("score<0.5 -> model=large", "no JSON", False),
        ("score<0.5 -> model=large", None, False),
        ("score<0.5 -> model=large missing=escalate", "no JSON", True),
        ("score<0.5 -> model=large missing=escalate", '{"score": null}', True),
        ("score<0.5 -> model=large missing=escalate", '{"score": 0.9}', False),
        ("score<0.5 -> model=large missing=keep", "[1]", False),
        ("rating.score<0.5 -> model=large", '{"rating": {"score": 0}}', True),
        ("label=unsure -> model=large", '{"label": "unsure"}', True),
        ("sure!=true -> model=large", '{"sure": false}', True),
        ("note=null -> model=large", '{"note": null}', True),
    ],
)
def test_an_answer_goes_on_where_its_field_compares_so(
    rule: str, answer: str | None, goes_on: bool
) -> None:
    """What an answer does not say is decided by the rule, and by default it is kept."""
    assert (escalation_of(rule).applies(answer, b"{}") is not None) is goes_on


def test_the_mean_log_probability_decides_where_the_rule_names_it() -> None:
    """Of the tokens of the first choice; an answer without them is as one without the field."""
    rule = escalation_of("@logprob<-1 -> model=large")
    assert rule.applies("x", body(-0.5, -2.5)) == "@logprob is -1.5"
    assert rule.applies("x", body(-0.5, -0.5)) is None
    assert rule.applies("x", body()) is None
    assert rule.applies("x", b'{"logprobs":') is None


@pytest.mark.parametrize(
    ("given", "pointer", "says"),
    [
        ({"escalate": "score<0.5"}, "/escalate", "write CONDITION -> TARGET"),
        ({"escalate": "score<0.5 -> max_tokens=9"}, "/escalate", "name the model"),
        ({"escalate": "score<0.5 -> model=l missing=ask"}, "/escalate", "missing=keep"),
        ({"escalate": "@length>5 -> model=l"}, "/escalate", "says nothing of an answer"),
        ({"escalate": "@logprob=1 -> model=l"}, "/escalate", "is compared by"),
        ({"escalate": "@logprob<1 -> model=l"}, "/escalate", "logprobs=true"),
        ({"escalate": "a=1 -> model=l", "endpoint": "/v1/embeddings"}, "/escalate", "leave it"),
        ({"degrade": ["model=s"], "deadline_s": 9.0}, "/degrade/0", "write TARGET at SHARE%"),
        ({"degrade": ["model=s at 80% of deadline"]}, "/degrade/0", "give one: deadline_s"),
        ({"degrade": ["model=s at 80% of budget"]}, "/degrade/0", "give one: budget_usd"),
        ({"degrade": ["model=s at 0% of deadline"], "deadline_s": 9.0}, "/degrade/0", "more than"),
        ({"degrade": ["model=s at 100% of deadline"], "deadline_s": 9.0}, "/degrade/0", "less"),
        ({"degrade": ["tier=flex at 9% of deadline"], "deadline_s": 9.0}, "/degrade/0", "stay"),
        ({"degrade": ["x=1 at 9% of deadline"], "deadline_s": 9.0}, "/degrade/0/x", "x.x"),
        (
            {
                "degrade": ["model=s at 80% of deadline", "model=t at 80% of deadline"],
                "deadline_s": 9.0,
            },
            "/degrade/1",
            "step 2 later than 80%",
        ),
    ],
)
def test_a_rule_that_a_job_cannot_follow_is_refused(
    given: dict[str, Any], pointer: str, says: str
) -> None:
    """With the field, and what to write."""
    with pytest.raises(SpecError) as refused:
        JobSpec(**CHAT | given)
    [problem] = refused.value.problems
    assert problem.pointer == pointer
    assert says in problem.fix


@pytest.mark.parametrize(
    "rule",
    [
        {"routes": ["a=1 -> model=l"]},
        {"escalate": "a=1 -> model=l"},
        {"degrade": ["model=s at 9% of deadline"]},
    ],
)
def test_batches_take_every_kind_of_rule(rule: dict[str, Any]) -> None:
    """But for targets that the lines of a batch cannot name one by one."""
    check_acceptable(JobSpec(**CHAT | rule, lane="batch", deadline_s=9.0), PRICED)
    with pytest.raises(SpecError, match="share their tier"):
        JobSpec(**CHAT, escalate="a=1 -> model=l tier=flex", lane="batch")


def test_each_step_keeps_what_the_one_before_changed() -> None:
    """A job gives way further, not otherwise."""
    spec = JobSpec(
        **CHAT,
        params={"max_tokens": 500},
        deadline_s=100.0,
        degrade=["model=tiny at 50% of deadline", "max_tokens=9 at 90% of deadline"],
    )
    last = dict(spec.asked_by_rules)["/degrade/1"]
    assert (last.model, last.params) == ("tiny", {"max_tokens": 9})
    assert [step.moment for step in spec.steps] == ["50% of the deadline", "90% of the deadline"]
