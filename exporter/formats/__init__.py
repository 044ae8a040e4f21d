"""Files: ONNX, TFLite, Triton, manifests and descriptions."""
