// Idle stretches: why a device computes nothing, in the row where it does not.

import { deviceOf, idleOf } from "weft/data.js";
import { GUTTER, scaleOf } from "weft/layout.js";
import { tokenOf } from "weft/names.js";
import { CAUSE_COLOURS } from "weft/palette.js";

const SIGN = 6;

export const causeOf = (timeline, gap) => timeline.idle.causes[timeline.idle.cause[gap]];

/** What a gap says of itself, the longest first. */
function gapLabels(timeline, gap) {
  const cause = causeOf(timeline, gap);
  const awaited = timeline.idle.waits_for[gap];
  if (awaited < 0) return [cause];
  const token = tokenOf(timeline, awaited);
  return [`${cause}: ${token} on device ${deviceOf(timeline, awaited)}`, `${cause}: ${token}`, `← ${token}`, cause];
}

export function paintGaps(pen, app, row, top, width, theme) {
  const { timeline } = row;
  const { start, end } = timeline.idle;
  const scale = scaleOf(app, timeline, width);
  for (const gap of idleOf(timeline, row.device)) {
    const left = Math.max(GUTTER, scale.x(start[gap]));
    const right = Math.min(width, scale.x(end[gap]));
    if (right - left < 0.5) continue;
    paintGap(pen, timeline, gap, { left, right, y: row.y + top, height: row.height }, theme);
  }
}

function paintGap(pen, timeline, gap, { left, right, y, height }, theme) {
  const thick = height > 14 ? 3 : 2;
  pen.rect(left, y + height - thick - 0.75, right - left - 0.5, thick, CAUSE_COLOURS[causeOf(timeline, gap)]);
  if (height < 13) return;
  const most = Math.floor((right - left - 6) / SIGN);
  const label = gapLabels(timeline, gap).find((candidate) => candidate.length <= most);
  if (label) {
    pen.text((left + right) / 2, y + height / 2 - 1, label, theme.faint, { size: 10, align: "center" });
  }
}

/** The gap of a device at a time, or -1. */
export function gapAt(timeline, device, time) {
  const { start, end } = timeline.idle;
  return idleOf(timeline, device).find((gap) => start[gap] <= time && time <= end[gap]) ?? -1;
}
