// A file dropped on the page: live, the server reads, proves and times it; else timelines are shown.

import { notify } from "weft/app.js";
import { timelineOf } from "weft/data.js";
import { WORDS_OF_PLAIN, viewOf } from "weft/foreign.js";

const MOST = 64 << 20; // bytes
const MOST_OF_NAME = 80; // letters, as the server repeats it
const COLUMNS = ["stage", "kind", "microbatch", "span", "version", "pipe", "edge", "segment"];

export function watchDrops(app) {
  const mark = (isOver) => document.body.classList.toggle("dropping", isOver);
  addEventListener("dragover", (event) => { event.preventDefault(); mark(true); });
  addEventListener("dragleave", () => mark(false));
  addEventListener("drop", (event) => {
    event.preventDefault();
    mark(false);
    for (const file of event.dataTransfer.files) openFile(app, file);
  });
}

/** Open a file that was dropped or picked; a message says what became of it. */
export async function openFile(app, file) {
  try {
    if (file.size > MOST) throw new Error("it is larger than 64 MiB");
    const text = await file.text();
    const views = isPage(text) ? viewsOf(app, text) : null;
    const titles = app.openFile ? await app.openFile({ name: file.name, text, views })
      : add(app, views ? views.map((view) => timelineOf(view, app.words)) : [plainOf(app, text, file.name)]);
    notify(`Added ${titles.join(", ")}.`);
  } catch (error) {
    notify(naming(file.name, error.message), true);
  }
}

/** The server names a file itself where it says what is wrong in it. */
const naming = (name, words) => (words.startsWith(name.slice(0, MOST_OF_NAME)) ? words : `${name}: ${words}`);

function add(app, added) {
  app.adopt([...app.timelines, ...added]);
  app.fit();
  return added.map((timeline) => timeline.title);
}

const isPage = (text) => /^\s*<!doctype html/i.test(text);

/** What another page shows, with all that is known of it; nothing of it is run. */
function viewsOf(app, text) {
  const data = new DOMParser().parseFromString(text, "text/html").getElementById("data");
  try {
    const { format, timelines } = JSON.parse(data.textContent);
    if (format !== "weft.page" || !timelines.length) throw new Error("nothing to show");
    timelines.forEach((view) => timelineOf(view, app.words)); // else it cannot be shown
    return timelines;
  } catch {
    throw new Error("it is no page of Weft with timelines in it");
  }
}

function plainOf(app, text, name) {
  let document = null;
  try {
    document = JSON.parse(text);
  } catch {
    // a program as text, a torch CSV, or nothing of the kind
  }
  if (document?.format !== "weft.timeline") {
    throw new Error("it is no timeline. A page in a file opens timelines in JSON and other pages; "
      + `\`weft draw ${name} -o page.html\` makes a page of a program or a torch CSV, and \`weft serve\` opens them where they are dropped`);
  }
  const timeline = timelineOf(viewOf(document, app.words), WORDS_OF_PLAIN(app.words));
  return Object.assign(timeline, sameAs(app, timeline));
}

/** Of a program that is on show already, who reads what is known: predicted and measured. */
function sameAs(app, timeline) {
  const isSame = (one) => one.count === timeline.count && `${one.bounds}` === `${timeline.bounds}`
    && COLUMNS.every((name) => one.columns[name].every((value, action) => value === timeline.columns[name][action]));
  const known = app.timelines.find(isSame);
  return known ? { digest: known.digest, packedReads: known.packedReads, name: twinName(timeline) } : {};
}

const twinName = ({ name, is_measured: isMeasured }) => (isMeasured ? "measured" : `${name}, dropped`);
