"""Registries: tables of heads, tasks and encoders that other packages can add to.

A package adds entries with `register_head`, `register_task` and `register_encoder`, or with an entry point of the
groups "bertvision.heads", "bertvision.tasks" and "bertvision.encoders". An entry point names one entry, or a mapping
of several. Entry points are loaded when a name is not found or the table is listed, never before.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from bertvision.errors import BertVisionError

logger: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")

NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


class Registry(Mapping[str, T], Generic[T]):
    """A mapping from names to entries, in order of registration."""

    def __init__(self, kind: str, entries: Mapping[str, T], convert: Callable[[Any], T], reserved: Sequence[str] = ()):
        """Create a registry.

        Args:
            kind: What the entries are, e.g. "head". The entry-point group is "bertvision." and its plural.
            entries: The entries that are part of this package.
            convert: Checks what a user or an entry point gives, and converts it to an entry.
            reserved: Names that cannot be registered.
        """
        self.kind = kind
        self._entries = dict(entries)
        self._convert = convert
        self._reserved = reserved
        self._loaded = False

    def register(self, name: str, value: Any) -> None:
        """Add an entry. A name that is taken is an error."""
        self.check_name(name)
        self._entries[name] = self._convert(value)

    def check_name(self, name: str) -> None:
        """Raise an error if nothing can be registered under this name."""
        if not NAME.fullmatch(name) or name in self._reserved:
            raise BertVisionError(f"{name!r} cannot name a {self.kind}. Use letters, digits, '.', '_' and '-'.")
        if name in self._entries:
            raise BertVisionError(f"A {self.kind} named {name!r} is already registered. Choose another name.")

    def unregister(self, name: str) -> None:
        """Remove an entry."""
        del self._entries[name]

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            self._load_plugins()
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        self._load_plugins()
        return iter(list(self._entries))

    def __len__(self) -> int:
        self._load_plugins()
        return len(self._entries)

    def _load_plugins(self) -> None:
        if self._loaded:
            return
        self._loaded = True  # first, because a plugin may use this registry while it is imported
        for entry_point in entry_points(group=f"bertvision.{self.kind}s"):
            try:
                self._load(entry_point)
            except Exception as error:  # a broken plugin must not disable the package
                logger.warning(f"The plugin {entry_point.value} cannot be used: {type(error).__name__}: {error}")

    def _load(self, entry_point: EntryPoint) -> None:
        loaded = entry_point.load()
        entries = loaded if isinstance(loaded, Mapping) else {entry_point.name: loaded}
        for name, value in entries.items():
            if name not in self._entries:  # the module may have registered it while it was imported
                self.register(name, value)
