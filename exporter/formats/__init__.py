"""The files that are written: ONNX, TFLite, Triton folders, manifests and descriptions."""
