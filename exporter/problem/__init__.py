"""The problem that a network solves: the statistic, the data and the grid."""
