"""What the documentation site makes while it is built: pages that come from the code, from ``results/`` and ``examples/``.

Generated pages cannot go stale, because they are nowhere but in the built site.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.core import TyperGroup
from typer.main import get_command

from ohmformer.apps.command_line.errors import CODES
from ohmformer.apps.command_line.main import app
from ohmformer.apps.explorer.export import standalone
from ohmformer.apps.explorer.turns import first_state, turn
from ohmformer.apps.report.depths import ERROR, depth_tables
from ohmformer.apps.report.gallery import SETUP, Exhibit, exhibits
from ohmformer.graph.text_table import markdown_table

ROOT = Path(__file__).parents[1]
OPTION = re.compile(r"(?<![\w-])--?[a-z][\w-]*")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The gallery and the results enter the navigation page by page; pages that nobody listed come under "More"."""
    nav: list[Any] = config.nav or []
    for part in nav:
        if "Lemma gallery" in part:
            part["Lemma gallery"] += [{e.title: f"lemmas/{e.slug}.md"} for e in exhibits()]
        if "Measured" in part:
            part["Measured"] += [{_title(path): f"results/{path.name}"} for path in _results()]
    listed = set(_leaves(nav))
    more = [path.name for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in listed]
    config.nav = nav + ([{"More": more}] if more else [])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """All generated pages, and the pictures of ``results/``."""
    for name, text in generated_pages():
        files.append(File.generated(config, name, content=text))
    files.append(File.generated(config, "play.html", content=playing_page()))
    for path in (ROOT / "results").glob("*.svg"):
        files.append(File.generated(config, f"results/{path.name}", content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to ``results/`` lead out of ``docs/`` in the repository, and to pages on the site."""
    up = "../" * page.file.src_uri.count("/")
    return markdown.replace(f"](../{up}results/", f"]({up}results/")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Options of commands, such as ``--resistance``, are not broken after a hyphen."""
    return re.sub(
        r"<code>([^<]*-[^<]*)</code>", lambda code: OPTION.sub(r'<span class="option">\g<0></span>', code[0]), html
    )


def generated_pages() -> Iterator[tuple[str, str]]:
    """Name and Markdown of every generated page."""
    shown = exhibits()
    yield "lemmas/index.md", gallery_index(shown)
    for exhibit in shown:
        yield f"lemmas/{exhibit.slug}.md", gallery_page(exhibit)
    yield "reference/commands.md", command_page()
    yield "examples.md", example_page()
    yield "results/index.md", results_index()
    for path in _results():
        yield f"results/{path.name}", path.read_text(encoding="utf-8")
    yield "changelog.md", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def playing_page() -> str:
    """The page that plays at the start of the site: Lemma 1 beside Chebyshev's cubing, before their first layer."""
    state = turn(first_state({}), "beside", "cubing", {})
    return standalone(replace(state, layer=0), {}, title="Electric flow on a grid: Lemma 1 beside ours")


def gallery_index(shown: Sequence[Exhibit]) -> str:
    """All constructions in a table, and the depths they need."""
    rows = [[e.task, f"[{e.title}]({e.slug}.md)", e.statement] for e in shown]
    return "\n\n".join(
        [
            "# Lemma gallery",
            "Every construction of the library: what a layer does, which weights do it, what is proved, and how the error "
            "falls on one graph (circular skip links, ten nodes, the paper's resistances). These pages are made from the "
            "code when the site is built.",
            markdown_table(["finds", "construction", "statement"], rows),
            f"## Layers for a relative error of {ERROR:.0e}, by the bounds",
            depth_tables(),
            "κ = λmax / λmin. Bounds are for exact arithmetic; `rounding(layers, nodes)` says what floating point may add. "
            "Two of the paper's heat kernels do not reach theirs in float64: Lemma 3 sums terms as large as exp(s λmax), "
            "which leaves nothing of the answer at s λmax = 100, and Lemma 5 multiplies rounding by 3^20 on its way to "
            "1e-10.",
        ]
    )


def gallery_page(e: Exhibit) -> str:
    """One construction."""
    pictures = [
        f'*{words[0].upper()}{words[1:]}*\n\n<div class="pictures">\n{tables}\n</div>' for words, tables in e.pictures()
    ]
    deepest = e.points[-1]
    bound = "" if deepest.bound is None else f", the bound {deepest.bound:.1e}"
    return "\n\n".join(
        [
            f"# {e.title}",
            f"**{e.statement}**: {e.task}.",
            "## Update",
            e.update,
            "## Weights",
            e.weights,
            "A row's block receives from a column's block; blue is positive, orange negative, I the identity.",
            *pictures,
            "## Bound",
            e.bound,
            "## Error",
            f'<div class="plot">\n{e.plot()}\n</div>',
            f"At {deepest.layers} layers the error is {deepest.error:.1e}{bound}.",
            "## Build it",
            f"```python\n{SETUP}\nbuilt = {e.code}\nprogram = built.program({e.depths[-1]})\n```",
        ]
    )


def command_page() -> str:
    """Every command with its options, as the command line itself tells them."""
    root = get_command(app)
    assert isinstance(root, TyperGroup)
    codes = markdown_table(["exit code", "meaning"], [[str(code), words] for code, words in CODES.items()])
    parts = ["# Command line", "The same as `ohmformer --help` and `ohmformer COMMAND --help`.", codes]
    for name, command in sorted(root.commands.items()):
        rows = []
        for option in command.params:
            names = ", ".join(f"`{x}`" for x in (*option.opts, *option.secondary_opts))
            default = "" if option.default in (None, "", False) else f"`{option.default}`"
            rows.append([names, (getattr(option, "help", "") or "").replace("|", "\\|"), default])
        parts += [f"## ohmformer {name}", command.help or "", markdown_table(["option", "what", "default"], rows)]
    return "\n\n".join(parts)


def example_page() -> str:
    """Every script of ``examples/``, with its own words."""
    parts = ["# Examples", "Scripts that run in under a minute each; the tests run them too."]
    for path in sorted((ROOT / "examples").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        words = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
        parts += [f"## {path.name}", words, f"```python\n{text}```"]
    return "\n\n".join(parts)


def results_index() -> str:
    """What was measured."""
    rows = [[f"[{_title(path)}]({path.name})", f"`results/{path.name}`"] for path in _results()]
    return f"# Measured\n\nEvery table names its command, commit and machine.\n\n{markdown_table(['what', 'file'], rows)}"


def _results() -> list[Path]:
    return sorted((ROOT / "results").glob("*.md"))


def _title(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").strip()


def _leaves(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    for part in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else []:
        yield from _leaves(part)
