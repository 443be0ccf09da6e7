// The toolbar: search, zoom, play, what is shown, colours, export.

import { CHOICES } from "weft/app.js";
import { byId, el } from "weft/dom.js";
import { twinOf } from "weft/layout.js";
import { EXPORTS } from "weft/exports.js";
import { showKeys } from "weft/keys.js";
import { Player } from "weft/play.js";
import { search } from "weft/search.js";

const SWITCHES = [
  ["memory", "Memory", "What each device holds, under its actions (m)"],
  ["idle", "Idle", "Why a device computes nothing (i)"],
  ["critical", "Critical path", "The chain of actions that decides the step (c)"],
  ["streams", "Streams", "Rows for communication and copies (s)"],
];
const SPEEDS = { 30: "slow", 12: "normal", 5: "fast" };

export function buildToolbar(app, place) {
  const player = new Player(app);
  app.player = player;
  place.append(
    group(searchBox(app)),
    group(
      button("−", "Zoom out (-)", () => app.zoom(1.6)),
      button("+", "Zoom in (+)", () => app.zoom(1 / 1.6)),
      button("Fit", "The whole step (0)", () => app.fit()),
    ),
    group(playButton(player), speed(player)),
    group(...SWITCHES.map((entry) => toggle(app, ...entry))),
    group(colours(app), choice(app, "palette", ""), alignment(app)),
    group(exportMenu(app), button("?", "All keys (?)", showKeys)),
  );
}

const group = (...parts) => el("div", { class: "group" }, ...parts);
const button = (words, title, onclick) => el("button", { title, "aria-label": title, onclick }, words);

function searchBox(app) {
  const box = el("input", { type: "search", id: "search", placeholder: "Find 2F13", "aria-label": "Find an action, for example 2F13 (/)" });
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter") search(app, box.value.trim());
    if (event.key === "Escape") byId("overlay").focus();
  });
  return box;
}

function toggle(app, option, words, title) {
  const one = el("button", { title, onclick: () => app.set(option, !app.options[option]) }, words);
  const update = () => {
    one.setAttribute("aria-pressed", app.options[option]);
    if (option === "streams") one.hidden = !app.live && !app.timelines.some(hasStreams);
  };
  app.on("timelines", update);
  update();
  return one;
}

const hasStreams = (timeline) => timeline.lanes.some((lane) => lane.row !== "compute");

function choice(app, option, label) {
  const select = el("select", { "aria-label": label || option, onchange: () => app.set(option, select.value) },
    ...Object.entries(CHOICES[option]).map(([value, words]) => el("option", { value }, words)));
  const update = () => { select.value = app.options[option]; };
  app.on("timelines", update);
  update();
  return el("label", {}, label, select);
}

function colours(app) {
  const label = choice(app, "colour", "Colour");
  const difference = label.querySelector('[value="difference"]');
  const update = () => { difference.hidden = !app.shown().some((timeline) => twinOf(app, timeline)); };
  app.on("timelines", update);
  update();
  return label;
}

function alignment(app) {
  const label = choice(app, "align", "Align");
  const update = () => { label.hidden = app.shown().length < 2; };
  app.on("timelines", update);
  update();
  return label;
}

function playButton(player) {
  const one = el("button", { title: "Play the step (space)", onclick: () => player.toggle() }, "▶ Play");
  player.onchange = (isPlaying) => { one.textContent = isPlaying ? "❚❚ Pause" : "▶ Play"; };
  return one;
}

function speed(player) {
  const select = el("select", { "aria-label": "Speed", onchange: () => { player.seconds = Number(select.value); } },
    ...Object.entries(SPEEDS).map(([value, words]) => el("option", { value }, words)));
  select.value = String(player.seconds);
  return select;
}

function exportMenu(app) {
  const list = el("div", { hidden: true, id: "exports" });
  const open = el("button", { "aria-controls": "exports", "aria-expanded": "false" }, "Export ▾");
  const show = (isOpen) => {
    list.hidden = !isOpen;
    open.setAttribute("aria-expanded", isOpen);
  };
  open.addEventListener("click", () => show(list.hidden));
  for (const [words, run] of Object.entries(EXPORTS)) {
    list.append(el("button", { onclick: () => { show(false); run(app); } }, words));
  }
  document.addEventListener("pointerdown", (event) => {
    if (!list.parentElement.contains(event.target)) show(false);
  });
  list.addEventListener("keydown", (event) => { if (event.key === "Escape") { show(false); open.focus(); } });
  return el("div", { class: "menu" }, open, list);
}
