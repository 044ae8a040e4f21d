"""Order statistics inside a model of yours: TopK and its relatives in an ONNX graph become networks of this project.

The constants are here because `python -m exporter rewrite --help` names them and runs without the extra `rewrite`.
"""

OPERATORS = ("TopK", "ReduceMax", "ReduceMin", "ArgMax", "ArgMin", "MaxPool", "Gather")
LONGEST = 32768  # entries of an axis whose indices are found by default; 24,000 are 300 boxes of 80 classes
