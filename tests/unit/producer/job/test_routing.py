"""Rules over the columns of a source: what they take, and what is refused of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from penstock_producer.errors import SpecError
from penstock_producer.job.routing import (
    LOOKED_AT_CHARS,
    Disagreement,
    RoutingTable,
    marked,
    route_in,
    unmarked,
)
from penstock_producer.job.spec import JobSpec

PROMPT: Mapping[str, Any] = {"prompt": "Label: {text}", "model": "small"}


@pytest.mark.parametrize(
    ("condition", "record", "takes"),
    [
        ("lang=de", {"lang": "de"}, True),
        ("column:lang=de", {"lang": "de"}, True),
        ("lang=de", {"lang": "de-AT"}, False),
        ("lang!=de", {"lang": "en"}, True),
        ("lang!=de", {}, True),
        ("lang=null", {}, True),
        ("lang=null", {"lang": None}, True),
        ("language(lang)=de", {"lang": "de_CH"}, True),
        ("language(lang)=DE", {"lang": "de"}, True),
        ("language(lang)=de", {"lang": "den"}, False),
        ("stars<3", {"stars": 2}, True),
        ("stars<3", {"stars": "2.5"}, True),
        ("stars<3", {"stars": None}, False),
        ("stars<3", {"stars": "few"}, False),
        ("stars=3", {"stars": 3.0}, True),
        ("stars>=3", {"stars": 3}, True),
        ("urgent=true", {"urgent": True}, True),
        ("urgent=1", {"urgent": True}, False),
        ("user.lang=de", {"user": {"lang": "de"}}, True),
        ("user.lang=de", {"user": "de"}, False),
        ('title="a -> b and c"', {"title": "a -> b and c"}, True),
        ('subject~"refund|charge ?back"', {"subject": "my charge back"}, True),
        ("subject~^refund", {"subject": "a refund"}, False),
        ("subject~x$", {"subject": "x" * 9_000_000}, True),
        ("subject~y", {"subject": "x" * LOOKED_AT_CHARS + "y"}, False),
        ("@length>10", {}, True),
        ("@length<=10", {}, False),
        ("lang=de and stars<3", {"lang": "de", "stars": 1}, True),
        ("lang=de and stars<3", {"lang": "de", "stars": 5}, False),
    ],
)
def test_a_condition_holds_for_what_a_row_says(
    condition: str, record: Mapping[str, Any], takes: bool
) -> None:
    """Values of files and of tables compare alike: a number may be written as text."""
    rule = RoutingTable([f"{condition} -> model=large"]).taken(record, 11)
    assert (rule is not None) is takes


def test_the_rest_takes_the_rule_for_all_others_or_the_jobs_own_model() -> None:
    """Where no rule says otherwise, nothing changes for a document."""
    record = {"lang": "fr"}
    table = RoutingTable(["lang=de -> model=german", "else -> refuse"])
    rule = table.taken(record, 0)
    assert not isinstance(rule, Disagreement)
    assert rule is not None
    assert (rule.number, rule.target) == (2, None)
    assert RoutingTable(["lang=de -> model=german"]).taken(record, 0) is None


def test_two_rules_that_agree_take_a_document_together() -> None:
    """So an "or" is two rules; different targets are a disagreement with both named."""
    table = RoutingTable(
        ["lang=de -> model=a", "stars<3 -> model=a", "@length>5 -> model=b max_tokens=9"]
    )
    taken = table.taken({"lang": "de", "stars": 1}, 5)
    assert taken == table.rules[0]
    apart = table.taken({"stars": 1}, 6)
    assert isinstance(apart, Disagreement)
    assert "rule 2 (stars<3 -> model=a) and rule 3 (@length>5" in apart.message


@pytest.mark.parametrize(
    ("rules", "at"),
    [
        (["lang=de -> model=a", "lang=de -> model=b"], 1),
        (["lang=de -> model=a", "lang=de and stars<3 -> model=b"], 1),
        (["lang=de and stars<3 -> model=b", "lang=de -> model=a"], 0),
        (["@length>50 -> model=a", "@length>=60 -> model=b"], 1),
        (["stars<=3 -> model=a", "stars<3 -> model=b"], 1),
        (["stars<9 -> model=a", "stars=3 -> model=b"], 1),
        (["language(lang)=de -> model=a", "lang=de-AT -> model=b"], 1),
        (["lang!=de -> model=a", "lang=en -> model=b"], 1),
        (["subject~ref -> model=a", "subject=refund -> model=b"], 1),
    ],
)
def test_a_rule_without_a_document_of_its_own_is_refused(rules: list[str], at: int) -> None:
    """It was written for something, and would never do it."""
    with pytest.raises(SpecError) as refused:
        JobSpec(**PROMPT, routes=rules)
    [problem] = refused.value.problems
    assert problem.pointer == f"/routes/{at}"
    assert f"rule {at + 1} (" in problem.message
    assert "is shadowed" in problem.message


@pytest.mark.parametrize(
    "rules",
    [
        ["lang=de -> model=a", "stars<3 -> model=b"],
        ["@length>50 -> model=a", "@length<50 -> model=b"],
        ["stars<3 -> model=a", "stars<=3 -> model=a and", "else -> model=b"][:1],
        ["lang=de and stars<3 -> model=a", "lang=de and stars>=3 -> model=b", "else -> refuse"],
    ],
)
def test_rules_that_may_each_have_documents_are_taken(rules: list[str]) -> None:
    """Whether two disagree about a document, only the source can say."""
    assert len(JobSpec(**PROMPT, routes=rules).routing.rules) == len(rules)


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("lang=de", "write CONDITION -> TARGET"),
        ("lang=de ->", "write CONDITION -> TARGET"),
        ("-> model=a", "write CONDITION -> TARGET"),
        ("german -> model=a", "is no condition"),
        ("stars<few -> model=a", "compares numbers"),
        ("@length=5 -> model=a", "a length is compared by"),
        ("language(lang)<5 -> model=a", "a language is compared by"),
        ("lang=de -> a", "is no part of a target"),
        ("lang=de -> model=", "is no part of a target"),
        ("lang=de -> lane=gpu", "share its lane"),
        ("lang=de -> tier=cheap", "there is no tier 'cheap'"),
        ("lang=de -> provider=other", "another provider has other models"),
        ("lang=de -> model=a model=b", "model is given twice"),
        ('lang="de -> model=a', "does not end"),
        ("x~(a -> model=a", "cannot be matched in bounded time"),
        (r"x~(a)\1 -> model=a", "backreferences are not supported"),
        ("x~(?=a) -> model=a", "look-around"),
        (r"x~(a{1000}){1000} -> model=a", "multiply to 1,000,000"),
        (r"x~a.{0,1000}b.{0,20}c -> model=a", "repeats too much"),
        (r"x~(\w?){300} -> model=a", "too large once it is unfolded"),
        (f"x~{'a' * 301} -> model=a", "at most 300 characters"),
    ],
)
def test_a_rule_that_cannot_be_read_says_what_to_write(rule: str, says: str) -> None:
    """With its place in the table, before anything is spent."""
    with pytest.raises(SpecError) as refused:
        JobSpec(**PROMPT, routes=["stars=1 -> model=b", rule])
    [problem] = refused.value.problems
    assert problem.pointer == "/routes/1"
    assert says in problem.fix


@pytest.mark.parametrize(
    ("spec", "pointer"),
    [
        ({"routes": ["a=1 -> max_tokns=5"]}, "/routes/0/max_tokns"),
        ({"routes": ["a=1 -> tier=flex"], "lane": "batch"}, "/routes/0"),
        ({"routes": ["a=1 -> model=m provider=p"], "lane": "batch"}, "/routes/0"),
        ({"routes": ["a=1 -> tier=flex"], "lane": "gpu"}, "/routes/0"),
        ({"routes": ["else -> model=a", "else -> model=b"]}, "/routes/1"),
        ({"routes": []}, "/routes"),
        ({"routes": ["a=1 -> model=m"], "prompt": None}, "/routes"),
    ],
)
def test_what_a_job_cannot_do_for_a_rule_is_refused(spec: dict[str, Any], pointer: str) -> None:
    """Each with the field."""
    with pytest.raises(SpecError) as refused:
        JobSpec(**{**PROMPT, **spec})
    assert pointer in [problem.pointer for problem in refused.value.problems]


def test_a_marked_request_is_sent_as_it_was() -> None:
    """The mark is in front, and nothing of the request is written anew."""
    body = b'{"model":"m","seed":1.0,"messages":[]}'
    assert marked(body, 0) == body
    assert (route_in(body), unmarked(body)) == (0, body)
    sent = marked(body, 17)
    assert orjson.loads(sent)["penstock_route"] == 17
    assert (route_in(sent), unmarked(sent)) == (17, body)
    again = orjson.dumps(orjson.loads(sent))
    assert route_in(again) == 17, "as a message and a replay write it"


@pytest.mark.parametrize(
    "body", [b"{}", b"", b'{"penstock_route":"x","a":1}', b'{"penstock_route":']
)
def test_a_request_that_only_looks_marked_has_no_route(body: bytes) -> None:
    """Messages come from outside."""
    assert (route_in(body), unmarked(body)) == (0, body)
