// Tabs below the picture, one of them open.

import { el, focusWithin } from "weft/dom.js";
import { actionsTab } from "weft/actionstab.js";
import { comparisonTab } from "weft/comparison.js";
import { frontierTab } from "weft/frontier.js";
import { helpsTab } from "weft/helps.js";
import { idleTab } from "weft/idletab.js";

const TABS = [
  ["idle", "Idle time", idleTab],
  ["comparison", "Comparison", comparisonTab],
  ["plot", "Frontier", frontierTab],
  ["helps", "What would help", helpsTab],
  ["actions", "Actions", actionsTab],
];

export function buildTabs(app, place) {
  app.tab = "idle";
  const panel = el("div", { role: "tabpanel", id: "panel", tabIndex: 0 });
  const buttons = TABS.map(([name, words]) =>
    el("button", { role: "tab", id: `tab-${name}`, "aria-controls": "panel", onclick: () => app.openTab(name) }, words));
  const list = el("div", { role: "tablist", "aria-label": "Tables" }, ...buttons);
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = TABS.findIndex(([name]) => name === app.tab);
    const next = (at + step + TABS.length) % TABS.length;
    app.openTab(TABS[next][0]);
    buttons[next].focus();
  });
  const update = () => {
    const focus = focusWithin(panel);
    TABS.forEach(([name], index) => {
      buttons[index].setAttribute("aria-selected", name === app.tab);
      buttons[index].tabIndex = name === app.tab ? 0 : -1;
    });
    place.classList.toggle("tall", app.tab === "plot");
    panel.setAttribute("aria-labelledby", `tab-${app.tab}`);
    panel.replaceChildren(...TABS.find(([name]) => name === app.tab)[2](app));
    focus();
  };
  app.openTab = (name) => {
    app.tab = TABS.some(([known]) => known === name) ? name : "idle";
    app.emit("select");
    update();
  };
  app.updateTab = update;
  app.on("timelines", update);
  place.replaceChildren(list, panel);
  update();
}
