"""A figure becomes a PNG or SVG file: whole or not at all, the same bytes for the same picture."""

import io
import os
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.text import Text

from transformer_cli.errors import UserError
from transformer_cli.plots.fonts import fonts_for, missing_note, quiet_boxes
from transformer_cli.plots.style import style
from transformer_cli.publishing import atomic_write

FORMATS = (".png", ".svg")


def check_picture(path: str | Path) -> None:
    """Raise `UserError` where the name is not that of a PNG or SVG file."""
    suffix = Path(path).suffix
    if suffix.lower() not in FORMATS:
        ends = f"ends in {suffix}" if suffix else "has no suffix"
        raise UserError(f"{path}: {ends}, but a picture is a .png or a .svg file; name it so")


def save(figure: Figure, path: str | Path) -> list[str]:
    """Write the picture; return what the user should know of it (characters that no font has).

    Raises `UserError` for a name that is neither PNG's nor SVG's, and `OSError` where it cannot be written.
    """
    check_picture(path)
    notes = _set_fonts(figure)
    content = io.BytesIO()
    with style(), quiet_boxes():
        kind = Path(path).suffix.lower().removeprefix(".")
        metadata = {"png": {"Software": "transformer-cli"}, "svg": {"Date": None}}[kind]  # no time of day
        figure.savefig(content, format=kind, dpi="figure", metadata=metadata)
    try:
        atomic_write(os.path.realpath(path), content.getvalue())
    except OSError as error:
        error.filename = str(path)  # not the temporary one's name
        raise
    return notes


def _set_fonts(figure: Figure) -> list[str]:
    """Give every text the fonts that all of them together need."""
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text)]
    fonts = fonts_for("".join(sorted({character for text in texts for character in text.get_text()})))
    for text in texts:
        text.set_fontfamily(list(fonts.families))
    return [missing_note(fonts.missing)] if fonts.missing else []
