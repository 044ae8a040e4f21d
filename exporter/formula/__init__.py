"""The one data type: structured linear maps, traced formulas over them, layers, the paper's building blocks."""
