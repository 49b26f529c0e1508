"""What the fleet counts, as Prometheus reads it: `http://<metrics_host>:<metrics_port>/metrics` of
each process.

``catalogue`` names everything there is; docs/metrics.md, the dashboards and the alert rules are
made from it. Parts that count implement ``figures()`` and yield samples; nothing is computed before
the page is asked for::

    with start_metrics(settings, control.figures):  # does nothing where settings.metrics_port is
    None
        ...

Other processes pass their own functions that return samples.
"""

from __future__ import annotations

from penstock_workers.metrics.serve import start_metrics

__all__ = ["start_metrics"]
