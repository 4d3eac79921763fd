"""Runs to storage and back: the commit log, run files, manifests, savepoints."""
