"""The gallery shows every construction, what it says is what the code says, and errors stay below the bounds shown."""

import base64
import re
import xml.etree.ElementTree as ElementTree

import pytest
import torch

from ohmformer import constructions
from ohmformer.apps.report.charts import Curve, draw_bars, draw_curves
from ohmformer.apps.report.depths import HEAT, INVERSES, depth_tables
from ohmformer.apps.report.gallery import exhibits, gallery_graph, kinds_of_layers
from ohmformer.apps.report.weights import layer_tables, similarity_blocks
from ohmformer.constructions import GramSchmidt, SubspaceIteration
from ohmformer.constructions.base import Runnable
from ohmformer.transformer.blocks import Head, Layer, Layout, Program

SHOWN = exhibits()


def test_every_construction_of_the_library_is_shown():
    parts = [part for e in SHOWN for part in (e.construction, *vars(e.construction).values())]
    classes = {name for name in constructions.__all__ if isinstance(getattr(constructions, name), type)}
    abstract = {"Construction", "Orthogonalization", "Gap"}
    trained = {"Learned"}  # of one depth, with a measured error instead of a bound
    assert classes - abstract - trained == {type(part).__name__ for part in parts} & classes
    assert len({e.slug for e in SHOWN}) == len(SHOWN)


@pytest.mark.parametrize("exhibit", SHOWN, ids=lambda e: e.slug)
def test_errors_are_below_the_bounds_that_are_drawn_up_to_rounding(exhibit):
    promised = [point for point in exhibit.points if point.bound is not None]
    assert promised
    for point in promised:
        assert point.error <= point.bound * (1 + 1e-6) + 1e-12
        assert point.printed is None or exhibit.statement.startswith("Lemma")
    assert min(point.error for point in promised) < 0.1 * max(point.error for point in exhibit.points)


@pytest.mark.parametrize("exhibit", SHOWN, ids=lambda e: e.slug)
def test_the_words_come_from_docstrings_without_doctests_or_roles(exhibit):
    for words in (exhibit.update, exhibit.bound):
        assert words
        assert ">>>" not in words
        assert not re.search(r":\w+:`", words)


@pytest.mark.parametrize("exhibit", SHOWN, ids=lambda e: e.slug)
def test_the_pictures_show_every_nonzero_block(exhibit):
    program = exhibit.construction.program(exhibit.depths[-1])
    kinds = list(kinds_of_layers(program))
    pictures = list(exhibit.pictures())
    assert len(pictures) == len(kinds) >= 1
    for (_, layer), (_, tables) in zip(kinds, pictures, strict=True):
        matrices = sum(2 for _ in layer.heads) + bool(layer.skip)
        assert tables.count("<table") == matrices
        assert tables.count("<td") == matrices * len(program.blocks) ** 2
        nonzero = sum(len(h.value) + len(similarity_blocks(h)) for h in layer.heads) + len(layer.skip)
        assert tables.count("background") == nonzero


def test_a_block_is_written_as_a_number_and_a_colour():
    layer = Layer(skip={("a", "a"): -1.0, ("a", "b"): 0.25, ("b", "b"): (0.0, -2.0), ("b", "a"): 1})
    cells = re.findall(r'<td style="background: (#\w{6})\w\w">(.*?)</td>', layer_tables(layer, ["a", "b"]))
    blue, orange = "#3b82f6", "#e8710a"
    assert cells == [(orange, "−I"), (blue, "0.25 I"), (blue, "I"), (orange, "diag(0, −2)")]


def test_the_similarity_that_is_drawn_is_that_of_the_written_out_matrices():
    layout = Layout({"a": 3, "b": 3})
    head = Head(value={}, query={("a", "b"): 2.0}, key={("a", "a"): (1.0, 0.0, -3.0)})
    written = layout.matrix(head.query).mT @ layout.matrix(head.key)
    torch.testing.assert_close(layout.matrix(similarity_blocks(head)), written)


def test_layers_of_one_pattern_are_drawn_once():
    first, second = Layer(skip={("a", "a"): 1.0}), Layer(skip={("a", "b"): 1.0})
    words = [which for which, _ in kinds_of_layers(Program({"a": 1, "b": 1}, [first, second, second, Layer()]))]
    assert words == ["layer 1", "layers 2 to 3"]


def drawn(image: str) -> ElementTree.Element:
    """The SVG inside an HTML image."""
    element = ElementTree.fromstring(image)
    assert element.tag == "img"
    return ElementTree.fromstring(base64.b64decode((element.get("src") or "").removeprefix("data:image/svg+xml;base64,")))


def words(svg: ElementTree.Element) -> list[str]:
    return ["".join(element.itertext()).strip() for element in svg.iter() if element.tag.endswith("}text")]


def test_names_are_escaped_in_pictures():
    image = draw_bars({"<b> $x^2$": 2.0}, "<b>")
    assert "<b>" not in image + layer_tables(Layer(skip={("<b>", "<b>"): 1.0}), ["<b>"])
    assert {"<b> $x^2$", "2 ×"} <= set(words(drawn(image)))  # as text: neither markup nor a formula


@pytest.mark.parametrize("bars", [{}, {"slower": 0.5}, {"a": 3.0, "b": 146.4}])
def test_bars_are_drawn_for_any_ratios(bars: dict[str, float]):
    assert {*bars, *(f"{ratio:g} ×" for ratio in bars.values())} == set(words(drawn(draw_bars(bars, "ratios"))))


def test_curves_show_their_names_and_errors_of_zero_at_the_floor():
    curves = [Curve("measured", [(0, 1.0), (5, 0.0)], {}), Curve("nothing", [], {})]
    shown = words(drawn(draw_curves(curves, "errors")))
    assert "measured" in shown
    assert "nothing" not in shown
    ticks = [float(word) for word in shown if re.fullmatch(r"1e-\d+", word)]
    assert 1e-18 < min(ticks) < 1e-12


def test_the_depth_tables_name_the_statements_of_their_classes():
    text = depth_tables()
    for (_, label), build in {**INVERSES, **HEAT}.items():
        assert label.startswith(build.statement)
        row = re.search(rf"\| {re.escape(label)} \|([\d |]+)\|", text)
        assert row, label
        depths = [int(x) for x in row[1].split("|")]
        assert depths == sorted(depths)  # harder problems need more layers
    assert "| Lemma 1, gradient descent | 219 | 1140 | 23015 |" in text


def test_the_gallerys_graph_is_one_that_can_be_told_apart():
    graph = gallery_graph()
    assert graph.num_components == 1
    assert all(isinstance(e.construction, Runnable) for e in SHOWN)
    assert {type(e.construction) for e in SHOWN} >= {SubspaceIteration, GramSchmidt}
