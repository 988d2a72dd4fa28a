"""Random bytes of the compiled core and of its twins."""

import random
from collections.abc import Iterator

import numpy as np


class Recording:
    """Seeded bytes that remember what was handed out."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.served = b""

    def __call__(self, count: int) -> bytes:
        data = self._random.randbytes(count)
        self.served += data
        return data

    def words(self) -> Iterator[int]:
        return iter(np.frombuffer(self.served, dtype="<u8").tolist())


def no_more_digits(_count: int) -> bytes:
    raise AssertionError("64 digits should decide")
