"""Every Redis key of the ledger.

One prefix, one place; the Lua files name the ones that they touch.

All of it is a cache: it can be rebuilt from SQL and the sources. One Redis (with replicas if you
like), not a cluster: one script call touches keys of several jobs.

penstock:epoch                      string  the database's epoch: missing or different = Redis forgot
penstock:epoch:run                  string  run id of the server that the epoch was written to: different = it has
                                            restarted, and the last second before may be gone
penstock:epoch:rebuild:<mark>       string  of a rebuild that is under way: gone where Redis forgets meanwhile; expires
penstock:epoch:name                 string  name of the latest rebuild: what was looked at before it is fed no more
penstock:epoch:rebuilt              string  short-lived: the same name, not long ago: windows may not be full again yet
penstock:<job>:<gen>:done:<n>       hash    completed set, bucket n = crc32(doc) % buckets; field = document id (its
                                            sha256 when longer than 64 bytes), value "" done, "!"
                                            dead
penstock:<job>:<gen>:window         hash    document id -> position in the source: fed and not settled
penstock:<job>:<gen>:starts         hash    document id -> starts without a conclusion so far
penstock:<job>:<gen>:lately         hash    what became of the latest documents, see lately.lua; and
penstock:<job>:<gen>:earlier        hash    of those before them
penstock:begun:<worker>             string  the latest call by which a worker counted starts; expires
penstock:<job>:stats                hash    counters: succeeded, succeeded_after_retry, dead, dead:<reason>, calls,
                                            retried:<reason>, rate_limited, prompt_tokens,
                                            completion_tokens, cost_microusd, skipped, reused:<dedup
                                            or cache>
penstock:<job>:state                string  paused | cancelled, as workers see it at begin; missing = running. purged, for a
                                            week after a purge: nothing writes keys of the job any
                                            more
penstock:<job>:lane                 string  the lane that the job has moved to, as workers see it at begin; missing = it has not
penstock:<job>:parked               list    raw messages of a paused job, or of one whose budget has no room for them now
penstock:<job>:budget               string  millionths of a dollar, of a job with a budget; so are the next, see account.lua
penstock:<job>:account              hash    reserved: the sum of the next; spent: as SQL has it; most, over, lacking
penstock:<job>:reserved             hash    "<gen>:<document id>" or "batch:<tag>" -> what a call, or a provider batch, that is
                                            under way may cost, and who makes it
penstock:tenants:<digest>:<month>   hash    what a tenant with a budget may spend on jobs that were accepted in this month (as
                                            2026-11, UTC), has spent and reserved, see account.lua;
                                            expires
penstock:tenants:<digest>:<month>:jobs  hash  prefix of each such job -> what it has spent and reserved; expires
penstock:budgets:owners             zset    worker that makes calls for jobs with a budget -> when it last said that it lives
                                            (Unix seconds, this server's clock)
penstock:<job>:queue                string  of a job that names no model, in a lane with queues per model: the queue of the
                                            model that answers it, as its first item has found it
penstock:<job>:answers              hash    of a job that sends equal requests once: digest of a request -> who sends it now,
                                            or whose result answers it, see lead.lua; bounded, and
                                            expires
penstock:answers:<tenant>           hash    the same for all jobs of a tenant that take answers of earlier ones; the tenant by
                                            the digest of its name
penstock:<job>:warm:<beginning>     string  of a job that uses its provider's prompt cache: "warm" while the cache has a
                                            beginning of prompts, behind it the explicit cache that
                                            holds it, or the worker that primes it; expires
penstock:queues:<lane's queue>      zset    queue of a model in this lane -> when it was last noted (Unix seconds, this
                                            server's clock)
penstock:found:<lane's queue>       hash    queue of an adapter that workers have found, and the settings do not name -> the
                                            queue under whose name these workers keep what they hold
penstock:found:<queue>:waiting      list    of such a queue: as many entries as messages wait for those adapters, for an
                                            autoscaler that can read lengths only; expires
penstock:delayed:<queue>            zset    tag -> not before (Unix seconds, this server's clock)
penstock:delayed:<queue>:raw        hash    tag -> raw message
penstock:delayed:<queue>:clock      string  the latest time that promoting has seen: a clock that is behind it stepped back
penstock:workers                    zset    worker name -> last heartbeat (Unix seconds, this server's clock)
penstock:worker:<name>              hash    what the worker said of itself; expires
penstock:controls                   zset    control process -> when it last said that it turns, while a job with several
                                            feeders lives (Unix seconds, this server's clock)
penstock:failing:<provider>         hash    "<job>|<class>" -> why calls fail lately, see runs.py; expires
penstock:drains:<lane>              hash    items_finished, items_requeued, finished, requeued: how workers ended, so far
penstock:parked:unknown             list    messages that no worker could read or place, whole, for a person; unbounded on
                                            purpose, because nothing is dropped in silence
penstock:refused                    list    tasks that remote doors refused, newest first, as JSON: when, task, id, job key and
                                            reason, without any content of documents; the last 1,000
penstock:callers:<digest>:minute    string  of a tenant (or a key) at the HTTP doors: when the requests that it may have in a
                                            minute are used up again; expires
penstock:callers:<digest>:now       zset    its requests that are under way, where they are limited -> until when they count
                                            (Unix seconds, this server's clock)
penstock:door:<digest of task id>   string  how often a remote door has begun this task and not ended it: processes that it
                                            took with it; expires
penstock:sweep:<unacked key>        string  short-lived: some worker has looked for ended leases of a lane just now
penstock:sweep:<unacked key>:ahead  string  since when leases of a time to come were seen: this server's clock stepped back
penstock:relayed:<queue>            zset    tag -> since when its message lies in RabbitMQ (Unix seconds, this server's
                                            clock) and no worker has taken it; it is in `unacked`
                                            all the while
penstock:wakes:<queue>              list    marks, at which idle workers wait: one for each group of urgent messages that
                                            came into the queue, some where it was empty; at most 64, and expires
penstock:shovel:<queue>             string  short-lived: the process that moves the queue's messages to RabbitMQ
<queue>                             list    kombu's own: raw messages. A lane's own is penstock.<lane>, that of a model in it
                                            penstock.<lane>.<model>
unacked.<lane>                      hash    kombu's own, and so are the next: tag -> message that a worker holds. Of a worker
                                            that hosts a model: unacked.<lane>.<model>, whatever
                                            queue it was in
unacked_index.<lane>                zset    tag -> when its lease was last renewed (Unix seconds, this server's clock);
                                            +inf while its message lies in RabbitMQ, where it needs
                                            no lease
unacked_mutex.<lane>                string  lock of stock kombu's sweep
unacked, unacked_index              as above, of workers from before lanes had keys of their own. What they held still
                                    counts as held, and any worker returns it when its lease ends

Job ids are made by the producer and hold neither ":" nor glob characters.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from math import ceil
from typing import Final

from penstock_ledger.model import FeedKind, Job

__all__ = [
    "ANSWERED",
    "ANSWERS_MAX",
    "BUDGET_OWNERS",
    "CONTROLS",
    "DEAD",
    "DONE",
    "EPOCH",
    "EPOCH_NAME",
    "EPOCH_REBUILD",
    "EPOCH_REBUILT",
    "EPOCH_RUN",
    "JOB_ID",
    "MAX_FIELD_BYTES",
    "OLDER_UNACKED",
    "OLDER_UNACKED_INDEX",
    "PARKED_UNKNOWN",
    "PREFIX",
    "PURGED",
    "QUEUE_PREFIX",
    "REBUILT_S",
    "REFUSED",
    "WORKERS",
    "answers_of_job",
    "answers_of_tenant",
    "begun",
    "bound_queue",
    "bucket_count",
    "buckets_for",
    "callers_minute",
    "callers_now",
    "delayed",
    "delayed_clock",
    "delayed_raw",
    "done_bucket",
    "done_field",
    "door_starts",
    "drains",
    "failing",
    "feed_scope",
    "found",
    "found_waiting",
    "is_queue_of",
    "job_scope",
    "job_state",
    "lane_queue",
    "passed_to",
    "queues",
    "relayed",
    "shovel",
    "tenant_month",
    "unacked",
    "unacked_index",
    "unacked_mutex",
    "wakes",
    "worker",
]

PREFIX: Final = "penstock:"
QUEUE_PREFIX: Final = "penstock."  # of a lane's queue
JOB_ID: Final = "job_"  # with which ids of jobs begin
EPOCH: Final = PREFIX + "epoch"
EPOCH_RUN: Final = PREFIX + "epoch:run"
EPOCH_NAME: Final = PREFIX + "epoch:name"
EPOCH_REBUILD: Final = PREFIX + "epoch:rebuild:"
EPOCH_REBUILT: Final = PREFIX + "epoch:rebuilt"
# workers lose what they held from before within a visibility timeout, a minute by default
REBUILT_S: Final = 300
WORKERS: Final = PREFIX + "workers"
CONTROLS: Final = PREFIX + "controls"
BUDGET_OWNERS: Final = PREFIX + "budgets:owners"
PARKED_UNKNOWN: Final = PREFIX + "parked:unknown"
# a channel, no key: documents whose callers wait, once their outcomes are stored
ANSWERED: Final = PREFIX + "answered"
REFUSED: Final = PREFIX + "refused"
OLDER_UNACKED: Final = "unacked"
OLDER_UNACKED_INDEX: Final = "unacked_index"

DONE: Final = b""
DEAD: Final = b"!"
# small hashes stay listpacks: up to 512 fields of up to 64 bytes in every Redis since 6.2
PER_BUCKET: Final = 160
# for open jobs: 80 per bucket at one million documents, still compact at six
UNKNOWN_BUCKETS: Final = 12_500
# what follows a lane's own name
MODEL_IN_QUEUE: Final = re.compile(r"[A-Za-z0-9._~-]{1,96}", re.ASCII)
ANSWERS_MAX: Final = 500_000
"""Entries of a hash of answers, some 75 MB. In a full one the one that ends soonest, of a few
looked at, makes room."""
# longer fields would turn a whole bucket into a real hash table, 4 times as large
MAX_FIELD_BYTES: Final = 64


PURGED: Final = "purged"  # the state of a job that is no more; see purged.lua
# before the reason, in a job's counters of attempts that were followed by another
RETRIED = "retried:"


def bucket_count(total: int | None) -> int:
    """Return the number of buckets of a completed set for ``total`` documents.

    It must be the same for the whole life of a job.
    """
    return UNKNOWN_BUCKETS if total is None else max(1, ceil(total / PER_BUCKET))


def buckets_for(job: Job) -> int:
    """Return the number of buckets of a job's completed set.

    Closing an open job gives it a total, but must not move its documents.
    """
    return bucket_count(None if job.source.get("kind") == FeedKind.SPOOL else job.total)


def done_field(doc_id: str) -> bytes:
    """Return the document in the completed set: its id, or the digest of a long one."""
    raw = doc_id.encode()
    return raw if len(raw) <= MAX_FIELD_BYTES else hashlib.sha256(raw).digest()


def done_bucket(field: bytes, buckets: int) -> int:
    return zlib.crc32(field) % buckets


def job_scope(job_id: str) -> str:
    """Return the prefix of a job's keys; scripts append ``:stats``, ``:state`` and ``:parked``."""
    return f"{PREFIX}{job_id}"


