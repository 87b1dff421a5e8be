"""Drills: load, leaks, vanishing clients, start-up, broken model files. INFERD_TEST_LONG=1 runs the full counts."""
