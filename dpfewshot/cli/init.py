"""`dpfewshot init`: writes the project file for a file of records.

What it writes is public where counts of units are: with --yes, two files of the same columns and with as many
units of each label give the same bytes. Its questions, refusals and exit status are for whoever runs it.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from dpfewshot.account.names import dataset_name
from dpfewshot.backends.downloads import DOWNLOADS, RECOMMENDED, advice, downloaded, fetch, recommended
from dpfewshot.cli.models import PACKAGED
from dpfewshot.cli.printing import json_option, say, warn, wrapped
from dpfewshot.cli.project import HOLDOUT, Data, Project
from dpfewshot.cli.project_file import FILE_NAME, parsed
from dpfewshot.errors import BackendError, DPFewShotError, InvalidRecords, LedgerError
from dpfewshot.runtime.files import write_errors, write_whole
from dpfewshot.values import Records, believed, counted, on_one_line, percent_text, plural, unit_noun

NONE: Final = "none"
"""The answer for no column of a unit."""

_WRITER_KEYS: Final = ("text_writer", "text_writer_url", "text_writer_key_env")

_MOST_WORDS: Final = 1000
"""The most words of a text: no model that runs here writes more of use."""

_TOKENS: Final = 20
"""The most tokens of a text where nobody says how long texts are."""

_NAMES: Final[Mapping[str, str]] = {
    "text": "text body message content comment review question sentence utterance query request post abstract"
    " description ticket mail notes?",
    "label_column": "label category topic class intent domain type kind queue tag sentiment reason"
    " department",
    "unit": "unit (customer|client|user|patient|person|author|member|account|policy|policy_?holder|claimant"
    "|tenant|guest|subscriber|speaker|student|employee)(_?(id|no|nr|number|ref|key|hash|account))? email",
}
"""What columns are called, the likeliest first: expressions."""

_WHOM: Final = (
    "Column that says whose record it is, such as a customer's number: all records of one are protected "
    f"together. Type {NONE} to protect each record alone"
)

_FROM_NO_RECORD: Final = (
    "Your next answers are public, too. Answer as if you had not seen the file: what you take from single "
    "records is not protected"
)

_SITUATIONS: Final = (
    "What do people write about? Name situations of each label by what the writer does, wants or asks, with "
    'semicolons between them: "losing a key; asking what a new key costs". Each gives one text: two or three '
    'will do. A thing alone ("our keys"), or two with "or" between them, give poor texts. These words matter '
    "most, and are in prompts. Enter skips a label, whose texts then say little"
)

_WRITER: Final = (
    "Optional: a larger model, yours or hosted, writes better texts. It is sent your answers above and "
    "noisy counts of words, but no record. Address of its server, such as https://api.openai.com/v1 "
    "(Enter: none)"
)

_NO_WRITER_NAMED: Final = (
    f"no larger model writes the texts; to have one that does, name it as text_writer in {FILE_NAME}"
)

_SHOTS: Final = 2
"""Texts of each label, unless more situations are described."""

ENOUGH: Final[Mapping[float, int]] = {1: 106, 2: 57, 4: 31}
"""By ε, the units of a label from which `plan` does not warn that its texts say little of them."""

_COMMON: Final = 5
"""The least number of units of a label that nobody confirms."""

_WORDS: Final = 4
"""The most words of a column's name that is shown: a CSV file may lack the line of names."""

_FEW_UNITS: Final = 10
"""Units for each label below which their column hardly says whose a record is."""

_FEW_LABELS: Final = 12
"""The most labels that are all asked about: texts of described ones read better."""

_NO_WRITER: Final = frozenset({"account", "policy", "record"})
"""Units that send no message."""

_NO_NOUN: Final = frozenset({"about", "concerning", "concerns", "for", "is", "queue", "re", "regarding"})
"""Names of label columns that a prompt cannot use: "of the given about"; or that texts take for a thing."""

_AFTER_A_NOUN: Final = re.compile(
    r"an?|the|that|which|whom?|whose|of|to|from|about|in|on|for|by|with|at|as|and|or|sent|written|.+(ing|ed)|,"
)
"""The words that a noun phrase goes on with behind its noun."""

_LETTER: Final = re.compile("e?-?mails?|letters?", re.IGNORECASE)
"""Names of a text behind which models write its head, such as an address."""

