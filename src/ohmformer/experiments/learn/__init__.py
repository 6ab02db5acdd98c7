"""Learning: the synthetic experiments of sections 3.5, 4.1 and appendix F, trained from scratch.

| file | content |
|---|---|
| ``setting`` | one setting of an experiment |
| ``graphs``, ``tasks`` | fresh graphs; problems on them, and the losses |
| ``start`` | initial weights: random, or near a lemma |
| ``constructions/scalars``, ``newton`` | from a lemma: ten scalars per layer, on eigenvalues, by Levenberg-Marquardt |
| ``models``, ``muon`` | from random weights: stacked matrices, by orthogonalised momentum |
| ``train``, ``checkpoint`` | the training loop, and how to resume it |
| ``figures``, ``sweep`` | Figures 1 to 3 as lists of settings, and how to run them |
| ``probe`` | what a trained model computes, compared with the lemma |

Import what you need from these files, such as ``from ohmformer.experiments.learn.train import train``.
"""
