"""Commands and groups that are imported when they are asked for: where they are, and their one-line summary."""

from __future__ import annotations

COMMANDS: dict[str, tuple[str, str]] = {
    "transcribe": (
        "megahour.cli.transcribe:command",
        "Recognise speech: audio files or a microphone to text or subtitles.",
    ),
    "listen": (
        "megahour.cli.listen:command",
        "A server that shows the words of a microphone as they come; also for programs.",
    ),
    "say": (
        "megahour.cli.say:command",
        "Speak a text with a trained voice: to a WAV file, or to a pipe sentence by sentence.",
    ),
    "serve": (
        "megahour.cli.serve:command",
        "Serve models here for a run elsewhere: the one that its stages ask for in FOLDER, its engine.services.",
    ),
    "listening-results": (
        "megahour.cli.listening_results:command",
        "Mean opinions of a listening test, with their intervals.",
    ),
    "export-model": (
        "megahour.cli.export_model:command",
        "A trained model as a bundle: ONNX graphs that transcribe and sherpa-onnx play.",
    ),
    "pool-scores": (
        "megahour.cli.pool_scores:command",
        "Word error rates of the folds of a corpus, as one table.",
    ),
    "lmplz": (
        "megahour.lm.cli.lmplz_command:lmplz",
        "KenLM's lmplz by its own options: text on standard input, an ARPA model on standard output.",
    ),
    "coverage": (
        "megahour.cli.coverage:command",
        "Hours by language, domain, licence, label, tier, speaker and month; two runs side by side.",
    ),
    "lm": (
        "megahour.lm.cli.commands:group",
        "n-gram language models: train, score, info, convert, rescore, combine, prune.",
    ),
}
