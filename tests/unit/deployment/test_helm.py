"""Helm values and manifests: of the locked Airflow, a worker set for each profile, fields that Kubernetes knows."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from tests.unit.deployment.test_images import DOCKER, ROOT, SERVICES, locked
from warmup_tasks.airflow.routing import route
from warmup_tasks.settings import load_profiles

HELM = DOCKER / "helm"
PROFILES = load_profiles(ROOT / "include" / "profiles.yaml")
KINDS = {"Pod": client.V1Pod, "Deployment": client.V1Deployment, "Service": client.V1Service}
PODS = {profile.name: Path(route(profile)["executor_config"]["pod_template_file"]) for profile in PROFILES}
MANIFESTS = [HELM / "agent.yaml", *PODS.values()]


def values(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((HELM / name).read_text()))


def pod_of(profile: str) -> dict[str, Any]:
    return dict(yaml.safe_load(PODS[profile].read_text())["spec"])


def unknown_fields(found: Any, kind: str, where: str) -> list[str]:
    """Names that Kubernetes' own model of a kind does not have."""
    if kind.startswith("list["):
        return [
            problem for n, part in enumerate(found) for problem in unknown_fields(part, kind[5:-1], f"{where}[{n}]")
        ]
    model = getattr(client, kind, None)
    if model is None:
        return []
    known = {there: model.openapi_types[here] for here, there in model.attribute_map.items()}
    problems = [f"{where}.{name}" for name in found if name not in known]
    for name, part in found.items():
        problems += unknown_fields(part, known[name], f"{where}.{name}") if name in known else []
    return problems


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_manifests_have_only_fields_that_kubernetes_knows(path: Path) -> None:
    for manifest in yaml.safe_load_all(path.read_text()):
        assert unknown_fields(manifest, KINDS[manifest["kind"]].__name__, path.stem) == []
    broken = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "base", "volumeMount": []}]}}
    assert unknown_fields(broken, "V1Pod", "pod") == ["pod.spec.containers[0].volumeMount"]


def test_the_chart_runs_the_locked_airflow() -> None:
    assert values("values.yaml")["airflowVersion"] == locked("control-plane.txt")["apache-airflow"]


def test_celery_has_a_worker_set_for_every_queue() -> None:
    celery = values("values-celery.yaml")["workers"]["celery"]
    sets = {one["queue"]: one for one in celery["sets"]}
    assert celery["enableDefault"]
    assert set(sets) == {profile.queue for profile in PROFILES}
    for profile in PROFILES:
        assert sets[profile.queue]["nodeSelector"] == pod_of(profile.name)["nodeSelector"]


def test_each_executor_has_its_values() -> None:
    assert values("values-celery.yaml")["executor"] == "CeleryExecutor"
    assert values("values-kubernetes.yaml")["executor"] == "KubernetesExecutor"
    assert "apache-airflow-providers-cncf-kubernetes" in locked("kubernetes.txt")


def test_chart_pods_and_agent_read_the_same_site() -> None:
    deployment = next(yaml.safe_load_all((HELM / "agent.yaml").read_text()))["spec"]["template"]["spec"]
    chart = values("values.yaml")
    shared = yaml.safe_load(chart["extraEnvFrom"])
    for spec in (deployment, *(pod_of(profile.name) for profile in PROFILES)):
        sources = [next(iter(source.values()))["name"] for source in spec["containers"][0]["envFrom"]]
        assert sources == ["warmup-site", "warmup-secrets"]
        assert set(sources) <= {next(iter(source.values()))["name"] for source in shared}
        assert [volume["name"] for volume in spec["volumes"]] == [volume["name"] for volume in chart["volumes"]]
        assert spec["containers"][0]["volumeMounts"] == chart["volumeMounts"]


def test_the_agent_runs_as_in_the_compose_file_and_only_once() -> None:
    deployment, service = yaml.safe_load_all((HELM / "agent.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["command"] == SERVICES["agent"]["command"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/healthz"
    assert deployment["spec"]["replicas"] == 1
    assert service["spec"]["ports"][0]["port"] == container["ports"][0]["containerPort"]


def test_no_secret_stands_in_a_value() -> None:
    for path in HELM.rglob("*.yaml"):
        assert not [word for word in ("password:", "token:", "stringData:") if word in path.read_text().lower()], path
