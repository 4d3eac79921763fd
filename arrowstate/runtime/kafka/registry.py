"""A client of a schema registry: the requests of Confluent's, which others have too."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import struct
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from arrowstate.errors import InvalidInputError, UnavailableError
from arrowstate.runtime.secrets import hidden

HEADER = struct.Struct(">bI")
"""What stands before a message in Confluent's wire format: a zero byte, and the id of its schema."""
_TRIES = 3
"""How often a registry is asked that does not answer."""
_NO_ANSWER = (OSError, http.client.HTTPException)
"""What is raised where there is no answer, or no whole one."""
_SCHEMA: dict[str, type] = {"schema": str}
_ID: dict[str, type] = {"id": int}
"""The members that an answer must have, and their types."""


class NoReferenceError(InvalidInputError):
    """A schema refers to one that is not there."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema in a registry."""

    id: int
    kind: str
    """AVRO, PROTOBUF or JSON."""
    text: str
    references: tuple[str, ...] = ()
    """The schemas that it refers to by name, those without references of their own first."""


class SchemaRegistry:
    """A schema registry with the interface of Confluent's, such as Karapace or Apicurio.

    Parameters
    ----------
    url : str
        Its address, `http://` or `https://`.
    user, password : str, optional
        For basic authentication.
    token : str, optional
        For bearer authentication.
    ca : str, optional
        A file with the certificates that are trusted; by default those of the system.
    timeout_ms : int, default 10_000
        How long an answer may take.

    Raises
    ------
    InvalidInputError
        If the address is no such URL, or has a password in it.

    Examples
    --------
    >>> from arrowstate.runtime import SchemaRegistry
    >>> SchemaRegistry("https://registry:8081", user="ann", password="secret")
    SchemaRegistry('https://registry:8081')
    """

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        ca: str | None = None,
        timeout_ms: int = 10_000,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInputError("a schema registry needs a URL with http:// or https:// and a host")
        if parts.password is not None:
            raise InvalidInputError("give the password of a schema registry as password=, not in its URL")
        self.url = url.rstrip("/")
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if user is not None:
            pair = base64.b64encode(f"{user}:{password or ''}".encode()).decode()
            self._headers["Authorization"] = f"Basic {pair}"
        elif token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._secrets = [text for text in (password, token) if text]
        self._ca = ca
        self._timeout = timeout_ms / 1000

    def __repr__(self) -> str:
        return f"SchemaRegistry({self.url!r})"

    def schema(self, id: int) -> RegisteredSchema | None:
        """Return the schema with an id, None if there is none."""
        found = self._ask(f"/schemas/ids/{id}", _SCHEMA)
        return None if found is None else self._registered(id, found)

    def latest(self, subject: str) -> RegisteredSchema:
        """Return the newest schema of a subject, such as `payments-value`.

        Raises
        ------
        InvalidInputError
            If there is no such subject.
        UnavailableError
            If the registry does not answer.
        """
        found = self._ask(f"/subjects/{quote(subject, safe='')}/versions/latest", _ID | _SCHEMA)
        if found is None:
            raise InvalidInputError(f"{self!r} has no subject {subject!r}; register its schema first")
        return self._registered(found["id"], found)

    def id_of(self, subject: str, text: str, kind: str, *, register: bool) -> int:
        """Return the id of a schema of a subject, which is registered if it is not there and `register` says so.

        Raises
        ------
        InvalidInputError
            If it is not there, or the registry refuses it.
        UnavailableError
            If the registry does not answer.
        """
        body = {"schema": text, **({} if kind == "AVRO" else {"schemaType": kind})}
        path = f"/subjects/{quote(subject, safe='')}"
        found = self._ask(f"{path}/versions" if register else path, _ID, body)
        if found is None:
            raise InvalidInputError(
                f"{self!r} has no such schema under subject {subject!r}; register it, or say register=True"
            )
        return int(found["id"])

    def _registered(self, id: int, found: Mapping[str, Any]) -> RegisteredSchema:
        texts: dict[str, str] = {}
        self._refer(found, texts)
        return RegisteredSchema(id, found["schemaType"], found["schema"], tuple(texts.values()))

    def _refer(self, found: Mapping[str, Any], texts: dict[str, str]) -> None:
        for reference in found["references"]:
            if reference["name"] in texts:
                continue
            subject, version = quote(reference["subject"], safe=""), reference["version"]
            other = self._ask(f"/subjects/{subject}/versions/{version}", _SCHEMA)
            if other is None:
                raise NoReferenceError(f"{self!r} has no version {version} of subject {reference['subject']!r}")
            self._refer(other, texts)
            texts[reference["name"]] = other["schema"]

    def _ask(self, path: str, members: Mapping[str, type], body: Mapping[str, Any] | None = None) -> Any:
        """Return the answer to a request, which has these members, None if there is no such thing."""
        data = None if body is None else json.dumps(body).encode()
        headers = {
            **self._headers,
            **({} if data is None else {"Content-Type": "application/vnd.schemaregistry.v1+json"}),
        }
        request = urllib.request.Request(self.url + path, data, headers)  # noqa: S310 (http or https, as was checked)
        reason = ""
        for _ in range(_TRIES):
            try:
                with urllib.request.urlopen(request, timeout=self._timeout, context=self._context()) as answer:  # noqa: S310
                    return _checked(json.load(answer), members)
            except urllib.error.HTTPError as error:
                reason = hidden(f"{error.code} {_text_of(error)}", self._secrets)
                if error.code == 404:
                    return None
                if error.code in (401, 403):
                    raise InvalidInputError(f"{self!r} refuses {path}: {reason}; give the user this right") from None
                if error.code < 500 and error.code not in (408, 429):
                    raise InvalidInputError(f"{self!r} refuses {path}: {reason}") from None
            except (*_NO_ANSWER, ValueError) as error:
                reason = hidden(f"{type(error).__name__}: {error}", self._secrets)
        raise UnavailableError(f"the schema registry at {self.url}", f"asking for {path}", reason)

    def _context(self) -> ssl.SSLContext | None:
        return ssl.create_default_context(cafile=self._ca) if self.url.startswith("https") else None


def _checked(found: Any, members: Mapping[str, type]) -> Any:
    """Return an answer if it is an object with these members; a proxy may have answered in place of the registry."""
    if not isinstance(found, dict):
        raise ValueError(f"its answer is no object: {json.dumps(found)[:1000]}")
    _check_members(found, members)
    # Both may be left out.
    whole = {"schemaType": found.get("schemaType") or "AVRO", "references": found.get("references") or []}
    _check_members(whole, {"schemaType": str, "references": list})
    for reference in whole["references"]:
        _check_members(reference, {"name": str, "subject": str, "version": int})
    return found | whole


def _check_members(found: Any, members: Mapping[str, type]) -> None:
    for name, kind in members.items():
        if not isinstance(found, dict) or not isinstance(found.get(name), kind):
            raise ValueError(f"its answer has no {name!r} that is {kind.__name__}: {json.dumps(found)[:1000]}")


def _text_of(error: urllib.error.HTTPError) -> str:
    """Return what a registry says of an error, as far as it can be read."""
    try:
        return error.read(1000).decode(errors="replace")
    except _NO_ANSWER:
        return ""
