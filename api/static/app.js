// The frame of all pages, and which page is shown: #/, #/q/NAME, #/q/NAME/explain, #/q/NAME/failures, #/q/NAME/failures/ID, #/new,
// #/compare, #/ops. View state is after the ?.
import { asOf, begin, enter, offline, paused, refused, said, session, stale, toast } from "./api.js";
import { ComparePage } from "./compare.js";
import { ExplainPage } from "./explain.js";
import { FailurePage, FailuresPage } from "./failures.js";
import { OperationsPage } from "./operations.js";
import { NewPage, QueriesPage } from "./queries.js";
import { QueryPage } from "./query.js";
import { html, render, signal, useEffect, useState } from "./vendor.js";

const place = signal(read());

function read() {
  const [path, view] = (location.hash.slice(1) || "/").split("?");
  return { parts: path.split("/").filter(Boolean).map(decodeURIComponent), view: new URLSearchParams(view || "") };
}

// A link that was pasted into an open page has a new token.
addEventListener("hashchange", () => (/[#&]token=/.test(location.hash) ? begin().then(() => (place.value = read())) : (place.value = read())));

export function setView(changes) {
  const { view } = place.value;
  for (const [name, value] of Object.entries(changes)) value === null ? view.delete(name) : view.set(name, value);
  const [path] = location.hash.split("?");
  history.replaceState(null, "", `${path || "#/"}${String(view) ? `?${view}` : ""}`);
}

function Age() {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 500);
    return () => clearInterval(timer);
  }, []);
  const age = Math.max(now - asOf.value, 0);
  const since = asOf.value ? `as of ${(age / 1000).toFixed(1)} s ago` : "";
  const text = offline.value ? `no connection, trying again${since && `: ${since}`}` : since && stale.value ? `old: ${since}` : since;
  return html`<span class=${offline.value || stale.value || (age > 5000 && !paused.value) ? "age old" : "age"}>${text}${" "}
    <button aria-pressed=${paused.value} onClick=${() => (paused.value = !paused.value)}>${paused.value ? "Continue" : "Pause"}</button></span>`;
}

function SignIn() {
  const [token, setToken] = useState("");
  return html`<main><form class="card" onSubmit=${(event) => { event.preventDefault(); enter(token.trim()); }}>
    <h1>boreal</h1>${refused.value && html`<p role="alert">${refused.value}</p>`}<p>Open the link that <code>boreal up</code> printed, or give its token.</p>
    <label>Token <input type="password" autocomplete="current-password" value=${token} onInput=${(e) => setToken(e.target.value)} /></label>${" "}
    <button>Enter</button></form></main>`;
}

function App() {
  if (session.value === null) return html`<main aria-busy="true"><p>Loading</p></main>`;
  if (session.value === undefined) return html`<${SignIn} />`;
  const { parts, view } = place.value;
  const at = parts[0] || "";
  let page;
  if (at === "q" && parts[2] === "explain") page = html`<${ExplainPage} key=${parts[1]} name=${parts[1]} />`;
  else if (at === "q" && parts[2] === "failures" && parts[3]) page = html`<${FailurePage} key=${parts[3]} name=${parts[1]} id=${parts[3]} view=${view} />`;
  else if (at === "q" && parts[2] === "failures") page = html`<${FailuresPage} key=${parts[1]} name=${parts[1]} />`;
  else if (at === "q") page = html`<${QueryPage} key=${parts[1]} name=${parts[1]} view=${view} />`;
  else if (at === "ops") page = html`<${OperationsPage} />`;
  else if (at === "compare") page = html`<${ComparePage} view=${view} />`;
  else if (at === "new") page = html`<${NewPage} />`;
  else page = html`<${QueriesPage} view=${view} />`;
  const link = (to, name, here) => html`<a href=${to} aria-current=${here ? "page" : undefined}>${name}</a>`;
  return html`<header class="top"><a class="brand" href="#/">boreal</a>
      <nav aria-label="Pages">${link("#/", "Queries", at === "")}${link("#/new", "New query", at === "new")}${link("#/compare", "Compare", at === "compare")}${link("#/ops", "Operations", at === "ops")}</nav>
      <${Age} /></header>
    <main>${page}</main>
    <div class="sr" role="status" aria-live="polite">${said.value}</div>
    ${toast.value && html`<${Toast} toast=${toast.value} />`}`;
}

function Toast({ toast: shown }) {
  useEffect(() => {
    const timer = setTimeout(() => (toast.value = null), 8000);
    return () => clearTimeout(timer);
  }, [shown]);
  return html`<div class="toast" role="alert"><span>${shown.text}</span>
    ${shown.undo && html`<button onClick=${() => { toast.value = null; shown.undo(); }}>Undo</button>`}
    <button aria-label="Close" onClick=${() => (toast.value = null)}>✕</button></div>`;
}

begin().then(() => (place.value = read()));
render(html`<${App} />`, document.getElementById("app"));
