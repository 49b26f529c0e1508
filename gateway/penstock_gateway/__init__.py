"""Serve Penstock over HTTP: files, batches, jobs, calls that wait, and the dashboard.

The names below are the public ones; they load on first use, so that the command line starts without
a web framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_ledger.lazy_names import lazy_names

if TYPE_CHECKING:
    __all__: list[str]
    from penstock_gateway.app import create_app as create_app
    from penstock_gateway.serve import serve_door as serve_door
    from penstock_gateway.settings import GatewaySettings as GatewaySettings
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "penstock_gateway.app": "create_app",
            "penstock_gateway.serve": "serve_door",
            "penstock_gateway.settings": "GatewaySettings",
        },
    )
