"""Files that requests bring: text, subtitles and HTML to lines and back; and where results wait, in memory alone."""

import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from transformer_cli.serve.html import runs


class Parts(NamedTuple):
    """The lines of a document that are translated, and how it is written with their translations."""

    lines: list[str]
    write: Callable[[Sequence[str]], str]


def text_parts(text: str) -> Parts:
    """Return the lines of a text, which keep their ends; those without a word stay as they are."""
    parts = re.split(r"(\r?\n)", text)
    places = [place for place in range(0, len(parts), 2) if parts[place].strip()]

    def write(translations: Sequence[str]) -> str:
        new = dict(zip(places, translations, strict=True))
        return "".join(new.get(place, part) for place, part in enumerate(parts))

    return Parts([parts[place] for place in places], write)


def html_parts(text: str, *, xml: bool = False) -> Parts:
    """Return the lines of an HTML document or fragment."""
    found = runs(text, xml=xml)

    def write(translations: Sequence[str]) -> str:
        rest = iter(translations)
        return "".join(run.written(next(rest)) if run.line else run.raw for run in found)

    return Parts([run.line for run in found if run.line], write)


def subtitle_parts(text: str) -> Parts:
    """Return the text of each cue of an SRT or WebVTT file as a line; it comes back in as many lines as it had."""
    parts = re.split(r"(\r?\n)", text)
    cues: list[list[int]] = []
    timed = False  # whether we are between the times of a cue and the empty line after it
    for place in range(0, len(parts), 2):
        if not parts[place].strip():
            timed = False
        elif timed:
            cues[-1].append(place)
        elif "-->" in parts[place]:
            timed = True
            cues.append([])
    cues = [cue for cue in cues if cue]

    def write(translations: Sequence[str]) -> str:
        written = list(parts)
        for cue, translation in zip(cues, translations, strict=True):
            for place, line in zip(cue, _in_lines(translation, len(cue)), strict=True):
                written[place] = line
        return "".join(written)

    return Parts([" ".join(parts[place].strip() for place in cue) for cue in cues], write)


def _in_lines(text: str, count: int) -> list[str]:
    """Return a text in so many lines of like lengths; with fewer words, the last ones hold no text but a space."""
    lines: list[str] = []
    words = text.split()
    for left in range(count, 0, -1):
        size = sum(map(len, words)) / left
        line: list[str] = []
        while words and (left == 1 or not line or sum(map(len, line)) + len(words[0]) / 2 <= size):
            line.append(words.pop(0))
        lines.append(" ".join(line) or "\u00a0")
    return lines


FORMS: dict[str, Callable[[str], Parts]] = {
    "text": text_parts,
    "subtitles": subtitle_parts,
    "html": html_parts,
    "xml": partial(html_parts, xml=True),
}
TAGGED = ("html", "xml")
FILES = {".txt": "text", ".srt": "subtitles", ".vtt": "subtitles", ".html": "html", ".htm": "html"}  # their forms


class Results:
    """Translated files that wait to be fetched, by names that nobody can guess; the oldest give way.

    Threads may share it.
    """

    def __init__(self, most_bytes: int = 50_000_000, seconds: float = 1800.0) -> None:
        self.most_bytes, self.seconds = most_bytes, seconds
        self._files: OrderedDict[str, tuple[bytes, float]] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, content: bytes, suffix: str) -> str:
        """Return the name of a new one."""
        name = secrets.token_urlsafe(24) + suffix
        with self._lock:
            self._files[name] = content, time.monotonic() + self.seconds
            self._drop()
        return name

    def find(self, name: str) -> bytes | None:
        """Return what is kept by a name; None: nothing, or no more."""
        with self._lock:
            self._drop()
            return self._files.get(name, (None, 0.0))[0]

    def _drop(self) -> None:
        total = sum(len(content) for content, _ in self._files.values())
        for name, (content, until) in list(self._files.items()):
            if total <= self.most_bytes and until > time.monotonic():
                break
            total -= len(content)
            del self._files[name]
