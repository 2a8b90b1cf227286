"""The life of a run: `step` decides, `controller` carries out, `journal` remembers. Names no engine."""
