"""Feeding, the queue, and what Redis spends on both."""
