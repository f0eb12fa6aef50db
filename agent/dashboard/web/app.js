// The page: it opens the stream, and has each panel draw what comes.

import { ranges, ratePlot, source } from "./charts.js";
import { byId, choices, el, label, say, shape, table } from "./dom.js";
import { Fleet } from "./fleet.js";
import { count, dollars, percent, span, wanted } from "./format.js";
import { Matching } from "./matching.js";
import { forgetColours } from "./paint.js";
import { keyOf, One } from "./one.js";
import { Events, Families, Models, Money, Profiles } from "./panels.js";
import { curl, infer } from "./sample.js";
import { agentName, coarser, sentence, State } from "./state.js";
import { said, Stream } from "./stream.js";
import { Why } from "./why.js";

const state = new State();
const reduced = matchMedia("(prefers-reduced-motion: reduce)");
const asked = new URLSearchParams(location.search);

// heard is when the last beat came, by a clock that does not jump.
let heard = null;
let reason = "";

const view = {
  range: "10 min",
  model: "", // the key of the model that the page is of; "": it is of the fleet
  may: null,
  get still() { return asked.has("still") || reduced.matches; },
  // now is the time of the right edge, in seconds as beats count them.
  now() {
    if (!state.beat) return state.seconds.length ? state.seconds.last : 0;
    return state.beat.second + (asked.has("still") || heard === null ? 0 : (performance.now() - heard) / 1000);
  },
  wall() { return Math.max(this.now(), state.events[0]?.at ?? 0); },
  events: () => panels.events.marks(),
  inTime: (key, type) => panels.profiles.inTime(key, type),
  panelTable,
};

const panels = {
  one: new One(state, view),
  why: new Why(state, view),
  fleet: new Fleet(state, view),
  matching: new Matching(state, view),
  models: new Models(state, view),
  families: new Families(state, view),
  money: new Money(state, view),
  profiles: new Profiles(state, view),
  events: new Events(state, view),
};
let rate = null;

// panelTable shows a panel's numbers as a table where that was asked for; make makes it.
const tables = new Map();
function panelTable(name, make) {
  const t = tables.get(name);
  if (!t) return;
  t.make = make;
  if (t.box.hidden) return;
  const top = t.box.scrollTop;
  t.box.replaceChildren(make());
  t.box.scrollTop = top;
}

for (const panel of document.querySelectorAll("[data-panel]")) {
  const box = el("div", { class: "scroll", hidden: true, tabindex: "0", role: "region", "aria-label": panel.querySelector("h2").textContent + ", as a table" });
  const t = { box, make: null };
  const button = el("button", {
    type: "button", class: "asTable", "aria-pressed": "false", "aria-label": "Table", title: "The numbers as a table",
    click: () => {
      box.hidden = !box.hidden;
      label(button, "aria-pressed", String(!box.hidden));
      for (const v of panel.querySelectorAll(":scope > .view, :scope > .plot")) v.hidden = !box.hidden;
      if (!box.hidden && t.make) box.replaceChildren(t.make());
      else showAll();
    },
  }, shape("M2.500 3.500h11v9h-11zM2.500 6.500h11M6.500 3.500v9", 16));
  panel.querySelector(".head").append(button);
  panel.append(box);
  tables.set(panel.dataset.panel, t);
}

const rangeChoices = ["ranges", "oneranges"].map((id) => choices(byId(id), (key) => {
  view.range = key;
  setRanges();
  rate?.show();
  panels.one.show();
  panelTable("load", loadTable);
}));
const setRanges = () => rangeChoices.forEach((c) => c.set(Object.keys(ranges).map((r) => [r, r, "The last " + r]), view.range));
setRanges();