def job_state(job_id: str) -> str:
    """Return the key that says how workers see the job."""
    return f"{job_scope(job_id)}:state"


def feed_scope(job_id: str, generation: int) -> str:
    """Return the prefix of the keys of one generation.

    Scripts append ``:done:<n>``, ``:window`` and ``:starts``.
    """
    return f"{PREFIX}{job_id}:{generation}"


def delayed(queue: str) -> str:
    return f"{PREFIX}delayed:{queue}"


def delayed_raw(queue: str) -> str:
    return f"{PREFIX}delayed:{queue}:raw"


def delayed_clock(queue: str) -> str:
    return f"{PREFIX}delayed:{queue}:clock"


def answers_of_job(job_id: str) -> str:
    return f"{job_scope(job_id)}:answers"


def warm_prefix(job_id: str, name: str) -> str:
    return f"{job_scope(job_id)}:warm:{name}"


def callers_minute(who: str) -> str:
    """Return the key that counts HTTP requests of a tenant or an API key in a minute."""
    return f"{_of_caller(who)}:minute"


def callers_now(who: str) -> str:
    return f"{_of_caller(who)}:now"


def _of_caller(who: str) -> str:
    return f"{PREFIX}callers:{hashlib.sha256(who.encode()).hexdigest()[:32]}"


