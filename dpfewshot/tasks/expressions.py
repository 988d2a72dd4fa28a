"""The regular expressions of users: letters, classes, groups, `|` and repetitions alone.

What Python, ECMA-262 and Rust do not read alike is refused by name, so an expression means the same to every
reader of the schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from dpfewshot.errors import InvalidTask
from dpfewshot.tasks.automaton import TOO_LARGE, Either, Part, Times, character

Ranges = list[tuple[int, int]]
"""Characters: the first and the last code point of each range."""

_LONGEST: Final = 50_000
"""The most characters of an expression."""

_NOT_IN_A_TEXT: Final = [(0x00, 0x1F), (0x7F, 0x9F), (0x2028, 0x2029), (0xD800, 0xDFFF)]
"""Control characters, line breaks and surrogates."""

_NOT_IN_A_STRING: Final = sorted([*_NOT_IN_A_TEXT, (ord('"'),) * 2, (ord("\\"),) * 2])
"""What a JSON string holds only behind a backslash, besides."""

_LAST: Final = 0x10FFFF

_SETS: Final[Mapping[str, Ranges]] = {
    ".": [(0, _LAST)],
    r"\d": [(ord("0"), ord("9"))],
    r"\s": [(ord(" "), ord(" "))],
    r"\w": [(ord(first), ord(last)) for first, last in (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z"))],
}
"""What all three read as any character, a digit, a space and a letter of a word, in a text of one line."""

_ESCAPED: Final = r"\\[ -/:;=?@\[-`{-~]"  # \< and \> begin and end a word for some
_MEMBER: Final = rf"(?:{_ESCAPED}|[^\\\[\]-])"
_MEMBERS: Final = re.compile(rf"(\\[dsw])|({_MEMBER}|-)(?:-({_MEMBER}))?", re.DOTALL)

_CLASS: Final = (
    rf"\[(?:(?P<other>\^)(?!\])|(?![\]^]))(?P<members>-?(?:\\[dsw]|{_MEMBER}(?:-{_MEMBER})?)*-?)\]"
)
_PIECE: Final = re.compile(
    rf"(?:(?P<one>{_ESCAPED}|[^\\|?*+()\[\]{{}}^$]|\\[dsw]|{_CLASS})|(?P<close>\)))"
    r"(?:(?P<times>[*+?]|\{[0-9]{1,4}(?:,[0-9]{0,4})?\})\??)?"
    r"|(?P<open>\(\?:|\((?!\?))|(?P<either>\$?\|\^?)|(?P<anchor>\A\^|\$\Z)|(?P<wrong>.)",
    re.DOTALL,
)
"""One character or the end of a group, with its repetition; or what else an expression has."""

_TIMES: Final = {"*": "0,", "+": "1,", "?": "0,1"}

_ANCHORED: Final = "'^' and '$' may stand around an outermost alternative alone"
_REPEATED: Final = "a repetition follows a letter, a class or a group, and no other repetition"

_HINTS: Final = {
    "\\": r"an escape is \d, \w, \s, or punctuation behind a backslash",
    "[": r"a class has letters, ranges, \d, \w and \s, and behind a backslash '[', ']' and '-'",
    "(": "a group begins with '(' or '(?:', without flags, names and look-around",
    "{": rf"{_REPEATED}; it is {{2}}, {{2,}} or {{2,5}}, with four digits at most, and another brace is \{{",
    **dict.fromkeys("*+?", _REPEATED),
    **dict.fromkeys("^$", _ANCHORED),
}
"""What can be used in place of a piece that cannot be read, by its first character."""


def parsed(expression: str, *, in_json: bool = False) -> Part:
    r"""An expression of a user, which holds for whole texts.

    No text has a control character or a line break, and the inside of a JSON string has no quotes and no
    backslashes. `\d` is [0-9], `\w` is [0-9A-Za-z_], and `\s` a space. An InvalidTask says what is refused.
    """
    forbidden = _NOT_IN_A_STRING if in_json else _NOT_IN_A_TEXT
    around: list[list[list[Part]]] = []  # the alternatives of the groups around this one
    alternatives: list[list[Part]] = [[]]
    for piece in _pieces(expression):
        if piece["open"]:
            around.append(alternatives)
            alternatives = [[]]
        elif piece["either"]:
            if around and piece["either"] != "|":
                raise _unusable(f"{piece[0]!r} in a group: {_ANCHORED}")
            alternatives.append([])
        elif piece["close"]:
            if not around:
                raise _unusable("a ')' without its '('")
            group, alternatives = Either(alternatives), around.pop()
            alternatives[-1].append(_repeated(group, piece["times"]))
        elif piece["one"]:
            alternatives[-1].append(_repeated(_character(piece, forbidden), piece["times"]))
    if around:
        raise _unusable("a '(' without its ')'")
    return Either(alternatives)


def _pieces(expression: str) -> Iterator[re.Match[str]]:
    if len(expression) > _LONGEST:
        raise InvalidTask(TOO_LARGE)
    if re.search("[\ud800-\udfff]", expression):
        raise _unusable("half a surrogate pair")
    for piece in _PIECE.finditer(expression):
        if piece["wrong"]:
            found = expression[piece.start() : piece.start() + 9]
            hint = _HINTS.get(piece["wrong"], "write it behind a backslash")
            raise _unusable(f"{found!r} at character {piece.start() + 1}: {hint}")
        yield piece


def _repeated(part: Part, times: str | None) -> Part:
    """A part with its repetition. Lazy or not, whole texts match alike."""
    if times is None:
        return part
    least, comma, most = _TIMES.get(times, times.strip("{}")).partition(",")
    if most and int(most) < int(least):
        raise _unusable(f"the repetition {times!r}, whose numbers are in the wrong order")
    return Times(part, int(least), int(most or least) if most or not comma else None)


def _character(piece: re.Match[str], forbidden: Ranges) -> Part:
    one = piece["one"]
    asked = _class(piece) if one[0] == "[" else _SETS.get(one) or [(ord(one[-1]),) * 2]
    allowed = _without(asked, forbidden)
    if not allowed:
        raise _unusable(
            f"{one!r}: a text has no control characters or line breaks, "
            "and here a JSON string has no quotes or backslashes"
        )
    return character(allowed)


def _class(piece: re.Match[str]) -> Ranges:
    """The characters of a class."""
    if re.search(r"--|&&|~~|\|\|", piece["members"]):
        raise _unusable(f"the class {piece['one']!r}, in which some read the doubled sign as an operator")
    asked: Ranges = []
    for known, first, last in _MEMBERS.findall(piece["members"]):
        if known and piece["other"]:
            raise _unusable(f"the class {piece['one']!r}: write out what {known} stands for")
        asked += _SETS.get(known) or [(ord(first[-1]), ord((last or first)[-1]))]
    if any(last < first for first, last in asked):
        raise _unusable(f"the class {piece['one']!r}, which has a range in the wrong order")
    return _without([(0, _LAST)], sorted(asked)) if piece["other"] else asked


def _without(ranges: Iterable[tuple[int, int]], forbidden: Ranges) -> Ranges:
    """Ranges of characters without others, which are ascending."""
    left: Ranges = []
    for first, last in ranges:
        for low, high in forbidden:
            if first <= min(last, low - 1):
                left.append((first, min(last, low - 1)))
            first = max(first, high + 1)  # noqa: PLW2901 - what is left of the range
        if first <= last:
            left.append((first, last))
    return left


def _unusable(what: str) -> InvalidTask:
    return InvalidTask(f"is not a regular expression that can be used: it has {what}")
