# SPDX-License-Identifier: BSD-2-Clause
"""Tests scripts/deploy/kubernetes: Kubernetes' schemas, and what must agree with unit and image."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import mrcd
from mrcd.auth import secrets_file
from mrcd.config import cluster_file
from mrcd.config.cluster_file import Metrics
from mrcd.fabric import topology

DEPLOY = Path(__file__).parents[2] / "scripts/deploy"
MANIFESTS = {p.name: list(yaml.safe_load_all(p.read_text())) for p in (DEPLOY / "kubernetes").glob("*.yaml")}
VERSIONS = ("1.29", "1.33", "1.36")


def of_kind(kind: str) -> dict[str, Any]:
    """Returns the only document of a kind."""
    (found,) = (d for documents in MANIFESTS.values() for d in documents if d["kind"] == kind)
    return dict(found)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", MANIFESTS)
def test_the_manifests_are_valid(name: str, version: str) -> None:
    validator = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed: `scripts/set-up --image` installs it"
    )
    for document in MANIFESTS[name]:
        if document["kind"] != "ServiceMonitor":  # Prometheus' operator defines it, not Kubernetes
            validator.validate(document, version, strict=True)


def test_the_container_has_the_rights_of_the_unit() -> None:
    container = of_kind("DaemonSet")["spec"]["template"]["spec"]["containers"][0]
    unit = (DEPLOY / "mrcd.service").read_text()
    (granted,) = re.findall(r"^CapabilityBoundingSet=(.*)$", unit, re.M)
    security = container["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": [c.removeprefix("CAP_") for c in granted.split()]}
    assert security["readOnlyRootFilesystem"]
    assert not security["allowPrivilegeEscalation"]
    assert not security.get("privileged")


def test_mounts_ports_and_versions_agree() -> None:
    pod = of_kind("DaemonSet")["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert container["image"] == f"mrcd:{mrcd.__version__}"
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    (sysctls,) = re.findall(r"MRCD_NET_SYSCTLS=(\S+?)\"", (DEPLOY / "image/build").read_text())
    assert sysctls in {m["mountPath"] for m in container["volumeMounts"]}
    port = int(Metrics().address.rpartition(":")[2])
    assert {container[f"{p}Probe"]["httpGet"]["port"] for p in ("liveness", "readiness", "startup")} == {port}
    assert [p["port"] for p in of_kind("Service")["spec"]["ports"]] == [port]


def test_the_configuration_is_valid(tmp_path: Path) -> None:
    file, secrets = tmp_path / "mrcd.toml", tmp_path / "secrets"
    file.write_text(of_kind("ConfigMap")["data"]["mrcd.toml"])
    secrets.write_text(of_kind("Secret")["stringData"]["secrets"])
    secrets.chmod(0o400)
    assert secrets_file.read(secrets)
    config = cluster_file.load(file)
    for host in tomllib.loads(file.read_text())["hosts"]:
        assert topology.plan(config, host["name"]).peers
