"""Conformance to docs/api.md, written from the contract alone: every module names the sections that it covers."""
