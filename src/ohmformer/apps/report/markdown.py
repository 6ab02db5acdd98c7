"""Convert the Markdown files of ``results/`` to self-contained HTML.

Raw HTML is shown as text, pictures from the same folder are embedded, and links to files become plain text.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from ohmformer.apps.report.page import made_by

PICTURES = {".svg": "image/svg+xml", ".png": "image/png"}
LARGEST_PICTURE = 8_000_000
_PARSER = MarkdownIt("commonmark", {"html": False, "xhtmlOut": True}).enable("table")
COMMAND = re.compile(r"(?:python benchmarks/|ohmformer |torchrun |make |pytest )")
"""Pattern of commands that generate results."""
_CONTROLS = {i: None for i in range(32) if chr(i) not in "\t\n\r"}


@dataclass(frozen=True)
class Table:
    """A table of a Markdown file, with cells as text."""

    header: list[str]
    rows: list[list[str]]

    def column(self, name: str) -> int | None:
        """Return the index of a column, or None if there is none of that name."""
        return self.header.index(name) if name in self.header else None


@dataclass(frozen=True)
class Document:
    """A Markdown file: title and text."""

    path: Path
    title: str
    text: str

    @classmethod
    def read(cls, path: Path) -> Document:
        """Read a file; its first line is the title if it is a heading."""
        try:
            text = path.read_text(encoding="utf-8").translate(_CONTROLS)
        except UnicodeDecodeError:
            raise ValueError(f"expected Markdown in {path}, it is not text") from None
        first, _, rest = text.partition("\n")
        return cls(path, first[2:].strip(), rest) if first.startswith("# ") else cls(path, path.stem, text)

    @property
    def anchor(self) -> str:
        """The anchor on the page where the commands of this file are listed."""
        return f"made-{self.path.stem}"

    def commands(self) -> list[tuple[str, str]]:
        """Return the commands that made the tables, each with the text after it: commit, day, machine."""
        found = []
        for token in _PARSER.parse(self.text):
            children = token.children or []
            for i, child in enumerate(children):
                if child.type == "code_inline" and COMMAND.match(child.content):
                    rest = "".join(c.content for c in children[i + 1 :] if c.type in ("text", "softbreak", "code_inline"))
                    found.append((child.content, rest.strip(" ,.").partition(". ")[0]))
                    break
        return found

    def html(self, *, pictures: bool = True) -> str:
        """Convert the text without its title to HTML; tables link to their commands; ``pictures=False`` omits pictures."""
        return to_html(self.text, self.path.parent if pictures else None, self.anchor if self.commands() else "")

    def tables(self) -> list[Table]:
        """Return all tables."""
        return list(_tables(_PARSER.parse(self.text)))

    def pictures(self) -> list[str]:
        """Return all pictures in the same folder, as HTML."""
        found = (child for token in _PARSER.parse(self.text) for child in token.children or [] if child.type == "image")
        return [html for child in found if (html := picture(self.path.parent, str(child.attrs["src"]), child.content))]


def to_html(text: str, folder: Path | None = None, anchor: str = "") -> str:
    """Convert Markdown to HTML; headings begin at level 3, and pictures are read from ``folder``.

    With an ``anchor`` every table is followed by the last command above it, as a link to that anchor.
    """
    tokens: list[Token] = []
    command = ""
    for token in _PARSER.parse(text):
        said = [c.content for c in token.children or [] if c.type == "code_inline" and COMMAND.match(c.content)]
        command = said[0] if said else command
        tokens.append(token)
        if token.type == "table_close" and anchor and command:
            tokens.append(Token("html_block", "", 0, content=made_by(command, anchor)))
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1]) + 1, 6)}"
        if token.children:
            token.children = list(_self_contained(token.children, folder))
    html = _PARSER.renderer.render(tokens, _PARSER.options, {})
    html = re.sub(r"<th([^>]*)></th>", r"<td\1></td>", html)  # screen readers should not announce empty headers
    return html.replace("<table>", '<div class="scroll"><table>').replace("</table>", "</table></div>")


def picture(folder: Path | None, name: str, words: str) -> str:
    """Embed a picture of a folder in HTML; empty if it does not exist or is not directly in that folder."""
    if folder is None or Path(name).name != name or Path(name).suffix not in PICTURES:
        return ""
    path = folder / name
    if not path.is_file() or path.stat().st_size > LARGEST_PICTURE:
        return ""
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img src="data:{PICTURES[path.suffix]};base64,{data}" alt="{escape(words)}" />'


def _self_contained(children: Sequence[Token], folder: Path | None) -> Iterator[Token]:
    """Embed pictures, and remove links that a self-contained page cannot resolve."""
    kept: list[bool] = []
    for child in children:
        if child.type == "link_open":
            kept.append(str(child.attrs["href"]).startswith(("http://", "https://", "#")))
        drop = child.type in ("link_open", "link_close") and not kept[-1]
        if child.type == "link_close":
            kept.pop()
        if child.type == "image":
            html = picture(folder, str(child.attrs["src"]), child.content)
            yield Token("html_inline", "", 0, content=html)
        elif not drop:
            yield child


def _tables(tokens: Sequence[Token]) -> Iterator[Table]:
    """Yield the tables among the tokens of a Markdown text."""
    rows: list[list[str]] = []
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type == "table_open":
            rows = []
        elif token.type == "tr_open":
            rows.append([])
        elif token.type == "inline" and before is not None and before.type in ("th_open", "td_open"):
            rows[-1].append(token.content)
        elif token.type == "table_close" and rows:
            yield Table(rows[0], rows[1:])
