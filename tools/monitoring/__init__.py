"""Makes alert rules, dashboards and the tables of the docs from
`penstock_workers.metrics.catalogue`."""
