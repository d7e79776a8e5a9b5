"""What a tile asks of the calls that are drawn for it."""

from typing import NamedTuple


class Needs(NamedTuple):
    """What a tile wants of a call beside a number of tokens."""

    pitch: int = 4
    """Tokens' codes begin at multiples of so many bytes."""
    lanes: int = 0
    """Of tensor memory: weight rows of a tile of which there shall be several, or tokens."""
    more_k: int = 0
    k_multiple: int = 1
    experts: int = 1024
    """So many at most: shared memory has their list."""
    ups_within_atoms: bool = False
    """Blocked scale factors of an expert's ups may begin within an atom."""

    def whole(self, k):
        return -(-k // self.k_multiple) * self.k_multiple


NOTHING = Needs()
