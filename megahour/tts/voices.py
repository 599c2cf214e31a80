"""Find the voice and the lexicon that an address names."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from megahour.core.errors import ConfigError
from megahour.core.kinds import kind_of
from megahour.core.store import RESOLVED, Artifact
from megahour.transcribe.bundle import PRECISIONS
from megahour.transcribe.bundle_files import BundleFolder
from megahour.transcribe.parts import how_to_finish, steps_of_run
from megahour.units.lexicon import Lexicon, lexicon_of, parse_dictionary

if TYPE_CHECKING:
    from megahour.tts.speaking import AnySpeaker

GIVE = "give a *model* of kind voice, or the folder of a run that trains one, such as that of `megahour run voice`"


def voice_of(address: str) -> str:
    """Return the address of a voice's *model* artifact: `address` itself, or the last voice of the run there.

    Raises ConfigError: `address` has no finished voice.
    """
    home = Artifact(address)
    if home.complete:
        if kind_of(home) != "model":
            what = f"an artifact of stage {home.manifest.stage}, not a voice"
            raise ConfigError(what, where=home.url, remedy=GIVE)
        return home.url
    if not home.fs.exists(home.path(RESOLVED)):
        raise ConfigError("neither a voice nor a run", where=home.url, remedy=GIVE)
    voices = [name for name, step in steps_of_run(home).items() if step.get("criterion") == "speech"]
    if not voices or not Artifact(f"{home.url}/{voices[-1]}").complete:
        what = "the run has not finished its voice" if voices else "no step of this run trains a voice"
        raise ConfigError(what, where=home.url, remedy=how_to_finish(home.url) if voices else GIVE)
    return f"{home.url}/{voices[-1]}"


def speaker_at(
    address: str, lexicon: Lexicon | None, threads: int, precision: str = "fp32", vocoder: str = ""
) -> AnySpeaker:
    """Load the voice at `address`: an exported bundle, or anything that `voice_of` accepts.

    precision: which graph of a bundle to run. vocoder: a *model* artifact, only for a voice that is not a bundle.

    Raises ConfigError: `address` has no voice, or the vocoder or precision does not apply to it.
    """
    if BundleFolder.at(address):
        if vocoder:
            what, remedy = "a bundle has its own vocoder", "leave --vocoder out, or export the voice with it"
            raise ConfigError(what, where=address, remedy=remedy)
        from megahour.tts.exported import ExportedSpeaker

        return ExportedSpeaker(address, precision=precision, lexicon=lexicon, threads=threads)
    model = voice_of(address)
    if precision != "fp32":
        what = f"a model speaks only in fp32, not in {precision}"
        asked = ["megahour", "export-model", model, "--precisions", f"[{precision}]", "--out", "BUNDLE"]
        known = f"{shlex.join(asked)}, and speak with the bundle"
        remedy = known if precision in PRECISIONS else f"use one of {', '.join(PRECISIONS)}"
        raise ConfigError(what, where=model, remedy=remedy)
    from megahour.tts.speaking import Speaker

    return Speaker(model, lexicon=lexicon, threads=threads, vocoder=vocoder)


def lexicon_at(address: str) -> Lexicon:
    """Read a lexicon from a *lexicon* artifact or a file in CMU format. Raises ConfigError: there is none."""
    if Path(address).is_file():
        try:
            lines = Path(address).read_text("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            remedy = f"iconv -f LATIN1 -t UTF-8 {address} first"
            raise ConfigError(f"not UTF-8: {error}", where=address, remedy=remedy) from error
        return parse_dictionary(lines, where=address)
    artifact = Artifact(address)
    if not artifact.complete:
        raise ConfigError("not a lexicon", where=address, remedy="give a *lexicon* artifact or a dictionary file")
    return lexicon_of(artifact)
