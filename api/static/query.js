// The screen of one query: what is missing, what is held back, what was given and taken back, and X.
import { WORDS, asOf, call, offline, paused, poll, said, seconds, session, tell, toast } from "./api.js";
import { setView } from "./app.js";
import { DelayChart, Strips } from "./charts.js";
import { Dag } from "./dag.js";
import { State } from "./queries.js";
import { ShowMe } from "./showme.js";
import { Tail, TailList } from "./tail.js";
import { html, useEffect, useRef, useState } from "./vendor.js";

const SPANS = [60, 120, 300];
const KINDS = ["stable", "tentative", "undo", "boundary", "rec_done", "message"];

export function QueryPage({ name, view }) {
  const path = `queries/${encodeURIComponent(name)}`;
  const [query, setQuery] = useState(null);
  const etag = useRef(null), ahead = useRef(0), changes = useRef(Promise.resolve());
  const [span, setSpan] = useState(Number(view.get("span")) || 120);
  const tail = useRef(new Tail());
  const [turn, setTurn] = useState(0);
  const look = async () => {
    const { found, etag: current } = await call("GET", `${path}?expand=status`);
    etag.current = current;
    asOf.value = found.status.as_of_ms;
    ahead.current = found.status.as_of_ms - Date.now();
    setQuery(found);
  };
  useEffect(() => poll(look, 500), [name]);
  const [plan, setPlan] = useState(null);
  const revision = query && query.revision;
  useEffect(() => {
    if (revision) call("GET", `${path}/plan?min_revision=${revision}`).then(({ found }) => setPlan(found), tell);
  }, [path, revision]);
  useTail(path, tail, () => setTurn((each) => each + 1));
  useSaid(query && query.status);
  if (!query) return html`<p aria-busy="true">Loading ${name}</p>`;
  const status = query.status, now = Date.now() + ahead.current;
  const missing = new Set(status.replicas.flatMap((replica) => replica.missing || []));
  const to = now, from = now - span * 1000;
  const faults = (status.journal || []).filter((entry) => entry.kind === "fault")
    .map((entry) => ({ at: entry.at_ms, sign: entry.is_bad ? "✂" : "✓", text: `${entry.who}: ${entry.text}` }));
  // One after the other, each with the ETag that the one before has left: quick keys at the slider do not contradict each other.
  const change = (fields, headers) => (changes.current = changes.current.then(() => send(fields, headers)));
  const send = async (fields, headers) => {
    try {
      const { etag: current } = await call("PATCH", path, { body: fields, headers: { "If-Match": etag.current, ...headers } });
      etag.current = current;
      await look();
      return true;
    } catch (error) {
      await look().catch(() => {});
      tell(error.status === 412 ? new Error("somebody else has changed the query meanwhile: look, and change it again") : error);
      return false;
    }
  };
  return html`<div class="head"><h1>${name}</h1><${State} state=${status.state} />
      <span class="soft">revision ${query.revision} · ${query.reconcile} · ${Object.values(query.policy).join("/")}</span>
      <a href="#/q/${encodeURIComponent(name)}/explain">explain the delay</a>
      <a href="#/q/${encodeURIComponent(name)}/failures">failures</a></div>
    <${Banner} status=${status} missing=${missing} tail=${tail.current} now=${now} />
    ${session.value.may.chaos && session.value.may.operator && html`<${ShowMe} name=${name} query=${query} status=${status} missing=${missing} change=${change} />`}
    <section class="card"><h2>Inputs and operators</h2>${plan && html`<${Dag} nodes=${plan.nodes} output=${plan.output} inputs=${status.inputs} missing=${missing} />`}
      <${Chaos} name=${name} status=${status} missing=${missing} /></section>
    ${plan && html`<section class="card"><${Slider} query=${query} leastMs=${plan.least_x_ms} change=${change} /></section>`}
    ${status.slo && html`<${Objective} slo=${status.slo} />`}
    <section class="card"><h2>What a client sees</h2>
      <p>${status.counts.stable} stable, <strong>${status.tentative.outstanding} tentative now</strong>, ${status.counts.undone} undone so far, ${status.violations} later than X</p>
      ${session.value.shows_rows ? html`<${TailList} rows=${tail.current.rows.slice(0, 120)} hidden=${tail.current.hidden} now=${Date.now()} key="tail" />`
        : html`<p class="soft">This installation shows no rows.</p>`}</section>
    <section class="card"><div class="row"><h2>Delay of new results, against X</h2>
      <label class="soft">span <select value=${span} onChange=${(e) => { setSpan(Number(e.target.value)); setView({ span: e.target.value }); }}>
        ${SPANS.map((each) => html`<option value=${each}>${each} s</option>`)}</select></label></div>
      <${DelayChart} points=${tail.current.points.slice()} x=${status.x_ms} from=${from} to=${to} /></section>
    <section class="card"><h2>States</h2><${Strips} status=${status} marks=${[...faults, ...tail.current.marks]} from=${from} to=${to} /></section>
    <p class="sr">${turn}</p>`;
}

