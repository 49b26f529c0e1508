"""Pages are made of templates, the style and the script, with the headers that go with them."""
