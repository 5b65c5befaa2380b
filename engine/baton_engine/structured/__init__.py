"""Structured outputs: grammars, compiled off the loop, that say which tokens may come next."""
