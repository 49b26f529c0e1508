"""Keeps the private Redis of a running job going: a slow server is waited for, one that ended is
started again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from penstock_cli.disk import shortage
from penstock_cli.errors import EmbeddedRedisFailed
from penstock_cli.redis_server.server import SILENCE_MAX_S, EmbeddedRedis, Tell, end
from penstock_cli.show.progress import Wait
from penstock_producer.reporting.text import duration

# short, so that the screen, Ctrl-C and crashed workers need not wait for a server that is slow
PING_TIMEOUT_S = 2.0
# within RESTART_WINDOW_S: a server that ends again and again lacks memory, and starting it is no
# help
MAX_RESTARTS = 3
RESTART_WINDOW_S = 600.0


class RedisKeeper:
    """Owns the private server of one run. Not thread-safe: one thread drives it."""

    def __init__(
        self, server: EmbeddedRedis, tell: Tell, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.server = server
        self._tell = tell
        self._clock = clock
        self._answered_at = clock()
        self._restarts: deque[float] = (
            deque()
        )  # of the last RESTART_WINDOW_S, so at most MAX_RESTARTS

    def look(self) -> Wait | None:
        """None while the server works, else what is waited for.

        Raises EmbeddedRedisFailed when it ended too often, and the errors of
        ``EmbeddedRedis.start``.
        """
        import redis

        try:
            self.server.ping(PING_TIMEOUT_S)
        except (
            redis.ResponseError,
            redis.BusyLoadingError,
        ) as error:  # it lives, and says why it does not work
            self._answered_at = self._clock()
            return Wait(f"the private Redis refuses to work for now: {error}")
        except redis.RedisError:
            return self._silent()
        self._answered_at = self._clock()
        return None

    def _silent(self) -> Wait | None:
        silent_s = self._clock() - self._answered_at
        if not self.server.alive:
            return self._start_again(
                "the private Redis ended; starting it again, nothing that was finished is lost"
            )
        if silent_s <= SILENCE_MAX_S:
            return Wait(
                "the private Redis lives but does not answer; waiting for it, at most "
                f"{duration(SILENCE_MAX_S)} (a slow disk or a machine short of memory is the usual "
                "reason).",
                f"Silent for {duration(silent_s)}.",
            )
        end(self.server.pid, self.server.folder)
        return self._start_again(
            f"the private Redis did not answer for {duration(silent_s)} and was ended; starting it "
            "again"
        )

    def _start_again(self, why: str) -> Wait | None:
        folder, now = self.server.folder, self._clock()
        short = shortage(folder)
        if short is not None:
            return Wait(f"the private Redis ended and waits for space on the disk: {short}")
        while self._restarts and now - self._restarts[0] > RESTART_WINDOW_S:
            self._restarts.popleft()
        if len(self._restarts) >= MAX_RESTARTS:
            raise EmbeddedRedisFailed(
                f"the private Redis ended {len(self._restarts) + 1} times within "
                f"{duration(RESTART_WINDOW_S)}; see {folder / 'redis.log'} (too little memory is "
                "the usual reason). The same command resumes the job."
            )
        self._restarts.append(now)
        self._tell(why)
        self.server = EmbeddedRedis.start(folder, self._tell)
        self._answered_at = self._clock()
        return None
