"""What every benchmark stands on: stores, a provider and a fleet to measure, rounds, reports, and
the targets of ratios."""
