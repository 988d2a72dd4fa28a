"""The command line: measure what is missing, then write the page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.peers import accountants, accuracy, claims, packages, page, raw, speed

SECTIONS: dict[str, tuple[str, Callable[[Path, Path], Iterator[raw.Line]]]] = {
    "claims": ("claim", claims.measure),
    "accounting": ("accounting", accountants.measure),
    "packages": ("run", packages.measure),
    "servers": ("speed", speed.measure_servers),
    "others": ("speed", speed.measure_packages),
}
"""Each section, the kind of its lines, and its measurement."""

TURNS = {"servers": speed.SERVERS, "others": speed.PACKAGES}
"""Which lines of kind "speed" a section writes."""


def main() -> None:
    """See the package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("store", type=Path, nargs="?")
    parser.add_argument("--only", choices=[*SECTIONS, "accuracy"], action="append", help="may be repeated")
    parser.add_argument("--repetitions", type=int, default=1, help="of accuracy")
    parser.add_argument("--page", action="store_true", help="only write the page")
    arguments = parser.parse_args()
    if not arguments.page:
        if arguments.store is None:
            parser.error("name DATA and STORE, or --page")
        measured = arguments.only or [*SECTIONS, "accuracy"]
        for name in measured:
            if name in SECTIONS:
                section(name, arguments.data, arguments.store)
        if "accuracy" in measured:
            accuracy.measure(arguments.data, arguments.store, arguments.repetitions)
    page.write()


def section(name: str, data: Path, store: Path) -> None:
    """Measures a section that has no lines yet."""
    kind, measure = SECTIONS[name]
    if [line for line in raw.of_kind(raw.read(), kind) if line.get("turns") == TURNS.get(name)]:
        print(f"{name}: there", file=sys.stderr)
        return
    store.mkdir(parents=True, exist_ok=True)
    for line in measure(data, store):
        print({key: value for key, value in line.items() if key != "versions"}, file=sys.stderr, flush=True)
        raw.add([line])


if __name__ == "__main__":
    main()
