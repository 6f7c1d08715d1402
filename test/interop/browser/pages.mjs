// Opens the pages that replay and bench write, in a real browser, and holds them
// against the results that they are of: NAME.html and NAME.json in a directory.
// Usage: node pages.mjs CHROMIUM PAGES PROFILE [PICTURES]

import assert from "node:assert/strict";
import { readFileSync, mkdirSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";
import { Report } from "../js/report.mjs";

const [executablePath, pages, profile, pictures] = process.argv.slice(2);
const ARGS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
];
const open = (name, options) => chromium.launchPersistentContext(join(profile, name), { executablePath, headless: true, args: ARGS, ...options });
const url = (name) => pathToFileURL(resolve(pages, `${name}.html`)).href;
const fixture = (name) => JSON.parse(readFileSync(join(pages, `${name}.json`), "utf8"));

// expected says what each figure has to draw of run i: how many marks of one kind its
// line has. null is a figure that says why it is empty.
function expected({ result, plots }) {
  const filled = (h) => {
    const at = (h.count ?? []).map((c, i) => [c, i]).filter(([c]) => c > 0).map(([, i]) => i);
    return at.length ? at.at(-1) - at[0] + 1 : 0; // a bar for each bucket from the first to the last with values
  };
  const rows = result.rows ?? [];
  return rows.map((row, i) => {
    const p = plots?.[i] ?? {};
    const line = p.timeline ?? [];
    return {
      "ttft-histogram": filled(p.ttft ?? {}), "itl-histogram": filled(p.itl ?? {}), "e2e-histogram": filled(p.e2e ?? {}),
      "ttft-cdf": filled(p.ttft ?? {}), "itl-cdf": filled(p.itl ?? {}), "e2e-cdf": filled(p.e2e ?? {}),
      "time-ttft": line.filter((t) => t.ttft_ms > 0).length, "time-output": line.length, "time-sent": line.length,
      "time-errors": rows.some((_, k) => (plots?.[k]?.timeline ?? []).some((t) => t.errors > 0)) ? line.length : 0,
      "time-cached": line.filter((t) => t.input_tokens > 0).length,
      workers: Math.min(1024, (p.per_worker ?? []).length),
      cached: row.input_tokens > 0 ? 1 : 0,
    };
  });
}

// drawn returns for each figure {run: marks}, counted in what the browser has.
const drawn = (page) =>
  page.evaluate(() => {
    const count = (d, letters) => d.split("").filter((c) => letters.includes(c)).length;
    const found = {};
    for (const figure of document.querySelectorAll("figure")) {
      if (!figure.checkVisibility()) continue;
      found[figure.id] = {};
      for (const mark of figure.querySelectorAll("[data-run]")) {
        const d = mark.getAttribute("d");
        const kind = figure.id.endsWith("-histogram") ? "H" : figure.id.endsWith("-cdf") ? "L" : figure.id.startsWith("time-") ? "ML" : "M";
        found[figure.id][mark.dataset.run] = d === null ? 1 : count(d, kind);
      }
    }
    return found;
  });

// shown returns the indexes of the runs that the legend says are drawn.
const shown = (page, n) =>
  page.evaluate((n) => {
    const buttons = [...document.querySelectorAll(".legend button.run")];
    if (buttons.length === 0) return [...Array(n).keys()];
    return buttons.map((b, i) => [b.getAttribute("aria-pressed"), i]).filter(([p]) => p === "true").map(([, i]) => i);
  }, n);

async function marks(page, name) {
  const want = expected(fixture(name));
  const [found, which] = [await drawn(page), await shown(page, want.length)];
  for (const id of Object.keys(found)) {
    const should = Object.fromEntries(which.filter((i) => want[i][id] > 0).map((i) => [i, want[i][id]]));
    assert.deepEqual(found[id], should, id);
    if (Object.keys(should).length === 0) assert.equal(await page.locator(`#${id} .nothing`).count(), 1, `${id} says why it is empty`);
  }
  return which;
}

