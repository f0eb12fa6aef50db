// Tests of what draws nothing: numbers, scales, rows of the past, the stream. node --test runs them.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";
import * as format from "../web/format.js";
import { address, keyOf } from "../web/one.js";
import { curl, infer } from "../web/sample.js";
import { Bins, binsOf, height, ticks, tileSize } from "../web/scale.js";
import { coarser, sentence, Series, State, title, Window } from "../web/state.js";
import { story } from "../web/story.js";
import { Parser, patience, silence, Stream } from "../web/stream.js";
import { causes } from "../web/why.js";
import { binOf, fixtures } from "./fixtures.js";

test("numbers are written as people read them", () => {
  const cases = [
    [format.count, 0, "0"], [format.count, 7, "7"], [format.count, 7.25, "7.3"], [format.count, 12.4, "12"],
    [format.count, 1298.6, "1,299"], [format.count, 123456, "123k"], [format.count, 3.14e6, "3.1M"], [format.count, 2e9, "2.0G"],
    [format.count, null, "–"], [format.count, NaN, "–"],
    [format.percent, 0.876, "88 %"], [format.percent, 0.9996, "99 %"], [format.percent, 1, "100 %"],
    [format.percent, 0.001, "< 1 %"], [format.percent, 0, "0 %"], [format.percent, undefined, "–"],
    [format.wanted, 0.99, "99 %"], [format.wanted, 0.999, "99.9 %"], [format.wanted, 0.9995, "99.95 %"],
    [format.wanted, 0.9, "90 %"], [format.wanted, 1, "100 %"], [format.wanted, null, "–"],
    [format.milliseconds, 0.42, "0.42 ms"], [format.milliseconds, 3.94, "3.9 ms"], [format.milliseconds, 287.4, "287 ms"],
    [format.milliseconds, 1230, "1.2 s"], [format.milliseconds, 61000, "61 s"], [format.milliseconds, null, "–"],
    [format.target, 5, "5 ms"], [format.target, 400, "400 ms"], [format.target, 2.5, "2.5 ms"],
    [format.dollars, 0.149, "$0.149"], [format.dollars, 0.4, "$0.40"], [format.dollars, 4.756, "$4.76"],
    [format.dollars, 1204.3, "$1,204"], [format.dollars, -0.42, "−$0.42"], [format.dollars, 0, "$0.00"],
    [format.span, 37.9, "0:37"], [format.span, 485, "8:05"], [format.span, 7810, "2 h 10 min"], [format.span, 86400, "1 day"],
    [format.span, -3, "0:00"], [format.list, ["a", "b", "c"], "a, b and c"], [format.list, [], ""], [format.signed, -3, "−3"],
  ];
  for (const [f, x, want] of cases) assert.equal(f(x), want, f.name + " of " + x);
  assert.equal(format.percent(0.99996, 2), "99.99 %", "what is not all is not 100 %");
  assert.equal(format.things(1, "lane"), "1 lane");
  assert.equal(format.things(1000, "lane"), "1,000 lanes");
});

test("ticks are round, and not more than asked", () => {
  assert.deepEqual(ticks(6.5, 3), [0, 2, 4, 6]);
  assert.deepEqual(ticks(1680, 4), [0, 500, 1000, 1500]);
  assert.deepEqual(ticks(0), [0]);
  assert.deepEqual(ticks(Infinity), [0]);
  for (let max = 1e-6; max < 1e12; max *= 1.37) {
    for (const n of [2, 3, 4, 5]) {
      const all = ticks(max, n);
      assert.ok(all.length >= 2 && all.length <= n + 1, max + ": " + all);
      assert.ok(all[all.length - 1] <= max * 1.000001);
    }
  }
});

test("each batch size has one column, and columns are in order", () => {
  for (const largest of [64, 700, 1000, 4096]) {
    const { bins, column } = binsOf(largest);
    let last = 0;
    for (let size = 1; size <= largest; size++) {
      const c = column[binOf(size)];
      assert.ok(c >= 0 && c < bins.count, "size " + size + " of " + largest + " is in column " + c);
      assert.equal(bins.of(size), c, "size " + size);
      assert.ok(c === last || c === last + 1);
      last = c;
      assert.ok(size >= bins.first(c) && size <= bins.edges[c]);
    }
    let before = -1;
    for (let size = 1; size <= largest; size++) {
      const p = bins.place(size);
      assert.ok(p >= before && p <= 1, "place of " + size);
      before = p;
    }
  }
  assert.equal(new Bins([8, 10, 12]).label(1), "9 to 10");
  assert.equal(new Bins([8, 9]).label(1), "9");
  assert.equal(new Bins([8, 9]).of(1e6), 1);
});

