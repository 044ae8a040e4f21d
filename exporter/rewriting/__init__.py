"""Order statistics inside a model of yours: TopK and its relatives in an ONNX graph become networks of this project."""
