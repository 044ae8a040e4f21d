"""A network at work: its layers on one vector, and the formula of any neuron, read off the file itself."""
