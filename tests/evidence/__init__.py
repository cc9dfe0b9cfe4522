"""Studies, their records, and profiles."""