// hero shows the sentence and the four figures.
function hero() {
  const { beat, fleet } = state;
  if (!beat) return;
  const s = sentence(state);
  const unknownLimit = s.number === null;
  say(byId("number"), unknownLimit ? count(beat.rate) : s.number);
  byId("number").className = (s.long ? "words " : "") + s.level;
  say(byId("rest"), (unknownLimit ? "queries a second; " : "") + s.words);
  if (!view.model) document.title = (s.long ? s.number : (unknownLimit ? count(beat.rate) + "/s" : s.number)) + " · Muster";
  const gauge = byId("gauge");
  gauge.className = "gauge " + s.level;
  byId("fill").style.width = 100 * Math.min(1, s.share ?? 0) + "%";
  byId("tick").hidden = !(beat.allowable > 0 && beat.limit > 0);
  byId("tick").style.left = `calc(${100 * Math.min(1, beat.allowable / beat.limit)}% - 1px)`;
  label(gauge, "aria-label", s.share === undefined ? "Not known" : percent(s.share) + " of the fluid limit");
  const under = beat.limit > 0 ? [
    [count(beat.rate), " queries/s"],
    ...(beat.allowable > 0 ? [[(beat.approximate ? "about " : "") + count(beat.allowable), " stay on time", true]] : []),
    [count(beat.limit), " is the limit"],
  ] : [];
  const key = JSON.stringify(under);
  if (hero.under !== key) {
    hero.under = key;
    byId("under").replaceChildren(...under.map(([n, words]) => el("span", {}, el("b", {}, n), words)));
  }
  say(byId("whyline").firstElementChild, beat.why ?? "");
  byId("whyline").hidden = !beat.why;
  // 99 of every 100 by most models' word; the least is what the figure is held against.
  const least = Math.min(...fleet.models.map((m) => m.percentile).filter((p) => p > 0), 1);
  say(byId("ontime"), percent(beat.within, 2));
  byId("ontime").className = beat.within === null || beat.within === undefined ? "" : beat.within < least ? "bad" : "ok";
  say(byId("ontimeof"), typeof beat.within === "number" && least < 1 ? "of " + wanted(least) : "");
  say(byId("waiting"), count(beat.waiting));
  say(byId("waitinglate"), beat.waiting_late > 0 ? count(beat.waiting_late) + " late" : beat.waiting === null ? "" : "none late");
  byId("waitinglate").className = beat.waiting_late > 0 ? "bad" : "";
  const priced = beat.price > 0;
  for (const e of document.querySelectorAll(".priced")) e.hidden = !priced;
  for (const e of document.querySelectorAll(".unpriced")) e.hidden = priced;
  say(byId("cost"), dollars(beat.price));
  say(byId("busy"), percent(beat.busy));
  const failed = state.seconds.columns.failed.slice(-60).reduce((sum, n) => sum + (n ?? 0), 0);
  say(byId("failed"), beat.leaderless ? "–" : count(failed));
  byId("failed").className = failed > 0 ? "bad" : "";
  say(byId("permillion"), priced && beat.rate > 0 ? dollars((beat.price / 3600 / beat.rate) * 1e6) : "–");
  say(byId("permillionof"), priced && beat.rate > 0 ? "at this rate" : "");
  offer(Boolean(s.idle));
  if (rate) {
    label(byId("rate"), "aria-label", "Rate beside the fluid limit: now " + count(beat.rate) + " queries a second" +
      (beat.limit > 0 ? ", limit " + count(beat.limit) : ""));
  }
  panelTable("load", loadTable);
}

function loadTable() {
  const { series, seconds, row, now } = source(state, view.range, view.now());
  const rows = coarser(series, row, now - seconds).map((r) => [
    span(now - r.second) + " ago", count(r.rate), count(r.limit), r.limit > 0 ? percent(r.rate / r.limit) : "–",
    count(r.answered), count(r.late), count(r.failed)]);
  return table("Rate beside the fluid limit, by " + (row < 60 ? row + " s" : row / 60 + " min"),
    ["from", "queries/s", "limit", "of it", "answered", "late", "failed"], rows);
}

// offer shows how to send a query, while nobody does.
let offered = null;
async function offer(idle) {
  byId("try").hidden = !idle || !state.fleet.models.length;
  const m = state.fleet.models[0];
  if (!idle || !m || offered === m.name) return;
  offered = m.name;
  const agent = state.fleet.agents.find((a) => a.name === state.hello?.agent) ?? state.fleet.agents[0];
  let line = infer(m.name, agent?.address);
  try {
    const answer = await fetch("/v2/models/" + encodeURIComponent(m.name));
    if (answer.ok) line = curl(location.origin, m.name, (await answer.json()).inputs) ?? line;
  } catch {
    // Then the line is that of the command.
  }
  say(byId("curl"), line);
}
byId("copy").addEventListener("click", async () => {
  const done = await navigator.clipboard?.writeText(byId("curl").textContent).then(() => true, () => false);
  say(byId("copy"), done ? "Copied" : "Select it to copy");
  setTimeout(() => say(byId("copy"), "Copy"), 2000);
});

