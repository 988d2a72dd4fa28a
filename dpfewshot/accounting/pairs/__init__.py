"""Dominating pairs: the worst case of each privacy event, as two distributions."""
