"""Lines: the messages between copies of the same weights, of which a process holds some.

Every copy sends something to the device of every other one; what is for several copies of a
device goes there once. Knows messages; knows not what is in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from weft.ir.kinds import Direction
from weft.runtime.transport import Transport, meeting
from weft.runtime.transport.message import Meet, Message, Route, Send, Unknown, Values

ValuesFor: TypeAlias = Callable[[int, Sequence[int]], Values]  # of a copy, for these copies


class Lines:
    """Who sends to whom.

    number   of what is exchanged, which its messages name
    devices  of all copies
    here     the copies in this process
    ahead    how many exchanges may be on their way at once
    """

    def __init__(
        self,
        number: int,
        devices: Sequence[int],
        here: Sequence[int],
        transport: Transport,
        ahead: int,
        what: str = "the gradients",
    ) -> None:
        self._away = [copy for copy in range(len(devices)) if copy not in here]
        self._at: dict[int, list[int]] = {}  # copies elsewhere, by device
        for copy in self._away:
            self._at.setdefault(devices[copy], []).append(copy)
        self._sends: list[list[tuple[int, int, Send]]] = []  # copy, device
        self._meets: list[Meet] = []
        for turn in range(ahead):
            sends, outgoing, incoming = [], list[Route](), list[Route]()
            for copy, device in enumerate(devices):
                message = Message(number, Direction.BOTH, turn * len(devices) + copy)
                if copy in self._away:
                    incoming.append(Route(message, device, devices[here[0]], what, number))
                    continue
                for other in sorted(self._at):
                    outgoing.append(Route(message, device, other, what, number))
                    sends.append((copy, other, transport.sender(outgoing[-1], Unknown())))
            self._sends.append(sends)
            self._meets.append(meeting(transport, outgoing, incoming))

    def send(self, turn: int, values: ValuesFor) -> None:
        """Send to every other device what its copies need of each copy here."""
        for copy, device, send in self._sends[turn % len(self._sends)]:
            send(values(copy, self._at[device]))

    def meet(self, turn: int) -> dict[int, Values]:
        """Wait for what the copies elsewhere have sent."""
        arrived = self._meets[turn % len(self._meets)]()
        return dict(zip(self._away, arrived, strict=True))
