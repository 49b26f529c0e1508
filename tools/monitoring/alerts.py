"""Alerts and what to do about them: Prometheus's rules and the runbook in docs/production.md are
made from this.

Every control loop reports the same figures of the fleet, hence ``max by``. Severity `critical` is
worth waking a person.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from penstock_gateway import metrics as door
from penstock_workers.metrics import catalogue as of

RUNBOOK: Final = "docs/production.md"
ENDED: Final = 'outcome=~"succeeded|dead"'


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule. ``runbook`` says what it means, where to look and what to do."""

    name: str
    severity: Literal["critical", "warning", "info"]
    expr: str
    after: str  # how long it must hold
    summary: str  # Prometheus fills in labels and the value
    runbook: str

    @property
    def anchor(self) -> str:
        return f"{RUNBOOK}#{self.name.lower()}"


ALERTS: Final = (
    Alert(
        "PenstockNoWorkers",
        "critical",
        f"max by (lane) ({of.QUEUED} + {of.UNACKED}) > 0 and max by (lane) ({of.WORKERS}) == 0",
        "15m",
        "Lane {{ $labels.lane }} has work and no worker",
        "Messages wait and no worker of the lane has sent a heartbeat for 15 s. Check whether its "
        "pods are pending (quota of the cloud, no spot capacity, an image that cannot be pulled) "
        "or restart (`kubectl logs --previous`). With KEDA, check whether the ScaledObject is "
        "ready and reaches Redis. Nothing is lost meanwhile: the messages stay in the queue.",
    ),
    Alert(
        "PenstockModelUnserved",
        "warning",
        f"max by (lane) ({of.UNSERVED}) > 0",
        "30m",
        "{{ $value | humanize }} items of lane {{ $labels.lane }} name a model that no worker "
        "serves",
        "`penstock_model_queue_depth` with `penstock_model_workers` at 0 names the queue, "
        "`penstock status JOB` the model and what is served. Either its workers do not run (pods "
        "pending, or KEDA's trigger names another queue), or jobs misspell it: start a worker with "
        "that model or give it that name (`gpu.names`, `embed.names`), or cancel the job. The "
        "items wait, uncounted.",
    ),
    Alert(
        "PenstockNothingSettles",
        "critical",
        f"max by (lane) ({of.QUEUED} + {of.UNACKED}) > 0 and max by (lane) ({of.WORKERS}) > 0\n"
        f"unless sum by (lane) (increase({of.ITEMS}{{{ENDED}}}[15m])) > 0",
        "15m",
        "Lane {{ $labels.lane }} has workers and work, and nothing has been finished for 15 "
        "minutes",
        "`penstock status JOB` shows what limits the lane and `penstock limits` what keeps "
        "requests from starting; a held quota or an open breaker also has its own alert. Otherwise "
        "look in the workers' logs whether SQL refuses what they settle. `penstock-probe alive` in "
        "a pod shows whether its consumer asks for messages.",
    ),
    Alert(
        "PenstockWorkerStuck",
        "warning",
        f"{of.SLOTS_TAKEN} > 0\n"
        f"unless on (instance, lane) sum by (instance, lane) (increase({of.ITEMS}[30m])) > 0",
        "15m",
        "{{ $labels.instance }} has items in flight and has settled none for half an hour",
        "One worker of the lane makes no progress while others may work. See its log and "
        "`penstock_bound` of the instance. Deleting the pod is safe: its items return to the "
        "queue.",
    ),
    Alert(
        "PenstockUnsettled",
        "warning",
        f"max by (instance, lane) ({of.UNSETTLED_OLDEST}) > 300",
        "5m",
        "{{ $labels.instance }} has waited for {{ $value | humanizeDuration }} to store an outcome",
        "A store does not accept the worker's writes. `penstock-probe alive` in the pod, `celery "
        "inspect stats` (`store-trouble`) and its log say which one and why: away, full, locked, "
        "read-only, or a refusal. Repair the store and do not end the workers: that throws away "
        "answers that are paid for. If the store answers and accepts nothing for 15 minutes, the "
        "worker's probe fails and the pod is restarted.",
    ),
    Alert(
        "PenstockOldestItem",
        "warning",
        f"max by (lane) ({of.OLDEST}) > 1800",
        "10m",
        "The next item of lane {{ $labels.lane }} has waited for {{ $value | humanizeDuration }}",
        "Feeders keep about 20 s of work in a queue, so items that are half an hour old mean that "
        "the lane has become much slower than it was, or has stopped. Compare throughput with an "
        "hour ago, then workers, then quotas.",
    ),
    Alert(
        "PenstockDeadLetters",
        "warning",
        f"sum by (lane) (increase({of.DEAD}[15m]))\n"
        f"/ sum by (lane) (increase({of.ITEMS}{{{ENDED}}}[15m])) > 0.05\n"
        f"and sum by (lane) (increase({of.DEAD}[15m])) > 20",
        "5m",
        "{{ $value | humanizePercentage }} of lane {{ $labels.lane }}'s items fail for good",
        "`penstock dlq list JOB` groups them by reason, and `dlq show` has the request and the "
        "last answer of one. A wrong model name or a prompt that is too long affects all items: "
        "pause the job, then `penstock dlq replay` with a change.",
    ),
    Alert(
        "PenstockRetries",
        "warning",
        f"sum by (lane) (increase({of.RETRIES}[15m]))\n"
        f"/ sum by (lane) (increase({of.ITEMS}{{{ENDED}}}[15m])) > 0.5\n"
        f"and sum by (lane) (increase({of.RETRIES}[15m])) > 50",
        "10m",
        "Lane {{ $labels.lane }} repeats {{ $value | humanizePercentage }} as many attempts as it "
        "finishes items",
        "`penstock_failed_tries_total` has the reasons, as `penstock status` of a job has; "
        "`penstock_rate_limited_total` shows whether they are 429s (see PenstockThrottled); "
        "otherwise the provider fails or is overloaded: `penstock limits` counts its failures. "
        "Retries back off by themselves; they cost quota and lose no items.",
    ),
    Alert(
        "PenstockThrottled",
        "warning",
        f"max by (quota) (increase({of.QUOTA_THROTTLED}[15m]))\n"
        f"/ max by (quota) (increase({of.QUOTA_GRANTED}[15m])) > 0.05\n"
        f"and max by (quota) (increase({of.QUOTA_THROTTLED}[15m])) > 20",
        "10m",
        "{{ $value | humanizePercentage }} of the requests to {{ $labels.quota }} are refused as "
        "too many",
        "The configured rpm or tpm is above what the account has, or another program uses the same "
        "key. Compare `penstock limits` with the provider's console and lower the setting; the "
        "fleet keeps a growing margin meanwhile.",
    ),
    Alert(
        "PenstockQuotaHeld",
        "critical",
        f"max by (quota) ({of.QUOTA_HELD}) == 1",
        "1m",
        "The account of {{ $labels.quota }} is held: out of credit, or its key is refused",
        "`penstock limits` shows the provider's message. Its jobs are paused and nothing is lost. "
        "Correct the account, then `penstock resume JOB`, which lifts the hold (or `penstock "
        "limits --lift QUOTA`).",
    ),
    Alert(
        "PenstockProviderFails",
        "warning",
        f"max by (quota) ({of.QUOTA_OPEN}) == 1",
        "10m",
        "{{ $labels.quota }} has failed for ten minutes, and its breaker is open",
        "The breaker sends a few probes at intervals and closes by itself when they succeed. See "
        "the provider's status page; to move a job to another provider, cancel it and submit it "
        "with another spec.",
    ),
    Alert(
        "PenstockLeasesExpire",
        "warning",
        f"sum by (lane) (increase({of.LEASES_RESTORED}[15m])) > 100",
        "0m",
        "{{ $value | humanize }} messages of lane {{ $labels.lane }} returned from workers that "
        "vanished",
        "Workers ended without a drain: killed for memory (`kubectl describe pod` says OOMKilled), "
        "a spot node without notice, or a grace period shorter than `drain_seconds`. Items are run "
        "again; calls in flight may be paid twice.",
    ),
    Alert(
        "PenstockDrainsTooShort",
        "info",
        f'max by (lane) (increase({of.DRAINED}{{result="requeued"}}[1h]))\n'
        f"/ sum by (lane) (max by (lane, result) (increase({of.DRAINED}[1h]))) > 0.5",
        "0m",
        "Workers of lane {{ $labels.lane }} release {{ $value | humanizePercentage }} of their "
        "items when they end",
        "Released items are run again by other workers, and tokens generated for them so far are "
        "paid for twice. Raise `drain_seconds` as far as the notice of the spot provider allows, "
        "or lower the concurrency.",
    ),
    Alert(
        "PenstockMessagesLost",
        "warning",
        f"sum by (lane) (increase({of.REPUBLISHED}[15m])) > 0",
        "0m",
        "{{ $value | humanize }} lost messages of lane {{ $labels.lane }} were published again",
        "Their documents are not lost, but find out why the messages were: a Redis that restarted "
        "without its last second, an eviction policy (`penstock doctor` checks it), a FLUSHALL, or "
        "a worker of an older release.",
    ),
    Alert(
        "PenstockRedisForgot",
        "critical",
        f"sum(increase({of.REBUILDS}[15m])) > 0",
        "0m",
        "Redis had lost its data and was rebuilt from SQL",
        "Redis restarted, failed over or was flushed. The completed set was read from SQL, so "
        "nothing is paid twice. Find the cause: memory, node, missing AOF. A promoted replica may "
        "lack the last second; reconciliation finds those items.",
    ),
    Alert(
        "PenstockRedisFull",
        "warning",
        f"max({of.REDIS_USED}) / (max({of.REDIS_LIMIT}) > 0) > 0.75",
        "5m",
        "Redis uses {{ $value | humanizePercentage }} of its maxmemory: feeding pauses",
        "Work goes on and frees memory; feeding resumes by itself below 75 %. If the alert stays: "
        "raise maxmemory, set a smaller `window`, or look with `redis-cli --bigkeys` for other "
        "data.",
    ),
    Alert(
        "PenstockNoControl",
        "critical",
        f"absent({of.LOOKED}) or time() - max({of.LOOKED}) > 120",
        "5m",
        "No control loop runs: jobs are neither fed nor finished",
        "Start a control pool, or workers with `control=true`. If one runs, its log names the "
        "store that it cannot reach: SQL or Redis. Items that are already queued are still run.",
    ),
    Alert(
        "PenstockControlFails",
        "warning",
        f'sum by (instance) (rate({of.TICKS}{{result="failed"}}[5m]))\n'
        f"/ sum by (instance) (rate({of.TICKS}[5m])) > 0.5",
        "5m",
        "The control loop of {{ $labels.instance }} fails in {{ $value | humanizePercentage }} of "
        "its rounds",
        "Its log names the error, with the traceback once per fault. Other control processes take "
        "its jobs over after 15 s if they can reach both stores.",
    ),
    Alert(
        "PenstockScheduleFailed",
        "warning",
        f'sum(increase({of.FIRINGS}{{outcome="failed"}}[1h])) > 0',
        "0m",
        "{{ $value | humanize }} planned times of schedules started no job in the last hour",
        "`penstock schedule list` names the schedule and the reason: a source that was away for "
        "five minutes, or one that only an edit corrects (an empty or unreadable file, too many "
        "bad rows, a key that is taken). Its next time is tried as usual; `penstock submit` runs "
        "the one that failed by hand.",
    ),
    Alert(
        "PenstockScheduleDrifted",
        "warning",
        f'sum(increase({of.COMPARED}{{result="moved"}}[1h])) > 0',
        "0m",
        "{{ $value | humanize }} runs of schedules moved away from the run before in the last hour",
        "`penstock schedule list NAME` and the report of the job say what has moved: dead letters, "
        "lengths, cost, shares of labels. Look at some answers (`penstock results JOB`): the model "
        "behind the name, the source or the prompt may have changed. A schedule that was paused so "
        "it goes on by `penstock schedule resume NAME`.",
    ),
    Alert(
        "PenstockScheduleMissed",
        "warning",
        f'sum(increase({of.FIRINGS}{{outcome="skipped"}}[1h])) > 0',
        "0m",
        "{{ $value | humanize }} planned times of schedules were missed in the last hour and got "
        "no job of their own",
        "`penstock schedule list NAME` has the reason beside each: no control process ran then "
        "(see its restarts), or the job of an earlier time had not ended. Plan fewer times, let "
        "jobs overlap (`--overlap`), or have missed times made up for: `--catch-up once` starts "
        "the latest, `all` each of them.",
    ),
    Alert(
        "PenstockScheduleLate",
        "warning",
        f'max({of.SCHEDULES}{{state="late"}}) > 0',
        "30m",
        "{{ $value | humanize }} schedules have waited for half an hour to start the job of a time "
        "that has come",
        "`penstock schedule list` says what each waits for: a job of an earlier time, or one whose "
        "outcomes are to be read, that has not ended (`penstock status JOB` says why), a time zone "
        "that this machine does not know, or sources that hang in all four threads of the control "
        "processes.",
    ),
    Alert(
        "PenstockStoreSlow",
        "warning",
        f"histogram_quantile(0.95, sum by (le, store) (rate({of.STORE}_bucket[10m]))) > 1",
        "10m",
        "Settling in {{ $labels.store }} takes {{ $value | humanizeDuration }}",
        "Outcomes wait in the workers' memory until they are durable, and slots stay taken. For "
        "SQL check locks, IOPS and connections; for Redis `SLOWLOG GET`, memory and the network "
        "between zones.",
    ),
    Alert(
        "PenstockUnreadable",
        "warning",
        f"max({of.UNREADABLE}) > 0",
        "5m",
        "{{ $value | humanize }} messages could be read by no worker and were set aside",
        "`redis-cli LRANGE penstock:parked:unknown 0 0` shows one. They come from a newer producer "
        "(upgrade the workers and push them back with `LMOVE`), or from another program.",
    ),
    Alert(
        "PenstockEngineStarves",
        "info",
        f'avg by (lane) ({of.BOUND}{{by="queue", lane=~"gpu|embed"}}) > 0.5\n'
        f"and on (lane) max by (lane) ({of.OUTSTANDING}) > 0",
        "30m",
        "Engines of lane {{ $labels.lane }} idle although its jobs are not done",
        "Too few items reach the engines. Either the jobs are nearly done and fewer workers are "
        "enough, or feeding is slow: compare `penstock_window_items` with its target and look at "
        "the control loop's CPU and the source.",
    ),
    Alert(
        "PenstockEngineDies",
        "warning",
        f"sum by (lane) (increase({of.ENGINE_DEATHS}[15m])) > 0\n"
        f'or sum by (lane) (increase({of.FAILED_TRIES}{{reason="engine_died"}}[15m])) > 0',
        "0m",
        "An engine of lane {{ $labels.lane }} died, or the server beside a worker went away",
        "It hung, lost its device, or was killed; its items were given back and no attempt was "
        "counted. The worker's log says which (`the engine died`, `does not answer`). A gpu worker "
        "builds a new engine or waits for its server, an embed worker ends with status 1 and is "
        "replaced. Deaths that repeat on one node mean its GPU: `nvidia-smi -q`, `dmesg | grep "
        "Xid`, then drain the node. Deaths everywhere mean a document or a setting: `penstock dlq "
        "list JOB --reason worker_crashed`, memory, the engine's version. A model whose single "
        "steps are slow needs a longer `gpu.stall_s` (`embed.stall_s`).",
    ),
    Alert(
        "PenstockEnginesKeepDying",
        "critical",
        f"max by (instance, lane) (increase({of.ENGINE_DEATHS}[1h])) >= 4",
        "0m",
        "{{ $labels.instance }} has lost {{ $value | humanize }} engines in an hour",
        "It loads its model again and again and computes little meanwhile; after "
        "`gpu.rebuilds_max` deaths in an hour a worker ends with status 1, and where it comes back "
        "on the same node this goes on. The last lines before `the engine died` in its log have "
        "the cause: CUDA errors and Xids mean the card (drain the node), out of memory means a "
        "lower `gpu.engine.gpu_memory_utilization` or `gpu.max_num_seqs`, and a death each time "
        "that the same documents come back means one of them: they are let in apart from others "
        "and end as `worker_crashed` (`penstock dlq list JOB`).",
    ),
    Alert(
        "PenstockDoorFails",
        "critical",
        f'sum (rate({door.REQUESTS}{{status=~"5.."}}[10m])) > 0.05 * sum '
        f"(rate({door.REQUESTS}[10m]))",
        "10m",
        "{{ $value | humanize }} requests per second at the HTTP doors end with an error of the "
        "server",
        "`penstock_door_requests_total` by route and status says which. 503 is SQL or Redis that "
        "does not answer (`/health` names it, and `penstock doctor` looks closer) or a door with "
        "too much to do: add replicas. 500 has its reason in the door's log, with the id of the "
        "request that its caller was given.",
    ),
    Alert(
        "PenstockDoorWorkFails",
        "warning",
        f"sum by (task) (increase({door.TASK_FAILURES}[30m])) > 5",
        "5m",
        "Background work {{ $labels.task }} of the HTTP doors fails again and again",
        "The door's log has the error once. It goes on by itself when what it needs is back; until "
        "then files are not cleaned up, batches do not change their state, or webhooks are not "
        "sent, by the name of the task. `penstock_door_task_round_timestamp_seconds` says when it "
        "last went well.",
    ),
    Alert(
        "PenstockBatchStepsFail",
        "warning",
        f'sum by (state) (increase({door.BATCH_STEPS}{{result="failed"}}[30m])) > 5',
        "5m",
        "Batches that are {{ $labels.state }} do not go on",
        "The door's log names each batch with its error. Mostly the place of files cannot be read "
        "or written (`gateway.files`: a full disk, a bucket without rights) or SQL is away; the "
        "steps are repeated until it is back, and nothing is lost.",
    ),
    Alert(
        "PenstockWebhooksGivenUp",
        "warning",
        f'sum (increase({door.WEBHOOK_TRIES}{{outcome="gave_up"}}[1h])) > 0',
        "0m",
        "Webhooks were given up: their receiver has not taken them for a day, or answered 410",
        "The door's log has the event and the endpoint of each try with what went wrong, and `GET "
        "/v1/webhooks` shows endpoints that are disabled. Tell the receiver's owner; given-up "
        "events can be sent again by hand.",
    ),
)


