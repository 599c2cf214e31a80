"""The table of all stages: name, address and summary. It imports nothing, so `megahour --help` stays fast;
tests/recipes/test_recipe.py checks that summaries equal the first lines of the Params docstrings."""

from __future__ import annotations

STAGES: dict[str, tuple[str, str]] = {
    "fetch-prompts": (
        "megahour.corpus.generate.compose_stage:FetchPrompts",
        "Fetch Asterisk's telephone prompts with apt.",
    ),
    "synthesise": (
        "megahour.tts.synthesise_stage:Synthesise",
        "Generate a corpus with espeak-ng and our voices.",
    ),
    "sentences": (
        "megahour.corpus.generate.sentences_stage:Sentences",
        "Generate sentences for language models.",
    ),
    "compose": (
        "megahour.corpus.generate.compose_stage:Compose",
        "Compose long recordings from short clips of speech.",
    ),
    "ingest": (
        "megahour.corpus.ingest.stage:Ingest",
        "Turn audio and transcripts into checked recordings.",
    ),
    "import": (
        "megahour.corpus.interchange.import_stage:Import",
        "Import lhotse, NeMo, Kaldi, Hugging Face, WebDataset data.",
    ),
    "import-aligner": (
        "megahour.foreign.aligner_stage:ImportAligner",
        "Import a CTC model as an aligner.",
    ),
    "apply": (
        "megahour.corpus.apply.stage:Apply",
        "Apply a function of your own to rows.",
    ),
    "copies": (
        "megahour.corpus.ingest.copies_stage:Copies",
        "Find recordings with the same sound, to keep one of each.",
    ),
    "align": (
        "megahour.align.stage:Align",
        "Align long recordings with their transcripts by CTC.",
    ),
    "cut": ("megahour.cut.stage:Cut", "Cut aligned recordings into utterances, at pauses."),
    "score-alignment": (
        "megahour.score.alignment_stage:ScoreAlignment",
        "Score aligned word times against the truth, by condition.",
    ),
    "duplicates": (
        "megahour.select.duplicates_stage:Duplicates",
        "Find utterances with nearly equal sound or text.",
    ),
    "combine": (
        "megahour.select.combine_stage:Combine",
        "Combine utterances of several corpora.",
    ),
    "select": ("megahour.select.stage:Select", "Divide utterances by speaker into training and test sets."),
    "export": (
        "megahour.corpus.interchange.export_stage:Export",
        "Export utterances for lhotse, NeMo, Kaldi, WebDataset …",
    ),
    "features": (
        "megahour.features.stage:Features",
        "Compute log-mel features with a causal mean per speaker.",
    ),
    "import-features": (
        "megahour.features.cepstra_stage:ImportFeatures",
        "Import published cepstra in Sphinx's format.",
    ),
    "language-model": (
        "megahour.lm.stage:LanguageModel",
        "Estimate an n-gram language model from text.",
    ),
    "lm-interpolate": (
        "megahour.lm.combine_stage:Interpolate",
        "Interpolate language models, with given or tuned weights.",
    ),
    "lm-prune": (
        "megahour.lm.combine_stage:Prune",
        "Prune a language model by entropy (Stolcke 1998).",
    ),
    "lm-perplexity": ("megahour.lm.combine_stage:Perplexity", "Compute the perplexity of language models on a text."),
    "lm-convert": (
        "megahour.lm.combine_stage:Convert",
        "Convert a language model to another file format.",
    ),
    "lm-bounded": (
        "megahour.lm.scale.bounded_stage:EstimateBounded",
        "Estimate a language model of a text larger than memory, in one task on one machine.",
    ),
    "lm-words": (
        "megahour.lm.scale.distributed_stage:CountWords",
        "Count the words of a text by hash: the first step of a language model on a cluster.",
    ),
    "lm-vocabulary": (
        "megahour.lm.scale.distributed_stage:MakeVocabulary",
        "Number the vocabulary of `lm-words` and plan the shards of its language model.",
    ),
    "lm-shards": (
        "megahour.lm.scale.distributed_stage:MakeShards",
        "Shard the positions of a text by the last word of their history: round 1 of progressive sharding.",
    ),
    "lm-reshard": (
        "megahour.lm.scale.distributed_stage:Reshard",
        "Split histories that are too large for a shard by one more word: later rounds of progressive sharding.",
    ),
    "lm-tally": (
        "megahour.lm.scale.distributed_stage:TallyShards",
        "Count the n-grams of all shards of a language model, and the sums that shards need from each other.",
    ),
    "lm-estimate": (
        "megahour.lm.scale.distributed_stage:EstimateLines",
        "Estimate probabilities and back-offs of all shards of a language model, as lines of an ARPA file.",
    ),
    "lm-arpa": (
        "megahour.lm.scale.distributed_stage:JoinArpa",
        "Join the lines of `lm-estimate` into one ARPA file with its word list.",
    ),
    "lm-union": (
        "megahour.lm.sharded.mix_stage:MakeUnion",
        "Collect the words of several models with each model's values: the first step of mixing and pruning.",
    ),
    "lm-ranges": (
        "megahour.lm.sharded.mix_stage:CutRanges",
        "Choose the word ranges that partition the models, balanced by a sample of the n-grams.",
    ),
    "lm-gather": (
        "megahour.lm.sharded.prune_stage:Gather",
        "Group the n-grams of models by their endings, so that a partition holds all that its probabilities need.",
    ),
    "lm-weights": (
        "megahour.lm.sharded.mix_stage:TuneWeights",
        "Tune the weights of models by EM on held-out text, and compute the perplexity of each model.",
    ),
    "lm-mix": (
        "megahour.lm.sharded.mix_stage:Mix",
        "Mix several models with given weights, as lines of an ARPA file.",
    ),
    "lm-sort": (
        "megahour.lm.sharded.prune_stage:SortNgrams",
        "Sort the n-grams of a model as in its file, with the probabilities of contexts: the first step of pruning.",
    ),
    "lm-history-counts": (
        "megahour.lm.sharded.prune_stage:CountHistories",
        "Count how often contexts occur in a text, to weight the losses of entropy pruning.",
    ),
    "lm-losses": (
        "megahour.lm.sharded.prune_stage:ComputeLosses",
        "Compute what a model loses without each n-gram and its extensions: entropy pruning (Stolcke 1998).",
    ),
    "lm-threshold": (
        "megahour.lm.sharded.prune_stage:ChooseThreshold",
        "Choose the n-grams to keep, by a threshold or by the size of the model.",
    ),
    "lm-renormalise": (
        "megahour.lm.sharded.prune_stage:Renormalise",
        "Compute the new back-off weights of a pruned model, as lines of an ARPA file.",
    ),
    "lm-join": (
        "megahour.lm.sharded.mix_stage:JoinLines",
        "Join the lines of `lm-mix` or `lm-renormalise` into one ARPA file with its word list.",
    ),
    "lexicon": (
        "megahour.units.lexicon_stage:MakeLexicon",
        "Make pronunciations by rule, spelling or dictionary.",
    ),
    "tokens": (
        "megahour.units.tokens_stage:MakeTokens",
        "Learn word pieces from text, or take tokens from a file.",
    ),
    "senones": (
        "megahour.units.stage:Senones",
        "Build senones and frame alignments from a flat start.",
    ),
    "pronunciations": (
        "megahour.units.pronunciations_stage:WeighPronunciations",
        "Weight a lexicon's pronunciations by how often they occur.",
    ),
    "tts-data": (
        "megahour.tts.data_stage:TtsData",
        "Extract training data for a voice from utterances.",
    ),
    "train": (
        "megahour.train.stage:Train",
        "Train a recogniser or a voice.",
    ),
    "realign": (
        "megahour.teach.realign_stage:Realign",
        "Realign the labelled sets with a trained model.",
    ),
    "targets": (
        "megahour.teach.stage:Targets",
        "Compute a teacher's top-k logits for the unlabelled sets.",
    ),
    "repartition": (
        "megahour.teach.repartition_stage:Repartition",
        "Shuffle features with their targets into new shards.",
    ),
    "pseudo-label": (
        "megahour.teach.pseudo_stage:PseudoLabel",
        "Select confident texts of a recogniser as labels.",
    ),
    "graph": ("megahour.decode.stage:MakeGraph", "Compile a decoding graph from lexicon and language model."),
    "decode": (
        "megahour.decode.stage:Decode",
        "Decode by beam search, with or without a graph.",
    ),
    "lattices": (
        "megahour.decode.lattice_stage:Lattices",
        "Rescore lattices with another language model.",
    ),
    "export-lattices": (
        "megahour.foreign.lattice_files_stage:ExportLattices",
        "Export lattices to Kaldi archives or HTK's SLF.",
    ),
    "import-lattices": (
        "megahour.foreign.lattice_files_stage:ImportLattices",
        "Import lattices of other recognisers.",
    ),
    "import-hypotheses": (
        "megahour.foreign.hypotheses_stage:ImportHypotheses",
        "Import the texts of any recogniser from JSON.",
    ),
    "score": (
        "megahour.score.stage:Score",
        "Compute word error rates per condition.",
    ),
    "speak": (
        "megahour.tts.speak_stage:Speak",
        "Speak texts with a trained voice or espeak-ng.",
    ),
    "score-speech": (
        "megahour.tts.score_stage:ScoreSpeech",
        "Score synthetic speech against recordings.",
    ),
    "listening-test": (
        "megahour.tts.listening_stage:MakeListeningTest",
        "Make a page on which people rate voices.",
    ),
    "report": (
        "megahour.report.stage:Report",
        "Make an HTML page about a run.",
    ),
}

