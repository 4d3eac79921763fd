"""Secrets of a connection, which must not be in a text that somebody reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_WORDS = ("password", "secret", "token", "jaas", "key.pem", "credential", "user.info")


def secrets_of(options: Mapping[str, object]) -> list[str]:
    """Return the values of the options whose names say that they are secret, such as `sasl.password`."""
    return [
        value
        for name, value in options.items()
        if isinstance(value, str) and value and any(word in name.lower() for word in _WORDS)
    ]


def hidden(text: str, secrets: Iterable[str]) -> str:
    """Return a text in which three stars stand for each secret."""
    # The longest first: one may be a part of another.
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
