"""A network as an ONNX file: nodes, rewrites, profiles, the file and the manifest beside it."""
