// A file dropped on the page: live, the server reads, proves and times it; else a timeline is shown.

import { tell } from "weft/app.js";
import { post } from "weft/live.js";
import { viewOf } from "weft/foreign.js";
import { timelineOf } from "weft/data.js";

const MOST = 64 << 20; // bytes

export function watchDrops(app) {
  const mark = (isOver) => document.body.classList.toggle("dropping", isOver);
  addEventListener("dragover", (event) => { event.preventDefault(); mark(true); });
  addEventListener("dragleave", () => mark(false));
  addEventListener("drop", (event) => {
    event.preventDefault();
    mark(false);
    const [file] = event.dataTransfer.files;
    if (file) open(app, file);
  });
}

export async function open(app, file) {
  try {
    if (file.size > MOST) throw new Error("it is larger than 64 MiB");
    const text = await file.text();
    add(app, app.live ? await sent(file.name, text) : read(app, text));
  } catch (error) {
    tell(`${file.name}: ${error.message}`, true);
  }
}

async function sent(name, text) {
  const answer = await post("/open", { name, text });
  if (answer.refused) throw new Error(answer.refused);
  return answer.timelines;
}

function read(app, text) {
  let document;
  try {
    document = JSON.parse(text);
  } catch {
    throw new Error("it is no JSON. A page in a file opens timelines in JSON; `weft serve` opens programs and torch CSV too");
  }
  if (document?.format === "weft.page") return document.timelines;
  if (document?.format === "weft.timeline") return [viewOf(document, app.words)];
  throw new Error("it is no timeline. A page in a file opens what `weft export --format timeline-json` writes; `weft serve` opens programs and torch CSV too");
}

function add(app, views) {
  const added = views.map((view) => timelineOf(view, app.words));
  app.wholeSpan = app.view.to - app.view.from;
  app.adopt([...app.timelines, ...added]);
  app.fit();
  tell(`Added ${added.map((timeline) => timeline.title).join(", ")}.`);
}
