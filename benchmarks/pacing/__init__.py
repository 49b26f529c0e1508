"""Parts of the pacing benchmark: a strict provider, limiters behind one adapter, cases, and the
arithmetic of the report."""
