"""Formats: bytes and JSON to rows, rows to the records that clients read, frames and control messages to Kafka records.

Pure: bytes in, values out. Imports boreal and the core. Uses neither a clock nor the network.
"""
