// The same input and faults under each X, mode and policy: begins a comparison, and shows its runs.
import { call, clock, poll, seconds, session, tell } from "./api.js";
import { setView } from "./app.js";
import { Compared, MODES, POLICIES, begin, useComparison } from "./compared.js";
import { html, useEffect, useState } from "./vendor.js";

const COLUMNS = ["x_ms", "mode", "policy", "is_stable", "delay_new_ms_max", "delay_new_ms_p99", "violations", "n_stable", "n_tentative", "n_undone",
  "reconciliations", "reconcile_seconds", "checkpoint_bytes", "consistent_after_seconds"];

export function ComparePage({ view }) {
  const [queries, setQueries] = useState(null);
  const [id, setId] = useState(view.get("job"));
  useEffect(() => { call("GET", "queries").then(({ found }) => { setQueries(found.queries); }, tell); }, []);
  const job = useComparison(id);
  const show = (made) => { setView({ job: made }); setId(made); };
  if (!queries) return html`<p aria-busy="true">Loading</p>`;
  return html`<h1>Compare</h1>
    ${queries.length ? html`<${Form} queries=${queries} show=${show} />` : html`<p>There is no query to compare. <a href="#/new">Make one</a>.</p>`}
    ${id && html`<section class="card"><div class="row"><h2>${job ? `${job.query}, ${clock(job.created_ms)}` : id}</h2>
      ${job && job.result && html`<a href=${csv(job.result.table)} download="${id}.csv">Download as CSV</a>`}</div>
      ${job && job.result && html`<${Bars} table=${job.result.table} />`}<${Compared} job=${job} /></section>`}
    <${Earlier} shown=${id} show=${show} />`;
}

function csv(table) {
  const cell = (value) => (value === null || value === undefined ? "" : /[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : value);
  const lines = [COLUMNS, ...table.map((row) => COLUMNS.map((name) => cell(row[name])))].map((line) => line.join(","));
  return `data:text/csv;charset=utf-8,${encodeURIComponent(`${lines.join("\n")}\n`)}`;
}

function Form({ queries, show }) {
  const [name, setName] = useState(queries[0].name);
  const query = queries.find((each) => each.name === name) || queries[0];
  const streams = Object.keys(query.spec.streams);
  const [fields, setFields] = useState({ rate: "50", length: "30", speed: "5", faults: `cut ${streams[0]} at 2s for 3s`, xs: "1s, 5s" });
  const [modes, setModes] = useState([query.reconcile]);
  const [policies, setPolicies] = useState(["process/process"]);
  const set = (field) => (event) => setFields({ ...fields, [field]: event.target.value });
  const listed = (text, by) => text.split(by).map((each) => each.trim()).filter(Boolean);
  const send = (event) => {
    event.preventDefault();
    const sources = Object.fromEntries(streams.map((stream) => [stream, `generate:${fields.rate},${fields.length}`]));
    const body = { query: name, sources, speed: `${fields.speed}x`, faults: listed(fields.faults, "\n"), delay_thresholds: listed(fields.xs, ","), modes, policies };
    begin("comparisons", body, show);
  };
  const choose = (event) => {
    const chosen = queries.find((each) => each.name === event.target.value);
    setName(chosen.name);
    setFields({ ...fields, faults: `cut ${Object.keys(chosen.spec.streams)[0]} at 2s for 3s` });
  };
  const number = (label, field) => html`<label>${label} <input type="number" min="1" max="100000" required value=${fields[field]} onInput=${set(field)} /></label>`;
  const boxes = (label, all, chosen, change) => html`<fieldset class="row"><legend>${label}</legend>${all.map((each) => html`<label>
    <input type="checkbox" checked=${chosen.includes(each)} onChange=${() => change(chosen.includes(each) ? chosen.filter((one) => one !== each) : [...chosen, each])} /> ${each}</label>`)}</fieldset>`;
  return html`<form class="card" onSubmit=${send}>
    <p class="soft">Runs a query over generated rows, beside what runs: nothing notices. Times of faults and X are those of the run.</p>
    <div class="row"><label>query <select value=${name} onChange=${choose}>${queries.map((each) => html`<option value=${each.name}>${each.name}</option>`)}</select></label>
      ${number("rows a second of each stream", "rate")}${number("seconds of rows", "length")}${number("times faster", "speed")}</div>
    <div class="row"><label>X, several with commas <input required value=${fields.xs} onInput=${set("xs")} /></label>
      <label>faults, one a line <textarea class="few" rows="2" value=${fields.faults} onInput=${set("faults")}></textarea></label></div>
    ${boxes("modes", MODES, modes, setModes)}${boxes("policies", POLICIES, policies, setPolicies)}
    <button class="primary" disabled=${!session.value.may.operator || !modes.length || !policies.length}>Compare</button></form>`;
}

// Tentative results of each run, as bars; the table below has the numbers.
function Bars({ table }) {
  const most = Math.max(...table.map((row) => row.n_tentative), 1);
  return html`<div class="bars" role="img" aria-label="Tentative results of each run, as the table below has them">
    ${table.map((row) => html`<span>${seconds(row.x_ms)} ${row.mode} ${row.policy}</span>
      <div><div class="b-tentative" style=${{ width: `${(100 * row.n_tentative) / most}%` }}></div>${row.n_tentative} tentative</div>`)}</div>`;
}

function Earlier({ shown, show }) {
  const [jobs, setJobs] = useState([]);
  useEffect(() => poll(async () => setJobs((await call("GET", "comparisons?limit=20")).found.comparisons), 2000), []);
  if (!jobs.length) return null;
  return html`<section class="card scroll"><h2>The last comparisons and replays</h2><table>
    <thead><tr><th>id</th><th>query</th><th>state</th><th>runs</th><th>asked for by</th><th>at</th></tr></thead>
    <tbody>${jobs.map((each) => html`<tr key=${each.id}><td>${each.id === shown ? each.id : html`<a href="#/compare?job=${encodeURIComponent(each.id)}" onClick=${() => show(each.id)}>${each.id}</a>`}</td>
      <td>${each.query}</td><td>${each.state}</td><td>${each.progress.done} of ${each.progress.total ?? "…"}</td><td>${each.by}</td><td>${clock(each.created_ms)}</td></tr>`)}</tbody></table></section>`;
}