// quiet makes a page that gathers what it must not do: messages, errors, requests.
async function quiet(context) {
  const page = await context.newPage();
  const heard = [];
  page.on("console", (m) => heard.push(`console: ${m.text()}`));
  page.on("pageerror", (e) => heard.push(`error: ${e}`));
  page.on("request", (r) => r.isNavigationRequest() || r.url().startsWith("data:,") || heard.push(`request: ${r.url()}`));
  page.on("dialog", (d) => (heard.push(`dialog: ${d.message()}`), d.dismiss()));
  return { page, heard };
}

// fits asserts that nothing is wider than the window but what scrolls by itself,
// and that no text of a figure is cut off or lies on another.
async function fits(page, width) {
  const bad = await page.evaluate((width) => {
    const bad = [];
    if (document.documentElement.scrollWidth > width) bad.push(`the page is ${document.documentElement.scrollWidth} wide`);
    for (const e of document.querySelectorAll("body *")) {
      if (e.closest(".wide table, .unseen, .tip, [hidden], noscript") || e.closest("svg") !== null) continue;
      const r = e.getBoundingClientRect();
      if (r.width > 0 && (r.right > width + 0.5 || r.left < -0.5)) bad.push(`${e.tagName}.${e.className} from ${r.left} to ${r.right}`);
    }
    for (const picture of document.querySelectorAll(".plot svg")) {
      const outer = picture.getBoundingClientRect();
      const texts = [...picture.querySelectorAll("text")].map((t) => [t.textContent, t.getBoundingClientRect()]);
      texts.forEach(([text, r], i) => {
        const where = picture.closest("figure").id;
        if (r.left < outer.left - 1.5 || r.right > outer.right + 1.5 || r.top < outer.top - 2 || r.bottom > outer.bottom + 2) bad.push(`${where}: "${text}" is cut off`);
        for (const [other, q] of texts.slice(0, i))
          if (r.left < q.right - 1 && q.left < r.right - 1 && r.top < q.bottom - 4 && q.top < r.bottom - 4) bad.push(`${where}: "${text}" lies on "${other}"`);
      });
    }
    return bad.slice(0, 8);
  }, width);
  assert.deepEqual(bad, []);
}

// readable asserts the contrast that WCAG 2 asks of text, 4.5 to 1, everywhere.
async function readable(page) {
  const bad = await page.evaluate(() => {
    const channels = (c) => (c.match(/[\d.]+/g) || []).map(Number);
    const luminance = ([r, g, b]) => {
      const f = (v) => ((v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
      return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b);
    };
    const behind = (e) => {
      for (; e; e = e.parentElement) {
        const c = channels(getComputedStyle(e).backgroundColor);
        if (c.length === 3 || c[3] === 1) return c;
      }
      return [255, 255, 255];
    };
    const bad = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let t = walker.nextNode(); t; t = walker.nextNode()) {
      const e = t.parentElement;
      if (!t.data.trim() || e.closest("script, noscript, [hidden], .unseen, .unstar") || !e.getClientRects().length) continue;
      const style = getComputedStyle(e);
      const ink = channels(e instanceof SVGElement ? style.fill : style.color);
      const [a, b] = [luminance(ink), luminance(behind(e))].sort((x, y) => y - x);
      const ratio = (a + 0.05) / (b + 0.05);
      if (ratio < 4.5 || style.visibility !== "visible" || Number(style.opacity) < 1) bad.push(`"${t.data.trim().slice(0, 40)}": ${ratio.toFixed(2)}`);
    }
    return bad.slice(0, 8);
  });
  assert.deepEqual(bad, []);
}

