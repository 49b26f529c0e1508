"""Rules over a whole source: documents by route, what they cost, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock_producer.accepting.quality import check_prices, levers_of
from penstock_producer.accepting.sampling import preview, sample_of
from penstock_producer.accepting.survey import Survey, survey
from penstock_producer.errors import SourceError, SpecError, TooManyBadRows
from penstock_producer.job.provider_facts import ProviderFacts
from penstock_producer.job.routing import route_in
from penstock_producer.job.spec import JobSpec
from penstock_producer.rows import BadRow, Document
from penstock_producer.sources import open_source

ROWS = [
    {"id": str(n), "text": "word " * n, "lang": ("de", "en", "fr-CA")[n % 3], "stars": n}
    for n in range(1, 13)
]


def priced(dollars: float) -> dict[str, float]:
    return {"input": dollars, "output": dollars}


FACTS = ProviderFacts.model_validate(
    {"prices": {"small": priced(1), "large": priced(10), "tiny": priced(0.1)}}
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    return path


def job(**more: Any) -> JobSpec:
    asked = {"prompt": "Label: {text}", "model": "small", "params": {"max_tokens": 10}}
    return JobSpec.from_json(asked | more)


def surveyed(source: Path, spec: JobSpec) -> Survey:
    return survey(open_source(source, spec), spec)


def test_the_survey_counts_documents_by_route(source: Path) -> None:
    """It is kept with the job, since a route is decided by the document alone."""
    spec = job(routes=["lang=de -> model=large", "language(lang)=fr -> refuse"])
    found = surveyed(source, spec)
    assert {number: route.documents for number, route in found.routes.items()} == {0: 4, 1: 4, 2: 4}
    assert found.pin["routes"] == {"0": 4, "1": 4, "2": 4}
    assert {one.row.code for one in found.refused} == {"refused_by_route"}
    assert found.total == len(ROWS)


def test_a_row_takes_the_same_route_whenever_it_is_read(source: Path) -> None:
    """By the feed, and again by its position for a retry or after a loss."""
    spec = job(routes=["@length>40 -> model=large max_tokens=5", "else -> model=tiny"])
    opened = open_source(source, spec)
    documents = [row for row in opened.documents({}) if isinstance(row, Document)]
    assert [route_in(one.body) for one in documents] == [2] * 6 + [1] * 6
    for one in documents:
        request = json.loads(one.body)
        large = route_in(one.body) == 1
        assert (request["model"], request["max_tokens"]) == (
            ("large", 5) if large else ("tiny", 10)
        )
        assert opened.fetch(one.position).body == one.body


def test_two_rules_that_disagree_about_a_row_are_refused_with_its_line(source: Path) -> None:
    """Both rules are named: nothing is accepted, and the preview says the same."""
    spec = job(routes=["lang=en -> model=large", "stars>9 -> model=tiny"])
    with pytest.raises(SpecError) as refused:
        surveyed(source, spec)
    [problem] = refused.value.problems
    assert problem.pointer == "/routes"
    assert "rows.jsonl line 10: rule 1 (lang=en -> model=large) and rule 2" in problem.message
    assert "add a condition" in problem.fix
    with pytest.raises(SpecError, match="line 10"):
        preview(open_source(source, spec), spec, lambda _: FACTS, 1)


@pytest.mark.parametrize(
    ("asked", "least", "why"),
    [
        ({}, None, r"at least 100 requests here \(batch_min_requests\), and there are 12"),
        ({}, 12, None),
        ({"lanes": ["batch", "api"], "lane": "auto"}, None, None),
        ({"lane": "api"}, None, None),
        ({"routes": ["lang=de -> model=large"]}, 8, "there are 4 for the model large"),
        ({"routes": ["lang=de -> model=small"]}, 12, None),
        ({"routes": ["stars>2 -> refuse"]}, 3, "there are 2 for the model small"),
        ({"routes": ["stars>12 -> model=large"]}, 12, None),
    ],
)
def test_a_job_that_makes_no_batch_is_refused_before_it_is_made(
    source: Path, asked: dict[str, Any], least: int | None, why: str | None
) -> None:
    """A batch is of one model, and Bedrock takes none below its least number of records; where
    another lane is permitted, the documents go there."""
    facts = ProviderFacts(kind="bedrock", region="eu-central-1", batch_min_requests=least)
    spec = job(lane="batch", **{"max_bad_rows": 0} | asked) if "lane" not in asked else job(**asked)
    refusal = preview(open_source(source, spec), spec, lambda _: facts, 1).refusal()
    if why is None:
        assert refusal is None
    else:
        assert isinstance(refusal, SpecError)
        [problem] = refusal.problems
        assert (problem.code, problem.pointer) == ("too_few_documents", "/lane")
        assert re.search(why, problem.message)
        assert "providers.default.batch_min_requests" in str(problem.fix)


def test_a_column_that_no_row_has_is_refused(source: Path, tmp_path: Path) -> None:
    """Of files of lines after they are read, of tables before."""
    spec = job(routes=["language=de -> model=large"])
    with pytest.raises(SourceError, match="no column 'language' for a rule"):
        surveyed(source, spec)
    table = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), table)
    with pytest.raises(SourceError, match=r"no column 'language' for a rule.*'lang'"):
        surveyed(table, spec)
    assert surveyed(table, job(routes=["lang=de -> model=large"])).routes[1].documents == 4


def test_rows_that_a_rule_refuses_are_no_bad_rows(source: Path) -> None:
    """The job has said so; others beside them still count."""
    spec = job(routes=["stars>2 -> refuse"], max_bad_rows=0)
    assert len(surveyed(source, spec).refused) == 10
    source.write_text(source.read_text() + "oops\n")
    with pytest.raises(TooManyBadRows):
        surveyed(source, spec)


def test_messages_in_a_column_are_routed_by_all_of_their_text(tmp_path: Path) -> None:
    """As long as what is sent, with parts and what the assistant said."""
    path = tmp_path / "chats.jsonl"
    said = [
        {"role": "system", "content": "12345"},
        {"role": "user", "content": [{"type": "text", "text": "12345"}]},
        {"role": "assistant", "content": "12"},
        {"role": "user", "content": "123"},
    ]
    path.write_text(json.dumps({"id": "a", "chat": said}) + "\n")
    for rule, number in (("@length>=15 -> model=large", 1), ("@length>15 -> model=large", 0)):
        spec = JobSpec(messages_field="chat", model="small", routes=[rule])
        [row] = open_source(path, spec).documents({})
        assert not isinstance(row, BadRow)
        assert route_in(row.body) == number


def test_the_cost_is_that_of_the_models_that_are_asked(source: Path) -> None:
    """By route, with all answers going on or none, and by each step."""
    spec = job(
        routes=["lang=de -> model=large", "language(lang)=fr -> model=tiny"],
        escalate="score<0.5 -> model=large",
        degrade=["model=tiny at 50% of deadline"],
        deadline_s=60.0,
    )
    found = surveyed(source, spec)
    levers = levers_of(spec, found, lambda _: FACTS)
    costs = {one.rule.rpartition("=")[2]: one.cost_usd for one in levers.routes}
    tokens = {
        number: route.estimate.tokens_in + route.estimate.tokens_out
        for number, route in found.routes.items()
    }
    assert costs["large"] == pytest.approx(tokens[1] * 10e-6)
    assert costs["tiny"] == pytest.approx(tokens[2] * 0.1e-6, abs=1e-6)
    assert levers.escalated_usd is not None
    none, every = levers.escalated_usd
    own = preview(open_source(source, spec), spec, lambda _: FACTS, 1)
    assert none == own.cost_usd == pytest.approx(sum(costs.values() or []))  # type: ignore[arg-type]
    assert every is not None
    assert none is not None
    whole = found.estimate.tokens_in + found.estimate.tokens_out
    assert every - none == pytest.approx(whole * 10e-6)
    assert levers.steps[0][1] == pytest.approx(whole * 0.1e-6, abs=1e-6)
    assert own.to_json()["routes"][0]["documents"] == 4
    assert "penstock_route" not in json.loads(own.requests[0].body)


@pytest.mark.parametrize(
    ("rule", "pointer"),
    [
        ({"routes": ["a=1 -> model=large", "b=1 -> model=odd"]}, "/routes/1"),
        ({"routes": ["a=1 -> model=small provider=elsewhere"]}, "/routes/0"),
        ({"escalate": "score<1 -> model=odd"}, "/escalate"),
        ({"degrade": ["model=odd at 5% of deadline"], "deadline_s": 9.0}, "/degrade/0"),
    ],
)
def test_a_model_without_a_price_is_refused_where_the_jobs_own_has_one(
    rule: dict[str, Any], pointer: str
) -> None:
    """It would count as free. At a server of one's own nothing has a price."""
    known = {"default": FACTS}

    def facts(name: str) -> ProviderFacts:
        return known.get(name, ProviderFacts())

    with pytest.raises(SpecError) as refused:
        check_prices(job(**rule), facts)
    assert [(one.code, one.pointer) for one in refused.value.problems] == [
        ("missing_price", pointer)
    ]
    check_prices(job(**rule), lambda _: ProviderFacts())


