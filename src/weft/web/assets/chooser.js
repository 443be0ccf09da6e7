// Which of the page's timelines are on show, and the bar that says which part of the step is.

import { el } from "weft/dom.js";

const FEW = 8; // timelines that are found at a glance

/** A chip for each timeline; of many, those of one group whose names are asked for. */
export function buildChooser(app, place) {
  const filter = el("input", { type: "search", placeholder: "Filter", "aria-label": "Filter the timelines by name", oninput: () => update() });
  const groups = el("div", { class: "groups", role: "group", "aria-label": "Groups of timelines" });
  const chips = el("div", { class: "chips" });
  let group = null; // of none yet, that of the first
  const open = (other) => { group = other; update(); };
  const update = () => {
    const { timelines } = app;
    const isMany = timelines.length > FEW;
    const all = [...new Set(timelines.map(groupOf))];
    if (!all.includes(group)) group = all[0];
    filter.hidden = !isMany;
    groups.replaceChildren(...(isMany && all.length > 1 ? all.map((one) => choice(app, one, one === group, open)) : []));
    const isWanted = (one) => !isMany || isShown(app, one)
      || (filter.value.trim() ? isNamed(one, filter.value) : groupOf(one) === group);
    chips.replaceChildren(...(timelines.length > 1 ? timelines.filter(isWanted).map((one) => chip(app, one)) : []));
    place.hidden = timelines.length < 2;
  };
  app.on("timelines", update);
  place.replaceChildren(el("div", { class: "chips" }, filter, groups), chips);
  update();
}

/** What sets timelines apart before any figure does. */
const groupOf = ({ group }) => group ?? "other";
const isShown = (app, timeline) => !app.hidden.has(timeline.key);
const isNamed = ({ name }, text) => name.toLowerCase().includes(text.trim().toLowerCase());

function choice(app, group, isOpen, open) {
  const count = app.timelines.filter((one) => groupOf(one) === group).length;
  return el("button", { class: "link", "aria-pressed": isOpen, onclick: () => open(group) }, `${group} (${count})`);
}

function chip(app, timeline) {
  return el("button", { class: "chip", "aria-pressed": isShown(app, timeline), title: timeline.title, onclick: () => app.toggle(timeline) }, timeline.name);
}

export function buildWindow(app, bar, thumb) {
  const update = () => {
    const whole = app.extent * 1.005;
    thumb.style.left = `${(100 * app.view.from) / whole}%`;
    thumb.style.width = `${Math.min(100, (100 * (app.view.to - app.view.from)) / whole)}%`;
  };
  app.on("view", update);
  app.on("timelines", update);
  update();
  let held = null;
  const moved = (event) => {
    if (held === null) return;
    app.pan(((event.clientX - held) / bar.clientWidth) * app.extent * 1.005);
    held = event.clientX;
  };
  bar.addEventListener("pointerdown", (event) => {
    bar.setPointerCapture(event.pointerId);
    if (event.target === bar) {
      const middle = (event.offsetX / bar.clientWidth) * app.extent * 1.005;
      const span = app.view.to - app.view.from;
      app.show(middle - span / 2, middle + span / 2);
    }
    held = event.clientX;
  });
  bar.addEventListener("pointermove", moved);
  bar.addEventListener("pointerup", () => { held = null; });
}
