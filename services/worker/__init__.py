"""The worker: one process that runs the sources, nodes and egresses of many queries, as its supervisor says.

Touches threads; the rest of the world through the roles that it runs and its channel to the supervisor.
"""
