// The panels that are text and bars: models, families, money, events; and the profiles' picture.

import { costPlot, modelPlot } from "./charts.js";
import { byId, choices, el, label, say, shape, table } from "./dom.js";
import { count, dollars, inTime, list, milliseconds, percent, signed, span, target, things, wanted } from "./format.js";
import { canvas, colour, faded, modelColour, typeColour, write } from "./paint.js";
import { ticks } from "./scale.js";
import { address, link } from "./one.js";
import { title, typeName } from "./state.js";
import { story } from "./story.js";

const mostPlots = 4; // models with a picture; the rest is a table

// Models shows each model's latency beside its target, late ones first.
export class Models {
  constructor(state, view) {
    Object.assign(this, { state, view });
    this.box = byId("modelplots");
    this.plots = new Map(); // by key
  }

  show() {
    const { state } = this;
    const models = state.models();
    const late = models.filter((m) => m.late).length;
    const asked = models.filter((m) => m.rate > 0).length;
    say(byId("modelssays"), "p50 to p99 beside the target, last 10 minutes" +
      (late ? "; " + things(late, "model") + " late" : "") +
      (asked < models.length ? "; " + count(asked) + " of " + things(models.length, "model") + " asked" : ""));
    // A model that nobody asked in this time is a line of the table: it has nothing to draw.
    const drawn = models.filter((m) => m.rate > 0 || state.seconds.models.get(m.key)?.answered.some((n) => n > 0));
    const first = drawn.slice(0, mostPlots);
    for (const [key, p] of this.plots) {
      if (first.some((m) => m.key === key)) continue;
      p.plot.remove();
      p.e.remove();
      this.plots.delete(key);
    }
    first.forEach((m, i) => {
      let p = this.plots.get(m.key);
      if (!p) {
        p = this.make(m);
        this.plots.set(m.key, p);
      }
      if (this.box.children[i] !== p.e) this.box.insertBefore(p.e, this.box.children[i] ?? null);
      p.place = m.index;
      p.plot ??= modelPlot(p.box, state, this.view, m.key, () => p.name.textContent, () => modelColour(p.place));
      p.plot.show();
      const name = title(m, state.fleet.models);
      say(p.name, name);
      label(p.name, "title", name + ": its page");
      label(p.name, "href", address(m.key));
      say(p.says, m.rate > 0 ? count(m.rate) + "/s, p99 " + milliseconds(m.p99_ms)
        : state.beat?.leaderless ? "not known" : "no queries");
      say(p.within, m.within === null || m.within === undefined ? "" : inTime(m.within, m.late));
      p.within.className = m.late ? "bad" : "ok";
      label(p.box, "aria-label", name + ": p99 " + milliseconds(m.p99_ms) + ", p50 " + milliseconds(m.p50_ms) +
        (m.target_ms ? ", target " + target(m.target_ms) : ""));
    });
    const rest = models.filter((m) => !first.includes(m));
    const box = byId("modelrest");
    box.replaceChildren();
    if (rest.length) box.append(el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "More models" }, this.tableOf(rest)));
    this.view.panelTable("models", () => this.tableOf(models));
  }

  make() {
    const name = el("a", { class: "name" });
    const says = el("span");
    const within = el("em");
    const box = el("div", { class: "plot" });
    return { e: el("div", { class: "model" }, el("div", { class: "h" }, name, says, within), box), name, says, within, box };
  }

  tableOf(models) {
    return table("Models", ["model", "queries/s", "p50", "p99", "target", "in time", "waits for"], models.map((m) => [
      link(m, m.key, this.state.fleet.models), count(m.rate), milliseconds(m.p50_ms), milliseconds(m.p99_ms),
      m.target_ms ? target(m.target_ms) : "–",
      el("span", { class: m.late ? "bad" : undefined }, inTime(m.within, m.late)),
      wanted(m.percentile) + " in time",
    ]));
  }
}

// Families shows how variants share what is asked of their family, and which types hold them.
export class Families {
  constructor(state, view) {
    Object.assign(this, { state, view });
  }

