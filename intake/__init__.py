"""What a source does with records: it checks them, numbers them, computes boundaries, and knows where a restarted source
continues.

Pure. `services.source` reads the topics and appends to the logs.
"""
