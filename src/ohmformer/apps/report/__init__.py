"""What was proved and measured, on one page: the gallery of constructions, and the report of everything in ``results/``."""
