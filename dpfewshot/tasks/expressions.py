"""The regular expressions of users, as letters, classes, groups, `|` and repetitions alone.

What Python, ECMA-262 and Rust do not read alike is refused by name, so an expression means the same to every
reader of the schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from dpfewshot.errors import InvalidTask
from dpfewshot.tasks.automaton import LONGEST, TOO_LARGE

Ranges = list[tuple[int, int]]
"""Characters: the first and the last code point of each range."""

_NOT_IN_A_TEXT: Final = [(0x00, 0x1F), (0x7F, 0x9F), (0x2028, 0x2029), (0xD800, 0xDFFF)]
"""Control characters, line breaks and surrogates."""

_NOT_IN_A_STRING: Final = sorted([*_NOT_IN_A_TEXT, (ord('"'),) * 2, (ord("\\"),) * 2])
"""What a JSON string holds only behind a backslash, besides."""

_LAST: Final = 0x10FFFF

_SETS: Final[Mapping[str, Ranges]] = {
    r"\d": [(ord("0"), ord("9"))],
    r"\s": [(ord(" "), ord(" "))],
    r"\w": [(ord(first), ord(last)) for first, last in (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z"))],
}
"""What all three read as digits, spaces and letters of words, among the characters of a text."""

_ESCAPED: Final = r"\\[ -/:;=?@\[-`{-~]"  # \< and \> begin and end a word for some
_MEMBER: Final = rf"(?:{_ESCAPED}|[^\\\[\]-])"
_MEMBERS: Final = re.compile(rf"(\\[dsw])|({_MEMBER})-({_MEMBER})|({_MEMBER}|-)", re.DOTALL)

_PIECE: Final = re.compile(
    rf"(?P<letter>{_ESCAPED}|[^\\.|?*+()\[\]{{}}^$])|(?P<any>\.)|(?P<set>\\[dsw])"
    rf"|(?P<class>\[(?:(?P<other>\^)(?!\])|(?![\]^]))(?P<members>-?(?:\\[dsw]|{_MEMBER}(?:-{_MEMBER})?)*-?)\])"
    r"|(?P<repetition>(?P<times>[*+?]|\{(?P<least>[0-9]{1,4})(?:,(?P<most>[0-9]{0,4}))?\})\??)"
    r"|(?P<open>\(\?:|\((?!\?))|(?P<close>\))|(?P<either>\|)|(?P<start>\^)|(?P<end>\$)",
    re.DOTALL,
)

_REPEATABLE: Final = frozenset({"letter", "any", "set", "class", "close"})

_HINTS: Final = {
    "\\": r"an escape is \d, \w, \s, or punctuation behind a backslash",
    "[": r"a class has letters, ranges, \d, \w and \s, and behind a backslash '[', ']' and '-'",
    "(": "a group begins with '(' or '(?:', without flags, names and look-around",
    "{": "a repetition is {2}, {2,} or {2,5}, with four digits at most, and another brace is \\{",
}
"""What can be used in place of a piece that cannot be read, by its first character."""


def letters_of_strings() -> str:
    """The expression of one character that a JSON string holds without a backslash."""
    return _written(_without([(0, _LAST)], _NOT_IN_A_STRING))


def portable(expression: str, *, in_json: bool = False) -> str:
    r"""An expression of a user in the syntax that `automaton_of` reads. It holds for whole texts.

    No text has a control character or a line break, and the inside of a JSON string has no quotes and no
    backslashes. `\d` is [0-9], `\w` is [0-9A-Za-z_], and `\s` a space. An InvalidTask says what is refused.

    Example:
        >>> portable(r"^[A-Z]{2}-\d+$")
        '[A-Z]{2}\\-[0-9]+'
    """
    if len(expression) > LONGEST:
        raise InvalidTask(TOO_LARGE)
    if re.search("[\ud800-\udfff]", expression):
        raise _unusable("half a surrogate pair")
    forbidden = _NOT_IN_A_STRING if in_json else _NOT_IN_A_TEXT
    written, depth, before = "", 0, "either"
    for piece in _pieces(expression):
        kind = str(piece.lastgroup)
        depth += (kind == "open") - (kind == "close")
        if depth < 0:
            raise _unusable("a ')' without its '('")
        if _anchored_within(kind, before, depth):
            raise _unusable("an anchor within it: '^' and '$' may stand around an outermost alternative")
        if kind == "repetition" and before not in _REPEATABLE:
            raise _unusable(f"a repetition {piece[0]!r} of nothing, or of a repetition")
        written += _rewritten(piece, kind, forbidden)
        before = kind
    if depth:
        raise _unusable("a '(' without its ')'")
    return written


def _pieces(expression: str) -> Iterator[re.Match[str]]:
    at = 0
    while at < len(expression):
        piece = _PIECE.match(expression, at)
        if piece is None:
            hint = _HINTS.get(expression[at], "write it behind a backslash")
            raise _unusable(f"{expression[at : at + 9]!r} at character {at + 1}: {hint}")
        yield piece
        at = piece.end()


def _anchored_within(kind: str, before: str, depth: int) -> bool:
    """Whether an anchor stands anywhere but around one of the outermost alternatives."""
    if kind in {"start", "end"} and depth:
        return True
    return before != "either" if kind == "start" else before == "end" and kind != "either"


def _rewritten(piece: re.Match[str], kind: str, forbidden: Ranges) -> str:
    if kind == "repetition":
        if piece["most"] and int(piece["most"]) < int(piece["least"]):
            raise _unusable(f"the repetition {piece[0]!r}, whose numbers are in the wrong order")
        return piece["times"]  # lazy or not, whole texts match alike
    if kind in {"open", "close", "either", "start", "end"}:
        return {"open": "(?:", "close": ")", "either": "|"}.get(kind, "")
    if kind == "any":
        asked: Ranges = [(0, _LAST)]
    elif kind == "class":
        asked = _class(piece)
    else:
        asked = _SETS.get(piece[0]) or [(ord(piece[0][-1]),) * 2]
    allowed = _without(asked, forbidden)
    if not allowed:
        raise _unusable(
            f"{piece[0]!r}: a text has no control characters or line breaks, "
            "and here a JSON string has no quotes or backslashes"
        )
    return _written(allowed)


def _class(piece: re.Match[str]) -> Ranges:
    """The characters of a class."""
    if re.search(r"--|&&|~~|\|\|", piece["members"]):
        raise _unusable(f"the class {piece[0]!r}, in which some read the doubled sign as an operator")
    asked: Ranges = []
    for known, first, last, one in _MEMBERS.findall(piece["members"]):
        if known and piece["other"]:
            raise _unusable(f"the class {piece[0]!r}: write out what {known} stands for")
        asked += _SETS.get(known) or [(ord((first or one)[-1]), ord((last or one)[-1]))]
    if any(last < first for first, last in asked):
        raise _unusable(f"the class {piece[0]!r}, which has a range in the wrong order")
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


def _written(ranges: Ranges) -> str:
    """The expression of one character."""
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return escaped(chr(ranges[0][0]))
    ends = ([first] if first == last else [first, last] for first, last in ranges)
    return f"[{''.join('-'.join(escaped(chr(end)) for end in each) for each in ends)}]"


def escaped(text: str) -> str:
    """The expression that matches a text alone."""
    return re.sub(r"([\\.+*?()|\[\]{}^$#&~-])", r"\\\1", text)


def _unusable(what: str) -> InvalidTask:
    return InvalidTask(f"is not a regular expression that can be used: it has {what}")
