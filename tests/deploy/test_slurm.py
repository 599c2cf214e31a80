"""The scripts for Slurm, on a cluster of two nodes on loopback: Debian's slurm-wlm, without its munge."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from loopback import free_port
from made_artifacts import utterances
from trainings import trained, training_data, until

from megahour.core.store import Artifact

SCRIPTS = Path(__file__).parents[2] / "deploy" / "slurm"
NEEDED = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue")
pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(not all(map(shutil.which, NEEDED)), reason="needs Slurm: on Debian, apt install slurm-wlm"),
    pytest.mark.skipif(os.getuid() != 0, reason="slurmd has to be root"),
]

# One machine plays two; jobs are ended after 2 s, and a requeued one may begin after 5 s instead of two minutes.
CONF = """\
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/%n.spool
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=bf_interval=1
KillWait=2
ReturnToService=2
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE
"""
SETTINGS: dict[str, Any] = {
    **{"hidden": 8, "layers": 1, "batch_frames": 120, "learning_rate": 1e-2, "final_learning_rate": 1e-3, "rows": 4},
    **{"threads": 1, "epochs": 40, "whole_epochs": 1, "tensorboard": False, "checkpoint_s": 1.0, "held_out": 0.2},
}


class Cluster:
    """Commands of Slurm, for one cluster."""

    def __init__(self, conf: Path) -> None:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        project = os.pathsep.join([str(SCRIPTS.parents[1]), os.environ["PYTHONPATH"]])
        self.environment = {**os.environ, "SLURM_CONF": str(conf), "PATH": path, "PYTHONPATH": project}
        self.environment |= {"FIRST": "127.0.0.1", "PORT": str(free_port())}

    def say(self, *command: str) -> str:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def submit(self, script: str, log: Path, *arguments: str) -> str:
        return self.say("sbatch", "--parsable", f"--output={log}", str(SCRIPTS / script), *arguments)

    def state(self, job: str) -> str:
        words = self.say("scontrol", "show", "job", job).split()
        return next(word.removeprefix("JobState=") for word in words if word.startswith("JobState="))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "n1.spool", "n2.spool"):
        (folder / name).mkdir()
    host = os.uname().nodename.partition(".")[0]
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(folder=folder, host=host, ports=[free_port() for _ in range(3)]))
    slurm = Cluster(conf)
    node = ["slurmd", "-D", "-f", str(conf), "-N"]
    commands = [["slurmctld", "-D", "-f", str(conf)], [*node, "n1"], [*node, "n2"]]
    with (folder / "daemons.log").open("wb") as log:
        daemons = [subprocess.Popen(c, env=slurm.environment, stdout=log, stderr=log) for c in commands]
    try:
        until(lambda: two_idle(slurm), 60)
        yield slurm
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(20)


def two_idle(slurm: Cluster) -> bool:
    return slurm.say("sinfo", "--noheader", "--states=idle", "--format=%D") == "2"


def recipe_of(folder: Path, inputs: dict[str, Artifact], **values: Any) -> Path:
    urls = {role: artifact.url for role, artifact in inputs.items()}
    step = {"stage": "train", "inputs": urls, **SETTINGS, **values}
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump({"engine": {"workers": 1}, "steps": {"student": step}}))
    return path


def checkpoint(run: Path) -> list[Path]:
    return list(run.glob(".work/*/checkpoints/*/checkpoint.json"))


def disturbed(slurm: Cluster, job: str, run: Path, log: Path, disturb: list[str]) -> str:
    """The output of a job that was disturbed after its first checkpoint, once it has ended."""
    until(lambda: checkpoint(run), 120)
    slurm.say(*disturb)
    until(lambda: "turn 1" in log.read_text(), 60)
    assert not Artifact(run / "student").complete, "it was through before it was disturbed"
    until(lambda: slurm.state(job) not in ("PENDING", "RUNNING", "COMPLETING"), 200)
    assert slurm.state(job) == "COMPLETED", log.read_text()
    return log.read_text()


def model_of(run: Path) -> bytes:
    return Artifact(run / "student").read_bytes(0, ".safetensors")


def test_a_run_whose_time_is_up_resumes_in_its_next_turn(cluster: Cluster, tmp_path: Path) -> None:
    """The signal that `--signal` asks for before the time limit, sent by hand: Slurm's limits are minutes."""
    inputs = training_data(tmp_path, utterances(60, speakers=6), shards=2)
    expected, _ = trained(tmp_path / "undisturbed", inputs, SETTINGS)
    run, log = tmp_path / "run", tmp_path / "log"
    job = cluster.submit("run.sbatch", log, str(recipe_of(tmp_path, inputs)), f"run={run}")
    text = disturbed(cluster, job, run, log, ["scancel", "--batch", "--signal=USR1", job])
    assert "turn 0" in text
    assert "Stopped by SIGTERM. Kept in" in text
    assert model_of(run) == expected


def test_a_training_on_two_nodes_that_is_killed_and_requeued_ends_with_the_same_bytes(
    cluster: Cluster, tmp_path: Path
) -> None:
    inputs = training_data(tmp_path, utterances(60, speakers=6), shards=2)
    together = {"workers": 2, "lanes": 2}  # two nodes have a lane for each worker
    expected, _ = trained(tmp_path / "undisturbed", inputs, {**SETTINGS, **together})
    run, log = tmp_path / "run", tmp_path / "log"
    recipe = recipe_of(tmp_path, inputs, workers=2, min_nodes=2)
    job = cluster.submit("train.sbatch", log, "student", str(recipe), f"run={run}")
    text = disturbed(cluster, job, run, log, ["scontrol", "requeue", job])
    assert "turn 0 on n[1-2]" in text
    assert "turn 1 on n[1-2]" in text
    assert model_of(run) == expected


def test_a_job_that_is_cancelled_stays_so(cluster: Cluster, tmp_path: Path) -> None:
    inputs = training_data(tmp_path, utterances(60, speakers=6), shards=2)
    run, log = tmp_path / "run", tmp_path / "log"
    job = cluster.submit("run.sbatch", log, str(recipe_of(tmp_path, inputs, epochs=4000)), f"run={run}")
    until(lambda: checkpoint(run), 120)
    cluster.say("scancel", job)
    until(lambda: cluster.state(job) == "CANCELLED", 30)
    time.sleep(7)  # a requeued one would begin by now
    assert cluster.state(job) == "CANCELLED"
