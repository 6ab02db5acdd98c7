"""Values of probes over seeds, as a table, a figure and a paragraph."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer.graph.draw import save_both
from ohmformer.graph.extras import require
from ohmformer.graph.files import write_text
from ohmformer.graph.text_table import markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONTROLS = ("trained", "degree", "untrained", "features", "shuffled")
STYLES = {"trained": "C0-o", "degree": "C0--", "untrained": "C1-s", "features": "C2:", "shuffled": "0.6"}
WORDS = {"degree": "degrees taken out", "shuffled": "targets shuffled"}
LEAST = 0.05
"""Values below this are reported as "in no layer", differences below a tenth of it as none."""


@dataclass(frozen=True)
class Findings:
    """Probe values: 1 is a perfect prediction, 0 a prediction from the number of nodes alone."""

    layers: list[str]
    targets: list[str]
    values: Mapping[str, Float[Tensor, "seeds layers targets"]]
    """Values by control, see :mod:`ohmformer.experiments.dream.measure`."""

    @classmethod
    def over(cls, found: Sequence[Findings]) -> Findings:
        """Join findings of models trained from several seeds; each model counts as one seed, with its mean over splits."""
        first = found[0]
        means = {name: torch.stack([x.values[name].mean(0) for x in found]) for name in first.values}
        return cls(first.layers, first.targets, means)

    def of(self, target: str, control: str = "trained") -> Float[Tensor, "seeds layers"]:
        """Return the values of one target."""
        if target not in self.targets or control not in self.values:
            raise ValueError(
                f"expected a target among {', '.join(self.targets)}, and a control among {', '.join(self.values)}"
            )
        return self.values[control][..., self.targets.index(target)]

    def table(self) -> str:
        """Format all values as a Markdown table: the mean over seeds with its 95 % confidence interval."""
        rows = [
            [target, layer, *(_with_interval(self.of(target, control)[:, i]) for control in self.values)]
            for target in self.targets
            for i, layer in enumerate(self.layers)
        ]
        return markdown_table(["target", "layer", *(WORDS.get(c, c) for c in self.values)], rows)

    def paragraph(self) -> str:
        """Summarise each target in a sentence: the best layer, the gain from training, and the values of the controls."""
        return " ".join(self._sentence(target) for target in self.targets)

    def _sentence(self, target: str) -> str:
        trained, before, alone, beyond = (self.of(target, c) for c in ("trained", "untrained", "features", "degree"))
        best = int(trained.mean(0).argmax())
        value = trained[:, best]
        if float(value.mean()) < LEAST:
            return f"{_upper(target)}: in no layer (at most {_with_interval(value)})."
        added = value - torch.maximum(before[:, best], alone[:, best])
        low, high = float(added.mean()) - interval(added), float(added.mean()) + interval(added)
        verdict = (
            f"training added {_with_interval(added)}" if low > LEAST / 10
            else f"less than without training ({_with_interval(added)})" if high < -LEAST / 10
            else f"no more than without training ({_with_interval(added)})"
        )  # fmt: skip
        held = [float(x[:, best].mean()) for x in (beyond, before, alone, self.of(target, "shuffled"))]
        return (
            f"{_upper(target)}: {_with_interval(value)} in {self.layers[best]}, {held[0]:.2f} beyond degrees; {verdict}, "
            f"the same model untrained has {held[1]:.2f}, the input features alone {held[2]:.2f}, shuffled targets "
            f"{held[3]:.2f}."
        )

    def figure(self) -> Figure:
        """Plot values against layers, with one panel per target."""
        return draw({"": self})

    def save(self, folder: Path | str, name: str = "dream") -> list[Path]:
        """Write ``NAME.md``, ``NAME.svg`` and ``NAME.png``."""
        folder = Path(folder)
        pictures = save_both(self.figure(), folder / name)
        title = "How much of electric flow do these states hold?"
        text = f"# {title}\n\n{self.paragraph()}\n\n{NOTE}\n\n![values by layer]({name}.svg)\n\n{self.table()}\n"
        return [write_text(folder / f"{name}.md", text), *pictures]


NOTE = (
    "Values are R^2 of linear probes on graphs that they have not seen (for eigenvectors: the share of the subspace, beyond "
    "chance); 0 is what the number of nodes tells, 1 a perfect answer. Means with 95 % confidence intervals over seeds. "
    "*Degrees taken out*: beyond what the degree of every node tells. *Untrained*: the same model with initial weights. "
    "*Features*: what is put into the model, without it. *Targets shuffled*: among graphs of the same size."
)


def draw(rows: Mapping[str, Findings]) -> Figure:
    """Plot findings of several models, with one row per model and one panel per target."""
    targets = next(iter(rows.values())).targets
    figure = require("matplotlib.figure", "plot").Figure(
        figsize=(2.6 * len(targets), 0.6 + 2.3 * len(rows)), layout="constrained"
    )
    panels: Any = figure.subplots(len(rows), len(targets), squeeze=False, sharey=True)
    for line, (name, found) in zip(panels, rows.items(), strict=True):
        for axis, target in zip(line, found.targets, strict=True):
            for control, style in STYLES.items():
                values = found.of(target, control)
                mean, around = values.mean(0), torch.tensor([interval(x) for x in values.unbind(1)])
                x = range(len(found.layers))
                axis.plot(x, mean, style, markersize=3, linewidth=1.2, label=WORDS.get(control, control))
                if control == "trained" and len(values) > 1:
                    axis.fill_between(x, mean - around, mean + around, alpha=0.2)
            axis.set(title=target, ylim=(-0.1, 1.05), xlabel="layer")
            axis.title.set_fontsize(9)
            axis.locator_params(axis="x", integer=True)
            axis.grid(alpha=0.3)
        line[0].set_ylabel(name or "R^2")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=len(STYLES), frameon=False)
    return figure


def interval(values: Float[Tensor, " seeds"]) -> float:
    """Return half the width of the 95 % confidence interval of a mean, by Student's t; zero for one seed."""
    from scipy.stats import t

    count = len(values)
    return float(t.ppf(0.975, count - 1)) * float(values.std()) / math.sqrt(count) if count > 1 else 0.0


def _with_interval(values: Float[Tensor, " seeds"]) -> str:
    mean = f"{float(values.mean()) + 0.0:.2f}"
    return mean if len(values) == 1 else f"{mean} ± {interval(values):.2f}"


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]
