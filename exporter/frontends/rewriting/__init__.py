"""Order statistics inside a model of yours: TopK and its relatives in an ONNX graph become networks of this project.

The operators are here because `python -m exporter rewrite --help` names them and runs without the extra `rewrite`.
"""

OPERATORS = ("TopK", "ReduceMax", "ReduceMin", "ArgMax", "ArgMin", "MaxPool", "Gather")
