"""Personal data by its shape: what looks like an address, an account, a number: by checksum where it has one.

Shapes find what is written as such, no names and no facts.
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
    """Every kind that is found, with the stretch in a form that is the same however it is spaced.

    A stretch counts once, for the first kind that it is of: "e-mail", "IBAN", "card", "IP address", "phone",
    "long number" (seven digits and more).
    """
    for kind, (pattern, normal) in _KINDS.items():
        kept: list[str] = []
        position = 0
        for match in pattern.finditer(text):
            stretch = normal(match.group())
            if stretch is not None:
                yield kind, stretch
                kept += [text[position : match.start()], " "]  # a further kind must not see it again
                position = match.end()
        text = "".join([*kept, text[position:]])


def _email(stretch: str) -> str | None:
    return stretch.casefold()


def _iban(stretch: str) -> str | None:
    """ISO 13616: the check digits make the number 1 modulo 97."""
    compact = re.sub(r"[\s-]", "", stretch).upper()
    if len(compact) not in _IBAN_LENGTHS:
        return None
    digits = "".join(str(int(letter, 36)) for letter in compact[4:] + compact[:4])
    return compact if int(digits) % _IBAN_MODULUS == 1 else None


def _card(stretch: str) -> str | None:
    """ISO/IEC 7812: Luhn's checksum."""
    digits = _digits(stretch)
    if len(digits) not in _CARD_LENGTHS or len(set(digits)) == 1:
        return None
    doubled = [
        sum(divmod(int(digit) * (2 if place % 2 else 1), 10)) for place, digit in enumerate(reversed(digits))
    ]
    return digits if sum(doubled) % 10 == 0 else None


def _address(stretch: str) -> str | None:
    try:
        return str(ipaddress.ip_address(stretch))
    except ValueError:
        return None


def _phone(stretch: str) -> str | None:
    """E.164 with its plus, or national with its zero, or long enough for an area code."""
    digits = _digits(stretch)
    marked = stretch.lstrip("(").startswith(("+", "0"))
    return digits if len(digits) in (_MARKED_DIGITS if marked else _BARE_DIGITS) else None


def _long_number(stretch: str) -> str | None:
    """Years and their ranges are none."""
    digits = _digits(stretch)
    return None if re.fullmatch(r"(?:19|20)\d\d[ -](?:19|20)\d\d", stretch) else digits


def _digits(stretch: str) -> str:
    return re.sub(r"\D", "", stretch)


_KINDS: Mapping[str, tuple[re.Pattern[str], Callable[[str], str | None]]] = {
    "e-mail": (re.compile(r"[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+"), _email),
    "IBAN": (re.compile(r"\b[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]{4}){2,7}(?:[ -]?[A-Z0-9]{1,3})?\b"), _iban),
    "card": (re.compile(r"(?<![\d.])\d(?:[ -]?\d){12,18}(?![\d.]\d|\d)"), _card),
    "IP address": (re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.]\d|\d)"), _address),
    "phone": (re.compile(r"(?<!\w)\+?\(?\d(?:[ ()./-]{0,2}\d){7,14}(?![ -]?\d)"), _phone),
    "long number": (re.compile(r"\d(?:[ -]?\d){6,}"), _long_number),
}
"""In the order in which they are looked for: what has a checksum comes before what is only long."""
