"""What `make soak` calls flat: noise is, a leak is not."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from soak.flat import Bound, Sample, found, per

BOUND = Bound(0.08, 6.0, "for these tests")
HOUR = 360  # samples, one in 10 s
SEEDS = 5
LEVEL = 120.0  # megabytes
Series = Callable[[float, random.Random], float]  # share of the time, chance -> measure


def series(shape: Series, samples: int = HOUR, seed: int = 1) -> list[Sample]:
    luck = random.Random(seed)
    return [Sample(10.0 * n, shape(n / samples, luck)) for n in range(samples)]


FLAT: dict[str, Series] = {
    "noise of a twentieth": lambda _, luck: LEVEL * luck.uniform(0.95, 1.05),
    "a sawtooth": lambda share, _: LEVEL + 60 * (share * 23 % 1),
    "warm after a quarter": lambda share, luck: LEVEL * min(1, 0.5 + 2 * share) + luck.gauss(0, 2),
    "a spike in ten": lambda _, luck: LEVEL * (8 if luck.random() < 0.1 else 1),
    "it shrinks": lambda share, luck: LEVEL * (1.5 - share) + luck.gauss(0, 2),
}
LEAKING: dict[str, Series] = {
    "steady": lambda share, _: LEVEL + 30 * share,
    "steady, in noise": lambda share, luck: (LEVEL + 40 * share) * luck.uniform(0.95, 1.05),
    "a sawtooth that climbs": lambda share, _: LEVEL + 30 * (share * 23 % 1) + 30 * share,
    "in ten steps": lambda share, luck: LEVEL + 4 * int(10 * share) + luck.gauss(0, 1),
    "after half of the time": lambda share, _: LEVEL + 60 * max(0, share - 0.5),
}


@pytest.mark.parametrize("samples", [60, HOUR])
@pytest.mark.parametrize("name", FLAT)
def test_what_goes_up_and_down_is_flat(name: str, samples: int) -> None:
    """However noisy, whatever its warm-up was, and where it shrinks."""
    for seed in range(SEEDS):
        assert found(series(FLAT[name], samples, seed), BOUND).flat


@pytest.mark.parametrize("samples", [60, HOUR])
@pytest.mark.parametrize("name", LEAKING)
def test_a_leak_is_refused(name: str, samples: int) -> None:
    """Also one that noise hides from the eye, and one that begins late."""
    for seed in range(SEEDS):
        assert not found(series(LEAKING[name], samples, seed), BOUND).flat


def test_a_level_of_nothing_may_grow_by_the_floor_alone() -> None:
    """A share of zero would refuse the first descriptor."""
    assert found(series(lambda share, _: 5 * share), BOUND).flat
    assert not found(series(lambda share, _: 15 * share), BOUND).flat


def test_too_few_samples_say_nothing() -> None:
    """Neither that it is flat nor that it grows: the run was too short."""
    for samples in (0, 1, 12):
        seen = found(series(FLAT["it shrinks"], samples), BOUND)
        assert (seen.enough, seen.flat) == (False, False)


def test_a_count_for_each_of_another() -> None:
    """Bytes for each document; while no document came its time counts with the next one."""
    logged = [Sample(0, 0), Sample(1, 100), Sample(2, 300), Sample(3, 400), Sample(4, 500)]
    documents = [Sample(0, 0), Sample(1, 10), Sample(2, 10), Sample(4, 20)]
    assert per(logged, documents) == [Sample(1, 10.0), Sample(4, 40.0)]
