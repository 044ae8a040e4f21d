"""The trusted checker: does a file round? It reads the bytes of an .onnx file, and nothing of the code that wrote it.

`check` answers one question: are the floats that the graph computes the real numbers that its formula gives? A verdict
"proven" says, for every runtime that adds, multiplies and compares as IEEE 754 says, in any order of summation:

- on data of the grid no operation changes the answer by rounding. The last sum may, by `grid_error` at most;
- other data is rounded to the grid once and clamped to the range first, and so moved by `off_grid_error` at most;
- only operators of the file's profile occur, and vectors of a batch do not touch each other.

What the formula computes, such as a median, is another question: `python -m exporter verify` measures it.
"""

from exporter.check.verdict import RoundingVerdict, check

__all__ = ["RoundingVerdict", "check"]
