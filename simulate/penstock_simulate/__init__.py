"""A provider on this machine, with strict limits and seeded faults, which counts every call.

Beside it are Anthropic's messages, Gemini's content, and the batch APIs of all three.

It exists to show what a fleet does under limits and failures without a key or a bill. Answers,
faults and documents that can never succeed depend on the seed and the document only, so two runs
meet the same faults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_simulate.config import SimulatorConfig

if TYPE_CHECKING:
    from aiohttp import web

__all__ = ["SimulatorConfig", "make_app", "serve"]


def make_app(config: SimulatorConfig) -> web.Application:
    """Return the provider as an aiohttp application, to be run in a loop of the caller."""
    from penstock_simulate.web import make_app

    return make_app(config)


def serve(config: SimulatorConfig) -> None:
    """Serve until SIGTERM or SIGINT; one line with the URL on stdout says that it is ready.

    Raises BadSetting when the address cannot be bound or the call log cannot be written.
    """
    from penstock_simulate.web import serve

    serve(config)
