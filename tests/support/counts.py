"""Counts of a small vocabulary's words."""

from dpfewshot.mechanisms.word_histogram import Expected, row_sum

VOCABULARY = 40
NOTHING = Expected()


def summed(texts, expected=NOTHING, *, size=VOCABULARY):
    return row_sum(texts, size, expected)


def expecting(words, firsts=()):
    return Expected(dict.fromkeys(words, 0.5), dict.fromkeys(firsts, 0.01))
