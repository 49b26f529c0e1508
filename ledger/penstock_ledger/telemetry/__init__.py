"""Figures and traces leave a process: a page for Prometheus, and OTLP to a collector.

``metrics`` shows one registry of prometheus-client both ways, so there is one list of counters.
``collector`` is what metrics and traces (penstock_workers/tracing) share. It and ``push`` import
OpenTelemetry, which need not be installed.
"""
