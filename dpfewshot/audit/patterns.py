"""Personal data by pattern: addresses, accounts and numbers, with their checksums where they have one.

Patterns find neither names nor facts.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping

_IBAN_LENGTHS = range(15, 35)
_CARD_LENGTHS = range(13, 20)
_MARKED_DIGITS = range(8, 16)  # ITU-T E.164: fifteen at most
_BARE_DIGITS = range(10, 16)
_IBAN_MODULUS = 97


def found_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield the kind of each match and its text, normalised so that spacing does not matter.

    A match counts once, as the first that fits of "e-mail", "IBAN", "card", "IP address", "phone" and
    "long number" (at least seven digits).
    """
    for kind, (pattern, normal) in _KINDS.items():
        kept: list[str] = []
        position = 0
        for match in pattern.finditer(text):
            found = normal(match.group())
            if found is not None:
                yield kind, found
                kept += [text[position : match.start()], " "]  # later kinds must not match it again
                position = match.end()
        text = "".join([*kept, text[position:]])


def _email(text: str) -> str | None:
    return text.casefold()


def _iban(text: str) -> str | None:
    """ISO 13616: with its check digits, the number is 1 modulo 97."""
    compact = re.sub(r"[\s-]", "", text).upper()
    if len(compact) not in _IBAN_LENGTHS:
        return None
    digits = "".join(str(int(letter, 36)) for letter in compact[4:] + compact[:4])
    return compact if int(digits) % _IBAN_MODULUS == 1 else None


def _card(text: str) -> str | None:
    """ISO/IEC 7812: Luhn's checksum."""
    digits = _digits(text)
    if len(digits) not in _CARD_LENGTHS or len(set(digits)) == 1:
        return None
    doubled = [
        sum(divmod(int(digit) * (2 if place % 2 else 1), 10)) for place, digit in enumerate(reversed(digits))
    ]
    return digits if sum(doubled) % 10 == 0 else None


def _address(text: str) -> str | None:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None


def _phone(text: str) -> str | None:
    """E.164 with a plus, national with a zero, or long enough to include an area code."""
    digits = _digits(text)
    marked = text.lstrip("(").startswith(("+", "0"))
    return digits if len(digits) in (_MARKED_DIGITS if marked else _BARE_DIGITS) else None


def _long_number(text: str) -> str | None:
    """Ranges of years do not count."""
    digits = _digits(text)
    return None if re.fullmatch(r"(?:19|20)\d\d[ -](?:19|20)\d\d", text) else digits


def _digits(text: str) -> str:
    return re.sub(r"\D", "", text)


_KINDS: Mapping[str, tuple[re.Pattern[str], Callable[[str], str | None]]] = {
    "e-mail": (re.compile(r"[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+"), _email),
    "IBAN": (re.compile(r"\b[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]{4}){2,7}(?:[ -]?[A-Z0-9]{1,3})?\b"), _iban),
    "card": (re.compile(r"(?<![\d.])\d(?:[ -]?\d){12,18}(?![\d.]\d|\d)"), _card),
    "IP address": (re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.]\d|\d)"), _address),
    "phone": (re.compile(r"(?<!\w)\+?\(?\d(?:[ ()./-]{0,2}\d){7,14}(?![ -]?\d)"), _phone),
    "long number": (re.compile(r"\d(?:[ -]?\d){6,}"), _long_number),
}
"""In search order: kinds with a checksum come first."""
