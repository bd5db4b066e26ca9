"""What measures this package: the model, the input pipeline, the ops, several workers, every strategy."""