// Follows the output by server-sent events. Closed while the page is hidden or paused; goes on after the last record.
function useTail(path, tail, changed) {
  useEffect(() => {
    let source = null, waiting = false, ended = false;
    const take = (event) => {
      const record = JSON.parse(event.data);
      if (!record.type && event.type !== "message") record.type = event.type;
      tail.current.take(record);
      if (!waiting) {
        waiting = true;
        setTimeout(() => { waiting = false; if (!ended) changed(); }, 150);
      }
    };
    const open = () => {
      source = new EventSource(`api/v1/${path}/output?from=all&last=300`);
      for (const kind of KINDS) source.addEventListener(kind, take);
      // Records are lost to this page, maybe those that took back what it shows: what comes now is all that is known.
      source.addEventListener("gap", () => { tail.current = new Tail(); changed(); });
      source.onerror = () => {
        // Refused: the place is not known any more, as after the query was created again. Start over.
        if (source && source.readyState === EventSource.CLOSED) { close(); tail.current = new Tail(); setTimeout(follow, 2000); }
      };
    };
    const close = () => { if (source) source.close(); source = null; };
    const follow = () => {
      const wanted = !ended && !document.hidden && !paused.value;
      if (wanted && !source) open();
      else if (!wanted && source) close();
    };
    follow();
    document.addEventListener("visibilitychange", follow);
    const stop = paused.subscribe(follow);
    return () => { ended = true; stop(); document.removeEventListener("visibilitychange", follow); close(); };
  }, [path]);
}

// One sentence for screen readers at each change of what clients get.
function useSaid(status) {
  const text = status && (status.tentative.outstanding ? "The query answers tentatively." : `The query is ${WORDS[status.state]}.`);
  useEffect(() => { if (text) said.value = text; }, [text]);
}

function Banner({ status, missing, tail, now }) {
  const names = [...missing].join(", ");
  if (offline.value) return html`<div class="card banner bad">No connection: what is shown is old. Trying again.</div>`;
  if (status.paused) return html`<div class="card banner">Paused: rows wait in their topics.</div>`;
  if (status.tentative.outstanding) {
    return html`<div class="card banner tentative"><strong>◆ Answering tentatively${names && `: ${names} missing`}.</strong>
      ${" "}${status.tentative.outstanding} results may still be taken back; none has waited longer than X.</div>`;
  }
  if (missing.size) {
    const since = Math.min(...status.replicas.filter((replica) => replica.missing.length).map((replica) => replica.since_ms));
    const held = Math.max(now - since, 0);
    return html`<div class="card banner hold"><strong>${names} missing.</strong> Results wait for it: ${seconds(Math.min(held, status.alpha_x_ms))} of ${seconds(status.alpha_x_ms)}.</div>`;
  }
  if (status.state === "FAILURE") return html`<div class="card banner bad"><strong>✖ The query does not answer.</strong></div>`;
  if (tail.lastUndo && now - tail.lastUndo.at < 15000) {
    return html`<div class="card banner"><strong>✓ Corrected:</strong> ${tail.lastUndo.count} tentative results undone, stable ones in their place, 0 stable results changed.</div>`;
  }
  return html`<div class="card banner"><strong>● Stable.</strong> All inputs are there; every result is final.</div>`;
}

