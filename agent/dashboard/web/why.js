// Why queries are late: what `muster why` says of the last minute, the most frequent cause first.

import { byId, el, label, say } from "./dom.js";
import { count, percent, things } from "./format.js";

const most = 5; // causes shown
const least = 0.02; // of what is late: below, a cause is left out, as `muster why` does

// causes are those of a report that are shown: each with its share of all queries and of what is late.
export function causes(report) {
  const all = report?.causes ?? [];
  return all.slice(0, most).filter((c, i) => i === 0 || c.queries >= least * report.late).map((c) => ({
    ...c, share: c.queries / report.queries, part: c.queries / report.late,
  }));
}

// withCode makes of a text its pieces: what stands between backquotes is code.
const withCode = (text) => text.split("`").map((piece, i) => (i % 2 ? el("code", {}, piece) : piece));

export class Why {
  constructor(state, view) {
    Object.assign(this, { state, view });
    this.report = null;
  }

  // take takes what api/why says; null: there is nothing to say.
  take(report) {
    this.report = report;
    this.show();
  }

  show() {
    const shown = causes(this.report);
    byId("why").hidden = shown.length === 0;
    if (!shown.length) {
      this.key = "";
      return;
    }
    const key = JSON.stringify(this.report);
    if (key === this.key) return;
    this.key = key;
    say(byId("whysays"), count(this.report.late) + " of " + things(this.report.queries, "query", "queries") +
      " of the last " + count(this.report.last_seconds) + " s were late, refused or failed");
    byId("whylist").replaceChildren(...shown.map((c) => {
      const fill = el("i");
      fill.style.width = 100 * c.part + "%";
      const bar = el("div", { class: "meter", role: "img", "aria-label": percent(c.part) + " of what was late" }, fill);
      label(bar, "title", percent(c.part) + " of what was late");
      return el("li", {},
        el("div", {}, el("b", {}, percent(c.share, c.share < 0.0995 ? 1 : 0)), bar),
        el("div", {}, el("strong", {}, c.short), el("small", {}, things(c.queries, "query", "queries")),
          c.evidence ? el("p", {}, el("em", {}, "Measured: "), ...withCode(c.evidence)) : undefined,
          el("p", {}, el("em", {}, "Do: "), ...withCode(c.remedy))));
    }));
  }
}
