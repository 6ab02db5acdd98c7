"""Docstrings as the reference shows them: doctests in fences, names without Sphinx's roles."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLES = re.compile(r":(?:class|func|meth|mod|data|attr):(?=`)")
DOCTEST = re.compile(r"^( *)>>> .*(?:\n(?! *$).*)*", re.MULTILINE)


class Markdown(griffe.Extension):
    """Rewrites every docstring while griffe collects it."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """A docstring as Markdown."""
    text = DOCTEST.sub(lambda found: f"{found[1]}```pycon\n{found[0]}\n{found[1]}```", ROLES.sub("", text))
    return re.sub(r"::$", ":", text, flags=re.MULTILINE)
