"""The explorer finds faults of the past that are put back."""

from __future__ import annotations

import pytest

from explore.known_faults import NOT_YET, KnownFault, known_faults, search

SAMPLE = ("claim-records-nothing", "starts-are-never-given-back")
"""Those that the first seeds find."""
SEEDS = 40


@pytest.mark.parametrize("name", SAMPLE)
def test_a_fault_of_the_past_is_found(name: str) -> None:
    """A seed fails with the fault, and does not fail without it."""
    (fault,) = known_faults([name])
    assert search(fault, SEEDS).seed is not None


@pytest.mark.whole
@pytest.mark.parametrize(
    "fault",
    [one for one in known_faults() if one.name not in {*SAMPLE, *NOT_YET}],
    ids=lambda fault: fault.name,
)
def test_every_other_fault_of_the_past_is_found(fault: KnownFault) -> None:
    """Likewise, with as many seeds as it takes."""
    assert search(fault).seed is not None
