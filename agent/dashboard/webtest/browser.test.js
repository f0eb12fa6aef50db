// The page in a real Chromium, with the fleets of fixtures.js behind it. scripts/dashboard.sh runs
// this; without a Chromium it is skipped. UPDATE=1 writes the pictures anew: look at them then.

import assert from "node:assert/strict";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { axe, launch, missing, open, settle, until } from "./chromium.js";
import { fixtures } from "./fixtures.js";
import { serve } from "./serve.js";

const here = dirname(fileURLToPath(import.meta.url));
const pictures = join(here, "pictures");
const found = join(here, "..", "..", "..", "build", "dashboard", "pictures");
const tolerance = 0.005; // of a picture's points, at a quarter of its size, that may differ
mkdirSync(found, { recursive: true });

describe("the page", { skip: missing() }, () => {
  let browser;
  before(async () => { browser = await launch(); });
  after(() => browser?.close());

  // compare shoots the page and compares it with the picture of that name; it returns what is wrong.
  async function compare(page, comparer, name) {
    const shot = await page.screenshot({ fullPage: true, animations: "disabled" });
    const file = join(pictures, name + ".webp");
    const old = existsSync(file) ? "data:image/webp;base64," + readFileSync(file, "base64") : null;
    const { differ, picture } = await comparer.evaluate(async ([now, before]) => {
      const read = async (url) => {
        const image = new Image();
        image.src = url;
        await image.decode();
        return image;
      };
      const draw = (image, width, height) => {
        const c = document.createElement("canvas");
        c.width = width;
        c.height = height;
        const g = c.getContext("2d", { willReadFrequently: true });
        g.imageSmoothingQuality = "high";
        g.drawImage(image, 0, 0, width, height);
        return c;
      };
      const image = await read(now);
      const half = draw(image, Math.round(image.width / 2), Math.round(image.height / 2));
      const picture = half.toDataURL("image/webp", 0.7);
      if (!before) return { differ: "there is no picture yet", picture };
      const kept = await read(before);
      if (kept.width !== half.width || Math.abs(kept.height - half.height) > 2) {
        return { differ: `it is ${half.width} x ${half.height}, was ${kept.width} x ${kept.height}`, picture };
      }
      const w = Math.round(kept.width / 2);
      const h = Math.round(kept.height / 2);
      const a = draw(await read(picture), w, h).getContext("2d").getImageData(0, 0, w, h).data;
      const b = draw(kept, w, h).getContext("2d").getImageData(0, 0, w, h).data;
      let n = 0;
      for (let i = 0; i < a.length; i += 4) {
        const d = Math.max(Math.abs(a[i] - b[i]), Math.abs(a[i + 1] - b[i + 1]), Math.abs(a[i + 2] - b[i + 2]));
        if (d > 28) n++;
      }
      return { differ: n / (w * h), picture };
    }, ["data:image/png;base64," + shot.toString("base64"), old]);
    if (typeof differ === "number" && differ <= tolerance / (process.env.UPDATE ? 10 : 1)) return null;
    if (process.env.UPDATE) {
      mkdirSync(pictures, { recursive: true });
      writeFileSync(file, Buffer.from(picture.split(",")[1], "base64"));
      return null;
    }
    writeFileSync(join(found, name + ".png"), shot);
    return name + ": " + (typeof differ === "number" ? (100 * differ).toFixed(2) + " % of it differ" : differ) +
      "; see build/dashboard/pictures/" + name + ".png, and if it is right, run UPDATE=1 make dashboard-test";
  }

  for (const name of Object.keys(fixtures)) {
    test("looks: " + name, { timeout: 120000 }, async () => {
      const fixture = fixtures[name]();
      const server = await serve({ fixture });
      const page = await open(browser, server.address + "?still" + (fixture.hash ?? ""));
      const comparer = await browser.newPage();
      try {
        await until(page, (last) => document.documentElement.dataset.second === last, String(fixture.beats.at(-1).second));
        await until(page, () => ["profiles", "plan", "fleet", "events"].every((what) =>
          performance.getEntriesByType("resource").some((e) => e.name.endsWith("/api/" + what))));
        const wrong = [];
        for (const look of ["dark", "light"]) {
          if (look === "light") await page.click("#theme");
          await settle(page);
          assert.deepEqual(await axe(page), [], name + ", " + look);
          wrong.push(await compare(page, comparer, name + "-" + look));
        }
        await page.click("#theme");
        await page.setViewportSize({ width: 390, height: 844 });
        await settle(page);
        assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 390, name + " scrolls sideways on a phone");
        wrong.push(await compare(page, comparer, name + "-phone"));
        const lanes = fixture.fleet.agents.reduce((n, a) => n + a.lanes, 0);
        assert.equal(await page.getAttribute("#types", "data-lanes"), String(lanes));
        if (lanes <= 200) {
          const starting = fixture.fleet.agents.filter((a) => !a.lanes).length;
          assert.equal(await page.locator(".tile").count(), lanes + starting);
        }
        assert.equal(await page.locator("main img, body > img").count(), 0, "a name became markup");
        assert.deepEqual(page.faults, []);
        assert.deepEqual(wrong.filter(Boolean), []);
      } finally {
        await page.context().close();
        await comparer.close();
        await server.close();
      }
    });
  }

  // on opens the page of a fixture whose beats go on, for a test.
  async function on(what, options, f) {
    const server = await serve({ live: 250, ...what });
    const page = await open(browser, server.address, options);
    try {
      await f(page, server);
      assert.deepEqual(page.faults, []);
    } finally {
      await page.context().close();
      await server.close();
    }
  }
  const second = (page) => page.evaluate(() => Number(document.documentElement.dataset.second));
  const small = fixtures.one();

  test("an agent that is silent, dies and comes back: the page says so, and goes on with its history", { timeout: 120000 }, async () => {
    const server = await serve({ fixture: small, live: 250 });
    const page = await open(browser, server.address);
    try {
      await until(page, () => document.documentElement.dataset.second);
      server.what.frozen = true;
      await until(page, () => document.body.classList.contains("stale"));
      assert.match(await page.textContent("#banner"), /^Old numbers: last heard \d+ s ago from r5n/);
      await server.close();
      const again = await serve({ fixture: small, live: 250, port: server.port, k: server.what.k });
      const from = await second(page);
      await until(page, (s) => Number(document.documentElement.dataset.second) > s && !document.body.classList.contains("stale"), from);
      await page.click("#load .asTable");
      await until(page, () => document.querySelectorAll("#load table tbody tr").length >= 38);
      // That the agent was away is an error in the console of the browser's own making.
      assert.deepEqual(page.faults.filter((f) => !/ERR_|Failed to load/.test(f)), []);
      await page.context().close();
      await again.close();
    } finally {
      await page.context().close().catch(() => {});
      await server.close().catch(() => {});
    }
  });

  test("another version is loaded, once", { timeout: 60000 }, async () => {
    const f = fixtures.one();
    await on({ fixture: f }, {}, async (page, server) => {
      await until(page, () => document.documentElement.dataset.second);
      f.hello = { ...f.hello, build: "other" };
      f.session = { ...f.session, build: "other" };
      for (const v of server.open) v.response.end();
      const pages = () => server.asked.filter((a) => a === "GET /dashboard/").length;
      for (let i = 0; i < 200 && pages() < 2; i++) await settle(page).catch(() => {});
      await until(page, () => document.documentElement.dataset.second);
      assert.equal(pages(), 2);
      f.session = { ...f.session, build: "never the same" }; // agents that differ: the page does not spin
      for (const v of server.open) v.response.end();
      for (let i = 0; i < 20; i++) await settle(page).catch(() => {});
      assert.ok(pages() <= 3, pages() + " times loaded");
    });
  });

  test("a key: asked for, refused, limited, taken; and not kept in the page", { timeout: 60000 }, async () => {
    const f = fixtures.one();
    let key = 0;
    const answer = (name, request, response) => {
      if (name === "login") {
        key++;
        if (key === 1) return { value: { error: "this key is not known" }, status: 401 };
        if (key === 2) {
          response.setHeader("Retry-After", "12");
          return { value: { error: "too many attempts." }, status: 429 };
        }
        response.writeHead(204, { "Set-Cookie": "muster=x; HttpOnly; SameSite=Strict" });
        response.end();
        return true;
      }
      const known = request.headers.cookie?.includes("muster=x");
      if (name === "session") return { value: { ...f.session, in: known, login: true } };
      return known ? undefined : { value: { error: "who are you?" }, status: 401 };
    };
    const server = await serve({ fixture: f, live: 250, answer });
    const page = await open(browser, server.address);
    try {
      await page.waitForSelector("#login:not([hidden])");
      assert.deepEqual(await axe(page), []);
      for (const says of ["this key is not known", "too many attempts. Try again in 12 s."]) {
        await page.fill("#key", "secret-key");
        await page.click("#login button");
        await until(page, (t) => document.getElementById("loginsays").textContent === t, says);
        assert.equal(await page.inputValue("#key"), "");
      }
      assert.equal(server.asked.filter((a) => a.endsWith("api/stream")).length, 0);
      await page.fill("#key", "secret-key");
      await page.keyboard.press("Enter");
      await until(page, () => document.documentElement.dataset.second);
      assert.equal(await page.isVisible("#login"), false);
      assert.equal(await page.evaluate(() => JSON.stringify({ ...localStorage, ...sessionStorage }).includes("secret")), false);
      assert.deepEqual(page.faults.filter((x) => !/status of 4/.test(x)), []);
    } finally {
      await page.context().close();
      await server.close();
    }
  });

  test("a hidden tab ends its stream, and goes on where it was", { timeout: 60000 }, async () => {
    await on({ fixture: small }, {}, async (page, server) => {
      await until(page, () => document.documentElement.dataset.second);
      const hide = (hidden) => page.evaluate((h) => {
        Object.defineProperty(document, "hidden", { configurable: true, get: () => h });
        document.dispatchEvent(new Event("visibilitychange"));
      }, hidden);
      await hide(true);
      for (let i = 0; i < 100 && server.open.size; i++) await settle(page);
      assert.equal(server.open.size, 0);
      await hide(false);
      const from = await second(page);
      const streams = () => server.asked.filter((a) => a.endsWith("api/stream")).length;
      for (let i = 0; i < 100 && streams() < 2; i++) await settle(page);
      await until(page, (s) => Number(document.documentElement.dataset.second) > s, from);
      assert.equal(streams(), 2);
    });
  });

  test("by keyboard: tiles, cells, rates and tables", { timeout: 60000 }, async () => {
    const server = await serve({ fixture: fixtures.busy() });
    const page = await open(browser, server.address + "?still");
    try {
      await until(page, () => document.querySelectorAll(".tile").length);
      const tip = () => page.textContent("#tip");
      assert.equal(await page.locator('.tile[tabindex="0"]').count(), 1, "tiles are one stop of Tab");
      await page.focus('.tile[tabindex="0"]');
      const first = await tip();
      await page.keyboard.press("ArrowRight");
      assert.notEqual(await tip(), first);
      await page.keyboard.press("ArrowDown");
      await page.keyboard.press("End");
      assert.match(await tip(), /drains/);
      await page.focus("#rain");
      for (let i = 0; i < 3; i++) await page.keyboard.press("ArrowRight");
      await page.keyboard.press("ArrowDown");
      assert.match(await tip(), /^batch \d+ (to \d+ )?on c5n.2xlarge\d+ % of this size/);
      await page.keyboard.press("Escape");
      assert.equal(await page.isVisible("#tip"), false);
      await page.focus("#rate");
      await page.keyboard.press("ArrowLeft");
      await page.keyboard.press("ArrowLeft");
      assert.match(await tip(), /queries\/s, \d+ % of 1,512/);
      await page.keyboard.press("Escape");
      for (const [panel, rows] of [["fleet", 18], ["matching", 3], ["models", 4], ["profiles", 3]]) {
        await page.focus("#" + panel + " .asTable");
        await page.keyboard.press("Enter");
        await until(page, ([p, n]) => document.querySelectorAll("#" + p + " table tbody tr").length === n, [panel, rows]);
      }
      assert.deepEqual(await axe(page), [], "with tables");
      await page.click("#matching .asTable");
      await page.click('[data-panel="load"] .asTable');
      for (const [range, first, last] of [["10 min", /^0:\d\d ago$/, /^9:\d\d ago$/], ["1 h", /^[01]:\d\d ago$/, /^59:\d\d ago$/],
        ["24 h", /^\d:\d\d ago$/, /^23 h 5\d min ago$/]]) {
        await page.click(`#ranges button[data-key="${range}"]`);
        const times = await page.locator('[data-panel="load"] tbody th').allTextContents();
        assert.match(times[0], first, range);
        assert.match(times.at(-1), last, range);
      }
      await page.click('#rainmodels button[data-key="rm2/1"]');
      await settle(page);
      assert.deepEqual(page.faults, []);
    } finally {
      await page.context().close();
      await server.close();
    }
  });

  test("one model's page: by its link and its address, and back", { timeout: 60000 }, async () => {
    const server = await serve({ fixture: fixtures.late() });
    const page = await open(browser, server.address + "?still");
    try {
      await until(page, () => document.querySelectorAll("#whylist li").length === 2);
      await page.click("#modelplots a");
      await page.waitForSelector("#one:not([hidden])");
      assert.equal(await page.textContent("#onename"), "dien");
      assert.equal(await page.isVisible("#fleet"), false);
      await until(page, () => document.querySelectorAll("#whylist li").length === 2);
      assert.ok(server.asked.filter((a) => a === "GET /dashboard/api/why").length >= 2, "it asks for the model's causes");
      assert.equal(await page.title(), "dien · Muster");
      assert.equal(await page.locator("#wherebody tbody tr").count(), 17);
      assert.match(await page.textContent("#eventlist"), /Nothing/);
      await page.click('#oneranges button[data-key="24 h"]');
      await page.goto(server.address + "?still#model/wnd/1");
      await until(page, () => document.getElementById("onename").textContent === "wnd");
      assert.match(await page.textContent("#eventlist"), /wnd: version 1 was loaded/);
      await page.goto(server.address + "?still#model/gone/7");
      await until(page, () => document.getElementById("onegone").textContent === "No agent holds gone/7 now.");
      await page.click(".back a");
      await until(page, () => document.getElementById("one").hidden && document.getElementById("fleet").checkVisibility());
      assert.deepEqual(page.faults, []);
    } finally {
      await page.context().close();
      await server.close();
    }
  });

  test("how machines get a price is said until it was read", { timeout: 60000 }, async () => {
    await on({ fixture: fixtures.two() }, {}, async (page) => {
      await page.waitForSelector("#money .save button");
      assert.match(await page.textContent("#money"), /What does local-2c cost.*muster agent --price/);
      await page.click("#money .save button");
      await until(page, () => !document.querySelector("#money .save"));
      await page.reload();
      await until(page, () => document.querySelector("#money .bar"));
      assert.equal(await page.locator("#money .save").count(), 0);
    });
  });

  test("with reduced motion nothing moves between beats", { timeout: 60000 }, async () => {
    await on({ fixture: fixtures.busy(), live: 1e9 }, { reducedMotion: "reduce" }, async (page) => {
      await until(page, () => document.documentElement.dataset.second);
      const drawn = () => page.evaluate(() => document.getElementById("rain").toDataURL());
      await settle(page);
      const before = await drawn();
      for (let i = 0; i < 5; i++) await settle(page);
      assert.equal(await drawn(), before);
    });
  });

  test("600 beats leave no more behind than 60 do", { timeout: 180000 }, async (t) => {
    const busy = fixtures.busy();
    await on({ fixture: busy, live: 20, most: 60 }, {}, async (page, server) => {
      const cdp = await page.context().newCDPSession(page);
      const begin = busy.beats.at(-1).second;
      // heap is what the page holds once it has drawn so many beats.
      const heap = async (beats) => {
        server.what.most = beats;
        await until(page, (s) => Number(document.documentElement.dataset.second) === s, begin + beats, 120000);
        await settle(page);
        for (let i = 0; i < 3; i++) await cdp.send("HeapProfiler.collectGarbage");
        return (await cdp.send("Runtime.getHeapUsage")).usedSize;
      };
      const early = await heap(60);
      const late = await heap(600);
      t.diagnostic(`heap after 60 beats ${(early / 1e6).toFixed(1)} MB, after 600 ${(late / 1e6).toFixed(1)} MB`);
      assert.ok(late < 1.2 * early, `${late} bytes after 600 beats, ${early} after 60`);
    });
  });
});