async function looks(context, name, width, scheme) {
  const { page, heard } = await quiet(context);
  try {
    await page.setViewportSize({ width, height: 900 });
    await page.emulateMedia({ colorScheme: scheme });
    await page.goto(url(name));
    await page.waitForFunction(() => document.readyState === "complete");
    await marks(page, name);
    await fits(page, width);
    await readable(page);
    for (const details of await page.locator("details").all()) await details.locator("summary").click();
    await fits(page, width);
    if (pictures) await page.screenshot({ path: join(pictures, `${name}-${width}-${scheme}.png`), fullPage: true });
    assert.deepEqual(heard, []);
  } finally {
    await page.close();
  }
}

// toggled: a press hides a run in every figure, another brings it back as it was; all, none.
async function toggled(context, name) {
  const { page, heard } = await quiet(context);
  try {
    await page.goto(url(name));
    const before = await drawn(page);
    const which = await marks(page, name);
    const button = page.locator(".legend button.run").nth(which[1]);
    await button.click();
    assert.equal(await button.getAttribute("aria-pressed"), "false");
    assert.deepEqual(await marks(page, name), which.filter((i) => i !== which[1]));
    await button.press("Enter");
    assert.deepEqual(await drawn(page), before, "shown again");
    await page.getByRole("button", { name: "none", exact: true }).click();
    assert.deepEqual(await marks(page, name), []);
    await page.getByRole("button", { name: "all", exact: true }).click();
    assert.equal((await marks(page, name)).length, fixture(name).result.rows.length);
    await fits(page, 1280);
    await readable(page);
    await page.getByRole("button", { name: "Busiest first" }).click();
    await marks(page, name);
    if (pictures) await page.screenshot({ path: join(pictures, `${name}-all.png`), fullPage: true });
    assert.deepEqual(heard, []);
  } finally {
    await page.close();
  }
}

// pointed: the pointer shows the values that are there, and so do the arrow keys.
async function pointed(context, name) {
  const { page, heard } = await quiet(context);
  try {
    await page.goto(url(name));
    const { result, plots } = fixture(name);
    const n = (await shown(page, result.rows.length)).length;
    for (const figure of await page.locator("figure").all()) {
      const id = await figure.getAttribute("id");
      const picture = figure.locator(".plot > svg");
      if ((await picture.count()) === 0) continue;
      await picture.scrollIntoViewIfNeeded();
      const box = await picture.boundingBox();
      await page.mouse.move(box.x + box.width * 0.4, box.y + Math.min(40, box.height * 0.4));
      const lines = await figure.locator(".tip div").count();
      assert.ok(await figure.locator(".tip").isVisible(), `${id} shows values`);
      if (id !== "workers" && id !== "cached") assert.equal(lines, n, `${id} has a line for each run`);
      await page.mouse.move(1, 1);
      assert.ok(!(await figure.locator(".tip").isVisible()), `${id} hides them again`);
      await picture.focus();
      await page.keyboard.press("ArrowRight");
      assert.match(await page.locator("#live").textContent(), /\d/, `${id} is told`);
      await page.keyboard.press("Escape");
      assert.ok((await picture.getAttribute("aria-label")).length > 3, `${id} has a name`);
      assert.match(await page.locator(`#${id}-text`).textContent(), /\d/, `${id} has words`);
    }
    // Of the highest bar, the value is that of the result.
    const h = plots[0].ttft;
    const top = h.count.indexOf(Math.max(...h.count));
    const picture = page.locator("#ttft-histogram .plot > svg");
    await picture.scrollIntoViewIfNeeded();
    const x = await picture.evaluate((svg, i) => {
      const path = svg.querySelector('[data-run="0"]');
      const steps = path.getAttribute("d").match(/[MH][\d.]+/g).map((s) => Number(s.slice(1)));
      const m = svg.getScreenCTM();
      return ((steps[i] + steps[i + 1]) / 2) * m.a + m.e;
    }, top - h.count.findIndex((c) => c > 0));
    const box = await picture.boundingBox();
    await page.mouse.move(x, box.y + 60);
    const said = await page.locator("#ttft-histogram .tip div").first().textContent();
    assert.ok(said.includes(`(${h.count[top].toLocaleString("en-US")})`), `"${said}" has the count ${h.count[top]}`);
    assert.deepEqual(heard, []);
  } finally {
    await page.close();
  }
}

