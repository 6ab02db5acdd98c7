"""Predefined graphs: families of the library, and molecules."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ohmformer.apps.explorer.drawing import MOST_NODES, Drawing, check_size
from ohmformer.graph import Graph
from ohmformer.graph.extras import require
from ohmformer.graph.families import family
from ohmformer.graph.places import UNIT, Place, circle, least_stress, rows
from ohmformer.graph.smiles import canonical

FAMILIES = {
    "path": "Path",
    "ring": "Ring",
    "grid": "Grid",
    "barbell": "Barbell",
    "csl": "CSL",
    "tree": "Tree",
    "erdos-renyi": "Random",
}
"""Families of :mod:`ohmformer.graph.families` that the page offers, and what it calls them."""
OTHERS = {"molecule": "Molecule", "upload": "Own file", "drawn": "Drawing"}
CAFFEINE = "CN1C=NC2=C1C(=O)N(C)C(=O)N2C"
LONGEST_SMILES = 300


def preset(name: str, nodes: int) -> Drawing:
    """Draw a graph of a family with unit resistances; random families use seed 0."""
    if name not in FAMILIES:
        raise ValueError(f"expected a graph among {', '.join(FAMILIES)}, got {name!r}")
    if not 2 <= nodes <= MOST_NODES:
        raise ValueError(f"expected 2 to {MOST_NODES} nodes, got {nodes}")
    graph = family(name, nodes, generator=torch.Generator().manual_seed(0))
    check_size(graph.num_nodes, graph.num_edges)  # before places are looked for, which may take seconds
    if name in ("ring", "csl"):
        places = circle(nodes)
    elif name == "path":
        places = rows(nodes, min(nodes, max(10, round((1.6 * nodes) ** 0.5))), turning=True)
    elif name == "grid":
        places = rows(nodes, max(d for d in range(1, int(nodes**0.5) + 1) if nodes % d == 0))
        places = [(y, x) for x, y in places]  # wide rather than tall
    else:
        places = least_stress(graph)
    return drawn(graph, [str(i) for i in range(nodes)], places)


def molecule(smiles: str) -> Drawing:
    """Draw the heavy atoms and bonds of a molecule as chemists do; every bond is one ohm."""
    if not 1 <= len(smiles) <= LONGEST_SMILES:
        raise ValueError(f"expected SMILES of 1 to {LONGEST_SMILES} characters, got {len(smiles)}")
    try:
        require("rdkit", "molecules")
    except ImportError as error:
        raise ValueError(str(error)) from error  # shown on the page, like any other refusal
    from rdkit import Chem
    from rdkit.Chem.rdDepictor import Compute2DCoords

    found = Chem.MolFromSmiles(canonical(smiles))
    if found is None:
        raise ValueError(f"expected a molecule as SMILES, got {smiles!r}")
    check_size(found.GetNumAtoms(), found.GetNumBonds())
    Compute2DCoords(found)
    points = found.GetConformer().GetPositions()[:, :2] * UNIT / 1.5  # RDKit's bonds are 1.5 long
    atoms = [f"{atom.GetSymbol()}{atom.GetIdx() + 1}" for atom in found.GetAtoms()]
    edges = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in found.GetBonds()]
    graph = Graph.from_edges(edges, num_nodes=len(atoms))
    return drawn(graph, atoms, [(float(x), float(-y)) for x, y in points])


def drawn(graph: Graph, names: Sequence[str], places: Sequence[Place]) -> Drawing:
    """Make a drawing of a graph from names and positions."""
    check_size(graph.num_nodes, graph.num_edges)
    return Drawing(
        tuple(names),
        tuple((round(x, 1), round(y, 1)) for x, y in places),
        tuple((u, v) for u, v in graph.edge_index.t().tolist()),
        tuple(graph.resistance.tolist()),
    )
