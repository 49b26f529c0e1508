"""Parts of the pacing benchmark: a strict provider, our quota, cases, and the
arithmetic of the report."""
