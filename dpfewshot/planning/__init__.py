"""Fixes noise and draws from public numbers, before anything is spent."""
