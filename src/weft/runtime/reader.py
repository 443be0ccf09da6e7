"""The reader: evaluates and predicts, in evaluation mode, and leaves everything as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from weft.runtime.assembly import Assembly
from weft.runtime.batch import Cut, Data
from weft.runtime.criterion import See
from weft.runtime.evaluation import Evaluation, Tally, untouched_randomness
from weft.runtime.feed import Begun, Feed, GivenData
from weft.runtime.outputs import Outputs
from weft.runtime.reading import Reading


class Begin(Protocol):
    """What starts a run on all ranks."""

    def __call__(self, given: GivenData, kind: str, *, is_first: bool) -> Begun: ...


class Reader:
    """What evaluates and predicts with the parts of a process.

    together  where whatever goes wrong ends the waits of all other ranks
    """

    def __init__(
        self,
        parts: Assembly,
        feed: Feed,
        begin: Begin,
        together: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._parts, self._feed, self._begin, self._together = parts, feed, begin, together

    @contextmanager
    def mode(self) -> Iterator[Reading]:
        """Forwards alone, of modules in evaluation mode; so are those that give shapes alone.

        All ranks have to outline a stage alike, whoever holds it.
        """
        tops = [*self._parts.modules.values(), *self._parts.reading.outlined]
        modes = [(module, module.training) for top in tops for module in top.modules()]
        for module in tops:
            module.eval()
        try:
            yield self._parts.reading
        finally:
            for module, is_training in modes:
                module.training = is_training

    def evaluated(self, loader: Iterable[tuple[Data, Data]], tally: Tally) -> Evaluation:
        """The figures of all batches of a loader."""
        with self.mode() as reading, untouched_randomness():
            pairs = iter(loader)
            while self._seen(reading, lambda: self._feed.loaded(pairs), tally.watching):
                pass
            with self._together():
                what = "the figures of all batches, of which every rank needs as many,"
                return tally.total(self._feed.gather(tally.written(), what))

    def predicted(self, batch: Data, *, is_everywhere: bool) -> Any:
        """What the last stage returns for a batch, where that is asked for."""
        outputs, feed = Outputs(), self._feed
        with self.mode() as reading:
            inputs = self._seen(reading, lambda: feed.predicted(batch), lambda *_: outputs.see)
            assert inputs is not None
            if is_everywhere or feed.judges > 1:
                with self._together():
                    outputs.add(self._feed.gather(outputs.written(), "the outputs"))
        return outputs.joined(inputs) if is_everywhere or feed.reads_targets else None

    def _seen(
        self,
        reading: Reading,
        given: Callable[[], GivenData | None],
        seeing: Callable[[GivenData, Cut], See],
    ) -> Cut | None:
        """Run a batch forward, and let somebody see its outputs; its inputs, if there is one."""
        with self._together():
            found = given()
            if found is None:
                return None
            inputs, run = self._begin(found, "evaluation", is_first=not reading.steps)
            reading.watch(inputs.values, found.wanted, seeing(found, inputs), run)
            return inputs
