// Where the time X goes: one bar of that length, and what each replica waits for.
import { call, poll, seconds } from "./api.js";
import { State } from "./queries.js";
import { html, useEffect, useState } from "./vendor.js";

const WHAT = {
  source: ["b-rest", "until a bucket is full and its boundary comes"],
  transport: ["b-rest", "the way to the replica, measured"],
  hold: ["b-hold", "how long results may wait for a missing input (alpha X)"],
  engine: ["b-engine", "the work of the operators, measured"],
  egress: ["b-engine", "all that follows, to the client, measured"],
  reserve: ["b-rest", "what is left of X: for what was never measured, and for clocks that differ"],
};

export function ExplainPage({ name }) {
  const [status, setStatus] = useState(null);
  const [delay, setDelay] = useState(null);
  const path = `queries/${encodeURIComponent(name)}`;
  useEffect(() => poll(async () => {
    const [{ found }, explained] = await Promise.all([call("GET", `${path}/status`), call("GET", `${path}/explain-delay`)]);
    setDelay(explained.found);
    setStatus(found);
  }, 500), [name]);
  if (!status) return html`<p aria-busy="true">Loading ${name}</p>`;
  const parts = delay.parts.filter((part) => part.ms !== null);
  const bar = parts.filter((part) => part.within === null);
  return html`<div class="head"><h1>Where X goes</h1><a href="#/q/${encodeURIComponent(name)}">${name}</a><${State} state=${status.state} /></div>
    <section class="card"><h2>X is ${seconds(delay.x_ms)}</h2>
      <div class="bar" role="img" aria-label=${bar.map((part) => `${part.name} ${seconds(part.ms)}`).join(", ")}>
        ${bar.map((part) => html`<div class=${WHAT[part.name][0]} style=${{ flexGrow: Math.max(part.ms, 1), flexBasis: 0 }}>${part.name}</div>`)}</div>
      <div class="scroll"><table><thead><tr><th>part</th><th class="n">time</th><th>what it is</th></tr></thead>
        <tbody>${parts.map((part) => html`<tr><td>${part.name}</td><td class="n">${seconds(part.ms)}</td>
          <td>${WHAT[part.name][1]}${part.within ? `; within the ${part.within}` : ""}</td></tr>`)}</tbody></table></div>
      ${delay.waits.map((wait) => html`<p>${wait.fragment}.${wait.replica}: ${(wait.bucket.from || "").slice(11, 19)} waits for ${wait.for.map((input) =>
        input.name.split("/")[0]).join(", ")}, silent ${seconds(wait.waited_ms)}; ${wait.is_tentative ? "its results are given as tentative" : `tentative in ${seconds(wait.tentative_in_ms)}`}</p>`)}</section>
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
