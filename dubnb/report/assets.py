"""The style and the script of report pages: inlined, so that a page is one file and asks the network for nothing."""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #f6f7f9; --card: #ffffff; --ink: #1a2230; --soft: #5c6879; --line: #dfe4ea; --accent: #0b5fc7;
  --tint: 11, 95, 199; --warn: #8a5300; --warn-back: #fff5e0; --warn-line: #e5a93d; --stop: #b3161b;
  --base: #d55e00; --unif: #7b8794; --combine: #b98a00; --ips: #2f8f46; --cause: #c2549a; --bridge: #0d8fa3;
  --autodebias: #7a4fc0; --dub: #0b5fc7; --grid: #e4e8ed;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #10151c; --card: #171e28; --ink: #e6ebf2; --soft: #98a5b6; --line: #2a3442; --accent: #6cb0ff;
    --tint: 108, 176, 255; --warn: #ffcf7d; --warn-back: #2b2212; --warn-line: #a77722; --stop: #d9363b;
    --base: #ff8c4a; --unif: #a4b0bd; --combine: #f2c14e; --ips: #69cf84; --cause: #f092cd; --bridge: #45cfe2;
    --autodebias: #b794f6; --dub: #6cb0ff; --grid: #263040;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink); line-height: 1.55; overflow-wrap: break-word;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif;
}
main { max-width: 70rem; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
body::before { content: ""; display: block; height: 6px; background: var(--accent); }
header.top { padding: 1.4rem 0 .4rem; }
.kicker { color: var(--accent); font-weight: 650; font-size: .85rem; letter-spacing: .06em; text-transform: uppercase; }
h1 { font-size: clamp(1.6rem, 4.5vw, 2.4rem); line-height: 1.15; margin: .25rem 0 .5rem; letter-spacing: -.015em; }
h2 { font-size: 1.3rem; margin: 2.8rem 0 .7rem; letter-spacing: -.01em; }
h3 { font-size: 1rem; margin: 0 0 .6rem; }
p { margin: .5rem 0; max-width: 48rem; }
.question { color: var(--soft); font-size: 1.05rem; max-width: none; }
.answer {
  background: var(--card); border: 1px solid var(--line); border-left: 6px solid var(--accent); border-radius: 10px;
  padding: 1rem 1.25rem; margin: 1.3rem 0; font-size: clamp(1.05rem, 2.6vw, 1.22rem); line-height: 1.5;
}
.answer p { max-width: none; margin: 0; }
.answer p + p { margin-top: .5rem; }
.answer b.label {
  display: block; font-size: .78rem; color: var(--soft); letter-spacing: .06em; text-transform: uppercase;
}
.unfinished {
  background: var(--stop); color: #fff; border-radius: 10px; padding: 1.2rem 1.4rem; margin: 1.4rem 0;
}
.unfinished strong { display: block; font-size: clamp(2.2rem, 9vw, 4rem); line-height: 1; letter-spacing: .02em; }
.unfinished p { margin: .6rem 0 0; font-size: 1.05rem; max-width: none; }
a { color: var(--accent); }
.state { color: var(--accent); font-size: 1.6rem; line-height: 1.1; letter-spacing: .02em; }
article p { max-width: none; }
.state.stop { color: var(--stop); }
.facts {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(13.5rem, 1fr)); gap: .7rem;
  margin: 1.2rem 0; padding: 0;
}
.facts div { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .65rem .9rem; }
.facts dt { color: var(--soft); font-size: .78rem; letter-spacing: .04em; text-transform: uppercase; }
.facts dd { margin: .1rem 0 0; font-size: .95rem; line-height: 1.45; }
.warnings {
  background: var(--warn-back); border: 1px solid var(--warn-line); color: var(--warn); border-radius: 10px;
  padding: .7rem 1.1rem; margin: 1.2rem 0; font-size: .95rem;
}
.warnings summary { font-weight: 650; cursor: pointer; }
.warnings ul { margin: .3rem 0; padding-left: 1.1rem; }
.part {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1rem 1.1rem; margin: 1rem 0;
}
.scroll { overflow-x: auto; }
table {
  border-collapse: separate; border-spacing: 0; width: 100%; font-size: .93rem; font-variant-numeric: tabular-nums;
}
th, td { padding: .42rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
table.wide { font-size: .84rem; }
.wide td, .wide th button { padding-left: .3rem; padding-right: .3rem; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--card); z-index: 1; }
td.long:first-child { min-width: 9rem; white-space: normal; overflow-wrap: anywhere; }
td.text, th.text { text-align: left; }
td.long:not(:first-child) { white-space: normal; min-width: 16rem; }
tbody tr:last-child td { border-bottom: 0; }
tbody tr:hover td { box-shadow: inset 0 0 0 99px rgba(var(--tint), .06); }
thead th { border-bottom: 2px solid var(--line); padding: 0; vertical-align: bottom; white-space: normal; }
th button {
  all: unset; box-sizing: border-box; width: 100%; cursor: pointer; padding: .42rem .6rem; font-weight: 650;
  color: var(--soft);
}
th button:hover { color: var(--accent); }
th button:focus-visible {
  outline: 2px solid var(--accent); outline-offset: -2px; border-radius: 6px; color: var(--accent);
}
th button::after { content: "\\2195"; opacity: .35; margin-left: .35em; font-size: .8em; }
th[aria-sort=ascending] button::after { content: "\\2191"; opacity: 1; }
th[aria-sort=descending] button::after { content: "\\2193"; opacity: 1; }
th[aria-sort=ascending] button, th[aria-sort=descending] button { color: var(--accent); }
td.best { font-weight: 750; color: var(--accent); }
td[data-heat] { background: rgba(var(--tint), calc(var(--heat) * .2)); }
td small { color: var(--soft); font-weight: 400; font-size: .78em; display: block; line-height: 1.2; }
.dot {
  display: inline-block; width: .62em; height: .62em; border-radius: 50%; margin-right: .5em; background: var(--soft);
}
.note, figcaption { color: var(--soft); font-size: .88rem; margin: .7rem 0 0; max-width: 52rem; }
.gallery { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); gap: 1rem; }
.gallery .part { margin: 0; }
figure { margin: 0; }
figure svg { display: block; width: 100%; height: auto; max-width: 33rem; margin: 0 auto; }
pre {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .8rem 1rem;
  white-space: pre-wrap; overflow-wrap: anywhere;
  font: .88rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
}
footer {
  color: var(--soft); font-size: .88rem; margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1rem;
}
@media (max-width: 40rem) {
  main { padding: .5rem .8rem 3rem; }
  .part { padding: .8rem .7rem; }
  table { font-size: .86rem; }
  th button, th, td { padding-left: .45rem; padding-right: .45rem; }
}
@media print {
  :root {
    --paper: #fff; --card: #fff; --ink: #000; --soft: #444; --line: #bbb; --grid: #ddd; --accent: #0b5fc7;
    --base: #d55e00; --unif: #7b8794; --combine: #b98a00; --ips: #2f8f46; --cause: #c2549a; --bridge: #0d8fa3;
    --autodebias: #7a4fc0; --dub: #0b5fc7; --warn: #000; --warn-back: #fff; --stop: #b3161b; color-scheme: light;
  }
  body { font-size: 10.5pt; }
  main { max-width: none; padding: 0; }
  .part, .answer, figure { break-inside: avoid; }
  h2 { break-after: avoid; }
  .scroll { overflow: visible; }
  table.wide { font-size: 7pt; }
  th button::after { content: ""; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
}
"""

SCRIPT = """
"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const numeric = !head.classList.contains("text");
      const first = numeric ? "descending" : "ascending";
      const now = head.getAttribute("aria-sort");
      const next = now === first ? (first === "ascending" ? "descending" : "ascending") : first;
      const sign = next === "ascending" ? 1 : -1;
      const read = (row) => row.cells[column].dataset.value ?? "";
      const compare = (one, other) => {
        const a = read(one), b = read(other);
        if (a === "" || b === "") return (a === "") - (b === "");
        return sign * (numeric ? Number(a) - Number(b) : a.localeCompare(b, "en"));
      };
      heads.forEach((each) => each.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", next);
      body.append(...[...body.rows].sort(compare));
    });
  });
}
"""
