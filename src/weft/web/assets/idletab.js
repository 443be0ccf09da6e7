// Idle time: for each device its work and why it waits, as bars and as numbers.

import { el, table } from "weft/dom.js";
import { amount, percent, spanOf } from "weft/format.js";
import { CAUSE_COLOURS } from "weft/palette.js";

export function idleTab(app) {
  return app.shown().map((timeline) => {
    const { sums } = timeline.idle;
    const causes = timeline.idle.causes.filter((cause) => sums.some((of) => of[cause]));
    const headings = ["device", { text: `share of the ${spanOf(timeline)}`, title: "work, then every cause of waiting", isWords: true }, "work", "idle",
      ...causes.map((cause) => ({ text: cause, title: timeline.words.causes[cause] }))];
    const rows = sums.map((of, device) => row(timeline, `device ${device}`, of, causes, timeline.makespan));
    const all = Object.fromEntries(["work", ...causes].map((name) => [name, sums.reduce((sum, of) => sum + (of[name] ?? 0), 0)]));
    rows.push(row(timeline, "all", all, causes, timeline.makespan * timeline.devices));
    return table(`${timeline.title}. Idle is time in which a device computes nothing within the ${spanOf(timeline)}.`, headings, rows);
  });
}

function row(timeline, name, of, causes, whole) {
  const unit = timeline.units.time;
  const idle = causes.reduce((sum, cause) => sum + (of[cause] ?? 0), 0);
  const cells = causes.map((cause) => (of[cause] ? amount(of[cause], unit) : "–"));
  return [name, bar(timeline, of, causes, whole), amount(of.work, unit), `${amount(idle, unit)} (${percent(idle / (whole || 1))})`, ...cells];
}

function bar(timeline, of, causes, whole) {
  const part = (seconds, colour, title) => {
    const piece = el("i", { title });
    piece.style.width = `${(100 * seconds) / (whole || 1)}%`;
    piece.style.background = colour;
    return piece;
  };
  const unit = timeline.units.time;
  return el("div", { class: "stack", role: "img", "aria-label": `work ${percent(of.work / (whole || 1))}` },
    part(of.work, "#7d8b9a55", `work ${amount(of.work, unit)}`),
    ...causes.filter((cause) => of[cause]).map((cause) =>
      part(of[cause], CAUSE_COLOURS[cause], `${cause} ${amount(of[cause], unit)}`)));
}