  show() {
    const { fleet } = this.state;
    const several = fleet.families.filter((f) => f.models.length > 1);
    const serving = fleet.agents.filter((a) => a.lanes);
    const alike = serving.every((a) => a.models?.length === fleet.models.length);
    byId("families").hidden = several.length === 0 && alike;
    if (byId("families").hidden) return;
    say(byId("familiesh"), several.length ? "Families" : "Models held");
    say(byId("familiessay"), several.length ? "which variants answer, and which agents hold them" : "how many agents of a type");
    const counts = new Map(); // answered in the last minute, by key
    for (const s of this.state.heat.sums.values()) counts.set(s.model, (counts.get(s.model) ?? 0) + s.total);
    byId("shares").hidden = several.length === 0;
    byId("shares").replaceChildren(...several.map((f) => this.family(f, counts)));
    const name = (i) => title(fleet.models[i], fleet.models);
    const types = fleet.types.map((t, i) => ({ ...t, i, agents: fleet.agents.filter((a) => a.type === i && a.lanes) }))
      .filter((t) => t.agents.length);
    byId("held").replaceChildren(table("How many agents of a type hold a model", ["model", ...types.map(typeName)],
      fleet.models.map((m, i) => [name(i), ...types.map((t) => {
        const n = t.agents.filter((a) => a.models?.includes(i)).length;
        return el("span", { class: n === 0 ? "none" : undefined }, n === t.agents.length ? "all " + n : n === 0 ? "none" : n + " of " + t.agents.length);
      })])));
  }

  family(f, counts) {
    const { fleet, keys } = this.state;
    const parts = f.models.map((i) => ({ i, m: fleet.models[i], n: counts.get(keys[i]) ?? 0 })).filter((p) => p.m);
    const all = parts.reduce((s, p) => s + p.n, 0);
    const rated = parts.filter((p) => typeof p.m.accuracy === "number");
    const weight = rated.reduce((s, p) => s + p.n, 0);
    const accuracy = weight ? rated.reduce((s, p) => s + p.n * p.m.accuracy, 0) / weight : null;
    const bar = el("div", { class: "bar", role: "img", "aria-label": f.name + ": " + parts.map((p) => p.m.name + " " + (all ? percent(p.n / all) : "–")).join(", ") },
      ...parts.filter((p) => p.n > 0).map((p) => {
        const e = el("i", { title: p.m.name });
        e.style.flexGrow = p.n;
        e.style.background = modelColour(p.i);
        return e;
      }));
    const names = parts.map((p) => {
      const dot = el("i");
      dot.style.background = modelColour(p.i);
      return el("span", {}, dot, title(p.m, fleet.models) + (all ? " " + percent(p.n / all) : "") +
        (typeof p.m.accuracy === "number" ? ", accuracy " + p.m.accuracy.toFixed(3) : ""));
    });
    return el("div", { class: "family" },
      el("p", {}, el("b", { title: f.name }, f.name), el("em", {}, accuracy === null ? (all ? "" : "no queries in the last minute") : "answers' accuracy " + accuracy.toFixed(3))),
      bar, el("small", {}, ...names));
  }
}

// Money shows what runs and what the planner would run.
export class Money {
  constructor(state, view) {
    Object.assign(this, { state, view });
    this.body = byId("moneybody");
    this.plan = null;
  }

  // take takes what api/plan says; null: it may not be seen.
  take(plan) {
    this.plan = plan;
    this.at = performance.now();
    this.show();
  }

  // takeFleet takes what api/fleet says: what the leader rents, proposes and holds.
  takeFleet(fleet) {
    this.fleet = fleet;
    this.show();
  }

  // shown is the name of a type for people.
  shown(name) { return typeName(this.state.fleet.types[this.type(name)] ?? { name }); }

  // askForPrices says once how machines get a price: whoever has read it closes it.
  askForPrices() {
    if (remembers(noPrices)) return [];
    const lacking = this.state.fleet.types.filter((t) => !(t.price > 0)).map(typeName);
    const close = () => {
      remember(noPrices);
      this.key = "";
      this.show();
    };
    return [el("div", { class: "save plain" }, el("b", {}, "What does " + (list(lacking) || "a machine") + " cost?"),
      el("p", {}, "Start its agents with what a machine costs an hour, and this page shows costs and what would save:"),
      el("code", {}, "muster agent --price 0.40"), el("button", { type: "button", click: close }, "Do not show this again"))];
  }

