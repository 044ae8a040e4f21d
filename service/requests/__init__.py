"""Bytes to numbers: bodies of requests, read in pieces and within limits."""
