// SPDX-License-Identifier: BSD-2-Clause
// Makes elements and the text of values. Data become text nodes only, so no name on the page can be markup.

const SVG = "http://www.w3.org/2000/svg";

/** Returns an element. Children are elements, or values that become text. */
export function element(name, classes, ...children) {
  const made = document.createElement(name);
  if (classes) made.className = classes;
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

/** Returns an SVG element with these attributes. */
export function drawn(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/** Returns nodes of a sentence; what is in backticks becomes code. */
export function sentence(text) {
  return String(text ?? "").split("`").map((part, i) => (i % 2 ? element("code", "", part) : document.createTextNode(part)));
}

/** Replaces the children of a node, unless the reader has selected text in it. */
export function replace(node, children) {
  const selection = document.getSelection();
  if (selection && !selection.isCollapsed && selection.containsNode(node, true)) return;
  node.replaceChildren(...children);
}

const NOTHING = "–";

export function number(value) {
  return value === null || value === undefined ? NOTHING : value.toLocaleString("en-US");
}

/** Returns seconds in the largest unit that fits: 12 s, 5 min, 3 h, 2 d. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  if (seconds < 1) return "< 1 s";
  for (const [unit, size, next] of [["s", 1, 120], ["min", 60, 7200], ["h", 3600, 172800], ["d", 86400, Infinity]]) {
    if (seconds < next) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return NOTHING;
}

export function bits(perSecond) {
  if (perSecond === null || perSecond === undefined) return NOTHING;
  for (const [unit, size] of [["Tbit/s", 1e12], ["Gbit/s", 1e9], ["Mbit/s", 1e6], ["kbit/s", 1e3]]) {
    if (perSecond >= size) return `${significant(perSecond / size)} ${unit}`;
  }
  return `${Math.round(perSecond)} bit/s`;
}

export function ratio(value) {
  if (value === null || value === undefined) return NOTHING;
  if (value === 0) return "0 %";
  return value < 0.0001 ? "< 0.01 %" : `${significant(100 * value)} %`;
}

export function roundTrip(ns) {
  if (ns === null || ns === undefined) return NOTHING;
  return ns < 1e6 ? `${significant(ns / 1e3)} µs` : `${significant(ns / 1e6)} ms`;
}

function significant(value) {
  return value >= 99.5 ? Math.round(value).toString() : value.toPrecision(value >= 9.95 ? 3 : 2).replace(/\.?0+$/, "");
}

/** Returns the mean of the values that are known; null if none is. */
export function mean(values) {
  const known = values.filter((value) => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}
