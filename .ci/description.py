"""What a package index shows: README.md, with links that work there.

A link into the repository is made absolute with the address that ``[project.urls]`` of pyproject.toml calls ``Source``. As
long as there is none, its words stay without the link, the picture is left out, and a sentence says where the pages are.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
IN_THE_SOURCE = "\nThe pages that are named here are files of the source distribution, in `docs` and `results`.\n"
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://)([^)]+)\)")


def absolute(text: str, source: str | None) -> str:
    """The text with its relative links made absolute, below ``source``."""

    def link(found: re.Match[str]) -> str:
        picture, words, path = found.groups()
        if source is None:
            return "" if picture else words
        return f"{picture}[{words}]({source.rstrip('/')}/{'raw' if picture else 'blob'}/main/{path})"

    return re.sub(r"\n{3,}", "\n\n", LINK.sub(link, text)) + (IN_THE_SOURCE if source is None else "")


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    """The readme of a project, as scikit-build-core asks for it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return {"readme": {"content-type": "text/markdown", "text": absolute(text, project.get("urls", {}).get("Source"))}}
