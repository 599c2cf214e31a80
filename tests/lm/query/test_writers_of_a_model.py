"""Two writers of one file never mix, however they are staggered: one succeeds, the others get an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from megahour.lm.query.model_files import replacing

RACE = """
import os, sys, time

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # at once: several processes write here

from pathlib import Path
from megahour.core.errors import StoreError
from megahour.lm.query.model_files import replacing

out, writers = Path(sys.argv[1]), 5
for stagger_s in (0.0, 0.002, 0.01, 0.05):
    for number in range(writers):
        if os.fork() == 0:
            time.sleep(number * stagger_s)
            try:
                with replacing(out) as making, making.open("wb") as file:
                    for _ in range(20):
                        file.write(bytes([65 + number]) * 5000)
                        file.flush()
                        time.sleep(0.001)
            except StoreError as error:
                say("refused" if "another process writes here" in str(error) else error)
                os._exit(0)
            say("wrote", number)
            os._exit(0)
    for _ in range(writers):
        os.wait()
    data = out.read_bytes()
    say("found", data[0] - 65, len(data), len(set(data)), *sorted(os.listdir(out.parent)))
"""


def test_however_writers_are_staggered_the_file_is_that_of_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RACE, str(tmp_path / "lm.arpa")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    wrote: set[str] = set()
    rounds = 0
    for line in done.stdout.splitlines():
        what, *facts = line.split()
        if what == "wrote":
            wrote.add(facts[0])
        elif what == "found":
            assert facts[0] in wrote, "the file is of one who said so"
            assert facts[1:] == ["100000", "1", "lm.arpa"], "whole, of one writer, and nothing beside it"
            wrote, rounds = set(), rounds + 1
        else:
            assert line == "refused"
    assert rounds == 4


def test_a_writer_of_another_suffix_is_left_alone(tmp_path: Path) -> None:
    """lm.arpa and lm.arpa.gz may be written at the same time; the first took the other's file for a killed one's."""
    with replacing(tmp_path / "lm.arpa.gz") as making:
        making.write_text("packed")
        with replacing(tmp_path / "lm.arpa") as plain:
            plain.write_text("plain")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lm.arpa", "lm.arpa.gz"]
