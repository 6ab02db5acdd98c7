"""The sections of the report, made from the files of ``results/`` and ``runs/`` and from the code itself."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ohmformer.apps.report.charts import draw_bars
from ohmformer.apps.report.depths import ERROR, depth_tables
from ohmformer.apps.report.gallery import exhibits
from ohmformer.apps.report.markdown import Document, Table, picture, to_html
from ohmformer.apps.report.page import Section, folded, html_table, made_by
from ohmformer.experiments.learn.figures import PANELS, PRESETS
from ohmformer.native import machine

MOLECULES = ("table2", "molecules", "pretraining")
"""Name prefixes of tables about molecules."""
REAL = ("real_graphs", "edge_resistances", "certificates", "any_graph")
ZINC12K = ("zinc12k", "csl")
DREAM = ("dream",)
DREAM_COMMAND = "ohmformer dream runs/reproduce/zinc12k"
SCALE = ("scale", "distributed", "encoding-large", "encoding-scale")
SOURCE = Path(__file__).parents[4]
"""The root of the source tree, if this is a checkout and not an installed wheel."""
THEIRS = ", the authors'"
"""The suffix that marks rows with the authors' numbers in a figure's table."""


def sections(results: Path, runs: Path) -> list[Section]:
    """Build all sections, in page order."""
    documents = [Document.read(path) for path in sorted(results.glob("*.md"))]

    def named(*prefixes: str) -> list[Document]:
        return [d for prefix in prefixes for d in documents if d.path.stem.startswith(prefix)]

    figures = [d for d in documents if d.path.stem.split("-")[0] in PANELS]
    placed = [*figures, *named(*MOLECULES, *REAL, *ZINC12K, *DREAM, *SCALE)]
    zinc12k = () if named("zinc12k") else ("ohmformer reproduce zinc12k",)
    return [
        solved_circuit(runs),
        claims(documents),
        lemmas(runs),
        errata(),
        compared_figures(figures),
        measured("real-graphs", "Real graphs", named(*REAL), _benchmark("real_graphs.py", named("real_graphs"))),
        measured("zinc12k", "ZINC-12k", named(*ZINC12K), zinc12k),
        measured(
            "dream", "Do trained networks hold electric flow?", named(*DREAM), () if named(*DREAM) else (DREAM_COMMAND,)
        ),
        measured("scale", "Scale", named(*SCALE), _benchmark("scale.py", named("scale"))),
        measured("molecules", "Molecules", named(*MOLECULES), () if named("table2") else ("ohmformer reproduce table2",)),
        benchmarks([d for d in documents if d not in placed]),
        training_runs(runs),
        commands(documents),
        this_machine(),
    ]


def measured(name: str, title: str, documents: Sequence[Document], missing: tuple[str, ...]) -> Section:
    """Build the section on one topic from its measurements, file by file."""
    return Section(name, title, _titled(documents), missing)


def _titled(documents: Sequence[Document]) -> str:
    return "\n".join(f"<h3>{escape(d.title)}</h3>\n{d.html()}" for d in documents)


def _benchmark(script: str, found: Sequence[Document]) -> tuple[str, ...]:
    there = bool(found) or not (SOURCE / "benchmarks").is_dir()
    return () if there else (f"python benchmarks/{script}",)


def commands(documents: Sequence[Document]) -> Section:
    """Build the section of commands that made the tables; every table links to its row here."""
    rows = "".join(
        f'<tr id="{escape(d.anchor)}"><td>{escape(d.title)}</td><td>'
        + "<br />".join(f"<code>{escape(command)}</code> {escape(rest)}" for command, rest in found)
        + "</td></tr>"
        for d in documents
        if (found := d.commands())
    )
    words = "<p>Every table above names the command that made it; here they stand with commit, day and machine.</p>"
    head = "<thead><tr><th>table</th><th>made by</th></tr></thead>"
    table = f'<div class="scroll"><table>{head}<tbody>{rows}</tbody></table></div>'
    return Section("commands", "Commands", words + table if rows else "")


def solved_circuit(runs: Path) -> Section:
    """Build the section with the picture that ``ohmformer demo`` draws."""
    html = picture(runs / "demo", "circuit.png", "A solved circuit: potentials as colours, currents as arrows")
    words = "<p>Potentials settle layer by layer; colours are potentials, arrows currents.</p>"
    shown = f'<figure class="hero">{html}<figcaption>{words}</figcaption></figure>' if html else ""
    return Section("circuit", "A circuit solved by attention", shown, () if html else (f"ohmformer demo --out {runs}/demo",))


def lemmas(runs: Path) -> Section:
    """Build the section of verified lemmas, required depths, and each construction's error against its bound."""
    path = runs / "verify.json"
    parts = []
    if path.is_file():
        parts.append(_verification(_read_json(path), path) + made_by("ohmformer verify --out runs/verify.json"))
    parts.append(f"<h3>Layers for a relative error of {ERROR:.0e}, by the bounds</h3>")
    parts.append(to_html(depth_tables()).replace("</table></div>", "</table></div>" + made_by("ohmformer report")))
    parts.append("<h3>Every construction: its update, its bound, its error</h3>")
    parts.append(
        '<p class="quiet">Measured on one weighted graph of circular skip links with ten nodes, in float64: relative '
        "errors, for eigenvectors the sine of the largest angle, for orthonormal columns the norm of ΦᵀΦ − I. Below about "
        "1e-15 rounding is all there is.</p>" + made_by("ohmformer report")
    )
    cards = []
    for shown in exhibits():
        cards.append(
            f'<article class="card"><h3>{escape(shown.title)}</h3><p class="quiet">{escape(shown.statement)}; '
            f"{escape(shown.task)}</p>{to_html(shown.update)}<p><b>Bound.</b></p>{to_html(shown.bound)}{shown.plot()}</article>"
        )
    parts.append(f'<div class="cards">{"".join(cards)}</div>')
    return Section(
        "lemmas", "Lemmas and bounds", "\n".join(parts), () if path.is_file() else (f"ohmformer verify --out {path}",)
    )


