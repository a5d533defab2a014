"""Every byte that travels, by direction, vector and part."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

Direction = Literal["uplink", "downlink"]


class Ledger:
    """Counts the bytes of messages; sizes that a device has computed stay there until they are asked for.

    Args:
        clients: how many the run has, for ledger.json.

    Attributes:
        exact: whether all bytes are those of real messages; otherwise some sizes were estimated on a GPU.
    """

    def __init__(self, clients: int) -> None:
        self.clients, self.exact = clients, True
        self._items: dict[Direction, dict[str, dict[str, int | Tensor]]] = {"uplink": {}, "downlink": {}}
        # How many numbers the messages carried; None: books of an earlier version did not say.
        self._numbers: dict[Direction, Counter[str]] | None = {"uplink": Counter(), "downlink": Counter()}

    def add(
        self,
        direction: Direction,
        vector: str,
        items: Mapping[str, int | Tensor],
        messages: int = 1,
        receivers: int = 1,
        exact: bool = True,
        numbers: int = 0,
    ) -> None:
        """Enter the bytes of some messages.

        Args:
            vector: the name of the vector they carry.
            items: bytes by part of the message: one number for every message, or a tensor with one for each.
            messages: how many there are.
            receivers: how many receive each message.
            exact: whether these are the bytes of real messages, and not estimates of them.
            numbers: the coordinates of the vector in each message; 0 of what is no such vector.
        """
        self.exact &= exact
        if self._numbers is not None and numbers:
            self._numbers[direction][vector] += receivers * messages * numbers
        account = self._items[direction].setdefault(vector, defaultdict(int))
        for part, size in items.items():
            account[part] += receivers * (size.sum() if isinstance(size, Tensor) else messages * size)

    def merge(self, other: "Ledger") -> None:
        """Add what another ledger holds."""
        self.exact &= other.exact
        for direction, accounts in other._items.items():
            for vector, account in accounts.items():
                self.add(direction, vector, account)
        if self._numbers is not None and other._numbers is not None:
            for direction, numbers in other._numbers.items():
                self._numbers[direction].update(numbers)

    def total(self, direction: Direction) -> int:
        """Bytes so far in one direction."""
        return sum(sum(map(int, account.values())) for account in self._items[direction].values())

    def as_dict(self) -> dict[str, object]:
        """All bytes by direction, vector and part, and the numbers carried by vector, for ledger.json."""
        books: dict[str, object] = {"clients": self.clients, "exact": self.exact}
        for direction, accounts in self._items.items():
            vectors = {
                vector: {part: int(size) for part, size in account.items()}
                for vector, account in accounts.items()
            }
            numbers = {} if self._numbers is None else {"numbers": dict(self._numbers[direction])}
            books[direction] = {"total": self.total(direction), "vectors": vectors, **numbers}
        return books

    def load(self, books: Mapping[str, Any]) -> None:
        """Take over the books that `as_dict` gave, in place of its own."""
        self.exact = books.get("exact", True)
        known = all("numbers" in books[direction] for direction in self._items)
        self._numbers = {way: Counter(books[way]["numbers"]) for way in self._items} if known else None
        for direction, accounts in self._items.items():
            accounts.clear()
            for vector, account in books[direction]["vectors"].items():
                self.add(direction, vector, account)
