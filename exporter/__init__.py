"""Builders of median networks and their export to ONNX."""