// top shows who leads, and whether the page is up to date.
function top() {
  const { fleet, beat, hello } = state;
  const leader = fleet?.agents[fleet.leader];
  const parts = leader ? ["leader ", el("b", { title: leader.name }, agentName(leader)), " epoch " + fleet.epoch] : fleet ? ["no leader"] : [];
  const key = leader ? leader.name + " " + agentName(leader) + " " + fleet.epoch : fleet ? "none" : "";
  if ((top.key ?? "") !== key) {
    top.key = key;
    byId("leader").replaceChildren(...parts);
  }
  say(byId("place"), hello ? "seen from " + seenFrom() : "");
  label(byId("place"), "title", hello ? hello.agent + ", version " + hello.software : "");
  say(byId("h1"), "Muster's fleet of " + (fleet?.agents.length ?? 0) + " agents");
  const age = heard === null ? null : (performance.now() - heard) / 1000;
  const stale = !asked.has("still") && age !== null && age > 3;
  const leaderless = Boolean(beat?.leaderless || (fleet?.leaderless && beat));
  document.body.classList.toggle("stale", stale);
  document.body.classList.toggle("leaderless", leaderless);
  byId("link").className = "chip " + (stale || (heard === null && reason) ? "lost" : heard === null ? "" : "live");
  say(byId("linked"), stale ? "last heard " + span(age) + " ago" : heard === null ? (reason ? "no answer" : "connecting") : "live");
  const banner = byId("banner");
  let text = "";
  if (stale) text = "Old numbers: last heard " + Math.floor(age) + " s ago from " + (hello?.agent ?? "the agent") + (reason ? ". Now " + reason + "." : ".");
  else if (heard === null && reason) text = "The agent sends nothing: " + reason + ". Trying again.";
  else if (leaderless) text = "No leader: gateways decide alone, and rates are not known" + (fleet.why ? " (" + fleet.why + ")" : "") + ". Tiles show what gossip says.";
  banner.hidden = !text;
  say(banner, text);
}

// seenFrom is the name of the agent that answers.
const seenFrom = () => agentName(state.fleet?.agents.find((a) => a.name === state.hello.agent)) || state.hello.agent;

// route makes the page that of the fleet, or of one model, by its address.
function route() {
  const model = keyOf(location.hash);
  const other = model !== view.model;
  view.model = model;
  document.body.classList.toggle("ofone", Boolean(model));
  if (!other) return;
  panels.one.chosen();
  panels.matching.chosen();
  panels.why.take(null);
  whyAsked = -Infinity;
  showAll();
  why();
  if (model) scrollTo(0, 0);
  else document.querySelector(location.hash.length > 1 ? location.hash : "#main")?.scrollIntoView();
}
addEventListener("hashchange", route);

// why asks for the causes of lateness, while there are some, and no oftener than they change.
let whyAsked = -Infinity;
function why() {
  if (!state.beat?.why) return panels.why.take(null);
  if (performance.now() - whyAsked < 5000) return null;
  whyAsked = performance.now();
  const { model } = view;
  const name = model.slice(0, model.lastIndexOf("/"));
  return load("why" + (model ? "?model=" + encodeURIComponent(name) : ""), (report) => {
    if (model === view.model) panels.why.take(report);
  });
}

function showAll() {
  if (!state.fleet) return;
  if (!rate && state.beat) rate = ratePlot(byId("rate"), state, view);
  else rate?.show();
  hero();
  for (const p of Object.values(panels)) if (state.beat || p === panels.events) p.show();
  top();
}

// A beat redraws everything, but no more than once a frame: after a pause several come at a time.
let due = false;
function redraw() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    showAll();
    document.documentElement.dataset.second = state.beat ? String(state.beat.second) : "";
  });
}

const stream = new Stream({
  url: "api/stream",
  fetch: (...a) => fetch(...a),
  tell(name, data) {
    if (name === "hello" && built && data.build !== built) return renew(data.build);
    if (name === "plan") return load("plan", (p) => panels.money.take(p));
    if (!state.take(name, data)) return;
    if (name === "beat") {
      heard = performance.now();
      panels.matching.beat();
      why();
    }
    redraw();
  },
  changed(what, text) {
    reason = what === "live" ? "" : text;
    if (what === "login") enter();
    if (what === "lost") session();
    top();
  },
});

// renew loads the page of another version, once a minute at most: agents may differ for long.
let built = "";
function renew(build) {
  built = build;
  const last = Number(sessionStorage.getItem("muster-renewed"));
  if (asked.has("still") || Math.abs(Date.now() - last) < 60000) return;
  sessionStorage.setItem("muster-renewed", String(Date.now()));
  location.reload();
}

