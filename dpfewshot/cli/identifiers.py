"""The option that masks direct identifiers, and the records that a command generates from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from dpfewshot.cli.backends import Decorator

if TYPE_CHECKING:
    from dpfewshot.values import Records, StoredRecords

mask_option: Decorator = click.option(
    "--mask-identifiers",
    is_flag=False,
    flag_value="en",
    default=None,
    metavar="[LANGUAGE]",
    help="Replace e-mail addresses, telephone numbers, cards and the like in the records by placeholders, "
    "such as <EMAIL_ADDRESS>. LANGUAGE selects the national numbers; without it, en. Epsilon stays the same.",
)


def read_private(options: Mapping[str, Any]) -> Records | StoredRecords:
    """The records of --records, masked if --mask-identifiers is given.

    Raises:
        DPFewShotError: the file cannot be used, or Presidio is not installed.
    """
    from dpfewshot.records import mask_identifiers, read_records

    records = read_records(
        options["records"], text=options["text"], label=options["label_column"], unit=options["unit"]
    )
    language = options["mask_identifiers"]
    return records if language is None else mask_identifiers(records, language=language)
