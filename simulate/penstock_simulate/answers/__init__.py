"""What the provider answers: the call as it is read, good answers, refusals, faults and headers."""
