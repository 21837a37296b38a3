"""The model: frames and their encoding, schemas, partitions, durations, documents and errors.

Pure; imports no other room of the project.
"""
