// What one client of the output sees: a machine that takes records, and the list that shows them.
import { html } from "./vendor.js";

const KEPT = 240, KEPT_POINTS = 1500, ROWS_A_SECOND = 20;

// Takes the records of the output in order. `rows`: the newest first, by event time; an undone row stays, beside its successor.
export class Tail {
  constructor() {
    this.rows = [];
    this.points = [];
    this.marks = [];
    this.hidden = 0;
    this.undone = 0;
    this.lastUndo = null;
    this.covered = "";
    this.before = "";
    this.emitted = 0;
    this.second = 0;
    this.inSecond = 0;
    this.last = 0;
  }

  take(record) {
    if (record.seq <= this.last) return;
    this.last = record.seq;
    if (record.type === "stable" || record.type === "tentative") this.takeRow(record);
    else if (record.type === "undo") this.undo(record);
    else if (record.type === "boundary") this.cover(record);
  }

  // Whether no earlier record covered this result: only then is its delay a delay to the client.
  cover(record) {
    if (record.emitted_ms !== this.emitted) [this.before, this.emitted] = [this.covered, record.emitted_ms];
    const isNew = record.t_max > this.before;
    if (record.t_max > this.covered) this.covered = record.t_max;
    return isNew;
  }

  takeRow(record) {
    if (this.cover(record)) {
      this.points.push({ at: record.emitted_ms, delay: (record.emitted_ms - record.ingest_ms) / 1000, kind: record.type });
      if (this.points.length > KEPT_POINTS) this.points.splice(0, this.points.length - KEPT_POINTS);
    }
    const second = Math.floor(record.emitted_ms / 1000);
    if (second !== this.second) [this.second, this.inSecond] = [second, 0];
    // Rows that take the place of shown ones are shown whatever their number.
    const follows = this.rows.some((row) => row.state === "undone" && row.event === record.event_time && row.key === String(record.key));
    if (++this.inSecond > ROWS_A_SECOND && !follows && record.type === "stable") {
      this.hidden += 1;
      return;
    }
    this.rows.push({
      seq: record.seq, state: record.type, event: record.event_time, key: String(record.key), data: record.data,
      missing: record.missing_inputs || [], at: Date.now(),
    });
    this.rows.sort((a, b) => (a.event === b.event ? (a.key === b.key ? a.seq - b.seq : a.key < b.key ? -1 : 1) : a.event < b.event ? 1 : -1));
    if (this.rows.length > KEPT) this.rows.length = KEPT;
  }

  undo(record) {
    let count = 0;
    for (const row of this.rows) {
      if (row.state === "tentative" && row.seq > record.after_seq) {
        row.state = "undone";
        count += 1;
      }
    }
    // Of a row that was taken back several times, only the last version stays.
    const latest = {};
    for (const row of this.rows) if (row.state === "undone") latest[`${row.event} ${row.key}`] = row.seq;
    this.rows = this.rows.filter((row) => row.state !== "undone" || latest[`${row.event} ${row.key}`] === row.seq);
    this.undone += count;
    if (count) this.lastUndo = { at: record.emitted_ms, count };
    this.marks.push({ at: record.emitted_ms, sign: "⟲", text: `${count} rows undone` });
    if (this.marks.length > 100) this.marks.shift();
  }
}

const SIGN = { stable: "✓ stable", tentative: "? tentative", undone: "undone" };

function shown(data) {
  return Object.entries(data).filter(([name]) => !["window_start", "window_end", "time"].includes(name))
    .map(([name, value]) => `${name} ${typeof value === "number" ? +value.toFixed(2) : value === null ? "null" : value}`).join("  ");
}

function when(row) {
  const { window_start: start, window_end: end, time } = row.data;
  return start ? `${start.slice(5, 16).replace("T", " ")}–${end.slice(11, 16)}` : (time || row.event).slice(5, 19).replace("T", " ");
}

export function TailList({ rows, hidden, now }) {
  return html`<ol class="tail" tabindex="0" aria-label="The newest results, by event time">${rows.map((row) => html`
    <li key=${row.seq} class="${row.state} ${now - row.at < 700 ? "fresh" : ""}" data-key=${row.key}>
      <span>${when(row)}</span><span class="data">${row.state === "undone" && html`<span class="sr">undone: </span>`}${shown(row.data)}</span>
      <span class="mark">${SIGN[row.state]}${row.state === "tentative" && row.missing.length ? `, no ${row.missing.join(", ")}` : ""}</span></li>`)}</ol>
    ${hidden > 0 && html`<p class="soft">${hidden} more stable rows are not shown: at most ${ROWS_A_SECOND} a second</p>`}
    ${!rows.length && html`<p class="soft">No results yet. They come when a window closes.</p>`}`;
}

