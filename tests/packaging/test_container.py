"""What the example service's container may do, as its files say; no image is built here."""

import re
from pathlib import Path

import pytest

from dpfewshot.cli.project import LEDGER_VARIABLE

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install '.[dev]'")
pytest.importorskip("fastapi", reason="fastapi is not installed: pip install '.[examples]'")

SERVICE = Path(__file__).parents[2] / "examples" / "service"
LAST_STAGE = (SERVICE / "Dockerfile").read_text(encoding="utf-8").rpartition("\nFROM ")[2]
COMPOSE = yaml.safe_load((SERVICE / "compose.yaml").read_text(encoding="utf-8"))
KUBERNETES = list(yaml.safe_load_all((SERVICE / "kubernetes.yaml").read_text(encoding="utf-8")))


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
