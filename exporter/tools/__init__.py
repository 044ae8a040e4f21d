"""What one does with files: describe, verify, audit, reduce, measure."""
