"""SMILES as graphs of heavy atoms and bonds: stereo marks removed, atoms in RDKit's canonical order.

>>> bonds("OCC")
(3, [(0, 1), (1, 2)])
>>> canonical("C[C@@H](O)N")
'CC(N)O'
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from ohmformer.graph.contents import open_text, suffix_of
from ohmformer.graph.extras import require

STEREO = str.maketrans("", "", "@/\\")
BARE = re.compile(r"\[(C|N|O)(?:H2?)?\]")
"""Atoms in brackets with nothing but hydrogens, which would be read as radicals once stereo marks are removed."""


def canonical(smiles: str) -> str:
    """Convert to RDKit's canonical SMILES without stereo marks; raise a ValueError if it is not a molecule."""
    return canonical_molecule(smiles)[0]


def bonds(smiles: str) -> tuple[int, list[tuple[int, int]]]:
    """Return the number of atoms and each bond once, as a pair of atoms, numbered as in the canonical SMILES."""
    molecule = canonical_molecule(smiles)[1]
    return molecule.GetNumAtoms(), [(b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in molecule.GetBonds()]


def clean(smiles: str) -> str:
    """Remove stereo marks and needless brackets; of several fragments, keep the one with the longest text.

    >>> clean("[C@@H](F)(Cl)Br.O")
    'C(F)(Cl)Br'
    """
    return BARE.sub(r"\1", max(smiles.translate(STEREO).split("."), key=len))


def canonical_molecule(smiles: str):
    """Return the canonical SMILES and RDKit's molecule, with atoms in its order."""
    require("rdkit", "molecules")
    from rdkit import Chem, rdBase

    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(smiles.translate(STEREO)) if smiles else None
        if molecule is None or molecule.GetNumAtoms() == 0:
            raise ValueError(f"expected a molecule as SMILES, got {smiles!r}")
        text = Chem.MolToSmiles(molecule)
        again = Chem.MolFromSmiles(text)
        return (text, molecule) if again is None else (text, again)


def read_smiles(path: Path, column: str = "smiles") -> Iterator[str]:
    """Read molecules from a file, one per line (.smi, .txt) or in a column of a table (.csv, .tsv), gzipped or not.

    A first line that equals ``column`` is a header; a table must have one.
    """
    if not path.is_file():
        raise ValueError(f"expected a file of SMILES, there is no file {path}")
    kind = suffix_of(path.name)
    try:
        with open_text(path) as file:
            if kind in (".csv", ".tsv"):
                rows = csv.DictReader(file, delimiter="," if kind == ".csv" else "\t")
                names = {name.lower(): name for name in rows.fieldnames or [] if name}
                if column.lower() not in names:
                    raise ValueError(f"expected a column {column!r} in {path.name}, it has {', '.join(names) or 'none'}")
                for row in rows:
                    yield (row[names[column.lower()]] or "").strip()
                return
            for i, line in enumerate(file):
                word = line.split(maxsplit=1)[0] if line.strip() else ""
                if i or word.lower() != column.lower():
                    yield word
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise ValueError(f"expected SMILES as text in {path.name}: {error}") from error
