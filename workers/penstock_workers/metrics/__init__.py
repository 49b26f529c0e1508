"""The fleet counts its work, as Prometheus reads it and a collector gets it.

Each process serves the page `http://<metrics_host>:<metrics_port>/metrics`, and sends the same by
OTLP where OTEL_METRICS_EXPORTER says so (penstock_ledger/telemetry). ``catalogue`` names everything
there is; docs/metrics.md, the dashboards and the alert rules are made from it. Parts that count
implement ``figures()`` and yield samples; nothing is computed before it is asked for, or sent::

    with start_metrics(settings, control.figures):
        ...

Other processes pass their own functions that return samples.
"""

from __future__ import annotations

from penstock_workers.metrics.serve import start_metrics

__all__ = ["start_metrics"]
