// Which of the page's timelines are on show, and the bar that says which part of the step is.

import { el } from "weft/dom.js";

export function buildChooser(app, place) {
  const update = () => place.replaceChildren(...(app.timelines.length > 1 ? app.timelines.map((one) => chip(app, one)) : []));
  app.on("timelines", update);
  update();
}

function chip(app, timeline) {
  const isShown = !app.hidden.has(timeline.key);
  return el("button", { class: "chip", "aria-pressed": isShown, title: timeline.title, onclick: () => app.toggle(timeline) }, timeline.name);
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
