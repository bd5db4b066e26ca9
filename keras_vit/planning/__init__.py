"""A run's meaning and cost, without data and devices."""
