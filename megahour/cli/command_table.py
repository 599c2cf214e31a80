"""Commands and groups that are imported only when used: their addresses and one-line summaries."""

from __future__ import annotations

COMMANDS: dict[str, tuple[str, str]] = {
    "transcribe": ("megahour.cli.transcribe:command", "Turn audio files or a microphone into text or subtitles."),
    "align-file": ("megahour.cli.align_file:command", "Find the times of each line and word of a text."),
    "listen": ("megahour.cli.listen:command", "Serve live recognition: a web page, a WebSocket, HTTP."),
    "say": ("megahour.cli.say:command", "Speak a text with a trained voice."),
    "export-model": (
        "megahour.cli.export_model:command",
        "Export a trained model to ONNX, for other runtimes.",
    ),
    "coverage": (
        "megahour.cli.coverage:command",
        "Hours by language, licence, speaker …, of one run or two.",
    ),
    "pool-scores": ("megahour.cli.pool_scores:command", "Pool the word error rates of a corpus's folds."),
    "listening-results": (
        "megahour.cli.listening_results:command",
        "Mean opinion scores of a listening test, with intervals.",
    ),
    "serve": ("megahour.cli.serve:command", "Serve models on this machine to a run on others."),
    "lm": (
        "megahour.lm.cli.commands:group",
        "n-gram language models: train, score, mix, prune.",
    ),
    "lmplz": ("megahour.lm.cli.lmplz_command:lmplz", "KenLM's lmplz, with its own options."),
}
