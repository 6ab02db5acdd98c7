"""Print the sign-free losses of the shipped models and of subspace iteration of the same depth, as a table.

python benchmarks/pretrained.py zinc_valid.smi.gz --skip 20000 --first 2000
"""

from __future__ import annotations

import argparse
from functools import partial
from itertools import islice
from pathlib import Path

import torch

from ohmformer.encoding import LinearTransformerPE
from ohmformer.encoding.pretrain import GraphTable, evaluate, subspace_iteration
from ohmformer.experiments.molecules import bonds, read_smiles


def main() -> None:
    """Read molecules and print a row for every model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("smiles", type=Path)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--first", type=int, default=2000)
    ask = parser.parse_args()
    torch.set_num_threads(1)
    chosen = islice(read_smiles(ask.smiles), ask.skip, ask.skip + ask.first)
    table = GraphTable.of([bonds(s) for s in chosen], "eigenvectors", 6)
    for name, layers in (("zinc", 9), ("zinc-27", 27)):
        plain = partial(subspace_iteration, layers=layers, k=6, columns=8)
        for what, model in (("subspace iteration", plain), (name, LinearTransformerPE.from_pretrained(name))):
            loss = evaluate(model, table)
            print(f"| {what} | {layers} | {' | '.join(f'{x:.3f}' for x in [*loss.tolist(), float(loss.mean())])} |")


if __name__ == "__main__":
    main()
