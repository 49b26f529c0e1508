"""Grafana's dashboards, few lines per panel.

Every control loop reports the same figures of the fleet: ``max by``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from penstock_gateway import metrics as door
from penstock_workers.metrics import catalogue as of

WIDTH, HEIGHT, PER_ROW = 8, 8, 3
LANE: Final = 'lane=~"$lane"'
SCHEMA_VERSION: Final = 39  # Grafana 10.4 and later read it, and move it up by themselves


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines over time. Each query is an expression with the text of its legend."""

    title: str
    help: str
    unit: str  # Grafana's name for it
    queries: tuple[tuple[str, str], ...]
    stacked: bool = False


@dataclass(frozen=True, slots=True)
class PanelRow:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Dashboard:
    uid: str
    title: str
    rows: tuple[PanelRow, ...]


def _rate(metric: object, by: str, more: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{{{LANE}{more}}}[$__rate_interval]))"


def _fleet(metric: object, by: str = "lane") -> str:
    selector = f"{{{LANE}}}" if "lane" in by else ""
    return f"max by ({by}) ({metric}{selector})"


def _quantile(share: float, metric: object, by: str) -> str:
    return (
        f"histogram_quantile({share}, sum by (le, {by}) "
        f"(rate({metric}_bucket{{{LANE}}}[$__rate_interval])))"
    )


