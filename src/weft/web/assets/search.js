// Search: an action by its name, whole or in part: 2F13, F13, send:1-2F0.

import { announce, notify } from "weft/app.js";
import { focusOn } from "weft/hover.js";
import { tokenOf } from "weft/names.js";

const PLAIN = /^(\d+)?([FBIWRU])(\d+)?$/i;

/** Select the next action that fits, from the selected one on. */
export function search(app, text) {
  if (!text) return;
  for (const timeline of inTurn(app)) {
    const fits = matcher(timeline, text);
    const from = app.selection?.timeline === timeline ? (app.selection.action ?? -1) + 1 : 0;
    for (let offset = 0; offset < timeline.count; offset++) {
      const action = (from + offset) % timeline.count;
      if (fits(action)) {
        app.select({ timeline, action });
        focusOn(app, app.selection);
        announce(`found ${tokenOf(timeline, action)}`);
        return;
      }
    }
  }
  notify(`No action is called ${text}. One reads 2F13: stage, kind (F B I W), microbatch.`, true);
}

function inTurn(app) {
  const shown = app.shown();
  const first = Math.max(0, shown.indexOf(app.selection?.timeline));
  return [...shown.slice(first), ...shown.slice(0, first)];
}

/** Plain names are compared by their numbers, which is fast; others letter by letter. */
function matcher(timeline, text) {
  const plain = PLAIN.exec(text);
  if (!plain) return (action) => tokenOf(timeline, action).startsWith(text);
  const [, stage, letter, microbatch] = plain;
  const { columns, words } = timeline;
  const kind = words.kinds.findIndex((one) => one.token === letter.toUpperCase() && !one.prefix);
  return (action) => columns.kind[action] === kind
    && (stage === undefined || columns.stage[action] === Number(stage))
    && (microbatch === undefined || covers(columns, action, Number(microbatch)));
}

function covers(columns, action, microbatch) {
  const first = columns.microbatch[action];
  return first <= microbatch && microbatch < first + columns.span[action];
}