  // short says how a proposal falls short of what is asked now; "": it carries that.
  short(plan) {
    const carries = plan?.proposed?.allowable;
    const rates = this.state.seconds.columns.rate.slice(-60).filter((r) => r !== null);
    const asked = rates.length ? rates.reduce((a, b) => a + b, 0) / rates.length : 0;
    return typeof carries === "number" && carries < 0.995 * asked
      ? "It would answer " + count(carries) + " queries/s in time; now " + count(asked) + " are asked." : "";
  }

  type(name) { return this.state.fleet.types.findIndex((t) => t.name === name); }

  show() {
    const { plan, state } = this;
    byId("money").hidden = this.view.may?.plan === false;
    if (!state.fleet) return;
    const key = JSON.stringify([plan, this.fleet, this.short(plan), state.fleet.types.map((t) => [t.name, t.price, t.agents]), state.seconds.columns.rate.some((r) => r > 0), document.documentElement.dataset.theme]);
    if (key !== this.key) {
      this.key = key;
      this.fill();
    }
    const age = plan?.number ? plan.age_ms / 1000 + (performance.now() - this.at) / 1000 : null;
    say(byId("planned"), age === null || this.view.still ? "" : "planned " + (age < 60 ? "just now" : span(age) + " ago"));
    if (this.plot) {
      this.plot.show();
      label(this.costBox, "aria-label", "Dollars a million queries: now " + byId("permillion").textContent);
    }
  }

  fill() {
    const { plan, state } = this;
    this.plot?.remove();
    this.plot = null;
    const parts = [];
    const now = plan?.now?.instances?.length ? plan.now : this.running();
    const priced = plan?.number ? plan.priced : state.fleet.types.every((t) => t.price !== null && t.price !== undefined);
    const unit = (x) => (priced ? dollars(x) + "/hr" : things(x, "instance"));
    parts.push(this.configuration("now", now, unit, priced));
    if (this.fleet?.mode) {
      // what the leader would rent, within its limits, comes below
    } else if (plan?.proposed && plan.change) {
      parts.push(this.configuration("proposed", plan.proposed, unit, priced));
      parts.push(this.saving(plan));
    } else if (priced) {
      const why = plan?.reason || (plan?.number ? "Nothing better is known for this demand." : "No plan yet: the leader makes one when it knows the demand.");
      parts.push(el("div", { class: "save plain" },
        el("b", {}, plan?.state === "superseded" ? "The last plan is superseded"
          : plan?.number ? "Stay as you are" : "No plan yet"), el("p", {}, why)));
    }
    say(byId("moneyh"), priced ? "Money" : "Capacity");
    if (!priced) parts.push(...this.askForPrices());
    if (plan?.more?.length && !priced) {
      parts.push(table("What one more instance adds", ["one more", "adds"], plan.more.map((m) => [
        this.shown(m.type), signed(m.rate) + "/s"])));
    } else if (plan?.more?.length) {
      parts.push(table("What one more instance adds", ["one more", "adds", "costs", "queries/s per $/hr"], plan.more.map((m, i) => [
        this.shown(m.type), signed(m.rate) + "/s", m.price === null || m.price === undefined ? "–" : dollars(m.price) + "/hr",
        el("span", { class: i === 0 && m.price ? "ok" : undefined }, m.price ? count(m.rate / m.price) : "–"),
      ])));
    }
    if (this.fleet?.mode) parts.push(...this.renting(this.fleet));
    this.body.replaceChildren(...parts);
    if (priced && state.seconds.columns.rate.some((r) => r > 0)) {
      this.costBox = el("div", { class: "plot" });
      this.body.append(el("h3", {}, "Dollars a million queries, last 10 minutes"), this.costBox);
      this.plot = costPlot(this.costBox, state, this.view);
    }
  }

