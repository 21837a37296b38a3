"""The worker: one process that runs the sources, nodes and egresses of many queries, as its supervisor says.

It may start threads, and touches the outside world only through the roles that it runs and its channel to the supervisor."""
