"""A router for each resource. They make no decision of the protocol.

Touches HTTP: a router reads a request, asks the installation, and writes its answer.
"""
