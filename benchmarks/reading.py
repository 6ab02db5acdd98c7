"""Reading SMILES: from text to labels, bonds and targets, in one process and in two.

python benchmarks/reading.py --smiles zinc_valid.smi.gz
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path


def main() -> None:
    """Measure and write ``results/molecules-reading.md``."""
    # not at the top: processes that help import this file, and need no torch, like those of the command line
    from measure import write_table
    from ohmformer.experiments.molecules.table import from_smiles
    from ohmformer.graph.smiles import read_smiles

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smiles", type=Path, required=True)
    parser.add_argument("--count", type=int, default=30000)
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    smiles = list(read_smiles(options.smiles))
    smiles = (smiles * (-(-options.count // len(smiles))))[: options.count]
    from_smiles(smiles[:10])  # RDKit is loaded
    rows = []
    for _ in range(options.repeats):
        seconds = {}
        for workers in (1, 2):
            start = time.perf_counter()
            from_smiles(smiles, workers=workers)
            seconds[workers] = time.perf_counter() - start
        rows += [[str(n), f"{s:.1f}", f"{len(smiles) / s:.0f}", f"{seconds[1] / s:.2f}"] for n, s in seconds.items()]
        print(*rows[-2:])
    header = ["processes", "seconds", "molecules a second", "times one process"]
    write_table("molecules-reading", f"Reading {len(smiles)} SMILES", header, rows)


if __name__ == "__main__":
    main()
