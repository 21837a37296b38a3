// The list of queries, and the page that makes a new one.
import { Problem, SIGNS, WORDS, asOf, call, poll, seconds, session } from "./api.js";
import { setView } from "./app.js";
import { html, useEffect, useState } from "./vendor.js";

const SHOWN = 200;

export function State({ state }) {
  return html`<span class="state s-${state}" data-sign=${SIGNS[state] || "?"}>${WORDS[state] || state}</span>`;
}

export function QueriesPage({ view }) {
  const [listed, setListed] = useState(null);
  const [filter, setFilter] = useState(view.get("filter") || "");
  const [shown, setShown] = useState(SHOWN);
  // A filter needs all queries; without one, those on the screen are enough.
  const path = filter ? "overview" : `overview?limit=${shown}`;
  useEffect(() => poll(async () => {
    const { found } = await call("GET", path);
    asOf.value = found.as_of_ms;
    setListed(found);
  }, 1000), [path]);
  if (listed === null) return html`<p aria-busy="true">Loading</p>`;
  const { queries, total } = listed;
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (query) => `${query.name} ${WORDS[query.state] || query.state || ""}`.toLowerCase();
  const found = queries.filter((query) => words.every((word) => text(query).includes(word)));
  const count = filter ? found.length : total;
  return html`<div class="row"><h1>Queries</h1>
      <label>Filter <input type="search" value=${filter} onInput=${(e) => { setFilter(e.target.value); setView({ filter: e.target.value || null }); }} /></label>
      <span class="soft">${count} of ${total}</span></div>
    <div class="card scroll"><table>
      <thead><tr><th>query</th><th>state</th><th class="n">X</th><th class="n">p99</th><th class="n">late</th><th class="n">tentative now</th><th>inputs</th></tr></thead>
      <tbody>${found.slice(0, shown).map((query) => html`<${Row} key=${query.name} query=${query} />`)}</tbody></table>
      ${count > shown && html`<button onClick=${() => setShown(shown + SHOWN)}>Show ${Math.min(SHOWN, count - shown)} more</button>`}
      ${!total && html`<p>There are no queries. <a href="#/new">Make one</a>.</p>`}</div>`;
}

function Row({ query }) {
  return html`<tr><td><a href="#/q/${encodeURIComponent(query.name)}">${query.name}</a></td>
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
        setResult({ notes: (await send("POST", "validate")).found.notes });
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
  return html`<h1>New query</h1><div class="card"><label for="spec">The query, in YAML</label>
    <textarea id="spec" spellcheck=${false} value=${text} onInput=${(e) => setText(e.target.value)}></textarea>
    <p role="status">${result && (result.error
      ? html`<span class="error">✖ ${result.error.message}${result.error.fix ? `; ${result.error.fix}` : ""}</span>`
      : html`✓ It can run. ${result.notes.join(" ")}`)}</p>
    <button disabled=${!session.value.may.operator || !result || result.error} onClick=${create}>Create</button></div>`;
}
