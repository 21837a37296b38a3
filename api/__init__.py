"""The REST control plane: `create_app`, a router for each resource, over an `Installation` that runs the queries.

Touches HTTP, files and the processes of jobs; queries only through `api.installation`, which a stack implements
in `api.stack`.
"""

from api.app import create_app

__all__ = ["create_app"]
