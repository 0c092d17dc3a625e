"""The Helm chart, rendered by Helm and checked against the schemas of Kubernetes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from molecule_hermes import __version__
from molecule_hermes.config import Settings
from tests.deployment.test_deploy import (
    AFTER_THE_DRAIN,
    DOCKERFILE,
    MIB_OF_A_WORKER,
    NAMES_OF_SECRETS,
)

helm = pytest.importorskip("helm_python", reason="Helm has no wheel for this platform")

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "molecule-hermes"
VARIANTS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "everything set": {
        "image": {"repository": "registry.example/agent", "tag": "1", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "pull"}],
        "env": {"MOLECULE_HERMES_MAX_RUNNING": 4, "MOLECULE_HERMES_COMPAT_V03": False},
        "publicUrl": "https://agent.example/a2a",
        "drainTimeout": 300,
        "readyBudget": 60,
        "persistence": {"size": "1Gi", "storageClass": "fast"},
        "service": {"type": "LoadBalancer", "port": 80},
        "podAnnotations": {"a": "b"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
    },
    "without a network policy": {"networkPolicy": {"enabled": False}},
}


def render(values: dict[str, Any] | None = None, name: str = "demo") -> dict[str, dict[str, Any]]:
    """The chart's objects by kind, rendered by Helm."""
    with helm.Chart.load(CHART) as chart:
        rendered = chart.render(values or {}, name=name, namespace="agents")
    texts = [text for file, text in rendered.items() if file.endswith(".yaml")]
    objects = [found for text in texts for found in yaml.safe_load_all(text) if found]
    return {found["kind"]: found for found in objects}


def pod(values: dict[str, Any] | None = None) -> dict[str, Any]:
    spec: dict[str, Any] = render(values)["StatefulSet"]["spec"]["template"]["spec"]
    return spec


def container(values: dict[str, Any] | None = None) -> dict[str, Any]:
    (only,) = pod(values)["containers"]
    return dict(only)


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    found = helm.lint(CHART)
    assert found["errors"] == []
    assert all("icon" in message["error"] for message in found["messages"])


@pytest.mark.parametrize("version", ["1.30", "1.37"])
@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_the_rendered_chart_is_valid_for_kubernetes(values: dict[str, Any], version: str) -> None:
    objects = render(values)
    assert {"StatefulSet", "Service", "ServiceAccount"} <= set(objects)
    assert ("NetworkPolicy" in objects) is (values.get("networkPolicy") is None)
    for found in objects.values():
        kubernetes_validate.validate(found, version, strict=True)


def test_each_probe_uses_its_own_endpoint() -> None:
    probes = {
        name: container()[f"{name}Probe"]["httpGet"]["path"]
        for name in ("startup", "liveness", "readiness")
    }
    assert probes == {"startup": "/startupz", "liveness": "/livez", "readiness": "/readyz"}


@pytest.mark.parametrize("budget", [1, 120, 601])
def test_kubernetes_waits_as_long_as_hermes_may_take_to_start(budget: int) -> None:
    """When it is over, the process ends by itself and says why."""
    agent = container({"readyBudget": budget})
    probe = agent["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] > budget + 20
    assert environment(agent)["HERMES_GATEWAY_READY_BUDGET_SEC"] == str(budget)


def test_the_workers_fit_into_the_memory_of_the_pod() -> None:
    agent = container({})
    assert agent["resources"]["limits"]["memory"] == "2Gi"
    workers = int(environment(agent)["MOLECULE_HERMES_MAX_WORKERS"])
    assert workers * MIB_OF_A_WORKER <= 2048
    assert environment(container({"maxWorkers": 40}))["MOLECULE_HERMES_MAX_WORKERS"] == "40"


@pytest.mark.parametrize("drain", [0, 30, 600])
def test_kubernetes_waits_longer_than_the_drain_takes(drain: int) -> None:
    values = {"drainTimeout": drain}
    assert pod(values)["terminationGracePeriodSeconds"] > drain + AFTER_THE_DRAIN
    assert environment(container(values))["MOLECULE_HERMES_DRAIN_TIMEOUT"] == str(drain)


def test_the_pod_runs_without_privileges() -> None:
    user = int(re.search(r"^USER (\d+):\d+$", DOCKERFILE, re.M)[1])  # type: ignore[index]
    spec, agent = pod(), container()
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == spec["securityContext"]["fsGroup"] == user
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert agent["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_secrets_come_by_reference_only() -> None:
    agent = container({"secretName": "mine"})
    assert agent["envFrom"] == [{"secretRef": {"name": "mine"}}]
    assert not [name for name in environment(agent) if NAMES_OF_SECRETS.search(name)]


def test_a_service_of_its_own_name_does_not_set_its_port() -> None:
    """Kubernetes would set MOLECULE_HERMES_PORT=tcp://… for a Service molecule-hermes."""
    assert render(name="molecule-hermes")["Service"]["metadata"]["name"] == "molecule-hermes"
    assert pod()["enableServiceLinks"] is False


def test_every_setting_in_the_chart_is_one_the_bridge_knows() -> None:
    known = {str(field.alias) for field in Settings.model_fields.values()}
    assert set(environment(container())) <= known
    Settings.from_env(environment(container(VARIANTS["everything set"])))


def test_only_one_pod_at_a_time_mounts_the_volume() -> None:
    spec = render()["StatefulSet"]["spec"]
    assert spec["replicas"] == 1
    (claim,) = spec["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container()["volumeMounts"]}
    assert mounts[claim["metadata"]["name"]] == "/data"


def test_only_the_a2a_port_can_be_reached_and_only_from_the_namespace() -> None:
    policy = render()["NetworkPolicy"]["spec"]
    (rule,) = policy["ingress"]
    assert rule["from"] == [{"podSelector": {}}]
    assert [port["port"] for port in rule["ports"]] == ["a2a"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    assert container()["ports"] == [{"name": "a2a", "containerPort": 8000}]


@pytest.mark.parametrize(
    "wrong", [{"drainTimout": 5}, {"drainTimeout": "5s"}, {"secretName": ""}, {"publicUrl": "here"}]
)
def test_a_wrong_value_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with helm.Chart.load(CHART) as chart, pytest.raises(helm.HelmError, match=next(iter(wrong))):
        chart.validate_schema(chart.merge_values(wrong))


def test_the_chart_has_the_bridges_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__


def environment(agent: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in agent["env"]}
