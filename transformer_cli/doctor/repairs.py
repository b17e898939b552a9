"""What ftfy, where it is installed, makes of text in the wrong encoding: to be named, never to be done."""

from difflib import SequenceMatcher
from importlib.util import find_spec

HINT = "with pip install 'transformer-cli[ftfy]', examples name the repair"


def hint(kind: str) -> str | None:
    """Return how to see the repairs of what is damaged; None: they are seen, or there are none of this kind."""
    return HINT if kind == "encoding_damage" and not _has_ftfy() else None


def repairs(*texts: str) -> dict[str, str]:
    """Return the damaged words of some texts, with what ftfy makes of them; none where it is not installed."""
    if not _has_ftfy():
        return {}
    from ftfy import fix_encoding

    found = {}
    for text in texts:
        damaged, repaired = text.split(" "), fix_encoding(text).split(" ")
        for kind, first, last, start, end in SequenceMatcher(None, damaged, repaired, autojunk=False).get_opcodes():
            if kind != "equal":
                found[" ".join(damaged[first:last])] = " ".join(repaired[start:end])
    return found


def _has_ftfy() -> bool:
    spec = find_spec("ftfy")
    return spec is not None and spec.origin is not None  # not a folder of this name where tfm is called
