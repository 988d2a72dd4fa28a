"""The names of data sets: one spelling each, so that a typo or a look-alike letter opens no second budget.

A name is normalised: Unicode NFKC, white space stripped and collapsed. It consists of letters of one script
with their marks, ASCII digits, spaces and ASCII punctuation. So every character is visible, and no letter
passes for one of another script. Japanese, Korean and Chinese mix scripts, in which some letters do.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable
from typing import Final

from dpfewshot.errors import LedgerError

_SCRIPTS: Final = frozenset(
    [
        *("LATIN", "GREEK", "CYRILLIC", "ARMENIAN", "GEORGIAN", "HEBREW", "ARABIC", "ETHIOPIC"),
        *("DEVANAGARI", "BENGALI", "GURMUKHI", "GUJARATI", "ORIYA", "TAMIL", "TELUGU", "KANNADA"),
        *("MALAYALAM", "SINHALA", "THAI", "LAO", "MYANMAR"),
        *("HANGUL", "CJK", "HIRAGANA", "KATAKANA", "BOPOMOFO"),
    ]
)
"""Scripts in daily use, by the first word of their letters' names in Unicode."""

_TOGETHER: Final = (
    frozenset({"CJK", "HIRAGANA", "KATAKANA"}),
    frozenset({"CJK", "HANGUL"}),
    frozenset({"CJK", "BOPOMOFO"}),
)
"""Scripts that are written together: Japanese, Korean, Chinese."""

_LATIN: Final = frozenset("ßæœøđłþðŋÆŒØĐŁÞÐŊ")
"""Latin letters that are not an accented a to z, and do not look like one."""

_LOOK_ALIKES: Final = str.maketrans(
    "аеіјорсухѕһԁԛԝӏАВЕЅІЈКМНОРСТУХԚԜονικρυαγΑΒΕΖΗΙΚΜΝΟΡΤΥΧօսհոցզıɑɡɩ",
    "aeijopcyxshdqwlABESIJKMHOPCTYXQWovikpuayABEZHIKMNOPTYXouhngqiagi",
)
"""The Latin letter that a Cyrillic, Greek, Armenian or further Latin letter resembles."""

_KANA: Final = str.maketrans("ロニハカエタトヘーミ", "口二八力工夕卜へ一三")
"""Japanese syllables, and the Chinese characters that they resemble."""

_UNSEEN: Final = ("FILLER", "INHERENT")
"""Words in the Unicode names of invisible letters."""

_CLOSE: Final = 0.75
_LONGEST: Final = 200


def dataset_name(text: str) -> str:
    """The one spelling of a data set's name; the refusal of another says how to write it."""
    name = _normalised(text)
    trouble = _trouble(name)
    if trouble:
        spelled = _normalised("".join(filter(_is_allowed, name.translate(_LOOK_ALIKES))))
        advice = f"write {spelled!r}" if spelled and not _trouble(spelled) else _RULE
        raise LedgerError(f"the data set's name {text[:_LONGEST]!a} {trouble}: {advice}")
    return name


def similar(text: str, names: Iterable[str]) -> list[str]:
    """Names similar to `text`, the most similar first."""
    loose = {name: _loose(name) for name in names}
    close = difflib.get_close_matches(_loose(text), [*dict.fromkeys(loose.values())], cutoff=_CLOSE)
    return [name for one in close for name in loose if loose[name] == one]


_RULE: Final = "write it with letters of one script, ASCII digits, spaces and ASCII punctuation"


def _normalised(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).split())


def _trouble(name: str) -> str:
    """What is wrong with a normalised name; "" if nothing is."""
    if not name:
        return "is empty"
    if len(name) > _LONGEST:
        return f"has more than {_LONGEST} characters"
    for character in name:
        if not _is_allowed(character):
            described = unicodedata.name(character, "a character without a name")
            return f"has a character that names cannot have, U+{ord(character):04X} {described}"
    letters = [character for character in name if unicodedata.category(character)[0] in "LM"]
    scripts = {_script(letter) for letter in letters}
    if len(scripts) > 1 and not any(scripts <= together for together in _TOGETHER):
        return f"mixes letters or marks of {' and '.join(sorted(script.title() for script in scripts))}"
    if scripts - {"LATIN"} and all(ord(letter) in _LOOK_ALIKES for letter in letters):
        return f"looks like Latin letters but is {scripts.pop().title()}"
    return ""


def _is_allowed(character: str) -> bool:
    if character.isascii():
        return character.isprintable()
    named = unicodedata.name(character, "")
    if unicodedata.category(character)[0] not in "LM" or any(word in named for word in _UNSEEN):
        return False
    if _script(character) == "LATIN":
        return character in _LATIN or unicodedata.normalize("NFD", character)[0].isascii()
    return _script(character) in _SCRIPTS


def _script(character: str) -> str:
    return unicodedata.name(character, "").replace("-", " ").partition(" ")[0]


def _loose(text: str) -> str:
    """The text without case, accents, look-alikes, and characters other than letters and digits."""
    name = _normalised(text.translate(_KANA)).translate(_LOOK_ALIKES)
    bare = unicodedata.normalize("NFKD", name).casefold().translate(_LOOK_ALIKES)
    return "".join(character for character in bare if character.isalnum())
