"""Formats: bytes and JSON to rows, rows to the records that clients read, frames and control messages to Kafka records.

Pure: bytes in, values out; imports boreal and the core, and touches neither clock nor network.
"""
