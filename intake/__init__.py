"""What a source does with records: checks, ids, boundaries from what is known of the time, and where a
restarted source goes on.

Pure; `services.source` reads the topics and appends to the logs.
"""
