"""Stage `lexicon`: words to pronunciations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from megahour.core.errors import ConfigError, StageError
from megahour.core.stage import Artifact, Context, Input, Inputs, ShardWriter, SingleShard, Task
from megahour.units.params import LexiconParams

if TYPE_CHECKING:
    from megahour.corpus.generate.espeak import Phonemise


class MakeLexicon(SingleShard[LexiconParams]):
    """Writes `.lexicon.txt`: one line `word  ph ph …` per pronunciation, sorted by word.

    Words come from the inputs: the language model's vocabulary, the text and the transcripts. Without inputs, the
    lexicon has all words of the dictionary. Words without a pronunciation are dropped; the statistics list the first
    100. Lines of the dictionary without phones are quarantined.
    """

    name = "lexicon"
    version = 2
    params = LexiconParams
    inputs = Input.if_given("lm", "text", "selection", "features")

    def check(self, p: LexiconParams, roles: Collection[str]) -> None:
        if p.source == "dictionary" and not p.dictionary:
            raise ConfigError(
                "source is dictionary, but `dictionary` is not set", where="lexicon", remedy="set `dictionary`"
            )
        if p.guess and p.source != "dictionary":
            raise ConfigError(
                f"guess learns from a dictionary, but source is {p.source}",
                where="lexicon",
                remedy="set source: dictionary",
            )
        if p.languages and (p.source != "espeak" or "selection" not in roles):
            remedy = "set source: espeak and give the input selection, or leave languages out"
            raise ConfigError("languages apply to espeak-ng and to utterances", where="lexicon", remedy=remedy)
        if not roles and p.source != "dictionary":
            raise ConfigError("no words", where="lexicon", remedy="give an input: lm, text, selection or features")

    def plan(self, p: LexiconParams, inputs: Inputs) -> list[Task]:
        from megahour.units.texts import check_text_sets

        check_text_sets(inputs, p.sets, where=self.name)
        return super().plan(p, inputs)

    def run(self, p: LexiconParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.corpus.generate.espeak import phonemiser
        from megahour.units.lexicon import pronounce_all, write_lexicon

        repeated: list[str] = []
        bare: list[str] = []
        entries = _dictionary(p, repeated, bare) if p.source == "dictionary" else {}
        words = _words(p, inputs) if inputs else sorted(entries)
        with phonemiser() as phonemise:
            lexicon, silent = pronounce_all(words, _pronouncer(p, entries, inputs, phonemise))
        guessed: dict[str, list[list[str]]] = {}
        if p.guess and silent:
            from megahour.units.graphones import Pronouncer

            guessed, silent = pronounce_all(silent, Pronouncer(entries).pronounce)
            lexicon = dict(sorted({**lexicon, **guessed}.items()))
        if not lexicon:
            raise StageError(f"none of {len(words)} words has a pronunciation", remedy="check `source` and the case")
        out.text(write_lexicon(lexicon), ".lexicon.txt")
        out.came_in(len(words) + len(bare))
        for line in bare:
            out.quarantine(line, "no-phones", "write WORD PH PH …", p.dictionary)
        out.kept(len(lexicon))
        out.drop("no-pronunciation" if p.source != "dictionary" else "not-in-dictionary", len(silent))
        out.stats.update(
            words=len(lexicon),
            pronunciations=sum(map(len, lexicon.values())),
            phones=sorted({phone for all_ in lexicon.values() for phones in all_ for phone in phones}),
            dropped_words=silent[:100],
            **({"repeated": len(repeated)} if repeated else {}),
            **({"guessed": len(guessed), "guessed_words": sorted(guessed)[:100]} if guessed else {}),
        )


def _words(p: LexiconParams, inputs: Inputs) -> list[str]:
    from megahour.units.texts import input_lines, lines_of

    words: set[str] = set()
    if "lm" in inputs:
        try:
            words.update(lines_of(inputs["lm"].read_bytes(0, ".vocab.txt").decode()))
        except UnicodeDecodeError as error:
            what = f"its words are not UTF-8: byte {error.object[error.start]:#04x}"
            remedy = "iconv -f latin1 -t utf-8 TEXT, with the encoding it has, and estimate the model again"
            raise ConfigError(what, where=inputs["lm"].url, remedy=remedy) from None
    for line in input_lines(inputs, p.sets):
        words.update(line.split())
    return sorted(words - {"", "<unk>", "<s>", "</s>"})


def _dictionary(p: LexiconParams, repeated: list[str], bare: list[str]) -> dict[str, list[list[str]]]:
    from megahour.units.lexicon import parse_dictionary
    from megahour.units.texts import file_lines

    return parse_dictionary(file_lines([p.dictionary]), where=p.dictionary, repeated=repeated, bare=bare)


def _pronouncer(
    p: LexiconParams, entries: Mapping[str, list[list[str]]], inputs: Inputs, phonemise: Phonemise
) -> Callable[[str], list[list[str]]]:
    from megahour.units.lexicon import espeak, graphemes

    if p.source == "espeak":
        return _by_language(p, inputs["selection"], phonemise) if p.languages else espeak(p.language, phonemise)
    if p.source == "graphemes":
        return graphemes
    return lambda word: entries.get(word.casefold(), [])


def _by_language(p: LexiconParams, selection: Artifact, phonemise: Phonemise) -> Callable[[str], list[list[str]]]:
    """A function that pronounces a word by the rules of each language that has it; `p.language` is for the others."""
    from megahour.units.lexicon import espeak, rules_for

    names: defaultdict[str, set[str]] = defaultdict(set)
    for receipt in selection.each_receipt():
        if not p.sets or receipt.tags.get("set") in p.sets:
            table = selection.read_table(receipt.shard, columns=["text", "language"])
            for row in table.to_pylist():
                for word in row["text"].split():
                    names[word].add(rules_for(row["language"] or "", p.languages, p.language))
    rules = {name: espeak(name, phonemise) for name in {p.language, *p.languages.values()}}

    def pronounce(word: str) -> list[list[str]]:
        found = (phones for name in sorted(names.get(word, {p.language})) for phones in rules[name](word))
        return [list(phones) for phones in dict.fromkeys(map(tuple, found))]

    return pronounce