  // renting says what is rented, what would change, with a button that approves it, and what is held.
  renting(fleet) {
    const p = fleet.proposal;
    const parts = [el("h3", {}, "Rented: " + dollars(fleet.price) + "/hr of at most " + dollars(fleet.limit) + ", mode " + fleet.mode + (fleet.exact ? ", as desired" : ""))];
    if (p) {
      const says = el("p", { role: "status" }, p.waits);
      const approve = async () => {
        try {
          const answer = await fetch("api/fleet", {
            method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ approve: p.number }),
          });
          if (answer.ok) this.takeFleet(await answer.json());
          else say(says, (await answer.json()).error ?? "The agent refuses.");
        } catch {
          say(says, "The agent does not answer.");
        }
      };
      parts.push(el("div", { class: "save plain" }, el("b", {}, dollars(p.now) + "/hr → " + dollars(p.price) + "/hr"),
        el("ul", {}, ...p.changes.map((c) => el("li", {}, c))), el("p", {}, p.why), says,
        fleet.mode === "approve" && this.view.may?.fleet !== false ? el("button", { click: approve }, "Approve") : undefined));
    }
    if (fleet.held.length) {
      parts.push(table("What is held", ["held", "because"], fleet.held.map((h) => [
        h.what, h.why + (h.for_ms > 0 ? " (for another " + span(h.for_ms / 1000) + ")" : "")])));
    }
    if (fleet.fault) parts.push(el("p", {}, fleet.fault));
    return parts;
  }

  running() {
    const { fleet } = this.state;
    const instances = fleet.types.map((t) => ({ type: t.name, count: t.agents, price: t.price }));
    return { instances, price: instances.reduce((s, t) => s + t.count * (t.price ?? 0), 0) };
  }

  configuration(name, c, unit, priced) {
    const bar = el("div", { class: "bar", role: "img", "aria-label": name + ": " + list(c.instances.map((t) => t.count + " " + this.shown(t.type))) },
      ...c.instances.filter((t) => t.count > 0).map((t) => {
        const i = this.type(t.type);
        const e = el("i", { title: t.count + " × " + this.shown(t.type) }, String(t.count));
        e.style.flexGrow = priced ? t.count * (t.price ?? 0) : t.count;
        e.style.background = i < 0 ? typeColour(5) : typeColour(i);
        return e;
      }));
    const cost = priced ? c.price : c.instances.reduce((s, t) => s + t.count, 0);
    const limit = typeof c.limit === "number" && c.limit > 0 ? " · " + count(c.limit) + "/s" : "";
    return el("div", { class: "conf" }, el("span", {}, name), bar, el("span", {}, el("b", {}, unit(cost)), limit));
  }

  saving(plan) {
    const saves = plan.now.price - plan.proposed.price;
    const counts = new Map(plan.now.instances.map((t) => [t.type, -t.count]));
    for (const t of plan.proposed.instances) counts.set(t.type, (counts.get(t.type) ?? 0) + t.count);
    const add = [...counts].filter(([, n]) => n > 0).map(([t, n]) => n + " " + this.shown(t));
    const drop = [...counts].filter(([, n]) => n < 0).map(([t, n]) => -n + " " + this.shown(t));
    const short = this.short(plan);
    const head = !plan.priced ? "Another mix" : saves > 0.0005 ? "saves " + dollars(saves) + "/hr"
      : saves < -0.0005 ? "costs " + dollars(-saves) + "/hr more" : "costs the same";
    return el("div", { class: short ? "save short" : "save" },
      el("b", { class: short ? "warn" : saves >= 0 ? "ok" : undefined }, head),
      el("ul", {}, ...[add.length ? "add " + list(add) : "", drop.length ? "return " + list(drop) : ""].filter(Boolean).map((t) => el("li", {}, t))),
      short ? el("p", { class: "warn" }, short) : undefined, el("p", {}, plan.reason ?? ""));
  }
}

const noPrices = "muster-no-prices";

// remember notes in the browser that something was read; remembers says whether it was.
function remember(what) {
  try {
    localStorage.setItem(what, "read");
  } catch {
    // Then it comes again with the next page.
  }
  read.add(what);
}

const read = new Set();

function remembers(what) {
  try {
    return read.has(what) || localStorage.getItem(what) !== null;
  } catch {
    return read.has(what);
  }
}

// looks of events: the badge's class, its shape in a box of 16, and the colour on a time axis.
const looks = {
  leader: ["info", "M8 2.500l1.600 3.600 3.900.4-2.900 2.600.8 3.900L8 11l-3.400 2 .8-3.900-2.900-2.600 3.900-.4z", "accent"],
  good: ["good", "M8 3.500v9M3.500 8h9", "ok"],
  quiet: ["quiet", "M3.500 8h9", "faint"],
  error: ["error", "M4.500 4.500l7 7M11.500 4.500l-7 7", "bad"],
  model: ["info", "M8 2.800l5 2.700v5L8 13.200l-5-2.700v-5z", "accent"],
  warning: ["warning", "M8 3.500v5.500M8 12.300v.1", "warn"],
  plan: ["info", "M3.500 12.500v-3M8 12.500V7M12.500 12.500v-9", "accent"],
  other: ["quiet", "M8 8v.1M4 8v.1M12 8v.1", "faint"],
};