def _verification(found: Mapping[str, Any], path: Path) -> str:
    header = [
        "construction",
        "statement",
        "checks",
        "depth",
        "error",
        "bound",
        "error / bound",
        "against plain",
        "dense",
        "violations",
    ]
    try:
        rows = [
            [
                row["construction"], row["statement"], f"{row['checks']:,}", str(row["layers"]),
                *(f"{row[name]:.1e}" for name in ("error", "bound")), f"{row['ratio']:.3f}",
                *(f"{row[name]:.1e}" for name in ("plain", "dense")), str(row["violations"]),
            ]
            for row in found["rows"]
        ]  # fmt: skip
        checks = sum(row["checks"] for row in found["rows"])
        verdict = "no violation" if found["violations"] == 0 else f"{found['violations']} violations"
        graphs = int(found["graphs"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"expected what `ohmformer verify --out` writes in {path}: {error!r}") from error
    kind = "good" if found["violations"] == 0 else "bad"
    return (
        f'<p><span class="{kind}">{escape(verdict)}</span> in {checks:,} checks on {graphs} graphs. Error and bound are '
        "those of the worst graph at the greatest depth; error / bound is the worst of all, rounding counted in.</p>"
        + html_table(header, rows, numbers_from=2)
    )


def claims(documents: Sequence[Document]) -> Section:
    """Build the section of the paper's claims with verdict, evidence and command, and our own corrected ones."""
    text = _page_of_the_docs("claims.md").text
    for document in documents:
        text = text.replace(f"](../results/{document.path.name})", f"](#{document.anchor})")
    html = to_html(text)
    for verdict in ("holds", "corrected", "refuted"):
        html = html.replace(f"<td>{verdict}</td>", f'<td class="{verdict}">{verdict}</td>')
    return Section("claims", "Claims of the paper, and ours", html)


def errata() -> Section:
    """Build the section of the paper's errata."""
    return Section(
        "errata",
        "Errata of the paper",
        to_html(_page_of_the_docs("errata.md").text) + made_by("pytest tests/test_errata.py"),
    )


def _page_of_the_docs(name: str) -> Document:
    """Read a page of the documentation, in a wheel from beside this file."""
    beside = Path(__file__).with_name(name)
    return Document.read(beside if beside.is_file() else SOURCE / "docs" / name)


def compared_figures(documents: Sequence[Document]) -> Section:
    """Build the section of Figures 1 to 3, at the largest preset run, with the authors' numbers beside ours."""
    parts, missing = [], []
    for figure in PANELS:
        mine = {d.path.stem.split("-", 1)[-1]: d for d in documents if d.path.stem.startswith(f"{figure}-")}
        largest = next((preset for preset in reversed(PRESETS) if preset in mine), None)
        if largest is None:
            missing.append(f"ohmformer reproduce {figure}")
            continue
        document = mine[largest]
        parts.append(f"<h3>{escape(document.title)}</h3>")
        made = "".join(made_by(command, document.anchor) for command, _ in document.commands()[:1])
        parts += [f"<figure>{html}</figure>{made}" for html in document.pictures()]
        compared = [table for found in document.tables() if (table := beside_the_authors(found))]
        if compared:
            parts.append("<p>Natural logs of the loss, by depth; lower is better.</p>")
            parts += [html_table(table.header, table.rows, numbers_from=4) + made for table in compared]
        parts.append(folded("All numbers of this figure", document.html(pictures=False)))
    return Section("figures", "Figures 1 to 3 beside the authors' numbers", "\n".join(parts), tuple(missing))


def beside_the_authors(table: Table) -> Table | None:
    """Return the rows with the authors' numbers, each followed by ours and the difference; None if there are none."""
    measured = table.column("measured")
    if measured is None:
        return None
    rows = {tuple(row[: measured + 1]): row for row in table.rows}
    found = []
    for key, theirs in rows.items():
        ours = rows.get((*key[:-1], key[-1].removesuffix(THEIRS)))
        if key[-1].endswith(THEIRS) and ours is not None:
            name = key[-1].removesuffix(THEIRS)
            pairs = list(zip(theirs[measured + 1 :], ours[measured + 1 :], strict=True))
            gaps = [f"{float(b) - float(a):+.2f}" if a and b else "" for a, b in pairs]
            what = [*key[:2], name]
            found += [[*what, "the authors'", *(a for a, _ in pairs)], [*what, "ours", *(b for _, b in pairs)]]
            found.append([*what, "difference", *gaps])
    depths = [f"depth {depth}" for depth in table.header[measured + 1 :]]
    return Table([*table.header[:2], "measured", "whose", *depths], found) if found else None


def benchmarks(documents: Sequence[Document]) -> Section:
    """Build the section of all other measurements, ratios first."""
    advice = "make bench"
    if not (SOURCE / "benchmarks").is_dir():
        advice = "ohmformer report --results FOLDER, with the folder results of the library's source,"
    bars = {name: ratio for d in documents for table in d.tables() for name, ratio in ratios(table)}
    drawn = [d for d in documents if any(list(ratios(table)) for table in d.tables())]
    sources = "".join(made_by(command, d.anchor) for d in drawn for command, _ in d.commands()[:1])
    chart = draw_bars(bars, "How many times faster, on a logarithmic axis") + sources if bars else ""
    words = "<p>How many times faster than what a user would call instead, from the tables below.</p>" if bars else ""
    return Section("benchmarks", "Benchmarks", words + chart + _titled(documents), () if documents else (advice,))


def ratios(table: Table) -> Iterator[tuple[str, float]]:
    """Yield names and ratios of comparisons from a table that has columns for them."""
    question, instead, ratio = (table.column(name) for name in ("question", "instead", "ratio"))
    if question is None or instead is None or ratio is None:
        return
    for row in table.rows:
        try:
            value = float(row[ratio].split()[0])
        except (IndexError, ValueError):
            continue
        if math.isfinite(value):
            ours = table.column("ours")
            how = row[ours].rsplit(",", 1)[-1].strip() if ours is not None and "questions" in row[ours] else ""
            yield f"{row[question]}{f' ({how})' if how else ''}: against {row[instead]}".replace("`", ""), value


def training_runs(runs: Path) -> Section:
    """Build the section of trainings by ``ohmformer learn``."""
    rows = []
    for path in sorted(runs.glob("learn/*/result.json")):
        found = _read_json(path)
        losses = {k.removeprefix("mean_").replace("_", " "): v for k, v in found.items() if k.startswith("mean_log_")}
        shown = ", ".join(f"{name} {value:.2f}" for name, value in losses.items() if isinstance(value, int | float))
        rows.append([path.parent.name, shown, str(found.get("steps", "")), f"{float(found.get('seconds', 0)):.0f} s"])
    html = html_table(["run", "natural logs of the losses, means over seeds", "steps", "took"], rows, numbers_from=2)
    command = "ohmformer learn --task electric --budget 40s"
    return Section("runs", "Training runs", html + made_by("ohmformer learn") if rows else "", () if rows else (command,))


def this_machine() -> Section:
    """Build the section on the machine that made the report; every table names its own machine."""
    words = "<p>Where this page was made. Every table above names the machine, command and commit of its own numbers.</p>"
    return Section(
        "machine", "The machine", words + html_table(["what", "which"], list(machine.facts().items()), numbers_from=2)
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"expected JSON in {path}: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"expected a JSON object in {path}, got {type(found).__name__}")
    return found
