"""What a network is read as, besides a file: numbers, counts, the proof that nothing rounds."""
