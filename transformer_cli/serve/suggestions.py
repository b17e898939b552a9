"""Better translations that users suggest: kept for training, and beside them what is obviously none. No torch."""

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_cli.data.quality.languages import LanguageIdentifier
from transformer_cli.data.quality.pair_checks import PairChecks, log_ratio


@dataclass(frozen=True)
class Suggestion:
    """A better translation of a text than a model's."""

    source: str
    target: str
    source_language: str
    target_language: str
    model: str
    translation: str  # the model's own

    def faults(self, languages: LanguageIdentifier | None) -> list[str]:
        """Return what `tfm doctor` would say of it; it may be as long as the text, or as the model's translation."""
        usual = 1.0, math.exp(log_ratio(self.source, self.translation))
        both = [PairChecks(usual_ratio=ratio)(self.source, self.target) for ratio in usual]
        found = [kind for kind in both[0] if kind in both[1]]
        if self.target.strip() == self.source.strip() != self.translation.strip():
            found.append("identical_sides")
        elif languages is not None and "empty_side" not in found:
            scores = languages.score([self.target], 1)
            if languages.is_other(scores, 1)[0] or languages.is_foreign(scores, 1)[0]:
                found.append("wrong_language")
        if self.source.strip().count("\n") != self.target.strip().count("\n"):
            found.append("misaligned")
        return found


@dataclass(frozen=True)
class Suggestions:
    """The files in which suggestions are kept, JSON lines that `data.train` reads."""

    path: Path

    @property
    def set_aside(self) -> Path:
        """Where those are that are obviously none, each with the faults that it has."""
        return self.path.with_name(f"{self.path.name.removesuffix('.jsonl')}.set-aside.jsonl")

    def keep(self, suggestion: Suggestion, faults: list[str]) -> None:
        """Append a suggestion, a line for each of its lines, or set it aside if it has faults."""
        content: dict[str, Any] = {**vars(suggestion), "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        if faults:
            rows = [{**content, "faults": faults}]
        else:
            sides = (text.strip().split("\n") for text in (suggestion.source, suggestion.target))
            rows = [{**content, "source": line, "target": better} for line, better in zip(*sides, strict=True)]
        written = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
        with open(self.set_aside if faults else self.path, "ab") as file:  # one write, so that lines stay whole
            file.write(written.encode())
