// SPDX-License-Identifier: BSD-2-Clause
// Draws causes, notes, peers and events.

import { bits, duration, element, number, ratio, replace, roundTrip, sentence } from "./words.js";

const SIGNS = { bad: "✕", warning: "▲", good: "✓", plain: "·" };
const RECENT_S = 10;

let causesDrawn = "";
let eventsDrawn = "";
let polls = []; // of the last RECENT_S seconds: { at_s, peers: name → counters }

/** Draws the causes again only if they have changed, so that a command can be selected and copied. */
export function drawCauses(status) {
  const node = document.getElementById("causes");
  const causes = status.causes;
  const key = JSON.stringify([causes.map(({ since_s, ...rest }) => rest), status.causes_left_out]);
  if (key !== causesDrawn) {
    causesDrawn = key;
    const items = causes.map((cause) => {
      const others = (cause.or_targets ?? []).length ? `; or ${cause.or_targets.join(" or ")}` : "";
      const share = cause.of_evs ? `; ${number(cause.evs)} of ${number(cause.of_evs)} EVs, ${number(cause.peers)} of ${number(cause.of_peers)} peers` : "";
      const sure = cause.confidence ? `, ${cause.confidence}` : "";
      return element("li", cause.severity,
        element("b", "", ...sentence(cause.sentence)), " ", element("small", "since"),
        element("div", "", "Do: ", ...sentence(cause.do)),
        element("div", "", element("small", "", `${cause.cause} ${cause.target}${others}${sure}${share}`)));
    });
    if (status.causes_left_out) items.push(element("li", "", `${number(status.causes_left_out)} more causes: `, element("code", "", "mrcctl status")));
    node.replaceChildren(...items);
  }
  node.querySelectorAll(".since").forEach((since, i) => {
    const seconds = causes[i]?.since_s;
    since.textContent = seconds === null || seconds === undefined ? "" : `for ${duration(seconds)}`;
  });
}

export function drawNotes(status) {
  const denials = status.denials.map((denial) => {
    const left = denial.remaining_s === null ? "" : ` for another ${duration(denial.remaining_s)}`;
    return `An administrator said: ${denial.action} ${denial.target}${left}${denial.reason ? ` (${denial.reason})` : ""}`;
  });
  if (status.denials_left_out) denials.push(`${number(status.denials_left_out)} more denials: \`mrcctl denials\``);
  replace(document.getElementById("notes"), [...status.notes, ...denials].map((text) => element("li", "", ...sentence(text))));
}

export function drawPeers(peers, atS) {
  const now = { at_s: atS, peers: new Map(peers.shown.map((peer) => [peer.peer, peer])) };
  if (polls.length && polls[polls.length - 1].at_s !== atS) polls.push(now);
  if (!polls.length) polls = [now];
  while (polls.length > 2 && atS - polls[1].at_s >= RECENT_S) polls.shift();
  const counts = ["unreachable", "detached"].filter((word) => peers[word]).map((word) => `, ${number(peers[word])} ${word}`);
  document.getElementById("peer-counts").textContent = `${number(peers.reachable)} of ${number(peers.total)} reachable${counts.join("")}`;
  replace(document.querySelector("#peers tbody"), peers.shown.map((peer) => row(peer, polls[0].peers.get(peer.peer), atS - polls[0].at_s)));
  document.getElementById("peers-left-out").replaceChildren(...(peers.left_out
    ? sentence(`${number(peers.left_out)} peers are left out; those with most EVs out of use are shown. \`mrcctl peers\` lists all.`) : []));
}

function row(peer, before, seconds) {
  const moved = (name) => (before && seconds > 0 && peer[name] >= before[name] ? peer[name] - before[name] : null);
  const sent = moved("tx_bytes");
  const lost = before && seconds > 0 ? Math.max(0, peer.lost_packets - before.lost_packets) : null;
  const arrived = moved("rx_packets");
  const judged = lost === null || arrived === null ? null : lost + arrived;
  const share = judged === null ? null : judged ? lost / judged : 0;
  const isGone = !peer.reachable || peer.status === "detached";
  const word = !peer.reachable ? (peer.heard_s === null ? "never heard" : "unreachable") : peer.status === "detached" ? "detached" : "";
  const name = element("td", isGone ? "bad" : "", peer.peer, ...(word ? [element("br"), element("small", "", word)] : []));
  return element("tr", "", name, usable(peer),
    element("td", "number", roundTrip(peer.rtt_ns)),
    element("td", "number", sent === null ? "–" : bits((8 * sent) / seconds)),
    element("td", `number${share ? " bad" : ""}`, ratio(share)),
    element("td", "number narrow", peer.heard_s === null ? "never" : `${duration(peer.heard_s)} ago`));
}

function usable(peer) {
  const bar = element("div", "share", ...Object.entries(peer.states).map(([state, count]) => {
    const part = element("i", state);
    part.style.flexGrow = count;
    return part;
  }));
  bar.title = Object.entries(peer.states).map(([state, count]) => `${count} ${state}`).join(", ");
  return element("td", `number${peer.usable_evs < peer.evs ? " bad" : ""}`, `${number(peer.usable_evs)}/${number(peer.evs)}`, bar);
}

export function drawEvents(events) {
  const key = JSON.stringify(events);
  if (key === eventsDrawn) return;
  eventsDrawn = key;
  const node = document.getElementById("events");
  if (!events.length) {
    replace(node, [element("li", "", "No event yet")]);
    return;
  }
  replace(node, events.map((event) => {
    const time = element("time", "", String(event.time ?? "").slice(0, 19).replace("T", " "));
    return element("li", event.level, time, element("span", "sign", SIGNS[event.level] ?? "·"), element("span", "", event.text));
  }));
}
