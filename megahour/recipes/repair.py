"""`megahour verify --repair`: rebuilds the bad shards of an artifact, and only those.

They are rebuilt beside the artifact and compared with their receipts: only equal bytes replace damaged ones, so the
artifact gets back its original contents and digest, or stays unchanged.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from megahour.core.config import parse
from megahour.core.errors import ConfigError, DamagedError, MegahourError, StoreError
from megahour.core.locks import alone, check
from megahour.core.receipts import Manifest, Receipt, ReceiptsByShard
from megahour.core.store import Artifact
from megahour.core.transfer import is_local, publish, publish_lines, publish_text
from megahour.core.verify import agrees, known_receipts, verify, verify_book, verify_shard, verify_shards
from megahour.core.versions import versions
from megahour.recipes.recipe import EngineParams, Step, load_stage
from megahour.recipes.run import difference
from megahour.recipes.steps import make_engine, models_of
from megahour.runner.job import Job, Origin
from megahour.runner.monitor import Monitor
from megahour.runner.runner import (
    Planned,
    close,
    job_of,
    make_missing,
    planned,
    stage_fingerprint,
    with_layouts,
)
from megahour.runner.scratch import alone_at_work, claimed_by, clear, clear_durable

SHOWN = 20  # shard numbers in a message
SCRATCH = "tmp/repair"  # in the artifact's folder; a later repair reuses the shards of a killed one


@dataclass(frozen=True)
class Means:
    """Resources of a repair: the engine, the scratch folder, the number of threads, and the monitor."""

    engine: EngineParams
    work: Path | None
    threads: int
    monitor: Monitor


def origin_of(output: Artifact, addresses: Mapping[str, str], step: Step | None = None) -> Origin:
    """The origin of an artifact, from its manifest, or from its step if the manifest is damaged.

    addresses: of inputs, by role. Inputs that are missing there, or have changed, are searched for beside the output by
    the digests in the manifest.

    Raises
    ------
    StoreError: an input is gone; or the manifest is damaged, and there is no step or its job is another one.
    ConfigError: the code, the parameters or the source files have changed.
    """
    try:
        manifest = output.manifest
    except DamagedError as error:
        return _origin_of_step(output, step, error)
    stage = load_stage(manifest.stage)
    values = {key: value for key, value in manifest.params.items() if key in stage.params.model_fields}
    p = parse(stage.params, values, where=f"{output.url}: manifest, stage {stage.name}")
    inputs = {role: _input(output, role, digest, addresses) for role, digest in manifest.inputs.items()}
    if step is not None and step.stage.name == stage.name and step.params.identity() == manifest.params:
        p = step.params  # includes policy, such as how many machines train
    if stage_fingerprint(stage, p, inputs) != manifest.fingerprint:
        changed = difference(stage, p, manifest, inputs) or "its parameters changed"
        raise ConfigError(f"cannot be repaired: {changed}", where=output.url, remedy="delete it and run again")
    return Origin(stage, p, inputs, manifest.fingerprint)


def _origin_of_step(output: Artifact, step: Step | None, error: DamagedError) -> Origin:
    if step is None:
        raise StoreError(
            f"{error.message}; it held the parameters",
            where=output.url,
            remedy="repair it through its recipe, or run the stage's command again: finished shards are kept",
        )
    inputs = {role: Artifact(url) for role, url in step.inputs.items()}
    fingerprint = stage_fingerprint(step.stage, step.params, inputs)
    if claimed_by(output) != fingerprint:
        raise StoreError(f"{error.message}; its shards belong to another job", where=output.url, remedy=error.remedy)
    return Origin(step.stage, step.params, inputs, fingerprint)


def _input(output: Artifact, role: str, digest: str, addresses: Mapping[str, str]) -> Artifact:
    root = output.root.rpartition("/")[0]
    parent = output.url.rpartition("/")[0] if "://" in output.url else root
    names = [role, *sorted(Path(path).name for path in output.fs.ls(root, detail=False))]
    for url in [*([addresses[role]] if role in addresses else []), *(f"{parent}/{name}" for name in names)]:
        try:
            artifact = Artifact(url)
            if artifact.manifest.digest == digest:
                return artifact
        except MegahourError:  # not a readable artifact
            continue
    raise StoreError(
        f"cannot be repaired: its input {role} is gone; no artifact in the same folder has the digest {digest}",
        where=output.url,
        remedy=f"megahour verify --repair {output.url} inputs.{role}=URL",
    )


def repair(output: Artifact, origin: Origin, means: Means) -> list[str]:
    """Rebuild what is damaged; returns a list of what was done, empty if nothing was damaged.

    Raises
    ------
    StoreError: a run is writing the artifact, or rebuilt shards differ from their receipts; nothing is changed then.
    TaskFailed: a shard cannot be made.
    """
    with alone(output.fs, output.root, where=output.url) as owner:
        return _repaired(output, origin, means, owner)


def _repaired(output: Artifact, origin: Origin, means: Means, owner: str) -> list[str]:
    manifest = _manifest(output)
    job = job_of(origin, output, means.work, means.threads)
    making = origin
    if origin.stage.layouts(origin.params, origin.inputs):
        with make_engine(means.engine) as engine:
            making = with_layouts(origin, job, engine)
    plan = planned(making, job)
    receipts, sure = _receipts(output, manifest, origin.fingerprint, plan.shards)
    damaged = set(verify_shards(output, receipts.values()))
    bad = [shard for shard in range(plan.shards) if shard not in receipts or shard in damaged]
    scratch = Artifact(f"{output.url}/{SCRATCH}")
    done = []
    made = _make(scratch, making, means, plan, bad) if bad else ReceiptsByShard()
    _compare(output, manifest, receipts, made, sure)
    check(output.fs, output.root, owner, where=output.url, fresh=True)
    for shard, receipt in made.items():
        _publish(scratch, output, receipt)
        receipts[shard] = receipt
    _remove(scratch)
    clear_durable(output)
    if bad:
        done.append(f"rebuilt {_shards(bad)} of {plan.shards}")
    return done + _books(output, manifest, origin, receipts, replace(job, owner=owner))


def _manifest(output: Artifact) -> Manifest | None:
    try:
        return output.manifest
    except DamagedError:
        return None


def _receipts(
    output: Artifact, manifest: Manifest | None, fingerprint: str, total: int
) -> tuple[ReceiptsByShard, bool]:
    """Known receipts, and whether they are trusted: those of receipts.jsonl if they match the manifest's digest, else
    all that can be read, which the manifest's digest must confirm in the end."""
    if manifest is None:
        return known_receipts(output, fingerprint, total), True
    if manifest.shards != total:
        raise StoreError(
            f"cannot be repaired: it has {manifest.shards} shards, but the stage now plans {total}", where=output.url
        )
    try:
        listed = ReceiptsByShard(output.each_receipt())
    except DamagedError:
        listed = ReceiptsByShard()
    sure = agrees(manifest, listed)
    return (listed if sure else known_receipts(output, fingerprint, total)), sure


