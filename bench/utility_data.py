"""The papers' five tasks as bench/utility.py measures them: files, sizes, and public text about them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import dpfewshot as dpf
from bench import jargon

DIRECTORS = (
    "steven spielberg", "alfred hitchcock", "quentin tarantino", "martin scorsese", "stanley kubrick", "james cameron",
    "ridley scott", "tim burton", "woody allen", "clint eastwood", "francis ford coppola", "peter jackson",
)  # fmt: skip
GENRES = (
    "comedy", "horror", "drama", "science fiction", "western", "thriller",
    "romance", "animated", "action", "documentary", "musical", "fantasy",
)  # fmt: skip

# Labels outside of the tasks: these show the form of a record and cannot serve as demonstrations.
QUESTIONS = (
    ("Color", "What color are the taxis of Lisbon ?"),
    ("Date", "When did the first train run between Liverpool and Manchester ?"),
)
NEWS = (
    (
        "Health",
        "Doctors Test New Flu Vaccine. A hospital in Oslo said on Monday that a new vaccine protected nine of ten patients.",
    ),
    (
        "Weather",
        "Storm Closes Mountain Roads. Heavy snow blocked three passes on Friday and left hundreds of drivers waiting.",
    ),
)
DOCUMENTS = (
    (
        "Ship",
        "The Northern Star is a cargo ship that was built in 1962 in Gdansk and sails between Norway and Iceland.",
    ),
    ("Language", "Arvani is a language spoken by about two thousand people in the hills of northern Laos."),
)
DIRECTED = (
    ("george lucas", "what is the 1977 george lucas movie about a farm boy who joins a rebellion in space"),
    (
        "sofia coppola",
        "which film directed by sofia coppola follows an aging actor and a young woman in tokyo",
    ),
)
OF_A_GENRE = (
    ("mystery", "what mystery film follows a detective who hunts a killer through a snowed in village"),
    ("war", "which war movie is about a group of soldiers sent behind enemy lines to save one man"),
)


MADE_HERE = "bench/jargon.py"
"""Stands for the file of a data set that the project makes itself."""


@dataclass(frozen=True)
class DataSet:
    """One of the papers' tasks, with M, N and T of Tang et al. where two cores allow it.

    Their T is 100 for AG News and DBPedia, and M 40 for DBPedia. Ours has its own M, N = 1, and its own T for
    DBPedia's small labels: with one draw a demonstration many prompts cost little, and few tokens take little noise.
    """

    task: dpf.Task
    train: str
    test: str
    prompts: int
    records_per_prompt: int
    max_tokens: int
    our_prompts: int
    labels: tuple[str, ...] | None = None
    examples: tuple[tuple[str, str], ...] = ()
    our_tokens: int | None = None
    told: bool = False
    """Whether ours shows the examples although labels are classes."""

    @property
    def shows_examples(self) -> bool:
        """Whether the instruction of ours ends with the public examples."""
        return self.told or self.task.labels is None

    def records(self, folder: Path) -> tuple[list[dpf.Record], list[dpf.Record]]:
        """The training records and the test items."""
        if self.train == MADE_HERE:
            return jargon.tickets("train"), jargon.tickets("test")
        train, test = (dpf.read_records(folder / f"{name}.jsonl.gz") for name in (self.train, self.test))
        return train, test


DATA_SETS = {
    "trec": DataSet(dpf.tasks.TREC, "trec.train", "trec.test", 80, 1, 15, 80, None, QUESTIONS),
    "agnews": DataSet(dpf.tasks.AGNEWS, "agnews.train_subset", "agnews.test", 10, 2, 30, 40, None, NEWS),
    "mit-d": DataSet(dpf.tasks.MIT_D, "mit_d.train", "mit_d.test", 20, 4, 20, 60, DIRECTORS, DIRECTED),
    "mit-g": DataSet(dpf.tasks.MIT_G, "mit_g.train", "mit_g.test", 20, 4, 20, 60, GENRES, OF_A_GENRE),
    "dbpedia": DataSet(
        dpf.tasks.DBPEDIA, "dbpedia.train_subset", "dbpedia.test_subset", 20, 2, 30, 160, None, DOCUMENTS, 20
    ),
}

UNSEEN = {
    "jargon": DataSet(jargon.TASK, MADE_HERE, MADE_HERE, 60, 1, 20, 60),
    "jargon-told": DataSet(
        replace(jargon.TASK, name="jargon-told"),
        MADE_HERE,
        MADE_HERE,
        60,
        1,
        20,
        60,
        None,
        jargon.EXAMPLES,
        told=True,
    ),
}
"""A task that no model can know, without public examples and with them; only the tables of choices have it."""

ALL_SETS = DATA_SETS | UNSEEN
