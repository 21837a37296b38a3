"""The manifests for Kubernetes are valid, and run what docker-compose.yml and the local stack run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from api.settings import ApiSettings
from services.kafka.settings import ServiceSettings
from services.stack.description import supervisor_command

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "kubernetes"
OLDEST = "1.29"
"""The oldest version of Kubernetes whose schemas they must match, beside the newest that is known."""

DATA = "/var/lib/boreal"


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(MANIFESTS.glob("**/*.yaml")):
        if path.name != "kustomization.yaml":
            for document in yaml.safe_load_all(path.read_text()):
                yield f"{path.stem}-{document['kind']}-{document['metadata']['name']}", document


DOCUMENTS = dict(documents())
KUSTOMIZATION = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())
SETTINGS = dict(literal.split("=", 1) for literal in KUSTOMIZATION["configMapGenerator"][0]["literals"])
WITH_WORKERS = yaml.safe_load((MANIFESTS / "workers" / "kustomization.yaml").read_text())
COMPOSE_WITH_WORKERS = yaml.safe_load((ROOT / "docker-compose.workers.yml").read_text())["services"]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
PODS = {
    name: document["spec"]["template"]["spec"] for name, document in DOCUMENTS.items() if "template" in document.get("spec", {})
}


def container(name: str) -> dict[str, Any]:
    [found] = next(pod["containers"] for title, pod in PODS.items() if title.endswith(f"-{name}"))
    return found


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_each_document_is_valid(name: str, version: str) -> None:
    kubernetes_validate.validate(DOCUMENTS[name], version, strict=True)


def test_a_document_with_a_misspelt_field_is_not_valid() -> None:
    broken = {**DOCUMENTS["api-Service-api"], "spec": {"selectr": {"a": "b"}}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, OLDEST, strict=True)


def test_all_files_are_applied() -> None:
    for folder, kustomization in {MANIFESTS: KUSTOMIZATION, MANIFESTS / "workers": WITH_WORKERS}.items():
        files = sorted(path.name for path in folder.glob("*.yaml") if path.name != "kustomization.yaml")
        assert sorted(name for name in kustomization["resources"] if name != "../") == files
    assert WITH_WORKERS["resources"][0] == "../" and WITH_WORKERS["images"] == KUSTOMIZATION["images"]


def test_workers_join_the_site_of_a_supervisor_that_places_its_roles_in_them() -> None:
    [patch] = WITH_WORKERS["patches"]
    [change] = yaml.safe_load(patch["patch"])
    assert patch["target"] == {"kind": "StatefulSet", "name": "supervisor-a"}
    assert change["path"] == "/spec/template/spec/containers/0/command"
    assert change["value"] == [*container("supervisor-a")["command"][:-1], "joined"]
    assert container("worker-a")["command"] == COMPOSE_WITH_WORKERS["worker-a"]["command"]
    assert container("worker-a")["envFrom"] == container("supervisor-a")["envFrom"]


def test_the_settings_are_known_and_those_of_a_supervisor_in_compose(monkeypatch: pytest.MonkeyPatch) -> None:
    in_compose = {name for name in COMPOSE["supervisor-a"]["environment"] if "SITES__B" not in name}
    assert SETTINGS.keys() == {*in_compose, "BOREAL_LOG_FORMAT"}
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    settings = ServiceSettings()  # type: ignore[call-arg]
    assert settings.site_names == ("a",) and str(settings.data) == DATA


def test_the_supervisor_is_started_as_the_local_one_is() -> None:
    _, *common = (part for part in supervisor_command(allow_chaos=False) if part != "--local")
    assert container("supervisor-a")["command"] == ["python", *common, "--site", "a", "--workers", "2"]


def test_the_api_runs_as_in_compose_and_its_probe_has_a_host_that_it_accepts() -> None:
    api = container("api")
    assert api["command"] == COMPOSE["api"]["command"]
    own = {entry["name"].removeprefix("BOREAL_API__").lower(): yaml.safe_load(entry["value"]) for entry in api["env"]}
    ApiSettings(**own).check()
    for probe in (api["readinessProbe"], api["livenessProbe"]):
        assert probe["httpGet"]["path"] == "/healthz"
        assert probe["httpGet"]["httpHeaders"][0]["value"] in own["hosts"]


def test_spark_runs_as_in_compose() -> None:
    assert container("spark-master")["command"] == COMPOSE["spark-master"]["command"]
    ours, theirs = container("spark-worker")["command"], COMPOSE["spark-worker"]["command"]
    assert [part for part in ours if part not in ("4", "4g")] == [part for part in theirs if part not in ("8", "8g")]
    assert theirs[-1] == SETTINGS["BOREAL_SPARK__MASTER"]


@pytest.mark.parametrize("name", PODS)
def test_each_pod_may_run_where_only_restricted_ones_may_and_finds_its_data(name: str) -> None:
    """By the pod security standard that the namespace enforces."""
    assert DOCUMENTS["namespace-Namespace-boreal"]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    pod = PODS[name]
    match = re.search(r"useradd .*--uid (\d+) boreal", (ROOT / "Dockerfile").read_text())
    assert match is not None
    user = int(match[1])
    assert pod["securityContext"] == {
        "runAsNonRoot": True, "runAsUser": user, "fsGroup": user, "seccompProfile": {"type": "RuntimeDefault"}
    }  # fmt: skip
    [only] = pod["containers"]
    assert only["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert only["image"] == "boreal" and "memory" in only["resources"]["limits"]
    assert all(mount["mountPath"].startswith(DATA) for mount in only.get("volumeMounts", ()))
    made = {claim["metadata"]["name"] for claim in DOCUMENTS[name]["spec"].get("volumeClaimTemplates", ())}
    made |= {volume["name"] for volume in pod.get("volumes", ())}
    assert {mount["name"] for mount in only.get("volumeMounts", ())} == made
