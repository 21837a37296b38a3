"""What an existing Kafka needs before boreal runs on it: topics, and permissions where it authorises its users.

The commands are those of Kafka's own tools, for those who administer the cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from services.kafka.topics import TopicFindings, TopicSpec, alter_command, settings_text

_OWN = ("Read", "Write", "Create", "Delete", "Describe", "DescribeConfigs")
"""What boreal does with its own topics. Deleting covers records too: writers trim their logs."""

_INPUT = ("Read", "Write", "Describe", "DescribeConfigs")
"""What boreal does with users' topics. It writes rows that are posted, and refused records that are put back."""

_TRANSACTIONS = ("Describe", "Write")

PREFIX = "boreal."
"""The topics and the transactional ids of an installation begin with it."""


@dataclass(frozen=True)
class Acl:
    """An ACL that the user of boreal needs."""

    kind: str
    """`topic` or `transactional-id`."""
    name: str
    """The name of the resource, or what it begins with."""
    is_prefix: bool
    """Whether it counts for all names that begin with it."""
    operations: tuple[str, ...]
    """Kafka's names of what is allowed."""


@dataclass(frozen=True)
class Landing:
    """What one site's Kafka has, and what it needs."""

    bootstrap: str
    """The address of its brokers."""
    user: str
    """The name that boreal logs in with; `USER` if it logs in with none."""
    findings: TopicFindings
    """Absent topics, and what is wrong with others."""
    permissions: tuple[Acl, ...]
    """All ACLs that are needed where Kafka authorises its users."""

    def commands(self) -> Iterator[str]:
        """Commands of Kafka's tools that create what is absent and correct what can be corrected."""
        for spec in self.findings.absent:
            yield self._create(spec)
        for wrong in self.findings.problems:
            if wrong.settings:
                yield alter_command(wrong.topic, wrong.settings, self.bootstrap)

    def acl_commands(self) -> Iterator[str]:
        """Commands of Kafka's tools that allow boreal what it does."""
        for permission in self.permissions:
            allowed = " ".join(f"--operation {operation}" for operation in permission.operations)
            pattern = " --resource-pattern-type prefixed" if permission.is_prefix else ""
            yield (
                f"kafka-acls --bootstrap-server {self.bootstrap} --add --allow-principal User:{self.user} {allowed} "
                f"--{permission.kind} {permission.name}{pattern}"
            )

    def _create(self, spec: TopicSpec) -> str:
        settings = "".join(f" --config {settings_text({key: value})}" for key, value in spec.created_with.items())
        return (
            f"kafka-topics --bootstrap-server {self.bootstrap} --create --topic {spec.name} "
            f"--partitions {spec.partitions}{settings}"
        )


def permissions(
    is_home: bool, queries: Sequence[str], inputs: Sequence[str], absent: Collection[str] = ()
) -> tuple[Acl, ...]:
    """The ACLs that a site needs. queries: names of queries; inputs: topics of users that are read there. absent: those of them
    that boreal is to create."""
    own = [Acl("topic", PREFIX, True, _OWN)] if is_home else []
    return (
        *own,
        *(Acl("topic", f"{query}.", True, _OWN) for query in queries),
        # Its later versions (deployment.query_record.inner_name).
        *(Acl("topic", f"{query}-", True, _OWN) for query in queries),
        *(Acl("topic", topic, False, (*_INPUT, "Create") if topic in absent else _INPUT) for topic in inputs),
        Acl("transactional-id", PREFIX, True, _TRANSACTIONS),
    )
