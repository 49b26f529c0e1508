"""A server's own page of metrics says how many requests it works on, and how many wait there.

Pages are text in Prometheus' form, or JSON as TensorRT-LLM writes it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import orjson
from prometheus_client.parser import text_string_to_metric_families

from penstock_ratelimit import ServerGauges

__all__ = ["LINES_MAX", "SERVERS", "Names", "read_gauges"]

# lines of these names: 150 engines of one server, and a tenth of a second to read
LINES_MAX: Final = 8_192


class Names(NamedTuple):
    """The names that one server has for its gauges; of a label `request_type`, behind a blank."""

    waiting: str
    running: str | None  # None: it does not say
    ttft: str | None = None  # histogram of seconds to the first token
    queued: str | None = None  # the same of its queue, by requests that left it


# The first whose `waiting` a page has: of Triton's backends, before what Triton says itself.
SERVERS: Final[Mapping[str, Names]] = {
    "vLLM": Names(
        "vllm:num_requests_waiting",
        "vllm:num_requests_running",
        "vllm:time_to_first_token_seconds",
        "vllm:request_queue_time_seconds",
    ),
    "SGLang": Names(
        "sglang:num_queue_reqs",
        "sglang:num_running_reqs",
        "sglang:time_to_first_token_seconds",
        "sglang:queue_time_seconds",
    ),
    "TGI": Names("tgi_queue_size", "tgi_batch_current_size"),
    "TensorRT-LLM": Names("trtllm_num_requests_waiting", "trtllm_num_requests_running"),
    "TensorRT-LLM's iterations": Names("numQueuedRequests", "numActiveRequests"),
    "Triton with TensorRT-LLM": Names(
        "nv_trt_llm_request_metrics waiting", "nv_trt_llm_request_metrics scheduled"
    ),
    "Triton": Names("nv_inference_pending_request_count", None),
}
_READ: Final = tuple({name.split()[0] for names in SERVERS.values() for name in names if name})
_IDLE: Final = {"numQueuedRequests": 0, "numActiveRequests": 0}
_Sample = tuple[str, Mapping[str, str], float]


def read_gauges(text: str) -> ServerGauges:
    """Return the figures of a server, summed over its engines.

    Raises ValueError for a page without these gauges, and for one that makes no sense."""
    is_json = text.lstrip()[:1] == "["
    sums, buckets = defaultdict[str, float](float), defaultdict[str, dict[float, float]](dict)
    for name, labels, value in _of_iterations(text) if is_json else _of_lines(text):
        if labels.get("priority"):
            continue  # SGLang's parts of a sum that stands beside them
        bound, kind = labels.get("le"), labels.get("request_type")
        if bound is None:
            sums[name if kind is None else f"{name} {kind}"] += value
        else:
            of_name = buckets[name]
            of_name[float(bound)] = of_name.get(float(bound), 0.0) + value
    names = next((names for names in SERVERS.values() if names.waiting in sums), None)
    if names is None:
        known = ", ".join(names.waiting for names in SERVERS.values())
        raise ValueError(f"the page has none of {known}")
    if names.running is not None and names.running not in sums:
        raise ValueError(f"the page has {names.waiting}, and no {names.running}")
    running = 0.0 if names.running is None else sums[names.running]
    waiting = sums[names.waiting]
    if any(not math.isfinite(number) or number < 0 for number in (running, waiting)):
        raise ValueError(f"{names.waiting} and its like are no numbers of requests")
    return ServerGauges(
        running,
        waiting,
        tuple(sorted(buckets[f"{names.ttft}_bucket"].items())),
        sums[f"{names.queued}_sum"],
        sums[f"{names.queued}_count"],
    )


def _of_lines(text: str) -> Iterator[_Sample]:
    """Yield what the lines of a page say of these names. Raises ValueError."""
    lines = [line for line in text.splitlines() if any(name in line for name in _READ)]
    if len(lines) > LINES_MAX:
        raise ValueError(f"it has more than {LINES_MAX:,} lines of such gauges")
    try:
        for family in text_string_to_metric_families("\n".join(lines)):
            for sample in family.samples:
                yield sample.name, sample.labels, float(sample.value)
    except (LookupError, OverflowError) as error:  # of what the library does not expect
        raise ValueError(f"it is no page of metrics ({error!r})") from error


def _of_iterations(text: str) -> Iterator[_Sample]:
    """Yield what the latest iteration of each rank says. Raises ValueError.

    No iteration since the last look is no request."""
    rows: Any = orjson.loads(text)
    latest = {str(row.get("attentionDpRank")): row for row in rows or [_IDLE] if type(row) is dict}
    for row in latest.values():
        for name, value in row.items():
            if name in _READ and type(value) in (int, float):
                yield name, {}, float(value)
