"""The queue in front of a self-hosted server, in times that the test passes in."""

from __future__ import annotations

from penstock_simulate.capacity import ServerSlots, gauges, resized
from penstock_simulate.config import SimulatorConfig


def test_calls_beyond_the_slots_wait_in_order() -> None:
    """Two at a time, one second each: six calls at once wait 0, 0, 1, 1, 2 and 2 seconds."""
    slots = ServerSlots(2)
    assert [slots.enter(10.0, 1.0) for _ in range(6)] == [0, 0, 1, 1, 2, 2]
    assert [(slots.running(at), slots.waiting(at)) for at in (10.0, 11.5, 12.5, 13.0)] == [
        (2, 4),
        (2, 2),
        (2, 0),
        (0, 0),
    ]


def test_throughput_ends_at_the_slots_and_latency_grows() -> None:
    """Twice the load that the slots can serve: every call waits longer than the one before, none is
    refused."""
    slots = ServerSlots(4)
    waits = [slots.enter(at / 8, 1.0) for at in range(80)]
    assert waits == sorted(waits)
    assert waits[-1] > 8
    assert slots.running(9.9) == 4


def test_the_number_of_slots_can_change() -> None:
    """With more of them calls start at once again; with fewer they wait for those that are left."""
    slots = ServerSlots(1)
    assert [slots.enter(0.0, 10.0), slots.enter(0.0, 10.0)] == [0, 10]
    slots.change(2)
    assert slots.enter(1.0, 10.0) == 0
    slots.change(1)
    assert slots.enter(2.0, 10.0) == 18


def test_a_queue_is_kept_only_where_one_is_asked_for() -> None:
    """vLLM waits, the others refuse; a change of settings keeps the requests in the queue."""
    assert resized(None, SimulatorConfig(max_concurrency=3)) is None
    slots = resized(None, SimulatorConfig(like="vllm", max_concurrency=1))
    assert isinstance(slots, ServerSlots)
    slots.enter(0.0, 5.0)
    assert resized(slots, SimulatorConfig(like="vllm", max_concurrency=2)) is slots


def test_the_gauges_have_vllms_names() -> None:
    """Prometheus text with a type for each gauge and a label for the model."""
    lines = gauges(3, 12, "sim-small").splitlines()
    assert "# TYPE vllm:num_requests_running gauge" in lines
    assert 'vllm:num_requests_running{engine="0",model_name="sim-small"} 3.0' in lines
    assert 'vllm:num_requests_waiting{engine="0",model_name="sim-small"} 12.0' in lines
