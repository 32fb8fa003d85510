// Behind the script of a report's page: measures it as it stands, uses it, tells what it found.
"use strict";
(async () => {
  const all = (s, from = document) => [...from.querySelectorAll(s)];
  const wait = () => new Promise((done) => setTimeout(done, 60));
  const seen = (e) => e.getClientRects().length > 0;
  const out = { width: innerWidth, scrolls: document.documentElement.scrollWidth };

  const names = "h1,h2,h3,p,dt,dd,li,th,td,label,button,summary,output,a,b,small,code,span";
  const texts = all(names).filter(seen);
  const clips = (e) => e.textContent.trim() && getComputedStyle(e).display !== "inline"
    && !e.closest(".frame, .map, nav") && e.scrollWidth > e.clientWidth + 1;
  out.clipped = texts.filter(clips).map((e) => `${e.className}: ${e.textContent.trim()}`);

  // A word lies on one line: no text between two places to break has two heights.
  out.broken = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode()) && out.broken.length < 9;) {
    if (node.parentElement.closest("script, style, svg, [hidden]") || !seen(node.parentElement)) continue;
    for (const found of node.data.matchAll(/\S+/g)) {
      const range = document.createRange();
      range.setStart(node, found.index);
      range.setEnd(node, found.index + found[0].length);
      if (new Set([...range.getClientRects()].map((r) => Math.round(r.top))).size > 1) out.broken.push(found[0]);
    }
  }

  const number = (text) => { const n = text.match(/[\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
  const light = ([r, g, b]) => [r, g, b].map((x) => x / 255).map((x) => x <= .04045 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4)
    .reduce((sum, x, i) => sum + x * [.2126, .7152, .0722][i], 0);
  const ground = (e) => {
    for (; e; e = e.parentElement) { const c = number(getComputedStyle(e).backgroundColor); if (c[3] === 1) return c; }
    return [255, 255, 255, 1];
  };
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + .05) / (y + .05); };
  const own = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  const pairs = texts.filter(own).map((e) => [e, number(getComputedStyle(e).color), ground(e)]);
  for (const e of all(".drawing text")) {
    const under = e.closest(".box").querySelector(e.classList.contains("glyph") ? ".side" : ".back");
    pairs.push([e, number(getComputedStyle(e).fill), number(getComputedStyle(under).fill)]);
  }
  const contrasts = pairs.map(([e, a, b]) => [ratio(a, b), e.className.baseVal ?? e.className, e.textContent.trim().slice(0, 40)]);
  out.contrast = contrasts.sort((a, b) => a[0] - b[0])[0];
  out.ground = light(ground(document.body));

  const section = document.querySelector("section.nodes"), rows = all("tbody tr", section);
  const shown = () => rows.filter(seen).length;
  const search = section.querySelector("input[type=search]");
  const say = (text) => { search.value = text; search.dispatchEvent(new Event("input")); };
  out.rows = rows.length;
  out.shown = shown();
  say("Q/matmul LAYER.1");
  out.found = rows.filter(seen).map((row) => row.querySelector("[title]").title);
  out.boxes = all(".drawing .box.found").length;
  out.count = section.querySelector("output").textContent;
  say("no such node");
  out.none = shown() === 0 && seen(section.querySelector(".none"));
  say("");
  const chip = section.querySelector("button[data-kind=packed]");
  chip.click();
  out.packed = rows.filter(seen).map((row) => row.dataset.kind);
  chip.click();
  const plumbing = section.querySelector("input[type=checkbox]");
  if (plumbing) { plumbing.click(); out.all = shown(); plumbing.click(); }
  out.again = shown();
  const head = section.querySelector("th[data-sort=work] button");
  if (head) {
    head.click();
    out.sorted = [...section.querySelector("tbody").rows].map((row) => Number(row.dataset.work || -1));
  }
  const hidden = rows.find((row) => "plumbing" in row.dataset);
  if (hidden) { location.hash = hidden.id; await wait(); out.revealed = seen(hidden); }

  const box = document.querySelector(".box");
  box.dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
  out.hover = document.querySelector(".hover").textContent;
  box.focus();
  out.focused = document.activeElement === box;
  document.getElementById("theme").click();
  out.toggled = light(ground(document.body));
  await wait();
  out.wrong = wrong;
  out.fetched = performance.getEntriesByType("resource").map((e) => e.name);
  parent.postMessage(JSON.stringify(out), "*");
})();
