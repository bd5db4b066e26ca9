"""What is refused before it trains, or evaluates, wrong: losses at compile, labels, and images on the wrong scale."""