def tenant_month(tenant: str, month: str) -> str:
    """Return the account of a tenant with a budget; ``month`` as 2026-11."""
    return f"{PREFIX}tenants:{hashlib.sha256(tenant.encode()).hexdigest()[:32]}:{month}"


def answers_of_tenant(tenant: str | None) -> str:
    """Return the key of answers for a tenant; None stands for all tenants together."""
    name = "all" if tenant is None else hashlib.sha256(tenant.encode()).hexdigest()[:32]
    return f"{PREFIX}answers:{name}"


def passed_to(door: str) -> str:
    """Return a channel, no key: answers to calls of this door, as they come."""
    return f"{PREFIX}passed:{door}"


def door_starts(task_id: str) -> str:
    """Return the digest: a task id is a stranger's text."""
    return f"{PREFIX}door:{hashlib.sha256(task_id.encode(errors='surrogatepass')).hexdigest()}"


def unacked(queue: str) -> str:
    """Return the key of what one lane has not acknowledged.

    So its depth (queued + unacked) can be counted, and scaled by, without the others'."""
    return f"unacked.{queue.removeprefix(QUEUE_PREFIX)}"


def unacked_index(queue: str) -> str:
    return f"unacked_index.{queue.removeprefix(QUEUE_PREFIX)}"


def unacked_mutex(queue: str) -> str:
    return f"unacked_mutex.{queue.removeprefix(QUEUE_PREFIX)}"


