"""Sinks that come with the package."""
