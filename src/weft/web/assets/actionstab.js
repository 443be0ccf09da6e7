// Actions as a table: what the picture shows, for those who cannot see it.

import { deviceOf } from "weft/data.js";
import { el, table } from "weft/dom.js";
import { amount } from "weft/format.js";
import { tokenOf, wordOf } from "weft/names.js";

const PAGE = 200;

export function actionsTab(app) {
  return app.shown().flatMap((timeline) => tableOf(app, timeline));
}

function tableOf(app, timeline) {
  const { start, end, decider } = timeline.columns;
  const first = timeline.tablePage ?? 0;
  const last = Math.min(timeline.count, first + PAGE);
  const since = (time) => amount(time - timeline.opening, timeline.units.time);
  const rows = Array.from({ length: last - first }, (_, index) => first + index).map((action) => [
    el("button", { class: "link", onclick: () => app.select({ timeline, action }) }, tokenOf(timeline, action)),
    wordOf(timeline, action),
    String(deviceOf(timeline, action)),
    since(start[action]),
    since(end[action]),
    decider[action] >= 0 ? tokenOf(timeline, decider[action]) : timeline.is_plain ? "–" : "nothing",
  ]);
  const caption = `${timeline.title}: actions ${first + 1} to ${last} of ${timeline.count}, device by device`;
  const headings = ["action", { text: "does", isWords: true }, "device", "starts", "ends", "started after"];
  const turn = (step) => () => {
    timeline.tablePage = Math.max(0, Math.min(timeline.count - 1, first + step));
    app.updateTab();
  };
  return [table(caption, headings, rows), el("p", {},
    el("button", { disabled: first === 0, onclick: turn(-PAGE) }, "Before"), " ",
    el("button", { disabled: last >= timeline.count, onclick: turn(PAGE) }, "Next"))];
}
