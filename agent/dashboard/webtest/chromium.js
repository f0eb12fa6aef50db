// A Chromium for tests.

import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const installed = join(dirname(fileURLToPath(import.meta.url)), "..", "..", "..", "build", "dashboard");
const require = createRequire(installed + "/");
const binary = process.env.CHROMIUM ?? ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);

// missing says why there can be no Chromium; false: there can.
export function missing() {
  if (!binary) return "there is no Chromium";
  if (!existsSync(join(installed, "node_modules", "playwright-core"))) return "playwright-core is not installed: run scripts/dashboard.sh";
  return false;
}

export function launch() {
  return require("playwright-core").chromium.launch({
    executablePath: binary, args: ["--no-sandbox", "--disable-gpu", "--font-render-hinting=none", "--disable-lcd-text"],
  });
}

// open opens a page in a context of its own. Its list faults has what must not be: errors in the
// console, and requests to anywhere else.
export async function open(browser, address, options = {}) {
  const context = await browser.newContext({
    viewport: { width: 1440, height: 900 }, colorScheme: "dark", timezoneId: "UTC", locale: "en-US", ...options,
  });
  const page = await context.newPage();
  page.faults = [];
  page.on("console", (m) => {
    if (m.type() === "error" || m.type() === "warning") page.faults.push(m.text());
  });
  page.on("pageerror", (e) => page.faults.push(e.stack ?? String(e)));
  page.on("request", (r) => {
    if (!r.url().startsWith(new URL(address).origin + "/") && !r.url().startsWith("data:")) page.faults.push("asks " + r.url());
  });
  await page.goto(address);
  return page;
}

// until waits for what f says in the page.
export const until = (page, f, argument, timeout = 45000) => page.waitForFunction(f, argument, { timeout, polling: 50 });

// settle waits until the page has drawn what it has heard of.
export const settle = (page) => page.evaluate(async () => {
  await document.fonts.ready;
  for (let i = 0; i < 4; i++) await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 30)));
});

// axe returns what axe-core finds wrong, in words.
export async function axe(page) {
  await page.evaluate(readFileSync(join(installed, "node_modules", "axe-core", "axe.min.js"), "utf8"));
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  return violations.map((v) => v.id + ": " + v.help + ": " + v.nodes.slice(0, 4).map((n) => n.target.join(" ") + " " +
    n.any.map((a) => a.message).join(", ")).join("; "));
}