// harmless: hostile texts are shown and do nothing, and would be stopped if they tried.
async function harmless(context) {
  const { page, heard } = await quiet(context);
  try {
    await page.goto(url("hostile"));
    await page.getByRole("button", { name: "all", exact: true }).click();
    const box = await page.locator("#workers .plot > svg").boundingBox();
    await page.mouse.move(box.x + 200, box.y + 50);
    assert.equal(await page.evaluate(() => window.hurt), undefined);
    assert.deepEqual(await page.evaluate(() => [document.scripts.length, document.images.length, document.querySelectorAll("[onerror], [onclick], iframe, object, a").length]), [2, 0, 0]);
    assert.ok((await page.locator("tbody th").first().textContent()).startsWith("</script><script>"), "the name is shown");
    assert.deepEqual(heard, []);
    const stopped = await page.evaluate(async () => {
      const refused = [];
      document.addEventListener("securitypolicyviolation", (e) => refused.push(e.effectiveDirective));
      document.body.append(Object.assign(document.createElement("script"), { textContent: "window.hurt = 1" }));
      document.body.append(Object.assign(document.createElement("style"), { textContent: "body { display: none }" }));
      document.body.append(Object.assign(document.createElement("img"), { src: "http://127.0.0.1:1/" }));
      await fetch("http://127.0.0.1:1/").catch(() => {});
      await new Promise((told) => setTimeout(told, 0)); // violations are told of in a task of their own
      return [refused.sort(), window.hurt, getComputedStyle(document.body).display];
    });
    assert.deepEqual(stopped, [["connect-src", "img-src", "script-src-elem", "style-src-elem"], undefined, "block"]);
  } finally {
    await page.close();
  }
}

// without: the tables need no script.
async function without(context) {
  const page = await context.newPage();
  await page.goto(url("replay"));
  assert.equal(await page.locator("tbody tr:visible").count(), fixture("replay").result.rows.length);
  assert.ok(!(await page.locator("#figures").isVisible()));
  assert.ok(await page.getByText("The figures need JavaScript").isVisible());
  await page.close();
}

// printed: ink on white, whatever the screen has.
async function printed(context) {
  const page = await context.newPage();
  await page.emulateMedia({ media: "print", colorScheme: "dark" });
  await page.goto(url("replay"));
  assert.equal(await page.evaluate(() => getComputedStyle(document.body).backgroundColor), "rgb(255, 255, 255)");
  await readable(page);
  const pdf = await page.pdf({ preferCSSPageSize: true });
  assert.ok(pdf.length > 10_000);
  await page.close();
}

if (pictures) mkdirSync(pictures, { recursive: true });
const report = new Report();
const context = await open("scripted", { viewport: { width: 1280, height: 900 } });
for (const name of ["replay", "bench", "sizes", "many", "hostile", "empty", "none", "bare"]) {
  for (const [width, scheme] of [[1280, "light"], [400, "dark"], [1280, "dark"], [400, "light"]])
    await report.check(`${name}: marks, room and contrast, ${width} wide, ${scheme}`, looks, context, name, width, scheme);
}
for (const name of ["replay", "many"]) await report.check(`${name}: the legend shows and hides`, toggled, context, name);
for (const name of ["replay", "bench"]) await report.check(`${name}: values under the pointer and by keys`, pointed, context, name);
await report.check("hostile texts do nothing", harmless, context);
await report.check("print", printed, context);
const version = context.browser()?.version() ?? "";
await context.close();
const plain = await open("plain", { javaScriptEnabled: false });
await report.check("without JavaScript", without, plain);
await plain.close();
report.end(`reports in Chromium ${version}`.trim());
