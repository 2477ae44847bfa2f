"""The files of deploy/ and the Dockerfile fit the command line and the routes; the image is built where that works."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from bertvision.cli import app
from bertvision.serving.admission import HEALTH_PATHS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
KUBERNETES = {
    f"{path.name}-{document['kind']}": document
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
}
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["bertvision"]
CONTAINER: dict[str, Any] = KUBERNETES["deployment.yaml-Deployment"]["spec"]["template"]["spec"]["containers"][0]
POD: dict[str, Any] = KUBERNETES["deployment.yaml-Deployment"]["spec"]["template"]["spec"]


def options(words: list[str]) -> dict[str, str]:
    """Return the options of a command line; they must be those of `bertvision serve`."""
    command = typer.main.get_command(app).commands["serve"]
    known = {name for parameter in command.params for name in parameter.opts}
    found = dict(zip(words[1::2], words[2::2], strict=True))
    assert set(found) <= known, words
    return found


@pytest.mark.parametrize(
    ("words", "grace"),
    [
        (CONTAINER["args"], POD["terminationGracePeriodSeconds"]),
        (COMPOSE["command"], int(COMPOSE["stop_grace_period"].removesuffix("s"))),
    ],
    ids=["kubernetes", "compose"],
)
def test_a_server_has_time_to_answer_before_it_is_killed(words, grace):
    found = options(words)
    assert grace >= float(found["--drain"]) + float(found["--timeout"]) + 5


def test_probes_are_routes_without_a_key_and_ports_agree():
    (port,) = CONTAINER["ports"]
    assert re.search(r"^EXPOSE (\d+)$", DOCKERFILE, flags=re.M)[1] == str(port["containerPort"])
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert CONTAINER[probe]["httpGet"]["path"] in HEALTH_PATHS
        assert CONTAINER[probe]["httpGet"]["port"] == port["name"]
    assert CONTAINER["livenessProbe"]["httpGet"]["path"] == "/livez"  # a server that drains must not be restarted
    assert KUBERNETES["service.yaml-Service"]["spec"]["ports"][0]["targetPort"] == port["name"]


def test_selectors_names_and_threads_agree():
    deployment = KUBERNETES["deployment.yaml-Deployment"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert KUBERNETES["service.yaml-Service"]["spec"]["selector"] == labels
    assert KUBERNETES["service.yaml-PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    scaled = KUBERNETES["autoscaling.yaml-HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert (scaled["kind"], scaled["name"]) == ("Deployment", deployment["metadata"]["name"])
    claims = {
        volume["persistentVolumeClaim"]["claimName"]
        for volume in POD["volumes"]
        if len(volume) == 2 and "emptyDir" not in volume
    }
    assert claims == {KUBERNETES["service.yaml-PersistentVolumeClaim"]["metadata"]["name"]}
    threads = {entry["name"]: entry.get("value") for entry in CONTAINER["env"]}["OMP_NUM_THREADS"]
    assert threads == CONTAINER["resources"]["limits"]["cpu"] == CONTAINER["resources"]["requests"]["cpu"]
    assert COMPOSE["environment"]["OMP_NUM_THREADS"] == COMPOSE["deploy"]["resources"]["limits"]["cpus"]
    assert re.search(r"--uid (\d+)", DOCKERFILE)[1] == str(POD["securityContext"]["runAsUser"])


BUILDERS = [name for name in ("docker", "podman", "buildah") if shutil.which(name)]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_image_is_built_and_serves_help():
    """Needs a builder that works, and the base image. BUILD_ARGS: further arguments of the build, by spaces."""
    base = re.search(r"^FROM (\S+) AS build$", DOCKERFILE, flags=re.M)[1]
    usable = [
        name for name in BUILDERS if _succeeds(name, "inspect" if name == "buildah" else "image", *_inspect(name, base))
    ]
    usable = usable or [name for name in BUILDERS if _succeeds(name, "pull", base)]
    if not usable:
        pytest.skip(f"none of {BUILDERS or 'docker, podman, buildah'} can get {base} here")
    arguments = os.environ.get("BUILD_ARGS", "").split()
    subprocess.run([usable[0], "build", *arguments, "-t", "bertvision:test", str(ROOT)], check=True, timeout=3000)
    if usable[0] == "buildah":
        made = subprocess.run(["buildah", "from", "bertvision:test"], check=True, capture_output=True, text=True)
        words = ["buildah", "run", made.stdout.strip(), "bertvision", "serve", "--help"]
    else:
        words = [usable[0], "run", "--rm", "bertvision:test", "--help"]
    assert "--max-queue-tokens" in subprocess.run(words, check=True, capture_output=True, text=True).stdout


def _inspect(name: str, image: str) -> list[str]:
    return ["--type", "image", image] if name == "buildah" else ["inspect", image]


def _succeeds(*words: str) -> bool:
    return subprocess.run(words, capture_output=True, timeout=600).returncode == 0
