// Comparisons: how far one is, and its runs as a table; for the pages that begin one.
import { call, poll, seconds, tell } from "./api.js";
import { html, useEffect, useState } from "./vendor.js";

export const MODES = ["checkpoint_redo", "overlay_redo", "undo_redo"];
const HOLDS = ["process", "delay", "suspend"];
export const POLICIES = HOLDS.flatMap((failure) => HOLDS.map((stabilization) => `${failure}/${stabilization}`));
const isOver = (job) => !["queued", "running"].includes(job.state);

// The comparison with an id, as it goes on; null before it is known, and without an id.
export function useComparison(id) {
  const [job, setJob] = useState(null);
  useEffect(() => {
    setJob(null);
    if (!id) return undefined;
    let stop = () => {};
    stop = poll(async () => {
      const { found } = await call("GET", `comparisons/${encodeURIComponent(id)}`);
      setJob(found);
      if (isOver(found)) setTimeout(() => stop());
    }, 500);
    return () => stop();
  }, [id]);
  return job;
}

// Begins a comparison; `begun` gets its id.
export async function begin(path, body, begun) {
  try {
    begun((await call("POST", path, { body })).found.id);
  } catch (error) {
    tell(error);
  }
}

// happened: a row for what really happened, in the shape of a run; null if nothing did.
export function Compared({ job, happened }) {
  if (!job) return html`<p aria-busy="true">Asking</p>`;
  const { done, total } = job.progress;
  if (!isOver(job)) {
    return html`<p role="status">${job.state === "queued" ? "It waits for others" : `Run ${Math.min(done + 1, total || 1)} of ${total ?? "…"}`}
      ${" "}<progress value=${done} max=${total || 1} aria-label="Runs that are done"></progress>
      ${" "}<button onClick=${() => call("POST", `comparisons/${encodeURIComponent(job.id)}/cancel`).catch(tell)}>Cancel</button></p>`;
  }
  if (!job.result) return html`<p role="status">${job.problem ? `${job.problem.problem}; ${job.problem.fix}` : `It is ${job.state}.`}</p>`;
  const rows = [...(happened ? [happened] : []), ...job.result.table];
  return html`<div class="scroll"><table aria-label="Runs">
      <thead><tr>${happened && html`<th>what</th>`}<th class="n">X</th><th>mode</th><th>policy</th><th class="n">tentative</th><th class="n">undone</th>
        <th class="n">later than X</th><th class="n">longest delay</th><th class="n">right again after</th></tr></thead>
      <tbody>${rows.map((row) => html`<tr>${happened && html`<td>${row === happened ? "it happened" : "replayed"}</td>`}
        <td class="n">${seconds(row.x_ms)}</td><td>${row.mode}</td><td>${row.policy}</td><td class="n">${row.n_tentative ?? "–"}</td><td class="n">${row.n_undone}</td>
        <td class="n">${row.violations ?? "–"}</td><td class="n">${seconds(row.delay_new_ms_max)}</td>
        <td class="n">${row.consistent_after_seconds === null ? "–" : seconds(row.consistent_after_seconds * 1000)}</td></tr>`)}</tbody></table></div>
    ${job.result.notes.map((note) => html`<p class="soft">${note}</p>`)}`;
}
