"""What a configuration needs done, in which order, and what of it is there already.

As in Facebook's training application (2017), the pipeline follows the configuration: sources of weight 0 are not
trained, one source is not mixed, given weights are not tuned, and without pruning no model is re-estimated. What is
needed is skipped when its output is there with the same fingerprint, that of the step's parameters and of its inputs'
contents. A step behind one that runs is judged again when that is done: if it made what it had made before, the step
is skipped after all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from megahour.core.records import canonical_json, fingerprint
from megahour.lm.plan_config import PlanConfig, PruneSection, Source

VERSIONS = {"train": 1, "weights": 1, "mix": 1, "prune": 1, "evaluate": 1, "output": 1}
"""Raised by a change of what a kind of step writes."""

State = Literal["done", "run", "after", "unneeded"]


@dataclass(frozen=True)
class Step:
    """name: kind, or kind and subject. inputs: role → step whose output it reads; files: role → text or models that
    are given. output: file in the directory of the plan. unneeded: why the configuration does without it, or ""."""

    kind: str
    name: str
    output: str
    params: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, list[str]] = field(default_factory=dict)
    unneeded: str = ""


@dataclass(frozen=True)
class Verdict:
    """state: "after" is decided when another step has run. fingerprint: empty where it is not known yet."""

    step: Step
    state: State
    why: str
    fingerprint: str = ""


def source_role(name: str) -> str:
    """The role in which a step reads the model of a source."""
    return f"source {name}"


def steps(config: PlanConfig) -> list[Step]:
    """All steps in the order in which they run, with those that the configuration does without."""
    used = [name for name in config.sources if config.weights.get(name, 1.0) > 0 or len(config.sources) == 1]
    found = [_train(config, name, source, name in used) for name, source in config.sources.items()]
    models = {source_role(name): f"train {name}" for name in used if config.sources[name].text}
    given = {source_role(name): [config.sources[name].arpa] for name in used if config.sources[name].arpa}
    single = "there is one source" if len(used) == 1 else ""
    found.append(
        Step(
            "weights", "weights", "weights.json",
            {"sources": used, "unknown": config.unknown}, models, {**given, "heldout": config.heldout},
            single or ("the configuration gives them" if config.weights else ""),
        )
    )  # fmt: skip
    weights = {name: config.weights[name] for name in used} if config.weights else {}
    tuned = {} if weights or single else {"weights": "weights"}
    found.append(
        Step(
            "mix", "mix", "mixed.arpa",
            {"sources": used, "unknown": config.unknown, "weights": weights}, {**models, **tuned}, given, single,
        )
    )  # fmt: skip
    found += _ends(config, used, models, given)
    return found


def _train(config: PlanConfig, name: str, source: Source, used: bool) -> Step:
    why = "" if used else "its weight is 0"
    vocabulary = config.vocabulary.model_dump(exclude={"file"})
    files = {"text": source.text, "vocabulary": [config.vocabulary.file] if config.vocabulary.file else []}
    cutoffs = config.cutoffs if source.cutoffs is None else source.cutoffs
    params = {
        "order": source.order or config.order, "cutoffs": cutoffs, "vocabulary": vocabulary,
        "skip_symbols": config.skip_symbols,
    }  # fmt: skip
    if source.arpa:
        return Step("train", f"train {name}", source.arpa, unneeded=why or "its model is given")
    return Step("train", f"train {name}", f"{name}.source.arpa", params, {}, files, why)


def _ends(config: PlanConfig, used: list[str], models: dict[str, str], given: dict[str, list[str]]) -> list[Step]:
    """Pruning, evaluation and the final files, which follow the mixture or the only source."""

    def final(role: str, source: bool) -> tuple[dict[str, str], dict[str, list[str]]]:
        """Where the model before or after pruning comes from: a step, or a file that is given."""
        if config.prune and not source:
            return {role: "prune"}, {}
        if len(used) > 1:
            return {role: "mix"}, {}
        only = source_role(used[0])
        return ({role: models[only]}, {}) if models else ({}, {role: given[only]})

    inputs, files = final("model", True)
    history = _history(config.prune) if config.prune else {}
    params = config.prune.model_dump(exclude={"history", "history_text"}) if config.prune else {}
    why = "" if config.prune else "the configuration does not prune, so nothing is re-estimated"
    found = [Step("prune", "prune", "pruned.arpa", params, inputs, {**files, **history}, why)]
    inputs, files = final("final", False)
    why = "" if config.evaluate else "no text to evaluate on is given"
    mixed = {"mix": "mix"} if len(used) > 1 and config.prune else {}
    found.append(
        Step(
            "evaluate", "evaluate", "evaluation.json", {},
            {**models, **mixed, **inputs}, {**given, **files, "text": config.evaluate}, why,
        )
    )  # fmt: skip
    return found + [Step("output", f"output {name}", name, {"name": name}, inputs, files) for name in config.outputs]


def _history(prune: PruneSection) -> dict[str, list[str]]:
    found = {"history": [prune.history] if prune.history else [], "history_text": prune.history_text}
    return {role: files for role, files in found.items() if files}


class Plan:
    """Steps of a configuration, judged against what is in its directory."""

    def __init__(self, config: PlanConfig) -> None:
        self.config, self.steps = config, steps(config)
        self.folder = Path(config.out)
        self._digests: dict[str, str] = {}

    def verdicts(self) -> list[Verdict]:
        """What would happen to each step now.

        Raises ConfigError when a file that any of them needs is not there.
        """
        self._check_files()
        found: dict[str, Verdict] = {}
        for step in self.steps:
            waits = [name for name in step.inputs.values() if found[name].state in ("run", "after")]
            found[step.name] = self.judge(step, waits)
        return list(found.values())

    def judge(self, step: Step, waits: list[str] | None = None) -> Verdict:
        """`waits`: inputs that are made anew first."""
        if step.unneeded:
            return Verdict(step, "unneeded", step.unneeded)
        record = self._record(step)
        if record is None:
            return Verdict(step, "run", "not made yet", "" if waits else self._fingerprint(step, self._identity(step)))
        changed = _difference(record["identity"]["params"], dict(step.params))
        if waits and not changed:
            return Verdict(step, "after", f"if {', '.join(waits)} makes something else")
        if waits:
            return Verdict(step, "run", changed)
        identity = self._identity(step)
        made = self._fingerprint(step, identity)
        path, size = self.path(step), record["bytes"]
        if made != record["fingerprint"]:
            other = sorted(k for k, v in identity["inputs"].items() if record["identity"]["inputs"].get(k) != v)
            return Verdict(step, "run", changed or f"changed: {', '.join(other) or 'inputs or the program'}", made)
        if not path.is_file():
            return Verdict(step, "run", f"{path.name} is gone", made)
        if path.stat().st_size != size:
            return Verdict(step, "run", f"{path.name} has {path.stat().st_size:,} bytes, {size:,} were written", made)
        return Verdict(step, "done", "", made)

    def execute(self, work: Callable[[Plan, Step, Path], None], judged: Callable[[Verdict], None]) -> Iterator[Step]:
        """Run what is needed; yields each step that ran. work(plan, step, path) writes the step's output to a path;
        it becomes visible under its own name when whole, its record after it: a step that was killed runs again."""
        import fsspec

        from megahour.core.transfer import publish

        files = fsspec.filesystem("file")
        self._check_files()
        self.folder.mkdir(parents=True, exist_ok=True)
        for step in self.steps:
            verdict = self.judge(step)
            judged(verdict)
            if verdict.state != "run":
                continue
            scratch = self.folder / f".making.{step.output}"
            work(self, step, scratch)
            digest, size = _sha256(scratch), scratch.stat().st_size
            self._record_path(step).unlink(missing_ok=True)  # it tells of the output that is replaced now
            publish(files, scratch, str(self.path(step)))
            record = {
                "step": step.name, "fingerprint": verdict.fingerprint, "identity": self._identity(step),
                "bytes": size, "sha256": digest,
            }  # fmt: skip
            scratch.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", "utf-8")
            publish(files, scratch, str(self._record_path(step)))
            yield step

    def _check_files(self) -> None:
        """Digest all given files at once, so that a missing one is found before hours of work."""
        for step in self.steps:
            for sources in step.files.values() if not step.unneeded else ():
                self._digest(sources)

    def path(self, step: Step) -> Path:
        return self.folder / step.output

    def source(self, step: Step, role: str) -> Path:
        """The file that a step reads in a role."""
        if role in step.files:
            return Path(step.files[role][0])
        return self.path(self._step(step.inputs[role]))

    def _step(self, name: str) -> Step:
        return next(step for step in self.steps if step.name == name)

    def _record_path(self, step: Step) -> Path:
        return self.folder / f"{step.output}.step.json"

    def _record(self, step: Step) -> dict[str, Any] | None:
        path = self._record_path(step)
        if not path.is_file():
            return None
        try:
            record: dict[str, Any] = json.loads(path.read_text("utf-8"))
        except ValueError:  # damaged: the step runs again
            return None
        return record

    def _identity(self, step: Step) -> dict[str, Any]:
        made = {role: str((self._record(self._step(name)) or {}).get("sha256")) for role, name in step.inputs.items()}
        given = {role: self._digest(sources) for role, sources in step.files.items()}
        return {"params": dict(step.params), "inputs": {**made, **given}}

    def _fingerprint(self, step: Step, identity: dict[str, Any]) -> str:
        return fingerprint({"kind": step.kind, "version": VERSIONS[step.kind], **identity})

    def _digest(self, sources: list[str]) -> str:
        """Of the contents of given files; read once a plan."""
        from megahour.lm.text.sources import sources_digest

        key = canonical_json(sources)
        if key not in self._digests:
            self._digests[key] = sources_digest(sources)
        return self._digests[key]


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Which parameters changed, and how."""
    changed = [key for key in sorted({*old, *new}) if canonical_json(old.get(key)) != canonical_json(new.get(key))]
    return ", ".join(f"{key}: {canonical_json(old.get(key))} → {canonical_json(new.get(key))}" for key in changed)


def _sha256(path: Path) -> str:
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
