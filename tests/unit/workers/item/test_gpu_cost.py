"""What items of a worker with a model cost: its hours, shared by those that compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attempts import make_attempt
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from penstock_producer import Producer
from penstock_producer.job.spec import JobSpec
from penstock_producer.prices import TokensUsed
from penstock_workers.item.answer import Answer
from penstock_workers.item.failures import Failure
from penstock_workers.item.lane import Prepared, request_of
from penstock_workers.item.run.cost import PricedAdmission, SharedTime
from penstock_workers.item.run.reading import read_job
from penstock_workers.item.settling.rows import prices_of
from penstock_workers.lanes.row import Unpaced
from penstock_workers.settings import CostSettings, ProviderSettings, WorkerSettings

ANSWER = Answer(200, {}, b"{}", 1)
FAILED = Failure("engine_failed", "no", None)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_overlaps_is_shared() -> None:
    """Two items that compute side by side pay half of that time each, and idle time is charged to
    none."""
    clock = Clock()
    shared = SharedTime(clock)
    first = shared.enter()
    clock.now += 4
    second = shared.enter()
    clock.now += 6
    assert shared.leave(first) == pytest.approx(4 + 3)
    clock.now += 1
    assert shared.leave(second) == pytest.approx(3 + 1)
    clock.now += 50
    third = shared.enter()
    clock.now += 2
    assert shared.leave(third) == pytest.approx(2)
    assert shared.busy_s == pytest.approx(13)


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 50)), max_size=30))
def test_all_items_together_cost_the_time_that_was_computed(
    spans: list[tuple[float, float]],
) -> None:
    """However they overlap: nothing is charged twice, and nothing computed is free."""
    clock = Clock()
    shared = SharedTime(clock)
    steps = sorted(
        [(begin, 0, number) for number, (begin, _) in enumerate(spans)]
        + [(begin + length, 1, number) for number, (begin, length) in enumerate(spans)]
    )
    entered, used = dict[int, float](), 0.0
    for at, ends, number in steps:
        clock.now = 100.0 + at
        if ends:
            used += shared.leave(entered[number])
        else:
            entered[number] = shared.enter()
    assert used == pytest.approx(shared.busy_s, abs=1e-6)


async def test_a_turn_is_charged_once_whatever_the_answer_is() -> None:
    """From its start to its conclusion; a failed answer has cost its time too, and a turn that
    never started nothing."""
    clock, attempt = Clock(), make_attempt(lane="gpu")
    prices = CostSettings(usd_per_gpu_hour=3.6, gpus=2)
    admission = PricedAdmission(Unpaced(), prices, SharedTime(clock))
    prepared = Prepared(request_of(attempt))
    unused = await admission.turn(attempt, prepared)
    unused.release()
    assert attempt.spent.cost_microusd == 0
    turn = await admission.turn(attempt, prepared)
    clock.now += 5  # waiting is not computing
    turn.start()
    clock.now += 10
    turn.conclude(ANSWER, FAILED)
    clock.now += 10
    turn.release()
    # 7.20 dollars an hour are 2,000 millionths a second
    assert attempt.spent.cost_microusd == 10 * 2_000


def test_the_price_of_a_worker() -> None:
    """Per card; that of spot machines counts on those only, and without a price nothing is
    charged."""
    prices: dict[str, Any] = {"usd_per_gpu_hour": 4.0, "spot_usd_per_gpu_hour": 1.0, "gpus": 8}
    assert CostSettings(**prices).usd_per_hour == 32.0
    assert CostSettings(**prices, on_spot=True).usd_per_hour == 8.0
    assert CostSettings(usd_per_gpu_hour=4.0, on_spot=True).usd_per_hour == 4.0
    assert CostSettings().usd_per_hour == 0.0


@pytest.mark.parametrize(("lane", "charged"), [("api", 2_000), ("embed", 0), ("gpu", 0)])
def test_prices_of_providers_are_not_charged_to_a_model_of_ones_own(
    lane: Any, charged: int, tmp_path: Path
) -> None:
    """A job of such a lane names a provider too, `default`, whose prices have nothing to do with it
    (H10)."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    priced = ProviderSettings(usd_per_mtok_in=100.0, usd_per_mtok_out=100.0)
    settings = WorkerSettings(database_url=url, providers={"default": priced})
    with Producer(settings) as producer:
        job = producer.open_job(JobSpec(lane=lane, model="m"))
        view = read_job(producer._jobs, settings)(job.job_id)
    prices = prices_of(view, "m")
    assert (0 if prices is None else prices.microusd(TokensUsed(10, 10))) == charged


def test_a_card_of_the_table_has_its_price_unless_one_is_given() -> None:
    """By the name of its cloud; a spot price that the table does not have is unknown, and not that
    of demand."""
    nebius: dict[str, Any] = {"card": "nebius/h100-sxm", "gpus": 2}
    assert CostSettings(**nebius).usd_per_hour == 5.9
    assert CostSettings(**nebius, on_spot=True).usd_per_hour == 2.5
    assert CostSettings(card="lambda/A10", on_spot=True).usd_per_hour == 0.0
    own = CostSettings(**nebius, usd_per_gpu_hour=1.0)
    assert (own.usd_per_hour, own.known) == (2.0, None)
    with pytest.raises(ValidationError, match="nebius/H100-SXM"):
        CostSettings(card="H100")
