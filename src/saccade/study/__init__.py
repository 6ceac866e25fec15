"""Many runs: comparisons, and searches for settings."""
