"""Tables of Iceberg by the name of their catalog, as the source and the sink open them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from arrowstate.errors import InvalidInputError, MissingDependencyError, UnavailableError
from arrowstate.runtime.secrets import hidden, secrets_of
from arrowstate.storage.registry import options_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table


class IcebergTable:
    """Where a table is; the catalog is loaded at its first use in each process."""

    def __init__(self, feature: str, table: str, catalog: str, options: Mapping[str, str] | None) -> None:
        try:
            import pyiceberg  # noqa: F401
        except ImportError as error:
            raise MissingDependencyError(feature, "pyiceberg", "iceberg") from error
        if "." not in str(table) or not all(str(table).split(".")):
            raise InvalidInputError(f"table must be the name of a table with its namespace, shop.orders, got {table!r}")
        self.table = table
        self.catalog = catalog
        self.options = options_of("options", options)
        self._loaded: Catalog | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    def load(self) -> Table:
        """Return the table as it is now.

        A catalog that cannot be reached, or has no answer now, is an UnavailableError, which a job tries again. One
        that refuses is an InvalidInputError.
        """
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, RESTError

        try:
            return self._catalog().load_table(self.table)
        except (NoSuchTableError, NoSuchNamespaceError):
            raise InvalidInputError(
                f"there is no Iceberg table {self.table!r} in catalog {self.catalog!r}; make it first, with "
                "create_table of the catalog"
            ) from None
        except _unavailable() as error:
            raise UnavailableError(
                "the Iceberg catalog", "asking it for a table", self._without_secrets(error)
            ) from None
        except RESTError as error:
            raise InvalidInputError(
                f"the catalog {self.catalog!r} refuses to open the Iceberg table {self.table!r}: "
                f"{self._without_secrets(error)}; mend the options of the catalog, or what it allows this user to do"
            ) from None

    def close(self) -> None:
        """Close the catalog."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            loaded.close()

    def _catalog(self) -> Catalog:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NotInstalledError

        if self._loaded is None:
            try:
                self._loaded = load_catalog(self.catalog, **self.options)
            except (ValueError, KeyError, NotInstalledError) as error:
                raise InvalidInputError(
                    f"PyIceberg cannot load catalog {self.catalog!r} with the options {', '.join(self.options)}: "
                    f"{self._without_secrets(error)}"
                ) from None
        return self._loaded

    def _without_secrets(self, error: Exception) -> str:
        # The URI of a database may have its password.
        return hidden(str(error), [*secrets_of(self.options), *filter(None, [self.options.get("uri")])])


def _unavailable() -> tuple[type[Exception], ...]:
    """Return the errors of a catalog that another attempt may not meet again."""
    from pyiceberg.exceptions import ServerError, ServiceUnavailableError, TooManyRequestsError
    from requests import RequestException

    errors = (RequestException, ServerError, ServiceUnavailableError, TooManyRequestsError)
    try:
        from sqlalchemy.exc import OperationalError
    except ImportError:
        # It comes with an extra of PyIceberg; only catalogs in a database need it.
        return errors
    return (*errors, OperationalError)
