"""What the example service's container may do, as its two files say; no image is built here."""

import re
from pathlib import Path

SERVICE = Path(__file__).parents[2] / "examples" / "service"
LAST_STAGE = (SERVICE / "Dockerfile").read_text(encoding="utf-8").rpartition("\nFROM ")[2]
COMPOSE = (SERVICE / "compose.yaml").read_text(encoding="utf-8")


def test_it_runs_without_root_and_without_a_compiler() -> None:
    users = re.findall(r"^USER (\d+)$", LAST_STAGE, re.MULTILINE)
    assert len(users) == 1
    assert int(users[0]) >= 10_000
    assert LAST_STAGE.index("USER") < LAST_STAGE.index("CMD")
    assert not re.search(r"apt-get|build-essential|gcc|COPY \. ", LAST_STAGE)


def test_it_has_a_health_check_that_is_there() -> None:
    (module,) = re.findall(r'CMD \["python", "-m", "([\w.]+)"\]', LAST_STAGE)
    assert (SERVICE / f"{module.rpartition('.')[2]}.py").is_file()
    assert re.search(r"^HEALTHCHECK ", LAST_STAGE, re.MULTILINE)


def test_it_writes_to_the_ledger_and_to_memory_alone() -> None:
    assert re.search(r"^    read_only: true\b", COMPOSE, re.MULTILINE)
    assert re.findall(r"volumes: \[(.*?)\]", COMPOSE) == ['"ledger:/ledger"']
    assert "LEDGER=sqlite:////ledger/" in LAST_STAGE
    assert "cap_drop: [ALL]" in COMPOSE
    assert "no-new-privileges:true" in COMPOSE
