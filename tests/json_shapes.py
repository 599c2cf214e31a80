"""The same two sentences in each JSON shape that recognisers and players write."""

from __future__ import annotations

from typing import Any

from megahour.corpus.transcripts.cues import Cue

HELLO = [Cue(500, 1500, "Hello there."), Cue(2000, 3000, "Good day.")]


def amazon_word(text: str, start: float | None = None, end: float = 0, **fields: Any) -> dict[str, Any]:
    times = {} if start is None else {"start_time": f"{start}", "end_time": f"{end}"}
    kind = "punctuation" if start is None else "pronunciation"
    return {"type": kind, "alternatives": [{"confidence": "0.9", "content": text}], **times, **fields}


WHISPER = [{"id": 0, "start": 0.5, "end": 1.5, "text": "Hello there."}, {"start": 2, "end": 3.0, "text": "Good day."}]
AMAZON = [
    *(amazon_word("Hello", 0.5, 0.9), amazon_word("there", 0.9, 1.5), amazon_word(".")),
    *(amazon_word("Good", 2, 2.4), amazon_word("day", 2.5, 3), amazon_word(".")),
]
WORDS = [
    {"word": "hello", "punctuated_word": "Hello", "start": 0.5, "end": 0.9},
    {"word": "there", "punctuated_word": "there.", "start": 0.9, "end": 1.5},
    {"word": "good", "punctuated_word": "Good", "start": 2.0, "end": 2.4},
    {"word": "day", "punctuated_word": "day.", "start": 2.5, "end": 3.0},
]
PLAIN_WORDS = [{"word": w["word"], "start": w["start"], "end": w["end"]} for w in WORDS]
OF_WHISPER = [{**w, "word": f" {shown['punctuated_word']}"} for w, shown in zip(PLAIN_WORDS, WORDS, strict=True)]
IN_MS = [{"text": w["punctuated_word"], "start": int(w["start"] * 1000), "end": int(w["end"] * 1000)} for w in WORDS]
SPACE = {"text": " ", "start": 0.9, "end": 0.9, "type": "spacing"}
ELEVEN_LABS = [
    item
    for word in WORDS
    for item in ({"text": word["punctuated_word"], "start": word["start"], "end": word["end"], "type": "word"}, SPACE)
]
SHAPES: dict[str, Any] = {
    "faster-whisper's words": OF_WHISPER,
    "WhisperX's words": {"word_segments": [{**w, "word": w["word"].strip(), "score": 0.9} for w in OF_WHISPER]},
    "OpenAI's words": {
        "text": "Hello there. Good day.",
        "words": [{**w, "word": w["punctuated_word"].strip(".")} for w in WORDS],
    },
    "a bare list": WHISPER,
    "Whisper": {"text": "Hello there. Good day.", "segments": WHISPER, "language": "en"},
    "nested": {"title": "A talk", "transcript": {"segments": WHISPER}},
    "nested list": {"transcript": WHISPER},
    "nested twice": {"response": {"data": {"cues": WHISPER}}},
    "starts and durations": [{**c, "end": None, "duration": 1.0} for c in WHISPER],
    "clocks": [{"from": "0:00.5", "to": "00:00:01,500", "content": "Hello there."}, {**WHISPER[1], "end": "3s"}],
    "Podcast Index": {
        "version": "1.0.0",
        "segments": [{"startTime": c["start"], "endTime": c["end"], "body": c["text"]} for c in WHISPER],
    },
    "Hugging Face": {
        "text": "Hello there. Good day.",
        "chunks": [{"timestamp": [c["start"], c["end"]], "text": c["text"]} for c in WHISPER],
    },
    "YouTube json3": {
        "wireMagic": "pb3",
        "events": [
            {"tStartMs": 0, "dDurationMs": 9000, "id": 1, "wpWinPosId": 1},
            {"tStartMs": 500, "dDurationMs": 1000, "segs": [{"utf8": "Hello"}, {"utf8": " there.", "tOffsetMs": 400}]},
            {"tStartMs": 1500, "aAppend": 1, "segs": [{"utf8": "\n"}]},
            {"tStartMs": 2000, "dDurationMs": 1000, "segs": [{"utf8": "Good day."}]},
        ],
    },
    "whisper.cpp": {
        "transcription": [
            {"offsets": {"from": 500, "to": 1500}, "timestamps": {"from": "00:00:00,500"}, "text": "Hello there."},
            {"offsets": {"from": 2000, "to": 3000}, "text": "Good day."},
        ]
    },
    "Amazon Transcribe": {
        "jobName": "talk",
        "results": {"transcripts": [{"transcript": "Hello there. Good day."}], "items": AMAZON},
        "status": "COMPLETED",
    },
    "Amazon's audio segments": {
        "results": {
            "items": AMAZON,
            "audio_segments": [
                {"transcript": c["text"], "start_time": f"{c['start']}", "end_time": f"{c['end']}"} for c in WHISPER
            ],
        }
    },
    "Google": {
        "results": [
            {
                "alternatives": [
                    {
                        "transcript": c["text"],
                        "words": [{"startTime": f"{c['start']}s", "endTime": f"{c['end']}s", "word": "-"}],
                    }
                ]
            }
            for c in WHISPER
        ]
    },
    "Google, version 2": {
        "results": [
            {
                "alternatives": [
                    {
                        "transcript": c["text"],
                        "words": [{"startOffset": f"{c['start']}s", "endOffset": f"{c['end']}s", "word": "-"}],
                    }
                ],
                "resultEndOffset": "3s",
            }
            for c in WHISPER
        ]
    },
    "Watson": {
        "result_index": 0,
        "results": [
            {
                "final": True,
                "alternatives": [
                    {
                        "transcript": f"{c['text']} %HESITATION ",
                        "timestamps": [["-", c["start"], c["start"] + 0.1], ["-", c["end"] - 0.1, c["end"]]],
                    }
                ],
            }
            for c in WHISPER
        ],
    },
    "Speechmatics": {
        "results": [
            {
                "type": "punctuation" if word == "." else "word",
                **({"attaches_to": "previous"} if word == "." else {}),
                "start_time": start,
                "end_time": end,
                "alternatives": [{"content": word, "confidence": 0.9, "speaker": "UU"}],
            }
            for word, start, end in [
                *(("Hello", 0.5, 0.9), ("there", 0.9, 1.5), (".", 1.5, 1.5)),
                *(("Good", 2.0, 2.4), ("day", 2.5, 3.0), (".", 3.0, 3.0)),
            ]
        ]
    },
    "Deepgram": {
        "results": {"channels": [{"alternatives": [{"transcript": "Hello there. Good day.", "words": WORDS}]}]}
    },
    "Azure": {
        "recognizedPhrases": [
            {"recognitionStatus": "InitialSilenceTimeout", "offsetInTicks": 0, "durationInTicks": 4e6},
            {"offsetInTicks": 5e6, "durationInTicks": 1e7, "nBest": [{"display": "Hello there."}]},
            {"offsetInTicks": 2e7, "durationInTicks": 1e7, "nBest": [{"display": "Good day."}]},
        ]
    },
    "Azure's fast transcription": {
        "combinedPhrases": [{"text": "Hello there. Good day."}],
        "phrases": [
            {"offsetMilliseconds": 500, "durationMilliseconds": 1000, "text": "Hello there."},
            {"offsetMilliseconds": 2000, "durationMilliseconds": 1000, "text": "Good day."},
        ],
    },
    "Rev": {
        "monologues": [
            {
                "elements": [
                    {"type": "text", "value": "Hello", "ts": 0.5, "end_ts": 0.9},
                    {"type": "punct", "value": " "},
                    {"type": "text", "value": "there", "ts": 1.0, "end_ts": 1.5},
                    {"type": "punct", "value": "."},
                    {"type": "text", "value": "Good", "ts": 2, "end_ts": 2.5},
                    {"type": "text", "value": "day", "ts": 2.5, "end_ts": 3},
                    {"type": "punct", "value": "."},
                ]
            }
        ]
    },
    "AssemblyAI": {
        "text": "Hello there. Good day.",
        "utterances": [{"start": c.start_samples, "end": c.end_samples, "text": c.raw} for c in HELLO],
    },
    "AssemblyAI without speakers": {"text": "Hello there. Good day.", "words": IN_MS, "utterances": None},
    "Gladia": {"result": {"transcription": {"full_transcript": "Hello there. Good day.", "utterances": WHISPER}}},
    "ElevenLabs": {"language_code": "eng", "text": "Hello there. Good day.", "words": ELEVEN_LABS},
    "NeMo's manifest": {
        "audio_filepath": "talk.wav",
        "pred_text": "Hello there. Good day.",
        "timestamps_segment": [{"segment": c["text"], "start": c["start"], "end": c["end"]} for c in WHISPER],
    },
    "NeMo's words": {
        "text": "Hello there. Good day.",
        "timestamp": {"word": [{**word, "word": word["punctuated_word"], "start_offset": 6} for word in WORDS]},
    },
    "aeneas": {
        "fragments": [
            {"begin": "0.500", "end": "1.500", "id": "f1", "lines": ["Hello", "there."]},
            {"begin": "2.000", "end": "3.000", "id": "f2", "lines": ["Good day."]},
        ]
    },
    "Vosk": {
        "result": [{**word, "word": word["punctuated_word"]} for word in WORDS],
        "text": "Hello there. Good day.",
    },
}
