"""The languages of prompts: `{column}`, or Jinja in a sandbox."""
