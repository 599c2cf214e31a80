"""The table of all stages: name, address and summary. It imports nothing, so `megahour --help` stays fast;
tests/cli/test_recipe.py checks that summaries equal the first lines of the Params docstrings."""

from __future__ import annotations

STAGES: dict[str, tuple[str, str]] = {
    "fetch-prompts": (
        "megahour.corpus.generate.compose_stage:FetchPrompts",
        "Fetch Asterisk's telephone prompts from Debian with apt: clips for `compose`, a shard per language.",
    ),
    "synthesise": (
        "megahour.corpus.generate.synthesise_stage:Synthesise",
        "Speak a corpus with espeak-ng: raw recordings, flawed transcripts, rooms, and the true word times.",
    ),
    "sentences": (
        "megahour.corpus.generate.synthesise_stage:Sentences",
        "Write generated sentences, one normalised sentence a line, for language models.",
    ),
    "compose": (
        "megahour.corpus.generate.compose_stage:Compose",
        "Compose long recordings, or single prompts, from short clips of real speech.",
    ),
    "ingest": (
        "megahour.corpus.ingest.stage:Ingest",
        "Turn audio and transcripts from anywhere into checked recordings.",
    ),
    "import": (
        "megahour.corpus.interchange.import_stage:Import",
        "Data sets of lhotse, NeMo, Kaldi, Hugging Face and WebDataset, as utterances or as recordings.",
    ),
    "import-aligner": (
        "megahour.models.import_stage:ImportAligner",
        "A CTC model from elsewhere as an aligner: ONNX or TorchScript with its tokens, or a Hugging Face checkpoint.",
    ),
    "apply": (
        "megahour.corpus.apply.stage:Apply",
        "Rows through a function of your own: a normaliser, a language identifier, a filter.",
    ),
    "copies": (
        "megahour.corpus.ingest.copies_stage:Copies",
        "Find recordings with equal sound, and keep the one with the best transcript.",
    ),
    "align": (
        "megahour.align.stage:Align",
        "Align long recordings with their transcripts by CTC, to find the time of each word.",
    ),
    "cut": ("megahour.cut.stage:Cut", "Cut aligned recordings into utterances, in the middle of pauses."),
    "score-alignment": (
        "megahour.score.alignment_stage:ScoreAlignment",
        "Errors of aligned word times, unspoken text kept and spoken text lost, per condition.",
    ),
    "duplicates": (
        "megahour.select.duplicates_stage:Duplicates",
        "Find utterances whose sound or text nearly equals that of another one, to leave them out.",
    ),
    "combine": (
        "megahour.select.combine_stage:Combine",
        "Combine utterances of several corpora: public and private ones, or real and synthetic speech.",
    ),
    "select": ("megahour.select.stage:Select", "Divide utterances by speaker into labelled, unlabelled and test sets."),
    "export": (
        "megahour.corpus.interchange.export_stage:Export",
        "Utterances as WebDataset, lhotse Shar, NeMo, Kaldi, Hugging Face parquet, CTM, TextGrid and SRT.",
    ),
    "features": (
        "megahour.features.stage:Features",
        "Compute log-mel features every 10 ms with a causal mean per speaker, and their global mean and variance.",
    ),
    "import-features": (
        "megahour.features.cepstra_stage:ImportFeatures",
        "Import published cepstra and transcriptions in Sphinx's formats, as features with a causal mean per speaker.",
    ),
    "language-model": (
        "megahour.lm.stage:LanguageModel",
        "Interpolated modified Kneser-Ney n-grams from text.",
    ),
    "lm-interpolate": (
        "megahour.lm.combine_stage:Interpolate",
        "Several language models merged into one, with weights given or tuned on held-out text.",
    ),
    "lm-prune": (
        "megahour.lm.combine_stage:Prune",
        "Entropy pruning: a language model without the n-grams that change it least (Stolcke 1998).",
    ),
    "lm-perplexity": ("megahour.lm.combine_stage:Perplexity", "Perplexities of language models on a text."),
    "lm-convert": (
        "megahour.lm.combine_stage:Convert",
        "A language model in another form: compressed, or mapped into memory when it is used.",
    ),
    "lm-words": (
        "megahour.lm.scale.distributed_stage:CountWords",
        "Words of a text and their counts, by hash: the first step of a language model on a cluster.",
    ),
    "lm-vocabulary": (
        "megahour.lm.scale.distributed_stage:MakeVocabulary",
        "The numbered vocabulary of `lm-words`, and how its language model is sharded.",
    ),
    "lm-shards": (
        "megahour.lm.scale.distributed_stage:MakeShards",
        "Positions of a text by the last word of their history: round 1 of progressive sharding.",
    ),
    "lm-reshard": (
        "megahour.lm.scale.distributed_stage:Reshard",
        "Histories too large for a shard, split by one more word: rounds 2 and later of progressive sharding.",
    ),
    "lm-tally": (
        "megahour.lm.scale.distributed_stage:TallyShards",
        "Counts of all shards of a language model, and what shards must know of each other.",
    ),
    "lm-estimate": (
        "megahour.lm.scale.distributed_stage:EstimateLines",
        "Probabilities and back-offs of all shards of a language model, as lines of an ARPA file.",
    ),
    "lm-arpa": (
        "megahour.lm.scale.distributed_stage:JoinArpa",
        "One ARPA file and its word list out of the lines of `lm-estimate`.",
    ),
    "lm-union": (
        "megahour.lm.sharded.mix_stage:MakeUnion",
        "Words of several models, and what each model says of them: the first step of mixing and pruning on an engine.",
    ),
    "lm-ranges": (
        "megahour.lm.sharded.mix_stage:CutRanges",
        "Where the partitions of models begin: ranges of words, as even as a sample of the n-grams makes them.",
    ),
    "lm-gather": (
        "megahour.lm.sharded.prune_stage:Gather",
        "n-grams of models by what they end in, so that all that a probability is computed from is together.",
    ),
    "lm-weights": (
        "megahour.lm.sharded.mix_stage:Weigh",
        "Weights of models by expectation maximisation on held-out text, and each model's perplexity.",
    ),
    "lm-mix": (
        "megahour.lm.sharded.mix_stage:Mix",
        "The mixture of several models, as lines of an ARPA file.",
    ),
    "lm-sort": (
        "megahour.lm.sharded.prune_stage:SortNgrams",
        "n-grams of a model in the order of its file, with the probabilities of contexts: the first step of pruning.",
    ),
    "lm-history-counts": (
        "megahour.lm.sharded.prune_stage:CountHistories",
        "How often contexts occur in a text: what entropy pruning weighs losses by.",
    ),
    "lm-losses": (
        "megahour.lm.sharded.prune_stage:Lose",
        "What a model would lose with each n-gram and all that begin with it: entropy pruning (Stolcke 1998).",
    ),
    "lm-threshold": (
        "megahour.lm.sharded.prune_stage:Choose",
        "Which n-grams stay: by a threshold, or the size that the model is to have.",
    ),
    "lm-renormalise": (
        "megahour.lm.sharded.prune_stage:Renormalise",
        "What stays of a pruned model with its new back-off weights, as lines of an ARPA file.",
    ),
    "lm-join": (
        "megahour.lm.sharded.mix_stage:JoinLines",
        "One ARPA file and its word list out of the lines of `lm-mix` or `lm-renormalise`.",
    ),
    "lexicon": (
        "megahour.units.lexicon_stage:MakeLexicon",
        "Make pronunciations for all words by rule, by spelling or from a dictionary.",
    ),
    "tokens": (
        "megahour.units.tokens_stage:MakeTokens",
        "Learn the tokens that a model spells with: word pieces from text (sentencepiece), or those of a file.",
    ),
    "senones": (
        "megahour.units.stage:Senones",
        "Build senones, their decision trees and frame alignments of the labelled sets from a flat start.",
    ),
    "pronunciations": (
        "megahour.units.pronunciations_stage:WeighPronunciations",
        "Add to a lexicon the probability of each pronunciation in an alignment, for `graph`.",
    ),
    "tts-data": (
        "megahour.tts.data_stage:TtsData",
        "Mel spectra, phones, durations, pitch and energy of aligned utterances: what a voice learns from.",
    ),
    "train": (
        "megahour.train.stage:Train",
        "Train a recogniser on frame labels, texts or a teacher's targets, or train a voice.",
    ),
    "realign": (
        "megahour.teach.realign_stage:Realign",
        "Frame labels of the labelled sets again, by a trained model instead of Gaussians.",
    ),
    "targets": ("megahour.teach.stage:Targets", "A teacher's top-k logits for every frame of the unlabelled sets."),
    "repartition": (
        "megahour.teach.repartition_stage:Repartition",
        "Features and targets together in shards of about two hours, each speaker's order broken up.",
    ),
    "pseudo-label": (
        "megahour.teach.pseudo_stage:PseudoLabel",
        "Texts that a recogniser is sure of, for `train` to learn from beside the true ones.",
    ),
    "graph": ("megahour.decode.stage:MakeGraph", "Decoding graph from topology, lexicon and language model."),
    "decode": (
        "megahour.decode.stage:Decode",
        "Beam search: over the graph with a model's posteriors, or without a graph for a model of tokens.",
    ),
    "lattices": (
        "megahour.decode.lattice_stage:Lattices",
        "Lattices to texts: another language model, n-best lists, word confidences and times, errors of the oracle.",
    ),
    "export-lattices": (
        "megahour.decode.lattice_files_stage:ExportLattices",
        "Lattices as Kaldi's archives, of compact and plain lattices, and HTK's SLF.",
    ),
    "import-lattices": (
        "megahour.decode.lattice_files_stage:ImportLattices",
        "Lattices of other recognisers, in Kaldi's archives or HTK's SLF, to be rescored and scored beside ours.",
    ),
    "import-hypotheses": (
        "megahour.decode.import_stage:ImportHypotheses",
        "Any recogniser's JSON as hypotheses, to be scored beside ours and to make pseudo-labels of.",
    ),
    "score": ("megahour.score.stage:Score", "Word error rates per condition, baseline against student."),
    "speak": (
        "megahour.tts.speak_stage:Speak",
        "Texts spoken by a trained voice, or by espeak-ng, as utterances: to judge a voice, or to train recognisers.",
    ),
    "score-speech": (
        "megahour.tts.score_stage:ScoreSpeech",
        "How good synthetic speech is, beside recordings of the same texts: MCD, pitch, PESQ, STOI, MOS, WER.",
    ),
    "listening-test": (
        "megahour.tts.listening_stage:MakeListeningTest",
        "A page on which people rate voices, blind and in an order of their own: MOS, comparison MOS or MUSHRA.",
    ),
    "report": (
        "megahour.report.stage:Report",
        "One HTML page: what was kept and why, curves, word error rates, time and cost, utterances to hear.",
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
    "features": ("train", "features"),
    "import-features": ("train", "features"),
    "language-model": ("graph", "lm"),
    "lm-interpolate": ("lm-prune", "lm"),
    "lm-prune": ("graph", "lm"),
    "lexicon": ("graph", "lexicon"),
    "pronunciations": ("graph", "lexicon"),
    "tokens": ("train", "tokens"),
    "senones": ("train", "units"),
    "realign": ("train", "units"),
    "targets": ("train", "targets"),
    "pseudo-label": ("train", "pseudo_labels"),
    "tts-data": ("train", "features"),
    "speak": ("score-speech", "speech"),
    "train": ("decode", "model"),
    "graph": ("decode", "graph"),
    "decode": ("score", "student"),
    "lattices": ("score", "student"),
    "import-lattices": ("lattices", "lattices"),
    "import-hypotheses": ("pseudo-label", "hypotheses"),
}
"""The likely next stage after each stage, and the artifact's role there."""
