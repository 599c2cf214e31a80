"""`megahour verify --repair`: the bad shards of an artifact are made again, and no more.

They are made beside the artifact and compared with their receipts: only equal bytes replace what is damaged, so that
the artifact is what it was, digest and all, or stays as it is.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from megahour.cli.recipe import EngineParams, Step, load_stage
from megahour.cli.run import difference, make_engine, models_of
from megahour.core.config import parse
from megahour.core.errors import ConfigError, DamagedError, MegahourError, StoreError
from megahour.core.locks import alone, check
from megahour.core.receipts import Manifest, Receipt, ReceiptsByShard
from megahour.core.store import Artifact
from megahour.core.transfer import is_local, publish, publish_lines, publish_text
from megahour.core.verify import agrees, known_receipts, verify, verify_book, verify_shard, verify_shards
from megahour.core.versions import versions
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

SHOWN = 20  # numbers of shards in a message
SCRATCH = "tmp/repair"  # in the artifact's folder; what a killed repair has made there is used by the next


@dataclass(frozen=True)
class Means:
    """What a repair may use: where tasks run, where scratch files go, and how threads are counted."""

    engine: EngineParams
    work: Path | None
    threads: int
    monitor: Monitor


def origin_of(output: Artifact, addresses: Mapping[str, str], step: Step | None = None) -> Origin:
    """Find what made an artifact: from its manifest, or from its step where the manifest is damaged.

    addresses: of inputs, by role. Those that are not given, or are other artifacts by now, are looked for beside the
    output, by the digests that the manifest names.

    Raises
    ------
    StoreError: an input is gone, or the manifest is damaged and there is no step, or one of another job.
    ConfigError: the code, the parameters or the files that are read changed.
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
        p = step.params  # with what is policy, such as how many machines train
    if stage_fingerprint(stage, p, inputs) != manifest.fingerprint:
        changed = difference(stage, p, manifest, inputs) or "its parameters changed"
        raise ConfigError(f"cannot be repaired: {changed}", where=output.url, remedy="delete it and run again")
    return Origin(stage, p, inputs, manifest.fingerprint)


def _origin_of_step(output: Artifact, step: Step | None, error: DamagedError) -> Origin:
    if step is None:
        raise StoreError(
            f"{error.message}; the parameters were in it",
            where=output.url,
            remedy="repair it by its recipe, or run the stage's command again: the finished shards are kept",
        )
    inputs = {role: Artifact(url) for role, url in step.inputs.items()}
    fingerprint = stage_fingerprint(step.stage, step.params, inputs)
    if claimed_by(output) != fingerprint:
        raise StoreError(f"{error.message}; its shards are of another job", where=output.url, remedy=error.remedy)
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
        except MegahourError:  # no artifact, or none that can be read
            continue
    raise StoreError(
        f"cannot be repaired: its input {role} is gone, no artifact beside it has the digest {digest}",
        where=output.url,
        remedy=f"megahour verify --repair {output.url} inputs.{role}=URL",
    )


def repair(output: Artifact, origin: Origin, means: Means) -> list[str]:
    """Make what is bad again; the list of what was done, empty when nothing was bad.

    Raises
    ------
    StoreError: a run writes the artifact, or the shards that were made again have other bytes than their receipts say;
        nothing is changed then.
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
        done.append(f"{_shards(bad)} of {plan.shards} made again")
    return done + _books(output, manifest, origin, receipts, replace(job, owner=owner))


def _manifest(output: Artifact) -> Manifest | None:
    try:
        return output.manifest
    except DamagedError:
        return None


def _receipts(
    output: Artifact, manifest: Manifest | None, fingerprint: str, total: int
) -> tuple[ReceiptsByShard, bool]:
    """Receipts of the shards that are known, and whether each is to be believed: receipts.jsonl alone where the
    manifest's digest is its own; else what can be read, which the manifest's digest decides on in the end."""
    if manifest is None:
        return known_receipts(output, fingerprint, total), True
    if manifest.shards != total:
        raise StoreError(f"cannot be repaired: it has {manifest.shards} shards, {total} are planned", where=output.url)
    try:
        listed = ReceiptsByShard(output.each_receipt())
    except DamagedError:
        listed = ReceiptsByShard()
    sure = agrees(manifest, listed)
    return (listed if sure else known_receipts(output, fingerprint, total)), sure


def _make(scratch: Artifact, origin: Origin, means: Means, plan: Planned, bad: list[int]) -> ReceiptsByShard:
    """The bad shards, made into an artifact of their own; those that a killed repair has left there are used."""
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
        with alone_at_work(job), make_engine(means.engine) as engine:
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
    """Raise StoreError, and drop what was made, when it is not what the books say."""
    other = [shard for shard in made if shard in receipts and receipts[shard] != made[shard]]
    if not (other and sure) and (manifest is None or agrees(manifest, ChainMap(made, receipts))):
        return
    _remove(Artifact(f"{output.url}/{SCRATCH}"))
    if other:
        what = f"{_shards(other)} came out other than the receipt says{_since(output)}"
    else:
        what = "its receipts are not those that the manifest was made of"
    raise StoreError(
        f"cannot be repaired: {what}; nothing was changed",
        where=output.url,
        remedy="repair it with the versions that made it, or delete it and run again",
    )


def _since(output: Artifact) -> str:
    """Versions that changed since an artifact was made, for a message; "" when none did, or none are known."""
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
    """Write the books again that are not those of the shards."""
    ordered = receipts.in_order()
    single = [receipt.shard for receipt in ordered if verify_book(output, receipt)]
    for shard in single:
        publish_text(output.fs, output.path(f"receipts/{shard:05d}.json"), receipts[shard].to_json())
    done = [f"receipts of {_shards(single)} written again"] if single else []
    if manifest is None:
        close(origin, output, job, ordered)
        return [*done, "the manifest made again"]
    try:
        whole = all(one == other for one, other in zip_longest(output.each_receipt(), ordered))
    except DamagedError:
        whole = False
    if not whole:
        publish_lines(output.fs, output.path("receipts.jsonl"), (receipt.to_json() for receipt in ordered))
        done.append("receipts.jsonl written again")
    return done


def _remove(scratch: Artifact) -> None:
    if scratch.fs.exists(scratch.root):
        scratch.fs.rm(scratch.root, recursive=True)
    if is_local(scratch.fs):
        with suppress(OSError):  # another's scratch files are in it, or it is not there
            Path(scratch.root).parent.rmdir()
    scratch.fs.invalidate_cache()


def _shards(numbers: Iterable[int]) -> str:
    listed = [str(number) for number in numbers]
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ("shard " if len(listed) == 1 else "shards ") + ", ".join(listed[:SHOWN]) + more


def blamed_input(output: Artifact, origin: Origin) -> str:
    """The first input that is damaged, in a line for a repair that failed; "" when all are whole."""
    for role, artifact in origin.inputs.items():
        if problems := verify(artifact):
            return (
                f"{output.url}: cannot be repaired: its input {role} is damaged ({problems[0]}); "
                f"Remedy: megahour verify --repair {artifact.url}"
            )
    return ""
