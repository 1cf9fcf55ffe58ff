"""Checkpoints: files that are whole or absent, their names, which stay, and the state inside them."""

from __future__ import annotations

from shoal.checkpoint._nested import leaves, map_leaves
from shoal.checkpoint.files import (
    atomic_write_bytes,
    atomic_write_text,
    atomic_writer,
    load,
    remove_leftovers,
    save,
    verify,
)
from shoal.checkpoint.folder import latest, list_checkpoints
from shoal.checkpoint.manager import CheckpointManager
from shoal.checkpoint.naming import Naming, default_pattern, step_in_name
from shoal.checkpoint.objects import check_objects, collect_states, restore_states
from shoal.checkpoint.plain import to_plain
from shoal.checkpoint.retention import Plan, Retention, Saved
from shoal.checkpoint.store import FolderStore, Store

__all__ = [
    "CheckpointManager",
    "FolderStore",
    "Naming",
    "Plan",
    "Retention",
    "Saved",
    "Store",
    "atomic_write_bytes",
    "atomic_write_text",
    "atomic_writer",
    "check_objects",
    "collect_states",
    "default_pattern",
    "latest",
    "leaves",
    "list_checkpoints",
    "load",
    "map_leaves",
    "remove_leftovers",
    "restore_states",
    "save",
    "step_in_name",
    "to_plain",
    "verify",
]
