"""The lifecycle of a run: `step` decides, `controller` acts, `journal` records. Independent of the engine."""
