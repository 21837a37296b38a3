// The list of queries, and the page that makes a new one.
import { Problem, SIGNS, WORDS, call, poll, seconds, session } from "./api.js";
import { setView } from "./app.js";
import { Dag } from "./dag.js";
import { html, useEffect, useRef, useState } from "./vendor.js";

const CHUNK = 200; // queries that are asked for at once, where the page needs the first ones only
const AROUND = 15; // rows beyond the screen that are there, too
const ROW_PX = 34; // the height of a row, as in style.css

export function State({ state }) {
  return html`<span class="state s-${state}" data-sign=${SIGNS[state] || "?"}>${WORDS[state] || state}</span>`;
}

const COLUMNS = [
  ["name", "query", (query) => query.name],
  ["state", "state", (query) => WORDS[query.state] || query.state || "~"],
  ["x", "X", (query) => query.x_ms ?? Infinity],
  ["p99", "p99", (query) => query.p99_ms ?? -1],
  ["late", "late", (query) => query.violations],
  ["tentative", "tentative now", (query) => query.tentative],
];
const NUMBERS = ["x", "p99", "late", "tentative"];

// A filter has words of the name or of the state; `state:tentative` means queries that clients have tentative rows of.
function accepts(query, words) {
  const state = `${WORDS[query.state] || ""} ${query.state || ""} ${query.tentative ? "tentative" : ""}`.toLowerCase();
  return words.every((word) => (word.startsWith("state:") ? state.includes(word.slice(6)) : `${query.name.toLowerCase()} ${state}`.includes(word)));
}

function sorted(queries, by) {
  const [, , valueOf] = COLUMNS.find(([id]) => id === by.replace("-", "")) || COLUMNS[0];
  const sign = by.startsWith("-") ? -1 : 1;
  const compare = (one, other) => (one < other ? -sign : one > other ? sign : 0);
  return [...queries].sort((one, other) => compare(valueOf(one), valueOf(other)) || (one.name < other.name ? -1 : 1));
}

// Which rows of a table are on the screen: only those, and some around, are made.
function useVisible(body, count) {
  const [first, setFirst] = useState(0);
  const onScreen = Math.ceil(innerHeight / ROW_PX) + 2 * AROUND;
  useEffect(() => {
    const look = () => {
      const above = body.current ? -body.current.getBoundingClientRect().top : 0;
      setFirst(Math.max(Math.floor(above / ROW_PX / AROUND) * AROUND - AROUND, 0)); // in steps, so that not each pixel counts
    };
    addEventListener("scroll", look, { passive: true });
    return () => removeEventListener("scroll", look);
  }, []);
  const begin = Math.min(first, Math.max(count - onScreen, 0));
  return [begin, Math.min(begin + onScreen + AROUND, count)];
}

export function QueriesPage({ view }) {
  const [listed, setListed] = useState(null);
  const [filter, setFilter] = useState(view.get("filter") || "");
  const [by, setBy] = useState(view.get("sort") || "name");
  const body = useRef(null);
  const isWhole = filter || by !== "name"; // else those on the screen are enough
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const { queries: known, total } = listed || { queries: [], total: 0 };
  const found = isWhole ? sorted(known.filter((query) => accepts(query, words)), by) : known;
  const count = isWhole ? found.length : total;
  const [begin, end] = useVisible(body, count);
  const path = isWhole ? "overview" : `overview?limit=${Math.ceil(Math.max(end, 1) / CHUNK) * CHUNK}`;
  useEffect(() => poll(async () => setListed((await call("GET", path)).found), 1000), [path]);
  if (listed === null) return html`<p aria-busy="true">Loading</p>`;
  const sort = (id) => {
    const next = by === id ? `-${id}` : id;
    setBy(next);
    setView({ sort: next === "name" ? null : next });
  };
  const header = ([id, title]) => html`<th class=${NUMBERS.includes(id) ? "n" : ""} aria-sort=${by === id ? "ascending" : by === `-${id}` ? "descending" : undefined}>
    <button class="plain" onClick=${() => sort(id)}>${title}<span aria-hidden="true">${by === id ? " ▲" : by === `-${id}` ? " ▼" : ""}</span></button></th>`;
  const shown = found.slice(begin, end);
  const space = (rows) => rows > 0 && html`<tr aria-hidden="true" style=${{ height: `${rows * ROW_PX}px` }}></tr>`;
  return html`<div class="row"><h1>Queries</h1>
      <label>Filter <input type="search" value=${filter} onInput=${(e) => { setFilter(e.target.value); setView({ filter: e.target.value || null }); }} /></label>
      <span class="soft">${count} of ${total}</span></div>
    <div class="card scroll"><table class="list" aria-rowcount=${count + 1}>
      <thead><tr>${COLUMNS.map(header)}<th>inputs</th></tr></thead>
      <tbody ref=${body} onKeyDown=${step}>${space(begin)}${shown.map((query, place) => html`<${Row} key=${query.name} query=${query} number=${begin + place + 2} />`)}${space(count - begin - shown.length)}</tbody></table>
      ${!total && html`<p>There are no queries. <a href="#/new">Make one</a>.</p>`}</div>`;
}

