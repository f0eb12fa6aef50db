// One model's page: what the fleet's page says, of that model alone. Its address is
// #model/NAME/VERSION, so that it can be sent to others.

import { answersPlot, modelPlot } from "./charts.js";
import { byId, el, label, say, table } from "./dom.js";
import { count, milliseconds, percent, target, things, wanted } from "./format.js";
import { modelColour } from "./paint.js";
import { agentName, title, typeName } from "./state.js";

// address is a model's page.
export const address = (key) => {
  const at = key.lastIndexOf("/");
  return "#model/" + encodeURIComponent(key.slice(0, at)) + "/" + key.slice(at + 1);
};

// keyOf is the key of the model that a hash is the page of; "": it is none's.
export function keyOf(hash) {
  const found = /^#model\/([^/]+)\/(\d+)$/.exec(hash);
  try {
    return found ? decodeURIComponent(found[1]) + "/" + found[2] : "";
  } catch {
    return ""; // no text is written so
  }
}

// link is a model's name, as a link to its page.
export const link = (model, key, models) => el("a", { href: address(key), title: title(model, models) }, title(model, models));

export class One {
  constructor(state, view) {
    Object.assign(this, { state, view });
    this.plots = [];
  }

  // chosen begins the page of the model that the view names now.
  chosen() {
    for (const p of this.plots) p.remove();
    this.plots = [];
    byId("one").hidden = byId("where").hidden = !this.view.model;
  }

  show() {
    const { state, view } = this;
    if (!view.model) return;
    const m = state.models().find((x) => x.key === view.model);
    const name = m ? title(m, state.fleet.models) : view.model;
    say(byId("onename"), name);
    document.title = name + " · Muster";
    byId("onegone").hidden = Boolean(m);
    say(byId("onegone"), "No agent holds " + view.model + " now.");
    byId("onebody").hidden = !m;
    if (!m) return;
    const asked = typeof m.within === "number";
    say(byId("onein"), asked ? percent(m.within, 2) : "–");
    byId("onein").className = asked ? (m.late ? "bad" : "ok") : "";
    say(byId("oneof"), asked ? "of its queries in the last minute were in time, of " + wanted(m.percentile) + " wanted"
      : state.beat?.leaderless ? "Without a leader nobody counts." : "Nobody has asked for it in the last minute.");
    const { late, failed } = this.missed();
    const figures = [
      ["Queries/s", count(m.rate), ""],
      ["p99, last seconds", milliseconds(m.p99_ms), m.target_ms ? "of " + target(m.target_ms) : ""],
      ["p50, last seconds", milliseconds(m.p50_ms), ""],
      ["Late, 10 minutes", count(late), ""],
      ["Failed, 10 minutes", count(failed), ""],
      ["Largest batch", count(m.largest), ""],
    ];
    byId("onefigures").replaceChildren(...figures.map(([what, n, of]) =>
      el("div", {}, el("dt", {}, what), el("dd", {}, el("b", {}, n), " ", el("em", {}, of)))));
    if (!this.plots.length) {
      const range = () => view.range;
      const hue = () => modelColour(state.keys.indexOf(view.model));
      this.plots = [modelPlot(byId("onelatency"), state, view, view.model, () => name, hue, range),
        answersPlot(byId("oneanswers"), state, view, view.model, range)];
    }
    for (const p of this.plots) p.show();
    label(byId("onelatency"), "aria-label", name + ": p99 " + milliseconds(m.p99_ms) + ", p50 " + milliseconds(m.p50_ms));
    label(byId("oneanswers"), "aria-label", name + ": " + count(m.rate) + " queries a second, " + count(late) + " late in 10 minutes");
    this.where(m);
  }

  // missed counts the last 10 minutes.
  missed() {
    const rows = this.state.seconds.models.get(this.view.model);
    const sum = (all) => (all ?? []).reduce((s, x) => s + (x ?? 0), 0);
    return { late: sum(rows?.late), failed: sum(rows?.failed) };
  }

  // where says which agents hold the model.
  where(m) {
    const { fleet } = this.state;
    const lanes = this.state.lanes();
    const holds = fleet.agents.map((a, i) => ({ a, i })).filter(({ a }) => a.models?.includes(m.index))
      .sort((x, y) => agentName(x.a).localeCompare(agentName(y.a), "en", { numeric: true }));
    say(byId("wheresays"), things(holds.length, "agent") + " of " + count(fleet.agents.length));
    byId("wherebody").replaceChildren(table("Agents that hold the model",
      ["agent", "type", "lanes", "runs it now", "busy"], holds.map(({ a, i }) => {
        const own = lanes.filter((l) => l.agent === i);
        const known = own.filter((l) => l.busy !== null);
        const state = a.draining ? " (drains)" : "";
        return [agentName(a) + state, typeName(fleet.types[a.type]), count(a.lanes),
          count(own.filter((l) => l.model === m.index).length),
          known.length ? percent(known.reduce((s, l) => s + l.busy, 0) / known.length) : "–"];
      })));
  }
}
