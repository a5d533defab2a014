"""The six tables of the paper, checked on small problems whose gradients are given by formulas."""
