"""All cases, with the targets that the project set itself."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.pacing.case import Case, Targets, Trouble
from benchmarks.pacing.provider import MINUTE_S, Charge
from benchmarks.pacing.sizes import TWO_KINDS

DEEP_BURST_S, DEEP_HORIZON_S = 2.0, 1.0
"""For a provider whose bucket holds ten seconds or more."""
SETTLING_HORIZON_S = 0.4
"""For a bucket of one second when charges are corrected afterwards: burst, horizon and jitter must
fit in it."""
STEADY = Targets(jain=0.99, jain_jobs=0.99, calls_per_item=0.5)
TOKENS_BIND, BOTH_BIND = 1500.0, 1000.0
ROUND_TRIP_S = 0.3
"""Jitter and latency: a lowered limit is not known before the first answer that tells it."""


def _steady() -> list[Case]:
    return [
        Case("steady", "4 processes, 1-s bucket, requests bind", STEADY, quick=True),
        Case("tokens", "the same, tokens bind", STEADY, mean_tokens=TOKENS_BIND),
        Case(
            "both",
            "requests and tokens bind alike",
            Targets(),
            mean_tokens=BOTH_BIND,
        ),
        Case(
            "fast",
            "200 requests a second",
            Targets(calls_per_item=0.25),
            per_second=200.0,
            slots=(60,),
        ),
        Case("one", "1 process", Targets(calls_per_item=0.5), processes=1, slots=(60,)),
        Case(
            "sixteen",
            "16 processes of few slots",
            Targets(jain=0.99, calls_per_item=1.1),
            processes=16,
            slots=(10,),
        ),
        Case(
            "uneven",
            "60/60/10/4 slots, 2 s per answer",
            Targets(),
            slots=(60, 60, 10, 4),
            latency_s=2.0,
            warm_up_s=6.0,
            quick=True,
        ),
        Case(
            "large",
            "95 of 100 small, 5 of 100 sixty times as large",
            Targets(jain=0.95),
            sizes=TWO_KINDS,
            mean_tokens=TOKENS_BIND,
            largest_s=0.8,
            burst_s=0.8,
        ),
        Case(
            "jobs",
            "two jobs of equal weight with 8 and 2 of 10 slots",
            Targets(jain_jobs=0.98),
            job_parts=(0.8, 0.2),
            slots=(80,),
        ),
        Case(
            "failures",
            "3 of 100 answers are a charged 500",
            Targets(),
            fail_rate=0.03,
        ),
    ]


def _providers() -> list[Case]:
    """Depths, the fixed window, and when tokens are charged."""
    cases = [
        _deep(
            Case(f"depth-{depth_s:g}", f"bucket of {depth_s:g} s", STEADY),
            depth_s,
        )
        for depth_s in (10.0, 60.0)
    ]
    cases.append(
        _deep(
            Case("minute", "fixed minute, nothing carried over", STEADY, window_s=MINUTE_S),
            MINUTE_S,
        )
    )
    charges = {
        Charge.MAX_TOKENS: "prompt + max_tokens charged, never given back",
        Charge.SETTLED: "prompt + max_tokens charged, corrected at the end",
        Charge.PRODUCED: "input and output apart, output as it is produced",
    }
    for charge, what in charges.items():
        mean = 1.2 * TOKENS_BIND if charge is not Charge.MAX_TOKENS else TOKENS_BIND
        name = charge.value.replace("_", "-")
        case = Case(
            f"{name}-1",
            f"{what}; 1-s bucket",
            Targets(),
            charge=charge,
            mean_tokens=mean,
            horizon_s=SETTLING_HORIZON_S,
        )
        cases += [case, _deep(replace(case, name=f"{name}-10", what=f"{what}; 10-s bucket"), 10.0)]
    return cases


def _deep(case: Case, depth_s: float) -> Case:
    return replace(case, depth_s=depth_s, burst_s=DEEP_BURST_S, horizon_s=DEEP_HORIZON_S)


def _estimates() -> list[Case]:
    """Learned by a limiter that has an estimator; the shallow bucket shows what the learning
    costs."""
    targets = Targets(utilisation=0.95, refused=None, refused_share=0.01)
    cases = []
    for name, factor, largest_s in (("low", 0.2, 0.5), ("high", 5.0, 0.2)):
        case = Case(
            f"{name}-1",
            f"estimates 5x {name}, learned; 1-s bucket",
            targets,
            estimate_factor=factor,
            learns=True,
            mean_tokens=TOKENS_BIND,
            largest_s=largest_s,
            warm_up_s=8.0,
            horizon_s=SETTLING_HORIZON_S,
        )
        cases += [
            case,
            _deep(
                replace(case, name=f"{name}-10", what=f"estimates 5x {name}, learned; 10-s bucket"),
                10.0,
            ),
        ]
    return cases


def _disruptions() -> list[Case]:
    rate = Case("", "").per_second
    return [
        Case(
            "halved",
            "limit halved halfway, stated in headers",
            Targets(utilisation=0.95, refused=round(rate * ROUND_TRIP_S)),
            trouble=Trouble.HALVED,
            told=True,
            quick=True,
        ),
        Case(
            "flushall",
            "FLUSHALL halfway",
            Targets(utilisation=0.95, refused=3, recovered_s=1.0),
            trouble=Trouble.FLUSHED,
            quick=True,
        ),
        Case(
            "restart",
            "Redis away for 2 s, back without its data",
            Targets(utilisation=None, refused=0, recovered_s=1.0),
            trouble=Trouble.RESTARTED,
        ),
        Case(
            "killed",
            "one of 4 killed with its tickets",
            Targets(jain=0.99),
            trouble=Trouble.KILLED,
            least_s=20.0,
        ),
        Case(
            "skew-ahead",
            "one clock 2 s ahead",
            STEADY,
            skew_s=2.0,
            quick=True,
        ),
        Case("skew-behind", "one clock 2 s behind", STEADY, skew_s=-2.0),
        Case(
            "ahead",
            "one process starts 3 s before the others",
            STEADY,
            head_start_s=3.0,
        ),
        Case("jitter", "wire delay up to 0.6 s", Targets(), jitter_s=0.6),
        Case("oversized", "each process also asks for what never fits", STEADY, oversized=True),
        *(
            _deep(
                Case(
                    f"foreign-{start}",
                    f"30 % of the rate used by others, headers read, 10-s bucket that is {start} "
                    "at first",
                    Targets(utilisation=0.95, refused=None, refused_share=0.01),
                    foreign=0.3,
                    told=True,
                    warm_up_s=15.0,
                    opening_s=opening_s,
                ),
                10.0,
            )
            for start, opening_s in (("half", 5.0), ("empty", 1.0))
        ),
    ]


CASES = {case.name: case for case in (*_steady(), *_providers(), *_estimates(), *_disruptions())}