def test_lanes_are_compared_by_what_rules_and_their_own_discounts_make_of_the_cost(
    source: Path,
) -> None:
    """A third of the documents costs ten times as much, and its model has no discount in batches:
    control and the preview compare these sums, flex among them."""
    small = priced(1) | {"batch_discount": 0.5, "tiers": {"flex": {"discount": 0.5}}}
    facts = ProviderFacts.model_validate({"prices": {"small": small, "large": priced(10)}})
    spec = job(lane="auto", routes=["lang=de -> model=large"])
    found = preview(open_source(source, spec), spec, lambda _: facts, 1)
    factors = found.survey.estimate.factors
    large = found.survey.routes[1].estimate
    share = (large.tokens_in + large.tokens_out) / (
        found.survey.estimate.tokens_in + found.survey.estimate.tokens_out
    )
    assert factors["api"] == pytest.approx(1 - share + 10 * share, rel=0.05)
    assert factors["batch"] == pytest.approx(1 - share + 20 * share, rel=0.05)
    assert factors["flex"] == factors["batch"]  # prices of one's own hold for all tiers
    assert found.cost_usd == pytest.approx(
        factors["api"] * (found.survey.estimate.usd(facts.prices_of("small")) or 0)
    )


@pytest.mark.parametrize(
    ("more", "repeats"),
    [({"dedup": "on"}, 4), ({"dedup": "always"}, 4), ({"dedup": "off"}, 0)],
)
def test_documents_that_ask_what_others_do_are_not_in_the_estimate(
    tmp_path: Path, more: dict[str, Any], repeats: int
) -> None:
    """Budgets, lanes and routes are priced by what is sent: one of each request."""
    path = tmp_path / "rows.jsonl"
    rows = [{"id": n, "text": "word " * (1 + n % 8), "lang": "de"} for n in range(12)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    spec = job(params={"max_tokens": 10, "temperature": 0}, routes=["lang=de -> model=large"])
    asked = JobSpec.from_json(spec.to_json() | more)
    found = surveyed(path, asked)
    assert found.repeats == repeats
    assert found.estimate.tokens_out == (12 - repeats) * 10
    assert found.routes[1].documents == 12
    assert found.routes[1].estimate.tokens_out == (12 - repeats) * 10


def test_rows_that_come_twice_are_refused_and_not_taken_off_once_more(tmp_path: Path) -> None:
    """A row whose id was used already costs nothing anyhow."""
    path = tmp_path / "rows.jsonl"
    rows = [{"id": n // 2, "text": "the same"} for n in range(10)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    asked = {"dedup": "always", "max_bad_rows": "100%", "params": {"max_tokens": 10}}
    found = surveyed(path, job(**asked))
    assert (len(found.refused), found.repeats, found.estimate.tokens_out) == (5, 4, 10)


def test_lines_of_a_sample_name_the_tier_of_their_rule(source: Path) -> None:
    """Each is asked as the whole job would ask it; a provider is none that a line can name."""
    spec = job(tier="priority", routes=["lang=de -> tier=flex", "lang=en -> model=large"])
    sample = sample_of(lambda: open_source(source, spec), spec, len(ROWS))
    bodies = {line["custom_id"]: line["body"] for line in map(json.loads, sample.lines)}
    assert sample.spec.tier is None
    for row in ROWS:
        body = bodies[row["id"]]
        assert body["service_tier"] == ("flex" if row["lang"] == "de" else "priority")
        assert body["model"] == ("large" if row["lang"] == "en" else "small")
        assert "penstock_route" not in body
    other = job(routes=["lang=de -> model=large provider=other"])
    with pytest.raises(SpecError, match="has a provider"):
        sample_of(lambda: open_source(source, other), other, 3)
