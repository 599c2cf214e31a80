"""`megahour verify`: re-reads an artifact, a recipe's artifacts or a bundle, and repairs artifacts if asked."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from megahour.core.config import parse
from megahour.core.errors import ConfigError, MegahourError, StoreError, nearest
from megahour.core.filesystems import work_beside, work_in
from megahour.core.store import RESOLVED, Artifact
from megahour.core.surroundings import explaining
from megahour.core.verify import verify
from megahour.recipes.recipe import EngineParams, Recipe, Step, load_recipe
from megahour.recipes.recipe_text import put, section
from megahour.recipes.repair import Means, blamed_input, origin_of, repair
from megahour.recipes.run import alone_in, resumable
from megahour.recipes.shipped import names
from megahour.recipes.steps import make_engine
from megahour.runner.job import Origin
from megahour.runner.progress import TerminalMonitor
from megahour.transcribe.bundle import Bundle
from megahour.transcribe.bundle_files import MANIFEST as BUNDLE
from megahour.transcribe.bundle_files import BundleFolder
from megahour.transcribe.parts import steps_of_run
from megahour.tts.voice_bundle import VoiceBundle, is_voice

FEW_SHARDS = 64  # at most this many are verified without an engine


@dataclass(frozen=True)
class _Target:
    """An artifact to verify, with its inputs' addresses and its step, if known."""

    url: str
    means: Means
    addresses: dict[str, str]
    step: Step | None = None


def verify_targets(target: str, overrides: Sequence[str], *, repairing: bool) -> list[str]:
    """Verify an artifact, or those of a recipe or of a run's folder, inputs first; returns the remaining problems.

    overrides: of the recipe; for repairs of a single artifact, `inputs.ROLE=URL`, `engine.KEY=VALUE` and `threads=N`.
    Raises ConfigError: no such recipe, one file of an artifact, or an override of an unknown name.
    """
    shipped = target in names() and not Path(target).exists()
    yaml = target.endswith((".yaml", ".yml"))
    if not yaml and Path(target).is_file() and (folder := _folder_of(Path(target))) is not None:
        what, remedy = "one file of a folder, which is verified whole", shlex.join(["megahour", "verify", str(folder)])
        raise ConfigError(what, where=target, remedy=remedy)
    if shipped or yaml or Path(target).is_file():
        recipe = load_recipe(target, overrides)
        targets, home, whole = _of_recipe(recipe), recipe.run, True
    else:
        made, home = _artifacts_of_run(target), target
        targets, whole = [_of_artifact(url, overrides, repairing) for url in made or [target]], bool(made)
    if not repairing:
        return [problem for one in targets for problem in _examined(one)]
    of_run = alone_in(home) if whole and Path(home).is_dir() else nullcontext()
    with resumable(home, lambda: "the shards rebuilt so far"), of_run:
        return [problem for one in targets for problem in _repaired(one)]


def _folder_of(file: Path) -> Path | None:
    """The artifact or the bundle that a file is a part of, if it is."""
    marks = ("manifest.json", BUNDLE)
    return next((folder for folder in file.absolute().parents[:2] if any((folder / m).is_file() for m in marks)), None)


def verify_bundle(url: str, digest: str) -> None:
    """Check a bundle against its manifest, a recogniser by its golden clips, too, and the digest unless that is empty.

    Raises StoreError: it differs. An attacker could change the manifest along with a file, but the digest would change.
    """
    bundle: BundleFolder[Any] = VoiceBundle.open(url) if is_voice(url) else Bundle.open(url)
    if digest and digest.lower() != bundle.digest:
        what = f"the bundle has the digest {bundle.digest}, not {digest[:80]}"
        raise StoreError(what, where=url, remedy="do not use it; copy the bundle again from its source")
    problems, played = bundle.problems(), ""
    if isinstance(bundle, Bundle) and not problems and find_spec("onnxruntime") and find_spec("torch"):
        from megahour.export.replay import replayed

        problems = [f"{url}/{problem}" for problem in replayed(bundle)]
        played = f", {len(bundle.manifest.golden)} golden clips agree"
    if problems:
        more = f", and {len(problems) - 1} more" if problems[1:] else ""
        raise StoreError(problems[0] + more, where=url, remedy="copy the bundle again, or export it again")
    click.echo(f"ok  {url}{played}, digest {bundle.digest}")


def _of_recipe(recipe: Recipe) -> list[_Target]:
    work = work_in(recipe.run)
    return [
        _Target(
            step.output,
            Means(recipe.engine, work, recipe.threads, TerminalMonitor(step=step.name)),
            dict(step.inputs),
            step,
        )
        for step in recipe.steps
    ]


def _artifacts_of_run(url: str) -> list[str]:
    """The addresses of a run's artifacts, in the order of its recipe; none if this is not the folder of a run."""
    home = Artifact(url)
    with explaining(url):
        is_run = not home.complete and home.fs.exists(home.path(RESOLVED))
        return [f"{url.rstrip('/')}/{step}" for step in steps_of_run(home)] if is_run else []


def _of_artifact(url: str, overrides: Sequence[str], repairing: bool) -> _Target:
    data: dict[str, Any] = {}
    known = ("inputs", "engine", "threads")
    for override in overrides:
        key = override.partition("=")[0]
        if not repairing or key.split(".")[0] not in known:
            remedy = f"with --repair: {', '.join(known)}, e.g. inputs.recordings=URL" if repairing else "leave it out"
            raise ConfigError(
                f"override {key}: {url} is not a recipe{nearest(key.split('.')[0], known)}", remedy=remedy
            )
        put(data, override)
    engine = parse(EngineParams, section(data, "engine", url), where="engine", remedy="megahour run --help")
    addresses = {role: str(address) for role, address in section(data, "inputs", url).items()}
    threads = data.get("threads", 2)
    if not isinstance(threads, int) or threads < 1:
        raise ConfigError(f"threads = {threads!r} is not a whole number of at least 1")
    work = work_beside(url)
    return _Target(url, Means(engine, work, threads, TerminalMonitor()), addresses)


def _examined(target: _Target) -> list[str]:
    url, artifact = target.url, Artifact(target.url)
    with explaining(url):
        problems = _verified(artifact, target) if artifact.complete else [f"{url}: no manifest: missing or unfinished"]
    click.echo(f"{'BAD' if problems else 'ok '} {url}")
    return problems


def _verified(artifact: Artifact, target: _Target) -> list[str]:
    """Verify large artifacts with the engine; for small ones its start would take longer than the reading."""
    made = artifact.made
    if made is None or made.shards <= FEW_SHARDS:
        return verify(artifact)
    with make_engine(target.means.engine) as engine:
        return verify(artifact, engine)


def _repaired(target: _Target) -> list[str]:
    """Verify an artifact, repair it, and verify it again; returns the remaining problems."""
    output = Artifact(target.url)
    problems = _examined(target)
    if not problems or not output.complete:
        return problems
    origin: Origin | None = None
    try:
        origin = origin_of(output, target.addresses, target.step)
        done = repair(output, origin, target.means)
    except Exception as error:
        if blamed := blamed_input(output, origin) if origin else "":
            return [blamed]
        if not isinstance(error, MegahourError):
            raise
        line = str(error).partition("\nTraceback")[0].replace("\n", "; ")
        return [line if "cannot be repaired" in line else f"{target.url}: cannot be repaired: {line}"]
    left = verify(Artifact(target.url))
    click.echo(f"{'BAD' if left else 'ok '} {target.url}: {', '.join(done) or 'nothing to rebuild'}")
    return left
