"""A router for each resource.

They hold no decision of the protocol: they read a request, ask the installation, and write its answer.
"""
