"""Builders of median networks and their export to ONNX."""

__version__ = "0.1.0"
