"""Made-up customer support tickets: 1,500 labelled texts for the demo, the docs and the tests.

Every ticket holds a fictitious order number or e-mail address, which stands for what must stay secret:
`secrets` lists them, so a demo can search its demonstrations for them. As with real tickets, those of one
category start alike and differ in their details. Addresses use domains that RFC 2606 reserves.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from functools import cache
from typing import Final

from dpfewshot.tasks import Task
from dpfewshot.values import Record

TICKETS_PER_CATEGORY: Final = 300
_SEED: Final = 1

SUPPORT_TICKETS: Final = Task(
    name="support-tickets",
    instruction="Given a category of customer support ticket, write a short ticket of that category.",
    label_field="Category",
    text_field="Ticket",
    labels=("Refund", "Delivery", "Account", "Technical", "Billing"),
)
"""The task of `support_tickets()`."""

_SECRET: Final = re.compile(r"\bORD-\d{5}-[A-Z]\b|\b[\w.+-]+@example\.(?:com|org|net)\b")


def support_tickets() -> list[Record]:
    """Return the tickets, the same on every call, machine and Python version.

    There are 300 distinct ones per category, of 12 to 35 words each. No order number or e-mail address occurs
    in two of them. Categories alternate, so every prefix is balanced.

    Example:
        >>> support_tickets()[0].label
        'Refund'
    """
    return list(_tickets())


@cache
def _tickets() -> tuple[Record, ...]:
    draw = _Draw(_SEED)
    tickets: list[Record] = []
    taken: set[str] = set()
    labels = SUPPORT_TICKETS.labels or ()
    while len(tickets) < TICKETS_PER_CATEGORY * len(labels):
        label = labels[len(tickets) % len(labels)]
        ticket = Record(draw.ticket(label), label)
        found = secrets([ticket])
        if found.isdisjoint(taken):
            taken |= found
            tickets.append(ticket)
    return tuple(tickets)


def secrets(records: Iterable[Record]) -> frozenset[str]:
    """Return every order number and e-mail address in the records, which no demonstration may repeat."""
    return frozenset(found for record in records for found in _SECRET.findall(record.text))


class _Draw:
    """A stream of choices for sample data; the private path draws from the system's CSPRNG."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - no privacy rests on it, and it must repeat

    def below(self, bound: int) -> int:
        # Only `random()` gives the same numbers in every Python version.
        return int(self._random.random() * bound)

    def one_of(self, choices: tuple[str, ...]) -> str:
        return choices[self.below(len(choices))]

    def ticket(self, label: str) -> str:
        """A problem and how to reach the customer, with every {slot} filled in."""
        text = f"{self.one_of(_PROBLEMS[label])} {self.one_of(_DETAILS[label])}"
        first, last = self.one_of(_FIRST_NAMES), self.one_of(_LAST_NAMES)
        number, domain = 10 + self.below(90), self.one_of(("com", "org", "net"))
        email = f"{first}.{last}{number}@example.{domain}".lower()
        text = text.replace("{name}", f"{first} {last}").replace("{email}", email)
        return re.sub(r"\{(\w+)\}", self._filled, text)

    def _filled(self, slot: re.Match[str]) -> str:
        if slot[1] == "order":
            return f"ORD-{10_000 + self.below(90_000)}-{chr(ord('A') + self.below(26))}"
        if slot[1] == "amount":
            return f"{5 + self.below(195)}.{self.below(100):02d} euros"
        return self.one_of(_SLOTS[slot[1]])


_FIRST_NAMES: Final = (
    "Anna", "Ben", "Carla", "David", "Elena", "Felix", "Greta", "Hugo", "Ines", "Jonas", "Karin", "Liam",
    "Marta", "Nils", "Olga", "Paul", "Rosa", "Samir", "Tessa", "Umar", "Vera", "Wanda", "Yusuf", "Zoe",
    "Amina", "Bruno", "Chloe", "Dario", "Emma", "Farid", "Hanna", "Igor", "Julia", "Kofi", "Lena",
    "Mateo", "Nora", "Oscar", "Petra", "Rafael",
)  # fmt: skip
_LAST_NAMES: Final = (
    "Adler", "Baker", "Costa", "Dahl", "Evans", "Fischer", "Grant", "Hansen", "Ivanov", "Jensen",
    "Keller", "Lopez", "Moreau", "Novak", "Olsen", "Petrov", "Quinn", "Rossi", "Schmidt", "Turner",
    "Ueda", "Vargas", "Weber", "Young", "Zeller", "Abbott", "Berger", "Castro", "Duarte", "Engel",
    "Ferrari", "Goldberg", "Horvat", "Iqbal", "Jansen", "Kowalski", "Lindgren", "Mendes", "Nakamura",
    "Okafor",
)  # fmt: skip

