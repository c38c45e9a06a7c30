"""The objectives: bound terms, targets and teachers, exact sums over all pairs, and the theorems' sums."""
