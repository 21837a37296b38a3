"""Checkpoints in Redis, for restarts (R19). There are these keys for each query (`prefix`) and instance:

    boreal:QUERY:instances            set    the instances that ever began a put
    boreal:QUERY:INSTANCE:manifests   hash   number -> manifest: name of the blob, sizes of its chunks, digest
    boreal:QUERY:INSTANCE:blobs       set    every blob that may exist
    boreal:QUERY:INSTANCE:blob:BLOB   hash   index -> chunk; the chunks in order are the encoded checkpoint

A checkpoint exists as soon as its manifest exists. A blob is added to the set before its first chunk is written. So a blob
without a manifest is known to be the rest of an unfinished put, and the next put or drop removes it. No key has an expiry
time, since a restart would miss a checkpoint that disappeared silently.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, RedisError
from redis.retry import Retry

from boreal.model.errors import CorruptError
from logs.checkpoints import Checkpoint, StoreUnavailableError, encode_checkpoint, latest_sound, read_checkpoint
from services.kafka.settings import RedisSettings

CHUNK_BYTES = 4 << 20
"""Size of a chunk. While Redis reads or writes one (about a millisecond), it serves no other client."""

CONNECT_TIMEOUT_S = 1.0
COMMAND_TIMEOUT_S = 2.0
"""Time limit for each command."""

_VERSION = 1


def connect_redis(settings: RedisSettings) -> Redis:
    """A client whose commands succeed or fail within CONNECT_TIMEOUT_S + COMMAND_TIMEOUT_S. Connects on first use. A broken
    connection is reopened once."""
    tls: dict[str, Any] = {"ssl_ca_certs": str(settings.ca_file)} if settings.ca_file is not None else {}
    return Redis.from_url(
        settings.url,
        password=settings.password.get_secret_value() if settings.password is not None else None,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        socket_timeout=COMMAND_TIMEOUT_S,
        # A timeout is not retried: that would only double the wait.
        retry=Retry(NoBackoff(), 1, (ConnectionError,)),
        **tls,
    )


class RedisCheckpointStore:
    """A `CheckpointStore` in Redis. Several processes may share it; one process per instance may put, all may drop."""

    def __init__(self, client: Redis, prefix: str = "") -> None:
        """prefix: the query's name, which distinguishes its instances from those of other queries."""
        self.damaged: list[tuple[str, int]] = []
        # redis-py declares the result of every command as possibly awaitable.
        self._redis: Any = client
        self._root = f"boreal:{quote(prefix, safe='')}"

    def put(self, checkpoint: Checkpoint) -> None:
        data = memoryview(encode_checkpoint(checkpoint))
        chunks = [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]
        blob = f"{checkpoint.number}.{uuid.uuid4().hex}"
        fields = {"v": _VERSION, "blob": blob, "sizes": [len(chunk) for chunk in chunks], "sha256": data[-32:].hex()}
        manifest = json.dumps(fields, separators=(",", ":"))
        manifests, blobs = self._manifests(checkpoint.instance), self._blobs(checkpoint.instance)

        def commit(pipe: Any) -> None:
            if not pipe.sismember(blobs, blob):
                self._redis.unlink(self._blob(checkpoint.instance, blob))
                which = f"checkpoint {checkpoint.number} of {checkpoint.instance}"
                raise StoreUnavailableError(f"a later incarnation has removed the unfinished {which}")
            pipe.multi()
            pipe.hset(manifests, str(checkpoint.number), manifest)

        # A crash between two steps leaves an older checkpoint with this number, if there is one, unchanged.
        with _reaching_redis():
            # 0. Remove the rests of unfinished puts: they are repeated many times while Redis is slow or full.
            self._sweep(checkpoint.instance, checkpoint.number + 1)
            # 1. Register the blob.
            self._redis.sadd(f"{self._root}:instances", checkpoint.instance)
            self._redis.sadd(blobs, blob)
            # 2. Write its chunks.
            for index, chunk in enumerate(chunks):
                self._redis.hset(self._blob(checkpoint.instance, blob), str(index), chunk)
            # 3. Write the manifest, unless the blob was swept in the meantime: then another process took us for dead.
            self._redis.transaction(commit, blobs)
            # 4. Remove the blob of the replaced checkpoint.
            self._sweep(checkpoint.instance, checkpoint.number + 1)

    def get(self, instance: str, number: int) -> Checkpoint:
        with _reaching_redis():
            manifest = self._manifest(instance, number)
            while True:
                try:
                    return read_checkpoint(self._read(instance, manifest), instance, number)
                except CorruptError:
                    newer = self._manifest(instance, number)
                    if newer == manifest:
                        raise
                    manifest = newer  # the checkpoint was replaced while it was read

    def latest(self, instance: str) -> Checkpoint | None:
        return latest_sound(self, instance)

    def numbers(self, instance: str) -> list[int]:
        with _reaching_redis():
            return sorted(int(number) for number in self._redis.hkeys(self._manifests(instance)))

    def drop(self, instance: str, below: int) -> None:
        doomed = [number for number in self.numbers(instance) if number < below]
        with _reaching_redis():
            if doomed:
                self._redis.hdel(self._manifests(instance), *(str(number) for number in doomed))
            self._sweep(instance, below)

    def instances(self) -> list[str]:
        """All instances that ever began a put and are not removed by `forget`, sorted."""
        with _reaching_redis():
            return sorted(name.decode() for name in self._redis.smembers(f"{self._root}:instances"))

    def forget(self, instance_prefix: str = "") -> None:
        """Remove all checkpoints of the instances whose names begin with this prefix, for example when their query is deleted.
        A put in progress will fail."""
        for instance in self.instances():
            if instance.startswith(instance_prefix):
                with _reaching_redis():
                    self._redis.delete(self._manifests(instance))
                    self._sweep(instance, None)
                    self._redis.srem(f"{self._root}:instances", instance)

    def close(self) -> None:
        self._redis.close()

    def _manifest(self, instance: str, number: int) -> bytes:
        manifest = self._redis.hget(self._manifests(instance), str(number))
        if manifest is None:
            raise KeyError((instance, number))
        found: bytes = manifest
        return found

    def _read(self, instance: str, manifest: bytes) -> bytes:
        """The encoded checkpoint that a manifest names."""
        try:
            fields = json.loads(manifest)
            version, blob, sizes, digest = fields["v"], fields["blob"], fields["sizes"], fields["sha256"]
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptError(f"not a checkpoint's manifest: {manifest[:80]!r}") from error
        if version != _VERSION:
            raise CorruptError(f"unknown version of checkpoint manifest: {version}; this program reads version {_VERSION}")
        key = self._blob(instance, blob)
        chunks = [self._redis.hget(key, str(index)) or b"" for index in range(len(sizes))]
        for index, (chunk, size) in enumerate(zip(chunks, sizes, strict=True)):
            if len(chunk) != size:
                raise CorruptError(f"chunk {index + 1} of {len(sizes)} has {len(chunk)} bytes instead of {size}")
        data = b"".join(chunks)
        if data[-32:].hex() != digest:
            raise CorruptError("the chunks do not match the manifest's digest")
        return data

    def _sweep(self, instance: str, below: int | None) -> None:
        """Remove the blobs with a number below this one (None: all) that no manifest names.

        A blob with a later number may belong to a put in progress in another process.
        """
        manifests, blobs = self._manifests(instance), self._blobs(instance)

        def remove(pipe: Any) -> None:
            named = {_blob_of(manifest) for manifest in pipe.hvals(manifests)}
            found = sorted(blob.decode() for blob in pipe.smembers(blobs))
            doomed = [blob for blob in found if blob not in named and (below is None or _number_of(blob) < below)]
            pipe.multi()
            if doomed:
                pipe.unlink(*(self._blob(instance, blob) for blob in doomed))
                pipe.srem(blobs, *doomed)

        self._redis.transaction(remove, manifests, blobs)

    def _manifests(self, instance: str) -> str:
        return f"{self._root}:{quote(instance, safe='')}:manifests"

    def _blobs(self, instance: str) -> str:
        return f"{self._root}:{quote(instance, safe='')}:blobs"

    def _blob(self, instance: str, blob: str) -> str:
        return f"{self._root}:{quote(instance, safe='')}:blob:{blob}"


def _blob_of(manifest: bytes) -> str | None:
    """The blob that a manifest names; None if the manifest is damaged."""
    try:
        found: str | None = json.loads(manifest)["blob"]
        return found
    except (KeyError, TypeError, ValueError):
        return None


def _number_of(blob: str) -> int:
    return int(blob.partition(".")[0])


@contextmanager
def _reaching_redis() -> Iterator[None]:
    try:
        yield
    except RedisError as error:
        raise StoreUnavailableError(f"Redis: {error}") from error
