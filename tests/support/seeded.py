"""Synthesizers with a random source of the test's own. Their results say `private=False`."""

from dpfewshot import Synthesizer
from dpfewshot.exact.random_source import RandomSource


def with_random_source(random_source: RandomSource | None) -> type[Synthesizer]:
    """`Synthesizer`, drawing from this source; None is the operating system's generator."""
    if random_source is None:
        return Synthesizer
    return type("SeededSynthesizer", (Synthesizer,), {"_random_source": staticmethod(random_source)})
