#!/usr/bin/env bash
# From audio and transcripts to a data set in three formats and a page to browse it. The audio is generated here:
# pip install "megahour[generate]". For yours: megahour ingest --source FOLDER --licence CC-BY-4.0 --out …
set -euo pipefail
work=${1:-work}
megahour synthesise --style prompts --hours 0.01 --voices 2 --split prompts --shards 1 --out "$work/raw"
megahour ingest --raw "$work/raw" --out "$work/recordings"
megahour cut --recordings "$work/recordings" --min-s 1 --out "$work/utterances"
megahour export --utterances "$work/utterances" --formats "[webdataset, nemo, kaldi]" --out "$work/export"
megahour report "$work/utterances" --out "$work/page.html"
