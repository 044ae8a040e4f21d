"""Proofs that a file computes its order statistic, from the bytes of the file (docs/verification.md)."""