_FILE: Final = """\
# Written by `dpfewshot init`. Public: of the records it holds the columns' names, the labels, and whether one
# is small (holdout).
# One line of it for one call: --set max_tokens=30. Some keys are options, too: --max-tokens 30.
# Paths are relative to this file.

[task]  # public: all of it is in every prompt
name = {name}  # in messages and reports
instruction = {instruction}  # before the examples
{example}  # a made-up text in the style of the records, about nobody; docs/how-to/tasks.md says when
label_field = {label_field}  # before a label
text_field = {text_field}  # before a text
labels = {labels}  # all of them, written as in the records

{meanings}

[records]  # private
records = {file}  # .jsonl, .csv, .tsv (also .gz) or .parquet
text = {text}  # the column of the text
label_column = {label_column}  # the column of the label
{unit}  # the column of whom a record belongs to; without it, each record is a unit

[budget]  # of one plan
epsilon = {epsilon}  # how much it may reveal of a unit
# delta = 1e-6  # default: the smaller of 1e-5 and 1/(100 n), n all units

[account]  # what all plans together may spend
ledger = "sqlite:///budget.db"  # the database that counts it: keep it, and keep records out of repositories
account = {name}  # its name
create = true  # the first generate creates the account, with the budget above

[model]  # on this machine: reads the records, and writes the texts unless a text_writer does
{model}  # a GGUF file or a name of `dpfewshot model`; default: the packaged SmolLM2-135M
{text_writer}  # a larger model that writes them, from noisy counts alone: docs/how-to/text-writer.md
{text_writer_url}  # its server, yours or hosted
{text_writer_key_env}  # the environment variable that holds its key

[settings]  # of a plan
shots = {shots}  # demonstrations of each label; more take longer, and cost no more
max_tokens = {max_tokens}  # the most tokens of a demonstration; more take longer
{holdout}  # default: 0.2 of the units write nothing, and choose tests on them

[output]  # files that commands write and read
demonstrations = "demos.jsonl"  # generate appends; choose, audit leak, report and verify read
chosen = "chosen.jsonl"  # choose
report = "report.html"  # report
"""


