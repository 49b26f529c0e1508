"""`vllm run-batch` as a process: started, watched through its own metrics, killed."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.request
from pathlib import Path

from benchmarks.engines.setup import SERVED_AS, Setup, tests_module, variables
from benchmarks.engines.vllm_command import COMMAND, flags, named_vllm
from benchmarks.engines.work import LOG_END, RUN_TIMEOUT_S, end_group
from benchmarks.harness.ground import ROOT, GroundError

FINISHED, RUNNING = "vllm:request_success_total", "vllm:num_requests_running"
LOOK_EACH_S = 0.05


class BatchCommand:
    """One run over one file."""

    def __init__(self, place: Path, setup: Setup, source: Path, output: Path) -> None:
        self._log = place / "run-batch.log"
        self._metrics = tests_module("servers").free_port()
        command = [
            *COMMAND,
            "run-batch",
            "-i",
            str(source),
            "-o",
            str(output),
            "--served-model-name",
            SERVED_AS,
            "--enable-metrics",
            "--host",
            "127.0.0.1",
            "--port",
            str(self._metrics),
            *flags(setup.arguments),
        ]
        environment = os.environ | variables(setup) | named_vllm(place)
        with self._log.open("ab") as log:
            self._running = subprocess.Popen(
                command,
                env=environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self) -> None:
        try:
            code = self._running.wait(RUN_TIMEOUT_S)
        finally:
            end_group(self._running)
        if code != 0:
            raise GroundError(f"run-batch ended with {code}:\n{self._log_end()}")

    def wait_for(self, finished: int) -> tuple[int, int]:
        """Until so many requests have finished: how many have, and how many run.

        Only the engine's own counters tell."""
        deadline = time.monotonic() + RUN_TIMEOUT_S
        while (seen := self._seen())[0] < finished:
            if self._running.poll() is not None or time.monotonic() > deadline:
                end_group(self._running)
                raise GroundError(f"run-batch finished {seen[0]} of {finished}:\n{self._log_end()}")
            time.sleep(LOOK_EACH_S)
        return seen

    def kill(self) -> None:
        """kill -9, with its engine: it would outlive it otherwise."""
        end_group(self._running)

    def _seen(self) -> tuple[int, int]:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self._metrics}/metrics", timeout=5
            ) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return 0, 0
        return _total(lines, FINISHED), _total(lines, RUNNING)

    def _log_end(self) -> str:
        return self._log.read_text(errors="replace")[-LOG_END:]


def _total(lines: list[str], series: str) -> int:
    return round(sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(series)))
