"""vLLM itself: its arguments, its processes, the queue before it, and its figures."""
