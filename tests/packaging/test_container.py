"""What the example service's container may do, as its files say; no image is built here."""

import re
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path, PurePath

import pytest

from dpfewshot.cli.project import LEDGER_VARIABLE

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install '.[dev]'")
pytest.importorskip("fastapi", reason="fastapi is not installed: pip install '.[examples]'")

ROOT = Path(__file__).parents[2]
SERVICE = ROOT / "examples" / "service"
DOCKERFILE = (SERVICE / "Dockerfile").read_text(encoding="utf-8")
LAST_STAGE = DOCKERFILE.rpartition("\nFROM ")[2]
COMPOSE = yaml.safe_load((SERVICE / "compose.yaml").read_text(encoding="utf-8"))
KUBERNETES = list(yaml.safe_load_all((SERVICE / "kubernetes.yaml").read_text(encoding="utf-8")))


def test_it_runs_without_root_and_without_a_compiler() -> None:
    users = re.findall(r"^USER (\d+)$", LAST_STAGE, re.MULTILINE)
    assert len(users) == 1
    assert int(users[0]) >= 10_000
    assert LAST_STAGE.index("USER") < LAST_STAGE.index("CMD")
    assert not re.search(r"apt-get|build-essential|gcc|COPY \. ", LAST_STAGE)


def is_sent(path: str) -> bool:
    """Whether a file is in the build's context: the last line of .dockerignore that fits it decides."""
    sent, names = True, [path, *map(str, PurePath(path).parents)]
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.removeprefix("!")
        either = pattern, pattern.replace("**/", "")  # ** may be no folder
        if any(fnmatchcase(name, each) for name in names for each in either):
            sent = line.startswith("!")
    return sent


def test_what_it_is_built_from_is_sent_and_nothing_private() -> None:
    copied = re.findall(r"^COPY (?!--from)(\S+) ", DOCKERFILE, re.MULTILINE)
    assert copied == [".", "examples/service"]  # the first of them: what is sent
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    of_project = build["project"]["readme"], *build["project"]["license-files"]
    backend, (extension,) = build["build-system"]["build-backend"], build["tool"]["setuptools"]["ext-modules"]
    read = re.findall(r'ROOT / "([^"]+)"', (ROOT / f"{backend}.py").read_text(encoding="utf-8"))
    assert len(read) == 2
    for needed in (*of_project, f"{backend}.py", *read, *extension["sources"], *extension["depends"]):
        assert (ROOT / needed).is_file()
        assert is_sent(needed), needed
    python = [str(each.relative_to(ROOT)) for each in (ROOT / "dpfewshot").rglob("*.py")]
    assert [each for each in (*python, "examples/service/app.py") if not is_sent(each)] == []
    private = "tickets.csv", "dpfewshot.toml", "budget.db", "demos.jsonl", "sent.txt", ".env", "key.pem"
    folders = "", "tickets/", "examples/service/", "dpfewshot/", "dpfewshot/cli/", "requirements/", "csrc/"
    made = ".venv/bin/python", ".git/config", "models/own.gguf", "dpfewshot/_core.so", "csrc/_core.c"
    found = *made, *(folder + each for folder in folders for each in private)
    assert [each for each in found if is_sent(each)] == []


def test_it_has_a_health_check_that_is_there() -> None:
    (module,) = re.findall(r'CMD \["python", "-m", "([\w.]+)"\]', LAST_STAGE)
    assert (SERVICE / f"{module.rpartition('.')[2]}.py").is_file()
    assert re.search(r"^HEALTHCHECK ", LAST_STAGE, re.MULTILINE)


def test_it_writes_to_memory_alone() -> None:
    service = COMPOSE["services"]["service"]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(volume.endswith(":ro") for volume in service["volumes"])


def test_the_pod_has_no_privilege_and_its_probes_are_there() -> None:
    from examples.service.app import app

    deployment, service, policy = KUBERNETES
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    paths = app.openapi()["paths"]
    assert all(
        container[f"{probe}Probe"]["httpGet"]["path"] in paths
        for probe in ("startup", "liveness", "readiness")
    )
    assert {volume["name"] for volume in pod["volumes"]} == {
        mount["name"] for mount in container["volumeMounts"]
    }
    assert container["env"][0]["name"] == LEDGER_VARIABLE
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert [port["targetPort"] for port in service["spec"]["ports"]] == ["http"]  # not the metrics
    open_to_all, to_the_operator = policy["spec"]["ingress"]
    assert (open_to_all, to_the_operator["ports"]) == ({"ports": [{"port": "http"}]}, [{"port": "metrics"}])
    assert policy["spec"]["podSelector"] == deployment["spec"]["selector"]


def test_a_pod_has_time_to_become_ready() -> None:
    deployment, *_ = KUBERNETES
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    start = container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"]
    (pace,) = re.findall(r"PACE=(\d+)", LAST_STAGE)
    labels = 20
    assert deployment["spec"]["progressDeadlineSeconds"] > start + labels * int(pace)
