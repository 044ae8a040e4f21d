"""What is asked: order statistics, the grid of the data, options, families of inputs."""
