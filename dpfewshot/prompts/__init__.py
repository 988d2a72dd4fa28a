"""Prompts in tokens: with private records, and with released demonstrations."""
