"""Builds the operator of a plan's node."""

from __future__ import annotations

from typing import Any

from boreal.query import spec
from boreal.query.own_operators import own_operator
from boreal.query.plan import Node
from operators.aggregate import AggregateOperator
from operators.deduplicate import DeduplicateOperator
from operators.distinct import DistinctOperator
from operators.filter import FilterOperator
from operators.join import JoinOperator
from operators.lookup import LookupOperator
from operators.map import MapOperator
from operators.operator import Operator
from operators.python import make_python_operator
from operators.sessions import SessionOperator
from operators.top import TopOperator
from operators.union import UnionOperator


def build_operator(node: Node) -> Operator:
    """The operator of a node; its output has exactly the node's schema. UserError if the node's expressions are invalid."""
    operator: Operator = _make(node)
    assert operator.schema == node.schema, f"the output of {node.name} is {operator.schema}, but the plan says {node.schema}"
    return operator


def _make(node: Node) -> Any:  # each operator has its own type of state, which the protocol cannot express
    schemas = node.input_schemas
    match node.spec:
        case spec.Filter(where=where):
            return FilterOperator(node.name, schemas[0], where)
        case spec.Map(select=select):
            return MapOperator(node.name, schemas[0], select)
        case spec.Union():
            return UnionOperator(node.name, schemas)
        case spec.Aggregate(window=spec.Window(session=int() as gap, longest=longest), by=by, compute=compute):
            return SessionOperator(node.name, schemas[0], gap, longest, by, compute)
        case spec.Aggregate(window=window, by=by, compute=compute):
            return AggregateOperator(node.name, schemas[0], window.size_us, window.every_us, by, compute)
        case spec.Join(on=on, within=within, how=how):
            return JoinOperator(node.name, (schemas[0], schemas[1]), on, within, how)
        case spec.Lookup(on=on, within=within, how=how, deleted=deleted):
            return LookupOperator(node.name, (schemas[0], schemas[1]), on, within, how, deleted)
        case spec.Distinct(on=on, window=tumbling):
            return DistinctOperator(node.name, schemas[0], on, None if tumbling is None else tumbling.size_us)
        case spec.Deduplicate(on=on, within=within):
            return DeduplicateOperator(node.name, schemas[0], on, within)
        case spec.Top(k=k, order_by=order_by, window=window, by=by):
            return TopOperator(node.name, schemas[0], k, order_by, window.size_us, window.every_us, by)
        case spec.Python(operator=operator, parameters=parameters, version=version):
            own = own_operator(operator, parameters, version, schemas[0], f"operators.{node.name}")
            return make_python_operator(node.name, own, operator, parameters)
