"""Stage `score`: computes a table of word error rates from the hypotheses of one to three systems."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from megahour.core.errors import ConfigError, StageError
from megahour.core.stage import Artifact, Context, Input, Inputs, ShardWriter, SingleShard, Task
from megahour.score.params import ScoreParams

if TYPE_CHECKING:
    from megahour.score.references import Reference

TRUTH = ("raw", "recordings", "utterances")
NAMED = ("recording", "start_s", "end_s")  # columns that name an utterance as its user knows it


class Score(SingleShard[ScoreParams]):
    """Writes `.json` (table, speakers), `.md` (the table) and `.parquet` (a row per utterance).

    With `selection`, rows have the recording's name and the utterance's span in it.
    References are the texts of `features` or `selection`. With `raw`, `recordings` and `utterances`, they are the true
    words whose middle lies in the utterance. Without a hypothesis, all words of an utterance count as deleted. If
    models assign tags, the `.json` has their accuracy under `tags`; languages need the input `selection`.
    """

    name = "score"
    version = 3
    params = ScoreParams
    inputs = (
        Input("baseline", optional=True, kinds=("hypotheses",)),
        Input("student", kinds=("hypotheses",)),
        Input("teacher", optional=True, kinds=("hypotheses",)),
        *Input.if_given("features", "selection"),
        *(Input(role, optional=True) for role in TRUTH),
    )

    def check(self, p: ScoreParams, roles: Collection[str]) -> None:
        if "features" not in roles and "selection" not in roles:
            raise ConfigError("no references", where=self.name, remedy="give the input `selection` or `features`")
        given = [role for role in TRUTH if role in roles]
        if given and len(given) < len(TRUTH):
            message = f"the truth needs the inputs {list(TRUTH)}, only {given} given"
            remedy = "give all of them, or none: the transcripts are then the references"
            raise ConfigError(message, where=self.name, remedy=remedy)

    def run(self, p: ScoreParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        import pyarrow as pa

        from megahour.score.table import Scored, to_markdown
        from megahour.score.tags import tag_scores

        references = _references(p, inputs)
        systems = {role: _texts(inputs[role]) for role in ("baseline", "student", "teacher") if role in inputs}
        scored = Scored(references, systems)
        if silent := [system for system, missing in scored.missing.items() if missing == len(references)]:
            raise StageError(
                f"{silent} have no hypothesis for any of the {len(references)} utterances of sets {p.sets}",
                where=self.name,
                remedy="decode these sets, from the features that are scored",
            )
        table = scored.table(p.draws, p.seed)
        about = {
            "references": "truth" if "raw" in inputs else "text",
            "missing_hypotheses": scored.missing,
            "table": table,
        }
        if tags := tag_scores(references, inputs.get("selection"), {role: inputs[role] for role in systems}):
            about["tags"] = tags
        out.json({**about, "speakers": scored.speakers()}, ".json")
        out.text(to_markdown(table), ".md")
        columns: dict[str, Any] = {
            "key": pa.array([reference.key for reference in references], pa.int64()),
            **({name: [getattr(r, name) for r in references] for name in NAMED} if "selection" in inputs else {}),
            "condition": [reference.condition for reference in references],
            "speaker": [reference.speaker for reference in references],
            "reference": [reference.text for reference in references],
        }
        for system, edits in scored.words.items():
            columns[system] = scored.texts[system]
            columns[f"errors_{system}"] = pa.array([e.errors for e in edits], pa.int32())
        out.table(pa.table(columns))
        out.kept_all(len(references))
        out.stats.update(about)


def _references(p: ScoreParams, inputs: Inputs) -> list[Reference]:
    from megahour.score.references import read_references, true_references

    role, suffix = ("selection", ".parquet") if "selection" in inputs else ("features", ".arrow")
    references = read_references(inputs[role], suffix, p.sets)
    if "raw" in inputs:
        raw, recordings, utterances = (inputs[role] for role in TRUTH)
        return true_references(references, raw, recordings, utterances, p.truth_rate_hz)
    return references


def _texts(hypotheses: Artifact) -> dict[int, str]:
    texts: dict[int, str] = {}
    for receipt in hypotheses.each_receipt():
        table = hypotheses.read_table(receipt.shard, columns=["key", "text"])
        texts.update(zip(table["key"].to_pylist(), table["text"].to_pylist(), strict=True))
    return texts
