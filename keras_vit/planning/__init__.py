"""What a run would do and what it would cost, without data and without devices."""
