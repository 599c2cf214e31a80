"""Builds the page: gathers facts, draws charts, and puts everything into one file that loads nothing else."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import yaml

from megahour.core.stage import Inputs
from megahour.core.store import Artifact
from megahour.report import errors, gather, hypotheses, listen, sections
from megahour.report.alignment import alignment
from megahour.report.gather import StageFacts
from megahour.report.hypotheses import Readings
from megahour.report.markup import Markup, join, tag
from megahour.report.params import ReportParams
from megahour.report.sections import panel, section
from megahour.report.tables import sortable, text
from megahour.runner.console import duration

LONGEST = 200_000  # characters of a recipe


def provenance(inputs: Inputs) -> Markup:
    """Versions, by step if they differ, and the recipe."""
    note = (
        "Read from the artifacts themselves: parameters from their manifests, versions from their timings. "
        "Of a step that was interrupted these are the versions of its last session."
    )
    words = recipe(inputs)
    shown = tag("pre", words[:LONGEST], tabindex="0", role="region", aria_label="Recipe")
    return section(
        "made",
        "How it was made",
        note,
        panel(_versions(inputs), title="Versions"),
        panel(tag("details", tag("summary", "The recipe as it was run, with every parameter"), shown), title="Recipe"),
    )


def recipe(inputs: Inputs) -> str:
    """YAML of a recipe that reproduces these artifacts.

    Options that do not affect the bytes, such as `max_bad`, workers and threads, are omitted. Digests of files that a
    step read are comments; an input that is not among the artifacts is named by its digest.
    """
    names = _names(inputs)
    by_digest = {artifact.manifest.digest: names[role] for role, artifact in inputs.items()}
    lines = ["steps:\n"]
    for role, artifact in inputs.items():
        manifest = artifact.manifest
        read = {name: value for name, value in manifest.params.items() if _of_files(name)}
        step: dict[str, Any] = {"stage": manifest.stage}
        if manifest.inputs:
            step["inputs"] = {name: by_digest.get(digest, digest) for name, digest in sorted(manifest.inputs.items())}
        step |= {name: value for name, value in manifest.params.items() if name not in read}
        lines += [f"# {name}: {value}\n" for name, value in read.items()]
        lines.append(yaml.safe_dump({names[role]: step}, sort_keys=False, width=100, allow_unicode=True))
    return "".join([lines[0], *(_indented(line) for line in lines[1:])])


def _names(inputs: Inputs) -> dict[str, str]:
    """The step name of each role: the last part of its artifact's address if unique, else the role."""
    last = {role: artifact.url.rsplit("/", 1)[-1] for role, artifact in inputs.items()}
    many = Counter(last.values())
    return {role: name if many[name] == 1 else role.replace("_", "-") for role, name in last.items()}


def _of_files(name: str) -> bool:
    """Whether an entry of a manifest's parameters is a version of files or of code, and no parameter of a recipe."""
    return name in ("digests", "versions", "code", "muon") or name.endswith("_sha256")


def _indented(words: str) -> str:
    return "".join(f"  {line}\n" for line in words.splitlines())


def _versions(inputs: Inputs) -> Markup:
    """A row per name; if steps differ, each version with its steps."""
    names = _names(inputs)
    made_with = {names[role]: _made_with(artifact) for role, artifact in inputs.items()}
    rows = []
    for name in dict.fromkeys(name for versions in made_with.values() for name in versions):
        by_value: dict[str, list[str]] = {}
        for step, versions in made_with.items():
            by_value.setdefault(versions.get(name, "not recorded"), []).append(step)
        several = len(by_value) > 1
        shown = [
            tag("div", value, tag("small", f" {', '.join(steps)}") if several else None)
            for value, steps in by_value.items()
        ]
        rows.append([text(name), text(shown)])
    if not rows:
        return tag("p", "Not recorded: the artifacts are older than megahour's record of versions.", class_="note")
    return sortable(["What", "Version"], rows)


def _made_with(artifact: Artifact) -> dict[str, str]:
    return {str(name): str(value) for name, value in artifact.wall().get("made_with", {}).items()}


SIDECAR = ".hypotheses.tsv"


@dataclass(frozen=True)
class Page:
    """The file, its headline figures as numbers, and whether there are more hypotheses than it holds."""

    html: str
    figures: dict[str, Any]
    more_hypotheses: bool = False


def build(p: ReportParams, inputs: Inputs) -> Page:
    """Build the page from the given artifacts.

    Raises
    ------
    StoreError: one of them is incomplete or damaged.
    """
    facts = [gather.stage_facts(role, artifact) for role, artifact in inputs.items()]
    bad = {
        fact.role: gather.quarantined(inputs[fact.role], p.bad_records) for fact in facts if fact.bad and p.bad_records
    }
    lengths, audio_hours = gather.durations(inputs["utterances"]) if "utterances" in inputs else (None, 0.0)
    sets = inputs["selection"].summary.get("sets", {}) if "selection" in inputs else {}
    rows, systems = gather.word_errors(inputs["score"]) if "score" in inputs else ([], [])
    readings = Readings()
    if "score" in inputs:
        readings = hypotheses.read(inputs["score"], most=p.hypotheses, seed=p.seed)
    utterances = listen.examples(inputs, count=p.examples, longest_s=p.longest_s, seed=p.seed)
    heard = {example.key: number for number, example in enumerate(utterances)}
    parts = [
        *_scores(p, inputs, rows, systems, readings),
        sections.listening(utterances),
        sections.speaking(listen.spoken_by(inputs)),
        alignment(inputs["score_alignment"]) if "score_alignment" in inputs else None,
        sections.flow(facts, bad),
        sections.corpus(lengths, gather.confidences(inputs), sets),
        sections.training(gather.curves(inputs), gather.without_rates(inputs)),
        sections.costs(facts, audio_hours, p.price_per_core_hour, p.currency),
        provenance(inputs),
    ]
    numbers = _numbers(p, inputs, facts, audio_hours, rows)
    footer = sections.footer("megahour's report stage")
    body = [_header(p, numbers), navigation(parts, NAMES), tag("main", parts), footer]
    scripts = ["page.js"]
    if readings.rows:
        body.append(data_block("rows", hypotheses.payload(readings.rows, heard)))
        scripts += ["paged.js", "hypotheses.js"]
    html = document(p.title, join(body), scripts=scripts, styles=("style.css", "paged.css"))
    return Page(html, numbers, not readings.whole)


