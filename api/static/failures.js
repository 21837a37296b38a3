// The failures of a query, as the journal has them: the list, and one of them in full.
import { call, clock, poll, seconds, session } from "./api.js";
import { setView } from "./app.js";
import { Compared, MODES, POLICIES, begin, useComparison } from "./compared.js";
import { html, useEffect, useState } from "./vendor.js";

const PHASES = {
  detected: ["b-rest", "it had begun, and nobody had noticed"],
  held: ["b-hold", "results were held back"],
  tentative: ["b-tentative", "clients got tentative results"],
  redo: ["b-engine", "all inputs were there again, and results were corrected"],
};
const day = (ms) => (ms === null ? "–" : `${new Date(ms).toLocaleDateString()} ${clock(ms)}`);
const lacked = (failure) => [...failure.missing.map((name) => `${name} missing`), ...failure.silent.map((name) => `${name} silent`)].join(", ") || "–";
const pathOf = (name, id) => `queries/${encodeURIComponent(name)}/failures${id ? `/${encodeURIComponent(id)}` : ""}`;

export function FailuresPage({ name }) {
  const [failures, setFailures] = useState(null);
  const [next, setNext] = useState(null);
  useEffect(() => poll(async () => {
    const { found } = await call("GET", pathOf(name));
    setFailures((known) => [...found.failures, ...(known || []).filter((each) => each.id < (found.failures.at(-1) || { id: "" }).id)]);
    setNext((known) => known ?? found.next);
  }, 2000), [name]);
  const older = async () => {
    const { found } = await call("GET", `${pathOf(name)}?after=${encodeURIComponent(next)}`);
    setFailures((known) => [...known, ...found.failures]);
    setNext(found.next ?? "");
  };
  if (!failures) return html`<p aria-busy="true">Loading</p>`;
  return html`<div class="head"><h1>Failures</h1><a href="#/q/${encodeURIComponent(name)}">${name}</a></div>
    <section class="card scroll"><table>
      <thead><tr><th>detected</th><th>what</th><th class="n">lasted</th><th class="n">X</th><th class="n">undone</th><th class="n">late</th></tr></thead>
      <tbody>${failures.map((each) => html`<tr key=${each.id}>
        <td><a href="#/q/${encodeURIComponent(name)}/failures/${encodeURIComponent(each.id)}">${day(each.detected_ms)}</a></td>
        <td>${lacked(each)}</td><td class="n">${each.state === "open" ? "goes on" : seconds(each.duration_ms)}</td><td class="n">${seconds(each.x_ms)}</td>
        <td class="n">${each.rows_undone}</td><td class="n">${each.late_rows ?? "–"}</td></tr>`)}</tbody></table>
      ${!failures.length && html`<p>None is known. They are kept for 30 days.</p>`}
      ${next && html`<button onClick=${older}>Show older ones</button>`}</section>`;
}

// The failure again, under another X, mode or policy, beside what happened.
function Replay({ failure, view }) {
  const [x, setX] = useState(String(Math.max(failure.x_ms / 3000, 0.5)));
  const [mode, setMode] = useState(failure.reconcile);
  const [policy, setPolicy] = useState(`${failure.policy.failure}/${failure.policy.stabilization}`);
  const [job, setJob] = useState(view.get("replay"));
  const found = useComparison(job);
  const send = (event) => {
    event.preventDefault();
    const body = { delay_thresholds: [...new Set([`${failure.x_ms}ms`, `${Number(x) * 1000}ms`])], modes: [mode], policies: [policy] };
    begin(`${pathOf(failure.query, failure.id)}/replay`, body, (made) => { setView({ replay: made }); setJob(made); });
  };
  const happened = {
    x_ms: failure.x_ms, mode: failure.reconcile, policy: `${failure.policy.failure}/${failure.policy.stabilization}`, n_tentative: failure.rows_tentative,
    n_undone: failure.rows_undone, violations: failure.late_rows, delay_new_ms_max: null, consistent_after_seconds: null,
  };
  const choose = (label, value, set, all) => html`<label>${label} <select value=${value} onChange=${(e) => set(e.target.value)}>
    ${all.map((each) => html`<option value=${each}>${each}</option>`)}</select></label>`;
  return html`<section class="card"><h2>The same again, under another X</h2>
    <p class="soft">The rows that came then, when they came, and what was missing, run again beside the query. Nothing that runs notices.</p>
    <form class="row" onSubmit=${send}>
      <label>X in seconds <input type="number" min="0.1" max="3600" step="0.1" required value=${x} onInput=${(e) => setX(e.target.value)} /></label>
      ${choose("mode", mode, setMode, MODES)}${choose("policy", policy, setPolicy, POLICIES)}
      <button class="primary" disabled=${!session.value.may.operator}>Replay under another X</button></form>
    ${job && html`<${Compared} job=${found} happened=${happened} />`}</section>`;
}

