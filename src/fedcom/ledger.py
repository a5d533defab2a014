"""Every byte that travels, by direction, vector and part."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Literal

Direction = Literal["uplink", "downlink"]


class Ledger:
    """Counts bytes as messages pass."""

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self._items: dict[Direction, dict[str, dict[str, int]]] = {"uplink": {}, "downlink": {}}

    def add(self, direction: Direction, vector: str, items: Mapping[str, int], receivers: int = 1) -> None:
        """Book the itemised bytes of a stack of messages, each sent to `receivers`."""
        account = self._items[direction].setdefault(vector, defaultdict(int))
        for part, nbytes in items.items():
            account[part] += receivers * nbytes

    def total(self, direction: Direction) -> int:
        """Bytes so far in one direction."""
        return sum(sum(account.values()) for account in self._items[direction].values())

    def as_dict(self) -> dict[str, object]:
        """The whole account, for ledger.json."""
        books: dict[str, object] = {"clients": self.clients}
        for direction, accounts in self._items.items():
            vectors = {vector: dict(account) for vector, account in accounts.items()}
            books[direction] = {"total": self.total(direction), "vectors": vectors}
        return books
