"""How pages are made: templates, the style and the script, and the headers that go with them."""
