"""The regular expression of a range of whole numbers, as JSON writes them: no leading zeros, no plus sign."""

from __future__ import annotations


def between(least: int, most: int) -> str:
    """The expression that matches the whole numbers from `least` to `most`, and -0 never.

    Example:
        >>> between(7, 42)
        '(?:[7-9]|[1-3][0-9]|4[0-2])'
    """
    if least < 0:
        below = f"-{between(max(1, -most), -least)}"
        return below if most < 0 else f"(?:{below}|{between(0, most)})"
    parts: list[str] = []
    complete = len(str(most + 1)) - 1  # every number of so many digits is at most `most`
    while least <= most:
        digits = len(str(least))
        if least == 10 ** (digits - 1) and digits < complete:  # all numbers of several lengths
            parts.append(f"[1-9][0-9]{{{digits - 1},{complete - 1}}}")
            least = 10**complete
        else:
            last = min(most, 10**digits - 1)
            parts += _same_length(str(least), str(last))
            least = last + 1
    return f"(?:{'|'.join(parts)})"


def _same_length(least: str, most: str) -> list[str]:
    """Expressions for the numbers between two of the same length."""
    if not least:
        return [""]
    if least[0] == most[0]:
        return [least[0] + rest for rest in _same_length(least[1:], most[1:])]
    rest = len(least) - 1
    first, last = int(least[0]), int(most[0])
    parts = []
    if least[1:] != "0" * rest:  # the lowest leading digit allows only some of what follows
        parts += [least[0] + each for each in _same_length(least[1:], "9" * rest)]
        first += 1
    above = []
    if most[1:] != "9" * rest:  # and so does the highest
        above = [most[0] + each for each in _same_length("0" * rest, most[1:])]
        last -= 1
    if first <= last:
        parts.append(_digits(first, last) + _any_digits(rest))
    return parts + above


def _digits(first: int, last: int) -> str:
    return str(first) if first == last else f"[{first}-{last}]"


def _any_digits(count: int) -> str:
    return "" if not count else "[0-9]" if count == 1 else f"[0-9]{{{count}}}"
