// Keeps the status page up to date. Without it the page still works: it then loads itself anew every few seconds.
"use strict";

const staleAfter = 12000; // the gateway sends something every five seconds
let ahead = 0; // how far the gateway's clock is ahead of this one, in ms
let heard = Date.now();
let lost = false;

function words(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return s + " s";
  if (s < 3600) return Math.floor(s / 60) + " min";
  const h = Math.floor(s / 3600), min = Math.floor((s % 3600) / 60);
  if (h < 10 && min > 0) return h + " h " + min + " min";
  return h < 48 ? h + " h" : Math.floor(h / 24) + " d";
}

function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function tick() {
  const now = Date.now();
  for (const t of document.querySelectorAll("time[data-since]")) write(t, words(now + ahead - t.dataset.since));
  for (const t of document.querySelectorAll("time[data-until]")) write(t, words(t.dataset.until - now - ahead));
  const stale = now - heard > staleAfter;
  document.getElementById("stale").hidden = !stale;
  document.body.classList.toggle("is-stale", stale);
  if (stale) write(document.getElementById("stale-age"), words(now - heard));
}

// morph makes the children of old like those of fresh, and touches only what differs: focus, selection and scroll stay.
function morph(old, fresh) {
  const want = Array.from(fresh.childNodes);
  while (old.childNodes.length > want.length) old.lastChild.remove();
  want.forEach((node, i) => {
    const have = old.childNodes[i];
    if (!have) return old.append(node);
    if (have.nodeType !== node.nodeType || have.nodeName !== node.nodeName) return have.replaceWith(node);
    if (node.nodeType === Node.TEXT_NODE) {
      if (have.data === node.data) return;
      have.data = node.data;
      return flash(have.parentElement.closest(".value"));
    }
    for (const a of Array.from(have.attributes)) if (!node.hasAttribute(a.name)) have.removeAttribute(a.name);
    for (const a of node.attributes) if (have.getAttribute(a.name) !== a.value) have.setAttribute(a.name, a.value);
    if (node.nodeName !== "TIME") morph(have, node); // the text of a time is written by tick
  });
}

function flash(cell) {
  if (!cell || cell.getAnimations().length) return;
  cell.classList.add("moved");
  setTimeout(() => cell.classList.remove("moved"), 900);
}

function mark() {
  const s = document.querySelector("#summary [data-level]");
  const icon = document.getElementById("icon");
  const gateway = document.querySelector(".top .gateway").textContent;
  document.title = s.dataset.tab + (gateway ? " · " + gateway : "");
  const href = icon.dataset[s.dataset.level];
  if (icon.getAttribute("href") !== href) icon.setAttribute("href", href);
}

function connect() {
  const source = new EventSource("/events");
  source.addEventListener("clock", (e) => {
    heard = Date.now();
    ahead = Number(e.data) - heard;
    tick();
  });
  source.addEventListener("fragment", (e) => {
    heard = Date.now();
    const end = e.data.indexOf("\n");
    const id = e.data.slice(0, end < 0 ? undefined : end);
    const target = document.getElementById(id);
    if (!target) return location.reload(); // the gateway came back with other devices
    const fresh = document.createElement("template");
    fresh.innerHTML = end < 0 ? "" : e.data.slice(end + 1);
    morph(target, fresh.content);
    if (id === "summary") mark();
    tick();
  });
  source.addEventListener("signed-out", () => location.reload());
  // A browser connects again by itself unless it was refused: then the session has ended or the gateway is restarting.
  source.addEventListener("error", () => {
    if (source.readyState === EventSource.CLOSED && !lost) {
      lost = true;
      setTimeout(retry, 3000);
    }
  });
}

async function retry() {
  try {
    if ((await fetch("/healthz", { cache: "no-store" })).ok) return location.reload();
  } catch { /* not back yet */ }
  setTimeout(retry, 3000);
}

tick();
setInterval(tick, 1000);
connect();
