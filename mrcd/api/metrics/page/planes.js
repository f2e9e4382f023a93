// SPDX-License-Identifier: BSD-2-Clause
// Draws the rates of each plane over the last minutes.

import { bits, drawn, element, mean, ratio, replace } from "./words.js";

const WIDTH = 300;
const HEIGHT = 34;
const LEAST_LOSS = 0.01; // the scale of a curve of losses is not finer than this
const LEAST_BITS = 1e6;
const NOW = 5; // intervals of 2 s whose mean is shown as the present value

export function drawPlanes(rates, planes) {
  const all = rates.planes.flatMap((p) => [...p.tx_bits_per_s, ...p.rx_bits_per_s]).filter((v) => v !== null);
  const most = Math.max(LEAST_BITS, ...all);
  const losses = rates.planes.flatMap((p) => p.loss_ratio).filter((v) => v !== null);
  const mostLoss = Math.max(LEAST_LOSS, ...losses);
  document.getElementById("scale").textContent =
    `NIC counters, last ${Math.round(rates.kept_s / 60)} minutes; full height: ${bits(most)}, lost ${ratio(mostLoss)}`;
  replace(document.querySelector("#planes tbody"), planes.map((plane) => {
    const found = rates.planes.find((p) => p.plane === plane.plane);
    const name = element("td", plane.up ? "" : "down", plane.plane, element("br"), element("small", "", plane.up ? plane.interface : "down"));
    name.title = plane.hook ? `${plane.interface}, received by ${plane.hook}` : plane.interface;
    return element("tr", "", name,
      curve("sent", rates, found?.tx_bits_per_s, most, bits),
      curve("received", rates, found?.rx_bits_per_s, most, bits),
      curve("lost", rates, found?.loss_ratio, mostLoss, ratio));
  }));
}

function curve(kind, rates, values, most, words) {
  const known = values ?? [];
  const now = mean(known.slice(-NOW));
  const value = element("div", `value${kind === "lost" && now > 0 ? " bad" : ""}`, words(now));
  const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const shape = kind === "lost" && !known.some((value) => value > 0) ? "none" : kind; // no losses: no alarming colour
  const newest = rates.at_s[rates.at_s.length - 1];
  for (const points of runs(rates, known, newest, most)) {
    const line = points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");
    const first = points[0][0].toFixed(1);
    const last = points[points.length - 1][0].toFixed(1);
    svg.append(drawn("path", { class: `area ${shape}`, d: `M${first} ${HEIGHT}L${line}L${last} ${HEIGHT}Z` }));
    svg.append(drawn("path", { class: `curve ${shape}`, d: `M${line}` }));
  }
  return element("td", "", value, svg);
}

/** Returns lists of points without a gap between them; values of null are gaps. */
function runs(rates, values, newest, most) {
  const found = [];
  let open = null;
  values.forEach((value, i) => {
    if (value === null) {
      open = null;
      return;
    }
    if (open === null) found.push((open = []));
    const x = WIDTH * (1 - (newest - rates.at_s[i]) / rates.kept_s);
    open.push([x, HEIGHT - 1 - ((HEIGHT - 2) * Math.min(value, most)) / most]);
  });
  return found.filter((points) => points.length > 1);
}
