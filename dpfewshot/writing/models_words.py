"""What only a model writes, and hardly any record: a text that has it stands behind others.

A text has no `FORMALITIES`, and a long one no `COURTESIES`, unless the records have their words.

English phrases, found among candidates of public and made-up tasks. How many records of public data sets
have one is counted in docs/decisions/histogram.md.
"""

from __future__ import annotations

import re
from typing import Final

_PLACE: Final = re.compile(
    r"\[|\((?i:(?:(?:your|full|[\w ]+'s) )?(?:address|age|date|gender|location|name|time)(?: of \w+)?)\)"
    r"|<(?i:[a-z ]*name[a-z ]*)>|1234|\b[Ss]ubject:|\bAnytown\b|\bTicket (?:ID|Number)"
    r"|[Xx]{3}|X(?:YZ|yz)|\b(?:[Yy]our|[Ee]xample|[Ss]ample)[-_]\w|\b(?:lib)?foo(?:bar)?\b|\blib-?example"
    r"|\bQwen\b|\bDr\.? ?X\b|\b[A-Z][a-z]+ Name\b|\bABC C|\bJ(?:ohn|ane) Doe|example\.com"
    r"|\bM(?:r|rs|s)\.?(?:/|,)|\b(?:Player|Person|Company|(?i:team|account|city|currency)) [A-EX-Z]\b"
)
"""Places for a name or a number, and parts of a form: "Dear [name]", "Mr./Mrs.", "card 12345678"."""

_STUCK: Final = re.compile(r"\b(\w{3,})(?:\W+\1\b){2,}|\w@\w", re.IGNORECASE)
"""A word that is said three times on end, such as "urgent, urgent urgent"; or an e-mail address."""

_RECIPIENT: Final = re.compile(
    r"\b(?:(?:can|could|may) (?:I|we) (?:assist|help) you|would you like|contact (?:your|our|support)"
    r"|here to (?:help|assist)|to assist you|serv(?:e|ing) you|welcome to our"
    r"|sorry for the|inconvenience|please (?:contact|check your|let us know)|(?:please|and) try again"
    r"|thank you for (?:(?:choos|consider|contact|purchas|shopp|stay)ing"
    r"|your (?:business|loyalty|order|patience|purchase|support|understanding))"
    r"|our (?:[\w-]+ ){0,3}services?|have any (?:other )?questions"
    r"|if you (?:need|require) (?:any|some|help|assistance|more|further)\w*"
    r"|your (?:account|child|daughter|son)|(?:Hi|Hello|Hey|Dear),? (?:mum|mom|dad)(?:my|dy)?)\b",
    re.IGNORECASE,
)
"""What a model says for whom it writes to: "please contact your bank", "try our card service"."""

_OF_ITS_WRITER: Final = re.compile(
    r"\b(?:an?|our|the|this) (?:client|customer|user)s? (?:are|has|have|is|needs?|reports?|reported"
    r"|requests?|requested|seeks?|wants?|was|were|wishes|would)\b",
    re.IGNORECASE,
)
"""What a model says of whoever shall write the text: "The client has requested a refund"."""

_NOT_SHOWN: Final = re.compile(
    r"\b(?:in|from|of|by) (?:the|this) (?:given )?(?:passage|image|picture|paragraph|sentence|text|excerpt)\b"
    r"|\bthe sentence\b",
    re.IGNORECASE,
)
"""What a model asks about and does not show: "Who is the person mentioned in the passage?"."""

_OF_A_LABEL: Final = re.compile(
    r"\bthis (?:\w+ )?(?:article|category|document|entry)\b|\bthis text (?:contains|describes|is)\b"
    r"|\bthis is an? (?:[\w']+ ){0,2}"
    r"(?:article|biography|description|document|example|report|sample|story|summary|text)\b"
    r"|\b(?:a|this) (?:\w+ )?(?:type|category) (?:of|that)\b"
    r"|\bnews (?:about|is|item|article|reporting|update)\b"
    r"|\blatest (?:\w+ ){0,2}(?:news|updates?|developments|trends|advancements)\b",
    re.IGNORECASE,
)
"""What a model says of a label in place of one of its texts: "World news is a category of articles that"."""

_REFUSAL: Final = re.compile(
    r"\b(?:AI|language) (?:AI|language|model|assistant)\b|\bas an AI\b|\bhaven't provided\b"
    r"|\b(?:with|to) (?:this|that|your) request\b"
    r"|\bdo(?:n't| not) have (?:personal|the (?:ability|capability))\b"
    r"|\b(?:unable|not able|cannot|can't) (?:to )?"
    r"(?:directly|assist|engage|generate|interact"
    r"|(?:create|provide|write)(?! (?:my|our|an? (?:new )?account)\b))\b"
    r"|\b(?:provide|give) (?:you (?:with )?)?an? (?:general|generic|hypothetical|sample)\b",
    re.IGNORECASE,
)
"""What a model says in place of a text, beside `draft.REFUSALS`: "I'm unable to write a note"."""

FORMALITIES: Final = (
    *("Dear", "To Whom", "To:", "Subject", "[", "I am writing", "I'm writing"),
    *("inform you", "let you know"),
    *("anything I can", "anything else I can", "I hope", "hope you", "hope all", "hope everything"),
    *(f"{it} {finds}" for it in ("email", "letter", "message") for finds in ("finds", "gets", "reaches")),
)
"""What a small model begins and ends a message with: "I hope this message finds you well"."""

COURTESIES: Final = (
    *("Thank", "Thanks", "thank", "thanks", "thankful", "appreciate", "appreciated", "grateful"),
    *("I look", "Looking forward", "looking forward", "Please let", "please let", "and let"),
    *("Please feel", "please feel", "assistance", "prompt", "Goodbye"),
)
"""What a small model fills a long text up with: "Thank you for your assistance. I look forward to ..."."""


_FLAWS: Final = _PLACE, _STUCK, _RECIPIENT, _OF_ITS_WRITER, _NOT_SHOWN, _OF_A_LABEL, _REFUSAL


def has_a_models_words(text: str) -> bool:
    """Whether a text has what only a model writes."""
    return any(each.search(text) for each in _FLAWS)


def is_a_refusal(text: str) -> bool:
    """Whether a text says that there is none."""
    return _REFUSAL.search(text) is not None
