"""The roles of workers as they run, with all their threads, over a simulated Kafka, a simulated Redis and a simulated clock.

Touches the modules of `services`, whose threads, queues and clocks it replaces while it runs, so that one seed is one course of
events; no socket, no disk, and no real thread.
"""
