"""What the pages of HTML have in common: one file, no network, nothing that runs, readable on a phone and on paper."""

import html

NOTHING_ELSE = "default-src 'none'; style-src 'unsafe-inline'"  # no script, no request: a browser holds the page to it
SHOWN = 160  # characters of an example

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; padding: .3rem .6rem; vertical-align: top; } tr + tr td { border-top: 1px solid #8884; }
.count { text-align: right; font-variant-numeric: tabular-nums; } svg { max-width: 100%; height: auto; }
section { margin: 2rem 0; } .serious h2::before { content: "● "; color: #c33; }
code { font-size: .95em; } .example td { font-size: .95em; overflow-wrap: anywhere; }
.example .count { overflow-wrap: normal; } figure { margin: 1rem 0; }
"""


def page(title: str, parts: list[str], style: str = "") -> str:
    """Return a whole page of parts in HTML below its title, which is text; style: more, for this page."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
            f'<meta http-equiv="Content-Security-Policy" content="{NOTHING_ELSE}">',
            f"<title>{html.escape(title)}</title><style>{STYLE}{style}</style></head><body>",
            f"<h1>{html.escape(title)}</h1>",
            *parts,
            "</body></html>\n",
        ]
    )


def figure(caption: str, svg: str) -> str:
    """Return a picture with its caption, which is text."""
    return f"<figure><figcaption>{html.escape(caption)}</figcaption>{svg}</figure>"


def short(text: str) -> str:
    """Return the beginning of a long text."""
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def printable(text: str) -> str:
    """Return a text with its control characters written out."""
    return "".join(one if one.isprintable() or (one.isspace() and one > " ") else f"\\x{ord(one):02x}" for one in text)
