"""The constructions that the page offers for each task, and what it says about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ohmformer import constructions as built
from ohmformer.constructions.base import Construction
from ohmformer.constructions.learned import learned
from ohmformer.graph import Graph, Spectrum

TRAINED = "trained:"
"""How the method of a trained checkpoint begins; its name follows."""


@dataclass(frozen=True)
class Task:
    """A task of the page, described in words."""

    label: str
    says: str
    value: str
    """What the colour of a node shows."""
    unit: str
    signed: bool
    """Whether values have both signs."""
    flows: bool = False
    """Whether differences of values drive a current through the edges."""


TASKS = {
    "electric": Task(
        "Electric flow",
        "Potentials φ = L⁺ψ of the current ψ that you put in and take out; it runs downhill, and on every edge its strength "
        "is the difference of potentials over the resistance.",
        "potential", "V", signed=True, flows=True,
    ),
    "resistance": Task(
        "Resistance from a node",
        "The effective resistance from the marked node to every other: the potential difference that drives one ampere "
        "between the two. It is |mᵢ − mⱼ|² for the rows m of any square root of L⁺.",
        "resistance", "Ω", signed=False,
    ),
    "heat": Task(
        "Heat",
        "One unit of heat is put on the marked node and left alone for a time s: exp(−sL) applied to it. Nothing is lost, "
        "so the values always sum to one.",
        "heat", "", signed=False, flows=True,
    ),
    "eigenvector": Task(
        "Eigenvector",
        "A column of numbers that the Laplacian only stretches, Lv = λv. The smallest ones vary slowly over the graph, the "
        "largest ones from each node to the next.",
        "eigenvector", "", signed=True,
    ),
}  # fmt: skip
"""The questions, by name."""


@dataclass(frozen=True)
class Method:
    """A construction: its name on the page, a layer in one line, and its bound."""

    label: str
    update: str
    says: str
    build: Callable[[Spectrum, float], Construction]
    """Builds it from the spectrum of the graph and the time s."""
    anytime: bool = True
    """Whether every layer holds an approximation; otherwise only the last one does, and only it has a bound."""
    train: Callable[[Graph, int], Construction] | None = None
    """Trains it for a graph and a depth instead; nothing is proved of it then."""


@dataclass(frozen=True)
class Iteration:
    """Build a subspace iteration, with Lemma 8 between its steps."""

    label: str
    update: str
    says: str
    multiply: Callable[[Spectrum], built.Laplacian]


LEMMA_1 = Method(
    "Lemma 1 · gradient descent",
    "φ ← φ − δ (Lφ − ψ)",
    "Attention supplies Lφ = B(Bᵀφ), so one layer is one step of gradient descent on the energy. The error shrinks at least "
    "by 1 − λₘᵢₙ/λₘₐₓ a layer.",
    lambda spectrum, _: built.GradientDescent(spectrum),
)
CHEBYSHEV = Method(
    "Chebyshev · ours",
    "φ ← ω (φ + γ (ψ − Lφ)) + (1 − ω) φ₋₁",
    "One more block of tokens remembers the previous potentials. The error polynomial is the smallest there is: depth grows "
    "with the square root of λₘₐₓ/λₘᵢₙ.",
    lambda spectrum, _: built.Chebyshev(spectrum),
)
LEMMA_4 = Method(
    "Lemma 4 · squaring",
    "X ← X + RX,   R ← R²",
    "Every layer doubles the number of terms of the series for L⁺, so depth grows with the logarithm of λₘₐₓ/λₘᵢₙ. The "
    "printed weights need a correction; these are the corrected ones.",
    lambda spectrum, _: built.Squaring(spectrum),
)
CUBING = Method(
    "Chebyshev cubing · ours",
    "R ← (R³ − uR)/(1 − u),   X ← X + (R²X + RX)/(1 − u)",
    "Attention is cubic and so is T₃: a layer composes the residual with it, and L layers reach Chebyshev's polynomial of "
    "degree 3ᴸ⁻¹.",
    lambda spectrum, _: built.ChebyshevCubing(spectrum),
)
LEARNED = Method(
    "Learned on copies · ours",
    "φ ← φ + rφ + aψ + vLφ",
    "Ten numbers a layer, trained by least squares on copies of this graph whose resistances are drawn anew, each times e⁻¹ "
    "to e; this graph is not among them. Only the last layer has arrived, and there is no bound.",
    lambda spectrum, _: built.GradientDescent(spectrum),
    anytime=False,
    train=lambda graph, layers: learned("electric", copies(graph), layers=layers),
)
LEARNED_LAYERS = 9
"""The depth that is proposed for it; beyond twenty or so its sums of powers lose digits."""


def copies(graph: Graph) -> list[Graph]:
    """Draw copies of a graph with other resistances, fewer of large graphs, whose eigenvalues take longer."""
    draw = torch.Generator().manual_seed(0)
    noise = torch.rand(max(5, min(40, 4000 // graph.num_nodes)), graph.num_edges, generator=draw, dtype=torch.float64)
    return [
        Graph.from_edges(graph.edge_index.t(), num_nodes=graph.num_nodes, resistance=graph.resistance * (2 * x - 1).exp())
        for x in noise
    ]


METHODS: dict[str, dict[str, Method | Iteration]] = {
    "electric": {
        "gradient-descent": LEMMA_1,
        "chebyshev": CHEBYSHEV,
        "squaring": LEMMA_4,
        "cubing": CUBING,
        "learned": LEARNED,
    },
    "resistance": {
        "power-series": Method(
            "Lemma 2 · power series",
            "M ← M + αP,   P ← P − δLP",
            "The series of √L⁺, one term a layer; rows of M are points whose squared distances are the resistances.",
            lambda spectrum, _: built.PowerSeriesRoot(spectrum),
        ),
        "newton-schulz": Method(
            "Newton–Schulz root · ours",
            "Y ← aY − bY(ZY),   Z ← aZ − bZ(YZ)",
            "Two heads find √L and √L⁺ together; the distance to them is about squared by every layer.",
            lambda spectrum, _: built.NewtonSchulzRoot(spectrum),
        ),
        "gradient-descent": LEMMA_1,
        "squaring": LEMMA_4,
        "cubing": CUBING,
        "learned": LEARNED,
    },
    "heat": {
        "taylor": Method(
            "Lemma 3 · power series",
            "h ← h + t,   t ← −s/(ℓ+1) Lt",
            "The series of exp(−sL), one term a layer. Terms grow until layer sλₘₐₓ before they shrink, and rounding grows "
            "with them.",
            lambda spectrum, s: built.TaylorHeat(spectrum, s),
        ),
        "cubed": Method(
            "Lemma 5 · cubing",
            "K ← K³,   from K = I − (s/3ᶜ) L",
            "A short time first, then every layer triples it. Only the last layer has arrived at time s, so only it has a "
            "bound.",
            lambda spectrum, s: built.CubedHeat(spectrum, s),
            anytime=False,
        ),
        "seeded": Method(
            "Cubing from a seed · ours",
            "K ← K³,   from a Taylor polynomial of exp(−sL/3ᶜ)",
            "The first layers raise the degree of the seed by two each, the rest triple the time. Only the last layer has "
            "arrived.",
            lambda spectrum, s: built.SeededHeat(spectrum, s),
            anytime=False,
        ),
    },
    "eigenvector": {
        "smallest": Iteration(
            "Corollary 7 · smallest",
            "Φ ← orthonormalise((λₘₐₓ I − L) Φ)",
            "Subspace iteration with λₘₐₓ I − L finds the bottom of the spectrum; Lemma 8 makes the columns orthonormal, "
            "one layer a column. The angle shrinks by the ratio of two neighbouring eigenvalues a step.",
            built.Shifted,
        ),
        "through-pinv": Iteration(
            "Through L⁺ · ours",
            "Φ ← orthonormalise(L⁺Φ)",
            "The first layers make L⁺, whose leading eigenvectors are the smallest of L, and far better separated.",
            built.ThroughPinv,
        ),
        "largest": Iteration(
            "Lemma 6 · largest",
            "Φ ← orthonormalise(LΦ)",
            "Subspace iteration with L itself finds the top of the spectrum; Lemma 8 makes the columns orthonormal, one "
            "layer a column.",
            built.Laplacian,
        ),
    },
}
"""By task and name; the first of each is what the page starts with."""


def explained(task: str, method: str) -> tuple[str, str, str]:
    """Name a construction or a trained checkpoint as the page does, with its layer in one line and what is to be said."""
    if method.startswith(TRAINED):
        says = (
            "Weights that were trained, not built: there is no bound. An answer counts up to scale, so the nearest multiple "
            "is shown."
        )
        return f"Trained · {method.removeprefix(TRAINED)}", "", says
    found = METHODS[task][method]
    return found.label, found.update, found.says
