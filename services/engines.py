"""What an operator host in a process of its own goes by: the names of its topics, and of its places in the store.

    QUERY.orders.REPLICA     orders of a replica's instances, a partition each (reconcile.orders)
    QUERY.answers.REPLICA    what became of them, in the same partitions
    INSTANCE/host            in the checkpoint store: a host's snapshots, by the offset of the next order
    INSTANCE/copy            copies of the state on their way to being an instance's checkpoints, by number
"""

from __future__ import annotations

from reconcile.events import InstanceId


def orders_topic(query: str, replica: str) -> str:
    return f"{query}.orders.{replica}"


def answers_topic(query: str, replica: str) -> str:
    return f"{query}.answers.{replica}"


def host_owner(who: InstanceId) -> str:
    """Whose the snapshots of an instance's host are, in the checkpoint store."""
    return f"{who}/host"


def copy_owner(who: InstanceId) -> str:
    """Whose the copies are that an instance's host has made, in the checkpoint store."""
    return f"{who}/copy"