// The arrow keys go from row to row.
function step(event) {
  const by = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
  const row = by && event.target.closest("tr")[by];
  const link = row && row.querySelector("a");
  if (!link) return;
  event.preventDefault();
  link.focus();
}

function Row({ query, number }) {
  return html`<tr aria-rowindex=${number}><td><a href="#/q/${encodeURIComponent(query.name)}">${query.name}</a></td>
    <td>${query.state ? html`<${State} state=${query.state} />` : "cannot run"}</td>
    <td class="n">${query.delay_threshold}</td><td class="n">${seconds(query.p99_ms)}</td>
    <td class="n">${query.violations}</td><td class="n">${query.tentative}</td>
    <td>${query.inputs.map((input) => `${input.name} ${input.missing ? "✂ missing" : input.state}`).join(", ")}</td></tr>`;
}

const EXAMPLE = `name: counts
streams:
  clicks: {time: at, schema: {page: string}, boundary: clock, disorder: 500ms}
operators:
  per_page: {aggregate: clicks, window: {tumbling: 10s}, by: [page], compute: {clicks: count(*)}}
output: per_page
delay_threshold: 3s
`;

export function NewPage() {
  const [text, setText] = useState(EXAMPLE);
  const [result, setResult] = useState(null);
  const send = async (method, path) => call(method, path, { body: text, headers: { "Content-Type": "application/yaml" } });
  useEffect(() => {
    const timer = setTimeout(async () => {
      try {
        const { notes, plan } = (await send("POST", "validate")).found;
        setResult({ notes, plan });
      } catch (error) {
        if (error instanceof Problem) setResult({ error });
      }
    }, 400);
    return () => clearTimeout(timer);
  }, [text]);
  const create = async () => {
    try {
      const { found } = await send("POST", "queries");
      location.hash = `#/q/${encodeURIComponent(found.name)}`;
    } catch (error) {
      setResult({ error });
    }
  };
  return html`<h1>New query</h1><div class="card"><div class="beside"><div><label for="spec">The query, in YAML</label>
    <textarea id="spec" spellcheck=${false} value=${text} onInput=${(e) => setText(e.target.value)}></textarea></div>
    <${Planned} plan=${result && result.plan} /></div>
    <p role="status">${result && (result.error
      ? html`<span class="error">✖ ${result.error.message}${result.error.fix ? `; ${result.error.fix}` : ""}</span>`
      : html`✓ It can run. ${result.notes.join(" ")}`)}</p>
    <button disabled=${!session.value.may.operator || !result || result.error} onClick=${create}>Create</button></div>`;
}

// What would run, and the least X, beside the editor.
function Planned({ plan }) {
  if (!plan) return html`<aside class="soft">The plan is shown here once the query can run.</aside>`;
  return html`<aside><h2>What would run</h2>
    <p>X is ${seconds(plan.x_ms)}; the least that this query can keep is <strong>${seconds(plan.least_x_ms)}</strong>.</p>
    <${Dag} nodes=${plan.nodes} output=${plan.output} inputs=${[]} missing=${new Set()} />
    <table><thead><tr><th>fragment</th><th>replicas</th><th class="n">shards</th></tr></thead>
      <tbody>${plan.fragments.map((each) => html`<tr><td>${each.name}</td><td>${each.replicas.map((replica) => `${replica.name} ${replica.engine}`).join(", ")}</td><td class="n">${each.shards}</td></tr>`)}</tbody></table>
    <p class="soft">Buckets of ${seconds(plan.bucket_ms)}, boundaries every ${seconds(plan.boundary_interval_ms)}; a silent input counts as failed after ${seconds(plan.silence_ms)}.</p></aside>`;
}
