"""A query's plan as JSON: its fragments in layers, for a picture of the graph, and the durations that it derives."""

from __future__ import annotations

from typing import Any

from api.models import milliseconds
from boreal.model.schema import Schema
from boreal.query.plan import EGRESS, Plan
from boreal.query.spec import Query
from deployment.layout import Layout
from deployment.operator_hosts import expected_threshold_us


def plan_answer(query: Query, layout: Layout) -> dict[str, Any]:
    """The plan of a query, as it runs or would run."""
    found = layout.plan
    least_us = max(query.tuning.delay_threshold_least, expected_threshold_us(query))
    return {
        "name": query.name,
        "x_ms": milliseconds(found.delay_threshold_us),
        "least_x_ms": milliseconds(least_us),
        "alpha_x_ms": None if found.alpha_x_us is None else milliseconds(found.alpha_x_us),
        "bucket_ms": milliseconds(found.bucket_run_us),
        "boundary_interval_ms": milliseconds(found.boundary_interval_us),
        "silence_ms": milliseconds(found.silence_us),
        "streams": [{"name": edge.operator, "site": layout.site_of_stream(edge.operator)} for edge in found.sources],
        "fragments": [
            {
                "name": fragment.name,
                "shards": fragment.shards,
                "replicas": [
                    {"name": replica, "engine": fragment.engine_of(replica), "site": layout.site_of_replica(replica)}
                    for replica in fragment.replicas
                ],
                "reads": [edge.name for edge in fragment.edges],
                "writes": [edge.name for edge in fragment.outputs],
            }
            for fragment in found.fragments
            if fragment.name != EGRESS
        ],
        "nodes": _nodes(found),
        "output": found.output.operator,
        "notes": list(found.notes),
    }


def _nodes(found: Plan) -> list[dict[str, Any]]:
    """Streams and operators, each with its layer: one more than the deepest that it reads."""
    nodes: list[dict[str, Any]] = [
        {"name": edge.operator, "kind": "stream", "reads": [], "layer": 0, "fragment": None, "columns": _columns(edge.schema)}
        for edge in found.sources
    ]
    layers = {str(node["name"]): 0 for node in nodes}
    for fragment in found.fragments:
        # An input of a fragment merges logged streams: it stands for those that made them.
        inputs = {entry.name: [edge.operator for edge in entry.edges] for entry in fragment.inputs}
        for node in fragment.nodes:
            reads = [name for each in node.inputs for name in inputs.get(each, [each])]
            layers[node.name] = 1 + max((layers[name] for name in reads if name in layers), default=0)
            kind = type(node.spec).__name__.lower()
            nodes.append(
                {"name": node.name, "kind": kind, "reads": reads, "layer": layers[node.name], "fragment": fragment.name,
                 "columns": _columns(node.schema)}
            )  # fmt: skip
    return nodes


def _columns(schema: Schema) -> dict[str, str]:
    return {name: kind.value for name, kind in schema.columns}
