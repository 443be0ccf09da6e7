"""Every schedule Weft knows: one file each, listed here once."""

from weft.schedules.chimera import chimera
from weft.schedules.dualpipe import dualpipe
from weft.schedules.dualpipev import dualpipev
from weft.schedules.eager_1f1b import eager_1f1b
from weft.schedules.gpipe import gpipe
from weft.schedules.grouped_gpipe import grouped_gpipe
from weft.schedules.hanayo import hanayo
from weft.schedules.interleaved_1f1b import interleaved_1f1b
from weft.schedules.interleaved_zb1p import interleaved_zb1p
from weft.schedules.kimi_k2 import kimi_k2
from weft.schedules.kit.registry import Registry
from weft.schedules.kit.schedule import Claims, Need, Refusal, Schedule, schedule
from weft.schedules.kit.shape import Shape
from weft.schedules.looped_bfs import looped_bfs
from weft.schedules.naive import naive
from weft.schedules.naive_async import naive_async
from weft.schedules.one_f_one_b import one_f_one_b
from weft.schedules.pipedream import pipedream
from weft.schedules.pipedream_2bw import pipedream_2bw
from weft.schedules.v_half import v_half
from weft.schedules.v_min import v_min
from weft.schedules.wpipe import wpipe
from weft.schedules.zb_h1 import zb_h1
from weft.schedules.zb_h2 import zb_h2
from weft.schedules.zbv import zbv

REGISTRY = Registry(
    [
        naive,
        gpipe,
        one_f_one_b,
        eager_1f1b,
        interleaved_1f1b,
        looped_bfs,
        grouped_gpipe,
        chimera,
        zb_h1,
        zb_h2,
        zbv,
        v_half,
        v_min,
        hanayo,
        interleaved_zb1p,
        dualpipe,
        dualpipev,
        kimi_k2,
        naive_async,
        pipedream,
        pipedream_2bw,
        wpipe,
    ]
)

__all__ = [
    "REGISTRY",
    "Claims",
    "Need",
    "Refusal",
    "Registry",
    "Schedule",
    "Shape",
    "chimera",
    "dualpipe",
    "dualpipev",
    "eager_1f1b",
    "gpipe",
    "grouped_gpipe",
    "hanayo",
    "interleaved_1f1b",
    "interleaved_zb1p",
    "kimi_k2",
    "looped_bfs",
    "naive",
    "naive_async",
    "one_f_one_b",
    "pipedream",
    "pipedream_2bw",
    "schedule",
    "v_half",
    "v_min",
    "wpipe",
    "zb_h1",
    "zb_h2",
    "zbv",
]
