// SPDX-License-Identifier: BSD-2-Clause
// Draws the map: a row per plane, a cell per T1, coloured by the states of the EVs through it.

import { element, number, replace, sentence } from "./words.js";

// The worst first. A cell shows the mark of its worst state, because colours alone are not readable for everyone.
const WORST = ["ASSUMED_BAD", "DENIED", "UNKNOWN", "SKIP", "GOOD"];
const MARKS = { ASSUMED_BAD: "✕", DENIED: "⊘", UNKNOWN: "?", SKIP: "~", GOOD: "" };
const MEANINGS = {
  GOOD: "carries traffic", SKIP: "left out for a moment", ASSUMED_BAD: "failed", DENIED: "taken out by an administrator",
  UNKNOWN: "not probed yet",
};
const DENSE_T1S = 24;

let shape = "";
let dense = false; // too many T1s for words in the cells
let chosen = null; // the key of the cell that the detail line is about
let cells = new Map(); // key → what the cell shows

export function drawMap(map, planes) {
  const node = document.getElementById("map");
  const wanted = JSON.stringify([map.t1s, map.planes.map((p) => [p.plane, p.without_t1 === null]), planes.map((p) => p.interface)]);
  if (wanted !== shape) {
    shape = wanted;
    build(node, map, planes);
    drawLegend();
  }
  for (const row of map.planes) {
    const plane = planes.find((p) => p.plane === row.plane);
    const name = node.querySelector(`[data-plane="${row.plane}"]`);
    name.classList.toggle("down", plane !== undefined && !plane.up);
    name.querySelector("small").textContent = plane ? `${plane.interface}${plane.up ? "" : " is down"}` : "";
    row.t1s.forEach((counts, t1) => fill(`${row.plane}:${t1}`, counts, map.states));
    if (row.without_t1 !== null) fill(`${row.plane}:`, row.without_t1, map.states);
  }
  drawDetail();
}

function build(node, map, planes) {
  cells = new Map();
  dense = map.t1s > DENSE_T1S;
  node.classList.toggle("dense", dense);
  node.replaceChildren(...map.planes.map((row) => {
    const name = element("div", "name", `Plane ${row.plane}`, element("small", ""));
    name.dataset.plane = row.plane;
    const t1s = element("div", "cells", ...row.t1s.map((_, t1) => cell(row.plane, t1)));
    const others = row.without_t1 === null ? [] : [cell(row.plane, null)];
    return element("div", "row", name, t1s, ...others);
  }));
}

function cell(plane, t1) {
  const key = `${plane}:${t1 ?? ""}`;
  const node = element("button", "cell");
  node.type = "button";
  if (t1 === null) node.classList.add("other");
  for (const event of ["mouseenter", "focus", "click"]) node.addEventListener(event, () => choose(key));
  cells.set(key, { node, plane, t1, counts: null, drawn: "" });
  return node;
}

function fill(key, counts, states) {
  const shown = cells.get(key);
  const text = JSON.stringify(counts);
  if (shown === undefined || shown.drawn === text) return;
  shown.drawn = text;
  shown.counts = counts === null ? {} : Object.fromEntries(states.map((state, i) => [state, counts[i]]).filter(([, n]) => n));
  const present = WORST.filter((state) => shown.counts[state]);
  const total = present.reduce((sum, state) => sum + shown.counts[state], 0);
  shown.node.classList.toggle("none", total === 0);
  shown.node.classList.toggle("mixed", present.length > 1);
  let left = 0;
  const parts = present.map((state) => {
    const part = element("span", `part ${state}`);
    const width = (100 * shown.counts[state]) / total;
    part.style.left = `${left}%`;
    part.style.width = `${width}%`;
    left += width;
    return part;
  });
  const worst = present[0];
  const count = worst === undefined ? "" : number(shown.counts[worst]);
  const words = worst === undefined || worst === "GOOD" ? count : `${MARKS[worst]} ${count}${present.length > 1 && !dense ? `/${number(total)}` : ""}`;
  const mark = element("span", `mark ${worst ?? ""}${worst === "GOOD" ? " plain" : ""}`, words);
  const isBad = worst === "ASSUMED_BAD" && shown.counts[worst] === total;
  const label = element("span", `label${isBad ? " ASSUMED_BAD" : ""}`, shown.t1 === null ? "no T1" : dense ? shown.t1 : `T1 ${shown.t1}`);
  shown.node.replaceChildren(...parts, label, mark);
  shown.node.setAttribute("aria-label", `${place(shown)}: ${list(shown.counts)}`);
}

function place({ plane, t1 }) {
  return t1 === null ? `Plane ${plane}, no T1` : `Plane ${plane}, T1 ${t1}`;
}

function list(counts) {
  const found = WORST.filter((state) => counts[state]).map((state) => `${number(counts[state])} ${state}`);
  return found.length ? found.join(", ") : "no EV";
}

function choose(key) {
  cells.get(chosen)?.node.classList.remove("chosen");
  chosen = key;
  cells.get(key)?.node.classList.add("chosen");
  drawDetail();
}

function drawDetail() {
  const shown = cells.get(chosen);
  if (shown === undefined || shown.counts === null) return;
  const isBad = WORST.slice(0, -1).some((state) => shown.counts[state]);
  const target = shown.t1 === null ? "" : ` (\`t1:${shown.plane}:${shown.t1}\`)`;
  const command = isBad ? `. \`mrcctl paths --plane ${shown.plane} --bad\` lists them` : "";
  replace(document.getElementById("cell"), sentence(`${place(shown)}${target}: ${list(shown.counts)}${command}`));
}

function drawLegend() {
  const items = [...WORST].reverse().map((state) =>
    element("li", "", element("span", `swatch ${state}`, MARKS[state] || "4"), `${state}: ${MEANINGS[state]}`));
  items.push(element("li", "", "no T1: to hosts under the same T0, or the T1 is not known"));
  document.getElementById("legend").replaceChildren(...items);
}
