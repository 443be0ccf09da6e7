// The few things that every part of the page does with elements.

/** An element with properties and children; text is always set as text, never as markup. */
export function el(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "class") element.className = value;
    else if (key in element && !key.includes("-")) element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** A table of cells; the first column heads its rows. A heading may have a title, and be of words. */
export function table(caption, headings, rows) {
  const columns = headings.map((heading) => (typeof heading === "string" ? { text: heading } : heading));
  const look = ({ isWords }) => (isWords ? "words" : "");
  const cell = (content, index) => el(index ? "td" : "th", { class: look(columns[index]), ...(index ? {} : { scope: "row" }) }, content);
  const head = columns.map((column) => el("th", { scope: "col", title: column.title ?? "", class: look(column) }, column.text));
  return el("table", {},
    el("caption", {}, caption),
    el("thead", {}, el("tr", {}, ...head)),
    el("tbody", {}, ...rows.map((cells) => el("tr", {}, ...cells.map(cell)))));
}

/** What puts the focus back after a place was built anew: on what has the same name. */
export function focusWithin(place) {
  const name = place.contains(document.activeElement) && document.activeElement.getAttribute("aria-label");
  const alike = () => [...place.querySelectorAll("[aria-label]")].filter((one) => one.getAttribute("aria-label") === name);
  const at = alike().indexOf(document.activeElement);
  return () => alike()[at]?.focus();
}

/** Run once, shortly after the last of many calls. */
export function debounced(wait, run) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...given), wait);
  };
}
