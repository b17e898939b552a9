"""What happened to the lines translated so far: counted in whatever thread, told in sentences. No torch.

`Pipeline` and `Protector` count; commands tell it, after several processes have counted too.
"""

import threading
from collections.abc import Mapping


class Tally:
    """How many lines, or translations, met with what."""

    NAMES = (
        "cut_lines",  # were too long for one piece
        "caught",  # translations that the guard had searched for again …
        "mended",  # … and those that were better then
        "protected_lines",  # held protected text …
        "split_lines",  # … and those that had to be translated in pieces
    )

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        self._counts = dict.fromkeys(self.NAMES, 0)
        self._lock = threading.Lock()
        self.add(**(counts or {}))

    def add(self, **more: int) -> None:
        """So many more, by name."""
        with self._lock:
            for name, count in more.items():
                self._counts[name] += count

    def __getitem__(self, name: str) -> int:
        return self._counts[name]

    @property
    def counts(self) -> dict[str, int]:
        """All counts so far, by name."""
        with self._lock:
            return dict(self._counts)

    @property
    def notes(self) -> list[str]:
        """What the user should know of it, a sentence each."""
        counts, notes = self.counts, []
        if cut := counts["cut_lines"]:
            were = "1 line was" if cut == 1 else f"{cut:,} lines were"
            notes.append(f"{were} longer than the model takes: cut into pieces, translated and joined")
        if caught := counts["caught"]:
            were = "1 translation" if caught == 1 else f"{caught:,} translations"
            mended = counts["mended"]
            notes.append(
                f"{were} ran in circles or had no end: searched for again without repetition, {mended:,} mended"
            )
        if split := counts["split_lines"]:
            notes.append(
                f"{split:,} of {counts['protected_lines']:,} lines with protected text: its place could not be told;"
                " the text around it was translated in pieces"
            )
        return notes
