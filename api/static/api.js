// Calls of the REST API, the session, and what all pages share.
import { signal } from "./vendor.js";

export const session = signal(null); // who the caller is, and what it may do; undefined: nobody
export const refused = signal(""); // why the caller has to say its token again
export const asOf = signal(0); // when what is shown was true, in ms since 1970
export const stale = signal(false); // whether the installation is silent, so that it may not be true any more
export const paused = signal(false); // whether the page stands still
export const offline = signal(false);
export const toast = signal(null); // { text, undo }
export const said = signal(""); // for screen readers: states only

export class Problem extends Error {
  constructor(status, document) {
    super(document.problem || document.detail || document.title || `HTTP ${status}`);
    this.status = status;
    this.fix = document.fix;
  }
}

export async function call(method, path, { body, headers = {} } = {}) {
  let answer;
  try {
    answer = await fetch(`api/v1/${path}`, {
      method,
      headers: { ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...headers },
      body: body === undefined ? undefined : typeof body === "string" ? body : JSON.stringify(body),
      credentials: "same-origin",
    });
  } catch (error) {
    offline.value = true;
    throw error;
  }
  offline.value = false;
  if (answer.status === 401) {
    if (session.value) refused.value = "Your token has expired or was revoked. This page goes on where it was when you give another.";
    session.value = undefined;
  }
  const text = await answer.text();
  const found = text ? JSON.parse(text) : {};
  if (!answer.ok) throw new Problem(answer.status, found);
  const known = method === "GET" && answer.headers.get("Boreal-As-Of-Ms");
  if (known) [asOf.value, stale.value] = [Number(known), answer.headers.get("Boreal-Stale") === "true"];
  return { found, etag: answer.headers.get("ETag") };
}

// The token comes after the #, is sent once, and leaves the address bar before anything else happens.
export async function begin() {
  const match = /[#&]token=([^&]+)/.exec(location.hash);
  if (match) {
    history.replaceState(null, "", `${location.pathname}${location.search}#/`);
    await enter(decodeURIComponent(match[1]));
  } else await look();
}

export async function enter(token) {
  try {
    session.value = (await call("POST", "session", { headers: { Authorization: `Bearer ${token}` } })).found;
    refused.value = "";
  } catch (error) {
    if (error.status === 401) refused.value = "This token is not valid.";
    session.value = undefined;
  }
}

async function look() {
  try {
    session.value = (await call("GET", "session")).found;
  } catch {
    if (session.value === null) session.value = undefined;
  }
}

export function tell(error) {
  toast.value = { text: error.fix ? `${error.message}; ${error.fix}` : error.message };
}

// Calls `look` now and every `everyMs`, unless the page is paused or hidden. Returns what ends it.
export function poll(look, everyMs) {
  let timer = 0, ended = false;
  const turn = async () => {
    if (!paused.value && !document.hidden) {
      try {
        await look();
      } catch (error) {
        if (error instanceof Problem && error.status === 404) tell(error);
      }
    }
    if (!ended) timer = setTimeout(turn, offline.value ? 2 * everyMs : everyMs);
  };
  turn();
  return () => {
    ended = true;
    clearTimeout(timer);
  };
}

export const SIGNS = { STABLE: "●", UP_FAILURE: "◆", STABILIZATION: "⟲", RECOVERING: "…", FAILURE: "✖", PAUSED: "‖", STARTING: "…" };
export const WORDS = {
  STABLE: "stable", UP_FAILURE: "input missing", STABILIZATION: "correcting", RECOVERING: "recovering",
  FAILURE: "failed", PAUSED: "paused", STARTING: "starting",
};
export const seconds = (ms) => (ms === null || ms === undefined ? "–" : ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`);
export const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour12: false });
