"""Writes texts from what was released, and from public prompts: post-processing, which reads no record.

No file here may import records, samplers, accounts or `generation`: `setup.cfg` states it.
"""