test("tiles fit", () => {
  assert.equal(height(0, 350), 0);
  assert.equal(height(-5, 350), 0);
  assert.equal(height(0.001, 350), 0.06);
  assert.equal(height(1e9, 350), 1);
  assert.equal(tileSize([1, 2], 400, 300, [60, 40, 20], 6, 18), 60);
  assert.equal(tileSize([300], 400, 300, [60, 40, 20], 6, 18), 20);
  assert.equal(tileSize([100000], 400, 300, [60, 40, 20], 6, 18), 20, "the least, if none fits");
});

const row = (rate) => ({ rate });

test("rows: a gap breaks the line, a beat that comes twice counts once, and old ones go", () => {
  const s = new Series(1, 5);
  assert.ok(s.add(10, row(1), [["a/1", { p99_ms: 3 }]]));
  assert.ok(!s.add(10, row(9), []));
  assert.ok(!s.add(9, row(9), []));
  assert.ok(s.add(13, row(2), [["b/1", { p99_ms: 4 }]]));
  assert.deepEqual(s.second, [10, 11, 13]);
  assert.deepEqual(s.columns.rate, [1, null, 2]);
  assert.deepEqual(s.models.get("a/1").p99_ms, [3, null, null]);
  assert.deepEqual(s.models.get("b/1").p99_ms, [null, null, 4]);
  for (let i = 14; i < 40; i++) s.add(i, row(i), []);
  assert.equal(s.length, 5);
  assert.equal(s.models.size, 0, "a model without a row left is forgotten");
  assert.ok(!s.add(NaN, row(1), []));
});

test("history of the past joins what is there", () => {
  const s = new Series(1, 600);
  s.load({ second: [1, 2, 3], rate: [5, 6, null], models: [{ model: 0, answered: [1, 2, 3] }, { model: 7, answered: [9, 9, 9] }] }, ["a/1"]);
  s.load({ second: [2, 3, 4], rate: [60, 70, 8], models: [] }, ["a/1"]);
  assert.deepEqual(s.columns.rate, [5, 6, null, 8]);
  assert.deepEqual(s.models.get("a/1").answered, [1, 2, 3, null]);
  assert.equal(s.models.size, 1);
});

test("a day's table has all of the day, in rows of ten minutes", () => {
  const s = new Series(60, 1440);
  for (let m = 0; m < 1440; m++) {
    if (m >= 600 && m < 620) continue; // nothing was heard
    s.add(6000 + 60 * m, { rate: m % 10, limit: m === 7 ? 100 : null, answered: 2, late: 1, failed: 0, waiting: m }, []);
  }
  const rows = coarser(s, 600, 6000);
  assert.equal(rows.length, 142);
  assert.equal(rows[0].second, 6000 + 60 * 1430);
  const first = rows.at(-1);
  assert.equal(first.second, 6000);
  assert.equal(first.rate, 4.5);
  assert.equal(first.limit, 100);
  assert.deepEqual([first.answered, first.late, first.failed, first.waiting], [20, 10, 0, 9]);
  assert.equal(rows.at(-2).limit, null);
  assert.deepEqual(coarser(s, 600, 6001).at(-1).second, 6600, "a row is shown whole or not at all");
  assert.deepEqual(coarser(new Series(1, 5), 15, 0), []);
});

test("a model's page has an address, whatever its name holds", () => {
  for (const key of ["ncf/1", "a/b c#?%/12", "ß/3"]) assert.equal(keyOf(address(key)), key);
  for (const hash of ["", "#load", "#model/ncf", "#model/ncf/x", "#model/%/1", "#model/a/b/1"]) assert.equal(keyOf(hash), "", hash);
});

test("a long name is known by its end", () => {
  assert.equal(format.ending("vm-2", 6), "vm-2");
  assert.equal(format.ending("ip-10-0-3-17", 6), "…-3-17");
  assert.equal(format.ending("abc", 0), "…c");
});

