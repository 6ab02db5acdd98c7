"""Learning: the synthetic experiments of sections 3.5, 4.1 and appendix F, trained from scratch.

- ``setting``: what is trained; ``tasks``, ``graphs``: on what; ``start``: from where
- ``scalars`` with ``newton``: from a construction; ``models`` with ``muon``: from random weights
- ``train``, ``checkpoint``: the loop, and how it survives
"""

from ohmformer.learn.checkpoint import Checkpoint, load
from ohmformer.learn.graphs import GraphDistribution
from ohmformer.learn.setting import Setting
from ohmformer.learn.train import Progress, Result, train

__all__ = ["Checkpoint", "GraphDistribution", "Progress", "Result", "Setting", "load", "train"]
