"""What is asked: the statistic, the data and the grid."""
