"""Promises of the alert rules, tried by Prometheus's own promtool: each fires when it should, and a
well fleet is quiet."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tools.monitoring.alerts import ALERTS

RULES = Path(__file__).parents[3] / "helm/penstock/files/alerts.yaml"
MINUTES = 120  # of series, one sample each minute
LANE = 'lane="api"'
ON = f'instance="w:9100",{LANE}'
CONTROL = 'instance="c:9100"'
ENGINE = 'instance="w:9100",lane="gpu"'


def still(value: float) -> str:
    return f"{value}x{MINUTES}"


def rising(per_minute: float) -> str:
    return f"0+{per_minute}x{MINUTES}"


def clock(behind_s: float = 0.0) -> str:
    """A timestamp that is looked at each minute; tests begin at the epoch."""
    return f"{-behind_s}+60x{MINUTES}"


# A fleet that works: what is not said otherwise by a scenario.
WELL = {
    f"penstock_queue_depth{{{CONTROL},{LANE}}}": still(500),
    f"penstock_unacked{{{CONTROL},{LANE}}}": still(80),
    f"penstock_workers{{{CONTROL},{LANE}}}": still(4),
    f"penstock_window_items{{{CONTROL},{LANE}}}": still(580),
    f"penstock_oldest_item_age_seconds{{{CONTROL},{LANE}}}": still(25),
    f'penstock_items_total{{{ON},outcome="succeeded"}}': rising(600),
    f'penstock_items_total{{{ON},outcome="dead"}}': rising(3),
    f'penstock_dead_total{{{ON},reason="bad_request"}}': rising(3),
    f'penstock_retries_total{{{ON},cause="counted"}}': rising(20),
    f"penstock_slots_in_use{{{ON}}}": still(64),
    f"penstock_leases_restored_total{{{ON}}}": rising(1),
    'penstock_bound{instance="w:9100",lane="gpu",by="queue"}': still(0),
    f'penstock_window_items{{{CONTROL},lane="gpu"}}': still(10),
    f'penstock_store_seconds_bucket{{{ON},store="sql",le="0.1"}}': rising(10),
    f'penstock_store_seconds_bucket{{{ON},store="sql",le="5.0"}}': rising(10),
    f'penstock_store_seconds_bucket{{{ON},store="sql",le="+Inf"}}': rising(10),
    f'penstock_quota_granted_total{{{CONTROL},quota="default"}}': rising(600),
    f'penstock_quota_throttled_total{{{CONTROL},quota="default"}}': rising(6),
    f'penstock_quota_breaker_open{{{CONTROL},quota="default"}}': still(0),
    f'penstock_quota_held{{{CONTROL},quota="default"}}': still(0),
    f'penstock_drained_items_total{{{CONTROL},{LANE},result="finished"}}': rising(5),
    f'penstock_drained_items_total{{{CONTROL},{LANE},result="requeued"}}': rising(1),
    f"penstock_republished_total{{{CONTROL},{LANE}}}": still(0),
    'penstock_door_requests_total{instance="d:9100",route="/v1/files",method="GET",status="200"}': rising(
        600
    ),
    'penstock_door_requests_total{instance="d:9100",route="/v1/files",method="GET",status="503"}': rising(
        6
    ),
    'penstock_door_task_failures_total{instance="d:9100",task="Deliveries"}': still(1),
    'penstock_door_batch_steps_total{instance="d:9100",state="finalizing",result="failed"}': still(
        1
    ),
    'penstock_door_webhook_tries_total{instance="d:9100",outcome="gave_up"}': still(1),
    f"penstock_redis_rebuilds_total{{{CONTROL}}}": still(0),
    f"penstock_redis_memory_bytes{{{CONTROL}}}": still(400),
    f"penstock_redis_memory_limit_bytes{{{CONTROL}}}": still(1000),
    f"penstock_looked_timestamp_seconds{{{CONTROL}}}": clock(5),
    f'penstock_schedules{{{CONTROL},state="late"}}': still(0),
    f'penstock_control_ticks_total{{{CONTROL},result="ok"}}': rising(300),
    f'penstock_control_ticks_total{{{CONTROL},result="failed"}}': rising(1),
    f"penstock_parked_unknown{{{CONTROL}}}": still(0),
    f"penstock_unsettled_oldest_seconds{{{ON}}}": still(1),
    f"penstock_unserved_items{{{CONTROL},{LANE}}}": still(0),
    f"penstock_engine_deaths_total{{{ENGINE}}}": f"0x{MINUTES - 40} 1x40",  # half an hour ago
    f'penstock_failed_tries_total{{{ENGINE},reason="timeout"}}': rising(2),
}

STOPPED = {
    f'penstock_items_total{{{ON},outcome="{how}"}}': still(9) for how in ("succeeded", "dead")
}
LATE_JUMP = f"0x{MINUTES - 5} 1x5"

# What is different when the alert must fire, and the labels that it then has.
ILL: dict[str, tuple[dict[str, str], str]] = {
    "PenstockNoWorkers": ({f"penstock_workers{{{CONTROL},{LANE}}}": still(0)}, LANE),
    "PenstockNothingSettles": (STOPPED, LANE),
    "PenstockWorkerStuck": (STOPPED, ON),
    "PenstockUnsettled": ({f"penstock_unsettled_oldest_seconds{{{ON}}}": still(301)}, ON),
    "PenstockOldestItem": (
        {f"penstock_oldest_item_age_seconds{{{CONTROL},{LANE}}}": still(1900)},
        LANE,
    ),
    "PenstockDeadLetters": (
        {
            f'penstock_dead_total{{{ON},reason="bad_request"}}': rising(60),
            f'penstock_items_total{{{ON},outcome="dead"}}': rising(60),
        },
        LANE,
    ),
    "PenstockRetries": ({f'penstock_retries_total{{{ON},cause="counted"}}': rising(400)}, LANE),
    "PenstockThrottled": (
        {f'penstock_quota_throttled_total{{{CONTROL},quota="default"}}': rising(60)},
        'quota="default"',
    ),
    "PenstockQuotaHeld": (
        {f'penstock_quota_held{{{CONTROL},quota="default"}}': still(1)},
        'quota="default"',
    ),
    "PenstockProviderFails": (
        {f'penstock_quota_breaker_open{{{CONTROL},quota="default"}}': still(1)},
        'quota="default"',
    ),
    "PenstockLeasesExpire": ({f"penstock_leases_restored_total{{{ON}}}": rising(20)}, LANE),
    "PenstockDrainsTooShort": (
        {f'penstock_drained_items_total{{{CONTROL},{LANE},result="requeued"}}': rising(50)},
        LANE,
    ),
    "PenstockMessagesLost": ({f"penstock_republished_total{{{CONTROL},{LANE}}}": LATE_JUMP}, LANE),
    "PenstockRedisForgot": ({f"penstock_redis_rebuilds_total{{{CONTROL}}}": LATE_JUMP}, ""),
    "PenstockRedisFull": ({f"penstock_redis_memory_bytes{{{CONTROL}}}": still(800)}, ""),
    "PenstockNoControl": ({f"penstock_looked_timestamp_seconds{{{CONTROL}}}": clock(300)}, ""),
    "PenstockControlFails": (
        {f'penstock_control_ticks_total{{{CONTROL},result="failed"}}': rising(400)},
        CONTROL,
    ),
    "PenstockScheduleFailed": (
        {f'penstock_schedule_firings_total{{{CONTROL},outcome="failed"}}': LATE_JUMP},
        "",
    ),
    "PenstockScheduleDrifted": (
        {f'penstock_schedule_compared_total{{{CONTROL},result="moved"}}': LATE_JUMP},
        "",
    ),
    "PenstockScheduleMissed": (
        {f'penstock_schedule_firings_total{{{CONTROL},outcome="skipped"}}': LATE_JUMP},
        "",
    ),
    "PenstockScheduleLate": ({f'penstock_schedules{{{CONTROL},state="late"}}': still(1)}, ""),
    "PenstockStoreSlow": (
        {f'penstock_store_seconds_bucket{{{ON},store="sql",le="0.1"}}': still(0)},
        'store="sql"',
    ),
    "PenstockUnreadable": ({f"penstock_parked_unknown{{{CONTROL}}}": still(2)}, ""),
    "PenstockModelUnserved": ({f"penstock_unserved_items{{{CONTROL},{LANE}}}": still(7)}, LANE),
    "PenstockEngineStarves": (
        {'penstock_bound{instance="w:9100",lane="gpu",by="queue"}': still(1)},
        'lane="gpu"',
    ),
    "PenstockEngineDies": ({f"penstock_engine_deaths_total{{{ENGINE}}}": LATE_JUMP}, 'lane="gpu"'),
    "PenstockEnginesKeepDying": (
        {f"penstock_engine_deaths_total{{{ENGINE}}}": f"0x{MINUTES - 30} 1+1x3 4x30"},
        ENGINE,
    ),
    "PenstockDoorFails": (
        {
            'penstock_door_requests_total{instance="d:9100",route="/v1/files",method="GET",status="503"}': rising(
                60
            )
        },
        "",
    ),
    "PenstockDoorWorkFails": (
        {'penstock_door_task_failures_total{instance="d:9100",task="Deliveries"}': rising(1)},
        'task="Deliveries"',
    ),
    "PenstockBatchStepsFail": (
        {
            'penstock_door_batch_steps_total{instance="d:9100",state="finalizing",result="failed"}': rising(
                1
            )
        },
        'state="finalizing"',
    ),
    "PenstockWebhooksGivenUp": (
        {'penstock_door_webhook_tries_total{instance="d:9100",outcome="gave_up"}': LATE_JUMP},
        "",
    ),
}


@pytest.fixture
def promtool() -> str:
    path = shutil.which("promtool")
    if path is None:
        pytest.skip(
            "promtool is not here (Debian: apt install prometheus); the parser of "
            "test_metrics_catalogue.py is"
        )
    return path


def check(promtool: str, folder: Path, cases: list[dict[str, Any]]) -> None:
    plan = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": cases}
    file = folder / "tests.yaml"
    file.write_text(json.dumps(plan))
    done = subprocess.run(
        [promtool, "test", "rules", str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def case(series: dict[str, str], expression: str, expected: list[str]) -> dict[str, Any]:
    at = {"expr": expression, "eval_time": f"{MINUTES - 1}m"}
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            at | {"exp_samples": [{"labels": labels, "value": 1} for labels in expected]}
        ],
    }


def test_the_rule_file_is_valid(promtool: str) -> None:
    """Prometheus itself takes the file as it is."""
    done = subprocess.run(
        [promtool, "check", "rules", str(RULES)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


def test_each_alert_has_a_fleet_in_which_it_fires() -> None:
    """No rule is left untried, with or without promtool on the machine."""
    assert ILL.keys() == {alert.name for alert in ALERTS}


def test_each_alert_fires_when_it_should(promtool: str, tmp_path: Path) -> None:
    """For each rule there is a fleet with just that trouble, and the rule fires there with the
    labels that tell where."""
    cases = []
    for alert in ALERTS:
        trouble, labels = ILL[alert.name]
        fired = ",".join(
            filter(
                None,
                (
                    f'alertname="{alert.name}",alertstate="firing",severity="{alert.severity}"',
                    labels,
                ),
            )
        )
        question = f'ALERTS{{alertname="{alert.name}",alertstate="firing"}}'
        cases.append(case(WELL | trouble, question, [f"ALERTS{{{fired}}}"]))
    check(promtool, tmp_path, cases)


def test_a_well_fleet_is_quiet(promtool: str, tmp_path: Path) -> None:
    """A fleet with a few dead letters, retries, 429s and drains fires nothing."""
    check(promtool, tmp_path, [case(WELL, 'ALERTS{alertstate="firing"}', [])])