FLEET: Final = Dashboard(
    "penstock-fleet",
    "Penstock: fleet",
    (
        PanelRow(
            "What comes out",
            (
                Panel(
                    "Throughput",
                    "Items settled per second, by outcome.",
                    "ops",
                    ((_rate(of.ITEMS, "lane, outcome"), "{{lane}} {{outcome}}"),),
                    stacked=True,
                ),
                Panel(
                    "Dead letters",
                    "Items that failed for good, per second and reason.",
                    "ops",
                    ((_rate(of.DEAD, "lane, reason"), "{{lane}} {{reason}}"),),
                    stacked=True,
                ),
                Panel(
                    "Cost per hour",
                    "At the current rate, by the configured prices, and what service tiers and "
                    "prompt caches save of it or add to it.",
                    "currencyUSD",
                    (
                        (f"3600 * {_rate(of.COST, 'lane, provider')}", "{{lane}} {{provider}}"),
                        (
                            f"3600 * {_rate(of.SAVINGS, 'cause, effect')}",
                            "{{effect}} by {{cause}}",
                        ),
                    ),
                ),
                Panel(
                    "Tokens",
                    "Tokens of finished items per second.",
                    "short",
                    ((_rate(of.TOKENS, "lane, direction"), "{{lane}} {{direction}}"),),
                ),
                Panel(
                    "Length of prompts",
                    "Tokens of the prompts of finished items, for each call.",
                    "short",
                    (
                        (_quantile(0.5, of.PROMPT_TOKENS, "lane"), "{{lane}} p50"),
                        (_quantile(0.99, of.PROMPT_TOKENS, "lane"), "{{lane}} p99"),
                    ),
                ),
                Panel(
                    "Retries",
                    "Attempts that are followed by another, and requests beyond the first of an "
                    "attempt, per second.",
                    "ops",
                    (
                        (_rate(of.RETRIES, "lane, cause"), "{{lane}} {{cause}}"),
                        (_rate(of.ASKED_AGAIN, "lane, cause"), "{{lane}} {{cause}}"),
                    ),
                ),
                Panel(
                    "Failed tries",
                    "Attempts without an answer, per second, by reason.",
                    "ops",
                    ((_rate(of.FAILED_TRIES, "lane, reason"), "{{lane}} {{reason}}"),),
                ),
                Panel(
                    "Answers taken",
                    "Items per second that took the answer to an equal request, of their job or "
                    "from the cache.",
                    "ops",
                    ((_rate(of.REUSED, "lane, reason"), "{{lane}} {{reason}}"),),
                ),
                Panel(
                    "Time per call",
                    "Of finished items.",
                    "s",
                    (
                        (_quantile(0.5, of.CALL_SECONDS, "lane"), "{{lane}} p50"),
                        (_quantile(0.95, of.CALL_SECONDS, "lane"), "{{lane}} p95"),
                    ),
                ),
            ),
        ),
        PanelRow(
            "What waits",
            (
                Panel(
                    "Queued, held, delayed, parked",
                    "Messages, by state.",
                    "short",
                    tuple(
                        (_fleet(metric), f"{{{{lane}}}} {what}")
                        for metric, what in (
                            (of.QUEUED, "queued"),
                            (of.UNACKED, "held"),
                            (of.DELAYED, "delayed"),
                            (of.PARKED, "parked"),
                        )
                    ),
                    stacked=True,
                ),
                Panel(
                    "In RabbitMQ",
                    "Messages that no worker has taken yet.",
                    "short",
                    ((_fleet(of.RELAYED), "{{lane}}"),),
                ),
                Panel(
                    "Oldest item",
                    "How long the next message of the queue has waited.",
                    "s",
                    ((_fleet(of.OLDEST), "{{lane}}"),),
                ),
                Panel(
                    "Window",
                    "Documents fed and not finished, and how many may be.",
                    "short",
                    (
                        (_fleet(of.OUTSTANDING), "{{lane}} outstanding"),
                        (_fleet(of.WINDOW), "{{lane}} target"),
                    ),
                ),
                Panel(
                    "Fed",
                    "Documents published per second.",
                    "ops",
                    ((_rate(of.FED, "lane"), "{{lane}}"),),
                ),
                Panel(
                    "Jobs",
                    "Live jobs, by state.",
                    "short",
                    ((_fleet(of.JOBS, "state"), "{{state}}"),),
                ),
                Panel(
                    "Workers",
                    "With a heartbeat within 15 s.",
                    "short",
                    ((_fleet(of.WORKERS), "{{lane}}"),),
                ),
                Panel(
                    "Models",
                    "Messages in the queue of each model, and what its workers hold.",
                    "short",
                    (
                        (_fleet(of.MODEL_QUEUED, "queue"), "{{queue}} queued"),
                        (_fleet(of.MODEL_UNACKED, "queue"), "{{queue}} held"),
                    ),
                    stacked=True,
                ),
                Panel(
                    "Workers of models",
                    "By the queue of the model; items of models that no worker serves.",
                    "short",
                    (
                        (_fleet(of.MODEL_WORKERS, "queue"), "{{queue}} workers"),
                        (_fleet(of.UNSERVED), "{{lane}} unserved items"),
                    ),
                ),
                Panel(
                    "Provider batches",
                    "Batches at providers, by how far they are.",
                    "short",
                    (
                        (
                            f"sum by (provider, state) ({of.PROVIDER_BATCHES}{{{LANE}}})",
                            "{{provider}} {{state}}",
                        ),
                    ),
                    stacked=True,
                ),
            ),
        ),
        PanelRow(
            "What went wrong",
            (
                Panel(
                    "Leases",
                    "Messages of dead workers that returned to the queue, and leases lost, per "
                    "second.",
                    "ops",
                    (
                        (_rate(of.LEASES_RESTORED, "lane"), "{{lane}} returned"),
                        (_rate(of.LEASES_LOST, "lane"), "{{lane}} lost"),
                    ),
                ),
                Panel(
                    "Reconciliation",
                    "Documents published again because their messages were lost; rounds.",
                    "ops",
                    (
                        (_rate(of.REPUBLISHED, "lane"), "{{lane}} republished"),
                        (_rate(of.RECONCILES, "lane"), "{{lane}} rounds"),
                    ),
                ),
                Panel(
                    "Drains",
                    "Items held when workers got SIGTERM, in the last hour.",
                    "short",
                    (
                        (
                            f"max by (lane, result) (increase({of.DRAINED}{{{LANE}}}[1h]))",
                            "{{lane}} {{result}}",
                        ),
                        (
                            f"max by (lane, result) (increase({of.DRAINS}{{{LANE}}}[1h]))",
                            "{{lane}} workers {{result}}",
                        ),
                    ),
                ),
                Panel(
                    "Spot notices",
                    "Seconds that workers have left by a notice, and workers whose cloud does not "
                    "answer.",
                    "short",
                    (
                        (
                            f"min by (lane, cloud, event) ({of.SPOT_LEFT}{{{LANE}}})",
                            "{{lane}} {{cloud}} {{event}} seconds left",
                        ),
                        (
                            f"count by (lane, cloud) ({of.SPOT_ANSWERS}{{{LANE}}} == 0)",
                            "{{lane}} {{cloud}} no answer",
                        ),
                    ),
                ),
                Panel(
                    "Redis",
                    "Memory, and times that it was rebuilt.",
                    "bytes",
                    (
                        (f"max({of.REDIS_USED})", "used"),
                        (f"max({of.REDIS_LIMIT}) > 0", "maxmemory"),
                    ),
                ),
                Panel(
                    "Control",
                    "Failed rounds per second, rebuilds of Redis.",
                    "ops",
                    (
                        (
                            f'sum(rate({of.TICKS}{{result="failed"}}[$__rate_interval]))',
                            "failed rounds",
                        ),
                        (f"sum(increase({of.REBUILDS}[$__rate_interval]))", "rebuilds"),
                    ),
                ),
                Panel(
                    "Schedules",
                    "Planned times of the last hour, by what came of them; schedules by state.",
                    "short",
                    (
                        (f"sum by (outcome) (increase({of.FIRINGS}[1h]))", "{{outcome}}"),
                        (f"{_fleet(of.SCHEDULES, 'state')} > 0", "schedules {{state}}"),
                    ),
                ),
                Panel(
                    "Unreadable",
                    "Messages set aside, read by no worker.",
                    "short",
                    ((f"max({of.UNREADABLE})", "messages"),),
                ),
            ),
        ),
        PanelRow(
            "HTTP doors",
            (
                Panel(
                    "Requests",
                    "Answered per second, by status.",
                    "reqps",
                    ((f"sum by (status) (rate({door.REQUESTS}[$__rate_interval]))", "{{status}}"),),
                    stacked=True,
                ),
                Panel(
                    "Time to answer",
                    "The slowest twentieth, by route.",
                    "s",
                    (
                        (
                            "histogram_quantile(0.95, sum by (le, route) "
                            f"(rate({door.REQUEST_SECONDS}_bucket[$__rate_interval])))",
                            "{{route}}",
                        ),
                    ),
                ),
                Panel(
                    "Refused",
                    "Per second, by the code of the error.",
                    "reqps",
                    ((f"sum by (code) (rate({door.REFUSED}[$__rate_interval]))", "{{code}}"),),
                    stacked=True,
                ),
                Panel(
                    "Under way",
                    "Requests, and connections with idle ones.",
                    "short",
                    (
                        (f"sum({door.IN_FLIGHT})", "requests"),
                        (f"sum({door.CONNECTIONS})", "connections"),
                        (f"sum(increase({door.DROPPED}[5m]))", "dropped in 5 min"),
                    ),
                ),
                Panel(
                    "Received",
                    "Bytes of bodies per second, uploads included.",
                    "Bps",
                    ((f"sum by (route) (rate({door.RECEIVED}[$__rate_interval]))", "{{route}}"),),
                    stacked=True,
                ),
                Panel(
                    "Background work",
                    "Since each piece last went well, and its failures.",
                    "s",
                    (
                        (f"time() - max by (task) ({door.TASK_ROUND})", "{{task}}"),
                        (
                            f"sum by (task) (increase({door.TASK_FAILURES}[1h]))",
                            "failures of {{task}} in 1 h",
                        ),
                    ),
                ),
                Panel(
                    "Uploads",
                    "Bytes per second of files that came whole, and files in 5 minutes.",
                    "Bps",
                    (
                        (f"sum(rate({door.UPLOADED}[$__rate_interval]))", "bytes"),
                        (f"sum(increase({door.UPLOADS}[5m]))", "files in 5 min"),
                    ),
                ),
                Panel(
                    "Steps of batches",
                    "Per second, by the state of the batch and how they ended.",
                    "short",
                    (
                        (
                            f"sum by (state, result) (rate({door.BATCH_STEPS}[$__rate_interval]))",
                            "{{state}} {{result}}",
                        ),
                    ),
                ),
                Panel(
                    "Webhooks",
                    "Tries per second, by how they ended.",
                    "short",
                    (
                        (
                            f"sum by (outcome) (rate({door.WEBHOOK_TRIES}[$__rate_interval]))",
                            "{{outcome}}",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    "Calls that wait",
                    "Answered per second, by how; those that wait now.",
                    "short",
                    (
                        (f"sum by (outcome) (rate({door.CALLS}[$__rate_interval]))", "{{outcome}}"),
                        (f"sum({door.CALLS_WAITING})", "waiting"),
                    ),
                ),
                Panel(
                    "Time of calls that wait",
                    "The slowest twentieth, and the usual one.",
                    "s",
                    (
                        (
                            "histogram_quantile(0.95, sum by (le) "
                            f"(rate({door.CALL_SECONDS}_bucket[$__rate_interval])))",
                            "95 %",
                        ),
                        (
                            "histogram_quantile(0.5, sum by (le) "
                            f"(rate({door.CALL_SECONDS}_bucket[$__rate_interval])))",
                            "50 %",
                        ),
                    ),
                ),
            ),
        ),
    ),
)

WORKERS: Final = Dashboard(
    "penstock-workers",
    "Penstock: workers and engines",
    (
        PanelRow(
            "What bounds them",
            (
                Panel(
                    "Bound by",
                    "Workers, by what limits each.",
                    "short",
                    ((f"sum by (lane, by) ({of.BOUND}{{{LANE}}}) > 0", "{{lane}} {{by}}"),),
                    stacked=True,
                ),
                Panel(
                    "Slots in use",
                    "Of all slots.",
                    "percentunit",
                    (
                        (
                            f"sum by (lane) ({of.SLOTS_TAKEN}{{{LANE}}}) / sum by (lane) "
                            f"({of.SLOTS}{{{LANE}}})",
                            "{{lane}}",
                        ),
                    ),
                ),
                Panel(
                    "Held, waiting for a turn",
                    "Items in the workers.",
                    "short",
                    (
                        (f"sum by (lane) ({of.HELD}{{{LANE}}})", "{{lane}} held"),
                        (
                            f"sum by (lane) ({of.ADMITTING}{{{LANE}}})",
                            "{{lane}} wait for their turn",
                        ),
                    ),
                ),
            ),
        ),
        PanelRow(
            "Settling",
            (
                Panel(
                    "Items per commit",
                    "Settled together.",
                    "short",
                    ((_quantile(0.5, of.COMMIT_ITEMS, "lane"), "{{lane}} p50"),),
                ),
                Panel(
                    "Time per commit",
                    "By store.",
                    "s",
                    ((_quantile(0.95, of.STORE, "store"), "{{store}} p95"),),
                ),
                Panel(
                    "Waiting to be stored",
                    "Age of the oldest start or outcome that a store has not taken.",
                    "s",
                    ((f"max by (lane) ({of.UNSETTLED_OLDEST}{{{LANE}}})", "{{lane}}"),),
                ),
                Panel(
                    "Duplicates",
                    "Copies dropped at the claim, per second.",
                    "ops",
                    ((_rate(of.DUPLICATES, "lane"), "{{lane}}"),),
                ),
            ),
        ),
        PanelRow(
            "Engines",
            (
                Panel(
                    "Loading",
                    "Bytes of their models that engines have read, while they load, of all that is "
                    "to be read.",
                    "bytes",
                    (
                        (f"sum by (lane) ({of.LOAD_READ}{{{LANE}}})", "{{lane}} read"),
                        (f"sum by (lane) ({of.LOAD_TOTAL}{{{LANE}}})", "{{lane}} in all"),
                    ),
                ),
                Panel(
                    "Deaths",
                    "Engines that died, hung or lost their device, and servers that went away, in "
                    "the last hour.",
                    "short",
                    ((f"sum by (lane) (increase({of.ENGINE_DEATHS}{{{LANE}}}[1h]))", "{{lane}}"),),
                ),
                Panel(
                    "Running and waiting",
                    "Requests in the engines.",
                    "short",
                    (
                        (f"sum by (lane) ({of.ENGINE_RUNNING}{{{LANE}}})", "{{lane}} running"),
                        (f"sum by (lane) ({of.ENGINE_WAITING}{{{LANE}}})", "{{lane}} waiting"),
                    ),
                ),
                Panel(
                    "Tokens",
                    "Per second, over all engines.",
                    "short",
                    (
                        (f"sum by (lane) ({of.PROMPT_RATE}{{{LANE}}})", "{{lane}} prompt"),
                        (f"sum by (lane) ({of.GENERATION_RATE}{{{LANE}}})", "{{lane}} generated"),
                        (f"sum by (lane) ({of.EMBED_RATE}{{{LANE}}})", "{{lane}} embedded"),
                    ),
                ),
                Panel(
                    "KV cache and prefix hits",
                    "Shares, averaged over engines.",
                    "percentunit",
                    (
                        (f"avg by (lane) ({of.KV_USAGE}{{{LANE}}})", "{{lane}} KV cache"),
                        (f"avg by (lane) ({of.PREFIX_HITS}{{{LANE}}})", "{{lane}} prefix hits"),
                    ),
                ),
                Panel(
                    "Preemptions",
                    "Requests put back because the KV cache was full, per second.",
                    "ops",
                    ((_rate(of.PREEMPTIONS, "lane"), "{{lane}}"),),
                ),
                Panel(
                    "Wait in the engine",
                    "Recent mean.",
                    "s",
                    ((f"avg by (lane) ({of.QUEUE_WAIT}{{{LANE}}})", "{{lane}}"),),
                ),
                Panel(
                    "Batches of embed",
                    "Texts per batch; the budget of padded tokens.",
                    "short",
                    (
                        (f"avg by (lane) ({of.EMBED_BATCH}{{{LANE}}})", "texts"),
                        (f"avg by (lane) ({of.EMBED_BUDGET}{{{LANE}}})", "token budget"),
                    ),
                ),
                Panel(
                    "Cost of engines per hour",
                    "By the price of the workers' hours, and how busy they are.",
                    "short",
                    (
                        (f"3600 * {_rate(of.ENGINE_COST, 'lane')}", "{{lane}} USD"),
                        (_rate(of.ENGINE_BUSY, "lane"), "{{lane}} workers computing"),
                    ),
                ),
                Panel(
                    "Padding",
                    "Share of the batches' tokens that are not padding.",
                    "percentunit",
                    ((f"avg by (lane) ({of.EMBED_PADDING}{{{LANE}}})", "{{lane}}"),),
                ),
            ),
        ),
    ),
)

PROVIDERS: Final = Dashboard(
    "penstock-providers",
    "Penstock: providers and quotas",
    (
        PanelRow(
            "Quotas",
            (
                Panel(
                    "Use",
                    "Charged, as a share of the limit.",
                    "percentunit",
                    ((_fleet(of.QUOTA_USE, "quota, dimension"), "{{quota}} {{dimension}}"),),
                ),
                Panel(
                    "Limits",
                    "Per second.",
                    "short",
                    ((_fleet(of.QUOTA_LIMIT, "quota, dimension"), "{{quota}} {{dimension}}"),),
                ),
                Panel(
                    "Waiting and in flight",
                    "Items that wait for a ticket; requests in flight.",
                    "short",
                    (
                        (_fleet(of.QUOTA_WAITING, "quota"), "{{quota}} waiting"),
                        (_fleet(of.QUOTA_IN_FLIGHT, "quota"), "{{quota}} in flight"),
                    ),
                ),
                Panel(
                    "Interactive traffic first",
                    "Seconds to the first token at a server that others share, beside the target; "
                    "requests that are left to us.",
                    "short",
                    (
                        (_fleet(of.QUOTA_TTFT, "quota"), "{{quota}} p95"),
                        (_fleet(of.QUOTA_TARGET, "quota"), "{{quota}} target"),
                        (_fleet(of.QUOTA_CEILING, "quota"), "{{quota}} requests at most"),
                    ),
                ),
                Panel(
                    "Tickets",
                    "Per second.",
                    "ops",
                    (
                        (
                            f"max by (quota) (rate({of.QUOTA_GRANTED}[$__rate_interval]))",
                            "{{quota}}",
                        ),
                    ),
                ),
                Panel(
                    "429s",
                    "Per second.",
                    "ops",
                    (
                        (
                            f"max by (quota) (rate({of.QUOTA_THROTTLED}[$__rate_interval]))",
                            "{{quota}}",
                        ),
                        (_rate(of.RATE_LIMITED, "provider"), "{{provider}}, of items"),
                    ),
                ),
                Panel(
                    "Failures",
                    "5xx, overload and timeouts per second; 1 = breaker open, or account held.",
                    "short",
                    (
                        (
                            f"max by (quota) (rate({of.QUOTA_FAILURES}[$__rate_interval]))",
                            "{{quota}} failures",
                        ),
                        (_fleet(of.QUOTA_OPEN, "quota"), "{{quota}} breaker open"),
                        (_fleet(of.QUOTA_HELD, "quota"), "{{quota}} held"),
                    ),
                ),
                Panel(
                    "Calls",
                    "Requests sent per second.",
                    "ops",
                    ((_rate(of.CALLS, "lane, provider"), "{{lane}} {{provider}}"),),
                ),
            ),
        ),
    ),
)

DASHBOARDS: Final = (FLEET, WORKERS, PROVIDERS)


def dashboard_json(dashboard: Dashboard) -> str:
    ids = count(1)
    body = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["penstock"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "",
        "templating": {"list": [_datasource(), _lane()]},
        "panels": list(_panels(dashboard.rows, ids)),
    }
    return json.dumps(body, indent=1) + "\n"


def _panels(rows: Sequence[PanelRow], ids: count[int]) -> Iterator[dict[str, Any]]:
    top = 0
    for row in rows:
        place = {"x": 0, "y": top, "w": WIDTH * PER_ROW, "h": 1}
        yield {
            "id": next(ids),
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": place,
            "panels": [],
        }
        top += 1
        for number, panel in enumerate(row.panels):
            across, down = number % PER_ROW, number // PER_ROW
            place = {"x": WIDTH * across, "y": top + HEIGHT * down, "w": WIDTH, "h": HEIGHT}
            yield _panel(panel, next(ids), place)
        top += HEIGHT * -(-len(row.panels) // PER_ROW)


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    custom = {"fillOpacity": 10, "stacking": {"mode": "normal" if panel.stacked else "none"}}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.help,
        "gridPos": place,
        "datasource": source,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "custom": custom},
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": source,
                "expr": expr,
                "legendFormat": legend,
            }
            for at, (expr, legend) in enumerate(panel.queries)
        ],
    }


def _datasource() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
    }


def _lane() -> dict[str, Any]:
    query = f"label_values({of.WORKERS}, lane)"
    return {
        "name": "lane",
        "label": "Lane",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": query,
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }
