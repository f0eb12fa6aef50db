// The page beside an agent that rents: what its leader proposes is shown with what changes and what is
// held, is approved by a click, and carried out by cloud/process. Pictures of it are kept in
// build/dashboard/pictures. MUSTER names the binary.

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { after, before, describe, test } from "node:test";
import { promisify } from "node:util";
import { axe, launch, missing, open, settle, until } from "./chromium.js";

const muster = resolve(process.env.MUSTER ?? "bin/muster");
const pictures = resolve("build/dashboard/pictures");
const run = promisify(execFile);
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

describe("a page of a fleet that rents", { skip: missing() || (existsSync(muster) ? false : "there is no " + muster + ": make build") }, () => {
  let dir, browser, agent, bench, grpc, address;

  async function field(name) {
    for (let i = 0; i < 600; i++) {
      const found = new RegExp(name === "ready" ? '"event":"(ready)"' : `"${name}":"([^"]+)"`).exec(readFileSync(join(dir, "log"), "utf8"));
      if (found) return found[1];
      await sleep(100);
    }
    throw new Error("the agent does not start:\n" + readFileSync(join(dir, "log"), "utf8").slice(-2000));
  }
  const state = async () => JSON.parse((await run(muster, ["fleet", "status", "--json", "--server", grpc])).stdout);
  const serving = (s) => s.machines.filter((m) => m.phase === "serving").length;
  async function eventually(f, what) {
    let last;
    for (const end = Date.now() + 120000; Date.now() < end; await sleep(300)) {
      last = await state();
      if (f(last)) return last;
    }
    assert.fail(what + ": not within 2 min: " + JSON.stringify(last));
  }

  before(async () => {
    dir = mkdtempSync(join(tmpdir(), "muster-renting-"));
    mkdirSync(pictures, { recursive: true });
    await run(muster, ["models", "generate", "rm2", "--scale", "small", "--out", join(dir, "models")]);
    writeFileSync(join(dir, "fleet.yaml"), `fleet: page
mode: approve
limits: {max_price_usd_per_hour: 2, types: {g4dn.xlarge: {max: 2, spot: false}, r5n.large: {max: 4}}}
spare: 1
spot: {share: 50%, max_pool: 50%}
calm: 10s
process: {dir: ${dir}/machines, models: ${dir}/models}
`);
    agent = spawn(muster, ["agent", "--model-dir", join(dir, "models"), "--state-dir", join(dir, "state"), "--rent", join(dir, "fleet.yaml"),
      "--executor", "emulated", "--profile", "shipped", "--instance-type", "r5n.large", "--log-format", "json",
      ...["--http", "--grpc", "--metrics", "--gossip"].flatMap((f) => [f, "127.0.0.1:0"])], { stdio: ["ignore", "ignore", openSync(join(dir, "log"), "w")], cwd: dir });
    grpc = await field("grpc");
    address = `http://${await field("http")}/dashboard/`;
    await field("ready"); // bench asks for the model's metadata at once
    bench = spawn(muster, ["bench", "--server", grpc, "--model", "rm2", "--rate", "15", "--duration", "400s"], { stdio: "ignore", cwd: dir });
    browser = await launch();
  });
  after(async () => {
    await browser?.close();
    bench?.kill("SIGKILL");
    if (grpc) await run(muster, ["fleet", "destroy", "--yes", "--wait", "--timeout", "1m", "--server", grpc]).catch(() => {});
    agent?.kill("SIGKILL");
    rmSync(dir, { recursive: true, force: true });
  });

  test("a proposal is shown, approved and carried out", { timeout: 400000 }, async (t) => {
    const guest = await open(browser, "about:blank");
    await guest.route("**/dashboard/api/session", async (route) => {
      const answer = await route.fetch();
      const session = await answer.json();
      await route.fulfill({ response: answer, json: { ...session, may: { ...session.may, fleet: false } } });
    });
    guest.faults.length = 0;
    guest.removeAllListeners("request");
    await guest.goto(address);
    const page = await open(browser, address);

    const proposed = await eventually((s) => s.proposal?.changes?.length > 0, "a proposal");
    const shown = () => page.evaluate(() => document.getElementById("money").innerText);
    await until(page, () => [...document.querySelectorAll("#money button")].some((b) => b.textContent === "Approve"));
    const text = await shown();
    t.diagnostic(text.replaceAll("\n", " | "));
    assert.match(text, /Rented: \$0\.00\/hr of at most \$2\.00, mode approve/);
    assert.match(text, /: \d more/);
    assert.doesNotMatch(text, /return 1 r5n.large/, "one proposal, not the planner's beside the leader's");
    assert.match(text, /somebody has to approve it/);
    assert.match(text, /one machine lost, at most 50 % on spot machines/);
    assert.match(text, /no machines are desired yet: approve a proposal, or set counts/i, "what is held, and why");
    assert.equal(proposed.price_usd_per_hour ?? 0, 0, "nothing is rented before it is approved");
    await settle(page);
    assert.deepEqual(await axe(page), []);
    await page.locator("#money").screenshot({ path: join(pictures, "renting-proposed.png") });

    await until(guest, () => /somebody has to approve it/.test(document.getElementById("money").innerText));
    assert.equal(await guest.locator("#money button", { hasText: "Approve" }).count(), 0, "who may not approve has no button");
    await guest.context().close();

    await page.locator("#money button", { hasText: "Approve" }).click();
    const done = await eventually((s) => s.exact && serving(s) > 0, "what was approved serves");
    assert.ok(serving(done) >= 1 && done.price_usd_per_hour <= 2);
    await until(page, () => /as desired/.test(document.getElementById("money").innerText), undefined, 60000);
    await until(page, (n) => document.querySelectorAll(".tile").length === n, 1 + serving(done));
    assert.equal(await page.locator("#money button", { hasText: "Approve" }).count(), 0, "nothing is left to approve");
    t.diagnostic((await shown()).replaceAll("\n", " | "));
    await settle(page);
    await page.locator("#money").screenshot({ path: join(pictures, "renting-carried-out.png") });

    assert.deepEqual(page.faults, []);
    await page.context().close();
  });
});
