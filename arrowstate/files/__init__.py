"""Snapshots on storage: runs, manifests, savepoints, written, read and verified."""
