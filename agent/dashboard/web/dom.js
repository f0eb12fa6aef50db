// Elements. Text comes in as text nodes only, so that no name can be markup.

// el makes an element. Attributes that are functions listen to the event of their name; those that
// are undefined or false are left out. Children are elements or texts.
export function el(tag, attributes = {}, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") e.addEventListener(name, value);
    else if (value !== undefined && value !== false) e.setAttribute(name, value === true ? "" : value);
  }
  e.append(...children.filter((c) => c !== undefined && c !== null));
  return e;
}

// shape makes a picture of one path, in a square of so many units.
export function shape(path, size) {
  const ns = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(ns, "svg");
  svg.setAttribute("viewBox", "0 0 " + size + " " + size);
  svg.setAttribute("aria-hidden", "true");
  const p = document.createElementNS(ns, "path");
  p.setAttribute("d", path);
  svg.append(p);
  return svg;
}

export const byId = (id) => document.getElementById(id);

// say sets an element's text, and touches it only if it changes.
export function say(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

// label sets an attribute, and touches it only if it changes.
export function label(e, name, value) {
  if (e.getAttribute(name) !== value) e.setAttribute(name, value);
}

// table makes a table: a caption that only screen readers say, heads, and rows of texts or elements.
// The first column is the row's name.
export function table(caption, heads, rows) {
  const head = el("tr", {}, ...heads.map((h) => el("th", { scope: "col" }, h)));
  const body = rows.map((row) => el("tr", {}, ...row.map((cell, i) =>
    (i === 0 ? el("th", { scope: "row" }, cell) : el("td", {}, cell)))));
  return el("table", {}, el("caption", { class: "sr" }, caption), el("thead", {}, head),
    el("tbody", {}, ...body));
}

// choices makes a row of buttons of which one is pressed. names may change later by set.
export function choices(box, chosen) {
  let now;
  let have = "";
  return {
    set(items, selected) { // items: [key, name, title]
      now = selected;
      const key = items.map((i) => i.join("\u0001")).join("\u0002");
      if (key !== have) {
        have = key;
        const focused = box.contains(document.activeElement) && document.activeElement.dataset.key;
        box.replaceChildren(...items.map(([k, name, title]) => el("button", {
          type: "button", "data-key": k, title,
          click: () => { now = k; chosen(k); this.press(); },
        }, name)));
        for (const b of box.children) if (b.dataset.key === focused) b.focus();
      }
      this.press();
    },
    press() {
      for (const b of box.children) label(b, "aria-pressed", String(b.dataset.key === String(now)));
    },
  };
}

// Tip is what appears beside the pointer, or below what has the focus.
const tipBox = () => byId("tip");
export function tip(lines, x, y) {
  const box = tipBox();
  if (!lines) {
    box.hidden = true;
    return;
  }
  box.replaceChildren(...lines.map((line, i) => el("div", { class: i === 0 ? "first" : undefined }, line)));
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  const right = document.documentElement.clientWidth;
  const left = Math.max(8, Math.min(x + 14, right - width - 8));
  const top = y + 16 + height > innerHeight - 8 ? y - height - 12 : y + 16;
  box.style.left = left + "px";
  box.style.top = Math.max(8, top) + "px";
}
