"""Stage `pronunciations`: estimates pronunciation probabilities from an alignment."""

from __future__ import annotations

from megahour.core.stage import Context, Input, Inputs, ShardWriter, SingleShard, Task
from megahour.units.params import PronunciationsParams


class WeighPronunciations(SingleShard[PronunciationsParams]):
    """Writes a copy of the lexicon, and `.lexiconp.txt` with lines `word probability  ph ph …` as in Kaldi.

    The likeliest pronunciation of a word has probability 1, so that a word is not penalised for having several.
    """

    name = "pronunciations"
    params = PronunciationsParams
    inputs = (Input("lexicon"), Input("units"))

    def run(self, p: PronunciationsParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.units.lexicon import read_lexicon, weighed, write_probabilities

        lexicon, units = inputs["lexicon"], inputs["units"]
        text = lexicon.read_bytes(0, ".lexicon.txt").decode()
        entries = read_lexicon(text, where=lexicon.url)
        counts: dict[tuple[str, str], int] = {}
        for receipt in units.receipts():
            if ".spoken.parquet" in receipt.files:
                for row in units.read_table(receipt.shard, ".spoken.parquet").to_pylist():
                    way = row["word"], row["pronunciation"]
                    counts[way] = counts.get(way, 0) + row["count"]
        probabilities = weighed(entries, counts, p.prior)
        out.text(text, ".lexicon.txt")
        out.text(write_probabilities(entries, probabilities), ".lexiconp.txt")
        several = [word for word, ways in entries.items() if len(ways) > 1]
        out.kept_all(len(entries))
        out.stats.update(
            words=len(entries),
            pronunciations=sum(map(len, entries.values())),
            with_several=len(several),
            counted=len({word for word, _ in counts if word in entries}),
        )
