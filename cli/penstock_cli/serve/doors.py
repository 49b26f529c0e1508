"""The HTTP doors of `penstock serve`: a process of their own, which is started again when it
ends."""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from penstock_cli.processes.supervisor import Supervisor
from penstock_cli.processes.worker_process import Policy
from penstock_cli.run.services import DRAIN_MARGIN_S, Services, as_variables
from penstock_cli.settings import child_environment
from penstock_cli.state import FOR_OTHERS, StateFolder

if TYPE_CHECKING:
    from penstock_cli.show.progress import Progress
    from penstock_gateway import GatewaySettings

ASK_S: Final = 2.0  # for one question whether they serve
COMMAND: Final = (sys.executable, "-m", "penstock_cli", "gateway")


class Doors:
    """Started with the ``with``; at its end they finish the requests that have begun."""

    def __init__(
        self,
        settings: GatewaySettings,
        services: Services,
        state: StateFolder,
        progress: Progress,
        hurry: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._services = services
        self._state = state
        self._progress = progress
        self._hurry = hurry

    @property
    def url(self) -> str:
        """As a browser on this machine asks for it."""
        door = self._settings.gateway
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "::1": "[::1]"}.get(door.host, door.host)  # noqa: S104 -- compared
        return f"http://{host}:{door.port}"

    def __enter__(self) -> Self:
        self._progress.note("opening the doors")
        variables = as_variables(self._services.settings, self._state) | {
            f"PENSTOCK_{name.upper()}": json.dumps(
                getattr(self._settings, name).model_dump(mode="json")
            )
            for name in ("gateway", "doors")
        }
        self.supervisor = Supervisor(
            lambda _: COMMAND,
            1,
            environment=child_environment(variables),
            logs=self._state.logs,
            tell=self._progress.say,
            policy=Policy(
                name=lambda _: "the process of the HTTP doors",
                log=lambda _: "doors",
                umask=FOR_OTHERS,
            ),
        )
        self.supervisor.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.note("closing the doors; requests that have begun are finished")
        self.supervisor.stop(self._settings.gateway.drain_s + DRAIN_MARGIN_S, self._hurry)

    def serve(self) -> bool:
        """Whether they accept work now."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=ASK_S) as answer:  # noqa: S310 -- our own address
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def wait(self, asked_to_stop: Callable[[], bool], pause_s: float) -> None:
        """Until they serve. Raises WorkersKeepCrashing."""
        while not (asked_to_stop() or self.serve()):
            self.supervisor.tick()
            time.sleep(pause_s)