@click.command()
@click.argument("file")
@click.option("--text", help="The column of the text.")
@click.option("--label-column", help="The column of the label.")
@click.option(
    "--unit", help=f"The column that names whom a record belongs to; {NONE}: each record is protected alone."
)
@click.option("--texts-are", help='What a text is: "a message that a customer sends to support". Public.')
@click.option("--example", help="A made-up text in the style of the records, about nobody. Public.")
@click.option(
    "--max-tokens",
    type=click.IntRange(1, _MOST_WORDS * 4 // 3),
    help=f"The most tokens of a text, about 4 for 3 words. [{_TOKENS}]",
)
@click.option("--epsilon", type=float, help="How much all texts together may tell of one record or customer.")
@click.option("--model", help=f"A GGUF file or a name of `dpfewshot model`; {PACKAGED}: SmolLM2-135M.")
@click.option("--yes", is_flag=True, help="Ask nothing: find columns by their names, and take the labels.")
@click.option("--force", is_flag=True, help=f"Replace {FILE_NAME}.")
@json_option
def init(*, file: str, yes: bool, force: bool, as_json: bool, **given: Any) -> None:
    """Write dpfewshot.toml for a file of records, so that other commands need no options.

    Asks for what no option gives. What it writes is public: the columns' names and the labels, which must be
    public, and nothing else of the records.

    \b
    Example:
      dpfewshot init tickets.csv
      dpfewshot init tickets.csv --texts-are "a message that a customer sends to support" \\
        --example "Hi, my parcel came with a broken lamp. Can you send another one?" --yes
    """
    from dpfewshot.records.reading import columns_of_file
    from dpfewshot.records.units import units_by_label

    if Path(FILE_NAME).exists() and not force:
        raise click.UsageError(f"{FILE_NAME} exists: --force replaces it")
    columns = columns_of_file(file)
    _check_given(file, given)
    if not yes and not sys.stdin.isatty():
        raise click.UsageError(
            "there is no terminal to ask on: give --yes, and --texts-are, --epsilon and --model"
        )
    _name_columns(file, columns, given, yes=yes)
    unit = None if given["unit"] == NONE else given["unit"]
    noun = unit_noun(unit)
    data = Data(records=file, text=given["text"], label_column=given["label_column"], unit=unit)
    records = data.read()
    sizes = {label: len(units) for label, units in units_by_label(records).items()}
    _warn_of_units(given, columns, records, sizes)
    labels = _labels(file, given, columns, sizes)
    _check_labels(data, records, sizes, confirmed=not yes)
    question = f"{_counted(sizes, noun)}\nMay everybody know these names?"
    if not yes and not click.confirm(wrapped(question, err=True), default=None, err=True):
        raise InvalidRecords(
            f"{file}: rename what is private among the labels, or drop its records, and run init again; or "
            "name another column with --label-column"
        )
    who = "customer" if noun in _NO_WRITER else noun
    sent = f"a chat message that {'an' if who[0] in 'aeiou' else 'a'} {who} sends to support"
    given["example"] = _made_up(records, given["example"] or "")
    _describe_texts(given, sent, yes=yes)
    given["max_tokens"] = given["max_tokens"] or (_TOKENS if yes else _asked_length())
    meanings = _described(labels, yes=yes)
    given["shots"] = max(
        [_SHOTS, *(sum(map(bool, map(str.strip, each.split(";")))) for each in meanings.values())]
    )
    if given["epsilon"] is None and not yes:
        say(_how_private(sizes, noun), err=True)
    _answer(given, "epsilon", "Epsilon", 2.0, _above_zero, yes=yes)
    smallest = math.floor((1 - HOLDOUT) * min(sizes.values()))
    given["holdout"] = HOLDOUT if _enough(smallest, given["epsilon"]) else 0
    better = recommended() or RECOMMENDED
    question = (
        f"Model: {better} ({DOWNLOADS[better].size / 1e9:.1f} GB), {PACKAGED} (for a trial) or a GGUF file"
    )
    _answer(given, "model", question, recommended() or PACKAGED, _known_model, yes=yes)
    given |= dict.fromkeys(_WRITER_KEYS, "") if yes else _asked_writer()
    content = _content(file, labels, given, meanings)
    project = parsed(Path(FILE_NAME), content).project
    if given["texts_are"] is None:
        warn(
            "without --texts-are the model guesses what a text is, and may miss the words of yours: "
            f'say "{sent}"'
        )
    with write_errors(FILE_NAME):
        write_whole(FILE_NAME, content)
    if as_json:
        click.echo(json.dumps({"file": FILE_NAME, **given, "unit": unit, "labels": labels}))
        return
    is_there = _fetched(given["model"], yes=yes)
    _warn_of_writer(project)
    first = "dpfewshot plan" if is_there else f"dpfewshot model get {given['model']}, then dpfewshot plan"
    named = f"labels, which are public and in every prompt: {', '.join(labels)}"
    for line in (
        *([named] if yes else ()),
        *_in_words(project),
        f"model: {given['model']}" + (f"; {advice()}" if given["model"] == PACKAGED else ""),
        *(() if given["text_writer"] else (_NO_WRITER_NAMED,)),
        f"wrote {FILE_NAME}: correct what is wrong; next: {first}",
    ):
        say(on_one_line(line))


def _in_words(project: Project) -> Iterator[str]:
    data, task, epsilon = project.data, project.task, project.budget.epsilon
    noun = unit_noun(data.unit)
    whose = "each record is protected alone"
    if data.unit:
        whose = (
            f"all records of one {data.unit} are protected together. Each {noun} counts for one of its "
            f"labels alone"
        )
    yield f"text: {data.text}, label: {data.label_column}, {whose}"
    yield f"the model is told: {task.instruction}"
    sure, unlikely = (percent_text(believed(prior, epsilon)) for prior in (0.5, 0.01))
    yield (
        f"epsilon {epsilon:g} for all texts together: somebody 50 % sure that a given {noun} was used "
        f"becomes at most {sure} sure, somebody 1 % sure at most {unlikely}, apart from an allowance of at "
        "most 1e-5"
    )
    yield (
        f"{counted(project.settings.shots, 'text')} of at most about {project.settings.max_tokens * 3 // 4} "
        "words for each label: number, length and wording can change later, at no cost"
    )
    kept = (
        f"{percent_text(project.holdout)} of the {plural(noun)} are kept for `dpfewshot choose`, which tests"
    )
    if not project.holdout:
        kept = f"no {noun} is kept for `dpfewshot choose`, so it would cost as much budget again to test"
    yield f"{kept} whether the texts help; {FILE_NAME} can change that"


def _warn_of_writer(project: Project) -> None:
    """Say what a larger model still needs: an extra, or its key."""
    try:
        project.chat_writer()
    except DPFewShotError as error:
        warn(on_one_line(str(error)))


def _warn_of_units(
    given: Mapping[str, Any], columns: Mapping[str, bool], records: Records, sizes: Mapping[str, int]
) -> None:
    """Warn of a column that hardly says whose a record is, and of labels that nobody counts under.

    The first one says public things alone: a name that was given, and numbers of units. The number of records
    is private, as are their labels and the names in a JSONL file: what they decide is for a terminal, not for
    a log, which may travel, and not in the project file.
    """
    unit, units = given["unit"], sum(sizes.values())
    others = {one: False for one in columns if one not in {given["text"], given["label_column"]}}
    guessed = _guess("unit", others, confirmed=False)
    if unit != NONE and units < _FEW_UNITS * len(sizes):
        warn(
            f"{unit} has few different values: if it does not say whose a record is, name another with --unit"
        )
    if not sys.stderr.isatty():
        return
    if unit == NONE and guessed is not None:
        warn(f"if {guessed} says whose record it is, name it with --unit: now each record is protected alone")
    if unit == NONE:
        return
    if 10 * units >= 9 * len(records):
        warn(
            f"hardly any two records have the same {unit}, so each record is protected alone: right if "
            "nobody has several; else name the column of the person with --unit"
        )
    if not sizes.keys() >= {one.label for one in records}:
        warn(
            f"a label has records, but no {unit_noun(unit)} counts for it, so it is no label of the project: "
            "leave its records out of the file, for good; plan says where they are"
        )


def _answer(
    given: dict[str, Any], option: str, question: str, default: Any, kind: Any = None, *, yes: bool
) -> None:
    """Ask for what no option gives, or take the default."""
    if given[option] is None:
        given[option] = (
            default
            if yes
            else click.prompt(
                wrapped(question, err=True),
                "" if default is None else default,
                show_default=default is not None,
                value_proc=partial(_needed, kind),
                err=True,
            )
        )


def _needed(kind: Any, answer: Any) -> Any:
    """Refuse Enter alone where there is no default."""
    if answer == "":
        raise click.UsageError("an answer is needed here")
    return click.types.convert_type(kind)(answer)


def _how_private(sizes: Mapping[str, int], noun: str) -> str:
    """What the usual values of epsilon protect, and what they take."""
    people, numbers = plural(noun), sizes.values()
    labels = counted(len(sizes), "label")
    usual = (
        f"  epsilon {epsilon}: at most {percent_text(believed(0.5, epsilon))} sure; texts reflect labels of "
        f"{needed} {people} or more: {sum(size >= needed for size in numbers) or 'none'} of {labels}"
        for epsilon, needed in ENOUGH.items()
    )
    lines = (
        f"Epsilon limits what all texts tell of one {noun}. Who is 50 % sure that one was used becomes",
        *usual,
        (
            f"If it harms a {noun} that others learn of this, as with health or debts, take 1, even where "
            "texts then reflect no label: they read well, and say little of your data"
        ),
    )
    return "\n".join(lines)


def _enough(units: int, epsilon: float) -> bool:
    """Whether a label with that many units has texts that reflect it, as far as `ENOUGH` tells."""
    needed = [least for known, least in ENOUGH.items() if known <= epsilon]
    return units >= min(needed) if needed else units * epsilon >= ENOUGH[1]


def _asked_length() -> int:
    """The tokens of a text that is as long as most: a word takes about 4/3."""
    question = "The most words of a text, about as many as most such texts have (15 is only a default)"
    words: int = click.prompt(question, _TOKENS * 3 // 4, value_proc=_words, err=True)
    return -(-words * 4 // 3)


def _words(answer: object) -> int:
    """Refuse what is no number of words, which is asked for again."""
    if re.fullmatch("[0-9]{1,4}", str(answer)) and 1 <= int(str(answer)) <= _MOST_WORDS:
        return int(str(answer))
    raise click.UsageError(f"a whole number from 1 to {_MOST_WORDS}, such as 20, not {answer!r}")


def _asked_writer() -> dict[str, str]:
    """The larger model that writes the texts, by `_WRITER_KEYS`: without words if there is none."""
    ask = partial(click.prompt, show_default=False, err=True)
    url = ask(wrapped(_WRITER, err=True), "", value_proc=_address)
    name = ask("The model's name there", value_proc=_name) if url else ""
    key = (
        ask("Environment variable that holds its key (Enter: none)", "", value_proc=_variable) if url else ""
    )
    return dict(zip(_WRITER_KEYS, (name, url, key), strict=True))


def _describe_texts(given: dict[str, Any], sent: str, *, yes: bool) -> None:
    """Ask what a text is."""
    if not yes:
        say(_FROM_NO_RECORD, err=True)
    question = (
        f'What is a text, who writes it, to whom, and how? Such as "{sent}", "a short message, in a hurry '
        'and without a greeting, that ...", or with parts that all have: "a news item: a headline and a '
        'sentence"'
    )
    _answer(given, "texts_are", question, None, _printable, yes=yes)


def _described(labels: Sequence[str], *, yes: bool) -> dict[str, str]:
    """Ask what labels mean: those that are abbreviations or numbers in any case."""
    asked = [label for label in labels if label.isupper() or label.isdigit()]
    if yes:
        if asked:
            unclear = ", ".join(map(on_one_line, asked))
            warn(f"say under label_descriptions what {unclear} means: a model writes by that")
        return {}
    if len(labels) <= _FEW_LABELS:
        asked = list(labels)
    if asked:
        say(_SITUATIONS, err=True)
    ask = partial(click.prompt, value_proc=_printable, show_default=False, err=True)
    meanings = {one: ask(f"  {on_one_line(one)}", "") for one in asked}
    return {label: meaning for label, meaning in meanings.items() if meaning}


def _name_columns(file: str, columns: Mapping[str, bool], given: dict[str, Any], *, yes: bool) -> None:
    """Name the columns that no option names; `columns` is `columns_of_file`'s."""
    is_unnamed = None in (given["text"], given["label_column"], given["unit"])
    if is_unnamed and any(len(name.split()) > _WORDS for name in columns):
        raise InvalidRecords(
            f"{file}: the first line may be a record: let it name the columns, or give --text, "
            "--label-column and --unit"
        )
    for option in _NAMES:
        column = given[option]
        if column not in {None, NONE, *columns} and column.partition(".")[0] not in columns:
            flag = "--" + option.replace("_", "-")
            known = _guess(option, columns, confirmed=False)  # no other: the first line may be a record
            hint = f"did you mean {known!r}?" if known else f"{flag} names one as the file does"
            raise InvalidRecords(f"{file}: there is no column {column!r}: {hint}")
    if any(on_one_line(name) != name for name in columns):
        raise InvalidRecords(f"{file}: a column's name has characters that are not printable: rename it")
    if not yes:
        say(f"columns: {', '.join(map(on_one_line, columns))}", err=True)
    for option, question in zip(_NAMES, ("Column of the text", "Column of the label", _WHOM), strict=True):
        free = {name: repeats for name, repeats in columns.items() if name not in map(given.get, _NAMES)}
        names = [*free, *([NONE] if option == "unit" else [])]
        capitals_count = len({name.casefold() for name in names}) < len(names)  # two differ by nothing else
        kind = click.Choice(names, case_sensitive=capitals_count)
        _answer(given, option, question, _guess(option, free, confirmed=not yes), kind, yes=yes)
    open_ones = [option for option in _NAMES if given[option] is None]
    if open_ones:  # columns are not listed: they are a record if the first line is missing
        none = f"; --unit {NONE}: each record is protected alone" if given["unit"] is None else ""
        what = " or ".join(option.removesuffix("_column") for option in open_ones)
        flags = ", ".join("--" + option.replace("_", "-") for option in open_ones)
        raise InvalidRecords(f"{file}: no column's name says that it is the {what}: give {flags}{none}")


def _guess(option: str, columns: Mapping[str, bool], *, confirmed: bool) -> str | None:
    """A column by its name alone: values are private, and so is their order. If confirmed, they count.

    Then the only column whose values repeat as labels do is the label's.
    Never `NONE`: each record would be a unit, a weaker guarantee, so somebody has to say so.
    """
    by_name = option == "unit" or not confirmed
    fitting = [name for name, repeats in columns.items() if by_name or repeats == (option != "text")]
    if not confirmed:  # the first record of a JSONL file would decide
        fitting.sort()
    if option == "label_column" and confirmed and len(fitting) == 1:
        return fitting[0]
    plain = {name: re.sub(r"[\W_]+", "_", name.strip().lower()) for name in fitting}
    named = (name for one in _NAMES[option].split() for name in fitting if re.fullmatch(one, plain[name]))
    return next(named, None)


def _printable(words: str) -> str:
    """Refuse characters that no project file can hold; they are asked for again."""
    if on_one_line(words) != words:
        raise click.UsageError("there are characters that are not printable")
    return words


def _made_up(records: Records, example: str) -> str:
    """Refuse an example with the words of a record."""
    from dpfewshot.audit.leak import copies

    if example and copies(example, records):
        raise click.UsageError(
            "the example has the words of a record, and it is in every prompt: make one up"
        )
    return _printable(example)


def _address(url: str) -> str:
    """Refuse what is no server's address; it is asked for again."""
    from dpfewshot.backends.servers.client import server_address

    if url:
        try:
            server_address(url)
        except BackendError as error:
            raise click.UsageError(str(error)) from None
    return url


def _name(name: str) -> str:
    """Refuse what is no name or looks like a key, without repeating it."""
    if not name.strip() or re.match(r"[a-z]{2,4}[-_]\w{0,8}[-_]?\w{16}", name):
        raise click.UsageError("that is no model's name: it is empty, or looks like a key")
    return _printable(name)


def _variable(name: str) -> str:
    """Refuse what may be a key in place of its variable's name, without repeating it."""
    if name in os.environ or re.fullmatch(r"([A-Z]+_[A-Z_]+)?", name):
        return name
    raise click.UsageError(
        "that is no variable's name, such as OPENAI_API_KEY; the key itself stays out of the file"
    )


def _above_zero(epsilon: str) -> float:
    """Refuse what is no finite number above 0, which is asked for again."""
    with suppress(ValueError):
        if 0 < float(epsilon) < math.inf:
            return float(epsilon)
    raise click.UsageError(f"epsilon is a number above 0, such as 1 or 2.5, not {epsilon!r}")


def _known_model(model: str) -> str:
    """Refuse what is neither a model's name nor a file, nor looks like a path or a name elsewhere."""
    if model in {PACKAGED, *DOWNLOADS} or re.search(r"[/:]", model) or Path(model).is_file():
        return model
    raise click.UsageError(f"no model {model!r}: name a GGUF file, {', '.join(DOWNLOADS)} or {PACKAGED}")


def _check_given(file: str, given: Mapping[str, Any]) -> None:
    """Refuse what no project file can hold, what is no model's name, and what is no epsilon."""
    model, epsilon = given["model"], given["epsilon"]
    if re.search(r"[\udc80-\udcff]", f"{file} {model}"):
        raise click.UsageError(f"a file's name is not UTF-8, as {FILE_NAME} is: rename it")
    if model is not None:
        _known_model(model)
    if epsilon is not None and not epsilon > 0:
        _above_zero(str(epsilon))


def _fetched(model: str, *, yes: bool) -> bool:
    """Whether a model's file is there; one that can be fetched is, if somebody agrees."""
    if model not in DOWNLOADS or downloaded(model):
        return True
    if yes or not click.confirm(f"Fetch {DOWNLOADS[model]}?", default=True, err=True):
        return False
    try:
        fetch(model)
    except (DPFewShotError, KeyboardInterrupt) as error:  # the answers are written: they are not lost
        warn(on_one_line(str(error)) or "the fetch is interrupted")
        return False
    return True


def _counted(sizes: Mapping[str, int], noun: str) -> str:
    """The labels with their numbers of units, and which are so rare that they may be faults."""
    once = "" if noun == unit_noun(None) else f", each {noun} counted for one label alone"
    told = (
        f"{on_one_line(label)} {size}{' (misspelt?)' * (size < _COMMON)}" for label, size in sizes.items()
    )
    return f"labels, which are public and in every prompt, with their {plural(noun)}{once}: {', '.join(told)}"


def _labels(
    file: str, given: Mapping[str, Any], columns: Mapping[str, bool], sizes: Mapping[str, int]
) -> list[str]:
    """The labels that units count for, sorted. Refuses a column of them that may tell of records."""
    from dpfewshot.records.reading import FEW, repeat

    labels = list(sizes)
    few_texts = columns.get(given["text"], False)
    if given["label_column"] in {given["text"], given["unit"]}:
        raise InvalidRecords(f"{file}: the label and the text or the unit have one column: name another")
    if not repeat(labels, sum(sizes.values())):
        raise InvalidRecords(
            f"{file}: the column of the label has "
            + (f"more than {FEW} values" if len(labels) > FEW else "values that hardly repeat")
            + ". They may tell of records: name a column of few labels with --label-column"
            + "; text and label may be swapped" * few_texts
        )
    if few_texts:
        raise InvalidRecords(
            f"{file}: the column of the text repeats few values: is it the label's? "
            "Name that of the texts with --text"
        )
    if len(labels) == 1:
        warn("there is one label alone: nothing can be classified")
    return labels


def _check_labels(data: Data, records: Records, sizes: Mapping[str, int], *, confirmed: bool) -> None:
    """Refuse labels that no project file can hold, or that may tell of records, by the first line of one.

    Without somebody to confirm them, each must have `_COMMON` units: a rare one may be a text that slipped
    into the wrong column, and the label of a unit's records alone is private. So no label is repeated.
    """
    rare = (
        f"of fewer than {_COMMON} {plural(unit_noun(data.unit))}, which may be misspelt, or a text in the "
        "wrong column: correct it, or run init on a terminal, without --yes, to see and confirm the labels"
    )
    faults = {label: rare for label, size in sizes.items() if size < _COMMON and not confirmed}
    for label in sizes:
        if not label.isprintable():
            faults[label] = "with characters that are not printable: rename it"
        elif on_one_line(label) != label:
            faults[label] = "that begins or ends with a space, or has two in a row: correct it in every line"
    with data.lines_named():
        for number, record in enumerate(records, start=1):
            if fault := faults.get(record.label):
                raise InvalidRecords(f"record {number} has a label {fault}")


def _noun(phrase: str) -> str | None:
    """The noun of a phrase that begins with "a" or "an": "a doctor's note on a patient" is a note.

    Models take it at its word: behind "Description:" they describe, behind "Message:" they write one.
    """
    article, *words = re.sub(r"[^\w\s'-]", " ,", phrase).split() or [""]
    if article.lower() not in {"a", "an"}:
        return None
    ends = (place for place, word in enumerate(words) if place and _AFTER_A_NOUN.fullmatch(word))
    before = words[: next(ends, len(words))]
    return before[-1][0].upper() + before[-1][1:] if before and before[-1][0].isalpha() else None


def _content(file: str, labels: list[str], given: Mapping[str, Any], meanings: Mapping[str, str]) -> str:
    """The project file."""
    try:
        name = dataset_name(Path(file).name.partition(".")[0])
    except LedgerError:
        name = "records"
    text_column, label_field = (
        re.sub(r"[\W_]+", " ", given[key].rpartition(".")[2]).strip().capitalize() or key.capitalize()
        for key in ("text", "label_column")
    )
    if label_field.lower() in _NO_NOUN:
        label_field = "Subject"
    texts_are = given["texts_are"] or f"the {text_column.lower()}"
    text_field = _noun(texts_are) or text_column
    values = {
        **given,
        "file": file,
        "name": name,
        "labels": labels,
        "instruction": f"Write {texts_are}, of the given {label_field.lower()}.",
        "text_field": "Message" if _LETTER.fullmatch(text_field) else text_field,
        "label_field": label_field,
    }
    written = {key: _toml(value) for key, value in values.items()}
    descriptions = meanings or {labels[0]: "what it is about, as its writer would say it"}
    lines = [
        "[task.label_descriptions]  # what a label means: texts take turns with what semicolons part",
        *(f"{_toml(label)} = {_toml(meaning)}" for label, meaning in descriptions.items()),
    ]
    written["meanings"] = "\n".join(lines if meanings else [f"# {line}" for line in lines])
    written["epsilon"] = str(given["epsilon"])
    optional = (
        ("unit", NONE, '"customer_id"'),
        ("model", PACKAGED, '"model.gguf"'),
        ("text_writer", "", '"NAME"'),
        ("text_writer_url", "", '"http://localhost:8000/v1"'),
        ("text_writer_key_env", "", '"OPENAI_API_KEY"'),
        ("example", "", '"..."'),
        ("holdout", HOLDOUT, "0"),
    )
    for key, nothing, shown in optional:
        written[key] = f"# {key} = {shown}" if given[key] == nothing else f"{key} = {written[key]}"
    return _FILE.format_map(written)


def _toml(value: object) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # so TOML holds it