// isAbout says whether an event of the page is about a model, by the model's key.
const isAbout = (e, key) => {
  const { model, version } = e.first.details;
  return model !== undefined && (version ? model + "/" + version === key : key.startsWith(model + "/"));
};

// Events lists what has happened, the latest first.
export class Events {
  constructor(state, view) {
    Object.assign(this, { state, view });
    this.box = byId("eventlist");
    this.rows = new Map(); // by key
  }

  // all are the events as the page tells them.
  all() {
    if (this.of !== this.state.eventsTaken) {
      this.of = this.state.eventsTaken;
      this.story = story(this.state.events);
    }
    return this.story;
  }

  // marks are the events for a time axis.
  marks() {
    return this.all().map((e) => ({ at: e.at, title: e.title, colour: looks[e.look][2] }));
  }

  show() {
    byId("events").hidden = this.view.may?.events === false;
    const { model } = this.view;
    const events = model ? this.all().filter((e) => isAbout(e, model)) : this.all();
    const now = this.view.wall();
    say(byId("eventsays"), model ? "of this model, the latest first" : "the latest first");
    if (!events.length) {
      this.rows.clear();
      const none = model ? "Nothing that the agents still remember." : "Nothing has happened since the agents started.";
      if (this.box.querySelector(".none")?.textContent !== none) this.box.replaceChildren(el("li", { class: "none" }, none));
      return;
    }
    this.box.querySelector(".none")?.remove();
    const seen = new Set();
    events.forEach((e, i) => {
      seen.add(e.key);
      let row = this.rows.get(e.key);
      if (!row) {
        row = this.row(e);
        this.rows.set(e.key, row);
      }
      if (this.box.children[i] !== row.e) this.box.insertBefore(row.e, this.box.children[i] ?? null);
      say(row.title, e.title);
      say(row.details, e.details);
      const age = now - e.at;
      say(row.time, age < 5 ? "now" : span(age) + " ago");
    });
    for (const [key, row] of this.rows) {
      if (seen.has(key)) continue;
      row.e.remove();
      this.rows.delete(key);
    }
  }

  row(e) {
    const [badge, path] = looks[e.look];
    const title = el("span");
    const details = el("small");
    const time = el("time", { datetime: e.time });
    return {
      title, details, time,
      e: el("li", { "data-kind": e.kind }, el("span", { class: "badge " + badge, "aria-hidden": "true" }, shape(path, 16)),
        el("p", {}, title, details), time),
    };
  }
}

// Profiles draws how long queries take on each type: as learned, and as shipped.
export class Profiles {
  constructor(state, view) {
    Object.assign(this, { state, view });
    this.canvas = byId("profile");
    this.data = null; // of api/profiles
    this.choice = null;
    this.models = choices(byId("profilemodels"), (key) => {
      this.choice = key;
      this.show();
    });
    new ResizeObserver(() => this.show()).observe(this.canvas.parentElement);
  }

  take(data) {
    this.data = data;
    this.show();
  }

  // inTime is the largest batch of a model that is in time on a type; undefined: not known.
  inTime(key, type) {
    const m = this.data?.models?.find((x) => x.name + "/" + x.version === key);
    let found;
    for (const t of m?.types ?? []) {
      if (t.type !== type || t.agent) continue;
      const most = (t.learned ?? t.shipped)?.largest_in_time;
      if (typeof most === "number") found = Math.max(found ?? 0, most);
    }
    return found;
  }

  // show waits for a beat, as the other panels do: without one no model is the busiest.
  show() {
    const { state } = this;
    if (!state.beat) return;
    const models = (this.data?.models ?? []).filter((m) => m.types?.length);
    if (!models.some((m) => m.name + "/" + m.version === this.choice)) {
      const busiest = state.models().sort((a, b) => b.rate - a.rate).find((m) => models.some((x) => x.name + "/" + x.version === m.key));
      this.choice = busiest?.key ?? (models[0] && models[0].name + "/" + models[0].version) ?? null;
    }
    if (this.view.model) this.choice = this.view.model;
    byId("profilemodels").hidden = Boolean(this.view.model);
    this.models.set(models.slice(0, 6).map((m) => [m.name + "/" + m.version, title(m, models), m.name]), this.choice);
    const m = models.find((x) => x.name + "/" + x.version === this.choice);
    const empty = byId("profileempty");
    empty.hidden = Boolean(m);
    say(empty, this.data === null ? "Not known yet." : "No profile yet: agents learn one while they answer queries.");
    this.draw(m);
    this.view.panelTable("profiles", () => this.table(models));
  }

