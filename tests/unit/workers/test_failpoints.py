"""Failpoints hit where they are armed and are refused clearly when misspelt."""

from __future__ import annotations

import pytest

from penstock_workers.errors import FailpointHit, InvalidFailpoint
from penstock_workers.failpoints import Failpoints


def test_a_failpoint_hits_its_document_only() -> None:
    """`infer:doc-7:raise` spares every other document and every other place, even with colons in
    the id."""
    armed = Failpoints.parse("infer:doc:7:raise, before_commit:raise")
    armed.hit("infer", "doc-8")
    armed.hit("after_commit")
    with pytest.raises(FailpointHit, match="doc:7"):
        armed.hit("infer", "doc:7")
    with pytest.raises(FailpointHit, match="every document"):
        armed.hit("before_commit")


@pytest.mark.parametrize("text", ["infer", "infer:doc", "nowhere:kill", "infer:explode"])
def test_a_misspelt_failpoint_names_what_there_is(text: str) -> None:
    """The error shows the value and lists places and acts."""
    with pytest.raises(InvalidFailpoint, match=r"places: infer, .*acts: kill, raise"):
        Failpoints.parse(text)