def _make(scratch: Artifact, origin: Origin, means: Means, plan: Planned, bad: list[int]) -> ReceiptsByShard:
    """Rebuild the bad shards in a scratch artifact, reusing shards that a killed repair left there."""
    made, wanted = ReceiptsByShard(), frozenset(bad)
    for shard in scratch.committed():
        receipt = scratch.receipt(shard)
        if (
            shard in wanted
            and receipt
            and receipt.fingerprint == origin.fingerprint
            and not verify_shard(scratch, receipt)
        ):
            made[shard] = receipt
        else:
            scratch.fs.rm_file(scratch.path(f"receipts/{shard:05d}.json"))
    done = frozenset(range(plan.shards)) - (wanted - frozenset(made))
    job = job_of(origin, scratch, means.work, means.threads)
    means.monitor.started(origin.stage.name, len(bad), len(made))
    models = models_of(means.engine)
    try:
        with alone_at_work(job.work), make_engine(means.engine) as engine:
            for receipt in make_missing(origin, job, engine, plan, done, means.monitor, models):
                made[receipt.shard] = receipt
                means.monitor.task_done(receipt)
            clear(Path(job.work))
    finally:
        means.monitor.stopped()
    return made


def _compare(
    output: Artifact,
    manifest: Manifest | None,
    receipts: ReceiptsByShard,
    made: ReceiptsByShard,
    sure: bool,
) -> None:
    """Raise StoreError, and delete the rebuilt shards, if they do not match the receipts and the manifest."""
    other = [shard for shard in made if shard in receipts and receipts[shard] != made[shard]]
    if not (other and sure) and (manifest is None or agrees(manifest, ChainMap(made, receipts))):
        return
    _remove(Artifact(f"{output.url}/{SCRATCH}"))
    if other:
        what = f"rebuilt {_shards(other)} {'differs from its receipt' if len(other) == 1 else 'differ'}{_since(output)}"
    else:
        what = "its receipts do not match the manifest"
    raise StoreError(
        f"cannot be repaired: {what}; nothing was changed",
        where=output.url,
        remedy="repair it with the versions that made it, or delete it and run again",
    )