GROUPS: dict[str, tuple[str, ...]] = {
    "Build a corpus": (
        *("ingest", "import", "apply", "copies", "import-aligner", "align", "score-alignment", "cut"),
        *("duplicates", "combine", "select", "export", "report"),
    ),
    "Train a recogniser": (
        *("features", "import-features", "lexicon", "pronunciations", "tokens", "senones", "train", "realign"),
        *("targets", "repartition", "pseudo-label"),
    ),
    "Recognise and score": (
        *("graph", "decode", "lattices", "export-lattices", "import-lattices", "import-hypotheses", "score"),
    ),
    "Language models": ("language-model", "lm-interpolate", "lm-prune", "lm-perplexity", "lm-convert"),
    "Train a voice": ("tts-data", "speak", "score-speech", "listening-test"),
    "Generate data": ("synthesise", "sentences", "fetch-prompts", "compose"),
}
"""The stages as `megahour --help` lists them. Those that only `megahour lm` runs, on an engine, are left out."""

VOICE = "--kind voice --criterion speech --stack 1 --offsets [0] --epochs 0 --whole-epochs 200"
NEXT_OF_CLIPS = ("cut --min-s 1", "recordings")
"""As in NEXT, after `ingest` of short recordings with a text each, which are utterances as they are."""
NEXT: dict[str, tuple[str, str]] = {
    "fetch-prompts": ("compose", "clips"),
    "synthesise": ("ingest", "raw"),
    "compose": ("ingest", "raw"),
    "sentences": ("language-model", "text"),
    "ingest": ("align", "recordings"),
    "import": ("select", "utterances"),
    "import-aligner": ("align", "aligner"),
    "copies": ("align", "copies"),
    "align": ("cut", "alignment"),
    "cut": ("select", "utterances"),
    "combine": ("select", "utterances"),
    "duplicates": ("select", "duplicates"),
    "select": ("features", "selection"),
    "features": ("train --criterion ctc", "features"),
    "import-features": ("train --criterion ctc", "features"),
    "language-model": ("graph", "lm"),
    "lm-interpolate": ("lm-prune", "lm"),
    "lm-prune": ("graph", "lm"),
    "lexicon": ("graph", "lexicon"),
    "pronunciations": ("graph", "lexicon"),
    "tokens": ("train --criterion ctc", "tokens"),
    "senones": ("train", "units"),
    "realign": ("train", "units"),
    "targets": ("train", "targets"),
    "pseudo-label": ("train --criterion ctc", "pseudo_labels"),
    "tts-data": (f"train {VOICE}", "features"),
    "speak": ("score-speech", "speech"),
    "train": ("decode", "model"),
    "graph": ("decode", "graph"),
    "decode": ("score", "student"),
    "lattices": ("score", "student"),
    "import-lattices": ("lattices", "lattices"),
    "import-hypotheses": ("pseudo-label", "hypotheses"),
}
"""The likely next stage after each stage, with the options that it needs, and the artifact's role there."""
