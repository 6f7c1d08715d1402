"use strict";
// Draws the figures of a report from the data in the page. Texts are only ever
// set as text. Each figure is redrawn when the runs shown or its width change.
(() => {
  const runs = JSON.parse(document.getElementById("data").textContent).runs;
  const byId = (id) => document.getElementById(id);
  byId("unscripted").hidden = true;
  if (runs.length === 0) return;
  const SVG = "http://www.w3.org/2000/svg";

  // node makes an element; attributes that are null are left out.
  function node(space, name, attributes, ...children) {
    const e = space ? document.createElementNS(space, name) : document.createElement(name);
    for (const [k, v] of Object.entries(attributes || {})) if (v !== null && v !== undefined) e.setAttribute(k, v);
    e.append(...children);
    return e;
  }
  const html = (name, attributes, ...children) => node(null, name, attributes, ...children);
  const svg = (name, attributes, ...children) => node(SVG, name, attributes, ...children);

  // ---- numbers

  const grouped = (v, decimals) => v.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
  function short(v) {
    const a = Math.abs(v);
    return grouped(v, a === 0 || a >= 99.95 ? 0 : a >= 9.995 ? 1 : a >= 0.9995 ? 2 : 3);
  }
  const percent = (share) => grouped(100 * share, Math.abs(share) < 0.0995 && share !== 0 ? 2 : 1) + " %";
  const time = (ms) => (ms >= 1000 ? short(ms / 1000) + " s" : ms >= 0.1 || ms === 0 ? short(ms) + " ms" : short(1000 * ms) + " µs");
  const tickTime = (ms) => (ms >= 1000 ? ms / 1000 + " s" : ms >= 1 ? ms + " ms" : Number((1000 * ms).toPrecision(3)) + " µs");
  function clock(s, most) {
    if (most >= 2 * 3600) return Number((s / 3600).toFixed(2)) + " h";
    if (most >= 180) return Number((s / 60).toFixed(2)) + " min";
    return Number(s.toPrecision(4)) + " s";
  }
  const compact = (v) => (v >= 1e9 ? Number((v / 1e9).toPrecision(3)) + " G" : v >= 1e6 ? Number((v / 1e6).toPrecision(3)) + " M" : v >= 1e4 ? Number((v / 1e3).toPrecision(3)) + " k" : String(Number(v.toPrecision(4))));

  // fit cuts a text to what room, in pixels, has place for.
  const pen = document.createElement("canvas").getContext("2d");
  function fit(text, room, font) {
    pen.font = `${font} ${getComputedStyle(document.body).fontFamily}`;
    if (pen.measureText(text).width <= room) return text;
    let n = text.length;
    while (n > 1 && pen.measureText(text.slice(0, n) + "…").width > room) n--;
    return text.slice(0, n) + "…";
  }

  // ---- what a run looks like: where policies and sizes of clusters can tell the
  // runs apart, the policy is the colour and the size of the cluster the dashes

  const hues = 8;
  const dashes = [null, "6 3", "2 3", "9 3 2 3", "13 4"];
  const distinct = (of) => [...new Set(runs.map(of))];
  const policies = distinct((r) => r.policy);
  const sizes = distinct((r) => r.size);
  const told = policies.length <= hues && sizes.length <= dashes.length && distinct((r) => r.size + "\n" + r.policy).length === runs.length;
  runs.forEach((r, i) => {
    r.color = `var(--c${told ? policies.indexOf(r.policy) : i % hues})`;
    r.dash = dashes[told ? sizes.indexOf(r.size) : Math.floor(i / hues) % dashes.length];
    r.name = r.policy + (r.size && (sizes.length > 1 || policies.length < runs.length) ? ` · ${r.size}` : "");
    r.full = r.policy + (r.size ? `, ${r.size}` : "");
  });

  // ---- which runs are shown

  const most = 8;
  const first = runs.filter((r) => r.size === sizes[0]);
  const initial = runs.length <= most ? runs : first.length <= most ? first : runs.slice(0, most);
  let shown = new Set(initial);
  const visible = () => runs.filter((r) => shown.has(r));

  function legend() {
    if (runs.length < 2) return;
    const nav = byId("legend");
    const [box, status, presets] = [nav.querySelector("div"), nav.querySelector("span"), nav.querySelector("p")];
    const update = () => {
      for (const r of runs) r.button.setAttribute("aria-pressed", shown.has(r));
      status.textContent = `${shown.size} of ${runs.length} runs are drawn; press a name to show or hide it. `;
      draw();
    };
    for (const r of runs) {
      const swatch = svg("svg", { viewBox: "0 0 24 10", "aria-hidden": "true" }, svg("path", { d: "M0 5H24", stroke: r.color, "stroke-width": 3, "stroke-dasharray": r.dash }));
      r.button = html("button", { type: "button", class: "run", title: r.full }, swatch, html("span", {}, r.name));
      r.button.addEventListener("click", () => {
        shown.has(r) ? shown.delete(r) : shown.add(r);
        update();
      });
      box.append(r.button);
    }
    const set = (name, of) => {
      const b = html("button", { type: "button", class: "many" }, name);
      b.addEventListener("click", () => {
        shown = new Set(of);
        update();
      });
      presets.append(b);
    };
    set("all", runs);
    set("none", []);
    if (sizes.length > 1 && sizes.length <= 12) for (const n of sizes) set(n || "size not known", runs.filter((r) => r.size === n));
    nav.hidden = false;
    update();
  }

  // ---- scales

  const log10 = Math.log10;
  // logScale has as many ticks as room, in pixels, has place for.
  function logScale(lo, hi, room) {
    const among = (steps) => {
      const found = [];
      for (let e = Math.floor(log10(lo)); e <= Math.ceil(log10(hi)); e++)
        for (const s of steps) {
          const v = Number((s * 10 ** e).toPrecision(3));
          if (v >= lo * 0.999 && v <= hi * 1.001) found.push(v);
        }
      return found;
    };
    const ticks = [[1, 2, 5], [1, 3], [1]].map(among).find((t) => t.length * 54 <= room) || [];
    return { at: (v) => (log10(v) - log10(lo)) / (log10(hi) - log10(lo)), back: (f) => lo * (hi / lo) ** f, ticks };
  }
  function linearScale(hi, steps, wanted) {
    const step = steps || niceStep(hi / (wanted || 4));
    const top = steps ? hi : Math.max(step, Math.ceil(hi / step - 1e-9) * step);
    const ticks = [];
    for (let i = 0; i * step <= top * 1.0001; i++) ticks.push(Number((i * step).toPrecision(12)));
    return { at: (v) => v / top, back: (f) => f * top, ticks };
  }
  function niceStep(v) {
    if (!(v > 0)) return 1;
    const e = 10 ** Math.floor(log10(v));
    return [1, 2, 2.5, 5, 10].map((s) => s * e).find((s) => s >= v * 0.9999) || 10 * e;
  }
  const timeSteps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
  function timeScale(hi, room) {
    const few = Math.max(2, Math.min(9, Math.floor(room / 64)));
    const step = hi > 6 ? timeSteps.find((s) => hi / s <= few) : 0;
    return linearScale(hi, step || niceStep(hi / few));
  }

  // ---- figures

  const figures = [];
  // figure registers a figure; draw(width) returns {svg, text, tip} or a text that
  // says why there is nothing to see.
  function figure(id, draw) {
    const host = byId(id);
    const plot = html("div", { class: "plot" });
    const text = html("p", { class: "unseen", id: id + "-text" });
    host.append(plot, text);
    figures.push({ host, plot, text, draw, width: 0 });
  }
  function drawOne(f) {
    const width = Math.max(240, Math.round(f.plot.clientWidth || 560));
    f.width = width;
    const drawn = f.draw(width);
    if (typeof drawn === "string") {
      f.plot.replaceChildren(html("p", { class: "nothing" }, drawn));
      f.text.textContent = "";
      return;
    }
    f.text.textContent = drawn.text;
    const label = f.host.querySelector("figcaption").textContent;
    drawn.svg.setAttribute("role", "img");
    const section = f.host.closest("section").querySelector("h2").textContent;
    drawn.svg.setAttribute("aria-label", label.startsWith(section) ? label : `${section}: ${label}`);
    drawn.svg.setAttribute("aria-describedby", f.text.id);
    f.plot.replaceChildren(drawn.svg);
    if (drawn.tip) hover(f.plot, drawn);
  }
  const draw = () => figures.forEach(drawOne);

  // hover shows values at the pointer, or at the place that the arrow keys choose.
  function hover(plot, drawn) {
    const { svg: picture, area, tip } = drawn;
    const rule = svg("path", { class: "rule" });
    const box = html("div", { class: "tip" });
    box.hidden = true;
    picture.append(rule);
    plot.append(box);
    picture.setAttribute("tabindex", "0");
    let at = 0.5;
    const hide = () => {
      box.hidden = true;
      rule.removeAttribute("d");
    };
    const show = (x, y) => {
      const said = tip(x, y);
      if (!said) return hide();
      box.replaceChildren(html("b", {}, said.head));
      for (const [run, value] of said.lines.slice(0, 10)) {
        const name = html("span", {});
        if (run.color) {
          const key = html("i", { class: "key" });
          key.style.background = run.color;
          name.append(key);
        }
        name.append(run.name);
        box.append(html("div", {}, name, html("span", {}, value)));
      }
      if (said.lines.length > 10) box.append(html("div", {}, html("span", {}, `and ${said.lines.length - 10} more`)));
      rule.setAttribute("d", said.rule === undefined ? "" : `M${said.rule} ${said.top ?? area.top}V${said.bottom ?? area.bottom}`);
      box.hidden = false;
      const scale = plot.clientWidth / drawn.width;
      const place = (said.rule ?? x) * scale;
      const left = place + 14 + box.offsetWidth > plot.clientWidth ? place - 14 - box.offsetWidth : place + 14;
      box.style.left = `${Math.max(0, Math.min(left, plot.clientWidth - box.offsetWidth))}px`;
      box.style.top = `${Math.max(0, (y ?? (area.top + area.bottom) / 2) * scale - box.offsetHeight / 2)}px`;
      return said;
    };
    picture.addEventListener("pointermove", (e) => {
      const r = picture.getBoundingClientRect();
      const k = drawn.width / r.width;
      show((e.clientX - r.left) * k, (e.clientY - r.top) * k);
    });
    picture.addEventListener("pointerleave", hide);
    picture.addEventListener("blur", hide);
    picture.addEventListener("keydown", (e) => {
      const step = { ArrowLeft: -0.01, ArrowRight: 0.01, PageUp: -0.1, PageDown: 0.1, Home: -1, End: 1 }[e.key];
      if (e.key === "Escape") return hide();
      if (!step) return;
      e.preventDefault();
      at = Math.min(1, Math.max(0, at + step));
      const said = drawn.keys ? show(...drawn.keys(at)) : show(area.left + at * (area.right - area.left));
      if (said) byId("live").textContent = [said.head, ...said.lines.map(([r, v]) => `${r.name} ${v}`)].join("; ");
    });
  }

  // axes draws what a plot of lines stands on.
  function axes(width, height, x, y, formatX, formatY, small) {
    const area = { left: 52, right: width - 14, top: 10, bottom: height - 26 };
    const sx = (v) => area.left + x.at(v) * (area.right - area.left);
    const sy = (v) => area.bottom - y.at(v) * (area.bottom - area.top);
    const s = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
    for (const t of y.ticks) {
      s.append(svg("path", { class: "grid", d: `M${area.left} ${sy(t).toFixed(1)}H${area.right}` }));
      s.append(svg("text", { x: area.left - 8, y: sy(t) + 4, "text-anchor": "end" }, formatY(t)));
    }
    let last = -Infinity;
    for (const t of x.ticks) {
      const label = formatX(t);
      const half = label.length * 3.4; // about
      const px = Math.min(sx(t), width - half - 1);
      s.append(svg("path", { class: "grid", d: `M${sx(t).toFixed(1)} ${area.top}V${area.bottom + 4}` }));
      if (px - half < last + 8) continue;
      s.append(svg("text", { x: px, y: area.bottom + 18, "text-anchor": "middle" }, label));
      last = px + half;
    }
    s.append(svg("path", { class: "axis", d: `M${area.left} ${area.bottom}H${area.right}` }));
    return { s, area, sx, sy, backX: (px) => x.back((px - area.left) / (area.right - area.left)) };
  }
  const line = (run, d, name) => svg("path", { class: name, d, stroke: run.color, "stroke-dasharray": run.dash, "data-run": runs.indexOf(run) });

  // ---- distributions

  const eighth = 2 ** (1 / 8); // how bounds grow where there is one bar only
  function bars(h) {
    const up = h.upper;
    const growth = up.length > 1 && up[0] > 0 ? up[1] / up[0] : eighth;
    let total = 0;
    for (const c of h.count) total += c;
    let sum = 0;
    return up
      .map((upper, i) => {
        sum += h.count[i];
        const lower = i > 0 ? up[i - 1] : upper / growth;
        return { lower: Math.max(lower, 1e-4), upper: Math.max(upper, 1.1e-4), count: h.count[i], share: h.count[i] / total, below: sum / total };
      })
      .filter((b, i) => i > 0 || b.count > 0);
  }
  for (const r of runs) for (const q of ["ttft", "itl", "e2e"]) r[q].bars = bars(r[q]);

  // within returns the times between which the axis goes: those of all runs, so that
  // it stays when one is hidden. Far tails of less than one in ten thousand are cut.
  function within(quantity) {
    let lo = Infinity;
    let hi = 0;
    for (const r of runs) {
      const b = r[quantity].bars;
      if (b.length === 0) continue;
      lo = Math.min(lo, (b.find((x) => x.below >= 0.0001) || b[0]).lower);
      hi = Math.max(hi, (b.find((x) => x.below >= 0.9999) || b[b.length - 1]).upper);
    }
    return hi > 0 ? [lo / 1.05, hi * 1.05] : null;
  }
  const quantile = (b, q) => (b.find((x) => x.below >= q - 1e-12) || b[b.length - 1]).upper;
  const noRuns = "No run is chosen. Choose some above.";

  function distribution(quantity, cumulative) {
    const range = within(quantity);
    return (width) => {
      const some = visible().filter((r) => r[quantity].bars.length > 0);
      if (!range) return "Nothing was measured.";
      if (some.length === 0) return shown.size ? "Nothing was measured of the chosen runs." : noRuns;
      const x = logScale(...range, width - 66);
      const top = Math.max(...some.map((r) => Math.max(...r[quantity].bars.map((b) => b.share))));
      const y = cumulative ? { at: (v) => v, ticks: [0, 0.25, 0.5, 0.75, 0.9, 1] } : linearScale(top);
      const p = axes(width, 250, x, y, tickTime, (v) => Number((100 * v).toPrecision(3)) + " %");
      const clampX = (v) => Math.min(p.area.right, Math.max(p.area.left, p.sx(v))).toFixed(1);
      for (const r of some) {
        const b = r[quantity].bars;
        let d = `M${clampX(b[0].lower)} ${p.sy(0).toFixed(1)}`;
        for (const bar of b) d += cumulative ? `L${clampX(bar.upper)} ${p.sy(bar.below).toFixed(1)}` : `V${p.sy(bar.share).toFixed(1)}H${clampX(bar.upper)}`;
        d += cumulative ? `H${p.area.right}` : `V${p.sy(0).toFixed(1)}`;
        if (!cumulative && some.length <= 3) p.s.append(svg("path", { class: "area", d, fill: r.color }));
        p.s.append(line(r, d, some.length > 12 ? "mark thin" : "mark"));
      }
      const text = some.map((r) => `${r.full}: half within ${time(quantile(r[quantity].bars, 0.5))}, 99 of 100 within ${time(quantile(r[quantity].bars, 0.99))}`).join("; ");
      const tip = (px) => {
        if (px < p.area.left - 6 || px > p.area.right + 6) return null;
        const v = p.backX(px);
        const lines = some.map((r) => {
          const b = r[quantity].bars;
          const i = b.findIndex((bar) => bar.upper >= v);
          if (cumulative) {
            if (i < 0) return [r, "100 %"];
            const f = v <= b[i].lower ? 0 : Math.log(v / b[i].lower) / Math.log(b[i].upper / b[i].lower);
            return [r, percent((i > 0 ? b[i - 1].below : 0) + f * b[i].share)];
          }
          const bar = i >= 0 && b[i].lower <= v ? b[i] : null;
          return [r, bar ? `${percent(bar.share)} (${grouped(bar.count, 0)})` : "0"];
        });
        const b = some[0][quantity].bars.find((bar) => bar.upper >= v && bar.lower <= v);
        return { head: cumulative ? `within ${time(v)}` : b ? `${time(b.lower)} to ${time(b.upper)}` : time(v), lines, rule: px.toFixed(1) };
      };
      return { svg: p.s, area: p.area, width, text, tip };
    };
  }
  for (const q of ["ttft", "itl", "e2e"]) {
    figure(`${q}-histogram`, distribution(q, false));
    figure(`${q}-cdf`, distribution(q, true));
  }

  // ---- timelines

  const points = (r) => r.time.sent.length;
  const longest = Math.max(...runs.map((r) => points(r) * r.step), 0);
  // timeline draws value(run, i), null where there is none, over the steps of each run.
  function timeline(value, { logarithmic, top, format, tick, nothing }) {
    const all = runs.map((r) => Array.from({ length: points(r) }, (_, i) => value(r, i)));
    const values = all.flat().filter((v) => v !== null);
    return (width) => {
      if (!(longest > 0) || values.length === 0) return "Nothing was measured.";
      if (nothing && values.every((v) => v === 0)) return nothing;
      const some = visible().filter((r) => all[runs.indexOf(r)].some((v) => v !== null));
      if (some.length === 0) return shown.size ? "Nothing was measured of the chosen runs." : noRuns;
      const x = timeScale(longest, width - 66);
      let y;
      if (logarithmic) {
        const positive = values.filter((v) => v > 0);
        if (positive.length === 0) return "Nothing was measured.";
        const [lo, hi] = positive.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, 0]);
        y = logScale(lo / 1.15, Math.max(hi, lo * 1.5) * 1.15, 400);
      } else y = top ? { at: (v) => v / top, ticks: [0, 0.25, 0.5, 0.75, 1].map((f) => f * top) } : linearScale(Math.max(...some.flatMap((r) => all[runs.indexOf(r)]).map((v) => v || 0)) || 1);
      const p = axes(width, 176, x, y, (s) => clock(s, longest), tick);
      for (const r of some) {
        let d = "";
        let open = false;
        const lone = [];
        all[runs.indexOf(r)].forEach((v, i, series) => {
          const good = v !== null && (!logarithmic || v > 0);
          if (good) {
            const [px, py] = [p.sx((i + 0.5) * r.step).toFixed(1), p.sy(v).toFixed(1)];
            d += `${open ? "L" : "M"}${px} ${py}`;
            const next = series[i + 1];
            if (!open && (next === undefined || next === null)) lone.push([px, py]);
          }
          open = good;
        });
        p.s.append(line(r, d, some.length > 12 || points(r) > 200 ? "mark thin" : "mark"));
        for (const [cx, cy] of lone) p.s.append(svg("circle", { class: "lone", cx, cy, r: 2.2, fill: r.color }));
      }
      const text = some
        .map((r) => {
          const v = all[runs.indexOf(r)].filter((x) => x !== null);
          return `${r.full}: from ${format(v.reduce((a, b) => Math.min(a, b)))} to ${format(v.reduce((a, b) => Math.max(a, b)))}`;
        })
        .join("; ");
      const tip = (px) => {
        if (px < p.area.left - 6 || px > p.area.right + 6) return null;
        const s = Math.min(Math.max(p.backX(px), 0), longest);
        const lines = some.map((r) => {
          const v = all[runs.indexOf(r)][Math.floor(s / r.step)];
          return [r, v === null || v === undefined ? "–" : format(v)];
        });
        return { head: `after ${clock(s, longest)}`, lines, rule: px.toFixed(1) };
      };
      return { svg: p.s, area: p.area, width, text, tip };
    };
  }
  const rate = (list) => (r, i) => r.time[list][i] / r.step;
  figure("time-ttft", timeline((r, i) => r.time.ttft[i] || null, { logarithmic: true, format: time, tick: tickTime }));
  figure("time-output", timeline(rate("output"), { format: (v) => `${short(v)} /s`, tick: compact }));
  figure("time-sent", timeline(rate("sent"), { format: (v) => `${short(v)} /s`, tick: compact }));
  figure("time-errors", timeline(rate("errors"), { format: (v) => `${short(v)} /s`, tick: compact, nothing: "No request failed." }));
  figure("time-cached", timeline((r, i) => (r.time.input[i] > 0 ? r.time.cached[i] / r.time.input[i] : null), { top: 1, format: percent, tick: (v) => `${100 * v} %` }));

  // ---- workers: a strip for each run, all on one scale

  let busiest = false;
  byId("busiest").addEventListener("click", (e) => {
    busiest = !busiest;
    e.currentTarget.setAttribute("aria-pressed", busiest);
    figures.filter((f) => f.host.id === "workers").forEach(drawOne);
  });
  const work = (w) => w[2] + w[4];
  if (!runs.some((r) => r.load.length > 1)) byId("busiest").hidden = true;
  figure("workers", (width) => {
    if (!runs.some((r) => r.load.length > 0)) return "It is not known which workers served the requests.";
    const some = visible().filter((r) => r.load.length > 0);
    if (some.length === 0) return shown.size ? "Of the chosen runs it is not known which workers served them." : noRuns;
    const height = 62;
    const gap = 30;
    const area = { left: 52, right: width - 14, top: 0, bottom: some.length * (height + gap) };
    const peak = Math.max(1, ...some.map((r) => Math.max(...r.load.map(work)) / (r.mean || 1)));
    const every = niceStep(peak / 2.5);
    const y = { at: (v) => v / (peak * 1.06), ticks: peak < 2.5 ? [0, 1, 2].filter((t) => t <= peak) : [0, 1, 2].map((k) => k * every) };
    const s = svg("svg", { viewBox: `0 0 ${width} ${area.bottom}`, width, height: area.bottom });
    const strips = some.map((r, k) => {
      const top = k * (height + gap) + 22;
      const bottom = top + height;
      const load = busiest ? r.load.slice().sort((a, b) => work(b) - work(a)) : r.load;
      const sy = (v) => bottom - y.at(v) * height;
      const room = width - area.left - 130;
      const name = fit(r.full, room, "600 12.5px");
      s.append(svg("text", { class: "strong", x: area.left, y: top - 8 }, name));
      if (r.imbalance > 0) s.append(svg("text", { class: "figure", x: area.right, y: top - 8, "text-anchor": "end" }, `imbalance ${grouped(r.imbalance, 2)}`));
      for (const t of y.ticks) {
        s.append(svg("path", { class: "grid", d: `M${area.left} ${sy(t).toFixed(1)}H${area.right}` }));
        s.append(svg("text", { x: area.left - 8, y: sy(t) + 4, "text-anchor": "end" }, `${t} ×`));
      }
      const pitch = (area.right - area.left) / load.length;
      const bar = pitch > 4 ? Math.min(80, pitch - Math.min(8, pitch * 0.25)) : pitch;
      let whole = "";
      let light = "";
      load.forEach((w, i) => {
        const left = area.left + i * pitch + (pitch - bar) / 2;
        const [computed, both] = [sy(w[2] / (r.mean || 1)), sy(work(w) / (r.mean || 1))];
        whole += `M${left.toFixed(2)} ${bottom}V${computed.toFixed(1)}h${bar.toFixed(2)}V${bottom}z`;
        light += `M${left.toFixed(2)} ${computed.toFixed(1)}V${both.toFixed(1)}h${bar.toFixed(2)}V${computed.toFixed(1)}z`;
      });
      s.append(svg("path", { class: "bars", d: whole, fill: r.color, "data-run": runs.indexOf(r) }));
      s.append(svg("path", { class: "bars soft", d: light, fill: r.color }));
      s.append(svg("path", { class: "axis", d: `M${area.left} ${bottom}H${area.right}` }));
      return { r, load, top, bottom, pitch };
    });
    const tip = (px, py) => {
      const strip = strips.find((t) => py >= t.top - 20 && py <= t.bottom + 6);
      const i = strip ? Math.floor((px - area.left) / strip.pitch) : -1;
      const w = strip && strip.load[i];
      if (!w) return null;
      const row = (name, value) => [{ name }, value];
      return {
        head: `worker ${w[0]} · ${strip.r.name}`,
        lines: [
          row("work over the mean", `${grouped(work(w) / (strip.r.mean || 1), 2)} ×`),
          row("requests", grouped(w[1], 0)),
          row("prompt tokens computed", grouped(w[2], 0)),
          row("prompt tokens cached", grouped(w[3], 0)),
          row("tokens generated", grouped(w[4], 0)),
        ],
        rule: (area.left + (i + 0.5) * strip.pitch).toFixed(1),
        top: strip.top,
        bottom: strip.bottom,
      };
    };
    const keys = (at) => {
      const all = strips.flatMap((t) => t.load.map((_, i) => [area.left + (i + 0.5) * t.pitch, (t.top + t.bottom) / 2]));
      return all[Math.min(all.length - 1, Math.floor(at * all.length))];
    };
    const text = some
      .map((r) => `${r.full}: ${grouped(r.load.length + r.left, 0)} workers served requests${r.left ? `, of which the ${grouped(r.load.length, 0)} busiest are drawn` : ""}; the busiest did ${grouped(Math.max(...r.load.map(work)) / (r.mean || 1), 2)} times the mean`)
      .join("; ");
    return { svg: s, area, width, text, tip, keys };
  });

  // ---- cached share beside the ideals

  figure("cached", (width) => {
    const some = visible().filter((r) => r.cached !== null);
    if (!runs.some((r) => r.cached !== null)) return "Nothing was measured.";
    if (some.length === 0) return shown.size ? "Nothing was measured of the chosen runs." : noRuns;
    const narrow = width < 520;
    const pitch = narrow ? 44 : 30;
    const area = { left: narrow ? 4 : Math.min(260, width * 0.3), right: width - (narrow ? 64 : 150), top: 4, bottom: some.length * pitch + 6 };
    const s = svg("svg", { viewBox: `0 0 ${width} ${area.bottom + 24}`, width, height: area.bottom + 24 });
    const sx = (v) => area.left + v * (area.right - area.left);
    for (const t of [0, 0.25, 0.5, 0.75, 1]) {
      s.append(svg("path", { class: "grid", d: `M${sx(t)} ${area.top}V${area.bottom}` }));
      s.append(svg("text", { x: sx(t), y: area.bottom + 16, "text-anchor": narrow && t === 0 ? "start" : "middle" }, `${100 * t} %`));
    }
    some.forEach((r, k) => {
      const y = area.top + k * pitch + (narrow ? 22 : 8);
      const name = fit(r.full, narrow ? width - 12 : area.left - 16, "12px");
      s.append(svg("text", narrow ? { class: "figure", x: area.left, y: y - 6 } : { class: "figure", x: area.left - 12, y: y + 12, "text-anchor": "end" }, name));
      s.append(svg("rect", { class: "track", x: sx(0), y, width: sx(1) - sx(0), height: 15 }));
      s.append(svg("rect", { class: "bar", x: sx(0), y, width: Math.max(1, sx(r.cached) - sx(0)).toFixed(1), height: 15, fill: r.color, "data-run": runs.indexOf(r) }));
      if (r.infinite !== null) s.append(svg("path", { class: "ideal unbounded", d: `M${sx(r.infinite).toFixed(1)} ${y - 3}v21` }));
      if (r.same !== null) s.append(svg("path", { class: "ideal", d: `M${sx(r.same).toFixed(1)} ${y - 3}v21` }));
      const value = percent(r.cached) + (r.same > 0 && !narrow ? ` · ${grouped((100 * r.cached) / r.same, 0)} % of ideal` : "");
      s.append(svg("text", { class: "figure", x: area.right + 8, y: y + 12 }, value));
    });
    const tip = (px, py) => {
      const r = some[Math.floor((py - area.top) / pitch)];
      if (!r) return null;
      const lines = [[r, percent(r.cached)]];
      if (r.same !== null) lines.push([{ name: "one shared cache of that size" }, percent(r.same)]);
      if (r.infinite !== null) lines.push([{ name: "an unbounded cache" }, percent(r.infinite)]);
      if (r.same > 0) lines.push([{ name: "of the ideal of that size" }, percent(r.cached / r.same)]);
      return { head: r.full, lines };
    };
    const keys = (at) => {
      const k = Math.min(some.length - 1, Math.floor(at * some.length));
      return [sx(some[k].cached), area.top + (k + 0.5) * pitch];
    };
    const text = some.map((r) => `${r.full}: ${percent(r.cached)}${r.same !== null ? `, the ideals are ${percent(r.same)} and ${percent(r.infinite)}` : ""}`).join("; ");
    return { svg: s, area, width, text, tip, keys };
  });

  // ---- start

  byId("figures").hidden = false;
  if (runs.every((r) => r.cached === null && points(r) === 0 && r.load.length === 0 && ["ttft", "itl", "e2e"].every((q) => r[q].bars.length === 0))) {
    byId("figures").replaceChildren(html("p", { class: "nothing" }, "There is nothing to draw: no answers, or a result without its distributions."));
    return;
  }
  if (runs.length > 1) legend();
  else draw();
  let pending = false;
  new ResizeObserver(() => {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => {
      pending = false;
      for (const f of figures) if (Math.round(f.plot.clientWidth) !== f.width) drawOne(f);
    });
  }).observe(byId("figures"));
})();
