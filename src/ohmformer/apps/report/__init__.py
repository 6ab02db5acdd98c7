"""The report: a gallery of all constructions and everything in ``results/``, on one page."""
