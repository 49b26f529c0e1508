"""The stop-loss of a job: its rule over all small cases, what it counts, and what is said of a
pause and done about it."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import orjson
import pytest
from attempts import make_attempt

from penstock_ledger import Lately
from penstock_ledger.in_redis.batches import lately_of
from penstock_ledger.model import DeadLetter
from penstock_ledger.reasons import (
    ACCEPTED_NOTHING,
    Accepted,
    By,
    Reason,
    StopCode,
    accepted_with,
    explain,
    read_accepted,
    read_reason,
    stored_reason,
)
from penstock_producer import JobSpec, SpecError
from penstock_producer.job.options import OPTIONS
from penstock_producer.reporting.advice import as_field, as_flag
from penstock_producer.reporting.pauses import advice_for
from penstock_producer.reporting.reasons import FIRST
from penstock_workers.item.outcome import Dead, Done, Outcome, Retry
from penstock_workers.item.run.cost import too_long
from penstock_workers.item.run.fates import FATES
from penstock_workers.item.settling.stop_loss import (
    COST_MARGIN,
    FAILING_MARGIN,
    REFUSED,
    Bounds,
    Stop,
    decide,
    failing_share,
)

USUAL = Bounds(0.5, None)
PARAMS: dict[str, Any] = {
    "generation": 1,
    "bad": 97,
    "of": 100,
    "failing": 0.97,
    "usd_per_doc": 0.002,
    "bound": 50.0,
    "cause": {"reason": "schema_mismatch", "count": 97},
    "examples": [{"doc_id": "doc-1", "reason": "schema_mismatch", "excerpt": "no JSON"}],
}
PAUSE = Reason(StopCode.MISSED, By.STOP_LOSS, PARAMS)


def test_the_rule_is_what_its_words_say() -> None:
    """Over all combinations of shares, numbers, bounds and what was accepted: it stops exactly
    where a share of at least a hundred reaches its bound, and the accepted share and a margin; or
    where a document costs more than its bound."""
    numbers, shares = (0, 1, 99, 100, 500), (0.0, 0.1, 0.49, 0.5, 0.7, 1.0)
    stopped = 0
    for ended, answered, dead, missed, bound, known in product(
        numbers, numbers, shares, shares, (None, 0.5, 1.0), shares
    ):
        figures = Lately(ended, int(dead * ended), answered, int(missed * answered))
        least = None if bound is None else max(bound, known + FAILING_MARGIN if known else 0.0)
        wanted = least is not None and any(
            of >= FIRST and bad / of >= least
            for bad, of in ((figures.dead, ended), (figures.missed, answered))
        )
        found = decide(figures, Bounds(bound, None), Accepted(1, known))
        assert (found is not None) is wanted, (figures, bound, known, found)
        stopped += wanted
    assert stopped > 100, "the cases would prove nothing"


@pytest.mark.parametrize("documents", [20, 99])
def test_a_small_job_is_never_stopped_for_a_share(documents: int) -> None:
    """Every document of a job of fewer than a hundred is dead, and every answer was refused."""
    assert (
        decide(Lately(documents, documents, documents, documents), USUAL, ACCEPTED_NOTHING) is None
    )


def test_a_healthy_job_is_never_stopped() -> None:
    """A hundred thousand documents, of which a tenth is dead, looked at as often as groups are
    settled."""
    chance = random.Random(7)
    earlier, lately, looks = [0, 0], [0, 0], 0
    for _ in range(4_000):
        lately[0] += 500 // 20
        lately[1] += sum(chance.random() < 0.1 for _ in range(25))
        figures = Lately(earlier[0] + lately[0], earlier[1] + lately[1])
        assert decide(figures, USUAL, ACCEPTED_NOTHING) is None
        looks += figures.ended >= FIRST
        if lately[0] >= 500:
            earlier, lately = lately, [0, 0]
    assert looks > 3_900


def test_the_cost_of_a_document_has_a_bound() -> None:
    """Until a hundred have ended, as if they had: a job of a few dear documents stops, too.

    What was accepted, and a quarter more, does not stop it again."""
    bounds = Bounds(None, 0.01)
    assert decide(Lately(ended=10, cost_microusd=900_000), bounds, ACCEPTED_NOTHING) is None
    assert decide(Lately(ended=10, cost_microusd=1_100_000), bounds, ACCEPTED_NOTHING) == Stop(
        StopCode.COST, 10, 10
    )
    assert (
        decide(Lately(ended=1_000, cost_microusd=11_000_000), bounds, ACCEPTED_NOTHING) is not None
    )
    assert (
        decide(Lately(ended=1_000, cost_microusd=11_000_000), bounds, Accepted(1, 0.0, 0.011))
        is None
    )
    worse = round(1_000 * 11_000 * COST_MARGIN) + 1
    assert (
        decide(Lately(ended=1_000, cost_microusd=worse), bounds, Accepted(1, 0.0, 0.011))
        is not None
    )


def test_what_is_refused_first_dies_later_and_is_accepted_as_one() -> None:
    """A person lets a job go on whose every answer is refused: that these documents are dead
    letters then is no news."""
    assert failing_share(Lately(ended=10, dead=0, answered=100, missed=100)) == 1.0
    assert (
        decide(Lately(ended=600, dead=600, answered=600, missed=600), USUAL, Accepted(1, 1.0))
        is None
    )


def letter(reason: str) -> Dead:
    key = make_attempt().key
    return Dead(DeadLetter(key, reason, 1, 1, "why", None, b"{}", None))


@pytest.mark.parametrize(
    ("outcome", "retries", "counts"),
    [
        (Retry(1.0, "schema_mismatch", "no JSON"), 0, True),
        (Retry(1.0, "schema_mismatch", "no JSON"), 1, False),
        (letter("invalid_result"), 0, True),
        (letter("schema_mismatch"), 1, False),
        (Retry(1.0, "server_error", "500", counted=True), 0, False),
        (letter("bad_request"), 0, False),
    ],
)
def test_the_first_answer_to_a_document_counts_once(
    outcome: Outcome, retries: int, counts: bool
) -> None:
    """Only answers that came, and that the job's own checks refused: what fails otherwise counts
    where it ends."""
    from penstock_workers.item.settling.stop_loss import is_refused_first

    assert not isinstance(outcome, Done)
    assert is_refused_first(make_attempt(retries=retries), outcome) is counts


def test_refused_answers_are_failures_that_the_table_knows() -> None:
    """Their names are those of the table of failures."""
    assert FATES.keys() >= REFUSED


def test_the_latest_documents_are_two_stretches() -> None:
    """Fields of another release are left out."""
    found = lately_of(
        {b"ended": b"3", b"why:timeout": b"1", b"new": b"9"}, {b"ended": b"500", b"dead": b"2"}, {}
    )
    assert found == Lately(503, 2, reasons={"timeout": 1})


def test_a_pause_is_stored_as_data_and_read_back() -> None:
    """Whole, as long as the reason beside it is its own; a process of before, which writes a reason
    alone, ends it."""
    text, reason = stored_reason(PAUSE), explain(PAUSE)
    assert read_reason(text, reason) == PAUSE
    assert read_reason(text, None) is None
    for odd in (None, "{", "[]", "1", '{"code": "x", "by": "nobody", "params": {}}'):
        found = read_reason(odd, reason)
        assert found is not None
        assert (found.code, explain(found)) == ("unknown", reason)


def test_the_sentence_says_how_many_why_and_which() -> None:
    """With and without its examples; of a code or parameters of another release the code is
    shown."""
    said = explain(PAUSE)
    assert said == (
        "97 of the first answers to the latest 100 documents were paid for and refused "
        "(stop_at_dead is 50%); most often schema_mismatch (97); for example doc-1: "
        "schema_mismatch: no JSON"
    )
    assert explain(PAUSE, examples=False) == said.partition("; for example")[0]
    assert explain(Reason("of_another_release", By.LANE)) == "of_another_release"
    assert explain(Reason(StopCode.DEAD, By.STOP_LOSS, {"bad": 1})) == "stop_dead"


def test_letting_a_job_go_on_accepts_the_worst_of_its_generation() -> None:
    """What was accepted before stays where it was worse, and counts for its generation alone."""
    text = stored_reason(PAUSE)
    assert accepted_with(text, None) == Accepted(1, 0.97, 0.002)
    assert accepted_with(text, Accepted(1, 0.6, 0.5)) == Accepted(1, 0.97, 0.5)
    assert accepted_with(text, Accepted(2, 1.0, 0.5)) == Accepted(1, 0.97, 0.002), (
        "another generation's says nothing"
    )
    assert accepted_with(stored_reason(Reason("x", By.PERSON)), None) is None
    assert read_accepted(orjson.dumps(Accepted(1, 0.97, 0.002).to_json()).decode()) == Accepted(
        1, 0.97, 0.002
    )


def test_what_to_do_is_an_option_of_the_job_for_every_surface() -> None:
    """The cause's fix, then going on as it is, then another bound: as a flag and as a field."""
    texts = advice_for(PAUSE)
    action = texts[-1].action
    assert len(texts) == 3
    assert action is not None
    assert (as_flag(action), as_field(action)) == ("--stop-at-dead off", {"stop_at_dead": "off"})
    dear = advice_for(Reason(StopCode.COST, By.STOP_LOSS, PARAMS | {"bound_usd": 0.001}))[-1].action
    assert dear is not None
    assert as_flag(dear) == "--stop-at-usd-per-doc 0.004"
    assert {action.field, dear.field} <= OPTIONS.keys()
    assert advice_for(None) == advice_for(Reason("x", By.PERSON)) == ()


@pytest.mark.parametrize("value", ["0%", "101%", "half", "", "50", "OFF"])
def test_other_bounds_are_refused_with_what_to_write(value: str) -> None:
    """A share above 0 and up to 100, with its sign, or off."""
    with pytest.raises(SpecError, match=r"stop_at_dead.*write a share"):
        JobSpec(stop_at_dead=value)


def test_the_usual_bound_is_half() -> None:
    """A spec that names none has it; off lifts it, and a cost is a bound of its own."""
    assert Bounds.of(JobSpec()) == USUAL
    assert Bounds.of(JobSpec(stop_at_dead="off", stop_at_usd_per_doc=0.2)) == Bounds(None, 0.2)


def test_a_prompt_is_too_long_by_a_quarter_of_its_bytes() -> None:
    """Images count nothing, and neither does anything in a job without a bound."""
    body = orjson.dumps({"messages": [{"role": "user", "content": "x" * 4_000}]})
    assert too_long(body, None) is None
    assert too_long(body, 1_100) is None
    assert "about 1,0" in (too_long(body, 1_000) or "")
    image = orjson.dumps({"url": "data:image/png;base64," + "A" * 400_000})
    assert too_long(image, 1_000) is None