test("causes that are shown are the most frequent, as `muster why` has them", () => {
  const report = (...n) => ({ queries: 1000, late: n.reduce((a, b) => a + b, 0), causes: n.map((queries) => ({ queries, short: "x" })) });
  assert.deepEqual(causes(null), []);
  assert.deepEqual(causes(report(90, 10)).map((c) => [c.share, c.part]), [[0.09, 0.9], [0.01, 0.1]]);
  assert.equal(causes(report(99, 1)).length, 1, "below a fiftieth");
  assert.equal(causes(report(9, 8, 7, 6, 5, 4)).length, 5);
});

test("the map is of the last minute", () => {
  const w = new Window(60);
  for (let second = 0; second < 200; second++) w.add(second, [["g4dn", "a/1", [[3, 2], [99, 5], [-1, 1]]]]);
  const [sum] = [...w.sums.values()];
  assert.equal(sum.bins[3], 120);
  assert.equal(sum.total, 120);
  assert.equal(w.span, 60);
  w.add(1000, []);
  assert.equal(w.sums.size, 0);
});

// fed is the state after a fixture's events.
function fed(f, beats = f.beats.length) {
  const s = new State();
  s.take("hello", f.hello);
  s.take("fleet", f.fleet);
  for (const h of f.histories) s.take("history", h);
  f.beats.slice(0, beats).forEach((b, i) => {
    if (i === f.afterAt) s.take("fleet", f.after);
    s.take("beat", b);
  });
  return s;
}

const small = fixtures.one();

test("a fleet's events make its state", () => {
  const s = fed(small);
  assert.equal(s.seconds.length, 600);
  assert.equal(s.seconds.columns.rate.filter((r) => r === null).length, 0, "history and beats leave no gap");
  assert.equal(s.minutes.length, 1440);
  assert.equal(s.lanes().length, 1);
  assert.equal(s.models().length, 1);
  assert.match(sentence(s).words, /^of what this fleet can do, and every model is on time$/);
  assert.match(sentence(s).number, /^\d+ %$/);
});

test("the page's own minutes are the leader's", () => {
  const s = new State();
  s.take("fleet", small.fleet);
  for (let i = 0; i < 130; i++) s.take("beat", { ...small.beats[0], second: 6000 + i, rate: i, answered: 2, waiting: i % 7 });
  assert.deepEqual(s.minutes.second, [6000, 6060]);
  assert.deepEqual(s.minutes.columns.rate, [29.5, 89.5]);
  assert.deepEqual(s.minutes.columns.answered, [120, 120]);
  assert.deepEqual(s.minutes.columns.waiting, [6, 6]);
});

// past is a history event: rows of a model that answers so many queries each.
const past = (step, seconds, answered) => ({
  step, second: seconds, rate: seconds.map(() => 10), answered,
  models: [{ model: 0, answered, p99_ms: seconds.map((s) => s % 100) }],
});
const from = (first, last) => Array.from({ length: last - first + 1 }, (_, i) => first + i);

test("a minute that had begun when the page was opened becomes whole", () => {
  const s = new State();
  s.take("fleet", small.fleet);
  s.take("history", past(1, from(6000, 6030), from(6000, 6030).map(() => 2)));
  s.take("history", past(60, [5940, 6000], [120, 62]));
  for (let i = 6031; i <= 6060; i++) s.take("beat", { second: i, rate: 20, answered: 2, models: [{ model: 0, answered: 2, p99_ms: 500 }] });
  assert.deepEqual(s.minutes.second, [5940, 6000]);
  assert.deepEqual(s.minutes.columns.answered, [120, 120]);
  assert.deepEqual(s.minutes.columns.rate, [10, (31 * 10 + 29 * 20) / 60]);
  const [m] = s.minutes.models.values();
  assert.deepEqual(m.answered, [120, 120]);
  assert.deepEqual(m.p99_ms, [40, 500]);
});

