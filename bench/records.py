"""Indexed records at size: memory of the index, and the time of a draw. Made-up tickets in a temporary folder.

    python -m bench.records [RECORDS] [KIND]      # 10,000,000 and jsonl; or parquet, arrow

Memory is the peak that the operating system reports for a process of its own, which indexes, groups and draws.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path

LABELS = 50
CUSTOMERS = 3  # tickets of one customer, on average
DRAWN = 100
DRAWS = 20
GROUP = 1000  # rows of a Parquet row group or an Arrow batch


def ticket(number: int) -> dict[str, object]:
    """A made-up ticket; its customer and its label follow from its number."""
    mixed = number * 2654435761 % 2**32
    text = f"Ticket {number}: my parcel {mixed} is late, and nobody answers when I write about it."
    return {
        "text": text,
        "label": f"label {mixed % LABELS}",
        "customer": mixed % max(1, number // CUSTOMERS + 1),
    }


def write(path: Path, records: int) -> None:
    """Write so many tickets."""
    if path.suffix == ".jsonl":
        with path.open("w") as file:
            file.writelines(json.dumps(ticket(number)) + "\n" for number in range(records))
        return
    import pyarrow as pa
    from pyarrow import feather, parquet

    table = pa.Table.from_batches(
        pa.RecordBatch.from_pylist([ticket(number) for number in range(start, min(start + GROUP, records))])
        for start in range(0, records, GROUP)
    )
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=GROUP)
    else:
        feather.write_feather(table, path, chunksize=GROUP)


def measure(path: Path, unit: str | None) -> None:
    """Index the file twice, group its units by label, draw from all of them, and print a line of JSON."""
    from dpfewshot import index_records
    from dpfewshot.records.units import units, units_by_label
    from dpfewshot.sampling import PoissonSampler

    found: dict[str, object] = {"unit": unit, "MB before": peak()}
    started = time.perf_counter()
    index = path.with_suffix(".index")
    records = index_records(path, unit=unit, index=index)
    found |= {"seconds to index": elapsed(started), "MB of the index file": index.stat().st_size / 2**20}
    found["MB after the index"] = peak()
    started = time.perf_counter()
    by_label = units_by_label(records)
    found |= {"labels": len(by_label), "seconds to group by label": elapsed(started)}
    everyone = units(records)
    sampler = PoissonSampler(Fraction(DRAWN, len(everyone)), DRAWN, 1)
    times = []
    for _ in range(DRAWS):
        started = time.perf_counter()
        drawn = everyone.take([one for subset in sampler.draw(everyone.sizes) for one in subset])
        times.append(1000 * elapsed(started))
        if None in drawn:
            raise SystemExit("a record could not be read")
    found |= {"ms of a draw, median": sorted(times)[DRAWS // 2], "ms of a draw, least": min(times)}
    found["MB at most"] = peak()
    started = time.perf_counter()
    index_records(path, unit=unit, index=index)
    found["seconds to open with the index"] = elapsed(started)
    print(
        json.dumps(
            {name: round(value, 2) if isinstance(value, float) else value for name, value in found.items()}
        )
    )


def elapsed(started: float) -> float:
    """Seconds since then."""
    return time.perf_counter() - started


def peak() -> float:
    """The most memory that this process had resident, in MiB: `getrusage` counts what it was before exec, too."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main(records: int = 10_000_000, kind: str = "jsonl") -> None:
    """Make the file, and measure it with and without a unit column, each in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"tickets.{kind}")
        write(path, records)
        print(f"{records} records, {path.stat().st_size / 2**20:.0f} MB of {kind}")
        for unit in ("", "customer"):
            command = [sys.executable, "-m", "bench.records", "measure", str(path), unit]
            subprocess.run(command, check=True)  # noqa: S603 - our own module
            path.with_suffix(".index").unlink()


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        measure(Path(sys.argv[2]), sys.argv[3] or None)
    else:
        main(*(int(sys.argv[1]),) if len(sys.argv) > 1 else (), *sys.argv[2:3])
