"""Which optional packages a command or feature needs, and which extra of the package brings them.

One table, :data:`EXTRAS`, is behind the error messages, the page ``docs/howto/install.md`` and the extras in
``pyproject.toml`` (tests compare all three).
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


@dataclass(frozen=True)
class Extra:
    """Optional packages that are installed together by ``pip install ohmformer[NAME]``."""

    modules: tuple[str, ...]
    """The modules it installs, by their import names."""
    commands: tuple[str, ...] = ()
    """Commands of ``ohmformer`` that need all of these modules."""
    features: tuple[str, ...] = ()
    """Other features that need some of them."""


EXTRAS: dict[str, Extra] = {
    "plot": Extra(("matplotlib",), ("demo", "reproduce", "dream"), ("`ohmformer solve --plot`", "`ohmformer.graph.draw`")),
    "report": Extra(("markdown_it", "matplotlib"), ("report",)),
    "explorer": Extra(("dash", "werkzeug"), ("explore",)),
    "pyg": Extra(("torch_geometric",), (), ("transforms for PyTorch Geometric, `ohmformer.encoding.Add...`",)),
    "encode": Extra(("torch_geometric", "rdkit", "pyarrow"), ("encode", "pretrain")),
    "hub": Extra(("huggingface_hub",), (), ("models on the Hugging Face hub",)),
    "molecules": Extra(("rdkit", "datamol"), (), ("`ohmformer.experiments.molecules`", "molecules in `ohmformer explore`")),
    "train": Extra(
        ("lightning", "tensorboard", "torch_geometric", "rdkit", "datamol", "matplotlib"),
        ("train",),
        ("`ohmformer reproduce table2`",),
    ),
    "graphgym": Extra(("torch_geometric", "yacs", "lightning"), (), ("`ohmformer.integrations.graphgym`",)),
    "cluster": Extra(("ray",), (), ("`--cluster` of `ohmformer encode` and `ohmformer reproduce`",)),
    "large": Extra(
        ("pyarrow",),
        (),
        ("tables as `.parquet`, `ohmformer solve --out`", "edges in `.csv` and `.parquet`, `ohmformer shard`"),
    ),
    "shards": Extra(("pymetis",), (), ("`ohmformer shard --partition metis`",)),
}
"""All extras by name; ``ohmformer[all]`` installs all of them."""


class MissingPackage(ImportError):
    """Raised if an optional package is not installed; the message names the extra that provides it."""


def require(module: str, extra: str) -> ModuleType:
    """Import an optional module, or raise a :class:`MissingPackage` that names the extra to install."""
    check_modules((module,), extra)
    return import_module(module)


def check_extra(extra: str) -> None:
    """Raise a :class:`MissingPackage` unless all modules of an extra are installed, without importing them."""
    check_modules(EXTRAS[extra].modules, extra)


def check_command(command: str) -> None:
    """Raise a :class:`MissingPackage` unless all modules that a command of ``ohmformer`` needs are installed."""
    for name, extra in EXTRAS.items():
        if command in extra.commands:
            check_modules(extra.modules, name)


def check_modules(modules: tuple[str, ...], extra: str) -> None:
    """Raise a :class:`MissingPackage` for the first module that is not installed."""
    for module in modules:
        package = module.partition(".")[0]
        if not _installed(package):
            raise MissingPackage(
                f"expected the package {package}, which `pip install ohmformer[{extra}]` brings, got none", name=package
            )


def markdown_table() -> str:
    """Return the table of extras in Markdown, for the documentation."""
    lines = ["| extra | needed for | installs |", "|---|---|---|"]
    for name, extra in EXTRAS.items():
        uses = ", ".join([*(f"`ohmformer {command}`" for command in extra.commands), *extra.features])
        lines.append(f"| `{name}` | {uses} | {', '.join(extra.modules)} |")
    return "\n".join(lines)


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # a finder rejects it, or it was put into sys.modules by hand
        return False
