"use strict";
(() => {
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const root = document.documentElement;

  // The theme: the system's, until the button says otherwise.
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const show = () => { button.firstElementChild.textContent = isDark() ? "light" : "dark"; };
  try { root.dataset.theme = localStorage.getItem("pitc-theme") || ""; } catch { /* no storage for this file */ }
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("pitc-theme", root.dataset.theme); } catch { /* it lasts until the page is closed */ }
    show();
  });
  system.addEventListener("change", show);
  show();

  // Tables of nodes: search, kinds, shape plumbing, order.
  for (const section of all("section.nodes")) {
    const form = section.querySelector(".filters"), search = form.querySelector("input[type=search]");
    const box = form.querySelector("input[type=checkbox]"), count = form.querySelector("output");
    const chips = all("button", form), body = section.querySelector("tbody"), rows = [...body.rows];
    const texts = rows.map((row) => row.textContent.toLowerCase() + " " + all("[title]", row).map((e) => e.title.toLowerCase()).join(" "));
    const drawing = section.parentElement.querySelector(`#drawing-${section.querySelector("h2").id.slice(6)}`);
    const boxes = drawing ? all(".box", drawing).map((e) => [e, e.dataset.nodes.split(" ").map(Number)]) : [];
    const places = new Map(rows.map((row) => [Number(row.dataset.place), row]));
    const filter = () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      const kinds = chips.filter((c) => c.getAttribute("aria-pressed") === "true").map((c) => c.dataset.kind);
      const open = words.length > 0 || kinds.length > 0;
      let shown = 0;
      rows.forEach((row, i) => {
        const fits = words.every((word) => texts[i].includes(word)) && (!kinds.length || kinds.includes(row.dataset.kind));
        row.hidden = !fits || (!words.length && box !== null && !box.checked && "plumbing" in row.dataset);
        row.dataset.fits = fits ? "1" : "";
        shown += !row.hidden;
      });
      count.textContent = `${shown} of ${rows.length} nodes`;
      section.querySelector(".none").hidden = shown > 0;
      if (drawing) drawing.ownerSVGElement.classList.toggle("search", open);
      for (const [e, nodes] of boxes) e.classList.toggle("found", open && nodes.some((n) => places.get(n).dataset.fits));
    };
    form.hidden = false;
    form.addEventListener("submit", (event) => event.preventDefault());
    search.addEventListener("input", filter);
    if (box) box.addEventListener("change", filter);
    for (const chip of chips) chip.addEventListener("click", () => {
      chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") !== "true"));
      filter();
    });
    for (const head of all("th[data-sort]", section)) {
      const key = head.dataset.sort, name = document.createElement("button");
      name.type = "button";
      name.append(...head.childNodes);
      head.append(name);
      name.addEventListener("click", () => {
        const up = head.hasAttribute("aria-sort") ? head.getAttribute("aria-sort") !== "ascending" : key === "place" || key === "live";
        for (const other of all("th[aria-sort]", section)) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const value = (row) => key in row.dataset ? Number(row.dataset[key]) : up ? Infinity : -Infinity;
        body.append(...rows.slice().sort((a, b) => (value(a) - value(b) || 0) * (up ? 1 : -1) || a.dataset.place - b.dataset.place));
      });
    }
    // A row that a link leads to is shown, whatever the filter says.
    const reveal = () => {
      const row = document.getElementById(decodeURIComponent(location.hash.slice(1)));
      if (row && row.hidden && body.contains(row)) { row.hidden = false; row.scrollIntoView({ block: "center" }); }
    };
    addEventListener("hashchange", reveal);
    filter();
    reveal();
  }

  // Drawings: what a box is, and a map of a long one.
  for (const graph of all(".graph")) {
    const frame = graph.querySelector(".frame"), map = graph.querySelector(".map"), told = graph.querySelector(".hover");
    const tell = (event) => {
      const box = event.target.closest && event.target.closest(".box");
      if (!box) return;
      const [first, ...rest] = box.querySelector("title").textContent.split("\n");
      const bold = document.createElement("b");
      bold.textContent = first;
      told.replaceChildren(bold, ...rest.flatMap((line) => [document.createElement("br"), line]));
    };
    frame.addEventListener("pointerover", tell);
    frame.addEventListener("focusin", tell);
    const mark = map.querySelector("span"), svg = frame.querySelector("svg");
    const height = () => Math.min(map.clientHeight, map.clientWidth * svg.height.baseVal.value / svg.width.baseVal.value);
    const move = () => {
      const part = height() / frame.scrollHeight;
      mark.style.top = `${frame.scrollTop * part}px`;
      mark.style.height = `${frame.clientHeight * part}px`;
    };
    map.hidden = frame.scrollHeight < 2 * frame.clientHeight;
    frame.addEventListener("scroll", move, { passive: true });
    addEventListener("resize", move);
    const jump = (event) => {
      if (event.type === "pointermove" && !event.buttons) return;
      const place = (event.clientY - map.getBoundingClientRect().top) / height();
      frame.scrollTop = place * frame.scrollHeight - frame.clientHeight / 2;
    };
    map.addEventListener("pointerdown", jump);
    map.addEventListener("pointermove", jump);
    frame.scrollLeft = (frame.scrollWidth - frame.clientWidth) / 2;
    move();
  }
})();
