"""Dominating pairs: the worst case of each privacy event's step, as two distributions."""
