"""Backends that hold the model in this process, with one key-value stream for each prompt."""
