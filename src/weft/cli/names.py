"""Names: what a shell completes after a word has begun; all of it loads when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping

import click
from click.shell_completion import CompletionItem


def schedule_names(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Completions for the shell."""
    from weft.schedules import REGISTRY

    return _completions({one.name: one.summary for one in REGISTRY}, incomplete)


def program_names(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Completions for the shell: schedules, or else files."""
    found = schedule_names(context, parameter, incomplete)
    return found or [CompletionItem(incomplete, type="file")]


def variant_names(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Completions for the shell: variants of the schedule that was named."""
    from weft.schedules import REGISTRY

    words = {context.params.get("schedule"), *context.args}  # what is typed so far
    of_name = [schedule for schedule in REGISTRY if schedule.name in words]
    return [one for schedule in of_name for one in _completions(schedule.variants, incomplete)]


def model_names(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Completions for the shell."""
    from weft.cost import MODELS

    return _completions({name: model.source for name, model in MODELS.items()}, incomplete)


def device_names(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Completions for the shell."""
    from weft.cost import DEVICES

    return _completions({name: device.source for name, device in DEVICES.items()}, incomplete)


def _completions(summaries: Mapping[str, str], incomplete: str) -> list[CompletionItem]:
    return [
        CompletionItem(name, help=summary)
        for name, summary in summaries.items()
        if name.startswith(incomplete)
    ]
