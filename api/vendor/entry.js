// All that the dashboard's own modules import: one file, so that a page needs one request for it.
import htm from "htm";
import { Fragment, h, render } from "preact";

export { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
export { batch, computed, effect, signal, useComputed, useSignal } from "@preact/signals";
export { default as uPlot } from "uplot";
export { Fragment, h, render };
export const html = htm.bind(h);
