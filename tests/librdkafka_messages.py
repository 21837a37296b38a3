"""Messages as confluent-kafka's consumers return them."""

from __future__ import annotations

import confluent_kafka


class Message:
    """A record of a topic's partition, or an error of it."""

    def __init__(self, place: tuple[str, int], offset: int, code: int | None = None) -> None:
        self._place, self._offset = place, offset
        self._error = None if code is None else confluent_kafka.KafkaError(code)

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def offset(self) -> int:
        return self._offset

    def error(self) -> confluent_kafka.KafkaError | None:
        return self._error

    def value(self) -> bytes:
        return b"%d" % self._offset

    def headers(self) -> None:
        return None

    def __len__(self) -> int:
        return len(self.value())
