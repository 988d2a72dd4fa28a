"""Prompts with private records, in tokens, and with released demonstrations, as text."""