_SLOTS: Final[dict[str, tuple[str, ...]]] = {
    "item": (
        "kettle", "backpack", "desk lamp", "coffee grinder", "rain jacket", "keyboard", "office chair",
        "headset", "blender", "suitcase", "yoga mat", "phone case", "toaster", "soccer ball", "wall clock",
        "winter coat", "camera bag", "water bottle", "bookshelf", "electric razor",
    ),
    "fault": (
        "it arrived broken", "it does not work", "it is the wrong size", "it is the wrong color",
        "it stopped working after a week", "a part is missing", "it was damaged in the box",
        "it does not match the picture", "I ordered it by mistake", "it came much too late",
    ),
    "day": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"),
    "days": ("two", "three", "four", "five", "six", "ten"),
    "device": ("my phone", "my tablet", "my laptop", "my work computer", "my new phone"),
    "action": (
        "open the settings", "upload a photo", "open the search page", "pay for my order", "look at my order",
        "save my changes", "add an item to the cart", "change the language",
    ),
    "message": ("an error message", "a blank page", "a white screen", "a loading screen", "error code 502"),
    "plan": ("the basic plan", "the family plan", "the premium plan", "the yearly plan", "the monthly plan"),
    "month": (
        "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
        "November", "December",
    ),
}  # fmt: skip

# Most tickets of a category start alike, as real ones do: noise preserves only what many records share.
_PROBLEMS: Final[dict[str, tuple[str, ...]]] = {
    "Refund": (
        "I would like a refund for the {item} that I bought last {day}, because {fault}.",
        "I would like a refund for the {item} because {fault}.",
        "I would like a refund for my last order because {fault}.",
        "I would like to return the {item} and get my money back, because {fault}.",
        "I would like a refund for the {item} that I returned last {day}.",
        "I sent the {item} back {days} weeks ago and I have not received my refund.",
        "I would like you to refund the {item} because {fault}.",
    ),
    "Delivery": (
        "My parcel with the {item} has not arrived, and it was due on {day}.",
        "My parcel has not arrived yet and the tracking page has not changed since {day}.",
        "My parcel was marked as delivered on {day}, but I have not received it.",
        "My parcel with the {item} is {days} days late.",
        "My parcel was left with a neighbor I do not know.",
        "My order has not arrived, although the {item} was sent {days} days ago.",
        "My parcel was left at the wrong address on {day}.",
    ),
    "Account": (
        "I cannot log in to my account, and the reset link has not arrived since {day}.",
        "I cannot log in to my account on {device}, although my password is right.",
        "I cannot log in to my account because it was locked on {day}.",
        "I cannot change the password of my account on {device}.",
        "I forgot the password of my account and the reset link has expired.",
        "I would like to close my account and have my data deleted.",
        "I cannot change the e-mail address of my account on {device}.",
    ),
    "Technical": (
        "The app crashes every time I try to {action} on {device}.",
        "The app crashes when I {action}, and it started after the last update.",
        "The app shows {message} when I try to {action} on {device}.",
        "The app has not started on {device} since the update last {day}.",
        "The app is very slow on {device} when I {action}.",
        "The app shows {message} when I try to {action}, also on {device}.",
        "When I try to {action}, I only see {message}.",
    ),
    "Billing": (
        "I was charged twice for {plan} in {month}.",
        "I was charged {amount} for {plan}, although I canceled it in {month}.",
        "I was charged {amount} on {day} and I do not know what it is for.",
        "I was charged the full price for the {item}, although I used a discount code.",
        "I have not received the invoice for {month}.",
        "My invoice for {month} shows {amount}, but I chose {plan}.",
        "I was charged {amount} for an order that I canceled in {month}.",
    ),
}

_REACH: Final = (
    "You can reach me at {email}.",
    "Please write to me at {email}.",
    "My name is {name} and my e-mail address is {email}.",
    "Please send your answer to {name} at {email}.",
)
_ORDER: Final = (
    "The order number is {order}.",
    "My order number is {order} and my name is {name}.",
    "It is order {order}, under the name {name}.",
    "Please check order {order} and write to {email}.",
)
_DETAILS: Final[dict[str, tuple[str, ...]]] = {
    "Refund": (*_ORDER, "I paid {amount} for order {order} and still have the receipt."),
    "Delivery": (*_ORDER, "Please tell me where order {order} for {name} is."),
    "Account": (*_REACH, "The account of {name} is registered under {email}."),
    "Technical": (*_REACH, "I have already installed it again, so please help me at {email}."),
    "Billing": (*_ORDER, "Please correct the bill and send a new one to {email}."),
}