function Chaos({ name, status, missing }) {
  const [length, setLength] = useState("8s");
  if (!session.value.may.chaos) return null;
  const give = async (fault) => {
    try {
      await call("POST", "chaos", { body: { fault } });
    } catch (error) {
      tell(error);
    }
  };
  return html`<div class="row"><label>for <select aria-label="How long a fault lasts" value=${length} onChange=${(e) => setLength(e.target.value)}>
      ${["3s", "8s", "20s", "60s"].map((each) => html`<option value=${each}>${each.replace("s", " s")}</option>`)}</select></label>
    ${status.inputs.map((input) => missing.has(input.name)
      ? html`<button onClick=${() => give(`heal ${name}.${input.name}`)}>Heal ${input.name}</button>`
      : html`<button class="danger" onClick=${() => give(`cut ${name}.${input.name} for ${length}`)}>✂ Cut ${input.name}</button>`)}
    <button class="danger" onClick=${() => give(`crash ${name}.${status.replicas[0].fragment}.${status.replicas[0].replica} for ${length}`)}>✖ Crash ${status.replicas[0].replica}</button></div>`;
}

// How much of what may go wrong within the window is left, of results and of time.
function Objective({ slo }) {
  const left = ({ budget_left: left, burn_1h: burn }, what) => html`<label>${what} <meter min="0" max="1" low="0.25" value=${Math.max(left, 0)}></meter>
    ${" "}<strong class=${left < 0 ? "error" : ""}>${(100 * left).toFixed(0)} %</strong>${burn > 1 ? html` <span class="error">spent ${burn.toFixed(1)} times too fast in the last hour</span>` : ""}</label>`;
  return html`<section class="card"><h2>Objective: ${slo.objective} % within ${Math.round(slo.window_ms / 86400000)} days</h2>
    <div class="row">${left(slo.results, "budget left for late results")}${left(slo.time, "for time with tentative results")}</div></section>`;
}

const MOST_MS = 30000;

// What an X would have shown of the recorded failures of the last day, as the server bounds it.
function WhatIf({ name, x }) {
  const [steps, setSteps] = useState([]);
  useEffect(() => poll(async () => setSteps((await call("GET", `queries/${encodeURIComponent(name)}/what-if`)).found.steps), 5000), [name]);
  const all = steps.length ? steps[0].failures : 0;
  if (!all) return null;
  const step = steps.filter((each) => each.x_ms <= x).at(-1);
  return html`<p class="soft">${seconds(x)} would have shown tentative results in ${step.failures} of the ${all} failure${all > 1 ? "s" : ""} of the last day,
    ${" "}at most ${step.rows_tentative_at_most} rows: a bound, no promise.</p>`;
}

// leastMs: the smallest X that the server accepts.
function Slider({ query, leastMs, change }) {
  const least = Math.ceil(leastMs / 10) * 10, most = Math.max(MOST_MS, query.x_ms);
  const toPlace = (ms) => Math.round((1000 * Math.log(ms / least)) / Math.log(most / least));
  const toX = (place) => {
    const ms = least * (most / least) ** (place / 1000);
    const step = ms < 1000 ? 10 : ms < 10000 ? 100 : 500;
    return Math.max(Math.round(ms / step) * step, least);
  };
  const [dragged, setDragged] = useState(null);
  const shown = dragged ?? query.x_ms;
  const set = async (ms) => {
    const old = query.x_ms;
    if (ms !== old && (await change({ delay_threshold: `${ms}ms` }))) {
      toast.value = { text: `X is ${seconds(ms)} now, for all that is held back too`, undo: () => change({ delay_threshold: `${old}ms` }) };
    }
    setDragged(null);
  };
  return html`<h2><label for="x">X: no new result takes longer than</label></h2>
    <div class="row"><input id="x" type="range" min="0" max="1000" step="1" value=${toPlace(shown)} disabled=${!session.value.may.operator}
      aria-valuetext=${seconds(shown)} onInput=${(e) => setDragged(toX(Number(e.target.value)))} onChange=${(e) => set(toX(Number(e.target.value)))} />
      <output for="x"><strong>${seconds(shown)}</strong></output>
      <span class="soft">${dragged === null ? "" : "release to set it; "}a shorter failure than this stays hidden, a longer one shows tentative results</span></div>
    <${WhatIf} name=${query.name} x=${shown} />`;
}

