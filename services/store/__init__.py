"""Checkpoint stores: where operator state is put behind a MARK, for restarts (R19, R26)."""

from services.store.base import Checkpoint, CheckpointStore, decode_checkpoint, encode_checkpoint

__all__ = ["Checkpoint", "CheckpointStore", "decode_checkpoint", "encode_checkpoint"]