  draw(m) {
    const height = Math.max(280, this.canvas.parentElement.clientHeight);
    if (this.canvas.clientWidth < 100) return;
    const { g, width } = canvas(this.canvas, height);
    if (!m) return;
    const lines = m.types.filter((t) => !t.agent).map((t) => ({ ...t, index: this.state.fleet.types.findIndex((x) => x.name === t.type) }))
      .filter((t) => t.learned?.batch?.length || t.shipped?.batch?.length);
    const largest = Math.max(2, this.state.fleet.models.find((x) => x.name === m.name && x.version === m.version)?.largest ?? 0,
      ...lines.flatMap((t) => [...(t.shipped?.batch ?? []), ...(t.learned?.batch ?? [])].slice(-1)));
    const o = { left: 44, right: width - 92, top: 8, bottom: height - 26 };
    const last = (p) => (p ? valueAt(p, largest) : 0);
    const peak = Math.max(...lines.map((t) => Math.max(last(t.learned), last(t.shipped))), 1e-9);
    const top = m.target_ms ? Math.min(Math.max(1.25 * peak, 0.4 * m.target_ms), 1.7 * m.target_ms) : 1.15 * peak;
    const x = (b) => o.left + ((o.right - o.left) * b) / largest;
    const y = (v) => o.bottom - ((o.bottom - o.top) * v) / top;
    for (const v of ticks(top, 5)) {
      g.strokeStyle = colour("line");
      g.lineWidth = 1;
      g.beginPath();
      g.moveTo(o.left, Math.round(y(v)) + 0.5);
      g.lineTo(o.right, Math.round(y(v)) + 0.5);
      g.stroke();
      write(g, v === 0 ? "0" : target(v), o.left - 6, y(v), { at: "right", fill: "faint" });
    }
    const aimed = m.target_ms && m.target_ms < top;
    if (aimed) {
      g.fillStyle = faded(colour("bad"), 0.06);
      g.fillRect(o.left, o.top, o.right - o.left, y(m.target_ms) - o.top);
    }
    g.save();
    g.beginPath();
    g.rect(o.left, o.top, o.right - o.left + 2, o.bottom - o.top);
    g.clip();
    for (const t of lines) this.lines(g, t, x, y, largest);
    g.restore();
    if (aimed) {
      g.strokeStyle = colour("bad");
      g.setLineDash([4, 3]);
      g.lineWidth = 1;
      g.beginPath();
      g.moveTo(o.left, y(m.target_ms) + 0.5);
      g.lineTo(o.right, y(m.target_ms) + 0.5);
      g.stroke();
      g.setLineDash([]);
      write(g, "target " + target(m.target_ms), o.left + 5, y(m.target_ms) - 9, { fill: "bad" });
    }
    this.ends(g, lines, { o, x, y, top, largest, goal: aimed ? m.target_ms : 0 });
    for (const b of ticks(largest, width < 360 ? 3 : 5)) {
      write(g, b === 0 ? "1" : count(b), x(b), o.bottom + 14, { at: b === 0 ? "left" : "center", fill: "faint" });
    }
    write(g, "batch size", width, o.bottom + 14, { at: "right", fill: "faint" });
    label(this.canvas, "aria-label", title(m, this.state.fleet.models) + ": " + lines.map((t) => {
      const most = (t.learned ?? t.shipped).largest_in_time;
      return typeName(this.state.fleet.types[t.index] ?? { name: t.type }) + " is in time " + (most >= largest ? "with all sizes" : most > 0 ? "to batch " + most : "with none");
    }).join(", "));
  }

