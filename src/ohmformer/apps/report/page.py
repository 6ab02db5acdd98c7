"""A self-contained HTML page: no script, no font, no request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files


@dataclass(frozen=True)
class Section:
    """A section of the page."""

    name: str
    title: str
    html: str
    missing: tuple[str, ...] = ()
    """Commands that would generate the missing content."""


def page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """Return the whole page; ``title`` is text, ``lead`` and the sections are HTML."""
    style = files("ohmformer.apps.report").joinpath("style.css").read_text(encoding="utf-8")
    contents = "".join(f'<li><a href="#{escape(s.name)}">{escape(s.title)}</a></li>' for s in sections)
    body = "\n".join(
        f'<section id="{escape(s.name)}"><h2>{escape(s.title)}</h2>\n{s.html}{_missing(s.missing)}</section>'
        for s in sections
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8" />
<meta name="viewport" content="width=device-width, initial-scale=1" />
<meta name="color-scheme" content="light dark" />
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
<header><h1>{escape(title)}</h1>
{lead}
<nav aria-label="Contents"><ul>{contents}</ul></nav></header>
<main>
{body}
</main>
</body>
</html>
"""


def _missing(commands: Sequence[str]) -> str:
    return "".join(f'<p class="missing">Nothing here yet: <code>{escape(c)}</code> makes it.</p>' for c in commands)


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers_from: int = 1) -> str:
    """Return an HTML table of text cells; columns from ``numbers_from`` on are aligned right."""

    def cell(i: int, words: str, tag: str) -> str:
        kind = ' class="number"' if i >= numbers_from else ""
        return f"<{tag}{kind}>{escape(words)}</{tag}>"

    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(cell(i, words, tag) for i, words in enumerate(row))

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{cells(header, "th")}</tr></thead><tbody>{body}</tbody></table></div>'


def made_by(command: str, anchor: str = "") -> str:
    """Return a line naming the command that made the content above, linked to ``anchor`` if given."""
    words = f'<a href="#{escape(anchor)}">made by</a>' if anchor else "made by"
    return f'<p class="made">{words} <code>{escape(command)}</code></p>\n'


def folded(summary: str, html: str) -> str:
    """Return HTML that is collapsed until clicked; it is always printed."""
    return f"<details><summary>{escape(summary)}</summary>\n{html}</details>"
