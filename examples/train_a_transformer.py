"""Train a three-layer linear Transformer to solve circuits, from the lemma's weights, and ask how far it got beyond it.

python examples/train_a_transformer.py --steps 40
"""

from __future__ import annotations

import argparse

import torch

from ohmformer.experiments.learn.figures import lemma_losses
from ohmformer.experiments.learn.setting import Setting
from ohmformer.experiments.learn.train import train


def main() -> None:
    """Train one setting and print it beside the lemma."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="electric", help="electric, resistive or heat")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # matrices of a dozen rows: threads would only wait for each other
    setting = Setting(arguments.task, graphs="csl", layers=arguments.layers, init="construction", seeds=1)
    result = train(setting, steps=arguments.steps)
    for statement, rows in lemma_losses(arguments.task, "csl", (arguments.layers,)).items():
        print(f"{statement} at this depth: log loss {rows[0]['log_demand']:.2f}")
    print(f"trained for {result.steps} steps, {result.seconds:.0f} s: log loss {result.mean('log_demand'):.2f}")


if __name__ == "__main__":
    main()
