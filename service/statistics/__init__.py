"""Order statistics of vectors: which ranks, on which grid, and the proof by counting."""
