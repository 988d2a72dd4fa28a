"""The five built-in tasks, with the wording of Tang et al. (ICLR 2024), and tasks by name."""

from __future__ import annotations

from typing import Final

from dpfewshot.errors import InvalidTask
from dpfewshot.tasks.task import Task


def by_name(name: str) -> Task:
    """A built-in task, or the one in a `.toml` file.

    Args:
        name: one of "agnews", "dbpedia", "trec", "mit-g", "mit-d", in any case and with `_` for `-`;
            or a path that ends in ".toml".

    Raises:
        InvalidTask: there is no such task, or its file cannot be used.

    Example:
        >>> by_name("MIT_G").label_field
        'Genre'
    """
    if name.lower().endswith(".toml"):
        return Task.from_file(name)
    task = _BUILT_IN.get(name.lower().replace("_", "-"))
    if task is None:
        raise InvalidTask(
            f"unknown task {name!r}: choose {', '.join(_BUILT_IN)}, or the path of a .toml file"
        )
    return task


AGNEWS: Final = Task(
    name="agnews",
    instruction="Given a label of news type, generate the chosen type of news accordingly.",
    label_field="News Type",
    text_field="Text",
    labels=("World", "Sports", "Business", "Technology"),
)
"""AG News: four kinds of news."""

DBPEDIA: Final = Task(
    name="dbpedia",
    instruction="Given a label of document type, generate the chosen type of document accordingly.",
    label_field="Document Type",
    text_field="Text",
    labels=(
        "Company",
        "School",
        "Artist",
        "Athlete",
        "Politician",
        "Transportation",
        "Building",
        "Nature",
        "Village",
        "Animal",
        "Plant",
        "Album",
        "Film",
        "Book",
    ),
)
"""DBPedia: fourteen kinds of encyclopedia entries."""

TREC: Final = Task(
    name="trec",
    instruction=(
        "Given a label of answer type, generate a question based on the given answer type accordingly."
    ),
    label_field="Answer Type",
    text_field="Text",
    labels=("Number", "Location", "Person", "Description", "Entity", "Abbreviation"),
)
"""TREC: questions by the type of their answer."""

MIT_G: Final = Task(
    name="mit-g",
    instruction=(
        "Given a genre for the film, generate a description accordingly "
        "and make sure to include the given genre in the description."
    ),
    label_field="Genre",
    text_field="Sentence",
)
"""MIT Movies, genre extraction. Labels are free."""

MIT_D: Final = Task(
    name="mit-d",
    instruction=(
        "Given a director for the film, generate a description accordingly "
        "and make sure to include the given director in the description."
    ),
    label_field="Director",
    text_field="Sentence",
)
"""MIT Movies, director extraction. Labels are free."""

_BUILT_IN: Final = {task.name: task for task in (AGNEWS, DBPEDIA, TREC, MIT_G, MIT_D)}