test("minutes that a hidden page has missed the ends of become whole", () => {
  const s = new State();
  s.take("fleet", small.fleet);
  const beats = (first, last) => from(first, last).forEach((i) => s.take("beat", { second: i, rate: 10, answered: 2 }));
  beats(6000, 6029);
  // What an agent says of the time after 6029: each minute that has a later second.
  s.take("history", past(1, from(6030, 6150), from(6030, 6150).map(() => 2)));
  s.take("history", past(60, [6000, 6060, 6120], [120, 120, 62]));
  beats(6151, 6180);
  assert.deepEqual(s.minutes.second, [6000, 6060, 6120]);
  assert.deepEqual(s.minutes.columns.answered, [120, 120, 120]);
  // Once more, when the minute in which it was hidden is in the page's past already.
  s.take("history", past(60, [6180], [2]));
  s.take("history", past(60, [6180, 6240], [120, 4]));
  beats(6242, 6242);
  assert.deepEqual(s.minutes.columns.answered, [120, 120, 120, 120, 4]);
});

test("600 beats keep no more than 60 do", () => {
  const s = new State();
  s.take("fleet", small.fleet);
  const sizes = [];
  for (let i = 0; i < 2000; i++) {
    s.take("beat", { ...small.beats[i % small.beats.length], second: 1000 + i, events: [{ time: new Date(i * 1000).toISOString(), agent: "a", sequence: i, kind: "k", what: "w" }] });
    if (i === 700 || i === 1999) sizes.push([s.seconds.length, s.heat.beats.length, s.events.length, s.seen.size]);
  }
  assert.deepEqual(sizes[0], sizes[1]);
});

test("a clock that jumps: beats of the past are left out; if no others come, time is counted from there", () => {
  const s = fed(small);
  const last = s.lastSecond;
  assert.ok(!s.take("beat", { ...small.beats[0], second: last - 3600 }));
  assert.ok(s.take("beat", { ...small.beats[0], second: last + 1 }));
  for (let i = 0; i < 9; i++) s.take("beat", { ...small.beats[0], second: last - 100 + i });
  assert.equal(s.lastSecond, last - 92);
  assert.equal(s.seconds.length, 600 - 1 - 97 + 5, "what was before stays");
  assert.ok(s.seconds.second.every((x, i, all) => i === 0 || x > all[i - 1]));
  for (let i = 0; i < 9; i++) s.take("beat", { ...small.beats[0], second: last - 36000 + i });
  assert.equal(s.lastSecond, last - 36000 + 8);
  s.take("beat", { ...small.beats[0], second: last + 1e6 });
  assert.equal(s.lastSecond, last + 1e6);
  assert.equal(s.seconds.columns.rate.at(-2), null);
});

test("what the page does not know does not break it", () => {
  const s = new State();
  assert.ok(!s.take("beat", { second: 1 }), "a beat before the fleet");
  assert.ok(!s.take("something new", {}));
  s.take("fleet", {});
  s.take("beat", { second: 1 });
  assert.deepEqual(s.lanes(), []);
  s.take("fleet", { models: [{ name: "a", version: 1 }], types: [], agents: [{ name: "x", type: 4, lanes: 2 }] });
  s.take("beat", { second: 2, models: [{ model: 9 }], heat: [{ type: 8, model: 0, bins: [[1, 1]] }], shots: [[1, 2, 3, 4]], lanes: {} });
  assert.equal(s.lanes().length, 2);
  assert.equal(s.heat.sums.size, 0);
  s.take("history", { step: 60, second: [1, 2] });
  assert.equal(title({ name: "a", version: 2 }, [{ name: "a", version: 1 }]), "a/2");
});

test("a late model says what was in time", () => {
  assert.equal(format.inTime(0.8086, true), "late: 80.86 % in time");
  assert.equal(format.inTime(0.9991, false), "99.91 %");
  assert.equal(format.inTime(null, false), "–");
});

test("the sentence", () => {
  const say = (fleet, beat) => {
    const s = new State();
    s.take("fleet", { models: [{ name: "ncf", version: 1, percentile: 0.99 }, { name: "rm2", version: 1, percentile: 0.99 }], ...fleet });
    s.take("beat", { second: 1, rate: 800, limit: 1000, within: 0.999, models: [], ...beat });
    const { number, words, level } = sentence(s);
    return [number, words, level];
  };
  assert.deepEqual(say({}, {}), ["80 %", "of what this fleet can do, and every model is on time", ""]);
  assert.deepEqual(say({}, { rate: 930 }), ["93 %", "of what this fleet can do: little room left, yet every model is on time", "warn"]);
  assert.deepEqual(say({}, { rate: 980 }).slice(2), ["bad"]);
  assert.deepEqual(say({}, { models: [{ model: 1, rate: 9, within: 0.98 }] }), ["80 %", "of what this fleet can do, but rm2 is late", "bad"]);
  assert.deepEqual(say({}, { models: [{ model: 1, within: 0.98 }, { model: 0, within: 0.5 }] })[1], "of what this fleet can do, but ncf and rm2 are late");
  assert.deepEqual(say({}, { limit: null }), [null, "what the fleet can do is not known yet", ""]);
  assert.deepEqual(say({}, { rate: 0, within: null })[0], "Ready");
  assert.deepEqual(say({}, { leaderless: true, rate: null })[0], "No leader");
});