export function FailurePage({ name, id, view }) {
  const [failure, setFailure] = useState(null);
  useEffect(() => poll(async () => setFailure((await call("GET", pathOf(name, id))).found), 1000), [name, id]);
  if (!failure) return html`<p aria-busy="true">Loading</p>`;
  const till = failure.ended_ms ?? Date.now();
  const phases = failure.phases.map((phase) => ({ ...phase, ms: phase.ms ?? till - phase.from_ms }));
  const cost = failure.rows_undone
    ? `${failure.rows_undone} tentative results were given and taken back; stable ones took their place.`
    : failure.state === "open" ? "No tentative result was taken back yet." : "No client noticed: nothing tentative was given.";
  return html`<div class="head"><h1>Failure of ${day(failure.detected_ms)}</h1><a href="#/q/${encodeURIComponent(name)}">${name}</a>
      <a href="#/q/${encodeURIComponent(name)}/failures">all failures</a><span class="soft">${failure.id}</span></div>
    <div class="card banner ${failure.state === "open" ? "tentative" : ""}"><strong>${failure.state === "open" ? "◆ It goes on" : "✓ It is over"}: ${lacked(failure)}.</strong> ${cost}
      ${" "}X was ${seconds(failure.x_ms)}${failure.late_rows ? `; ${failure.late_rows} results came later than that` : ""}.</div>
    <section class="card"><h2>What happened when</h2>
      <div class="bar" role="img" aria-label=${phases.map((phase) => `${phase.name} ${seconds(phase.ms)}`).join(", ")}>
        ${phases.map((phase) => html`<div class=${PHASES[phase.name][0]} style=${{ flexGrow: Math.max(phase.ms, 1), flexBasis: 0 }}>${phase.name}</div>`)}</div>
      <div class="scroll"><table><thead><tr><th>part</th><th class="n">time</th><th>from</th><th>what it is</th></tr></thead>
        <tbody>${phases.map((phase) => html`<tr><td>${phase.name}</td><td class="n">${seconds(phase.ms)}${phase.to_ms === null ? ", goes on" : ""}</td>
          <td>${clock(phase.from_ms)}</td><td>${PHASES[phase.name][1]}</td></tr>`)}</tbody></table></div></section>
    ${failure.state === "over" && failure.policy && html`<${Replay} key=${id} failure=${failure} view=${view} />`}
    <section class="card scroll"><h2>Who was concerned</h2><table>
      <thead><tr><th>instance</th><th>lacked</th><th>noticed</th><th>healed</th><th>stable again</th><th class="n">correction</th></tr></thead>
      <tbody>${failure.instances.map((each) => html`<tr><td>${each.instance}</td><td>${each.state === "FAILURE" ? "it was silent" : each.missing.join(", ")}</td>
        <td>${clock(each.detected_ms)}</td><td>${each.healed_ms ? clock(each.healed_ms) : "–"}</td><td>${each.reconciled_ms ? clock(each.reconciled_ms) : "–"}</td>
        <td class="n">${each.redo_s === null ? "–" : seconds(each.redo_s * 1000)}</td></tr>`)}</tbody></table>
      ${failure.faults.map((each) => html`<p>✂ On purpose: ${each.fault}, from ${clock(each.begun_ms)}${each.ended_ms ? ` to ${clock(each.ended_ms)}` : ""}</p>`)}</section>
    <section class="card scroll"><div class="row"><h2>Its events</h2>
      <a href="api/v1/${pathOf(name, id)}" download="${name}-${id}.json">Download as JSON</a></div>
      <${EventTable} events=${failure.events} /></section>`;
}

const UNSAID = ["spec", "since_ms", "place", "total"];
const plain = (value) => (Array.isArray(value) ? value.map(plain).join(", ") : value !== null && typeof value === "object"
  ? Object.entries(value).map(([name, each]) => `${name} ${plain(each)}`).join(", ") : String(value));
const factsOf = (event) => Object.entries(event.facts).filter(([field, value]) => value !== null && !UNSAID.includes(field) && plain(value) !== "")
  .map(([field, value]) => `${field.replace(/_ms$/, "").replaceAll("_", " ")} ${/_at_ms$/.test(field) ? clock(value) : /_ms$/.test(field) ? seconds(value) : plain(value)}`).join(" · ");

export function EventTable({ events, withQuery }) {
  return html`<table><thead><tr><th>time</th>${withQuery && html`<th>query</th>`}<th>what</th><th>who</th><th>facts</th></tr></thead>
    <tbody>${events.map((event) => html`<tr key=${event.id}><td>${day(event.at_ms)}</td>${withQuery && html`<td>${event.query || "–"}</td>`}
      <td>${event.kind.replaceAll("_", " ")}</td><td>${event.by || "–"}</td><td>${factsOf(event)}</td></tr>`)}</tbody></table>`;
}
