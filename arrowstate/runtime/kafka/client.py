"""What the source and the sink know of the client: its options, its log, and what its errors mean.

`confluent_kafka` is imported where it is used, so that a job without Kafka does without the package.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from arrowstate.errors import ArrowStateError, InvalidInputError, MissingDependencyError, UnavailableError
from arrowstate.runtime.secrets import hidden, secrets_of
from arrowstate.storage.registry import options_of
from arrowstate_formats.integers import check_integer

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

_logger = logging.getLogger("arrowstate.kafka")

_WRONG = (
    "INVALID_CONFIG",
    "INVALID_PARTITIONS",
    "INVALID_REPLICATION_FACTOR",
    "INVALID_TRANSACTION_TIMEOUT",
    "MSG_SIZE_TOO_LARGE",
    "POLICY_VIOLATION",
    "TOPIC_EXCEPTION",
    "UNSUPPORTED_VERSION",
    "_INVALID_ARG",
    "_NOT_IMPLEMENTED",
    "_UNSUPPORTED_FEATURE",
)
_RIGHTS = (
    "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "_AUTHENTICATION",
    "SASL_AUTHENTICATION_FAILED",
)
_NO_TOPIC = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID")


class Client:
    """The brokers, and the options of the client; it is pickled with the source or sink that has it."""

    def __init__(
        self, name: str, servers: str, options: Mapping[str, Any] | None, reserved: Mapping[str, str], timeout_ms: int
    ) -> None:
        try:
            import confluent_kafka  # noqa: F401
        except ImportError as error:
            raise MissingDependencyError(name, "confluent-kafka", "kafka") from error
        given: object = servers
        if not isinstance(given, str) or not given.strip():
            raise InvalidInputError(f"{name} needs the brokers as host:port, several with commas, got {servers!r}")
        self.servers = given
        self.options = options_of("options", options)
        for option, instead in reserved.items():
            if option in self.options:
                raise InvalidInputError(f"{name} sets {option!r} itself: {instead}")
        self.timeout = check_integer("timeout_ms", timeout_ms, 1) / 1000

    def configuration(self, **own: Any) -> dict[str, Any]:
        """Return the options with those that the caller sets; underscores stand for dots."""
        given = {"bootstrap.servers": self.servers, "logger": _logger, "error_cb": _log_error, **self.options}
        return {**given, **{name.replace("_", "."): value for name, value in own.items()}}

    def hidden(self, text: str) -> str:
        """Return a text without the secrets of the options."""
        return hidden(text, secrets_of(self.options))

    def unavailable(self, doing: str, reason: object) -> UnavailableError:
        """Return the error of a broker that was not reached or gave no answer."""
        return UnavailableError(f"Kafka at {self.servers}", doing, self.hidden(str(reason)))

    def error(self, doing: str, error: KafkaError) -> ArrowStateError:
        """Return what an error of the client means: what to mend, or that the broker is away."""
        name, text = error.name(), self.hidden(error.str())
        if name in _NO_TOPIC:
            return InvalidInputError(f"{doing}: there is no such topic or partition ({text}); make it first")
        if name in _RIGHTS:
            user = self.options.get("sasl.username")
            who = "the user of this job" if user is None else f"user {user!r}"
            return InvalidInputError(f"{doing}: {who} may not do this ({name}: {text}); give the user this right")
        if name in _WRONG:
            return InvalidInputError(f"{doing}: {name}: {text}")
        return self.unavailable(doing, f"{name}: {text}")


def error_of(exception: BaseException) -> KafkaError | None:
    """Return the error of the client that an exception has, None for another exception."""
    from confluent_kafka import KafkaError, KafkaException

    # A fatal error that comes with delivery reports is the cause of a SystemError.
    found = exception.__cause__ if isinstance(exception, SystemError) else exception
    if isinstance(found, KafkaException) and found.args and isinstance(found.args[0], KafkaError):
        return found.args[0]
    return None


def _log_error(error: KafkaError) -> None:
    """Tell the log of a broker that is away; the client connects again by itself."""
    _logger.warning("%s", error.str())
