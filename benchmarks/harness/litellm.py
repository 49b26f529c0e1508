"""LiteLLM's proxy as the benchmarks start it, from an environment of its own: Penstock does not
depend on it.

PENSTOCK_BENCH_LITELLM names the Python of that environment; benchmarks/README.md says how to make
one.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.callers import Request, asked
from benchmarks.harness.ground import GroundError, process, tests_on_path

VARIABLE = "PENSTOCK_BENCH_LITELLM"
START_S = 120.0  # importing it alone takes many seconds
MODEL = "sim-small"
# No keys (it listens to this machine only), no database, no callbacks, no retries: the least that a
# call can cost there.
CONFIG = """
model_list:
  - model_name: {model}
    litellm_params: {{model: openai/{model}, api_base: "{url}", api_key: none, max_retries: 0}}
files_settings:
  - {{custom_llm_provider: openai, api_base: "{url}", api_key: none}}
litellm_settings: {{telemetry: false, num_retries: 0, request_timeout: 60}}
general_settings: {{disable_spend_logs: true, dangerously_permit_weak_or_unset_master_key: true}}
"""
NOWHERE = "http://127.0.0.1:9"


class Running(NamedTuple):
    port: int
    pid: int
    version: str


def python() -> Path | None:
    """The Python that has LiteLLM; None where the variable does not say.

    Raises GroundError where it names none."""
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    path = Path(named)
    if not path.is_file():
        raise GroundError(
            f"{VARIABLE} is {named!r}, and there is no such file; give the Python of LiteLLM's "
            "environment"
        )
    return path


@contextmanager
def proxy(place: Path, interpreter: Path, url: str) -> Iterator[Running]:
    """One process of it in front of ``url`` (with /v1), with one worker.

    Raises GroundError where it does not start."""
    with tests_on_path():
        from servers import free_port
    port, config, log = free_port(), place / "litellm.yaml", place / "litellm.log"
    config.write_text(CONFIG.format(model=MODEL, url=url))
    command = [
        str(interpreter.with_name("litellm")),
        "--config",
        str(config),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--num_workers",
        "1",
    ]
    variables = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "LITELLM_TELEMETRY": "False",
        "LITELLM_MODE": "PRODUCTION",  # as its documentation asks for
        "HTTPS_PROXY": NOWHERE,
        "NO_PROXY": "127.0.0.1,localhost",
    }
    with process(command, variables=variables, log=log) as running:
        deadline = time.monotonic() + START_S
        while not _listens(port):
            if running.poll() is not None or time.monotonic() > deadline:
                raise GroundError(
                    f"LiteLLM did not start within {START_S:g} s: {log.read_text()[-1000:]}"
                )
            time.sleep(0.2)
        yield Running(port, running.pid, _version(interpreter))


def _listens(port: int) -> bool:
    try:
        asked(port, Request("GET", "/health/liveliness"))
    except GroundError:
        return False
    return True


def _version(interpreter: Path) -> str:
    said = "from importlib.metadata import version; print(version('litellm'))"
    return subprocess.run(
        [str(interpreter), "-c", said], capture_output=True, text=True, timeout=60, check=True
    ).stdout.strip()