def _scores(
    p: ReportParams, inputs: Inputs, rows: Sequence[dict[str, Any]], systems: Sequence[str], readings: Readings
) -> list[Markup | None]:
    """The sections from a *score* artifact."""
    if "score" not in inputs:
        return []
    score = inputs["score"]
    about = score.read_json(0, ".json")
    return [
        errors.errors(rows, systems, int(score.manifest.params.get("draws", 1000))),
        errors.speakers(about.get("speakers", []), systems),
        errors.tags(about.get("tags", {})),
        errors.confusions(readings.confusions, p.confusions),
        hypotheses.table(readings, f"00000{SIDECAR}"),
    ]


def _numbers(
    p: ReportParams, inputs: Inputs, facts: Sequence[StageFacts], audio_hours: float, rows: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    seconds, core_hours = gather.total(facts, "seconds"), gather.total(facts, "core_hours")
    numbers: dict[str, Any] = {"seconds": round(seconds, 1), "core_hours": round(core_hours, 4)}
    numbers["cost"] = round(core_hours * p.price_per_core_hour, 6)
    if "recordings" in inputs and "hours" in inputs["recordings"].summary:
        numbers["hours_in"] = inputs["recordings"].summary["hours"]
    if "utterances" in inputs:
        numbers["hours_kept"] = round(audio_hours, 4)
        numbers["utterances"] = inputs["utterances"].manifest.counts.kept
    if rows:
        last = rows[-1]
        numbers |= {k: last.get(k) for k in ("wer_baseline", "wer_student", "werr") if last.get(k) is not None}
    return numbers


def _header(p: ReportParams, numbers: dict[str, Any]) -> Markup:
    cards: list[tuple[str, ...]] = []
    if "wer_student" in numbers:
        of_whom = " of the student" if "wer_baseline" in numbers else ""
        cards.append((f"{100 * numbers['wer_student']:.1f} %", f"word error rate{of_whom}"))
    if "wer_baseline" in numbers:
        cards.append((f"{100 * numbers['wer_baseline']:.1f} %", "of the supervised baseline"))
    if "werr" in numbers:
        kind = "win" if numbers["werr"] > 0 else "loss"
        cards.append((f"{100 * numbers['werr']:+.1f} %".replace("+", ""), "fewer errors, relative (WERR)", kind))
    if "hours_in" in numbers:
        cards.append((f"{numbers['hours_in']:.2f} h", "of recordings"))
    if "hours_kept" in numbers:
        cards.append((f"{numbers['hours_kept']:.2f} h", f"in {numbers['utterances']:,} utterances"))
    cards.append((duration(numbers["seconds"]), "of computing"))
    cards.append((sections.money(numbers["cost"], p.currency), f"for {numbers['core_hours']:.2f} core-hours"))
    lead = "From raw recordings to word error rates: what came in, what was kept, and what the models learned."
    return sections.header(p.title, lead, cards)


NAMES = {
    "errors": "Word error rates",
    "speakers": "Speakers",
    "tags": "Tags",
    "confusions": "Confusions",
    "hypotheses": "Hypotheses",
    "utterances": "Listen and read",
    "spoken": "What the voice says",
    "alignment": "Alignment",
    "flow": "In and out",
    "corpus": "Corpus",
    "training": "Training",
    "costs": "Time and cost",
    "made": "How it was made",
}


def navigation(parts: Sequence[Markup | None], names: Mapping[str, str]) -> Markup:
    """Links to the named sections that are on the page."""
    shown = [name for name in names if any(part and f'id="{name}"' in part[:60] for part in parts)]
    return tag("nav", tag("div", [tag("a", names[name], href=f"#{name}") for name in shown]), aria_label="Sections")


def data_block(name: str, value: Any) -> Markup:
    """JSON in a script block that is not executed. `<` is escaped, so no text can end the block."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return Markup(f'<script type="application/json" id="{name}">{text}</script>\n')


def document(
    title: str, body: Markup, *, scripts: Sequence[str] = ("page.js",), styles: Sequence[str] = ("style.css",)
) -> str:
    """The whole file. Its content security policy allows only the named scripts to run."""
    script = "".join(map(_asset, scripts))
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "SCRIPT_HASH": f"sha256-{digest}",
        "TITLE": join(title),
        "STYLE": "".join(map(_asset, styles)),
        "BODY": body,
        "SCRIPT": script,
    }
    # The template is split at its placeholders once, so that text that looks like one is not replaced.
    pieces = _asset("template.html").split("%")
    return "".join(parts.get(piece, piece) if i % 2 else piece for i, piece in enumerate(pieces))


def _asset(name: str) -> str:
    return files("megahour.report").joinpath(name).read_text("utf-8")
