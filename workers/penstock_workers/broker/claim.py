"""Claim: take up to 64 messages from their queues and record them as held, in one script call.

Stock kombu takes one message per round trip and records it as unacked in a second one: a process
killed in between loses it. The keys are kombu's own, so stock producers, workers and Flower share
the broker. The hub sends the script over the channel's connection and reads the answer when it
comes; Redis cannot wait inside a script: an idle worker asks again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from queue import Empty
from time import monotonic
from typing import Any, Literal

from kombu.transport import redis as kombu_redis
from redis.exceptions import NoScriptError

from penstock_workers.broker.connections import IDLE_POLL_S, ConnectingChannel, Pause
from penstock_workers.broker.lease_scripts import PARKED_KEY, Claim, Claimed, ClaimScript
from penstock_workers.broker.leases import BROKER_ERRORS, BrokerAction
from penstock_workers.broker.messages import Message, QoS, payload_of

log = logging.getLogger(__name__)

BULK_MAX = 64  # messages per claim: about 5 ms of the hub, then control commands get their turn
BULK_LIMIT = 500  # for the option `bulk_max`: a script may pass some thousand arguments at once


class ClaimingChannel(ConnectingChannel):
    """Claims in bulk where stock kombu pops one."""

    QoS = QoS
    Message = Message
    bulk_max = BULK_MAX
    idle_poll_s = IDLE_POLL_S
    from_transport_options = (
        *kombu_redis.Channel.from_transport_options,
        "bulk_max",
        "idle_poll_s",
    )

    def __init__(self, connection: Any, **options: Any) -> None:
        self.leases = connection.leases
        self._unrecorded: set[str] = set()  # queues whose consumers need no acknowledgement
        self._claims = ClaimScript()
        # the queues that were asked last, and their lists
        self._lists: tuple[tuple[str, ...], list[tuple[str, str]]] = ((), [])
        self.pause = Pause()
        super().__init__(connection, **options)

    def room(self) -> int:
        """Return how many more messages the prefetch limit allows.

        It counts what the process holds, over all of its channels."""
        limit: int = self.qos.prefetch_count
        most = min(self.bulk_max, BULK_LIMIT)
        return min(most, limit - len(self.leases)) if limit else most

    # -- kombu's poller calls these two in place of BRPOP ------------------------------------------

    def _brpop_start(self, timeout: float | None = None) -> None:
        room = self.room()
        if room <= 0 or not self.pause.is_over():
            return
        queues = self._queue_cycle.consume(len(self.active_queues))
        if not queues:
            return
        self._in_poll = self.client.connection
        self._brpop_sent_at = monotonic()
        self.pause.asking()
        self._in_poll.send_command(*self._claim_command(self._claims, queues, room))

    def _brpop_read(self, **options: Any) -> Literal[True]:
        messages = self._read_claim(**options)
        if not messages:
            self.pause.found_nothing(self.idle_poll_s, is_woken=self.connection.is_woken())
            raise Empty
        self.pause.found_some()
        self._queue_cycle.rotate(messages[0].queue)
        self._hand_over(messages)
        return True

    def _claim_command(
        self, script: ClaimScript, queues: Sequence[str], room: int
    ) -> list[str | int]:
        names = tuple(queues)
        if self._lists[0] != names:  # an idle worker asks for the same again and again
            self._lists = (
                names,
                [
                    (queue, self._q_for_pri(queue, step))
                    for step in self.priority_steps
                    for queue in names
                ],
            )
        return script.command(self.broker_keys(), self._lists[1], self._unrecorded, room)

    def _read_claim(self, **options: Any) -> list[Claimed]:
        try:
            reply = self.client.parse_response(self.client.connection, "EVAL", **options)
        except NoScriptError:
            self._claims.forget()
            return []
        except self.connection_errors:
            self.client.connection.disconnect()
            raise
        finally:
            self._in_poll = None
            self._flush_brpop_reauth()
        claim = self._claims.read(reply)
        self._note(claim)
        return claim.messages

    def _note(self, claim: Claim) -> None:
        recorded = [one.tag for one in claim.messages if one.queue not in self._unrecorded]
        self.leases.claimed(recorded, claim.score, claim.dropped, claim.put_off)

    def _hand_over(self, messages: Sequence[Claimed]) -> None:
        waiting = deque(messages)
        try:
            while waiting:
                self._deliver(waiting.popleft())
        finally:  # if the connection is lost or the worker stops in the middle
            self.leases.conclude([claimed.tag for claimed in waiting], BrokerAction.GIVE_BACK)

    def _deliver(self, claimed: Claimed) -> None:
        """Deliver a message to the consumer of its queue.

        A message that makes the consumer fail must not take the worker with it."""
        try:
            self.connection._deliver(payload_of(claimed.raw), claimed.queue)
        except BROKER_ERRORS:
            raise
        except Exception:
            log.exception(
                "message %s of queue %s cannot be taken; kept in %s",
                claimed.tag,
                claimed.queue,
                PARKED_KEY,
            )
            self.leases.conclude([claimed.tag], BrokerAction.SET_ASIDE)
