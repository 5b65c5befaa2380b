"""Work on untrusted text, in processes that can be ended."""
