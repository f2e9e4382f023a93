// SPDX-License-Identifier: BSD-2-Clause
// Polls /status.json and draws it. While there is no answer the page says so, and fades what is old.

import { drawCauses, drawEvents, drawNotes, drawPeers } from "./lists.js";
import { drawMap } from "./map.js";
import { drawPlanes } from "./planes.js";
import { duration } from "./words.js";

const INTERVAL_MS = 2000;
const TIMEOUT_MS = 8000;
const OLD_S = 15; // mrcd makes a document anew at least every 10 s

let answeredMs = null;
let servedAtS = null; // at_s of the last document
let error = "";

async function poll() {
  try {
    const answer = await fetch("/status.json", { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
    if (!answer.ok) throw new Error(answer.status === 401 ? "the password is not accepted" : `HTTP status ${answer.status}`);
    draw(await answer.json());
    error = "";
  } catch (failure) {
    error = failure.name === "TimeoutError" ? "no answer" : failure.message;
  }
  drawAge();
  setTimeout(poll, document.hidden ? 5 * INTERVAL_MS : INTERVAL_MS);
}

function draw(status) {
  if (status.at_s !== servedAtS) answeredMs = performance.now(); // the same document again is no news
  servedAtS = status.at_s;
  setText("host", status.host);
  setText("cluster", status.cluster);
  setText("facts", `mrcd ${status.version}, up ${duration(status.uptime_s)}; ${status.encapsulation}, ${status.granularity} granularity`);
  setText("headline", status.headline);
  document.getElementById("verdict").className = status.level;
  document.title = status.level === "ok" ? `${status.host}: all well` : `${status.host}: ${status.headline}`;
  drawCauses(status);
  drawNotes(status);
  drawMap(status.path_map, status.planes);
  drawPlanes(status.rates, status.planes);
  drawPeers(status.peers, status.at_s);
  drawEvents(status.events);
}

function drawAge() {
  if (answeredMs === null) {
    if (error) setText("headline", `No answer from mrcd: ${error}`);
    return;
  }
  const seconds = (performance.now() - answeredMs) / 1000;
  const isOld = seconds > OLD_S;
  document.body.classList.toggle("old", isOld);
  setText("age", error ? `No answer for ${duration(seconds)}: ${error}` : `read ${duration(seconds)} ago`);
  if (isOld) {
    document.getElementById("verdict").className = "unknown";
    setText("headline", `Not known: mrcd has not answered for ${duration(seconds)}. All below is of that time`);
    document.title = "no answer from mrcd";
  }
}

function setText(id, text) {
  const node = document.getElementById(id);
  if (node.textContent !== String(text)) node.textContent = text;
}

setInterval(drawAge, 1000);
poll();
