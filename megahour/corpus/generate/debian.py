"""Asterisk's telephone prompts from Debian: real speech of professional voices, with its texts.

`asterisk-core-sounds-LANG-wav` has the clips (8 kHz) in usr/share/asterisk/sounds/VOICE, `asterisk-core-sounds-LANG`
the texts.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from megahour.core.errors import StageError
from megahour.corpus.generate.clips import read_listing

# Licence and voice by language, from the packages' copyright file.
CREDITS = {
    "en": ("CC-BY-SA-3.0", "Allison Smith, Asterisk core sounds"),
    "es": ("CC-BY-SA-3.0", "Allison Smith, Asterisk core sounds"),
    "fr": ("CC-BY-SA-3.0", "June Wallack, Asterisk core sounds"),
    "it": ("CC-BY-3.0", "Carlo Flora, Asterisk core sounds"),
    "ru": ("CC-BY-3.0", "Maxim Topal, Asterisk core sounds"),
}

_PACKAGE = "asterisk-core-sounds-{}"


def fetch_packages(names: list[str], folder: Path) -> Path:
    """Download Debian packages with apt (no root needed) and unpack them; returns the folder they are unpacked in.

    Raises
    ------
    StageError: no apt on this machine, or it cannot get the packages.
    """
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise StageError(
                f"{program} is not installed, so {', '.join(names)} cannot be fetched",
                where="fetch-prompts",
                remedy="run on Debian or Ubuntu, or point `source` and `listing` of compose at your own prompts",
            )
    folder = folder.resolve()  # commands run inside it
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.deb"):
        old.unlink()
    _run(["apt-get", "download", *names], folder, "run `apt-get update` as root, or install the packages by hand")
    unpacked = folder / "unpacked"
    for package in sorted(folder.glob("*.deb")):
        _run(["dpkg-deb", "-x", str(package), str(unpacked)], folder, "check the space on the disk")
    return unpacked


def _run(command: list[str], folder: Path, remedy: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise StageError(
            f"{' '.join(command)} failed: {done.stderr.strip()[-300:]}", where="fetch-prompts", remedy=remedy
        )


def prompts(language: str, folder: Path) -> Iterator[tuple[str, bytes]]:
    """Members of a tar of clips in the order of names: `VOICE/name.wav`, and `VOICE/name.txt` where there is a text."""
    package = _PACKAGE.format(language)
    unpacked = fetch_packages([package, f"{package}-wav"], folder)
    listings = sorted((unpacked / "usr/share/doc" / package).glob(f"core-sounds-{language}.txt*"))
    clips = sorted((unpacked / "usr/share/asterisk/sounds").rglob("*.wav"))
    if not listings or not clips:
        raise StageError(
            f"{package}: {len(clips)} clips and {len(listings)} lists of texts",
            where="fetch-prompts",
            remedy="the package may have another layout",
        )
    texts = read_listing(str(listings[0]))
    for clip in clips:
        voice, *rest = clip.relative_to(unpacked / "usr/share/asterisk/sounds").with_suffix("").parts
        name = "/".join(rest)
        yield f"{voice}/{name}.wav", clip.read_bytes()
        if name in texts:
            yield f"{voice}/{name}.txt", texts[name].encode()
