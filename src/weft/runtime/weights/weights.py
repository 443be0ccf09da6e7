"""The weights of a process: parameter groups of its stages, and the exchanges between copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import NamedTuple, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer

from weft.ir.graph import Backward
from weft.ir.kinds import Stream
from weft.ir.program import Program
from weft.ir.weights import StageGroups
from weft.lower.sums import gathers
from weft.runtime.experts.apart import is_apart
from weft.runtime.ranks.agreement import Modules
from weft.runtime.ranks.world import World
from weft.runtime.stage.modules import refuse_unfrozen
from weft.runtime.weights.apart import ExpertCopies, Summed, chosen, kinds_of, places_of
from weft.runtime.weights.exchange import Exchange, Member
from weft.runtime.weights.gather import Gather, GatherMember
from weft.runtime.weights.groups import ParameterGroup
from weft.runtime.weights.method import check_method
from weft.runtime.weights.options import Updating
from weft.runtime.weights.peers import Peers
from weft.runtime.weights.policy import Policy, Sender
from weft.runtime.weights.scatter import OwnGrads
from weft.runtime.weights.shards import Made, Shard, sharded
from weft.runtime.weights.staleness import Versions, under_way
from weft.runtime.weights.summing import Summing, devices_of
from weft.runtime.weights.ties import End
from weft.runtime.weights.versions import Newest, Stash

EVERY_PIPE = -1

VersionsOf: TypeAlias = Callable[[int], tuple[int, ...]]  # of a lap


class Model(NamedTuple):
    """The stages of a model, and what of them is kept.

    ties      weights that several stages share
    resident  how many versions of its weights each stage keeps
    modules   the copies that are in this process
    """

    stages: Sequence[nn.Module]
    ties: Sequence[Sequence[End]]
    resident: Sequence[int]
    modules: Modules


class Weights:
    """All weights of a process, and what changes them.

    program  as it is walked
    numbers  of microbatches in a lap
    """

    def __init__(
        self,
        program: Program,
        numbers: int,
        model: Model,
        updating: Updating,
        norms: StageGroups,
        world: World,
        device: torch.device,
    ) -> None:
        self._program, self._numbers, self._model, self._updating = (
            program,
            numbers,
            model,
            updating,
        )
        check_method(program, model.stages, updating)
        self._places, self._layout = places_of(model.stages), ExpertCopies(program)
        senders = [self._senders(stages) for stages in norms]
        by_group = {sender.group: found for found in senders for sender in found}
        weights = [weight for stage in model.stages for weight in stage.parameters()]
        peers = Peers(weights, device)
        self.policy = Policy(
            updating, Versions(program), by_group, world.norms, world.losses, peers
        )
        self._resident, self._device = model.resident, device
        self._pipes = range(len(program.placement.pipes))
        self._is_sharded = gathers(program)
        self._is_beside = any(lane.stream is Stream.EXPERTS for lane in program.lanes)
        self._without_optimizer: list[tuple[int, Sequence[tuple[str, nn.Parameter]]]] = []
        self.groups: dict[tuple[int, int], list[ParameterGroup]] = {}
        self._tied: dict[tuple[int, int, int], ParameterGroup] = {}  # by pipe, stage and tie
        self._own: dict[tuple[int, int], ParameterGroup] = {}
        for holder in model.modules:
            self.groups[holder] = [*self._grouped(*holder)]
        self._numbers_taken = 0  # of exchanges and gathers, the same on all ranks
        self._exchanges: dict[tuple[int, int], list[Exchange]] = {}
        for key, exchange in self._between_copies(world):
            self._exchanges.setdefault(key, []).append(exchange)
        self._gathers = dict(self._of_shards(world))

    # what actions ask for

    def group(self, pipe: int, stage: int, tie: int | None) -> ParameterGroup | None:
        """What an update changes: a stage's own weights, or its end of a tied one."""
        return self._own.get((pipe, stage)) if tie is None else self._tied.get((pipe, stage, tie))

    def exchanges(self, pipe: int, stage: int, tie: int | None) -> Sequence[Exchange]:
        """What sums gradients over pipes, or over the ends of a tied weight."""
        return self._exchanges.get((EVERY_PIPE, stage) if tie is None else (pipe, _key(tie)), ())

    def gather(self, stage: int, tie: int | None) -> Gather | None:
        """What makes the weights of a stage whole, or its end of a tied one, if any."""
        return self._gathers.get((stage, tie))

    def stashes(self, pipe: int, stage: int) -> list[Stash]:
        """Of which a forward of the stage uses a version each."""
        return [g.store for g in self.groups[pipe, stage] if isinstance(g.store, Stash)]

    def versions_of(self, pipe: int, stage: int, number: int) -> VersionsOf | None:
        """What the stashes of a stage use for a microbatch; a tied weight is as its home has it."""
        homes = [g.stage for g in self.groups[pipe, stage] if isinstance(g.store, Stash)]
        if not homes:
            return None
        policy, numbers = self.policy, self._numbers

        def found(lap: int) -> tuple[int, ...]:
            microbatch = lap * numbers + number
            return tuple([policy.origin + policy.versions.of(home, microbatch) for home in homes])

        return found

    # what a pipeline asks for

    @property
    def all_groups(self) -> list[ParameterGroup]:
        return [group for groups in self.groups.values() for group in groups]

    @property
    def optimizers(self) -> list[Optimizer]:
        return [group.optimizer for group in self.all_groups if group.optimizer is not None]

    @property
    def copies(self) -> dict[int, int]:
        """The most copies of any of its weights that each stage has here, on all of its pipes."""
        found: dict[int, int] = {}
        for (_, stage), groups in self.groups.items():
            most = max((group.store.copies for group in groups), default=1)
            found[stage] = found.get(stage, 0) + most
        return found

    def begin(self) -> None:
        """Refuse what learns now and never could; set the user's gradients aside."""
        for stage, named in self._without_optimizer:
            refuse_unfrozen(stage, named)
        for group in self.all_groups:
            group.begin()

    def give_up(self) -> None:
        """A step has failed, and may be taken again: forget its gradients."""
        for group in self.all_groups:
            group.give_up()
        for exchange in (one for each in self._exchanges.values() for one in each):
            exchange.restart()
        for gather in self._gathers.values():
            gather.restart()

    def restart(self, update: int) -> None:
        """Let this update be the first of the program."""
        self.policy.origin = update
        for group in self.all_groups:
            group.store.restart()

    def resume(self, updates: int, position: int) -> None:
        """Go on after as many updates, of which the last ones belong to this run of the program."""
        self.give_up()
        self.policy.resume(updates)
        self.policy.origin = updates - position

    # building

    def _senders(self, stages: Sequence[int]) -> list[Sender]:
        """Who sends what a norm over these stages needs: each weight once, a tied one at home."""
        model = self._model
        devices = self._program.placement.pipes[self._layout.measured[0]]
        tied = {end for ends in model.ties for end in ends}
        found = []
        for stage in stages:
            if self._program.graph.stages[stage].backward is Backward.FULL:
                named = model.stages[stage].named_parameters()
                own = [w for name, w in named if End(stage, name) not in tied]
                found += self._sender(stage, devices[stage], own)
                found += self._senders_apart(stage, [w for w in own if is_apart(w)])
        for number, (home, *_) in enumerate(model.ties):
            if home.stage in stages:
                weight = model.stages[home.stage].get_parameter(home.name)
                found += self._sender(self._program.stages + number, devices[home.stage], [weight])
        return found

    def _senders_apart(self, stage: int, weights: Sequence[nn.Parameter]) -> Iterator[Sender]:
        """Who sends norms of weights that the first copy of a stage does not have."""
        for index, pipe in enumerate(self._layout.measured):
            if index:
                device = self._program.placement.pipes[pipe][stage]
                yield from self._sender(self._sent_as(stage, index), device, weights)

    def _sent_as(self, number: int, index: int) -> int:
        """The number under which an expert rank sends norms of a parameter group."""
        return number + index * (self._program.stages + len(self._model.ties))

    def _sender(self, group: int, device: int, weights: Sequence[nn.Parameter]) -> list[Sender]:
        known = weights if self._program.period is None else [w for w in weights if w.requires_grad]
        if not known:
            return []
        return [Sender(group, device, reduce(torch.promote_types, (w.dtype for w in known)))]

    def _grouped(self, pipe: int, stage: int) -> Iterator[ParameterGroup]:
        """A stage's own weights, then its ends of tied ones."""
        tied = {end: number for number, ends in enumerate(self._model.ties) for end in ends}
        named = [*self._model.modules[pipe, stage].named_parameters()]
        own = [(name, weight) for name, weight in named if End(stage, name) not in tied]
        found = self._made(pipe, stage, own)
        if found is not None:
            self._own[pipe, stage] = found
            yield found
        for name, weight in named:
            tie = tied.get(End(stage, name))
            end = None if tie is None else self._made(pipe, stage, [(name, weight)], tie)
            if tie is not None and end is not None:
                self._tied[pipe, stage, tie] = end
                yield end

    def _made(
        self,
        pipe: int,
        stage: int,
        named: Sequence[tuple[str, nn.Parameter]],
        tie: int | None = None,
    ) -> ParameterGroup | None:
        home = stage if tie is None else self._model.ties[tie][0].stage
        types = self._updating.precision.types_of(self._model.modules[pipe, stage])
        (made, shard), store = self._optimizer(pipe, stage, named), self._store(home, named, types)
        is_still = not any(weight.requires_grad for _, weight in named)
        if is_still and self._updating.factories.optimizer is not None:
            self._without_optimizer.append((stage, named))
        if store is None:
            return None
        number = stage if tie is None else self._program.stages + tie
        return ParameterGroup(
            number,
            home,
            store,
            self.policy,
            places=self._measured(pipe, stage, named, store) if stage == home else None,
            made=made,
            exchanges=self._layout.exchanges(store.parameters) + (tie is not None),
            is_beside=self._is_beside,
            shard=shard,
            sent_as=self._sent_as(number, self._layout.index(pipe)),
        )

    def _measured(
        self,
        pipe: int,
        stage: int,
        named: Sequence[tuple[str, nn.Parameter]],
        store: Newest | Stash,
    ) -> list[int] | None:
        """Under which places this copy measures gradients; None where others measure them all."""
        if pipe not in self._layout.measured:
            return None
        known = {id(weight) for weight in store.parameters}
        at = [self._places[End(stage, name)] for name, w in named if id(w) in known]
        places = self._layout.places(pipe, at, store.parameters)
        return places if max(places, default=0) >= 0 else None

    def _optimizer(
        self, pipe: int, stage: int, named: Sequence[tuple[str, nn.Parameter]]
    ) -> tuple[Made, Shard | None]:
        """Of all weights, or of the share of them that this copy updates."""
        factories = self._updating.factories
        if not self._is_sharded:
            return factories.both(named), None
        shard, made = sharded(stage, named, factories, pipe, len(self._pipes))
        return made, shard

    def _store(
        self,
        home: int,
        named: Sequence[tuple[str, nn.Parameter]],
        types: Mapping[str, torch.dtype],
    ) -> Newest | Stash | None:
        """Where versions of weights are kept; nothing where none is ever trained."""
        is_synchronous = self._program.period is None
        if not named or not (is_synchronous or any(weight.requires_grad for _, weight in named)):
            return None
        if is_synchronous and self._updating.precision.compute is None:
            return Newest(named)
        stale = self._updating.staleness
        return Stash(
            named,
            self._resident[home],
            types=types,
            ahead=self.policy.versions.predicted(home) if stale and stale.predict else 0,
            since=stale.warmup if stale else 0,
        )

    def _between_copies(self, world: World) -> Iterator[tuple[tuple[int, int], Exchange]]:
        """Of each stage over its pipes, and of each tied weight over its stages."""
        ahead = under_way(self._program)
        if len(self._pipes) > 1:
            copies = [[*self._copies(stage)] for stage in range(self._program.stages)]
            sets = [devices_of(members) for found in copies for _, members in found]
            reduction = self._updating.reduction
            summing = Summing(world, self._device, reduction, sets, self._number, ahead)
            for stage, found in enumerate(copies):
                for kind, members in found:
                    exchange = summing.made(members, self._scattered(stage, kind))
                    if exchange is not None:
                        yield (EVERY_PIPE, stage), exchange
        for tie, ends in enumerate(self._model.ties):
            for pipe in self._pipes:
                number = self._number()
                members = [self._member(pipe, end.stage, tie) for end in ends]
                if any(member.holders for member in members):
                    tied = Exchange(number, members, world.transport, ahead, is_tied=True)
                    yield (pipe, _key(tie)), tied

    def _copies(self, stage: int) -> Iterator[tuple[Summed, list[Member]]]:
        """The copies that are summed together: of weights that are held apart, those alike."""
        kinds = kinds_of(self._model.stages[stage].parameters())
        for kind in sorted(kinds, key=lambda kind: kind.are_apart):
            ranks = range(self._layout.ranks) if kind.are_apart else ()
            alike = [self._layout.alike(rank) for rank in ranks] or [[*self._pipes]]
            for pipes in (one for one in alike if len(one) > 1):
                yield kind, [self._member(pipe, stage, kind=kind) for pipe in pipes]

    def _number(self) -> int:
        """Of the next exchange or gather."""
        self._numbers_taken += 1
        return self._numbers_taken - 1

    def _scattered(self, stage: int, kind: Summed) -> list[Shard]:
        """How the weights of a stage are cut, where each copy gets its share of the sums."""
        groups = next((self.groups[p, stage] for p in self._pipes if (p, stage) in self.groups), [])
        cut = [g.shard for g in groups if g.shard is not None and g.is_scattered]
        if kind.are_apart:
            return []
        found = [shard.only([w for w in shard.weights if Summed.of(w) == kind]) for shard in cut]
        return [shard for shard in found if shard.weights]

    def _of_shards(self, world: World) -> Iterator[tuple[tuple[int, int | None], Gather]]:
        """Of each stage over its pipes, and of each of its ends of tied weights."""
        ahead = under_way(self._program)
        for stage in range(self._program.stages if self._is_sharded else 0):
            for tie in (None, *range(len(self._model.ties))):
                number, groups = self._number(), [self.group(p, stage, tie) for p in self._pipes]
                devices = [pipe[stage] for pipe in self._program.placement.pipes]
                if any(groups):
                    members = [*map(GatherMember, devices, groups)]
                    yield (stage, tie), Gather(number, members, world.transport, ahead)

    def _member(
        self, pipe: int, stage: int, tie: int | None = None, kind: Summed | None = None
    ) -> Member:
        device = self._program.placement.pipes[pipe][stage]
        if (pipe, stage) not in self.groups:
            return Member(device, None)
        if kind is not None:
            return Member(device, chosen(self.groups[pipe, stage], kind))
        assert tie is not None
        tied = self._tied[pipe, stage, tie]
        return Member(device, [OwnGrads(tied) if tied.is_scattered else tied])


def _key(tie: int) -> int:
    """A tie beside stages."""
    return -1 - tie
