"""Models that learn without labels or from a teacher."""