// load fetches what does not come with beats; an answer that is none leaves what is there.
async function load(what, take) {
  try {
    const answer = await fetch("api/" + what, { cache: "no-store" });
    if (answer.ok) take(await answer.json());
  } catch {
    // The stream says that the agent does not answer.
  }
}

const profiles = () => load("profiles", (p) => {
  panels.profiles.take(p);
  if (state.beat) panels.matching.show();
});

const rented = () => (view.may?.plan !== false ? load("fleet", (f) => panels.money.takeFleet(f)) : null);

function loadAll() {
  profiles();
  if (view.may?.plan !== false) load("plan", (p) => panels.money.take(p));
  rented();
  if (view.may?.events !== false) {
    load("events", (e) => {
      state.takeEvents(e.events ?? []);
      redraw();
    });
  }
}

// session asks who the browser is, and begins, or asks for a key.
async function session() {
  let s;
  try {
    const answer = await fetch("api/session", { cache: "no-store" });
    if (!answer.ok) throw new Error(await said(answer));
    s = await answer.json();
  } catch (e) {
    reason = e instanceof TypeError ? "the agent does not answer" : e.message;
    top();
    return null;
  }
  if (built && s.build !== built) renew(s.build);
  built ||= s.build;
  view.may = s.may ?? {};
  if (!s.in) enter(s);
  return s;
}

// enter shows the form for a key.
function enter(s) {
  stream.stop();
  byId("main").hidden = true;
  byId("login").hidden = false;
  const refused = s && !s.login;
  for (const e of byId("login").querySelectorAll("label, input, button")) e.hidden = refused;
  say(byId("loginsays"), refused ? s.login_refused : "");
  if (!refused) byId("key").focus();
}

byId("enter").addEventListener("submit", async (e) => {
  e.preventDefault();
  const key = byId("key").value;
  byId("key").value = "";
  say(byId("loginsays"), "");
  try {
    const answer = await fetch("api/login", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ key }),
    });
    if (!answer.ok) {
      const wait = Number(answer.headers.get("Retry-After"));
      say(byId("loginsays"), (await said(answer)) + (wait > 0 ? " Try again in " + wait + " s." : ""));
      byId("key").focus();
      return;
    }
  } catch {
    say(byId("loginsays"), "The agent does not answer.");
    return;
  }
  byId("login").hidden = true;
  byId("main").hidden = false;
  begin();
});

async function begin() {
  const s = await session();
  if (s && !s.in) return;
  loadAll();
  if (!document.hidden) stream.start();
  if (!s) setTimeout(() => state.hello === null && loadAll(), 5000);
}

byId("theme").addEventListener("click", () => {
  const root = document.documentElement;
  root.dataset.theme = root.dataset.theme === "light" ? "dark" : "light";
  try {
    localStorage.setItem("muster-theme", root.dataset.theme);
  } catch {
    // Then it lasts as long as the page.
  }
  forgetColours();
  showAll();
});

// A page that nobody sees costs nothing: it ends its stream, and gets what it has missed afterwards.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) stream.stop();
  else if (byId("login").hidden) stream.start();
});

// Between beats tiles count down and queries fall, at 30 frames a second at most.
let drawn = 0;
function frame(time) {
  requestAnimationFrame(frame);
  if (view.still || time - drawn < 33 || !state.beat) return;
  const passed = drawn ? Math.min(200, time - drawn) : 0;
  drawn = time;
  if (!byId("matching").querySelector(".rain").hidden) panels.matching.draw(passed);
  panels.fleet.count(performance.now() - heard);
}
requestAnimationFrame(frame);
setInterval(top, 1000);
setInterval(() => { if (!document.hidden && byId("login").hidden) profiles(); }, 30000);
setInterval(() => {
  if (document.hidden || !state.beat) return;
  panels.money.show();
  rented();
}, 10000);
reduced.addEventListener("change", () => showAll());
addEventListener("resize", () => redraw());
if (asked.has("still")) document.documentElement.classList.add("still");

// The section that is read is marked in the navigation.
const links = [...document.querySelectorAll("nav a")];
const seen = new IntersectionObserver((entries) => {
  for (const e of entries) if (e.isIntersecting) {
    for (const a of links) {
      if (a.hash === "#" + e.target.id) a.setAttribute("aria-current", "true");
      else a.removeAttribute("aria-current");
    }
  }
}, { rootMargin: "-70px 0px -75% 0px" });
for (const a of links) if (byId(a.hash.slice(1))) seen.observe(byId(a.hash.slice(1)));

route();
await document.fonts?.ready;
begin();
