"""The build backend: setuptools, with archives that anybody can build again bit by bit, and their components.

Two builds of one commit with the tools of requirements/build.txt give the same bytes. SOURCE_DATE_EPOCH only
sets the date in them. The list of components lies in the wheel, where PEP 770 looks for it.
"""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import io
import json
import os
import tarfile
import time
import tomllib
import uuid
import zipfile
from pathlib import Path
from typing import Any

import Cython
from packaging.requirements import Requirement
from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

ROOT = Path(__file__).parent
# The first second that a zip file can hold. setuptools and the compiler read the variable, too.
EPOCH = int(os.environ.setdefault("SOURCE_DATE_EPOCH", "315532800"))


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    """Build the source archive and return its name."""
    name: str = build_meta.build_sdist(sdist_directory, config_settings)
    repack_tar(Path(sdist_directory, name))
    return name


def build_wheel(
    wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None
) -> str:
    """Build the wheel and return its name."""
    name: str = build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
    repack_wheel(Path(wheel_directory, name))
    return name


def build_editable(
    wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None
) -> str:
    """Build the wheel that `pip install --editable` wants and return its name.

    It puts this folder on the path. A finder, as by default, loses to any folder called "dpfewshot" beside a
    script, and that is what a clone is called.
    """
    settings = {"editable_mode": "compat", **(config_settings or {})}
    name: str = build_meta.build_editable(wheel_directory, settings, metadata_directory)
    return name


def repack_tar(path: Path) -> None:
    """Write an archive's files anew: sorted, with one date, without owners."""
    with tarfile.open(path) as archive:
        files = sorted((each for each in archive.getmembers() if each.isfile()), key=lambda each: each.name)
        contents = [archive.extractfile(each).read() for each in files]  # type: ignore[union-attr]  # files alone
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=EPOCH) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for old, content in zip(files, contents, strict=True):
            new = tarfile.TarInfo(old.name)
            new.size, new.mtime, new.mode = len(content), EPOCH, 0o755 if old.mode & 0o100 else 0o644
            archive.addfile(new, io.BytesIO(content))


def repack_wheel(path: Path) -> None:
    """Write a wheel's files anew, with one date and plain permissions, and with the list of components."""
    with zipfile.ZipFile(path) as wheel:
        files = {name: wheel.read(name) for name in wheel.namelist()}
    (record,) = (name for name in files if name.endswith(".dist-info/RECORD"))
    folder = record.removesuffix("/RECORD")
    version = folder.removesuffix(".dist-info").partition("-")[2]
    components = json.dumps(list_of_components(version), indent=1).encode()
    files[f"{folder}/sboms/dpfewshot.cdx.json"] = components
    hashed = base64.urlsafe_b64encode(hashlib.sha256(components).digest()).decode().rstrip("=")
    lines = io.StringIO(files.pop(record).decode(), newline="")
    rows = [
        *csv.reader(lines),
        [f"{folder}/sboms/dpfewshot.cdx.json", f"sha256={hashed}", str(len(components))],
    ]
    written = io.StringIO(newline="")
    csv.writer(written, lineterminator="\n").writerows(sorted(rows))
    files[record] = written.getvalue().encode()
    date = time.gmtime(max(EPOCH, 315532800))[:6]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, date)  # type: ignore[arg-type]  # six numbers
            entry.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            wheel.writestr(entry, content, zipfile.ZIP_DEFLATED)


def list_of_components(version: str) -> dict[str, Any]:
    """Return the wheel's components as CycloneDX: itself, what is compiled into it, and what it needs.

    What it needs has the version that `make test` ran with (requirements/demo.txt); pip may install another.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {Requirement(each).name for each in project["dependencies"]}
    lock = (ROOT / "requirements/demo.txt").read_text().splitlines()
    locked = [Requirement(line.removesuffix(" \\")) for line in lock if "==" in line]
    pins = [pin for pin in locked if pin.name in needed and (not pin.marker or pin.marker.evaluate())]
    itself = _component("dpfewshot", version, project["description"]) | {
        "licenses": [{"license": {"id": project["license"]}}]
    }
    components = [
        _component(
            "cython", Cython.__version__, "Wrote the C code of dpfewshot._core, with code of its own in it"
        ),
        *(
            _component(pin.name, str(pin.specifier).removeprefix("=="), "Needed, and tested at this version")
            for pin in pins
        ),
    ]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_OID, json.dumps([itself, components])).urn,
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(EPOCH)),
            "component": itself,
        },
        "components": components,
        "dependencies": [{"ref": itself["bom-ref"], "dependsOn": [each["bom-ref"] for each in components]}],
    }


def _component(name: str, version: str, description: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{version}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "description": description,
        "purl": purl,
    }
