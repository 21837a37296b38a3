"""The model: frames and their encoding, schemas, partitions, durations, documents and errors.

Pure; imports nothing of the project but itself.
"""
