"""The formula, linear maps and layers of a network, and the graph that is written."""
