"""Exact samplers and exact rounding: what the compiled core computes, in Python integers of any length."""
