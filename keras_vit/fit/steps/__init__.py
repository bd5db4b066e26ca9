"""The steps of training, evaluation and prediction under every strategy."""
