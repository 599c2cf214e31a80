"""HTK's standard lattice format (SLF), version 1.0. We write words on links, natural logarithms, and times of nodes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from megahour.lattices.lattice import Lattice
from megahour.lattices.loose import WeightedLink, from_links

NULL = ("!NULL", "<eps>", "!SENT_START", "!SENT_END", "<s>", "</s>")
_COMMENT = re.compile(r"(?:^|\s)#.*")  # a word may have this sign too
_SHORT = {"WORD": "W", "START": "S", "END": "E", "time": "t", "acoustic": "a", "language": "l"}  # HTK has both names
_FIELD = re.compile(r'([A-Za-z]+)=("(?:[^"\\]|\\.)*"|\S+)')


def to_slf(name: str, lattice: Lattice, scale: float, frame_s: float) -> str:
    """A lattice in SLF. `a` is the unscaled acoustic ln p, `acscale` its scale, `l` minus the graph cost."""
    head = ["VERSION=1.0", f"UTTERANCE={name}", "lmscale=1", "wdpenalty=0", f"acscale={scale:.9g}"]
    head += ["start=0", f"end={lattice.states - 1}", f"N={lattice.states} L={lattice.arcs}"]
    nodes = [f"I={state} t={frame * frame_s:.4f}" for state, frame in enumerate(lattice.frame.tolist())]
    links = [
        f"J={arc} S={lattice.source[arc]} E={lattice.target[arc]} W={_quoted(lattice, arc)} "
        f"a={-lattice.acoustic[arc]:.9g} l={-lattice.graph[arc]:.9g}"
        for arc in range(lattice.arcs)
    ]
    return "\n".join([*head, *nodes, *links, ""])


def _quoted(lattice: Lattice, arc: int) -> str:
    word = lattice.words[lattice.word[arc]] if lattice.word[arc] else "!NULL"
    if not re.search(r"[\s\"'\\=#]", word):
        return word
    return '"' + re.sub(r'(["\\])', r"\\\1", word) + '"'


def _plain(value: str) -> str:
    """A field's value without its quotes and the backslashes inside them."""
    return re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value


def from_slf(lines: Iterable[str], frame_s: float) -> tuple[str, Lattice]:
    """The utterance's name, "" if it has none, and its lattice, without labels.

    Words may be on links or on nodes; a node's word goes to the links that lead to it. Graph costs contain `lmscale`
    and `wdpenalty`; `acscale` is left to the caller. Raises ValueError: not SLF, no logarithms (base 0), several first
    or last nodes, or an error of `from_links`.
    """
    try:
        return _read(lines, frame_s)
    except (ArithmeticError, LookupError) as error:
        raise ValueError(f"a field is missing or out of range: {error}") from error


def _read(lines: Iterable[str], frame_s: float) -> tuple[str, Lattice]:
    about: dict[str, str] = {}
    nodes: dict[int, dict[str, str]] = {}
    links: list[dict[str, str]] = []
    for line in lines:
        fields = {_SHORT.get(key, key): _plain(value) for key, value in _FIELD.findall(_COMMENT.sub("", line))}
        if "I" in fields:
            nodes[int(fields["I"])] = fields
        elif "J" in fields:
            links.append(fields)
        else:
            about |= fields
    if ("VERSION" not in about and "V" not in about) or not links:
        raise ValueError("not an HTK lattice: VERSION or links are missing")
    unit = math.log(float(about.get("base", math.e)))
    lm_scale, word_bonus = unit * float(about.get("lmscale", "1")), unit * float(about.get("wdpenalty", "0"))
    ends = [(int(link["S"]), int(link["E"])) for link in links]
    start = _only(about.get("start"), {s for s, _ in ends} - {e for _, e in ends}, "begins")
    end = _only(about.get("end"), {e for _, e in ends} - {s for s, _ in ends}, "ends")
    place = {
        node: number for number, node in enumerate([start, *sorted({n for pair in ends for n in pair} - {start, end})])
    }
    words, number = ["<eps>"], dict.fromkeys(NULL, 0)
    made = []
    for (source, target), link in zip(ends, links, strict=True):
        word = link.get("W", nodes.get(target, {}).get("W", "!NULL"))
        if word not in number:
            number[word] = len(words)
            words.append(word)
        graph = -lm_scale * float(link.get("l", "0")) - (word_bonus if number[word] else 0.0)
        acoustic = -unit * float(link.get("a", "0"))
        made.append(WeightedLink(place[source], place.get(target, -1), number[word], graph, acoustic))
    frames = {place.get(node, -1): round(float(fields.get("t", "0")) / frame_s) for node, fields in nodes.items()}
    return about.get("UTTERANCE", about.get("U", "")), from_links(made, {}, words, frames)


def _only(given: str | None, found: set[int], what: str) -> int:
    if given is None and len(found) != 1:
        raise ValueError(f"the lattice {what} in {len(found)} nodes instead of one")
    return int(given) if given is not None else found.pop()