  lines(g, t, x, y, largest) {
    const c = typeColour(Math.max(0, t.index));
    const path = (p, column) => {
      p.batch.forEach((b, i) => (i ? g.lineTo(x(b), y(p[column][i])) : g.moveTo(x(b), y(p[column][i]))));
      const end = p.batch[p.batch.length - 1];
      if (end < largest && column === "mean_ms") g.lineTo(x(largest), y(valueAt(p, largest)));
    };
    const learned = t.learned?.batch?.length ? t.learned : null;
    if (learned?.p99_ms?.length === learned?.batch.length && learned) {
      g.beginPath();
      path(learned, "mean_ms");
      const { batch, p99_ms: high } = learned;
      if (batch[batch.length - 1] < largest) g.lineTo(x(largest), y(valueAt(learned, largest, "p99_ms")));
      for (let i = batch.length - 1; i >= 0; i--) g.lineTo(x(batch[i]), y(high[i]));
      g.fillStyle = faded(c, 0.16);
      g.fill();
    }
    if (t.shipped?.batch?.length) {
      g.beginPath();
      path(t.shipped, "mean_ms");
      g.strokeStyle = c;
      g.lineWidth = 1.25;
      g.setLineDash([3, 4]);
      g.stroke();
      g.setLineDash([]);
    }
    if (learned) {
      g.beginPath();
      path(learned, "mean_ms");
      g.strokeStyle = c;
      g.lineWidth = 2;
      g.stroke();
    }
  }

  // ends names each line at its end, with the largest batch that is in time.
  ends(g, lines, { o, x, y, top, largest, goal }) {
    const names = lines.map((t) => {
      const p = t.learned?.batch?.length ? t.learned : t.shipped;
      return { t, p, at: Math.max(o.top + 8, Math.min(o.bottom - 22, y(Math.min(top, valueAt(p, largest))))), value: valueAt(p, largest) };
    }).sort((a, b) => b.value - a.value);
    let lowest = -Infinity;
    for (const n of names) {
      n.at = Math.max(n.at, lowest + 30);
      lowest = n.at;
    }
    let room = o.bottom - 14;
    for (const n of [...names].reverse()) {
      n.at = Math.min(n.at, room);
      room = n.at - 30;
    }
    for (const { t, p, at } of names) {
      const c = typeColour(Math.max(0, t.index));
      const most = p.largest_in_time;
      if (goal && most > 0 && most < largest) {
        g.beginPath();
        g.arc(x(most), y(goal), 4.5, 0, 7);
        g.fillStyle = c;
        g.fill();
        g.strokeStyle = colour("card");
        g.lineWidth = 1.5;
        g.stroke();
      }
      const room = this.canvas.clientWidth - o.right - 8;
      g.font = "600 11.5px Inter, sans-serif";
      let name = typeName(this.state.fleet.types[t.index] ?? { name: t.type });
      while (name.length > 3 && g.measureText(name).width > room) name = name.slice(0, -2) + "…";
      write(g, name, o.right + 8, at, { size: 11.5, weight: 600, fill: c });
      if (goal || most !== undefined) {
        write(g, most >= largest ? "all in time" : most > 0 ? "to batch " + count(most) : "none in time", o.right + 8, at + 13);
      }
    }
  }

  table(models) {
    const m = models.find((x) => x.name + "/" + x.version === this.choice);
    if (!m) return el("p", { class: "note" }, "No profile yet.");
    const say = (p) => (p?.batch?.length ? "to batch " + count(p.largest_in_time) : "–");
    return table("Largest batch in time", ["type", "learned", "shipped", "mean of the largest"], m.types.map((t) => {
      const p = t.learned ?? t.shipped;
      const type = typeName(this.state.fleet.types.find((x) => x.name === t.type) ?? { name: t.type });
      return [t.agent ? type + ", " + t.agent + " alone" : type, say(t.learned), say(t.shipped), milliseconds(p?.mean_ms?.[p.mean_ms.length - 1])];
    }));
  }
}

// valueAt is a profile's value at a batch size, on straight lines between and beyond its points.
function valueAt(p, size, column = "mean_ms") {
  const { batch } = p;
  const v = p[column];
  if (batch.length === 1) return (v[0] * size) / batch[0];
  let i = batch.findIndex((b) => b >= size);
  if (i < 0) i = batch.length - 1;
  i = Math.max(1, i);
  return v[i - 1] + ((v[i] - v[i - 1]) * (size - batch[i - 1])) / (batch[i] - batch[i - 1]);
}
