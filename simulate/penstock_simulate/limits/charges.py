"""What a call is charged, and when: at admission, corrected at the end, or as the answer is
produced.

Sources: the providers' rate-limit pages, named in penstock_ratelimit/provider/profiles.py.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock_simulate.choices import Mode


class Charge(NamedTuple):
    """Units of one call, by what can be limited. Negative ones are given back."""

    requests: int
    tokens: int
    input_tokens: int
    output_tokens: int


def charge(requests: int, input_tokens: int, output_tokens: int) -> Charge:
    return Charge(requests, input_tokens + output_tokens, input_tokens, output_tokens)


def correction(
    mode: Mode, charged: Charge, output: int, *, burndown: int, refund: bool
) -> Charge | None:
    """What is still due when the answer leaves; None is nothing.

    ``output``: tokens it had; ``burndown``: how many tokens each of them counts for where input and
    output share a limit; ``refund``: the call failed, and failing is free.
    """
    if refund:
        return charge(-charged.requests, -charged.input_tokens, -charged.output_tokens)
    if mode is not Mode.SETTLE:
        return None
    reserved = charged.output_tokens
    return Charge(0, output * burndown - reserved, 0, output - reserved)
