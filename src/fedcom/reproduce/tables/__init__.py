"""The six tables of the paper, whose rates are measured on small problems in closed form."""
