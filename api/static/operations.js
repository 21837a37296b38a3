// What an operator looks at: replicas, what happened and who did it, and the settings.
import { asOf, call, poll, seconds, session } from "./api.js";
import { EventTable } from "./failures.js";
import { State } from "./queries.js";
import { html, useEffect, useState } from "./vendor.js";

export function OperationsPage() {
  const [queries, setQueries] = useState(null);
  const [config, setConfig] = useState(null);
  const [filter, setFilter] = useState("");
  const [events, setEvents] = useState([]);
  useEffect(() => poll(async () => {
    const [{ found }, told] = await Promise.all([call("GET", "queries?expand=status"), call("GET", "events?limit=200")]);
    setQueries(found.queries);
    setEvents(told.found.events);
  }, 2000), []);
  useEffect(() => {
    if (session.value.may.admin) call("GET", "config").then(({ found }) => setConfig(found), () => {});
  }, []);
  if (queries === null) return html`<p aria-busy="true">Loading</p>`;
  const holds = (...texts) => texts.join(" ").toLowerCase().includes(filter.toLowerCase());
  const replicas = queries.flatMap((query) => (query.status ? query.status.replicas : []).map((replica) => ({ query: query.name, ...replica })));
  return html`<div class="row"><h1>Operations</h1><label>Filter <input type="search" value=${filter} onInput=${(e) => setFilter(e.target.value)} /></label></div>
    <section class="card scroll"><h2>Replicas</h2><table>
      <thead><tr><th>query</th><th>replica</th><th>engine</th><th>site</th><th>state</th><th class="n">since</th></tr></thead>
      <tbody>${replicas.filter((each) => holds(each.query, each.fragment, each.replica, each.state)).slice(0, 500).map((each) => html`<tr>
        <td>${each.query}</td><td>${each.fragment}.${each.replica}.${each.shard}</td><td>${each.engine}</td><td>${each.site || ""}</td>
        <td><${State} state=${each.state} /></td><td class="n">${each.since_ms ? seconds(asOf.value - each.since_ms) : "–"}</td></tr>`)}</tbody></table></section>
    <section class="card scroll"><h2>What happened, and who did it</h2>
      <${EventTable} withQuery=${true} events=${events.filter((each) => holds(each.query || "", each.kind, each.by || "", JSON.stringify(each.facts)))} /></section>
    ${config && html`<section class="card"><h2>Settings</h2><pre class="scroll">${JSON.stringify(config, null, 2)}</pre></section>`}`;
}