test("the line to copy is what a shell takes as it is, whatever names hold", () => {
  // words are the words that a shell makes of a line, after the command itself.
  const words = (line) => execFileSync("sh", ["-c", line.replace(/^\S+/, "printf '%s\\n'")], { encoding: "utf8" }).trimEnd().split("\n");
  assert.equal(infer("ncf", "10.0.0.1:8001"), "muster infer ncf --server 10.0.0.1:8001");
  const name = "a b'$(echo gone)`;\"é";
  assert.deepEqual(words(infer(name, "[::1]:8001")), ["infer", name, "--server", "[::1]:8001"]);
  const inputs = [
    { name: "it's", datatype: "FP32", shape: [-1, 2] }, { name: "flag", datatype: "BOOL", shape: [-1, 1] },
  ];
  const [url, d, body] = words(curl("http://127.0.0.1:8000", name, inputs));
  assert.equal(url, "http://127.0.0.1:8000/v2/models/" + encodeURIComponent(name) + "/infer");
  assert.equal(d, "-d");
  assert.deepEqual(JSON.parse(body).inputs, [
    { name: "it's", datatype: "FP32", shape: [1, 2], data: [1, 1] }, { name: "flag", datatype: "BOOL", shape: [1, 1], data: [true] },
  ]);
  assert.equal(curl("http://a", "ncf", [{ name: "x", datatype: "FP32", shape: [-1, 65] }]), null, "it is too long");
  assert.equal(curl("http://a", "ncf", [{ name: "x", datatype: "BYTES", shape: [-1, 1] }]), null);
  assert.equal(curl("http://a", "ncf", []), null);
});

test("the parser takes pieces of any size", () => {
  const text = ": hello\n\nevent: beat\r\nid: 7\r\ndata: {\"a\":\ndata: 1}\n\ndata: x\rid:9\r\revent: none\n\n";
  for (let size = 1; size < text.length; size++) {
    const told = [];
    const p = new Parser((...a) => told.push(a));
    for (let i = 0; i < text.length; i += size) p.push(text.slice(i, i + size));
    assert.deepEqual(told.map((t) => t[1]), ['{"a":\n1}', "x"], "pieces of " + size);
    assert.equal(told[0][0], "beat");
  }
});

test("it waits longer from attempt to attempt, up to 15 s", () => {
  assert.deepEqual([0, 1, 2, 3, 4, 5, 50].map(patience), [250, 1000, 2000, 4000, 8000, 15000, 15000]);
});

// A bench is a Stream on clocks and answers that a test makes.
function bench(answers) {
  const b = { asked: [], told: [], states: [], timers: new Map(), n: 0 };
  b.stream = new Stream({
    url: "api/stream",
    fetch: async (url, o) => {
      b.asked.push(o.headers["Last-Event-ID"]);
      return answers[Math.min(b.asked.length, answers.length) - 1](o.signal);
    },
    tell: (name, data) => b.told.push([name, data]),
    changed: (what, text) => b.states.push([what, text]),
    timers: {
      setTimeout: (f, ms) => { b.timers.set(++b.n, { f, ms }); return b.n; },
      clearTimeout: (id) => b.timers.delete(id),
    },
  });
  // fire runs the timer that is set for so many ms.
  b.fire = async (ms) => {
    const [id, t] = [...b.timers].find(([, x]) => x.ms === ms) ?? [];
    assert.ok(t, "no timer of " + ms + " ms, only " + [...b.timers.values()].map((x) => x.ms));
    b.timers.delete(id);
    t.f();
    await settled();
  };
  return b;
}
const settled = async () => { for (let i = 0; i < 60; i++) await null; };
const ended = (text) => () => new Response(text, { status: 200 });
const hanging = (text) => (signal) => new Response(new ReadableStream({
  start(c) {
    c.enqueue(new TextEncoder().encode(text));
    signal.addEventListener("abort", () => c.error(signal.reason));
  },
}), { status: 200 });
const beat = (second) => `event: beat\nid: ${second}\ndata: {"second":${second}}\n\n`;

