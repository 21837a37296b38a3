"""The embedded driver: whole queries in one process, over real, skipped or simulated time."""
