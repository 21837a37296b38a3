// Where the time X goes: one bar of that length, and what each replica waits for.
import { asOf, call, poll, seconds } from "./api.js";
import { State } from "./queries.js";
import { html, useEffect, useState } from "./vendor.js";

export function ExplainPage({ name }) {
  const [status, setStatus] = useState(null);
  useEffect(() => poll(async () => {
    const { found } = await call("GET", `queries/${encodeURIComponent(name)}/status`);
    asOf.value = found.as_of_ms;
    setStatus(found);
  }, 500), [name]);
  if (!status) return html`<p aria-busy="true">Loading ${name}</p>`;
  const x = status.x_ms, hold = Math.min(status.alpha_x_ms ?? x, x), reserve = Math.min(x / 10, x - hold), path = x - hold - reserve;
  const parts = [["b-hold", "hold", hold, "how long results may wait for a missing input (alpha X)"],
    ["b-engine", "engine and path", path, "measured: the work, and the way to the client"],
    ["b-rest", "reserve", reserve, "a tenth of X, for what was never measured"]];
  return html`<div class="head"><h1>Where X goes</h1><a href="#/q/${encodeURIComponent(name)}">${name}</a><${State} state=${status.state} /></div>
    <section class="card"><h2>X is ${seconds(x)}</h2>
      <div class="bar" role="img" aria-label=${parts.map(([, what, ms]) => `${what} ${seconds(ms)}`).join(", ")}>
        ${parts.map(([kind, what, ms]) => html`<div class=${kind} style=${{ flexGrow: Math.max(ms, 1), flexBasis: 0 }}>${what}</div>`)}</div>
      <div class="scroll"><table><thead><tr><th>part</th><th class="n">time</th><th>what it is</th></tr></thead>
        <tbody>${parts.map(([, what, ms, why]) => html`<tr><td>${what}</td><td class="n">${seconds(ms)}</td><td>${why}</td></tr>`)}</tbody></table></div></section>
    <section class="card scroll"><h2>Who waits for what</h2><table>
      <thead><tr><th>replica</th><th>state</th><th>waits for</th><th class="n">since</th><th class="n">may hold</th></tr></thead>
      <tbody>${status.replicas.map((replica) => html`<tr><td>${replica.fragment}.${replica.replica}</td><td><${State} state=${replica.state} /></td>
        <td>${(replica.missing || []).join(", ") || "nothing"}</td>
        <td class="n">${replica.since_ms ? seconds(status.as_of_ms - replica.since_ms) : "–"}</td><td class="n">${seconds(replica.alpha_x_ms)}</td></tr>`)}</tbody></table></section>
    <section class="card scroll"><h2>Inputs</h2><table>
      <thead><tr><th>stream</th><th>state</th><th>boundary</th><th class="n">last row</th><th class="n">rows</th><th class="n">refused</th></tr></thead>
      <tbody>${status.inputs.map((input) => html`<tr><td>${input.name}</td><td>${input.state}</td><td>${(input.last_boundary || "–").slice(0, 19)}</td>
        <td class="n">${seconds(input.last_ingest_age_ms)}</td><td class="n">${input.rows ?? "–"}</td><td class="n">${input.dlq ?? "–"}</td></tr>`)}</tbody></table></section>`;
}