def queues(lane: str) -> str:
    """Return the key of a lane's queues; ``lane`` is the name of the lane's own queue."""
    return f"{PREFIX}queues:{lane}"


def found(lane: str) -> str:
    """Return the key of what a lane found; ``lane`` is the name of the lane's own queue."""
    return f"{PREFIX}found:{lane}"


def found_waiting(home: str) -> str:
    """Return the key; the chart has the same name for its autoscaler (templates/_queues.tpl)."""
    return f"{PREFIX}found:{home}:waiting"


def is_queue_of(lane: str, name: str) -> bool:
    """Return whether it can be the name of a model's queue in the lane with this queue."""
    return name.startswith(f"{lane}.") and MODEL_IN_QUEUE.fullmatch(name, len(lane) + 1) is not None


def lane_queue(queue: str) -> str:
    """Return the lane's own queue, of any of its queues: lanes have no dot in their names."""
    return QUEUE_PREFIX + queue.removeprefix(QUEUE_PREFIX).partition(".")[0]


def begun(caller: str) -> str:
    return f"{PREFIX}begun:{caller}"


def bound_queue(job_id: str) -> str:
    return f"{job_scope(job_id)}:queue"


def relayed(queue: str) -> str:
    return f"{PREFIX}relayed:{queue}"


def shovel(queue: str) -> str:
    return f"{PREFIX}shovel:{queue}"


def wakes(queue: str) -> str:
    """Return the key of a queue's wake-ups; urgent.lua has the same name."""
    return f"{PREFIX}wakes:{queue}"


def drains(lane: str) -> str:
    return f"{PREFIX}drains:{lane}"


def failing(provider: str) -> str:
    return f"{PREFIX}failing:{provider}"


def worker(name: str) -> str:
    return f"{PREFIX}worker:{name}"