def rules_yaml() -> str:
    """A rule file for Prometheus. JSON's strings are YAML's, too."""
    return "\n".join((HEAD, "groups:", "  - name: penstock", "    rules:", *_rules())) + "\n"


HEAD: Final = "# Made by `python -m tools.monitoring.write` from tools/monitoring/alerts.py."


def _rules() -> Iterator[str]:
    for alert in ALERTS:
        yield f"      - alert: {alert.name}"
        yield "        expr: |-"
        yield from (f"          {line}" for line in alert.expr.splitlines())
        yield f"        for: {alert.after}"
        yield "        labels:"
        yield f"          severity: {alert.severity}"
        yield "        annotations:"
        yield f"          summary: {json.dumps(alert.summary)}"
        yield f"          description: {json.dumps(alert.runbook)}"
        yield f"          runbook_url: {json.dumps(alert.anchor)}"


def runbook() -> str:
    """For docs/production.md: a heading per alert, which its annotation points at."""
    parts = [
        f"### {alert.name}\n*{alert.severity}: {_plain(alert)}.*\n\n{alert.runbook}\n"
        for alert in ALERTS
    ]
    return "\n".join(parts)


def _plain(alert: Alert) -> str:
    """When it fires, as an expression that can be pasted."""
    return f"`{' '.join(alert.expr.split())}`, for {alert.after}"
