"""ImageNet-C's corruptions (arXiv 1903.12261), one file per kind.

Each function (x, draws, *strength) maps pixels x (h, w, 3), float64 from 0 to 1 and of a fixed size, to pixels that may
lie outside 0 to 1. `draws` is a Draws; `strength` is a row of table.py. Given the same draws, values equal those of the
authors' code, hendrycks/robustness.
"""