test("a stream that ends is opened again from the last second", async () => {
  const b = bench([ended(beat(5) + beat(6)), hanging(beat(7))]);
  b.stream.start();
  b.stream.start(); // which changes nothing
  for (let i = 0; i < 5; i++) await settled();
  await new Promise((done) => setImmediate(done));
  assert.equal(b.states.at(-1)[0], "lost");
  await b.fire(250);
  await new Promise((done) => setImmediate(done));
  assert.deepEqual(b.asked, [undefined, "6"]);
  assert.deepEqual(b.told.map((t) => t[1].second), [5, 6, 7]);
  assert.equal(b.states.at(-1)[0], "live");
  b.stream.stop();
  await settled();
  assert.equal(b.timers.size, 0, "a stream that is stopped waits for nothing");
});

test("a stream that says nothing is given up", async () => {
  const b = bench([hanging(beat(5)), hanging(beat(6))]);
  b.stream.start();
  await new Promise((done) => setImmediate(done));
  await b.fire(silence);
  await new Promise((done) => setImmediate(done));
  assert.deepEqual(b.states.at(-1), ["lost", "nothing came for 6 s"]);
  await b.fire(250);
  assert.deepEqual(b.asked, [undefined, "5"]);
  b.stream.stop();
});

test("refusals: 401 asks for a key, 503 waits as long as it says, others are said", async () => {
  const b = bench([
    () => new Response('{"error": "100 viewers are here"}', { status: 503, headers: { "Retry-After": "7" } }),
    () => { throw new TypeError("fetch failed"); },
    () => new Response("no", { status: 401 }),
  ]);
  b.stream.start();
  await new Promise((done) => setImmediate(done));
  assert.deepEqual(b.states.at(-1), ["lost", "100 viewers are here"]);
  await b.fire(7000);
  await new Promise((done) => setImmediate(done));
  assert.deepEqual(b.states.at(-1), ["lost", "the agent does not answer"]);
  await b.fire(1000);
  await new Promise((done) => setImmediate(done));
  assert.deepEqual(b.states.at(-1), ["login", "no"]);
  assert.equal(b.timers.size, 0, "it does not try again by itself");
});

test("what all agents tell is told once", () => {
  const told = (at, agent, kind, what, details = {}, who = "") => ({ key: at + agent + kind, at, time: new Date(at * 1000).toISOString(), agent, kind, what, details, who, from: "", sentence: `${kind} of ${agent}` });
  const all = story([
    told(1, "a", "started", "muster agent", { http: "x" }), told(1.1, "a", "leader", "leading the fleet", { epoch: "1" }),
    told(1.2, "a", "loaded", "model ready", { model: "ncf", version: "1" }),
    told(20, "b", "started", "muster agent"), told(20.1, "b", "joined", "agent joined", { agent: "a" }), told(20.2, "a", "joined", "agent joined", { agent: "b" }),
    told(20.3, "b", "leader", "following a leader", { epoch: "1", leader: "a" }), told(21, "b", "loaded", "model ready", { model: "ncf", version: "1" }),
    told(90, "c", "failed", "agent failed", { agent: "b" }), told(91, "a", "failed", "agent failed", { agent: "b" }),
    told(95, "a", "drain", "asked to drain", { agent: "c" }, "admin"), told(99, "a", "of a later version", "something new", { x: "y" }),
    told(200, "a", "failed", "agent failed", { agent: "b" }),
  ].reverse());
  assert.deepEqual(all.map((e) => e.title), ["failed of a", "of a later version of a", "drain of a", "failed of c", "joined of a", "loaded of a", "leader of a", "started of a"], "the server's sentences");
  assert.deepEqual(all.map((e) => e.details), ["seen by a", "", "", "seen by 2 agents", "", "on 2 agents", "", ""]);
  assert.equal(new Set(all.map((e) => e.key)).size, all.length);
});
