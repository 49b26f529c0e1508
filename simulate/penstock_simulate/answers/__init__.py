"""The provider reads a call and answers it: good answers, refusals, faults and headers."""