def _since(output: Artifact) -> str:
    """Versions that changed since an artifact was made, for a message; "" if none did or none are known."""
    before = output.wall().get("made_with")
    known = before if isinstance(before, dict) else {}
    changed = [f"{name} {was} → {now}" for name, now in versions().items() if (was := known.get(name, now)) != now]
    return f" ({', '.join(changed)} since)" if changed else ""


def _publish(scratch: Artifact, output: Artifact, receipt: Receipt) -> None:
    """Move a shard into the artifact, its receipt last."""
    names = [f"shards/{receipt.shard:05d}{suffix}" for suffix in receipt.files]
    names += [f"quarantine/{receipt.shard:05d}.jsonl"] if receipt.counts.bad else []
    for name in names:
        if is_local(output.fs):
            publish(output.fs, Path(scratch.path(name)), output.path(name))
        else:
            output.fs.cp_file(scratch.path(name), output.path(name))
    publish_text(output.fs, output.path(f"receipts/{receipt.shard:05d}.json"), receipt.to_json())


def _books(
    output: Artifact, manifest: Manifest | None, origin: Origin, receipts: ReceiptsByShard, job: Job
) -> list[str]:
    """Rewrite receipts and manifest where they do not match the shards."""
    ordered = receipts.in_order()
    single = [receipt.shard for receipt in ordered if verify_book(output, receipt)]
    for shard in single:
        publish_text(output.fs, output.path(f"receipts/{shard:05d}.json"), receipts[shard].to_json())
    done = [f"rewrote the receipts of {_shards(single)}"] if single else []
    if manifest is None:
        close(origin, output, job, ordered)
        return [*done, "rewrote the manifest"]
    try:
        whole = all(one == other for one, other in zip_longest(output.each_receipt(), ordered))
    except DamagedError:
        whole = False
    if not whole:
        publish_lines(output.fs, output.path("receipts.jsonl"), (receipt.to_json() for receipt in ordered))
        done.append("rewrote receipts.jsonl")
    return done


def _remove(scratch: Artifact) -> None:
    if scratch.fs.exists(scratch.root):
        scratch.fs.rm(scratch.root, recursive=True)
    if is_local(scratch.fs):
        with suppress(OSError):  # it does not exist, or holds other scratch files
            Path(scratch.root).parent.rmdir()
    scratch.fs.invalidate_cache()


def _shards(numbers: Iterable[int]) -> str:
    listed = [str(number) for number in numbers]
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ("shard " if len(listed) == 1 else "shards ") + ", ".join(listed[:SHOWN]) + more


def blamed_input(output: Artifact, origin: Origin) -> str:
    """A line that names the first damaged input, for a failed repair; "" if all inputs are whole."""
    for role, artifact in origin.inputs.items():
        if problems := verify(artifact):
            return (
                f"{output.url}: cannot be repaired: its input {role} is damaged ({problems[0]}); "
                f"Remedy: megahour verify --repair {artifact.url}"
            )
    return ""
